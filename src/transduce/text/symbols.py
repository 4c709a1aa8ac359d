"""Pieces that a text may name outright and that are never cut: `[MASK]`, `<extra_id_0>`, a word that was added.

They are looked for before a text is cut, the longest first wherever one begins.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec


class Symbol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How one is recognised."""

    text: str
    spaces_before: bool = False
    """Spaces before it in a text belong to it: RoBERTa's `<mask>`."""
    spaces_after: bool = False
    """Spaces after it do."""
    whole_word: bool = False
    """It counts only where no letter or digit stands next to it."""
    normalized: bool = False
    """It is looked for in what the tokenizer's normaliser makes of the text, as that makes it of the symbol."""


class SymbolFinder:
    """Parts texts into symbols and what stands between them."""

    def __init__(self, symbols: Sequence[Symbol], normalize: Callable[[str], str]) -> None:
        """`normalize` is the tokenizer's own; to do it twice must be to do it once."""
        self._normalize = normalize
        raw = {symbol.text: symbol for symbol in symbols if not symbol.normalized}
        later = {normalize(symbol.text): symbol for symbol in symbols if symbol.normalized}
        self._raw = _Pattern(raw)
        self._normalized = _Pattern(later)

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """The symbols and the texts between them, in order, and whether each is a symbol; no empty ones."""
        for part, is_symbol in self._raw.parts(text):
            if is_symbol or not self._normalized.symbols:
                yield part, is_symbol
            else:
                yield from self._normalized.parts(self._normalize(part))


class _Pattern:
    """Several symbols by how they are written in a text."""

    def __init__(self, symbols: dict[str, Symbol]) -> None:
        self.symbols = {written: symbol for written, symbol in symbols.items() if written}
        longest_first = sorted(self.symbols, key=len, reverse=True)
        self._expression = re.compile("|".join(_expression(each, self.symbols[each]) for each in longest_first))

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """As `SymbolFinder.parts`. Spaces are looked for from a symbol on: a text may be nothing but them."""
        place = 0
        for match in self._expression.finditer(text) if self.symbols else ():
            symbol, (start, end) = self.symbols[match.group()], match.span()
            if start < place:  # it begins with spaces that belong to the one before
                continue
            before = text[place:start]
            before = before.rstrip() if symbol.spaces_before else before
            if before:
                yield before, False
            yield symbol.text, True
            spaces = _SPACES.match(text, end) if symbol.spaces_after else None
            place = end if spaces is None else spaces.end()
        if place < len(text):
            yield text[place:], False


_SPACES = re.compile(r"\s*")


def _expression(written: str, symbol: Symbol) -> str:
    found = re.escape(written)
    return rf"(?<!\w){found}(?!\w)" if symbol.whole_word else found
