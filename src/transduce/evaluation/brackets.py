"""Score predicted constituency trees by their labeled brackets, counted as EVALB does.

A bracket is a constituent's label with the range of words that it covers; tags are not brackets. Punctuation is
removed from the sentence first. Brackets are summed over the corpus before division (micro average).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from transduce.errors import TransduceError
from transduce.text.files import count_noun
from transduce.text.trees import Tree, clean, plain_label

Bracket = tuple[str, int, int]


class BracketSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of which words and brackets count in the scores of trees, with EVALB's usual parameters as defaults."""

    deleted_labels: tuple[str, ...] = ("TOP", "ROOT", "S1", "-NONE-", ",", ":", "``", "''", ".", "?", "!")
    """Constituents with these labels are not counted, and words with these tags are removed from the sentence."""
    equal_labels: tuple[tuple[str, str], ...] = (("ADVP", "PRT"),)
    """Pairs of labels that count as equal when brackets are compared."""
    short_length: int = 40
    """Sentences of at most this many words, including punctuation, are also scored separately."""


class BracketCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of brackets, words and sentences over predicted trees, and the scores that follow from these counts.

    Scores are in percent, and 0 if there is nothing to divide by. The sum of two counts adds all numbers.
    """

    sentences: int = 0
    """The number of sentences, each with a reference tree."""
    matched: int = 0
    """The number of brackets that occur in both trees of a sentence."""
    reference: int = 0
    """The number of brackets of the reference trees."""
    predicted: int = 0
    """The number of brackets of the predicted trees."""
    exact: int = 0
    """The number of sentences in which all brackets match and none is superfluous."""
    words: int = 0
    """The number of words that are not removed as punctuation."""
    tagged: int = 0
    """The number of words that are not removed and have the reference's part-of-speech tag."""
    invalid: int = 0
    """The number of sentences without a predicted tree, or with one over other words; nothing matches in them."""

    @property
    def precision(self) -> float:
        """The share of the predicted brackets that are right, in percent; 0 without predicted brackets."""
        return _percent(self.matched, self.predicted)

    @property
    def recall(self) -> float:
        """The share of the reference's brackets that were predicted, in percent; 0 if the reference has none."""
        return _percent(self.matched, self.reference)

    @property
    def f1(self) -> float:
        """The harmonic mean of bracket precision and recall, in percent; 0 if nothing matches."""
        return _percent(2 * self.matched, self.predicted + self.reference)

    @property
    def exact_match(self) -> float:
        """The share of the sentences whose predicted brackets are exactly the reference's, in percent."""
        return _percent(self.exact, self.sentences)

    @property
    def tagging_accuracy(self) -> float:
        """The share of the words, without punctuation, that have the reference's part-of-speech tag, in percent."""
        return _percent(self.tagged, self.words)

    def __add__(self, other: "BracketCounts") -> "BracketCounts":
        return BracketCounts(
            **{name: getattr(self, name) + getattr(other, name) for name in BracketCounts.__struct_fields__}
        )


class BracketReport(msgspec.Struct, frozen=True, kw_only=True):
    """The bracket scores of a corpus of predicted trees, for sentences of all lengths and for short ones."""

    all: BracketCounts
    """Counts of brackets, words and sentences over sentences of all lengths."""
    short: BracketCounts
    """Counts of brackets, words and sentences over the sentences of at most `short_length` words."""
    short_length: int
    """Maximum number of words of a short sentence, with punctuation."""

    def __str__(self) -> str:
        """Return a line of scores for sentences of all lengths, and one for the short sentences."""
        titles = ("all lengths", f"at most {self.short_length} words")
        return "\n".join(_line(title, counts) for title, counts in zip(titles, (self.all, self.short), strict=True))


def _percent(part: int, total: int) -> float:
    return 100.0 * part / total if total else 0.0


def _line(title: str, counts: BracketCounts) -> str:
    return (
        f"{title:>17}: F1 {counts.f1:.2f} % (precision {counts.precision:.2f} %, recall {counts.recall:.2f} %), "
        f"exact {counts.exact_match:.2f} %, tags {counts.tagging_accuracy:.2f} %, "
        f"{count_noun(counts.sentences, 'sentence')}, {counts.invalid:,} invalid"
    )


