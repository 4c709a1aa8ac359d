"""A tree as a line of text, for sequence to sequence, and back: whatever a model writes, a tree over the words.

`NP(` opens a constituent, `)` closes one, and `NN/` stands for a word by its tag. All that lies between two words is
one run, with the tag of the second: `)VP(VBD/`. The line has each word, then the run that leads up to it:

    The⟩S(NP(DT/ cat⟩NN/ slept⟩)VP(VBD/ .⟩)./⟩)

Vinyals et al. 2015 ("Grammar as a Foreign Language") write no words. But then nothing tells which word is the next one
but counting, and a decoder loses count; that it reads each word before it places it makes it learn many times as fast.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from transduce.errors import TransduceError
from transduce.text.trees import MOST_DEPTH, UNKNOWN_TAG, Tree

CLOSE = ")"
OPENING, TAG = "(", "/"
# Stands before each piece that is not of a word; a word that has it is written with its likeness.
MARK, _LIKENESS = "⟩", "〉"
# The label of a constituent that had to be made up: nearly all of a treebank's roots.
_MADE_UP = "S"
_NAME = r"[^\s()/▁⟩]+"
_SYMBOL = re.compile(rf"{_NAME}[(/]|\)")
_RUN = re.compile(rf"\)*(?:{_NAME}\()*{_NAME}/|\)+")
_MARKED = re.compile(rf"{MARK}([^{MARK}\s]+)")
_SHOWN = 60
_COMMA, _COMMA_NAME = ",", "-COMMA-"


def linearize(tree: Tree, *, tags: bool = True) -> str:
    """The symbols of a tree in a row, without its words: S(NP(PRP/)VP(VBP/)).

    Args:
        tree: cleaned.
        tags: say each word's tag; otherwise `XX/` stands for every word.

    Raises:
        TransduceError: a label is empty, or has a character that symbols cannot have.
    """
    if tree.word is not None:
        return (_named(tree) if tags else UNKNOWN_TAG) + TAG
    return _named(tree) + OPENING + "".join(linearize(child, tags=tags) for child in tree.children) + CLOSE


def _named(tree: Tree) -> str:
    # The vocabulary is given as a list with commas.
    name = tree.label.replace(_COMMA, _COMMA_NAME)
    if not re.fullmatch(_NAME, name):
        raise TransduceError(
            f'A label must have something in it, and no space, bracket, /, ▁ or {MARK}, but one is "{tree.label}" in '
            f"{str(tree)[:_SHOWN]}: rename it."
        )
    return name


def _label(symbol: str) -> str:
    return symbol[:-1].replace(_COMMA_NAME, _COMMA)


def split_symbols(text: str) -> list[str]:
    """The symbols in a row, in order; what is none is passed over."""
    return _SYMBOL.findall(text)


def frequent_runs(rows: Iterable[str], most: int) -> frozenset[str]:
    """The most frequent runs of several symbols, which are worth a piece each: `S(NP(DT/`, `)VP(VBZ/`, `))`.

    Args:
        rows: of symbols.
        most: how many runs.
    """
    counts = Counter(run for row in rows for run in _RUN.findall(row) if len(split_symbols(run)) > 1)
    return frozenset(sorted(counts, key=lambda run: (-counts[run], run))[:most])


def marked_pieces(rows: Iterable[str], runs: Iterable[str]) -> tuple[str, ...]:
    """All that is written beside words: each symbol of these rows, and these runs, marked and sorted."""
    symbols = {symbol for row in rows for symbol in split_symbols(row)}
    return tuple(MARK + piece for piece in sorted({CLOSE, *symbols, *runs}))


def write_line(words: Sequence[str], row: str, runs: Collection[str]) -> str:
    """The words with the runs that lead up to them, as a model learns to write them.

    Args:
        words: of the sentence.
        row: its tree's symbols, without words.
        runs: those with a piece of their own; others are written symbol by symbol.
    """
    line, left = "", iter(words)
    for run in _RUN.findall(row):
        word = f" {plain(next(left))}" if run.endswith(TAG) else ""
        line += word + "".join(MARK + piece for piece in ([run] if run in runs else split_symbols(run)))
    return line.strip()


def plain(word: str) -> str:
    """The word without marks."""
    return word.replace(MARK, _LIKENESS)


def symbols_in(line: str) -> list[str]:
    """The symbols in a line, whatever else is in it."""
    return [symbol for marked in _MARKED.findall(line) for symbol in split_symbols(marked)]


def build_tree(symbols: Iterable[str], words: Sequence[str]) -> Tree:
    """A valid tree over exactly these words, whatever the symbols are.

    Symbols that a treebank could have written give their tree. Otherwise as little as possible is changed: tags
    beyond the last word, brackets around nothing and closing brackets too many are passed over; words without a tag
    are hung onto the root with the tag XX; what is not closed is closed at the end.

    Args:
        symbols: as `linearize` writes them; others are passed over.
        words: of the sentence, one at least.

    Raises:
        TransduceError: there are no words.
    """
    if not words:
        raise TransduceError("A tree stands over words, but the sentence has none: leave it out.")
    builder = _Builder(words)
    for symbol in symbols:
        builder.take(symbol)
    return builder.finish()


class _Builder:
    """A tree in the making: constituents from the root to the one that is open, and the words that are left."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._used = 0
        self._open: list[tuple[str, list[Tree]]] = []
        self._root: Tree | None = None

    def take(self, symbol: str) -> None:
        """The next symbol; what cannot be right here is passed over."""
        if self._used < len(self._words) and symbol.endswith(OPENING) and len(self._open) < MOST_DEPTH - 1:
            self._open.append((_label(symbol), []))
        elif self._used < len(self._words) and symbol.endswith(TAG):
            self._add_word(_label(symbol))
        elif symbol == CLOSE and self._open and not self._closes_too_early:
            self._close()

    @property
    def _closes_too_early(self) -> bool:
        """Whether the only open constituent is the root of words that are still to come."""
        return len(self._open) == 1 and self._used < len(self._words)

    def _add_word(self, tag: str) -> None:
        leaf = Tree(tag, (), self._words[self._used])
        self._used += 1
        if not self._open and len(self._words) == 1:
            self._root = leaf
            return
        if not self._open:
            self._open.append((_MADE_UP, []))
        self._open[-1][1].append(leaf)

    def _close(self) -> None:
        label, children = self._open.pop()
        if not children:
            return  # around nothing
        tree = Tree(label, tuple(children))
        if self._open:
            self._open[-1][1].append(tree)
        else:
            self._root = tree

    def finish(self) -> Tree:
        """The whole tree."""
        while len(self._open) > 1:
            self._close()
        while self._used < len(self._words):
            self._add_word(UNKNOWN_TAG)
        if self._open:
            self._close()
        assert self._root is not None
        return self._root
