"""Writes down what a model is about to write in given pairs, to translate by them: `examples.py`.

Legend: P pairs, N target positions of all pairs, D model width, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors.torch import save
from torch import Tensor

from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.runtime.examples import CARD, PAIRS, ExampleCard, Examples, Ids, Remembered, about_sources, states_of
from transduce.runtime.like_lengths import of_like_lengths
from transduce.runtime.scoring import as_pairs, piece_scores
from transduce.runtime.translator import Translator

MOST_PIECES = 256  # of a side of a pair that is remembered
_BATCH_PIECES = 8_192
_MOST_JUDGED = 200  # pairs by which the weight is chosen
_WEIGHTS = tuple(number / 10 for number in range(1, 9))
_TEMPERATURES = (0.05, 0.1, 0.2, 0.4)  # times the mean squared distance of a state to the nearest ones


class Memory(NamedTuple):
    """Examples, and how they came about."""

    examples: Examples
    left_out: int
    """Pairs with a side that is empty or too long."""
    before: float
    """The loss of the judged targets by the model alone, in nats a piece."""
    after: float
    """With examples."""
    judged: int
    """Target pieces that the weight was chosen by."""

    def write(self, path: str | Path) -> None:
        """Writes the examples into a file, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        tensors = {name: tensor.contiguous() for name, tensor in self.examples.remembered._asdict().items()}
        card = msgspec.json.encode(self.examples.card).decode()
        write_file(Path(path), save(tensors, metadata={CARD: card}))


def remember(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    dev: tuple[Sequence[str], Sequence[str]] | None = None,
    tell: Callable[[int], None] = lambda _: None,
) -> Memory:
    """Examples of pairs, for a translator of one model.

    Args:
        translator: whose model translates by them later.
        sources: sentences.
        targets: their translations, as many.
        dev: pairs by which the votes' weight and temperature are chosen; None: some of the pairs themselves, each
            without what it remembers of it and of pairs with the same source.
        tell: called with the number of pairs that are done.

    Raises:
        TransduceError: there are several models, the numbers differ, or no pair is left.
    """
    if len(translator.models) > 1:
        raise TransduceError("Examples are one model's, but there are several: name one.")
    source_ids, target_ids = _encode(translator, sources, targets)
    kept, given = _of_right_length(source_ids, target_ids), len(source_ids)
    if not kept:
        raise TransduceError(f"No pair is left to be remembered: both sides need text of at most {MOST_PIECES} pieces.")
    source_ids, target_ids = [source_ids[n] for n in kept], [target_ids[n] for n in kept]
    remembered = _remember(translator, source_ids, target_ids, tell)
    examples = Examples(remembered, ExampleCard(pairs=len(kept), weight=0.5, temperature=1.0))
    if dev is None:
        judged = list(range(0, len(kept), math.ceil(len(kept) / _MOST_JUDGED)))
        judge = _Judge.among(translator, examples, source_ids, target_ids, judged)
    else:
        judge = _Judge.of(translator, examples, *_encode(translator, *dev))
    card, before, after = judge.choose(len(kept))
    return Memory(Examples(remembered, card), given - len(kept), before, after, len(judge.alone))


def _encode(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> tuple[Ids, Ids]:
    sources, targets = as_pairs(sources, targets)
    source, target = translator.tokenizer.source, translator.tokenizer.target
    return (
        [source.closed(ids) for ids in source.encode_batch(sources)],
        [target.closed(ids) for ids in target.encode_batch(targets)],
    )


def _of_right_length(source_ids: Ids, target_ids: Ids) -> list[int]:
    sides = zip(source_ids, target_ids, strict=True)
    return [number for number, pair in enumerate(sides) if all(1 < len(ids) <= MOST_PIECES for ids in pair)]


def _remember(translator: Translator, source_ids: Ids, target_ids: Ids, tell: Callable[[int], None]) -> Remembered:
    model, lengths = translator.model, torch.tensor([len(ids) for ids in target_ids])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    states = torch.empty(int(starts[-1]), model.source_weight.shape[1], dtype=torch.float16)
    longest, done = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)], 0
    for batch in of_like_lengths(longest, _BATCH_PIECES):
        found = states_of(model, [source_ids[n] for n in batch], [target_ids[n] for n in batch])
        for number, own in zip(batch, found.split([len(target_ids[n]) for n in batch]), strict=True):
            states[starts[number] : starts[number + 1]] = own.half()
        done += len(batch)
        tell(done)
    rarities = _rarities(source_ids, len(model.source_weight))
    labels = torch.tensor([piece for ids in target_ids for piece in ids], dtype=torch.int32)
    first = (torch.tensor(ids, dtype=torch.int32) for ids in (source_ids[0], target_ids[0]))
    sources = about_sources(model, source_ids, rarities).half()
    return Remembered(states, labels, starts, sources, rarities, *first)


