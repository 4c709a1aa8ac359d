"""Measure which earlier word each attention head of a model attends to from a pronoun.

In an encoder, the query is the pronoun's position; in a decoder, the position whose input is the pronoun.
Shapes: N layers, H heads, T tokens as the model reads them, W words of the sentence.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.generator import Generator
from transduce.inference.mask_filler import Filler
from transduce.inference.translator import Translator
from transduce.inspection.attention import attention_between_words, attention_maps
from transduce.inspection.sentence import sentence_ids
from transduce.inspection.sentence_view import PronounAttention
from transduce.text.files import compose
from transduce.text.word_spans import Span, overlap, split_words, token_spans

# Function words, which name nothing. In other languages every word with letters is a candidate.
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


class _Reading(NamedTuple):
    """The self-attention weights of a model for one sentence, with the sentence's tokens."""

    weights: npt.NDArray[np.float32]
    """Self-attention of every layer and head, (layers, heads, tokens, tokens)."""
    tokens: list[str]
    """The sentence's tokens, without the special tokens around them."""
    first: int
    """Position of the sentence's first token among all tokens that the model reads."""
    left_to_right: bool
    """True if each position attends only to itself and earlier positions, as in a decoder."""


@explain_wrong_types
def pronoun_attention(
    reader: object,
    sentence: str,
    pronoun: str,
    *,
    antecedent: str | None = None,
    among: Sequence[str] | None = None,
    translation_of: str | None = None,
) -> PronounAttention:
    """Return the attention of every head from a pronoun to each word of its sentence, as a `PronounAttention`.

    Args:
        reader: a translator with a Transformer, a language model or a masked one, as `transduce.load` returns.
        sentence: a sentence with the pronoun, whose last occurrence is used.
        pronoun: the pronoun, in upper or lower case.
        antecedent: the earlier word or words that the pronoun refers to, if known.
        among: the possible antecedents; None: all earlier words except function words (known for English and German).
        translation_of: the source sentence, if `sentence` is its translation; the translator's decoder is then
            measured.

    Raises:
        TransduceError: the sentence lacks a word, no candidate precedes the pronoun, or the model has no
            self-attention.
    """
    sentence = compose(" ".join(sentence.split()))
    spans = _split(sentence)
    words = [sentence[span.start : span.end] for span in spans]
    pronoun_index = _find_pronoun(words, pronoun, sentence)
    antecedent_words = None if antecedent is None else _find_before(sentence, spans, pronoun_index, antecedent)
    found = set() if antecedent_words is None else {antecedent_words}
    if among is None:
        nouns = _candidate_words(words[:pronoun_index], _language(reader, translation_of))
        found |= {(number,) for number in nouns if number not in (antecedent_words or ())}
    else:
        found |= {_find_before(sentence, spans, pronoun_index, text) for text in among}
    candidates = sorted(found)
    if not candidates:
        raise TransduceError(
            f"A pronoun refers to an earlier word, but no word before `{pronoun}` in `{sentence}` names something: "
            "pass a sentence that has one, or list the possible words with `among` (--among)."
        )
    reading = _read(reader, sentence, translation_of)
    weights = _from_pronoun(reading, spans, sentence, pronoun_index)
    return PronounAttention(
        words=tuple(words),
        pronoun=pronoun_index,
        candidates=tuple(candidates),
        antecedent=None if antecedent_words is None else candidates.index(antecedent_words),
        left_to_right=reading.left_to_right,
        weights=tuple(tuple(tuple(round(float(w), 4) for w in head) for head in layer) for layer in weights),
    )


# --- words ---


def _split(sentence: str) -> list[Span]:
    """Return the character spans of a sentence's words, with punctuation before and after them as separate spans."""
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
    """Return the index of the pronoun's last occurrence among the words, in upper or lower case.

    Raises:
        TransduceError: no word is the pronoun.
    """
    folded = compose(pronoun).casefold()
    indices = [number for number, word in enumerate(words) if word.casefold() == folded]
    if not indices:
        raise TransduceError(f"The pronoun must be a word of the sentence, but `{pronoun}` is none of `{sentence}`.")
    return indices[-1]


