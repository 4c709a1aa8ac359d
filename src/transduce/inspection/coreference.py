"""Coreference, seen: reads off a model which earlier word each head looks at from a pronoun.

An encoder's self-attention is asked at the pronoun; of a decoder's, the position that has just read the pronoun.
Legend: N layers, H heads, T pieces as the model sees them, W words of the sentence.
"""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from transduce.errors import TransduceError
from transduce.inference.batching import pad
from transduce.inference.generator import Generator
from transduce.inference.mask_filler import Filler
from transduce.inference.translator import Translator
from transduce.inspection.attention import stack_layers
from transduce.inspection.pronouns import PronounAttention
from transduce.inspection.sentence import sentence_ids
from transduce.model.attention import AttentionTrace
from transduce.text.special_tokens import special_tokens_of
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span, overlap, split_words, token_spans

# Words that name nothing. Those of a language that is not listed are told by their letters alone.
_FUNCTION_WORDS = {
    "en": """a an the this that these those some any no each every all both and or but nor so because since as if when
    while though although than then there here who whom whose which what where why how i me my mine you your yours he
    him his she her hers it its we us our ours they them their theirs myself yourself himself herself itself ourselves
    themselves be am is are was were been being do does did done have has had having will would shall should can could
    may might must not don't didn't doesn't isn't wasn't aren't weren't won't can't couldn't wouldn't shouldn't hasn't
    haven't hadn't it's he's she's that's i'm you're we're they're i've i'll of in on at by for with about against
    between into through during before after above below to from up down out off over under again too very just only
    also even still yet never always""",
    "de": """der die das den dem des ein eine einen einem einer eines kein keine keinen keinem keiner dieser diese
    dieses diesen diesem jener jene jenes jeder jede jedes und oder aber sondern denn weil da dass wenn als ob obwohl
    während wie wo wer wen wem was warum ich mich mir mein meine du dich dir dein deine er ihn ihm sein seine seinen sie
    ihr ihre ihren ihrem es wir uns unser unsere euch euer ihnen sich bin bist ist sind seid war waren gewesen habe
    hast hat haben hatte hatten werde wird werden wurde wurden kann können konnte muss müssen musste soll sollte will
    wollte darf mag nicht nie nur auch noch schon sehr zu so in im an am auf aus bei beim mit nach von vom zum zur vor
    für über unter um durch gegen ohne zwischen hinter neben""",
}
_NO_NAMES = {language: frozenset(words.split()) for language, words in _FUNCTION_WORDS.items()}


class _Reading(NamedTuple):
    """A sentence in a model."""

    weights: npt.NDArray[np.float32]
    """Self-attention of every layer and head, (N, H, T, T)."""
    tokens: list[str]
    """Of the sentence alone."""
    first: int
    """The place of the first of them among the T."""
    left_to_right: bool


def pronoun_attention(
    reader: object,
    sentence: str,
    pronoun: str,
    *,
    antecedent: str | None = None,
    among: Sequence[str] | None = None,
    translation_of: str | None = None,
) -> PronounAttention:
    """Where each head looks from a pronoun.

    Args:
        reader: what `transduce.load` returns: a translator with a Transformer, a language model, or a masked one.
        sentence: holds the pronoun; where it does so several times, the last one is meant.
        pronoun: as it is written there, upper or lower case.
        antecedent: the earlier word, or words, that it stands for.
        among: the words that it may stand for; None: all earlier ones that name something, as far as a list of
            function words (English, German) can tell.
        translation_of: of a translator's target side: the source that `sentence` is a translation of. It is the
            decoder then that is asked.

    Raises:
        TransduceError: the sentence does not hold a word, nothing stands before the pronoun that it may mean, or the
            model has no self-attention to ask.
    """
    sentence = unicodedata.normalize("NFC", " ".join(sentence.split()))
    spans = _split(sentence)
    words = [sentence[span.start : span.end] for span in spans]
    place = _find_pronoun(words, pronoun, sentence)
    meant = None if antecedent is None else _before(sentence, spans, place, antecedent)
    found: set[tuple[int, ...]]
    if among is None:
        single = _named(words[:place], _language(reader, translation_of))
        found = {(number,) for number in single if meant is None or number not in meant}
    else:
        found = {_before(sentence, spans, place, text) for text in among}
    candidates = sorted(found if meant is None else {*found, meant})
    if not candidates:
        raise TransduceError(
            f"A pronoun stands for an earlier word, but before `{pronoun}` there is none in `{sentence}` that names "
            "something: give a sentence that has one, or say with `among` (--among) which words may be meant."
        )
    reading = _read(reader, sentence, translation_of)
    weights = _between_words(reading, spans, sentence, place)
    return PronounAttention(
        words=tuple(words),
        pronoun=place,
        candidates=tuple(candidates),
        antecedent=None if meant is None else candidates.index(meant),
        left_to_right=reading.left_to_right,
        weights=tuple(tuple(tuple(round(float(w), 4) for w in head) for head in layer) for layer in weights),
    )


