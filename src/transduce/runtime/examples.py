"""Translating by examples: what a model was about to write in sentences like this one, and what stood there.

A model remembers pairs as the states from which their pieces were written. Of a sentence's nearest pairs, the nearest
states to the present one vote for the next piece, beside the model itself (Khandelwal et al. 2021, "Nearest Neighbor
Machine Translation"; only pairs with a similar source are asked: Deguchi et al. 2023, "Subset Retrieval Nearest
Neighbor Machine Translation"). So a model knows new pairs without being trained on them.
Legend: P pairs, N target positions of all pairs, D model width, B sentences, W hypotheses of each, M positions of a
sentence's nearest pairs, K states that vote, V vocabulary.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from transduce.errors import TransduceError
from transduce.model.build import EncoderDecoder
from transduce.model.fast import decoded_model
from transduce.runtime.scorer import TransformerScorer
from transduce.runtime.scoring import target_states
from transduce.search.vocabulary import log_normalizer

Ids = Sequence[Sequence[int]]
"""Pieces of sentences, with their end symbols."""

FORMAT_VERSION = 1
CARD = "transduce.examples"
PAIRS, STATES = 256, 16  # of a sentence's nearest pairs, and of their states, so many are asked
_MOST_ELEMENTS = 1 << 26  # of the states of a batch's nearest pairs: 256 MB
_ROWS = 1 << 16  # of pairs that are compared at a time
_LEVELS = 10_000  # of the likeness of two sources, from none to being about the same
_ALIKE = 1e-3  # of the temperature: distances that differ by less weigh the same
_MOST_DIFFERENCE = 0.1  # of a state by another precision, beside its own size


class ExampleCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How examples are used."""

    format_version: int = FORMAT_VERSION
    pairs: int
    weight: float
    """Of the examples' votes; the rest is the model's."""
    temperature: float
    """Squared distances are divided by it."""


class Remembered(NamedTuple):
    """What is known of pairs."""

    states: Tensor
    """The decoder's last layer before each piece of the targets, float16, (N, D)."""
    labels: Tensor
    """These pieces, end symbols among them, int32, (N,)."""
    starts: Tensor
    """Of each pair's positions, and their end, int64, (P + 1,)."""
    sources: Tensor
    """What the sources are about, float16, (P, D), each of length 1."""
    rarities: Tensor
    """What a piece tells about a source: the logarithm of how few have it, float32, (V,)."""
    first_source: Tensor
    """Pieces of the first pair, int32: by them one sees whether the states are a model's own."""
    first_target: Tensor


class Voters(NamedTuple):
    """The positions of one sentence's nearest pairs."""

    states: Tensor
    """(M, D)."""
    norms: Tensor
    """The squares of their lengths, (M,)."""
    labels: Tensor
    """int64, (M,)."""


