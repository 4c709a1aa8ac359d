"""A tree as a sequence of symbols, for sequence to sequence, and back: whatever the symbols are, a tree over the words.

`(NP` opens a constituent, `)` closes one, `/NN` stands for the next word by its tag. The words themselves are not
said, so none can be lost or changed (Vinyals et al. 2015, "Grammar as a Foreign Language").

Which word is the next, nothing in such a row tells but counting. So words may be numbered: a character stands behind
each word of the sentence, and the same one in the row before what opens at that word.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from transduce.errors import TransduceError
from transduce.text.trees import MOST_DEPTH, UNKNOWN_TAG, Tree

CLOSE = ")"
OPENING, TAG = "(", "/"
# The label of a constituent that had to be made up: nearly all of a treebank's roots.
_MADE_UP = "S"
# Numbers begin again after so many; characters that no script uses stand for them.
NUMBERS, _FIRST_NUMBER = 64, 0xE000
_ANY_NUMBER = f"[{chr(_FIRST_NUMBER)}-{chr(_FIRST_NUMBER + NUMBERS - 1)}]"
# Symbols are set apart by how they begin, and the vocabulary is given as a list with commas.
_NAME = rf"[^\s()/▁{_ANY_NUMBER[1:-1]}]+"
_SYMBOL = re.compile(rf"[(/]{_NAME}|\)|{_ANY_NUMBER}")
_RUN = re.compile(rf"(?:\({_NAME}){{2,}}|/{_NAME}\)+")
_FIRST_OF_WORD = re.compile(rf"(?:\({_NAME})*/{_NAME}")
_COMMA, _COMMA_NAME = ",", "-COMMA-"


def linearize(tree: Tree, *, tags: bool = True) -> str:
    """The symbols of a tree in a row: (S(NP/PRP)(VP/VBP)).

    Args:
        tree: cleaned.
        tags: say each word's tag; otherwise `/XX` stands for every word.

    Raises:
        TransduceError: a label has a character that symbols cannot have.
    """
    if tree.word is not None:
        return TAG + (_named(tree.label) if tags else UNKNOWN_TAG)
    return OPENING + _named(tree.label) + "".join(linearize(child, tags=tags) for child in tree.children) + CLOSE


def _named(label: str) -> str:
    name = label.replace(_COMMA, _COMMA_NAME)
    if not _SYMBOL.fullmatch(OPENING + name):
        raise TransduceError(f'A label must have no space, bracket or / in it, but one is "{label}": rename it.')
    return name


def _label(name: str) -> str:
    return name.replace(_COMMA_NAME, _COMMA)


def number_of(place: int) -> str:
    """The character that stands for the word of this place in its sentence."""
    return chr(_FIRST_NUMBER + place % NUMBERS)


def is_number(symbol: str) -> bool:
    """Whether a symbol is such a character."""
    return re.fullmatch(_ANY_NUMBER, symbol) is not None


def number_words(words: Iterable[str]) -> str:
    """The words with spaces between them, and its number behind each."""
    return " ".join(word + number_of(place) for place, word in enumerate(words))


def plain_words(text: str) -> list[str]:
    """The words again."""
    return re.sub(_ANY_NUMBER, "", text).split()


def number_symbols(text: str) -> str:
    """A linearised tree with the number of each word before it, and before the brackets that open there."""
    places = itertools.count()
    return _FIRST_OF_WORD.sub(lambda found: number_of(next(places)) + found[0], text)


def split_symbols(text: str) -> list[str]:
    """The symbols in a text, in order; what is none is passed over."""
    return _SYMBOL.findall(text)


def symbols_of(texts: Iterable[str]) -> tuple[str, ...]:
    """All symbols that occur in linearised trees, sorted."""
    return tuple(sorted({symbol for text in texts for symbol in split_symbols(text)} | {CLOSE}))


def frequent_runs(texts: Iterable[str], most: int) -> tuple[str, ...]:
    """Runs of symbols that are worth a piece of their own, so that sequences get shorter: `(S(NP`, `/NN))`.

    A run opens several constituents, or is a word with the brackets that close after it. Those that save most symbols
    are chosen.

    Args:
        texts: linearised trees.
        most: how many runs.
    """
    counts: Counter[str] = Counter()
    for run in (run for text in texts for run in _RUN.findall(text)):
        symbols = split_symbols(run)
        counts.update("".join(symbols[:length]) for length in range(2, len(symbols) + 1))
    ranked = sorted(counts, key=lambda run: (-counts[run] * (len(split_symbols(run)) - 1), run))
    return tuple(ranked[:most])


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
        if self._used < len(self._words) and symbol.startswith(OPENING) and len(self._open) < MOST_DEPTH - 1:
            self._open.append((_label(symbol[1:]), []))
        elif self._used < len(self._words) and symbol.startswith(TAG):
            self._add_word(_label(symbol[1:]))
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
