"""Sentences as they are decoded: cut where they are too long, and gathered in batches of like length."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from torch import Tensor

from transduce.given import as_texts
from transduce.runtime.translation import Translation, join_parts, nothing
from transduce.search.constraints import Phrase
from transduce.search.scorer import Observer
from transduce.text.filters import FilterSettings
from transduce.text.splitting import split_text
from transduce.text.vocabulary import Vocabulary

# Pieces that a model takes where nobody says that its training kept more or fewer.
LONGEST_SOURCE = FilterSettings().max_pieces
# By two letters (zh-TW, zh_CN, ja_XX) and by three (zho_Hans, jpn_Jpan).
_UNSPACED_LANGUAGES = frozenset(
    ("zh", "ja", "th", "lo", "km", "my", "yue", "zho", "cmn", "lzh", "wuu", "jpn", "tha", "lao", "khm", "mya")
)
_PART_STRIDE = 999_999_937


class Part(NamedTuple):
    """A sentence, or a part of a long one, as it is decoded."""

    text: str
    sentence: int
    """Its sentence's number."""
    number: int
    """Its own number within the sentence, from 0."""
    ids: list[int]
    """Its pieces, with the end symbol; with nothing else where there is nothing to translate."""
    prefix: Sequence[int] = ()
    """Pieces that its translation begins with."""
    phrases: tuple[Phrase, ...] = ()
    """What its translation contains."""

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from the others."""
        return (self.sentence, self.number)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to translate."""
        return len(self.ids) < 2 or not self.text.strip()

    def place(self, places: Sequence[int] | None) -> int:
        """Its place in the whole input, by those of its sentences where they are not their numbers; the parts of one
        sentence have random numbers of their own.
        """
        place = self.sentence if places is None else places[self.sentence]
        return place + self.number * _PART_STRIDE


def cut(sentences: Sequence[str], vocabulary: Vocabulary, longest: int) -> list[Part]:
    """The sentences' parts, in order: one each, more of those that are longer than the model takes.

    Args:
        sentences: texts of any length.
        vocabulary: of the source.
        longest: pieces that the model takes at a time, the end symbol not counted.

    Raises:
        TransduceError: one is no text.
    """
    sentences = as_texts(sentences)
    texts = [
        (text, sentence, number)
        for sentence, whole in enumerate(sentences)
        for number, text in enumerate(_cut(whole, vocabulary, longest))
    ]
    encoded = vocabulary.encode_batch([text for text, _, _ in texts])
    return [
        Part(text, sentence, number, vocabulary.closed(ids) if ids else [vocabulary.eos_id])
        for (text, sentence, number), ids in zip(texts, encoded, strict=True)
    ]


def _cut(sentence: str, vocabulary: Vocabulary, longest: int) -> list[str]:
    # A piece has a byte at least, so short sentences need not be counted, unless letters become several first: ﷺ.
    is_short = len(sentence.encode("utf-8", "replace")) < longest and not vocabulary.may_lengthen
    if is_short or not sentence.strip():
        return [sentence]
    counter = _PieceCounter(vocabulary)
    # Who learnt from single sentences translates single ones best; who learnt from longer texts needs their context.
    gathers = longest > LONGEST_SOURCE
    parts = split_text(sentence, lambda text: counter.count(text) <= longest, gathers=gathers)
    # Imported vocabularies may have pieces for spaces, which the counter leaves out.
    return [
        exact
        for part in parts
        for exact in split_text(part, lambda text: len(vocabulary.encode(text)) <= longest, gathers=gathers)
    ]


class _PieceCounter:
    """Counts the pieces of many texts that have words in common: no piece goes on over a space."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.known: dict[str, int] = {}

    def count(self, text: str) -> int:
        """Pieces of a text."""
        words = text.split(" ")
        if len(words) == 1:
            return len(self.vocabulary.encode(text))
        return sum(map(self._count_word, words))

    def _count_word(self, word: str) -> int:
        known = self.known.get(word)
        if known is None:
            known = self.known[word] = len(self.vocabulary.encode(word))
        return known


def separator(language: str | None) -> str:
    """What stands between two sentences of a language."""
    return "" if is_unspaced(language) else " "


def is_unspaced(language: str | None) -> bool:
    """Whether a language is written without spaces between words."""
    return language is not None and re.split("[-_]", language.lower())[0] in _UNSPACED_LANGUAGES


def batches(
    parts: Sequence[Part],
    most_pieces: int,
    *,
    kind: Callable[[Part], tuple[int, ...]] = lambda part: (),  # noqa: ARG005
    most_sentences: int | None = None,
) -> Iterator[list[Part]]:
    """Parts of one kind and of like length together, longest first.

    Args:
        parts: what is to be decoded.
        most_pieces: pieces of a batch, padding included; a single longer part is a batch of its own.
        kind: parts of which this differs never meet.
        most_sentences: parts of a batch.
    """
    batch: list[Part] = []
    for part in sorted(parts, key=lambda part: (kind(part), -len(part.ids))):
        fits = (len(batch) + 1) * len((batch or [part])[0].ids) <= most_pieces and len(batch) != most_sentences
        if batch and (not fits or kind(part) != kind(batch[0])):
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def join_sentences(
    sentences: Sequence[str],
    parts: Sequence[Part],
    found: Mapping[tuple[int, int], Translation],
    *,
    given_up: Collection[int],
    language: str | None,
) -> list[Translation]:
    """The sentences' translations out of those of their parts.

    Args:
        sentences: in their own order.
        parts: of all of them.
        found: the parts' translations, by their keys; one that was never decoded has none.
        given_up: sentences that are marked as given up.
        language: of the translations, which decides what stands between two parts.
    """
    missing = Translation("", (nothing(ended=False),))
    of_sentence: list[list[Translation]] = [[] for _ in sentences]
    for part in parts:
        translation = found.get(part.key, missing)
        of_sentence[part.sentence].append(msgspec.structs.replace(translation, given_up=part.sentence in given_up))
    between = separator(language)
    return [join_parts(sentence, own, between) for sentence, own in zip(sentences, of_sentence, strict=True)]


class PartsObserver:
    """Lets somebody who knows sentences watch batches of parts. Implements `Observer` for one batch after another."""

    def __init__(self, observer: Observer | None) -> None:
        self.observer = observer
        self.given_up: set[int] = set()  # sentences
        self.batch: Sequence[Part] = ()

    def waiting(self, batch: Sequence[Part]) -> list[Part]:
        """The parts of a batch whose sentences have not been given up: the next to be watched."""
        self.batch = [part for part in batch if part.sentence not in self.given_up]
        return self.batch

    def after_step(self, rows: Tensor, pieces: Tensor) -> Collection[int]:
        """Asks with the sentences' places, and answers with the parts'."""
        if self.observer is None:
            return ()
        sentences = rows.new_tensor([self.batch[row].sentence for row in rows.tolist()])
        self.given_up.update(self.observer.after_step(sentences, pieces))
        return [row for row, part in enumerate(self.batch) if part.sentence in self.given_up]