# --- words -------------------------------------------------------------------------------------------------------


def _split(sentence: str) -> list[Span]:
    """Words, and by themselves the punctuation marks before and after them."""
    spans: list[Span] = []
    for start, end in split_words(sentence):
        first, last = start, end
        while first < end and not sentence[first].isalnum():
            first += 1
        while last > first and not sentence[last - 1].isalnum():
            last -= 1
        spans += [Span(start, first), Span(first, last), Span(last, end)]
    return [span for span in spans if span.start < span.end]


def _find_pronoun(words: Sequence[str], pronoun: str, sentence: str) -> int:
    wanted = unicodedata.normalize("NFC", pronoun).casefold()
    places = [number for number, word in enumerate(words) if word.casefold() == wanted]
    if not places:
        raise TransduceError(f"The pronoun must be a word of the sentence, but `{pronoun}` is none of `{sentence}`.")
    return places[-1]


def _before(sentence: str, spans: Sequence[Span], pronoun: int, text: str) -> tuple[int, ...]:
    """The words of the last place before the pronoun at which this text stands."""
    wanted = [word.casefold() for word in _texts(unicodedata.normalize("NFC", text))]
    words = [sentence[span.start : span.end].casefold() for span in spans[:pronoun]]
    for first in range(pronoun - len(wanted), -1, -1):
        if wanted and words[first : first + len(wanted)] == wanted:
            return tuple(range(first, first + len(wanted)))
    raise TransduceError(
        f"What a pronoun may stand for must come before it, but `{text}` does not stand before "
        f"`{sentence[spans[pronoun].start : spans[pronoun].end]}` in `{sentence}`."
    )


def _texts(text: str) -> list[str]:
    return [text[span.start : span.end] for span in _split(text)]


def _named(words: Sequence[str], language: str | None) -> tuple[int, ...]:
    """The words that may name something: those with letters that are no function words."""
    lists = [_NO_NAMES[language]] if language in _NO_NAMES else [] if language else list(_NO_NAMES.values())
    return tuple(
        number
        for number, word in enumerate(words)
        if any(map(str.isalpha, word)) and not any(_plain(word) in each for each in lists)
    )


def _plain(word: str) -> str:
    return word.lower().replace("’", "'")


def _language(reader: object, translation_of: str | None) -> str | None:
    if isinstance(reader, Translator):
        return reader.source_language if translation_of is None else reader.target_language
    return reader.language if isinstance(reader, Generator) else None


# --- the model ---------------------------------------------------------------------------------------------------


def _read(reader: object, sentence: str, translation_of: str | None) -> _Reading:
    if translation_of is not None and not isinstance(reader, Translator):
        raise TransduceError(
            "Only a translator has a sentence that another is a translation of: leave `translation_of` out."
        )
    with torch.inference_mode():
        if isinstance(reader, Translator):
            if translation_of is not None:
                return _read_translation(reader, translation_of, sentence)
            return _read_source(reader, sentence)
        if isinstance(reader, Generator):
            return _read_text(reader, sentence)
        if isinstance(reader, Filler):
            return _read_framed(reader, sentence)
    raise TransduceError(
        "A pronoun's attention is read off a translator, a language model or a masked one, but this model is a "
        f"{type(reader).__name__.lower()}: name another folder."
    )


