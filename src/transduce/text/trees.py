"""Read, clean, draw and linearize constituency trees, for parsers that are sequence-to-sequence models."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transduce.errors import TransduceError
from transduce.text.files import read_lines

# No sentence is nested this deeply, and recursion over trees is safe up to this depth.
MAX_DEPTH = 200
# Labels of untagged words, and of a bracket around several trees.
UNKNOWN_TAG = "XX"
TOP = "TOP"
_TRACE = "-NONE-"
# Other spaces than ASCII's are part of a token; CRAFT has hair spaces between words of the same tag.
_TOKEN = re.compile(r"[()]|[^\s()]+(?:(?![ \t\n\r\f\v])\s+[^\s()]+)*")
# Treebanks escape these words, as brackets are structure.
_ESCAPES = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
_BACKSLASH = re.compile(r"\\([/*])")  # in the Penn Treebank's own files
_ESCAPED = {escape: word for word, escape in _ESCAPES.items()}


class Tree(NamedTuple):
    """A node of a constituency tree: a label with child nodes, or a leaf, whose label is the tag of its word."""

    label: str
    children: "tuple[Tree, ...]" = ()
    word: str | None = None

    def leaves(self) -> "Iterator[Tree]":
        """Yield the leaves of the tree from left to right, each a tag with its word."""
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.leaves()

    def words(self) -> list[str]:
        """Return a list of the words of the tree's leaves, from left to right."""
        return [leaf.word for leaf in self.leaves() if leaf.word is not None]

    def __str__(self) -> str:
        """Return the tree in treebank brackets on one line, such as (NP (DT the) (NN cat)), with escaped words."""
        if self.word is not None:
            return f"({self.label} {escape_word(self.word)})"
        return f"({self.label} {' '.join(map(str, self.children))})"


def escape_word(word: str) -> str:
    """Return a word with its round brackets escaped for a treebank, so that ( becomes -LRB-.

    The brackets [ ] { } are escaped only if one of them is the whole word.
    """
    return _ESCAPES.get(word) or word.replace("(", "-LRB-").replace(")", "-RRB-")


def unescape_word(word: str) -> str:
    """Return the word that an escaped word of a treebank stands for.

    -LRB- becomes (, and likewise for other brackets. A backslash before / or * is removed.
    """
    return _ESCAPED.get(word) or _BACKSLASH.sub(r"\1", word)


def read_trees(path: str | Path) -> Iterator[Tree]:
    """Yield the uncleaned trees of a treebank file, plain or compressed; a tree may span several lines.

    Raises:
        TransduceError: something is not a tree; the message names the file and the line.
    """
    reader = _TreebankReader()
    number, started_at = 0, 1
    for number, line in enumerate(read_lines(path), 1):
        for token in _TOKEN.findall(line):
            started_at = started_at if reader.is_inside else number
            tree = _take(reader, token, f"{path}:{number}")
            if tree is not None:
                yield tree
    if reader.is_inside:
        raise TransduceError(f"{path}:{started_at}: this tree is never closed: balance its brackets.")


def read_clean_trees(path: str | Path) -> list[Tree]:
    """Return a list of the trees of a treebank file, each cleaned by `clean`; trees without words are left out.

    Raises:
        TransduceError: something is not a tree; the message names the file and the line.
    """
    return [tree for tree in map(clean, read_trees(path)) if tree is not None]


def read_tree(text: str) -> Tree:
    """Parse a text with a single tree in brackets into a `Tree`.

    Raises:
        TransduceError: the text is not a tree, or more than one.
    """
    reader, trees = _TreebankReader(), []
    for token in _TOKEN.findall(text):
        tree = _take(reader, token, f'"{text}"')
        trees += [tree] if tree is not None else []
    if reader.is_inside or len(trees) != 1:
        raise TransduceError(f'"{text}" must be one tree, such as (NP (DT the) (NN cat)): balance its brackets.')
    return trees[0]


def _take(reader: "_TreebankReader", token: str, where: str) -> Tree | None:
    try:
        return reader.take(token)
    except ValueError as error:
        raise TransduceError(f"{where}: {error}, fix the tree.") from None


class _Open(NamedTuple):
    """An opening bracket that is not closed yet, with the label or words and the children read after it."""

    tokens: list[str]
    children: list[Tree]


