"""Special tokens of encoders such as BERT (Devlin et al. 2019), which represent no text.

A text is framed as [CLS] text [SEP]; [MASK] replaces a token to predict. Imported vocabularies may spell them
otherwise: RoBERTa uses <s>, </s> and <mask>.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from transduce.errors import TransduceError
from transduce.text.vocabulary import CLS, MASK, SEP, SPECIAL_TOKENS, Vocabulary

__all__ = [
    "CLS",
    "MASK",
    "SEP",
    "SPECIAL_TOKENS",
    "SpecialTokens",
    "encode_masked",
    "find_special_tokens",
    "special_tokens_of",
    "text_token_ids",
]


# --- literal symbols ---
# Tokens that match literal text and are never split, such as `[MASK]`, `<extra_id_0>` or an added word. They are
# found before a text is tokenized; if several match at a position, the longest wins.


class Symbol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A special token with the rules by which it is matched in text."""

    text: str
    spaces_before: bool = False
    """True if spaces before the token in a text belong to the token, as for RoBERTa's `<mask>`."""
    spaces_after: bool = False
    """True if spaces after the token in a text belong to the token."""
    whole_word: bool = False
    """True if the token matches only where no letter, digit or underscore is adjacent."""
    normalized: bool = False
    """True if the token is normalized and then matched in the normalized text."""


class SymbolSplitter:
    """A splitter of texts into symbols (special tokens such as `[MASK]`) and the text between them."""

    def __init__(self, symbols: Sequence[Symbol], normalize: Callable[[str], str]) -> None:
        """Compile the patterns that find symbols (special tokens); `normalize` is the tokenizer's normalizer.

        The normalizer must be idempotent.
        """
        self._normalize = normalize
        raw = {symbol.text: symbol for symbol in symbols if not symbol.normalized}
        later = {normalize(symbol.text): symbol for symbol in symbols if symbol.normalized}
        self._raw = _Pattern(raw)
        self._normalized = _Pattern(later)

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the non-empty parts of a text in order, each with whether it is a symbol (special token)."""
        for part, is_symbol in self._raw.parts(text):
            if is_symbol or not self._normalized.symbols:
                yield part, is_symbol
            else:
                yield from self._normalized.parts(self._normalize(part))


class _Pattern:
    """A pattern that matches a set of symbols (special tokens) in a text, with the rules for spaces around them."""

    def __init__(self, symbols: dict[str, Symbol]) -> None:
        self.symbols = {written: symbol for written, symbol in symbols.items() if written}
        longest_first = sorted(self.symbols, key=len, reverse=True)
        self._expression = re.compile("|".join(_expression(each, self.symbols[each]) for each in longest_first))

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the non-empty parts of a text in order, each with whether it is a symbol (special token).

        Spaces are matched from the symbol outwards, which stays fast for texts that are mostly spaces.
        """
        position = 0
        for match in self._expression.finditer(text) if self.symbols else ():
            symbol, (start, end) = self.symbols[match.group()], match.span()
            if start < position:  # its leading spaces belong to the symbol before
                continue
            before = text[position:start]
            before = before.rstrip() if symbol.spaces_before else before
            if before:
                yield before, False
            yield symbol.text, True
            spaces = _SPACES.match(text, end) if symbol.spaces_after else None
            position = end if spaces is None else spaces.end()
        if position < len(text):
            yield text[position:], False


_SPACES = re.compile(r"\s*")


def _expression(written: str, symbol: Symbol) -> str:
    escaped = re.escape(written)
    return rf"(?<!\w){escaped}(?!\w)" if symbol.whole_word else escaped


# --- encoder tokens ---


class SpecialTokens(NamedTuple):
    """The ids of an encoder's special tokens: [CLS], [SEP] and [MASK]."""

    cls: int
    """The id of [CLS], which begins a text; the hidden state at [CLS] represents the whole text."""
    sep: int
    """The id of [SEP], which ends a text."""
    mask: int
    """The id of [MASK], which replaces a token to predict."""

    def frame(self, ids: Sequence[int], length: int) -> list[int]:
        """Return a text's ids between those of [CLS] and [SEP], truncated at the end to `length` ids in total."""
        return [self.cls, *ids[: length - 2], self.sep]


def special_tokens_of(vocabulary: Vocabulary) -> SpecialTokens:
    """Return the ids of an encoder's special tokens in a vocabulary.

    Raises:
        TransduceError: the vocabulary lacks one.
    """
    marks = find_special_tokens(vocabulary)
    if marks is None:
        missing = next(mark for mark in vocabulary.special_token_names if not vocabulary.has_special_token(mark))
        raise TransduceError(
            f"An encoder needs the tokens {', '.join(vocabulary.special_token_names)}, but this vocabulary has no "
            f"{missing}: use one that `transduce train --task masked-language-model`"
            " or `--task classification` made, or import "
            "the model again."
        )
    return marks


def find_special_tokens(vocabulary: Vocabulary) -> SpecialTokens | None:
    """Return the ids of an encoder's special tokens in a vocabulary; None if the vocabulary lacks one."""
    if not all(map(vocabulary.has_special_token, vocabulary.special_token_names)):
        return None
    return SpecialTokens(*map(vocabulary.id, vocabulary.special_token_names))


def encode_masked(vocabulary: Vocabulary, text: str) -> list[int]:
    """Return the token ids of a text with masks, in which each mask also replaces the space before it, if any.

    Vocabularies that this package trains encode that space as a separate token, which is removed here. Imported
    vocabularies define whether a mask includes the space.
    """
    mask, space = vocabulary.id(vocabulary.special_token_names[2]), vocabulary.id("▁")
    ids = vocabulary.encode(text)
    if vocabulary.token(space) != "▁":  # no such token: the id is that of the unknown token
        return ids
    return [id for id, after in zip_longest(ids, ids[1:]) if not (id == space and after == mask)]


def text_token_ids(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of all tokens that represent text: not special, padding, end or unknown tokens."""
    marks = set(map(vocabulary.id, vocabulary.special_token_names))
    return [id for id in range(vocabulary.size) if id not in marks and vocabulary.is_text_token(id)]
