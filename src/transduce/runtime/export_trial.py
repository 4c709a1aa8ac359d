"""Choose the texts that an export is compared on: real texts if there are any, with a long one, as token ids."""

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

# The dev set in a run's folder, and the training text, whose end may be the dev set.
_CORPORA = (("corpus-dev", "the run's dev set"), ("corpus", "the run's text"))
_COMPARED_TEXTS = 64
_READ_TEXTS = 400  # more than are compared, because some are blank
_RANDOM_TEXTS = 32
_LONG_TEXT_TOKENS = 100  # tokens of one text that is made of several
_TEXTS_AT_ONCE = 32
_EXTRA_TOKENS = 50  # a translation may have this many tokens more than its source
_MASKED_EVERY = 7


class Trial(NamedTuple):
    """Texts to compare an export on, and their token ids as the model reads them."""

    texts: Sequence[str]
    origin: str
    """Description of the texts' origin."""
    rows: Ids
    """Token ids: sources with special tokens, prompts without the start token, or encoder inputs with special
    tokens.
    """
    token_types: Ids
    """Segment id of each token, for an encoder."""
    pieces: Sequence[int]
    """Token ids that random targets are drawn from."""
    most_pieces: int
    """Maximum number of tokens that the model generates."""


def trial_of(original: Original, sources: Sequence[str] | None) -> Trial:
    """Choose the texts that an export of a model is compared on.

    Args:
        original: the model.
        sources: the texts; None: the run's texts, or random tokens.
    """
    config, vocabulary = original.config, original.tokenizer.source
    texts, origin = _texts(original, sources)
    special = {config.pad_id, config.eos_id, config.start_id}
    ordinary = [id for id in range(config.target_vocabulary_size) if id not in special]
    if config.kind == "encoder":
        # Include a text with a mask, to check how the exported tokenizer splits it.
        marks = find_marks(vocabulary)
        texts = texts if marks is None else [*texts, f"{texts[0]} {vocabulary.mark_pieces[2]}."]
        rows = [_encoder_row(vocabulary, text, original.longest, marks) for text in texts]
        types = [
            [int(config.token_types > 1 and position > len(row) // 2) for position in range(len(row))] for row in rows
        ]
        return Trial(texts, origin, rows, types, ordinary, 0)
    encoded = vocabulary.encode_batch(texts)
    if config.kind == "decoder":
        # Prompts are the first half of each text, so that a continuation fits; texts without tokens are left out.
        rows = [ids[: max(1, min(len(ids) // 2, original.longest // 2))] for ids in encoded if ids]
        most = min(_EXTRA_TOKENS, original.longest - 1 - max(map(len, rows)))
        return Trial(texts, origin, rows, [], ordinary, most)
    rows = _closed(vocabulary, encoded, original.longest)
    most = min(original.longest - 1, max(map(len, rows)) + _EXTRA_TOKENS)
    return Trial(texts, origin, rows, [], ordinary, most)


def tokenized(original: Original, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids that the exported tokenizer must produce, with special tokens."""
    vocabulary, config = original.tokenizer.source, original.config
    if isinstance(original.tokenizer, ForeignTokenizer):
        encoded = vocabulary.encode_batch(texts)
        # A prompt is continued, so no end symbol follows it.
        return [[*vocabulary.before, *ids] if config.kind == "decoder" else vocabulary.closed(ids) for ids in encoded]
    marks = find_marks(vocabulary)
    if config.kind == "encoder" and marks is not None:
        return [[marks.cls, *encode_with_masks(vocabulary, text), marks.sep] for text in texts]
    if config.kind == "decoder":
        return [[config.start_id, *ids] for ids in vocabulary.encode_batch(texts)]
    return [vocabulary.closed(ids) for ids in vocabulary.encode_batch(texts)]


def cut_alike(original: Original, texts: Sequence[str]) -> list[str]:
    """Return the texts that the exported tokenizer must split as ours does.

    Some tokenizers read the spelling of a special token in a text as that token; all may do so if the text has unknown
    characters. Such texts are left out.
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
    """Return sources with special tokens, truncated to `longest` tokens."""
    most = longest - len(vocabulary.before) - len(vocabulary.after)
    return [vocabulary.closed(row[:most]) for row in rows]


def _encoder_row(vocabulary: Vocabulary, text: str, longest: int, marks: Marks | None) -> list[int]:
    """Return a text's token ids with special tokens, with every 7th token masked."""
    if marks is None:
        return [*vocabulary.encode(text)[: longest - 1], vocabulary.eos_id]
    ids = [
        marks.mask if position % _MASKED_EVERY == _MASKED_EVERY - 1 else id
        for position, id in enumerate(encode_with_masks(vocabulary, text))
    ]
    return marks.frame(ids, longest)


def translate_greedily(model: ExportedModel, translator: Translator, sentences: Sequence[str]) -> list[str]:
    """Translate sentences by greedy search; blank lines give blank translations."""
    longest = longest_sequence(translator.model.config)
    encoded = translator.tokenizer.source.encode_batch(sentences)
    sources = _closed(translator.tokenizer.source, encoded, longest)
    by_length = sorted((number for number, ids in enumerate(encoded) if ids), key=lambda number: len(sources[number]))
    texts = [""] * len(sentences)
    for first in range(0, len(by_length), _TEXTS_AT_ONCE):
        batch = by_length[first : first + _TEXTS_AT_ONCE]
        most_pieces = min(longest - 1, len(sources[batch[-1]]) + _EXTRA_TOKENS)
        translations = model.translate([sources[number] for number in batch], most_pieces)
        for number, ids in zip(batch, translations, strict=True):
            texts[number] = translator.tokenizer.target.decode(ids)
    return texts


# --- where texts come from --------------------------------------------------------------------------------------


def _texts(original: Original, sources: Sequence[str] | None) -> tuple[list[str], str]:
    """Return texts, including a long one, and a description of their origin."""
    vocabulary = original.tokenizer.source
    real, origin = _real(sources or []), "the sources given"
    for name, description in _CORPORA:
        if not real:
            real, origin = _real(_stored_texts(original, name)), description
    if not real:
        real, origin = _random_texts(vocabulary), "random tokens"
    long: list[str] = []
    while len(vocabulary.encode(" ".join(long))) < _LONG_TEXT_TOKENS:
        long.append(real[len(long) % len(real)])
    count = "1 sentence" if len(real) == 1 else f"{len(real):,} sentences"
    return [*real, " ".join(long)], f"{count} of {origin} and a long one made of them"


def _real(texts: Sequence[str]) -> list[str]:
    """Return the first texts that are not blank."""
    return [text for text in texts if text.strip()][:_COMPARED_TEXTS]


def _stored_texts(original: Original, name: str) -> list[str]:
    """Return the first source texts of a prepared corpus in the run's folder; an empty list if there is none."""
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