class _TreebankReader:
    """A parser that receives the brackets and words of a treebank one by one and builds trees."""

    def __init__(self) -> None:
        self._stack: list[_Open] = []

    @property
    def is_inside(self) -> bool:
        """True if the reader is between the brackets of a tree."""
        return bool(self._stack)

    def take(self, token: str) -> Tree | None:
        """Process the next bracket or word of a treebank; return the tree that it completes, or None within a tree.

        Raises:
            ValueError: the bracket or word is invalid at this point, or brackets are nested too deep.
        """
        if token == "(":
            if len(self._stack) == MAX_DEPTH:
                raise ValueError(f"brackets must be nested at most {MAX_DEPTH} deep, but these are deeper")
            self._stack.append(_Open([], []))
        elif not self._stack:
            raise ValueError(f'a tree begins with an opening bracket, but here is "{token}"')
        elif token == ")":
            return self._close()
        elif self._stack[-1].children:
            raise ValueError(f'a bracket holds a tag and a word, or a label and brackets, but here follows "{token}"')
        else:
            self._stack[-1].tokens.append(token)
        return None

    def _close(self) -> Tree | None:
        bracket = self._stack.pop()
        label, *words = " ".join(bracket.tokens).split() or [""]
        if bool(words) == bool(bracket.children):
            raise ValueError("a bracket holds a tag and a word, or a label and brackets, but one holds neither or both")
        if len(bracket.tokens) > 2:
            count = len(bracket.tokens) - 1
            raise ValueError(f'a bracket holds a tag and one word, but "{label}" has {count} words')
        trees = [Tree(label, (), unescape_word(word)) for word in words] or [Tree(label, tuple(bracket.children))]
        if self._stack:
            self._stack[-1].children.extend(trees)
            return None
        return trees[0] if len(trees) == 1 else Tree("", tuple(trees))


def clean(tree: Tree) -> Tree | None:
    """Return a tree without traces, function tags and indices, for training and scoring parsers.

    NP-SBJ-1 becomes NP. Constituents that contain only traces are removed. An outer bracket without a label is removed
    if it has one child, and otherwise labeled TOP. The result is None if nothing is left.
    """
    cleaned = _clean(tree)
    while cleaned is not None and cleaned.label in ("", TOP) and len(cleaned.children) == 1:
        cleaned = cleaned.children[0]
    return cleaned if cleaned is None or cleaned.label else cleaned._replace(label=TOP)


def _clean(tree: Tree) -> Tree | None:
    if tree.word is not None:
        return None if tree.label == _TRACE else tree._replace(label=plain_label(tree.label))
    children = tuple(child for child in map(_clean, tree.children) if child is not None)
    return Tree(plain_label(tree.label), children) if children else None


def plain_label(label: str) -> str:
    """Return a label without function tags and indices: NP for NP-SBJ-1 and NP=2; -LRB- stays unchanged."""
    cut = re.search(r"(?<=[^-=])[-=]", label)
    return label if cut is None or label.startswith("-") else label[: cut.start()]


def draw(tree: Tree) -> str:
    """Return a drawing of a tree, one text of indented lines. A constituent that contains only words takes one line."""
    return "\n".join(_draw(tree, ""))


def _draw(tree: Tree, indent: str) -> Iterable[str]:
    if all(child.word is not None for child in tree.children):
        words = "  ".join(f"{leaf.word}/{leaf.label}" for leaf in tree.leaves())
        yield indent + (words if tree.word is not None else f"{tree.label}  {words}")
        return
    yield f"{indent}{tree.label}"
    for child in tree.children:
        yield from _draw(child, indent + "  ")


