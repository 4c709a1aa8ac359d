"""Conversion of parse trees to lines of text for sequence-to-sequence models, and back to a valid tree over the words.

`NP(` opens a constituent, `)` closes one, and `NN/` is the tag of a word. All symbols between two words form one run
that ends with the tag of the second word: `)VP(VBD/`. A line has each word, followed by the run that leads up to it:

    The⟩S(NP(DT/ cat⟩NN/ slept⟩)VP(VBD/ .⟩)./⟩)

Vinyals et al. 2015 ("Grammar as a Foreign Language") write no words. Then the decoder must count to know which word
is next, and loses count; with the words in the output it learns many times as fast.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from transduce.errors import TransduceError
from transduce.text.trees import MOST_DEPTH, UNKNOWN_TAG, Tree

CLOSE = ")"
OPENING, TAG = "(", "/"
# Precedes each token that is not part of a word; in words it is replaced by a similar character.
MARK, _SUBSTITUTE = "⟩", "〉"
# The label of an added root, which nearly all roots of a treebank have.
_DEFAULT_ROOT = "S"
_NAME = r"[^\s()/▁⟩]+"
_SYMBOL = re.compile(rf"{_NAME}[(/]|\)")
_RUN = re.compile(rf"\)*(?:{_NAME}\()*{_NAME}/|\)+")
_MARKED = re.compile(rf"{MARK}([^{MARK}\s]+)")
_SHOWN = 60
_COMMA, _COMMA_NAME = ",", "-COMMA-"


def linearize(tree: Tree, *, tags: bool = True) -> str:
    """Return the symbols of a tree without its words: S(NP(PRP/)VP(VBP/)).

    Args:
        tree: a cleaned tree.
        tags: write each word's tag; if false, write `XX/` for every word.

    Raises:
        TransduceError: a label is empty, or has a character that symbols cannot contain.
    """
    if tree.word is not None:
        return (_named(tree) if tags else UNKNOWN_TAG) + TAG
    return _named(tree) + OPENING + "".join(linearize(child, tags=tags) for child in tree.children) + CLOSE


def _named(tree: Tree) -> str:
    # sentencepiece takes user symbols as a comma-separated list.
    name = tree.label.replace(_COMMA, _COMMA_NAME)
    if not re.fullmatch(_NAME, name):
        raise TransduceError(
            f'A label must not be empty or have a space, bracket, /, ▁ or {MARK}, but one is "{tree.label}" in '
            f"{str(tree)[:_SHOWN]}: rename it."
        )
    return name


def _label(symbol: str) -> str:
    return symbol[:-1].replace(_COMMA_NAME, _COMMA)


def split_symbols(text: str) -> list[str]:
    """Return the symbols in a text in order, ignoring everything else."""
    return _SYMBOL.findall(text)


def frequent_runs(rows: Iterable[str], most: int) -> frozenset[str]:
    """Return the most frequent runs of several symbols, which get tokens of their own: `S(NP(DT/`, `)VP(VBZ/`, `))`.

    Args:
        rows: linearized trees.
        most: the maximum number of runs.
    """
    counts = Counter(run for row in rows for run in _RUN.findall(row) if len(split_symbols(run)) > 1)
    return frozenset(sorted(counts, key=lambda run: (-counts[run], run))[:most])


def marked_pieces(rows: Iterable[str], runs: Iterable[str]) -> tuple[str, ...]:
    """Return the tokens for everything besides words: each symbol in the rows and each run, marked and sorted."""
    symbols = {symbol for row in rows for symbol in split_symbols(row)}
    return tuple(MARK + piece for piece in sorted({CLOSE, *symbols, *runs}))


def write_line(words: Sequence[str], row: str, runs: Collection[str]) -> str:
    """Return the words with the runs that lead up to them, as a model learns to write them.

    Args:
        words: the words of the sentence.
        row: the symbols of its tree, without words.
        runs: the runs with a token of their own; others are written symbol by symbol.
    """
    line, remaining = "", iter(words)
    for run in _RUN.findall(row):
        word = f" {plain(next(remaining))}" if run.endswith(TAG) else ""
        line += word + "".join(MARK + piece for piece in ([run] if run in runs else split_symbols(run)))
    return line.strip()


def plain(word: str) -> str:
    """Return a word in which the mark character is replaced."""
    return word.replace(MARK, _SUBSTITUTE)


def symbols_in(line: str) -> list[str]:
    """Return the symbols in a line, ignoring everything else."""
    return [symbol for marked in _MARKED.findall(line) for symbol in split_symbols(marked)]


def build_tree(symbols: Iterable[str], words: Sequence[str]) -> Tree:
    """Build a valid tree over exactly these words from any symbols.

    Symbols that form a valid tree give that tree. Otherwise as little as possible is changed: tags after the last
    word, empty constituents and surplus closing brackets are ignored. Words without a tag are attached to the root
    with the tag XX, and open constituents are closed at the end.

    Args:
        symbols: symbols as `linearize` writes them; others are ignored.
        words: the words of the sentence, at least one.

    Raises:
        TransduceError: there are no words.
    """
    if not words:
        raise TransduceError("A tree needs words, but the sentence has none: leave it out.")
    builder = _Builder(words)
    for symbol in symbols:
        builder.take(symbol)
    return builder.finish()


class _Builder:
    """A tree under construction: the open constituents from the root down, and the number of words used."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._used = 0
        self._open: list[tuple[str, list[Tree]]] = []
        self._root: Tree | None = None

    def take(self, symbol: str) -> None:
        """Process the next symbol; ignore it if it is invalid at this point."""
        if self._used < len(self._words) and symbol.endswith(OPENING) and len(self._open) < MOST_DEPTH - 1:
            self._open.append((_label(symbol), []))
        elif self._used < len(self._words) and symbol.endswith(TAG):
            self._add_word(_label(symbol))
        elif symbol == CLOSE and self._open and not self._closes_too_early:
            self._close()

    @property
    def _closes_too_early(self) -> bool:
        """True if the only open constituent is the root while words are left."""
        return len(self._open) == 1 and self._used < len(self._words)

    def _add_word(self, tag: str) -> None:
        leaf = Tree(tag, (), self._words[self._used])
        self._used += 1
        if not self._open and len(self._words) == 1:
            self._root = leaf
            return
        if not self._open:
            self._open.append((_DEFAULT_ROOT, []))
        self._open[-1][1].append(leaf)

    def _close(self) -> None:
        label, children = self._open.pop()
        if not children:
            return  # an empty constituent
        tree = Tree(label, tuple(children))
        if self._open:
            self._open[-1][1].append(tree)
        else:
            self._root = tree

    def finish(self) -> Tree:
        """Close all constituents, attach the remaining words, and return the tree."""
        while len(self._open) > 1:
            self._close()
        while self._used < len(self._words):
            self._add_word(UNKNOWN_TAG)
        if self._open:
            self._close()
        assert self._root is not None
        return self._root