class Neighbours:
    """The nearest pairs of each sentence of a batch.

    Each sentence is asked by itself: its states are read once a step, and nothing is copied when others leave.
    """

    def __init__(self, voters: Sequence[Voters], card: ExampleCard) -> None:
        """Of sentences, each of which has one position at least."""
        self._voters, self._card = list(voters), card

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        self._voters = [self._voters[row] for row in rows.tolist()]

    def nearest(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The pieces of the nearest states to these (B, W, D), and minus their squared distances, but for what all have
        in common, the squares of the lengths of `states`: (B, W, K) both. Where there are fewer, minus infinity.
        """
        shape = (*states.shape[:-1], STATES)
        pieces, near = states.new_zeros(shape, dtype=torch.int64), states.new_full(shape, -torch.inf)
        for row, (own, voters) in enumerate(zip(states, self._voters, strict=True)):
            # The many states first: the library's product of few rows with many is half as fast.
            distances = torch.addmm(voters.norms[:, None], voters.states, own.T, beta=-1.0, alpha=2.0)  # (M, W)
            found = self._first_of_nearest(distances.T)
            near[row, :, : found.shape[1]] = distances.T.gather(-1, found)
            pieces[row, :, : found.shape[1]] = voters.labels[found]
        return pieces, near

    def _first_of_nearest(self, nearness: Tensor) -> Tensor:
        """The numbers of the nearest states, of (W, M).

        Of those that are as near as the last one but for rounding, which depends on the batch, the first ones count.
        """
        count, margin = min(STATES, nearness.shape[-1]), _ALIKE * self._card.temperature
        last = nearness.topk(count, dim=-1).values[:, -1:]
        ranks = (nearness > last + margin).double() + (nearness >= last - margin)
        ranks -= torch.arange(nearness.shape[-1], device=ranks.device) / nearness.shape[-1]
        return ranks.topk(count, dim=-1).indices

    def mixed(self, states: Tensor, log_probabilities: Tensor) -> Tensor:
        """Log-probabilities (B, W, V) after these states (B, W, D), with the votes; changed in place."""
        weight = self._card.weight
        pieces, near = self.nearest(states)
        shares = (near / self._card.temperature).softmax(dim=-1)
        log_probabilities += math.log1p(-weight)
        # Each place of a piece gets the votes of all its places.
        together = (pieces[..., :, None] == pieces[..., None, :]).to(shares.dtype) @ shares[..., None]
        voted = (weight * together[..., 0]).log()
        return log_probabilities.scatter_(-1, pieces, torch.logaddexp(log_probabilities.gather(-1, pieces), voted))


class Examples:
    """Pairs that a model remembers; see `remembering.py` for how."""

    def __init__(self, remembered: Remembered, card: ExampleCard) -> None:
        self.remembered, self.card = remembered, card

    def of_one(self, models: Sequence[EncoderDecoder]) -> "Examples":
        """Itself, where there is one model.

        Raises:
            TransduceError: there are several.
        """
        if len(models) > 1:
            raise TransduceError(
                f"Examples are what one model remembers, but there are {len(models)}: name one, or leave them out."
            )
        return self

    @property
    def most_sentences(self) -> int:
        """Sentences whose nearest pairs fit into memory together."""
        states = self.remembered.states
        each = PAIRS * len(states) / max(1, self.card.pairs) * states.shape[1]
        return max(1, int(_MOST_ELEMENTS / max(1.0, each)))

    def near(self, model: EncoderDecoder, source_ids: Ids, count: int = PAIRS) -> Tensor:
        """The nearest pairs of sentences by what their sources are about, nearest first, (B, n).

        Of those that are as near but for rounding, which depends on the batch, the first counts as nearer.
        """
        about = about_sources(model, source_ids, self.remembered.rarities)
        best: list[tuple[Tensor, Tensor]] = []
        for number, rows in enumerate(self.remembered.sources.split(_ROWS)):
            places = torch.arange(len(rows)) + number * _ROWS
            nearness = ((about @ rows.float().T).double() * _LEVELS).round_() - places / self.card.pairs
            found = nearness.topk(min(count, len(rows)), dim=-1)
            best.append((found.values, places[found.indices]))
        values, places = (torch.cat(each, dim=-1) for each in zip(*best, strict=True))
        return places.gather(-1, values.topk(min(count, values.shape[-1]), dim=-1).indices)

    def neighbours(self, pairs: Sequence[Tensor], device: torch.device) -> Neighbours:
        """Of sentences, of each of which these pairs (n,) are asked."""
        known, voters = self.remembered, []
        for own in pairs:
            places = _ranges(known.starts[own], known.starts[own + 1])
            states = known.states[places].to(device).float()
            labels = known.labels[places].to(device).long()
            voters.append(Voters(states, states.square().sum(dim=-1), labels))
        return Neighbours(voters, self.card)

    def of_batch(self, model: EncoderDecoder, source_ids: Ids) -> Neighbours:
        """What is asked while these sentences are translated."""
        return self.neighbours(list(self.near(model, source_ids)), model.source_weight.device)


class ExampleScorer:
    """A model and its examples as search sees them. Implements `search.scorer.Scorer`."""

    def __init__(self, scorer: TransformerScorer, neighbours: Neighbours) -> None:
        """Of a scorer at the start of a batch."""
        self._scorer, self._neighbours = scorer, neighbours

    def step(self, pieces: Tensor) -> Tensor:
        """Log-probabilities of the next piece (B, W, V), after each hypothesis' newest piece (B, W)."""
        logits = self._scorer.step(pieces).float()
        return self._neighbours.mixed(self._scorer.states.float(), logits - log_normalizer(logits))

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]."""
        self._scorer.reorder(parents)

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        self._scorer.keep_sentences(rows)
        self._neighbours.keep_sentences(rows)


def about_sources(model: EncoderDecoder, source_ids: Ids, rarities: Tensor) -> Tensor:
    """What sentences are about: the sum of their pieces' embeddings, by rarity, of length 1, (B, D)."""
    weight = model.source_weight.detach()
    found = torch.zeros(len(source_ids), weight.shape[1])
    for row, ids in enumerate(source_ids):
        own = torch.tensor(ids)
        found[row] = rarities[own] @ weight[own.to(weight.device)].float().cpu()
    return torch.nn.functional.normalize(found, dim=-1)


def states_of(model: EncoderDecoder, source_ids: Ids, target_ids: Ids) -> Tensor:
    """The decoder's last layer before each piece of the targets, one pair after another, float32, (N, D)."""
    with torch.inference_mode():
        return target_states(decoded_model(model), source_ids, target_ids).float().cpu()


def read_examples(path: str | Path, model: EncoderDecoder) -> Examples:
    """The examples of a file, for the model that they were written with.

    Raises:
        TransduceError: the file holds none, or those of another model.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            card = msgspec.json.decode((file.metadata() or {})[CARD].encode(), type=ExampleCard)
            remembered = Remembered(*(file.get_tensor(name) for name in Remembered._fields))
    except (OSError, SafetensorError, KeyError, msgspec.MsgspecError) as error:
        raise TransduceError(
            f"{path} holds no examples ({error}): name a file that `transduce remember` wrote."
        ) from error
    states, weight = remembered.states, model.source_weight
    fits = states.shape[1] == weight.shape[1] and len(remembered.rarities) == len(weight)
    if fits:
        first = [remembered.first_source.tolist()], [remembered.first_target.tolist()]
        known, found = states[: len(first[1][0])].float(), states_of(model, *first)
        fits = float((found - known).norm()) <= _MOST_DIFFERENCE * float(known.norm())
    if not fits:
        raise TransduceError(f"{path} holds examples of another model: write them anew by `transduce remember`.")
    return Examples(remembered, card)


def _ranges(starts: Tensor, ends: Tensor) -> Tensor:
    """All places from each start to its end."""
    counts = ends - starts
    return torch.arange(int(counts.sum())) + (starts - counts.cumsum(0) + counts).repeat_interleave(counts)