def score_trees(
    predicted: Sequence[Tree | None], references: Sequence[Tree], settings: BracketSettings | None = None
) -> BracketReport:
    """Compute precision, recall and F1 of the labeled brackets of predicted trees.

    Function tags and traces are removed from both sides. No sentence is skipped: if a tree is missing or covers other
    words than the reference, all brackets of the reference are missed and all predicted ones are wrong. The reference's
    tags define which words are punctuation.

    Args:
        predicted: the predicted tree of each sentence; None if there is none.
        references: the treebank's tree of each sentence.
        settings: which words and brackets count; None: EVALB's usual parameters.

    Raises:
        TransduceError: the numbers of trees differ.
    """
    settings = settings or BracketSettings()
    if len(predicted) != len(references):
        raise TransduceError(
            f"Every reference tree needs a predicted one, but there are {len(references):,} and {len(predicted):,}: "
            "provide one for each sentence."
        )
    total = short = BracketCounts()
    for tree, reference in zip(predicted, references, strict=True):
        counts, length = score_tree(tree, reference, settings)
        total += counts
        short += counts if length <= settings.short_length else BracketCounts()
    return BracketReport(all=total, short=short, short_length=settings.short_length)


def score_tree(predicted: Tree | None, reference: Tree, settings: BracketSettings) -> tuple[BracketCounts, int]:
    """Compare the predicted tree of a sentence with the reference's.

    Args:
        predicted: the predicted tree; None, or a tree over other words, has no right bracket.
        reference: the treebank's tree.
        settings: which words and brackets count.

    Returns:
        The sentence's counts, and its length in words with punctuation. If the reference has no words but traces, only
        the sentence is counted, and its length is 0.
    """
    tree = None if predicted is None else clean(predicted)
    gold = clean(reference)
    if gold is None:
        return BracketCounts(sentences=1, invalid=int(tree is not None)), 0
    leaves = list(gold.leaves())
    kept = [leaf.label not in settings.deleted_labels for leaf in leaves]
    expected = brackets(gold, kept, settings)
    counts = BracketCounts(sentences=1, reference=expected.total(), words=sum(kept))
    if tree is None or tree.words() != gold.words():
        wrong = 0 if tree is None else brackets(tree, _kept(tree, settings), settings).total()
        return counts + BracketCounts(predicted=wrong, invalid=1), len(leaves)
    collected = brackets(tree, kept, settings)
    tags = zip(leaves, tree.leaves(), kept, strict=True)
    return counts + BracketCounts(
        matched=(collected & expected).total(),
        predicted=collected.total(),
        exact=int(collected == expected),
        tagged=sum(gold_leaf.label == leaf.label for gold_leaf, leaf, counted in tags if counted),
    ), len(leaves)


def _kept(tree: Tree, settings: BracketSettings) -> list[bool]:
    return [leaf.label not in settings.deleted_labels for leaf in tree.leaves()]


def brackets(tree: Tree, kept: Iterable[bool], settings: BracketSettings) -> "Counter[Bracket]":
    """Return how often each bracket (label, index of its first word, index after its last) occurs in a tree.

    Words are numbered without punctuation, and constituents of punctuation only do not count.

    Args:
        tree: the tree.
        kept: for each word, whether it is kept as it is no punctuation.
        settings: the labels that do not count, and those that count as equal.
    """
    names = {other: label for label, other in settings.equal_labels}
    collected: Counter[Bracket] = Counter()
    _collect(tree, 0, iter(kept), collected)
    counted: Counter[Bracket] = Counter()
    for (label, start, stop), times in collected.items():
        label = plain_label(label)
        if stop > start and label not in settings.deleted_labels:
            counted[names.get(label, label), start, stop] += times
    return counted


def _collect(tree: Tree, start: int, kept: Iterator[bool], collected: "Counter[Bracket]") -> int:
    """Add all brackets of a tree, with any label, to `collected`, and return the index after its last word.

    Args:
        tree: the tree; a leaf has no bracket.
        start: index of the tree's first word.
        kept: yields for each further word whether it is numbered.
        collected: how often each bracket occurs; changed in place.
    """
    if tree.word is not None:
        return start + next(kept)
    stop = start
    for child in tree.children:
        stop = _collect(child, stop, kept, collected)
    collected[tree.label, start, stop] += 1
    return stop
