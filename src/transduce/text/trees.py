"""Constituency trees: read from treebanks in Penn Treebank brackets, cleaned, written on one line or drawn."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from transduce.errors import TransduceError
from transduce.text.files import read_lines

# No sentence is nested so deeply; what reads trees by recursion is safe up to here.
MOST_DEPTH = 200
# The label of what has none: words that nothing tagged, and several trees in one bracket.
UNKNOWN_TAG = "XX"
TOP = "TOP"
_TRACE = "-NONE-"
_TOKEN = re.compile(r"[()]|[^\s()]+")
# Treebanks write these words so, as brackets are structure.
_ESCAPES = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
_BACKSLASH = re.compile(r"\\([/*])")  # of the Penn Treebank's own files
_ESCAPED = {escape: word for word, escape in _ESCAPES.items()}


class Tree(NamedTuple):
    """A constituent with its children, or a tag with its word, as it is said and not as treebanks escape it."""

    label: str
    children: "tuple[Tree, ...]" = ()
    word: str | None = None

    def leaves(self) -> "Iterator[Tree]":
        """The tagged words, from left to right."""
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.leaves()

    def words(self) -> list[str]:
        """The sentence."""
        return [leaf.word for leaf in self.leaves() if leaf.word is not None]

    def __str__(self) -> str:
        """The tree in brackets, on one line."""
        if self.word is not None:
            return f"({self.label} {escape_word(self.word)})"
        return f"({self.label} {' '.join(map(str, self.children))})"


def escape_word(word: str) -> str:
    """A word as brackets can hold it: ( is written -LRB-."""
    return _ESCAPES.get(word) or word.replace("(", "-LRB-").replace(")", "-RRB-")


def unescape_word(word: str) -> str:
    """A treebank's word as it was said."""
    return _ESCAPED.get(word) or _BACKSLASH.sub(r"\1", word)


def read_trees(path: str | Path) -> Iterator[Tree]:
    """Streams the trees of a treebank, plain or gzip: one a line, or each over several lines; as they stand there.

    Raises:
        TransduceError: something is no tree; the message names the file and the line.
    """
    reader = _Reader()
    number, begun_at = 0, 1
    for number, line in enumerate(read_lines(path), 1):
        for token in _TOKEN.findall(line):
            begun_at = begun_at if reader.is_inside else number
            tree = _take(reader, token, f"{path}:{number}")
            if tree is not None:
                yield tree
    if reader.is_inside:
        raise TransduceError(f"{path}:{begun_at}: this tree is never closed: its brackets must balance, mend it.")


def read_tree(text: str) -> Tree:
    """One tree from its brackets.

    Raises:
        TransduceError: the text is no tree, or more than one.
    """
    reader, found = _Reader(), []
    for token in _TOKEN.findall(text):
        tree = _take(reader, token, f'"{text}"')
        found += [tree] if tree is not None else []
    if reader.is_inside or len(found) != 1:
        raise TransduceError(f'"{text}" must be one tree, such as (NP (DT the) (NN cat)): balance its brackets.')
    return found[0]


def _take(reader: "_Reader", token: str, where: str) -> Tree | None:
    try:
        return reader.take(token)
    except ValueError as error:
        raise TransduceError(f"{where}: {error}, mend the tree.") from None


class _Open(NamedTuple):
    """A bracket that is not closed yet: its label and its words, and its children so far."""

    said: list[str]
    children: list[Tree]


class _Reader:
    """Builds trees from brackets and what stands between them."""

    def __init__(self) -> None:
        self._stack: list[_Open] = []

    @property
    def is_inside(self) -> bool:
        """Whether a tree is begun and not closed."""
        return bool(self._stack)

    def take(self, token: str) -> Tree | None:
        """The next token; the tree that it closes. Raises ValueError with a reason."""
        if token == "(":
            if len(self._stack) == MOST_DEPTH:
                raise ValueError(f"brackets must be nested at most {MOST_DEPTH} deep, but these are deeper")
            self._stack.append(_Open([], []))
        elif not self._stack:
            raise ValueError(f'a tree begins with an opening bracket, but here is "{token}"')
        elif token == ")":
            return self._close()
        else:
            self._say(token)
        return None

    def _say(self, token: str) -> None:
        bracket = self._stack[-1]
        if bracket.children:
            raise ValueError(f'a bracket holds a tag and a word, or a label and brackets, but here follows "{token}"')
        bracket.said.append(token)

    def _close(self) -> Tree | None:
        bracket = self._stack.pop()
        label, *words = bracket.said or [""]
        if bool(words) == bool(bracket.children):
            raise ValueError("a bracket holds a tag and a word, or a label and brackets, but one holds neither or both")
        # A tag with several words is each one's.
        trees = [Tree(label, (), unescape_word(word)) for word in words] or [Tree(label, tuple(bracket.children))]
        if self._stack:
            self._stack[-1].children.extend(trees)
            return None
        return trees[0] if len(trees) == 1 else Tree("", tuple(trees))


def clean(tree: Tree) -> Tree | None:
    """The tree that parsers are trained on and scored by: without traces, function tags and the bracket around it.

    NP-SBJ-1 becomes NP; what holds nothing but traces goes with them. None where nothing is left.
    """
    kept = _clean(tree)
    while kept is not None and kept.label in ("", TOP) and len(kept.children) == 1:
        kept = kept.children[0]
    return kept if kept is None or kept.label else kept._replace(label=TOP)


def _clean(tree: Tree) -> Tree | None:
    if tree.word is not None:
        return None if tree.label == _TRACE else tree._replace(label=plain_label(tree.label))
    children = tuple(child for child in map(_clean, tree.children) if child is not None)
    return Tree(plain_label(tree.label), children) if children else None


def plain_label(label: str) -> str:
    """A label without function tags and indices: NP for NP-SBJ-1 and NP=2. -LRB- stays as it is."""
    cut = re.search(r"(?<=[^-=])[-=]", label)
    return label if cut is None or label.startswith("-") else label[: cut.start()]


def draw(tree: Tree) -> str:
    """The tree on lines, a constituent below the one that it belongs to; what holds words alone is one line."""
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
