"""What Hugging Face's `generation_config.json` forces and forbids: settings, and the rules that they ask for.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t pieces so far.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.search.rules import Forbid, Rule

_NEVER = float("-inf")


class GenerateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `generation_config.json` says beyond our own settings."""

    # The first piece of every translation, such as the tag of its language.
    forced_first_id: int | None = None
    # What stands where a translation reaches its greatest length, mostly the end symbol.
    forced_last_id: int | None = None
    # Pieces that are never written.
    forbidden_ids: tuple[int, ...] = ()
    # When a sentence is done: `full` once as many hypotheses have ended as the beam is wide; `likely` once besides no
    # live one is better at its present length; `never` once besides none could be better at the greatest length.
    stop: Literal["full", "likely", "never"] = "likely"
    # What the rules leave has all the probability: `renormalize_logits`, which OPUS models ask for.
    renormalize: bool = False

    def __post_init__(self) -> None:
        for name, id in _ids_of(self):
            if isinstance(id, bool) or not isinstance(id, int) or id < 0:
                raise TransduceError(
                    f"`search.generate.{name}` must be the number of a piece, from 0 on, but is {id!r}."
                )


def _ids_of(settings: GenerateSettings) -> Iterator[tuple[str, int]]:
    for name in ("forced_first_id", "forced_last_id"):
        if (id := getattr(settings, name)) is not None:
            yield name, id
    yield from (("forbidden_ids", id) for id in settings.forbidden_ids)


def check_ids(settings: GenerateSettings, size: int) -> None:
    """Refuses numbers that are no pieces of a vocabulary of this size.

    Raises:
        TransduceError: one is.
    """
    for name, id in _ids_of(settings):
        if id >= size:
            raise TransduceError(
                f"`search.generate.{name}` must be a piece of the vocabulary, 0 to {size - 1:,}, but is {id:,}."
            )


class ForcedPiece:
    """One piece, at no cost, at one place."""

    def __init__(self, id: int, place: int | Tensor) -> None:
        """The place is a number of pieces before it: the same for all, or one a sentence of the input, (N,)."""
        self.id = id
        self.place = place

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:
        """Gives the piece the log-probability 0, and forbids all others, where it stands."""
        place = self.place[rows] if isinstance(self.place, Tensor) else torch.full_like(rows, self.place)
        here = place == pieces.shape[-1]  # (B,)
        if bool(here.any()):
            forced = torch.full_like(logits, _NEVER)
            forced[..., self.id] = 0.0
            logits = torch.where(here[:, None, None], forced, logits)
        return logits


class Renormalize:
    """What may still be written at a step shares all the probability."""

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Log-probabilities of what the rules before this one have left."""
        return logits.log_softmax(dim=-1)


def generate_rules(settings: GenerateSettings, longest: Tensor, tags: Sequence[int] = ()) -> list[Rule]:
    """The rules to apply after all others.

    Args:
        settings: what is forced and forbidden.
        longest: the greatest number of pieces of each sentence, (N,).
        tags: what every translation begins with, such as the tag of its language.
    """
    rules: list[Rule] = [Forbid(settings.forbidden_ids)] if settings.forbidden_ids else []
    rules += [ForcedPiece(tag, place) for place, tag in enumerate(tags)]
    if settings.forced_first_id is not None and not tags:
        rules.append(ForcedPiece(settings.forced_first_id, 0))
    if settings.forced_last_id is not None:
        rules.append(ForcedPiece(settings.forced_last_id, longest - 1))
    if settings.renormalize:
        rules.append(Renormalize())
    return rules
