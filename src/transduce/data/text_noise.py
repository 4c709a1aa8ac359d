"""Add noise to training text: errors as careless writers make them, and corrupted tokens for denoising.

A small share of the pairs of each epoch is changed: capitals, small letters, typing errors, missing punctuation at the
end. The text of a pair is decoded, changed and tokenized again. So its tokens are those that such a text gets at
translation.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.data.batches import Batch, ChangedPlan, Plan, RandomPurpose
from transduce.errors import TransduceError
from transduce.text.vocabulary import CONTEXT_SEPARATOR, Vocabulary, byte_of

# --- settings ---


class TextNoiseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of noise in the training text: `data.noise.*` in a settings file. Every epoch noises other pairs."""

    uppercase: float = 0.0
    """Share of the pairs whose source and target are in capitals, if the source's script has any. Capitals are the same
    in all languages (I for a Turkish i)."""
    lowercase: float = 0.0
    """Share of the pairs whose source is in small letters; the target stays as it is."""
    typos: float = 0.0
    """Share of the pairs whose source has typing errors: in one word of seven on average, two letters are exchanged, or
    one is missing or doubled."""
    missing_punctuation: float = 0.0
    """Share of the pairs that lose the punctuation marks at the end of both sides, if both sides end with one."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise TransduceError(f"`data.noise.{name}` must be from 0 to 1, but is {getattr(self, name):g}.")

    @property
    def is_active(self) -> bool:
        """True if the settings put noise into some pairs."""
        return any(getattr(self, name) for name in self.__struct_fields__)


# --- noise ---


_PUNCTUATION = ".!?…。！？"
_TYPO_RATE = 1 / 7
_LETTERS = re.compile(r"[^\W\d_]{4,}")

Draw = Callable[[], float]
"""A function that returns a new random number in [0, 1) at each call."""


def noise_pair(source: str, target: str, settings: TextNoiseSettings, draw: Draw) -> tuple[str, str]:
    """Return a pair: a source and a target text with noise.

    Each kind is drawn with the probability that the settings set for it, so most pairs stay unchanged.
    """
    # Every number is drawn, whatever the others decide, so that one setting does not change the draws of another.
    draws = {name: draw() for name in settings.__struct_fields__}
    chosen = {name for name, number in draws.items() if number < getattr(settings, name)}
    if "typos" in chosen:
        source = " ".join(_misspelled(word, draw) for word in source.split(" "))
    if "missing_punctuation" in chosen and source[-1:] in _PUNCTUATION and target[-1:] in _PUNCTUATION:
        source, target = (side.rstrip(_PUNCTUATION).rstrip() or side for side in (source, target))
    if "uppercase" in chosen:
        # The target stays as it is if the source's script has no capitals.
        source, target = (source.upper(), target.upper()) if source.upper() != source.lower() else (source, target)
    elif "lowercase" in chosen:
        source = source.lower()
    return source, target


def _misspelled(word: str, draw: Draw) -> str:
    """Return a word, in one case of seven with a typing error after its first letter.

    Words without four letters in a row stay unchanged.
    """
    letters = _LETTERS.search(word)
    if draw() >= _TYPO_RATE or letters is None:
        return word
    position = letters.start() + 1 + int(draw() * (letters.end() - letters.start() - 2))
    kind = int(draw() * 3)
    if kind == 0:
        return word[:position] + word[position + 1] + word[position] + word[position + 2 :]
    return word[:position] + (word[position + 1 :] if kind == 1 else word[position] + word[position:])


# --- noised batches ---


_NUMBERS = 256
_MAX_GROWTH = 3.0


class NoisyPlan(ChangedPlan):
    """A plan of batches in which some pairs have noise.

    The seed, the epoch and the pair's index determine which pairs are changed, and how.
    """

    def __init__(
        self, plan: Plan[Batch], settings: TextNoiseSettings, vocabularies: tuple[Vocabulary, Vocabulary], seed: int
    ) -> None:
        """Add noise to the batches of a plan.

        Args:
            plan: the batches.
            settings: the shares of pairs with noise.
            vocabularies: the source and the target vocabulary.
            seed: the seed of all choices.
        """
        super().__init__(plan, self._add_noise)
        self._settings, self._seed = settings, seed
        self._vocabularies = vocabularies
        source, target = vocabularies
        self._pads = source.pad_id, target.pad_id
        # Pairs with tokens that cannot be restored from text, such as placeholders and unknown ones, stay unchanged.
        self._unchanged = tuple(_special_ids(side) for side in vocabularies)
        self._prefix = frozenset(source.prefix_ids)
        self._separators = tuple(
            side.id(CONTEXT_SEPARATOR) if side.has_special_token(CONTEXT_SEPARATOR) else None
            for side in (source, target)
        )

    def _add_noise(self, batch: Batch, epoch: int) -> Batch:
        pairs = [(source.tolist(), target.tolist()) for source, target in zip(*batch.rows(self._pads), strict=True)]
        changed = False
        for row, index in enumerate(batch.indices.tolist()):
            edited = self._edit(*pairs[row], epoch, index)
            if edited is not None:
                pairs[row], changed = edited, True
        return batch.with_rows(tuple(zip(*pairs, strict=True)), self._pads) if changed else batch

    def _edit(self, source: list[int], target: list[int], epoch: int, index: int) -> tuple[list[int], list[int]] | None:
        """Return a pair, the source ids and the target ids of a sentence pair with noise, or None.

        The result is None if the pair stays unchanged: if no noise was drawn, or the pair has special tokens or would
        become too long. The epoch and the pair's index determine the draws.
        """
        key = np.random.SeedSequence((self._seed, RandomPurpose.TEXT_NOISE, epoch, index))
        drawn = (np.random.Philox(key).random_raw(_NUMBERS) / 2.0**64).tolist()
        if all(number >= share for number, share in zip(drawn, msgspec.structs.astuple(self._settings), strict=False)):
            return None
        numbers = iter(drawn)
        first, second = self._parts(source, 0), self._parts(target, 1)
        if first is None or second is None:
            return None
        texts = tuple(
            vocabulary.decode(part[1]) for vocabulary, part in zip(self._vocabularies, (first, second), strict=True)
        )
        noised = noise_pair(texts[0], texts[1], self._settings, lambda: next(numbers, 1.0))
        if noised == texts:
            return None
        edited = [
            [*before, *vocabulary.encode(text), *vocabulary.after]
            if text != old
            else [*before, *ids, *vocabulary.after]
            for vocabulary, (before, ids), text, old in zip(
                self._vocabularies, (first, second), noised, texts, strict=True
            )
        ]
        fits = all(len(new) <= _MAX_GROWTH * len(old) + 2 for new, old in zip(edited, (source, target), strict=True))
        return (edited[0], edited[1]) if fits else None

    def _parts(self, ids: Sequence[int], side: int) -> tuple[list[int], list[int]] | None:
        """Divide the ids of a sentence into two lists: the ids before its text, and the ids of its text.

        The ids before the text are context sentences and the tokens of language and tag. The end symbol is left out.
        The result is None if the text is empty or has tokens that cannot be restored from text. `side` is 0 for a
        source, 1 for a target.
        """
        start, separator = 0, self._separators[side]
        end = len(ids) - len(self._vocabularies[side].after)
        if separator is not None and separator in ids:
            start = end - list(ids[:end])[::-1].index(separator)
        while side == 0 and start < end and ids[start] in self._prefix:
            start += 1
        text = list(ids[start:end])
        if not text or not self._unchanged[side].isdisjoint(text):
            return None
        return list(ids[:start]), text


def _special_ids(vocabulary: Vocabulary) -> frozenset[int]:
    """Return a set of the ids of tokens that text cannot restore: padding, end, unknown, and symbols in angle brackets.

    Placeholders are such symbols; byte tokens are not.
    """
    return frozenset(
        id
        for id in range(vocabulary.size)
        if id in (vocabulary.unk_id, vocabulary.pad_id, vocabulary.eos_id) or _is_symbol(vocabulary.token(id))
    )


def _is_symbol(token: str) -> bool:
    return token.startswith("<") and token.endswith(">") and len(token) > 2 and byte_of(token) is None


# --- noise in token sequences for denoising: BART's infilling, T5's spans, masked tokens and deleted tokens ---
# Sequences are plain arrays of token ids without the end symbol. Random numbers come from a generator that the caller
# seeds.


Ids = NDArray[np.int64]

MASK = "<mask>"
# T5's sentinel tokens, one for each span of a text and one after the last.
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))


class Noised(NamedTuple):
    """A corrupted token sequence (source) and the tokens that a model must write (target), without end symbols."""

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
    """Mean length, in tokens, of the spans that are removed or masked."""

    def __post_init__(self) -> None:
        if self.share is not None and not 0.0 < self.share < 1.0:
            raise TransduceError(f"`task.noise.share` must be above 0 and below 1, but is {self.share}.")
        if self.kind in ("masking", "deletion") and self.mean_span != 3.0:
            raise TransduceError(
                f"`task.noise.mean_span` means nothing where `task.noise.kind` is {self.kind}: leave it out."
            )
        if not self.mean_span >= 1.0:
            raise TransduceError(f"`task.noise.mean_span` must be at least 1, but is {self.mean_span}.")


def noise_share(noise: NoiseSettings) -> float:
    """Return the share of the tokens that are removed or masked: the setting, or its default for the kind of noise."""
    if noise.share is not None:
        return noise.share
    return 0.15 if noise.kind == "spans" else 0.3


def noise_tokens(noise: NoiseSettings) -> tuple[str, ...]:
    """Return a tuple of the special tokens that noise puts in place of removed tokens (the mask, or span sentinels).

    The tuple is empty for deletion.
    """
    if noise.kind == "deletion":
        return ()
    return SENTINELS if noise.kind == "spans" else (MASK,)


def add_noise(ids: Ids, noise: NoiseSettings, sentinels: Sequence[int], generator: np.random.Generator) -> Noised:
    """Corrupt a random part of a text's tokens, as the settings of the denoising task say.

    Args:
        ids: the text's token ids.
        noise: the kind and amount of noise.
        sentinels: token ids of `noise_tokens(noise)`.
        generator: random generator.

    Returns:
        A `Noised`: the corrupted text, and the tokens to reconstruct: all of the text, or with `spans` only the removed
        ones.
    """
    # Rounded at random, so that the expected share is exact for short texts, too.
    taken = min(len(ids), int(noise_share(noise) * len(ids) + generator.random()))
    if noise.kind == "spans":
        lengths = _partition(taken, noise.mean_span, len(sentinels) - 1, generator)
        return _spans(ids, _spread(len(ids), lengths, generator), sentinels)
    if noise.kind == "infilling":
        spans = _spread(len(ids), _poisson(taken, noise.mean_span, generator), generator)
        return Noised(_spans(ids, spans, [sentinels[0]] * (len(spans) + 1)).source, ids)
    is_noised = np.zeros(len(ids), bool)
    is_noised[generator.permutation(len(ids))[:taken]] = True
    return Noised(ids[~is_noised] if noise.kind == "deletion" else np.where(is_noised, sentinels[0], ids), ids)


def _poisson(taken: int, mean: float, generator: np.random.Generator) -> list[int]:
    """Return a list of random span lengths that sum to `taken`, from a Poisson distribution with this mean, as in BART.

    Some lengths may be 0.
    """
    lengths: list[int] = []
    while sum(lengths) < taken:
        lengths.append(min(int(generator.poisson(mean)), taken - sum(lengths)))
    return lengths


def _partition(taken: int, mean: float, max_parts: int, generator: np.random.Generator) -> list[int]:
    """Divide `taken` tokens at random into spans of about `mean` tokens, as in T5; return a list of the spans' lengths.

    Each span has at least one token, and there are at most `max_parts`; without tokens, the list is empty.
    """
    if not taken:
        return []
    count = min(max(1, round(taken / mean)), max_parts)
    cuts = np.sort(generator.permutation(taken - 1)[: count - 1]) + 1
    return [int(length) for length in np.diff(np.concatenate(([0], cuts, [taken])))]


def _spread(num_tokens: int, lengths: list[int], generator: np.random.Generator) -> list[tuple[int, int]]:
    """Return a list of random positions (start, end) of spans with these lengths in a text of `num_tokens` tokens.

    No two spans touch. If too few tokens remain between the spans, the last spans are merged.
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


def _spans(ids: Ids, spans: list[tuple[int, int]], sentinels: Sequence[int]) -> Noised:
    """Return a `Noised` text in which one of `sentinels` replaces each span (start, end) of the ids.

    The target is the removed spans, each after its sentinel, and one more sentinel at the end.
    """
    source: list[Ids | list[int]] = []
    target: list[Ids | list[int]] = []
    position = 0
    for sentinel, (start, stop) in zip(sentinels, spans, strict=False):
        source += [ids[position:start], [sentinel]]
        target += [[sentinel], ids[start:stop]]
        position = stop
    source.append(ids[position:])
    target.append([sentinels[len(spans)]])
    return Noised(_joined(source), _joined(target))


def _joined(parts: list[Ids | list[int]]) -> Ids:
    return np.concatenate([np.asarray(part, np.int64) for part in parts])
