"""Noise that denoising undoes: BART's infilling, T5's spans, masked pieces, deleted pieces.

Pieces are plain arrays here, without the end symbol. What is drawn comes from a generator that the caller has seeded.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import TransduceError

Ids = NDArray[np.int64]

MASK = "<mask>"
# T5's marks, one for each span of a text and one after the last.
SPAN_MARKS = tuple(f"<extra_id_{number}>" for number in range(100))


class Noised(NamedTuple):
    """What is read, and what is to be written."""

    source: Ids
    target: Ids


class NoiseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How denoising spoils a text. `task.noise.*` in a settings file."""

    # `infilling`: a mask stands for each span, also for empty ones (BART, Lewis et al. 2020); `spans`: a mark of its
    # own for each span, and the spans alone are written (T5, Raffel et al. 2020); `masking`: a mask for each piece;
    # `deletion`: pieces go without a trace.
    kind: Literal["infilling", "spans", "masking", "deletion"] = "infilling"
    # Share of the pieces that are taken away; None: BART's 0.3, and T5's 0.15 for `spans`.
    share: float | None = None
    # Mean length of a span, in pieces.
    mean_span: float = 3.0

    def __post_init__(self) -> None:
        if self.share is not None and not 0.0 < self.share < 1.0:
            raise TransduceError(f"`task.noise.share` must be between 0 and 1, but is {self.share}.")
        if self.kind in ("masking", "deletion") and self.mean_span != 3.0:
            raise TransduceError(
                f"`task.noise.mean_span` means nothing where `task.noise.kind` is {self.kind}: leave it out."
            )
        if not self.mean_span >= 1.0:
            raise TransduceError(f"`task.noise.mean_span` must be at least 1, but is {self.mean_span}.")


def share_of(noise: NoiseSettings) -> float:
    """The share of the pieces that is taken away."""
    if noise.share is not None:
        return noise.share
    return 0.15 if noise.kind == "spans" else 0.3


def marks_of(noise: NoiseSettings) -> tuple[str, ...]:
    """The pieces that stand for what was taken away."""
    if noise.kind == "deletion":
        return ()
    return SPAN_MARKS if noise.kind == "spans" else (MASK,)


def add_noise(ids: Ids, noise: NoiseSettings, marks: Sequence[int], generator: np.random.Generator) -> Noised:
    """Spoils a text.

    Args:
        ids: its pieces.
        noise: how.
        marks: the ids of `marks_of(noise)`.
        generator: what is drawn from.
    """
    # Rounded at random, so that short texts lose the same share on average.
    taken = min(len(ids), int(share_of(noise) * len(ids) + generator.random()))
    if noise.kind == "spans":
        lengths = _partition(taken, noise.mean_span, len(marks) - 1, generator)
        return _spans(ids, _spread(len(ids), lengths, generator), marks)
    if noise.kind == "infilling":
        spans = _spread(len(ids), _poisson(taken, noise.mean_span, generator), generator)
        return Noised(_spans(ids, spans, [marks[0]] * (len(spans) + 1)).source, ids)
    chosen = np.zeros(len(ids), bool)
    chosen[generator.permutation(len(ids))[:taken]] = True
    return Noised(ids[~chosen] if noise.kind == "deletion" else np.where(chosen, marks[0], ids), ids)


def _poisson(taken: int, mean: float, generator: np.random.Generator) -> list[int]:
    """Lengths of spans as BART draws them, some of them 0, that add up to `taken`."""
    lengths: list[int] = []
    while sum(lengths) < taken:
        lengths.append(min(int(generator.poisson(mean)), taken - sum(lengths)))
    return lengths


def _partition(taken: int, mean: float, most: int, generator: np.random.Generator) -> list[int]:
    """`taken` pieces as spans of one piece at least, about `mean` of them each, as T5 cuts them."""
    if not taken:
        return []
    count = min(max(1, round(taken / mean)), most)
    cuts = np.sort(generator.permutation(taken - 1)[: count - 1]) + 1
    return [int(length) for length in np.diff(np.concatenate(([0], cuts, [taken])))]


def _spread(pieces: int, lengths: list[int], generator: np.random.Generator) -> list[tuple[int, int]]:
    """Where spans of these lengths begin and end, at random places that do not touch each other."""
    kept = pieces - sum(lengths)
    # Each span stands in a gap of its own among the kept pieces; where there are not enough gaps, fewer spans do.
    gaps = np.sort(generator.permutation(kept + 1)[: len(lengths)]).tolist()
    lengths = [*lengths[: len(gaps) - 1], sum(lengths[len(gaps) - 1 :])] if gaps and lengths else []
    spans, before = [], 0
    for gap, length in zip(gaps, lengths, strict=False):
        spans.append((gap + before, gap + before + length))
        before += length
    return spans


def _spans(ids: Ids, spans: list[tuple[int, int]], marks: Sequence[int]) -> Noised:
    """The text with a mark for each span; and each span after its mark, with one more mark at the end."""
    source: list[Ids | list[int]] = []
    target: list[Ids | list[int]] = []
    position = 0
    for mark, (start, stop) in zip(marks, spans, strict=False):
        source += [ids[position:start], [mark]]
        target += [[mark], ids[start:stop]]
        position = stop
    source.append(ids[position:])
    target.append([marks[len(spans)]])
    return Noised(_joined(source), _joined(target))


def _joined(parts: list[Ids | list[int]]) -> Ids:
    return np.concatenate([np.asarray(part, np.int64) for part in parts])
