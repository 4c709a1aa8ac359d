"""Corrupt token sequences for denoising: BART's infilling, T5's spans, masked tokens and deleted tokens.

Sequences are plain arrays of token ids without the end symbol. Random numbers come from a generator that the caller
seeds.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import TransduceError

Ids = NDArray[np.int64]

MASK = "<mask>"
# T5's sentinel tokens, one for each span of a text and one after the last.
SPAN_MARKS = tuple(f"<extra_id_{number}>" for number in range(100))


class Noised(NamedTuple):
    """A pair of a corrupted token sequence (source) and the tokens to reconstruct (target)."""

    source: Ids
    target: Ids


class NoiseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The noise of the denoising task, `task.noise.*` in a settings file."""

    kind: Literal["infilling", "spans", "masking", "deletion"] = "infilling"
    """`infilling`: one mask replaces each span, and may also stand for an empty one (BART, Lewis et al. 2020); `spans`:
    a sentinel token replaces each span, and only the spans are written (T5, Raffel et al. 2020); `masking`: a mask
    replaces each token; `deletion`: tokens are removed."""
    share: float | None = None
    """Share of the tokens that are removed or masked; None: BART's 0.3, or T5's 0.15 for `spans`."""
    mean_span: float = 3.0
    """Mean length of a span in tokens."""

    def __post_init__(self) -> None:
        if self.share is not None and not 0.0 < self.share < 1.0:
            raise TransduceError(f"`task.noise.share` must be between 0 and 1, but is {self.share}.")
        if self.kind in ("masking", "deletion") and self.mean_span != 3.0:
            raise TransduceError(
                f"`task.noise.mean_span` means nothing where `task.noise.kind` is {self.kind}: leave it out."
            )
        if not self.mean_span >= 1.0:
            raise TransduceError(f"`task.noise.mean_span` must be at least 1, but is {self.mean_span}.")


def noise_share(noise: NoiseSettings) -> float:
    """Return the share of the tokens that are removed or masked."""
    if noise.share is not None:
        return noise.share
    return 0.15 if noise.kind == "spans" else 0.3


def noise_tokens(noise: NoiseSettings) -> tuple[str, ...]:
    """Return the special tokens that noise puts in place of removed tokens (mask or span marks); none for deletion."""
    if noise.kind == "deletion":
        return ()
    return SPAN_MARKS if noise.kind == "spans" else (MASK,)


def add_noise(ids: Ids, noise: NoiseSettings, marks: Sequence[int], generator: np.random.Generator) -> Noised:
    """Corrupt a random part of a text's tokens.

    Args:
        ids: the text's token ids.
        noise: the kind and amount of noise.
        marks: token ids of `noise_tokens(noise)`.
        generator: random generator.

    Returns:
        The corrupted text, and the tokens to reconstruct: all of the text, or with `spans` only the removed ones.
    """
    # Rounded at random, so that the expected share is exact for short texts, too.
    taken = min(len(ids), int(noise_share(noise) * len(ids) + generator.random()))
    if noise.kind == "spans":
        lengths = _partition(taken, noise.mean_span, len(marks) - 1, generator)
        return _spans(ids, _spread(len(ids), lengths, generator), marks)
    if noise.kind == "infilling":
        spans = _spread(len(ids), _poisson(taken, noise.mean_span, generator), generator)
        return Noised(_spans(ids, spans, [marks[0]] * (len(spans) + 1)).source, ids)
    is_noised = np.zeros(len(ids), bool)
    is_noised[generator.permutation(len(ids))[:taken]] = True
    return Noised(ids[~is_noised] if noise.kind == "deletion" else np.where(is_noised, marks[0], ids), ids)


def _poisson(taken: int, mean: float, generator: np.random.Generator) -> list[int]:
    """Draw Poisson-distributed span lengths with this mean, as in BART, that sum to `taken`; some are 0."""
    lengths: list[int] = []
    while sum(lengths) < taken:
        lengths.append(min(int(generator.poisson(mean)), taken - sum(lengths)))
    return lengths


def _partition(taken: int, mean: float, max_parts: int, generator: np.random.Generator) -> list[int]:
    """Partition `taken` tokens into at most `max_parts` spans of about `mean` tokens, at least one each, as in T5."""
    if not taken:
        return []
    count = min(max(1, round(taken / mean)), max_parts)
    cuts = np.sort(generator.permutation(taken - 1)[: count - 1]) + 1
    return [int(length) for length in np.diff(np.concatenate(([0], cuts, [taken])))]


def _spread(num_tokens: int, lengths: list[int], generator: np.random.Generator) -> list[tuple[int, int]]:
    """Draw positions (start, end) in a text of spans with these lengths, such that no two spans touch.

    If too few tokens remain between the spans, the last spans are merged.
    """
    rest = num_tokens - sum(lengths)
    # Each span is put into its own gap between the remaining tokens; without enough gaps, the last spans are merged.
    gaps = np.sort(generator.permutation(rest + 1)[: len(lengths)]).tolist()
    lengths = [*lengths[: len(gaps) - 1], sum(lengths[len(gaps) - 1 :])] if gaps and lengths else []
    spans, num_removed = [], 0
    for gap, length in zip(gaps, lengths, strict=False):
        spans.append((gap + num_removed, gap + num_removed + length))
        num_removed += length
    return spans


def _spans(ids: Ids, spans: list[tuple[int, int]], marks: Sequence[int]) -> Noised:
    """Replace each span (start, end) of a text by one of the sentinels `marks`; the target is the removed spans.

    In the target, each span follows its sentinel, and one more sentinel ends it.
    """
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
