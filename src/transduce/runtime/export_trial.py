"""What an export is tried on: real texts where there are any, a long one among them, as pieces."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from transduce.data.prepared import PreparedCorpus
from transduce.errors import TransduceError
from transduce.interop.exported import ExportedModel, Ids
from transduce.interop.foreign_tokenizer import ForeignTokenizer
from transduce.interop.onnx import longest_sequence
from transduce.runtime.original import Original
from transduce.runtime.translator import Translator
from transduce.text.marks import Marks, encode_with_masks, find_marks, ordinary_pieces
from transduce.text.vocabulary import Vocabulary

# The dev set that lies in the folder of a training run, and the text itself, of which the end may be the dev set.
_CORPORA = (("corpus-dev", "the run's dev set"), ("corpus", "the run's text"))
_COMPARED_TEXTS = 64
_READ_TEXTS = 400  # some are blank
_RANDOM_TEXTS = 32
_LONG_TEXT = 100  # pieces of one text that is made of several
_TEXTS_AT_ONCE = 32
_MORE_PIECES = 50  # of a translation than of its source
_MASKED_EVERY = 7


class Trial(NamedTuple):
    """Texts, and their pieces as a model of this kind is given them."""

    texts: Sequence[str]
    origin: str
    """Where they come from."""
    rows: Ids
    """Sources with all that stands around them, prompts without what begins them; what an encoder reads, with marks."""
    token_types: Ids
    """The segment of each piece, for an encoder."""
    pieces: Sequence[int]
    """That random targets are drawn from."""
    most_pieces: int
    """That the model may write."""


def trial_of(original: Original, sources: Sequence[str] | None) -> Trial:
    """What to try an export of a model on.

    Args:
        original: the model.
        sources: texts; where nothing is said, the run's, or random pieces.
    """
    config, vocabulary = original.config, original.tokenizer.source
    texts, origin = _texts(original, sources)
    special = {config.pad_id, config.eos_id, config.start_id}
    pieces = [id for id in range(config.target_vocabulary_size) if id not in special]
    if config.kind == "encoder":
        # A text with a mask, to see how its tokenizer cuts that.
        marks = find_marks(vocabulary)
        texts = texts if marks is None else [*texts, f"{texts[0]} {vocabulary.mark_pieces[2]}."]
        rows = [_encoder_row(vocabulary, text, original.longest, marks) for text in texts]
        types = [[int(config.token_types > 1 and place > len(row) // 2) for place in range(len(row))] for row in rows]
        return Trial(texts, origin, rows, types, pieces, 0)
    encoded = vocabulary.encode_batch(texts)
    if config.kind == "decoder":
        # The beginning of each text, with room for what comes after it; of a text without pieces there is none.
        rows = [ids[: max(1, min(len(ids) // 2, original.longest // 2))] for ids in encoded if ids]
        most = min(_MORE_PIECES, original.longest - 1 - max(map(len, rows)))
        return Trial(texts, origin, rows, [], pieces, most)
    rows = _closed(vocabulary, encoded, original.longest)
    most = min(original.longest - 1, max(map(len, rows)) + _MORE_PIECES)
    return Trial(texts, origin, rows, [], pieces, most)


def tokenized(original: Original, texts: Sequence[str]) -> list[list[int]]:
    """What a tokenizer elsewhere must make of texts, with what stands around them."""
    vocabulary, config = original.tokenizer.source, original.config
    if isinstance(original.tokenizer, ForeignTokenizer):
        encoded = vocabulary.encode_batch(texts)
        # A prompt goes on, so nothing stands after it.
        return [[*vocabulary.before, *ids] if config.kind == "decoder" else vocabulary.closed(ids) for ids in encoded]
    marks = find_marks(vocabulary)
    if config.kind == "encoder" and marks is not None:
        return [[marks.cls, *encode_with_masks(vocabulary, text), marks.sep] for text in texts]
    if config.kind == "decoder":
        return [[config.start_id, *ids] for ids in vocabulary.encode_batch(texts)]
    return [vocabulary.closed(ids) for ids in vocabulary.encode_batch(texts)]


def cut_alike(original: Original, texts: Sequence[str]) -> list[str]:
    """The texts that a tokenizer elsewhere cuts as ours does: some read a special piece where its name is spelt, all of
    them may where its characters have no pieces.
    """
    vocabulary, kind = original.tokenizer.source, original.config.kind
    reads = kind in ("encoder", "decoder") or isinstance(original.tokenizer, ForeignTokenizer)
    silent = (id for id in range(vocabulary.size) if not vocabulary.stands_for_text(id))
    names = {*map(vocabulary.piece, silent), *vocabulary.mark_pieces[:2]} - {""}

    def is_alike(text: str) -> bool:
        is_spelt = any(name in text for name in names)
        return not is_spelt or not (reads or vocabulary.unk_id in vocabulary.encode(text))

    return list(filter(is_alike, texts))


def _closed(vocabulary: Vocabulary, rows: Ids, longest: int) -> list[list[int]]:
    """Sources with all that stands around them, `longest` pieces at most: of a longer one the end is left out."""
    room = longest - len(vocabulary.before) - len(vocabulary.after)
    return [vocabulary.closed(row[:room]) for row in rows]


def _encoder_row(vocabulary: Vocabulary, text: str, longest: int, marks: Marks | None) -> list[int]:
    """A text between its marks, some pieces hidden."""
    if marks is None:
        return [*vocabulary.encode(text)[: longest - 1], vocabulary.eos_id]
    ids = [
        marks.mask if place % _MASKED_EVERY == _MASKED_EVERY - 1 else id
        for place, id in enumerate(encode_with_masks(vocabulary, text))
    ]
    return marks.frame(ids, longest)


def translate_greedily(model: ExportedModel, translator: Translator, sentences: Sequence[str]) -> list[str]:
    """Greedy translations, of blank lines blank ones."""
    longest = longest_sequence(translator.model.config)
    encoded = translator.tokenizer.source.encode_batch(sentences)
    sources = _closed(translator.tokenizer.source, encoded, longest)
    by_length = sorted((number for number, ids in enumerate(encoded) if ids), key=lambda number: len(sources[number]))
    texts = [""] * len(sentences)
    for first in range(0, len(by_length), _TEXTS_AT_ONCE):
        numbers = by_length[first : first + _TEXTS_AT_ONCE]
        most_pieces = min(longest - 1, len(sources[numbers[-1]]) + _MORE_PIECES)
        found = model.translate([sources[number] for number in numbers], most_pieces)
        for number, ids in zip(numbers, found, strict=True):
            texts[number] = translator.tokenizer.target.decode(ids)
    return texts


# --- where texts come from --------------------------------------------------------------------------------------


def _texts(original: Original, sources: Sequence[str] | None) -> tuple[list[str], str]:
    """Texts, a long one among them, and where they come from."""
    vocabulary = original.tokenizer.source
    chosen, origin = _real(sources or []), "the sources given"
    for name, said in _CORPORA:
        if not chosen:
            chosen, origin = _real(_stored_texts(original, name)), said
    if not chosen:
        chosen, origin = _random_texts(vocabulary), "random pieces"
    long: list[str] = []
    while len(vocabulary.encode(" ".join(long))) < _LONG_TEXT:
        long.append(chosen[len(long) % len(chosen)])
    count = "1 sentence" if len(chosen) == 1 else f"{len(chosen):,} sentences"
    return [*chosen, " ".join(long)], f"{count} of {origin} and a long one made of them"


def _real(texts: Sequence[str]) -> list[str]:
    """The first ones that have something in them."""
    return [text for text in texts if text.strip()][:_COMPARED_TEXTS]


def _stored_texts(original: Original, name: str) -> list[str]:
    """The first source texts of a corpus that lies in the folder of a training run, or nothing."""
    tokenizer = original.tokenizer
    try:
        corpus = PreparedCorpus.open(original.folder / name, tokenizer)
        run, _ = corpus.read(0, min(corpus.pairs, _READ_TEXTS))
    except (TransduceError, OSError):
        return []
    return [tokenizer.source.decode(run.ids[first:end].tolist()) for first, end in pairwise(run.offsets)]


def _random_texts(vocabulary: Vocabulary) -> list[str]:
    draw = random.Random(1)
    ids = ordinary_pieces(vocabulary)
    drawn = (vocabulary.decode(draw.choices(ids, k=draw.randint(1, 30))) for _ in range(_RANDOM_TEXTS))
    return _real(list(drawn)) or ["a"]