def _find_before(sentence: str, spans: Sequence[Span], pronoun: int, text: str) -> tuple[int, ...]:
    """Return the indices of the words that spell `text` at its last occurrence before the word with index `pronoun`.

    `spans` are the spans of the sentence's words. Upper and lower case are not distinguished.

    Raises:
        TransduceError: `text` does not occur before the pronoun.
    """
    composed = compose(text)
    folded_words = [composed[slice(*span)].casefold() for span in _split(composed)]
    words = [sentence[span.start : span.end].casefold() for span in spans[:pronoun]]
    for first in range(pronoun - len(folded_words), -1, -1):
        if folded_words and words[first : first + len(folded_words)] == folded_words:
            return tuple(range(first, first + len(folded_words)))
    raise TransduceError(
        f"A candidate must come before the pronoun, but `{text}` does not occur before "
        f"`{sentence[spans[pronoun].start : spans[pronoun].end]}` in `{sentence}`."
    )


def _candidate_words(words: Sequence[str], language: str | None) -> tuple[int, ...]:
    """Return the indices of the words that may name something: those with letters that are not function words.

    Function words are known for `en` and `de`; if `language` is None, the lists of both apply, and for others none.
    """
    languages = _FUNCTION_WORDS if language is None else _FUNCTION_WORDS.keys() & {language}
    function_words = {word for each in languages for word in _FUNCTION_WORDS[each].split()}
    return tuple(
        number
        for number, word in enumerate(words)
        if any(map(str.isalpha, word)) and word.lower().replace("’", "'") not in function_words
    )


def _language(reader: object, translation_of: str | None) -> str | None:
    """Return the language code of the inspected sentence, if the model's folder names it; otherwise None.

    With `translation_of` the sentence is a translation, and its language is the target language.
    """
    if isinstance(reader, Translator):
        return reader.source_language if translation_of is None else reader.target_language
    return reader.language if isinstance(reader, Generator) else None


# --- the model ---


def _read(reader: object, sentence: str, translation_of: str | None) -> _Reading:
    """Run the model on the sentence, and return its self-attention weights with the sentence's tokens.

    In a translator, the encoder reads the sentence, or the decoder reads it as the translation of `translation_of`.

    Raises:
        TransduceError: the model or the sentence cannot be inspected.
    """
    if translation_of is not None and not isinstance(reader, Translator):
        raise TransduceError("`translation_of` applies to translators only: leave it out for this model.")
    left_to_right = translation_of is not None or isinstance(reader, Generator)
    if isinstance(reader, Translator):
        source = sentence if translation_of is None else translation_of
        sentence_ids(reader, source)  # raises an error for models and sentences that cannot be inspected
        maps = attention_maps(reader, source, sentence if left_to_right else "")
        vocabulary = reader.tokenizer.target if left_to_right else reader.tokenizer.source
        first = len(vocabulary.before) + left_to_right  # the decoder reads the start symbol before the sentence
    elif isinstance(reader, Generator):
        maps, vocabulary = attention_maps(reader, sentence), reader.vocabulary
        first = len(reader.prompt_ids(sentence)) - len(vocabulary.encode(sentence))
    elif isinstance(reader, Filler):
        maps, vocabulary, first = attention_maps(reader, sentence), reader.tokenizer.source, 1
    else:
        raise TransduceError(
            "Attention from a pronoun needs a translator, a language model or a masked language model, but this model "
            f"is a {type(reader).__name__.lower()}: pass another folder."
        )
    tokens = vocabulary.token_texts(vocabulary.encode(sentence))
    return _Reading(maps.decoder if left_to_right else maps.encoder, tokens, first, left_to_right)


def _from_pronoun(reading: _Reading, spans: Sequence[Span], sentence: str, pronoun: int) -> npt.NDArray[np.float64]:
    """Return the attention from the pronoun, the word with index `pronoun`, to each word, (layers, heads, words).

    `spans` are the spans of the sentence's words.
    """
    shared_characters = overlap(spans, token_spans(reading.tokens, sentence)).astype(np.float64)  # (W, tokens)
    to_words = shared_characters / np.maximum(shared_characters.sum(axis=0), 1.0)
    last = reading.first + len(reading.tokens)
    maps = reading.weights[:, :, reading.first : last, reading.first : last]
    return attention_between_words(maps, shared_characters[pronoun, None], to_words)[:, :, 0]
