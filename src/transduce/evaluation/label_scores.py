"""Score predicted labels against right ones: classes of texts, tags of words, and brackets of constituency trees.

Brackets are counted as EVALB does. A bracket is a constituent's label with the range of words that it covers; tags are
not brackets. Punctuation is removed from the sentence first. Brackets are summed over the corpus before division (micro
average).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from transduce.errors import TransduceError, count_noun
from transduce.text.tagged import describe_spans, spans_of
from transduce.text.trees import Tree, clean, plain_label
from transduce.ui_language import column, columns_of, localized, padded, shortened


def f1_of_counts(common: int, predicted: int, right: int) -> float:
    """Return the F1 score, 0 to 1, from numbers of predicted and right items, of which `common` are both."""
    return 2.0 * common / (predicted + right) if common else 0.0


# --- accuracy of labels ---


# A confusion table of more labels, or a wider one, could not be read.
_MAX_CONFUSED, _MAX_COLUMNS, _LABEL_COLUMNS = 20, 100, 40


class LabelScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of one label of a text classifier, in percent."""

    label: str
    texts: int
    """The number of texts whose right label is this one."""
    precision: float
    """The share, in percent, of the texts with this predicted label whose label is right; 0 if never predicted."""
    recall: float
    """The share, in percent, of the texts of this label that were predicted so; 0 if no text has it."""
    f1: float
    """The harmonic mean of the label's precision and recall, in percent."""


class AccuracyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of the labels that a text classifier predicted, in percent."""

    texts: int
    """The number of texts that were classified."""
    right: int
    """The number of texts whose predicted label is right."""
    accuracy: float
    """The share of the texts whose predicted label is right, in percent."""
    macro_f1: float
    """The mean over labels of each label's F1, in percent, so that rare labels count as much as frequent ones."""
    labels: tuple[LabelScores, ...] = ()
    """A tuple of the `LabelScores` of each label, in alphabetical order."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """A tuple of rows, one for each right label, with the number of texts for each predicted label, in the order of
    `labels`.
    """

    def __str__(self) -> str:
        accuracy = f"accuracy {self.accuracy:.2f} % ({self.right:,} of {count_noun(self.texts, 'text')})"
        return f"{accuracy}, macro F1 {self.macro_f1:.2f} %"

    def table(self) -> str:
        """Return a text table with a line of scores for each label, and a confusion table below.

        In the confusion table, numbers head the columns if the labels are too long. The confusion table is left out for
        more than 20 labels, and if it is too wide even with numbers.
        """
        labels = [shortened(each.label, _LABEL_COLUMNS) for each in self.labels]
        numbers = [""] * len(labels)
        counts = [f"{max(each):,}" for each in zip(*self.confusion, strict=True)]
        columns = [max(columns_of(label), len(count)) for label, count in zip(labels, counts, strict=True)]
        width = max(columns_of(localized("label")), *map(columns_of, labels))
        if is_wide := width + sum(columns) + 2 * len(labels) > _MAX_COLUMNS:
            numbers = [f"{number}" for number in range(1, 1 + len(labels))]
            columns = [max(len(number), len(count)) for number, count in zip(numbers, counts, strict=True)]
            labels = [f"{number:>{len(numbers[-1])}} {label}" for number, label in zip(numbers, labels, strict=True)]
            width = max(columns_of(localized("label")), *map(columns_of, labels))
        names = localized("texts precision recall").split()
        heads = tuple(column(name, width, right=True) for name, width in zip(names, (7, 9, 7), strict=True))
        lines = [f"{column('label', width)}  {' '.join(heads)} {'F1':>7}"]
        lines += [
            f"{padded(label, width)}  {each.texts:>7,} {each.precision:>9.2f} {each.recall:>7.2f} {each.f1:>7.2f}"
            for label, each in zip(labels, self.labels, strict=True)
        ]
        if len(labels) <= _MAX_CONFUSED and width + sum(columns) + 2 * len(labels) <= _MAX_COLUMNS:
            names = numbers if is_wide else labels
            heading = "  ".join(padded(name, size, right=True) for name, size in zip(names, columns, strict=True))
            lines += ["", localized("right label (rows) and predicted label (columns)"), f"{'':{width}}  {heading}"]
            lines += [
                f"{padded(name, width)}  "
                + "  ".join(f"{count:>{size},}" for count, size in zip(row, columns, strict=True))
                for name, row in zip(labels, self.confusion, strict=True)
            ]
        return "\n".join(lines)


def score_labels(predicted: Sequence[str], right: Sequence[str]) -> AccuracyReport:
    """Compute accuracy and macro F1 of predicted labels, with the scores and the confusions of each label.

    The result is an `AccuracyReport`.

    Args:
        predicted: a label for each text.
        right: the right labels.

    Raises:
        TransduceError: the numbers of labels differ, or there are none.
    """
    if len(predicted) != len(right) or not right:
        raise TransduceError(
            f"Every text needs a predicted and a right label, but there are {len(predicted):,} and {len(right):,}: "
            "provide one of each."
        )
    pairs = Counter(zip(right, predicted, strict=True))
    predicted_counts, right_counts = Counter(predicted), Counter(right)
    names = sorted(predicted_counts | right_counts)
    hits = {name: pairs[name, name] for name in names}
    labels = tuple(
        LabelScores(
            label=name,
            texts=right_counts[name],
            precision=100.0 * hits[name] / max(1, predicted_counts[name]),
            recall=100.0 * hits[name] / max(1, right_counts[name]),
            f1=100.0 * 2 * hits[name] / (predicted_counts[name] + right_counts[name]),
        )
        for name in names
    )
    return AccuracyReport(
        texts=len(right),
        right=sum(hits.values()),
        accuracy=100.0 * sum(hits.values()) / len(right),
        macro_f1=sum(each.f1 for each in labels) / len(labels),
        labels=labels,
        confusion=tuple(tuple(pairs[row, column] for column in names) for row in names),
    )


# --- tags of words ---


class TaggingReport(msgspec.Struct, frozen=True, kw_only=True):
    """Scores, in percent, of tags that were predicted for words, and of the spans that the tags mark.

    A span is what tags such as B-PER and I-PER mark: some consecutive words of one kind. If the right tags mark no
    spans, as parts of speech, the scores of spans are None.
    """

    sentences: int
    """The number of sentences that were tagged."""
    words: int
    """The number of words of all sentences."""
    right: int
    """The number of words with the right tag."""
    accuracy: float
    """The share of the words with the right tag, in percent."""
    precision: float | None = None
    """The share, in percent, of the predicted spans with the right kind, first and last word; None without spans."""
    recall: float | None = None
    """The share of the right spans that were predicted, in percent; None without spans."""
    f1: float | None = None
    """The harmonic mean of the spans' precision and recall, in percent, as in seqeval; None without spans."""
    f1_of_kinds: dict[str, float] = {}
    """A dict from each kind of span, such as PER or LOC, to its F1 in percent; empty if the tags describe no spans."""

    def __str__(self) -> str:
        line = f"accuracy {self.accuracy:.2f} % ({self.right:,} of {count_noun(self.words, 'word')})"
        if self.f1 is None:
            return line
        kinds = "".join(f"\n  {kind}  F1 {f1:.2f} %" for kind, f1 in self.f1_of_kinds.items())
        return f"{line}, spans: F1 {self.f1:.2f} %, precision {self.precision:.2f} %, recall {self.recall:.2f} %{kinds}"


class TagCounts(NamedTuple):
    """Counts of words and of the spans that tags mark in a sentence, whose sums determine accuracy and span F1."""

    words: int
    """The number of words in the sentence."""
    right: int
    """The number of words with the right tag."""
    common: int
    """The number of spans that were predicted and are right."""
    predicted: int
    """The number of predicted spans."""
    wanted: int
    """The number of spans that the right tags mark."""


def count_tags(predicted: Sequence[str], right: Sequence[str]) -> TagCounts:
    """Return the `TagCounts` of a sentence, from the predicted and the right tag of each word.

    Raises:
        TransduceError: the numbers of tags differ.
    """
    if len(predicted) != len(right):
        raise TransduceError(
            f"Every word needs a predicted and a right tag, but there are {len(predicted):,} and {len(right):,}: "
            "provide one of each."
        )
    hits = sum(one == other for one, other in zip(predicted, right, strict=True))
    ours, theirs = set(spans_of(predicted)), set(spans_of(right))
    return TagCounts(len(right), hits, len(ours & theirs), len(ours), len(theirs))


