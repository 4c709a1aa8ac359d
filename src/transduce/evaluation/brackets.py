"""Labelled brackets of constituency trees, counted as EVALB counts them.

A bracket is a constituent's label with the stretch of words that it covers; tags are none. Punctuation is taken out of
the sentence first. Over a corpus brackets are added up before anything is divided (micro average).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from transduce.errors import TransduceError
from transduce.text.counted import counted
from transduce.text.trees import Tree, clean, plain_label

Bracket = tuple[str, int, int]


class BracketSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What counts, as in EVALB's usual parameter file."""

    deleted_labels: tuple[str, ...] = ("TOP", "ROOT", "S1", "-NONE-", ",", ":", "``", "''", ".", "?", "!")
    """Constituents with these labels are not counted, and words with these tags are taken out of the sentence."""
    equal_labels: tuple[tuple[str, str], ...] = (("ADVP", "PRT"),)
    """Pairs of labels that count as one."""
    short_length: int = 40
    """Sentences of at most so many words, punctuation included, are also counted by themselves."""


class BracketCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over sentences; scores are in percent, and 0 where there is nothing to divide by."""

    sentences: int = 0
    matched: int = 0
    """Brackets that are in both trees."""
    reference: int = 0
    """Brackets of the reference trees."""
    predicted: int = 0
    """Brackets of the predicted trees."""
    exact: int = 0
    """Sentences in which all brackets match and none is too many."""
    words: int = 0
    """Words that are not taken out."""
    tagged: int = 0
    """Of these, words with the reference's tag."""
    invalid: int = 0
    """Sentences without a tree, or with one over other words: they match nothing."""

    @property
    def precision(self) -> float:
        """Share of the predicted brackets that are right."""
        return _percent(self.matched, self.predicted)

    @property
    def recall(self) -> float:
        """Share of the reference's brackets that were found."""
        return _percent(self.matched, self.reference)

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        return _percent(2 * self.matched, self.predicted + self.reference)

    @property
    def exact_match(self) -> float:
        """Share of the sentences with all brackets right."""
        return _percent(self.exact, self.sentences)

    @property
    def tagging_accuracy(self) -> float:
        """Share of the words with the right tag."""
        return _percent(self.tagged, self.words)

    def __add__(self, other: "BracketCounts") -> "BracketCounts":
        return BracketCounts(
            **{name: getattr(self, name) + getattr(other, name) for name in BracketCounts.__struct_fields__}
        )


class BracketReport(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of a corpus."""

    all: BracketCounts
    """Sentences of all lengths."""
    short: BracketCounts
    """Those of at most `short_length` words."""
    short_length: int

    def __str__(self) -> str:
        """A line for each."""
        titles = ("all lengths", f"at most {self.short_length} words")
        return "\n".join(_line(title, counts) for title, counts in zip(titles, (self.all, self.short), strict=True))


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0


def _line(title: str, counts: BracketCounts) -> str:
    return (
        f"{title:>17}: F1 {counts.f1:.2f} (precision {counts.precision:.2f}, recall {counts.recall:.2f}), "
        f"exact {counts.exact_match:.2f}, tags {counts.tagging_accuracy:.2f}, "
        f"{counted(counts.sentences, 'sentence')}, {counts.invalid:,} invalid"
    )


def score_trees(
    predicted: Sequence[Tree | None], references: Sequence[Tree], settings: BracketSettings | None = None
) -> BracketReport:
    """Precision, recall and F1 of labelled brackets.

    Function tags and traces are removed from both. No sentence is skipped: where there is no tree, or one over other
    words than the reference's, the reference's brackets are all missed and the predicted ones are all wrong. Which
    words are punctuation the reference's tags say.

    Args:
        predicted: a tree for each sentence, or None.
        references: the treebank's trees.
        settings: what counts; EVALB's usual parameters where nothing is said.

    Raises:
        TransduceError: there are not as many trees on both sides.
    """
    settings = settings or BracketSettings()
    if len(predicted) != len(references):
        raise TransduceError(
            f"Every reference tree needs a predicted one, but there are {len(references):,} and {len(predicted):,}: "
            "give one for each sentence."
        )
    total = short = BracketCounts()
    for tree, reference in zip(predicted, references, strict=True):
        counts, length = score_tree(tree, reference, settings)
        total += counts
        short += counts if length <= settings.short_length else BracketCounts()
    return BracketReport(all=total, short=short, short_length=settings.short_length)


def score_tree(predicted: Tree | None, reference: Tree, settings: BracketSettings) -> tuple[BracketCounts, int]:
    """One sentence's counts, and its length in words."""
    tree = None if predicted is None else clean(predicted)
    gold = clean(reference)
    if gold is None:
        return BracketCounts(sentences=1, invalid=int(tree is not None)), 0
    leaves = list(gold.leaves())
    kept = [leaf.label not in settings.deleted_labels for leaf in leaves]
    wanted = brackets(gold, kept, settings)
    counts = BracketCounts(sentences=1, reference=wanted.total(), words=sum(kept))
    if tree is None or tree.words() != gold.words():
        wrong = 0 if tree is None else brackets(tree, _kept(tree, settings), settings).total()
        return counts + BracketCounts(predicted=wrong, invalid=1), len(leaves)
    found = brackets(tree, kept, settings)
    tags = zip(leaves, tree.leaves(), kept, strict=True)
    return counts + BracketCounts(
        matched=(found & wanted).total(),
        predicted=found.total(),
        exact=int(found == wanted),
        tagged=sum(mine.label == theirs.label for mine, theirs, counted in tags if counted),
    ), len(leaves)


def _kept(tree: Tree, settings: BracketSettings) -> list[bool]:
    return [leaf.label not in settings.deleted_labels for leaf in tree.leaves()]


def brackets(tree: Tree, kept: Iterable[bool], settings: BracketSettings) -> "Counter[Bracket]":
    """All brackets of a tree: label, first word and the one after the last, as the kept words are numbered.

    A label that occurs twice over the same words counts twice; what covers no kept word does not count.
    """
    names = {other: label for label, other in settings.equal_labels}
    found: Counter[Bracket] = Counter()
    _collect(tree, 0, iter(kept), found)
    counted: Counter[Bracket] = Counter()
    for (label, start, stop), times in found.items():
        label = plain_label(label)
        if stop > start and label not in settings.deleted_labels:
            counted[names.get(label, label), start, stop] += times
    return counted


def _collect(tree: Tree, start: int, kept: Iterator[bool], found: "Counter[Bracket]") -> int:
    """Enters the brackets of a tree that begins at a word; returns where it ends."""
    if tree.word is not None:
        return start + next(kept)
    stop = start
    for child in tree.children:
        stop = _collect(child, stop, kept, found)
    found[tree.label, start, stop] += 1
    return stop