# --- linearized trees ---
# Conversion of parse trees to lines of text for sequence-to-sequence models, and back to a valid tree over the
# words.
# `NP(` opens a constituent, `)` closes one, and `NN/` is the tag of a word. All symbols between two words form one
# run that ends with the tag of the second word: `)VP(VBD/`. A line has each word, followed by the run that leads up
# to it:
#  The⟩S(NP(DT/ cat⟩NN/ slept⟩)VP(VBD/ .⟩)./⟩)
# Vinyals et al. 2015 ("Grammar as a Foreign Language") write no words. Then the decoder must count to know which
# word is next, and loses count; with the words in the output it learns many times as fast.


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
    """Return the bracket symbols of a tree without its words, as one text: S(NP(PRP/)VP(VBP/)).

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
    """Return a list of the bracket symbols in a linearized tree, such as `NP(`, `NN/` and `)`, in order.

    Other text is left out.
    """
    return _SYMBOL.findall(text)


def frequent_runs(rows: Iterable[str], max_runs: int) -> frozenset[str]:
    """Return a frozenset of the most frequent runs of bracket symbols in linearized trees, each to become one token.

    A run is all symbols after a word up to the tag of the next word, such as `)VP(VBZ/`. The symbols up to the first
    tag, such as `S(NP(DT/`, and those after the last word, such as `))`, are runs, too. Runs of one symbol are left
    out. Of equally frequent runs, those that come first in alphabetical order are taken.

    Args:
        rows: linearized trees.
        max_runs: the maximum number of runs.
    """
    counts = Counter(run for row in rows for run in _RUN.findall(row) if len(split_symbols(run)) > 1)
    return frozenset(sorted(counts, key=lambda run: (-counts[run], run))[:max_runs])


def marked_tokens(rows: Iterable[str], runs: Iterable[str]) -> tuple[str, ...]:
    """Return a sorted tuple of the tokens of linearized trees that are not words.

    The tokens are all bracket symbols and the runs. Each begins with the mark ⟩, which distinguishes it from words.

    Args:
        rows: linearized trees.
        runs: sequences of symbols that get a token of their own.
    """
    symbols = {symbol for row in rows for symbol in split_symbols(row)}
    return tuple(MARK + token for token in sorted({CLOSE, *symbols, *runs}))


def write_line(words: Sequence[str], row: str, runs: Collection[str]) -> str:
    """Return the line that a parser learns to write for a sentence, such as The⟩S(NP(DT/ cat⟩NN/ slept⟩)VP(VBD/⟩)⟩).

    Each word is followed by the marked symbols that lead up to its tag; the last symbols follow the last word.

    Args:
        words: the words of the sentence.
        row: the symbols of its tree, without words, as `linearize` returns them.
        runs: the sequences of symbols with a token of their own; others are written symbol by symbol.
    """
    line, remaining = "", iter(words)
    for run in _RUN.findall(row):
        word = f" {plain(next(remaining))}" if run.endswith(TAG) else ""
        line += word + "".join(MARK + token for token in ([run] if run in runs else split_symbols(run)))
    return line.strip()


def plain(word: str) -> str:
    """Return a word with 〉 in place of ⟩, the character that marks tree symbols in a parser's lines."""
    return word.replace(MARK, _SUBSTITUTE)


def symbols_in(line: str) -> list[str]:
    """Return a list of the bracket symbols, such as `NP(` and `)`, of a parser's output line, without words."""
    return [symbol for marked in _MARKED.findall(line) for symbol in split_symbols(marked)]


def build_tree(symbols: Iterable[str], words: Sequence[str]) -> Tree:
    """Build a valid tree over the given words from bracket symbols that may be invalid.

    Symbols that form a valid tree over the words give that tree. Otherwise as little as possible is changed. Tags after
    the last word, empty constituents and surplus closing brackets are ignored. Words without a tag are attached to the
    root with the tag XX. Constituents that are still open at the end are closed.

    Args:
        symbols: symbols as `linearize` writes them; others are ignored.
        words: the words of the sentence, at least one.

    Raises:
        TransduceError: there are no words.
    """
    if not words:
        raise TransduceError("A tree needs words, but the sentence has none: leave it out.")
    builder = _BracketTreeBuilder(words)
    for symbol in symbols:
        builder.take(symbol)
    return builder.finish()


class _BracketTreeBuilder:
    """A builder of a valid tree over given words from bracket symbols, with the constituents that are open so far."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._used = 0
        self._open: list[tuple[str, list[Tree]]] = []
        self._root: Tree | None = None

    def take(self, symbol: str) -> None:
        """Process the next bracket symbol, such as `NP(`; a symbol that is invalid at this point is ignored."""
        has_words_left = self._used < len(self._words)
        if has_words_left and symbol.endswith(OPENING) and len(self._open) < MAX_DEPTH - 1:
            self._open.append((_label(symbol), []))
        elif has_words_left and symbol.endswith(TAG):
            self._add_word(_label(symbol))
        elif symbol == CLOSE and len(self._open) > has_words_left:  # the root stays open until all words are used
            self._close()

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
        """Close all open constituents, attach the remaining words to the root with the tag XX, and return the tree."""
        while len(self._open) > 1:
            self._close()
        while self._used < len(self._words):
            self._add_word(UNKNOWN_TAG)
        if self._open:
            self._close()
        assert self._root is not None
        return self._root
