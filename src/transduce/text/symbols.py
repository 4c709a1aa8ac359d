"""Symbols: tokens that match literal text and are never split, such as `[MASK]`, `<extra_id_0>` or an added word.

They are found before a text is tokenized; if several match at a position, the longest wins.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec


class Symbol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A symbol with its rules of matching."""

    text: str
    spaces_before: bool = False
    """Whether spaces before it in a text belong to it, as for RoBERTa's `<mask>`."""
    spaces_after: bool = False
    """Whether spaces after it in a text belong to it."""
    whole_word: bool = False
    """Whether it matches only if no letter or digit is adjacent."""
    normalized: bool = False
    """Whether the normalized symbol is matched in the normalized text."""


class SymbolFinder:
    """A splitter of texts into symbols and the text between them."""

    def __init__(self, symbols: Sequence[Symbol], normalize: Callable[[str], str]) -> None:
        """Prepare matching; `normalize` is the tokenizer's normalizer, which must be idempotent."""
        self._normalize = normalize
        raw = {symbol.text: symbol for symbol in symbols if not symbol.normalized}
        later = {normalize(symbol.text): symbol for symbol in symbols if symbol.normalized}
        self._raw = _Pattern(raw)
        self._normalized = _Pattern(later)

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the non-empty parts of a text in order, each with whether it is a symbol."""
        for part, is_symbol in self._raw.parts(text):
            if is_symbol or not self._normalized.symbols:
                yield part, is_symbol
            else:
                yield from self._normalized.parts(self._normalize(part))


class _Pattern:
    """A set of symbols by the text that they match."""

    def __init__(self, symbols: dict[str, Symbol]) -> None:
        self.symbols = {written: symbol for written, symbol in symbols.items() if written}
        longest_first = sorted(self.symbols, key=len, reverse=True)
        self._expression = re.compile("|".join(_expression(each, self.symbols[each]) for each in longest_first))

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the non-empty parts of a text in order, each with whether it is a symbol.

        Spaces are matched from the symbol outwards, which stays fast for texts that are mostly spaces.
        """
        position = 0
        for match in self._expression.finditer(text) if self.symbols else ():
            symbol, (start, end) = self.symbols[match.group()], match.span()
            if start < position:  # it begins with spaces that belong to the symbol before
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
