"""Constituency trees: reading treebanks in Penn Treebank brackets, cleaning, writing and drawing trees."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from transduce.errors import TransduceError
from transduce.text.files import read_lines

# No sentence is nested this deeply, and recursion over trees is safe up to this depth.
MOST_DEPTH = 200
# Labels of untagged words, and of a bracket around several trees.
UNKNOWN_TAG = "XX"
TOP = "TOP"
_TRACE = "-NONE-"
_TOKEN = re.compile(r"[()]|[^\s()]+")
# Treebanks escape these words, as brackets are structure.
_ESCAPES = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
_BACKSLASH = re.compile(r"\\([/*])")  # in the Penn Treebank's own files
_ESCAPED = {escape: word for word, escape in _ESCAPES.items()}


class Tree(NamedTuple):
    """A constituent with its children, or a tag with its unescaped word."""

    label: str
    children: "tuple[Tree, ...]" = ()
    word: str | None = None

    def leaves(self) -> "Iterator[Tree]":
        """Yield the tagged words from left to right."""
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.leaves()

    def words(self) -> list[str]:
        """Return the words of the sentence."""
        return [leaf.word for leaf in self.leaves() if leaf.word is not None]

    def __str__(self) -> str:
        """Return the tree in brackets, on one line."""
        if self.word is not None:
            return f"({self.label} {escape_word(self.word)})"
        return f"({self.label} {' '.join(map(str, self.children))})"


def escape_word(word: str) -> str:
    """Escape a word for use in brackets: ( becomes -LRB-."""
    return _ESCAPES.get(word) or word.replace("(", "-LRB-").replace(")", "-RRB-")


def unescape_word(word: str) -> str:
    """Return the original word for an escaped one of a treebank."""
    return _ESCAPED.get(word) or _BACKSLASH.sub(r"\1", word)


def read_trees(path: str | Path) -> Iterator[Tree]:
    """Yield the trees of a treebank as they are, plain or gzip; a tree may span several lines.

    Raises:
        TransduceError: something is not a tree; the message names the file and the line.
    """
    reader = _Reader()
    number, started_at = 0, 1
    for number, line in enumerate(read_lines(path), 1):
        for token in _TOKEN.findall(line):
            started_at = started_at if reader.is_inside else number
            tree = _take(reader, token, f"{path}:{number}")
            if tree is not None:
                yield tree
    if reader.is_inside:
        raise TransduceError(f"{path}:{started_at}: this tree is never closed: balance its brackets.")


def read_tree(text: str) -> Tree:
    """Parse a single tree in brackets.

    Raises:
        TransduceError: the text is not a tree, or more than one.
    """
    reader, trees = _Reader(), []
    for token in _TOKEN.findall(text):
        tree = _take(reader, token, f'"{text}"')
        trees += [tree] if tree is not None else []
    if reader.is_inside or len(trees) != 1:
        raise TransduceError(f'"{text}" must be one tree, such as (NP (DT the) (NN cat)): balance its brackets.')
    return trees[0]


def _take(reader: "_Reader", token: str, where: str) -> Tree | None:
    try:
        return reader.take(token)
    except ValueError as error:
        raise TransduceError(f"{where}: {error}, fix the tree.") from None


class _Open(NamedTuple):
    """An open bracket: its label and words, and its children so far."""

    tokens: list[str]
    children: list[Tree]


class _Reader:
    """A parser that builds trees from brackets and tokens."""

    def __init__(self) -> None:
        self._stack: list[_Open] = []

    @property
    def is_inside(self) -> bool:
        """True if a tree is open."""
        return bool(self._stack)

    def take(self, token: str) -> Tree | None:
        """Process the next token, and return the tree that it completes, or None.

        Raises:
            ValueError: the token is invalid at this point.
        """
        if token == "(":
            if len(self._stack) == MOST_DEPTH:
                raise ValueError(f"brackets must be nested at most {MOST_DEPTH} deep, but these are deeper")
            self._stack.append(_Open([], []))
        elif not self._stack:
            raise ValueError(f'a tree begins with an opening bracket, but here is "{token}"')
        elif token == ")":
            return self._close()
        else:
            self._add_token(token)
        return None

    def _add_token(self, token: str) -> None:
        bracket = self._stack[-1]
        if bracket.children:
            raise ValueError(f'a bracket holds a tag and a word, or a label and brackets, but here follows "{token}"')
        bracket.tokens.append(token)

    def _close(self) -> Tree | None:
        bracket = self._stack.pop()
        label, *words = bracket.tokens or [""]
        if bool(words) == bool(bracket.children):
            raise ValueError("a bracket holds a tag and a word, or a label and brackets, but one holds neither or both")
        # A tag with several words applies to each of them.
        trees = [Tree(label, (), unescape_word(word)) for word in words] or [Tree(label, tuple(bracket.children))]
        if self._stack:
            self._stack[-1].children.extend(trees)
            return None
        return trees[0] if len(trees) == 1 else Tree("", tuple(trees))


def clean(tree: Tree) -> Tree | None:
    """Return the tree for training and scoring of parsers: without traces, function tags and the outer bracket.

    NP-SBJ-1 becomes NP; constituents that contain only traces are removed. None if nothing is left.
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
    """Draw the tree as indented lines, one per constituent; constituents that contain only words take one line."""
    return "\n".join(_draw(tree, ""))


def _draw(tree: Tree, indent: str) -> Iterable[str]:
    if tree.word is not None or all(child.word is not None for child in tree.children):
        yield f"{indent}{_flat(tree)}"
        return
    yield f"{indent}{tree.label}"
    for child in tree.children:
        yield from _draw(child, indent + "  ")


def _flat(tree: Tree) -> str:
    words = "  ".join(f"{leaf.word}/{leaf.label}" for leaf in tree.leaves())
    return words if tree.word is not None else f"{tree.label}  {words}"