def _read_source(translator: Translator, sentence: str) -> _Reading:
    """An encoder sees the whole sentence."""
    sentence_ids(translator, sentence)  # refuses what cannot be shown
    vocabulary, config, trace = translator.tokenizer.source, translator.model.config, AttentionTrace()
    ids = vocabulary.encode(sentence)
    closed = vocabulary.with_special_tokens(ids)
    translator.transformer.encode(pad([closed], config.pad_id, translator.device), trace=trace)
    first = len(vocabulary.before)
    return _Reading(stack_layers(trace.encoder), vocabulary.token_texts(ids), first, left_to_right=False)


def _read_translation(translator: Translator, source: str, sentence: str) -> _Reading:
    """A decoder that has read the sentence piece by piece, after the start symbol."""
    sentence_ids(translator, source)
    vocabulary, config, trace = translator.tokenizer.target, translator.model.config, AttentionTrace()
    model, read = translator.transformer, translator.tokenizer.source
    sources = pad([read.with_special_tokens(read.encode(source))], config.pad_id, translator.device)
    memory, mask = model.encode(sources)
    ids = vocabulary.encode(sentence)
    inputs = pad([[config.start_id, *vocabulary.before, *ids]], config.pad_id, translator.device)
    model.decode(inputs, memory, mask, trace=trace)
    first = 1 + len(vocabulary.before)
    return _Reading(stack_layers(trace.decoder), vocabulary.token_texts(ids), first, left_to_right=True)


def _read_text(generator: Generator, sentence: str) -> _Reading:
    """A language model sees what came before."""
    ids, trace = generator.vocabulary.encode(sentence), AttentionTrace()
    begun = generator.prompt_ids(sentence)
    _check_length(len(begun), generator.context)
    generator.model.decode(torch.tensor([begun], device=generator.device), trace=trace)
    first = len(begun) - len(ids)
    return _Reading(stack_layers(trace.decoder), generator.vocabulary.token_texts(ids), first, left_to_right=True)


def _read_framed(filler: Filler, sentence: str) -> _Reading:
    """An encoder alone sees the whole sentence between its marks."""
    vocabulary: Vocabulary = filler.tokenizer.source
    ids, trace = vocabulary.encode(sentence), AttentionTrace()
    framed = special_tokens_of(vocabulary).frame(ids, len(ids) + 2)
    _check_length(len(framed), filler.length)
    filler.model.encode(torch.tensor([framed], device=filler.model.source_weight.device), trace=trace)
    return _Reading(stack_layers(trace.encoder), vocabulary.token_texts(ids), 1, left_to_right=False)


def _check_length(tokens: int, most: int) -> None:
    if tokens > most:
        raise TransduceError(
            f"The model sees {most} pieces at a time, but this sentence has {tokens}: give a shorter one."
        )


def _between_words(reading: _Reading, spans: Sequence[Span], sentence: str, pronoun: int) -> npt.NDArray[np.float64]:
    """From the pronoun to each word, (N, H, W): over its own pieces the mean, over a word's pieces the sum.

    A piece that spells parts of several words is shared between them by its characters.
    """
    shared = overlap(spans, token_spans(reading.tokens, sentence)).astype(np.float64)  # (W, pieces)
    to_words = shared / np.maximum(shared.sum(axis=0), 1.0)
    own = shared[pronoun] / max(1.0, shared[pronoun].sum())  # (pieces,)
    last = reading.first + len(reading.tokens)
    maps = reading.weights[:, :, reading.first : last, reading.first : last].astype(np.float64)
    return np.asarray(np.einsum("q,nhqk,wk->nhw", own, maps, to_words))