def _rarities(source_ids: Ids, size: int) -> Tensor:
    counts = torch.zeros(size)
    for ids in source_ids:
        counts[torch.tensor(sorted(set(ids)))] += 1
    return torch.log((len(source_ids) + 1) / (counts + 1))


class _Judge:
    """How likely targets are by the model, and by the votes of their neighbours."""

    def __init__(self, translator: Translator, examples: Examples) -> None:
        self._translator, self._examples = translator, examples
        self.alone: list[float] = []
        self._voted: list[tuple[Tensor, Tensor]] = []  # of each piece: minus distances², and which voted for it

    @classmethod
    def among(
        cls, translator: Translator, examples: Examples, source_ids: Ids, target_ids: Ids, judged: Sequence[int]
    ) -> "_Judge":
        """By some of the pairs themselves."""
        judge, starts = cls(translator, examples), examples.remembered.starts
        near = examples.near(translator.model, [source_ids[n] for n in judged], 2 * PAIRS)
        for number, found in zip(judged, near, strict=True):
            others = [n for n in found.tolist() if n != number and list(source_ids[n]) != list(source_ids[number])]
            states = examples.remembered.states[starts[number] : starts[number + 1]].float()
            judge._add(torch.tensor(others[:PAIRS], dtype=torch.int64), states, target_ids[number])
        return judge

    @classmethod
    def of(cls, translator: Translator, examples: Examples, source_ids: Ids, target_ids: Ids) -> "_Judge":
        """By other pairs."""
        judge, kept = cls(translator, examples), _of_right_length(source_ids, target_ids)
        kept = kept[:: math.ceil(len(kept) / _MOST_JUDGED)] if kept else kept
        if not kept:
            raise TransduceError(
                f"No dev pair is left to choose by: both sides need text of at most {MOST_PIECES} pieces."
            )
        near = examples.near(translator.model, [source_ids[n] for n in kept])
        for number, found in zip(kept, near, strict=True):
            states = states_of(translator.model, [source_ids[number]], [target_ids[number]])
            judge._add(found, states, target_ids[number])
        return judge

    def _add(self, pairs: Tensor, states: Tensor, target_ids: Sequence[int]) -> None:
        if not len(pairs):
            return
        model, chosen = self._translator.model, torch.tensor(target_ids)
        with torch.inference_mode():
            given = states.to(model.source_weight), chosen.to(model.source_weight.device)
            self.alone += piece_scores(model, *given, model.config.never_written).tolist()
        neighbours = self._examples.neighbours([pairs], torch.device("cpu"))
        pieces, near = neighbours.nearest(states[None])
        lengths = states.square().sum(-1, keepdim=True)
        self._voted.append((near[0] - lengths, pieces[0] == chosen[:, None]))

    def choose(self, pairs: int) -> tuple[ExampleCard, float, float]:
        """The weight and temperature by which the targets are likeliest; their loss without examples, and with them."""
        alone = torch.tensor(self.alone, dtype=torch.float64)
        if not self._voted:
            raise TransduceError("All pairs have the same source, so there is nothing to choose by: give dev pairs.")
        near = torch.cat([each for each, _ in self._voted]).double()
        right = torch.cat([each for _, each in self._voted])
        usual = float(-near[near.isfinite()].mean())
        best: tuple[float, float, float] | None = None
        for temperature in (usual * factor for factor in _TEMPERATURES):
            share = ((near / temperature).softmax(-1) * right).sum(-1)
            for weight in _WEIGHTS:
                loss = float(-torch.logaddexp(alone + math.log1p(-weight), (weight * share).log()).mean())
                best = min(best or (math.inf, 0.0, 0.0), (loss, weight, temperature))
        assert best is not None
        card = ExampleCard(pairs=pairs, weight=best[1], temperature=max(best[2], 1e-6))
        return card, float(-alone.mean()), best[0]
