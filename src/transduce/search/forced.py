"""Forced and forbidden tokens from Hugging Face's `generation_config.json`: settings and the rules that apply them.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t tokens so far.
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
    """Settings from `generation_config.json` that have no equivalent in `SearchSettings`."""

    forced_first_id: int | None = None
    """The first token of every translation, such as the tag of its language."""
    forced_last_id: int | None = None
    """The token at the greatest length of a translation, mostly the end symbol."""
    forbidden_ids: tuple[int, ...] = ()
    """Tokens that are never written."""
    stop: Literal["full", "likely", "never"] = "likely"
    """When a sentence is done. `full`: once `beam_size` hypotheses have ended. `likely`: once also no live one is
    better at its current length. `never`: once also none could be better at the greatest length.
    """
    renormalize: bool = False
    """Renormalize probabilities over the tokens that rules permit: `renormalize_logits`, which OPUS models set."""

    def __post_init__(self) -> None:
        for name, id in _ids_of(self):
            if isinstance(id, bool) or not isinstance(id, int) or id < 0:
                raise TransduceError(f"`search.generate.{name}` must be a token id, at least 0, but is {id!r}.")


def _ids_of(settings: GenerateSettings) -> Iterator[tuple[str, int]]:
    for name in ("forced_first_id", "forced_last_id"):
        if (id := getattr(settings, name)) is not None:
            yield name, id
    yield from (("forbidden_ids", id) for id in settings.forbidden_ids)


def check_ids(settings: GenerateSettings, size: int) -> None:
    """Check that all ids in the settings belong to a vocabulary of this size.

    Raises:
        TransduceError: an id is too large.
    """
    for name, id in _ids_of(settings):
        if id >= size:
            raise TransduceError(
                f"`search.generate.{name}` must be a token id of the vocabulary, 0 to {size - 1:,}, but is {id:,}."
            )


class ForcedPiece:
    """A rule that forces one token at one position, with probability 1."""

    def __init__(self, id: int, place: int | Tensor) -> None:
        """Force token `id` after `place` tokens: one number for all sentences, or one per input sentence, (N,)."""
        self.id = id
        self.place = place

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:
        """At the position of the forced token, set its log-probability to 0 and forbid all others."""
        place = self.place[rows] if isinstance(self.place, Tensor) else torch.full_like(rows, self.place)
        is_here = place == pieces.shape[-1]  # (B,)
        if bool(is_here.any()):
            forced = torch.full_like(logits, _NEVER)
            forced[..., self.id] = 0.0
            logits = torch.where(is_here[:, None, None], forced, logits)
        return logits


class Renormalize:
    """A rule that renormalizes probabilities over the tokens that earlier rules permit."""

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Return the log-probabilities of the permitted tokens."""
        return logits.log_softmax(dim=-1)


def generate_rules(settings: GenerateSettings, longest: Tensor, tags: Sequence[int] = ()) -> list[Rule]:
    """Return the rules to apply after all others.

    Args:
        settings: forced and forbidden tokens.
        longest: the greatest length of each sentence in tokens, (N,).
        tags: tokens that start every translation, such as the tag of its language.
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