def score_tags(predicted: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> TaggingReport:
    """Compute the accuracy of predicted tags and, if the right tags (B-PER, I-PER) mark spans, the F1 of the spans.

    The result is a `TaggingReport`.

    Args:
        predicted: the tags of each sentence's words.
        right: the right tags.

    Raises:
        TransduceError: the numbers of sentences or of a sentence's tags differ, or there are none.
    """
    if len(predicted) != len(right) or not any(right):
        raise TransduceError(
            f"Every sentence needs predicted and right tags, but there are {len(predicted):,} and {len(right):,} "
            "sentences: provide both."
        )
    pairs = list(zip(predicted, right, strict=True))
    counts = [count_tags(*pair) for pair in pairs]
    total = TagCounts(*(sum(column) for column in zip(*counts, strict=True)))
    report = TaggingReport(
        sentences=len(right), words=total.words, right=total.right, accuracy=100.0 * total.right / total.words
    )
    if not describe_spans(tag for tags in right for tag in tags):
        return report
    spans = [(set(spans_of(ours)), set(spans_of(theirs))) for ours, theirs in pairs]
    common = Counter(span.kind for ours, theirs in spans for span in ours & theirs)
    found = Counter(span.kind for ours, _ in spans for span in ours)
    wanted = Counter(span.kind for _, theirs in spans for span in theirs)
    return msgspec.structs.replace(
        report,
        precision=100.0 * total.common / max(1, total.predicted),
        recall=100.0 * total.common / max(1, total.wanted),
        f1=100.0 * f1_of_counts(total.common, total.predicted, total.wanted),
        f1_of_kinds={
            kind: 100.0 * f1_of_counts(common[kind], found[kind], wanted[kind]) for kind in sorted(found | wanted)
        },
    )


# --- brackets of trees ---


Bracket = tuple[str, int, int]


class BracketSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of which words and brackets count in the scores of trees, with EVALB's usual parameters as defaults."""

    deleted_labels: tuple[str, ...] = ("TOP", "ROOT", "S1", "-NONE-", ",", ":", "``", "''", ".", "?", "!")
    """Constituents with these labels are not counted, and words with these tags are removed from the sentence."""
    equal_labels: tuple[tuple[str, str], ...] = (("ADVP", "PRT"),)
    """Pairs of labels that count as equal when the brackets of two trees are compared, such as ADVP and PRT."""
    short_length: int = 40
    """Sentences of at most this many words, including punctuation, are also scored separately."""


class BracketCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of brackets, words and sentences over predicted trees, and the scores that follow from these counts.

    Scores are in percent, and 0 if there is nothing to divide by. The sum of two counts adds all numbers.
    """

    sentences: int = 0
    """The number of sentences, each with a reference tree."""
    matched: int = 0
    """The number of brackets that the predicted and the reference tree of a sentence share."""
    reference: int = 0
    """The number of brackets of the reference trees."""
    predicted: int = 0
    """The number of brackets of the predicted trees."""
    exact: int = 0
    """The number of sentences whose predicted brackets are all those of the reference, and no others."""
    words: int = 0
    """The number of words that are not removed as punctuation."""
    tagged: int = 0
    """The number of words that are not removed as punctuation and have the reference's part-of-speech tag."""
    invalid: int = 0
    """The number of sentences without a predicted tree, or with a tree over other words; nothing matches in them."""

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
        """Return a line of scores for sentences of all lengths, and a line for the short sentences, as one text."""
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
    """Compute precision, recall and F1 of the labeled brackets of predicted trees, as `BracketReport`.

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
        predicted: the predicted tree. None, or a tree over other words, counts as invalid and has no right bracket.
        reference: the treebank's tree.
        settings: which words and brackets count.

    Returns:
        The sentence's `BracketCounts`, and its length in words with punctuation. A reference that has only traces gives
        length 0 and no brackets. Any predicted tree then counts as invalid.
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
    """Return a Counter of how often each bracket (label, index of its first word, index after its last) is in a tree.

    Words are numbered without punctuation, and constituents of punctuation only do not count.

    Args:
        tree: the tree.
        kept: for each word, whether it stays in the sentence, because it is no punctuation.
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
