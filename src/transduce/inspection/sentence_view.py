"""Typed data about one inspected translation and about a pronoun, and their drawing as text for a terminal."""

import base64
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from transduce.deprecation import renamed_attribute
from transduce.errors import TransduceError
from transduce.inspection.attention import WordAttention, page_in_iframe, shaded_table
from transduce.inspection.page import render_page, render_text_page
from transduce.inspection.plots import Chart, HeatMap, draw_chart
from transduce.ui_language import columns_of, localized, padded, ui_language

# --- attention from a pronoun ---
# A model that resolves "it" should have heads that attend to the right noun, and to another noun if the sentence
# requires it. Attention does not prove this: with two candidates every second head is right by chance.
# Shapes: N layers, H heads, W words of the sentence.


_MARK = "◀"


class Pointer(msgspec.Struct, frozen=True):
    """The word and the candidate antecedent to which one attention head attends most from a pronoun."""

    layer: int
    """Layer number from 0."""
    head: int
    """Head number from 0."""
    word: int
    """Index in the sentence of the word with the most attention; the pronoun and later words count, too."""
    weight: float
    """Attention (0 to 1) to the word with the most attention."""
    candidate: int
    """Index, in the list of possible antecedents, of the candidate with the most attention."""
    candidate_weight: float
    """Attention (0 to 1) to all words together of the candidate with the most attention."""
    points: bool
    """True if the candidate with the most attention is the antecedent; False if the antecedent is unknown."""


class PronounAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Attention from one pronoun to every word of its sentence, by layer and head."""

    words: tuple[str, ...]
    """Words of the sentence; punctuation marks are separate words."""
    pronoun: int
    """Index of the pronoun among the words."""
    candidates: tuple[tuple[int, ...], ...]
    """Possible antecedents, each as the indices of its words; in scripts without spaces, a word is one character."""
    antecedent: int | None = None
    """Index of the candidate that the pronoun refers to; None if it is unknown."""
    left_to_right: bool
    """True if the model attends from left to right, so that it has not read what follows the pronoun."""
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    """Attention from the pronoun, (layers, heads, words). A head's sum is below 1 if it attends to special tokens."""

    @property
    def array(self) -> npt.NDArray[np.float64]:
        """The attention from the pronoun as an array, (layers, heads, words), float64."""
        return np.array(self.weights, dtype=np.float64)

    @property
    def pointers(self) -> tuple[Pointer, ...]:
        """A tuple with a `Pointer` for every head, layer by layer: the word and candidate with most attention."""
        return tuple(
            self._pointer(layer, head, weights)
            for layer, heads in enumerate(self.weights)
            for head, weights in enumerate(heads)
        )

    def _pointer(self, layer: int, head: int, weights: tuple[float, ...]) -> Pointer:
        word = int(np.argmax(weights))
        sums = [sum(weights[number] for number in candidate) for candidate in self.candidates]
        best = int(np.argmax(sums))
        return Pointer(layer, head, word, weights[word], best, sums[best], points=best == self.antecedent)

    @property
    def names(self) -> tuple[str, ...]:
        """The candidate antecedents (words that the pronoun may refer to) as texts."""
        parts = [[self.words[number] for number in candidate] for candidate in self.candidates]
        # Words of a single character are Chinese and have no spaces between.
        return tuple(("" if all(len(part) == 1 for part in each) else " ").join(each) for each in parts)

    @property
    def chance(self) -> float:
        """The share of heads that would point to the antecedent by chance; 0 if the antecedent is unknown."""
        return 0.0 if self.antecedent is None else 1.0 / len(self.candidates)

    def draw(self) -> str:
        """Return text for a terminal with a line per head: the word and the candidate that it attends to most.

        Heads that point to the antecedent, if it is known, are marked and counted.
        """
        names = self.names
        lines = [f"From `{self.words[self.pronoun]}` (candidates: {', '.join(names)})"]
        widths = _width(self.words), _width(names)
        for pointer in self.pointers:
            top_word = f"{padded(self.words[pointer.word], widths[0])} {_percent(pointer.weight)}"
            top_candidate = f"{padded(names[pointer.candidate], widths[1])} {_percent(pointer.candidate_weight)}"
            mark = f"  {_MARK}" if pointer.points else ""
            lines.append(f"layer {pointer.layer + 1:2}, head {pointer.head + 1:2}   {top_word}   {top_candidate}{mark}")
        if self.antecedent is not None:
            right = sum(pointer.points for pointer in self.pointers)
            lines.append(
                f"{_MARK} {right} of {len(self.pointers)} heads look at `{names[self.antecedent]}` more than at any "
                f"other candidate; by chance it would be {self.chance * len(self.pointers):.0f}."
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [f"layer {each.layer + 1}, head {each.head + 1}" + f" {_MARK}" * each.points for each in self.pointers]
        words = [f"[{word}]" if number == self.pronoun else word for number, word in enumerate(self.words)]
        return shaded_table(rows, words, [weights for heads in self.weights for weights in heads])


class PronounPair(msgspec.Struct, frozen=True):
    """Attention of the same model from a pronoun in two sentences, in which the pronoun refers to different words."""

    one: PronounAttention
    """Attention from the pronoun in the first sentence."""
    other: PronounAttention
    """Attention from the pronoun in the second sentence."""

    @property
    def resolving(self) -> tuple[tuple[int, int], ...]:
        """The (layer, head) pairs, from 0, of the heads that point to the right word in both sentences."""
        return tuple((one.layer, one.head) for one, other in self._heads() if one.points and other.points)

    @property
    def chance(self) -> float:
        """The expected share of heads that are right in both sentences if each head chooses a candidate at random."""
        return self.one.chance * self.other.chance

    @property
    def largest_difference(self) -> float:
        """The largest difference in attention between the sentences, over all heads and words up to the pronoun.

        The difference is infinite if the sentences differ in a word up to the pronoun.
        """
        end = self.one.pronoun + 1
        if self.one.words[:end] != self.other.words[: self.other.pronoun + 1]:
            return math.inf
        return float(np.abs(self.one.array[..., :end] - self.other.array[..., :end]).max())

    def _heads(self) -> Iterator[tuple[Pointer, Pointer]]:
        return zip(self.one.pointers, self.other.pointers, strict=True)

    def draw(self) -> str:
        """Return text for a terminal with a line per head: its strongest candidate in each of both sentences."""
        sides = self.one, self.other
        lines = [" ".join(side.words) for side in sides]
        names = [side.names for side in sides]
        widths = [_width(each) for each in names]
        for pair in self._heads():
            cells = [
                f"{padded(name[each.candidate], width)} {_percent(each.candidate_weight)} {_MARK * each.points:1}"
                for name, each, width in zip(names, pair, widths, strict=True)
            ]
            both = "  both" if all(each.points for each in pair) else ""
            lines.append(f"layer {pair[0].layer + 1:2}, head {pair[0].head + 1:2}   {'   '.join(cells)}{both}".rstrip())
        heads = len(self.one.pointers)
        lines.append(
            f"{len(self.resolving)} of {heads} heads point to the right word in both; by chance it would be "
            f"{self.chance * heads:.0f}."
        )
        if self.one.left_to_right and self.largest_difference < math.inf:
            lines.append(
                "The model reads from left to right, so the words after the pronoun cannot change its attention there."
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = "".join(f"<td>{side._repr_html_()}</td>" for side in (self.one, self.other))
        return f"<table><tr style='vertical-align: top'>{cells}</tr></table>"


def _percent(weight: float) -> str:
    return f"{100 * weight:3.0f} %"


def _width(words: tuple[str, ...]) -> int:
    return max(map(columns_of, words))


# --- data that the page, the terminal and notebooks show ---
# Shapes: N layers, H heads, Q queries, L keys.


class TokenCandidate(msgspec.Struct, frozen=True):
    """A token that a model may write at a step of a translation, with its probability."""

    token: str
    probability: float

    piece = renamed_attribute("piece", "token")


class Step(msgspec.Struct, frozen=True):
    """A token of the translation (or another prediction) with its probability and the alternatives at its position."""

    token: str
    probability: float
    """The model's probability of the token, given the source and the previous tokens."""
    candidates: tuple[TokenCandidate, ...]
    """The likeliest tokens at this position, likeliest first, with probabilities; the token may be one of these."""

    piece = renamed_attribute("piece", "token")


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the tree of a search's hypotheses.

    A node stands for a hypothesis that the beam kept. Its tokens are those on the path from the root to the node.
    """

    parent: int
    """Index of the parent in the list of nodes; -1 for the root, which has no token."""
    token: str
    log_probability: float
    """Log-probability of all tokens up to this one, in nats."""
    ended: bool = False
    """True if the hypothesis ended at this node with the end symbol."""
    score: float | None = None
    """For a finished hypothesis, the log-probability divided by the length penalty, by which it ranks; else None."""
    best: bool = False
    """True if the node is part of the translation."""

    piece = renamed_attribute("piece", "token")


class AttentionBytes(msgspec.Struct, frozen=True):
    """Attention weights of every layer and head, one byte each, for small HTML pages: 255 stands for the weight 1."""

    shape: tuple[int, int, int, int]
    """The shape of the weights: (layers, heads, queries, keys)."""
    weights: str
    """The weights as bytes, encoded in base64."""


class WordAlignment(msgspec.Struct, frozen=True):
    """A table of weights (attention, or another measure) from each target word to each source word."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    """The weight of each pair of words, (target words, source words), rounded to three decimals."""


class WordAttribution(msgspec.Struct, frozen=True):
    """The contributions of source words to target words by one method of attribution.

    The contributions to each target word are expressed as shares.
    """

    method: str
    """The name of the method of attribution, such as "value"."""
    words: WordAlignment
    """The source and target words, with the share of each source word in each target word as weights."""
    total: float | None = None
    """For the method `integrated`, the sum of all source words' contributions to all target words, in nats; otherwise
    None.
    """
    change: float | None = None
    """For the method `integrated`, how much all source words together raise the log-probability of the target words, in
    nats, which exact contributions would sum to; otherwise None.
    """

    def note(self) -> str | None:
        """Return a sentence that compares the sum of the contributions with the change of the log-probability.

        None if these are not known, as for all methods but `integrated`.
        """
        if self.total is None or self.change is None:
            return None
        return (
            f"The contributions sum to {self.total:.1f} nats; without the words the log-probability falls by "
            f"{self.change:.1f} nats. With so few points, compare shares, not nats."
        )


class _Html(msgspec.Struct, frozen=True):
    """Data that are shown as an HTML page, in a notebook too."""

    def to_html(self) -> str:
        """Return a self-contained HTML page that shows the data without further files or network access."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return page_in_iframe(self.to_html())


class Inspection(_Html, frozen=True, kw_only=True):
    """An inspected sentence: its translation, and how the model and the search produced it."""

    model: str
    """A description of the model in one line: layers, width, heads and number of parameters."""
    source: str
    translation: str
    score: float
    """The translation's log-probability divided by the length penalty."""
    source_language: str | None
    target_language: str | None
    source_tokens: tuple[str, ...]
    """Source tokens with the end symbol."""
    target_tokens: tuple[str, ...]
    """Target tokens, with the end symbol if the search reached it."""
    beam_size: int
    steps: tuple[Step, ...]
    words: WordAlignment
    encoder: AttentionBytes
    """Encoder self-attention: from source tokens to source tokens."""
    decoder: AttentionBytes
    """Decoder self-attention: from each predicted token to the start symbol and the tokens before it."""
    memory: AttentionBytes
    """Cross-attention: from each predicted token to the source tokens."""
    tree: tuple[TreeNode, ...]
    """Nodes of the hypothesis tree, parents before children."""
    coreference: PronounAttention | None = None
    """Attention from a pronoun to earlier words; None unless it was requested."""
    attributions: tuple[WordAttribution, ...] = ()
    """Contributions of source words to target words by several methods; empty unless requested."""
    label: str = ""
    """The name of the model on a page with several models; empty: none."""

    source_pieces = renamed_attribute("source_pieces", "source_tokens")
    target_pieces = renamed_attribute("target_pieces", "target_tokens")

    def to_html(self) -> str:
        """Return a self-contained HTML page that shows the inspection without further files or network access."""
        return InspectionPage(inspections=(self,)).to_html()


class TextInspection(_Html, frozen=True, kw_only=True):
    """An inspected text of a model of any kind: what the model predicts, and the attention between its tokens."""

    model: str
    """The kind and the size of the model in one line."""
    text: str
    answer: str
    """The model's output for the text: a translation, a class, tags, a tree, filled masks, or the next token."""
    outputs: tuple[str, ...]
    """A name for each prediction: predicted tokens, tagged words, the class, or points in time."""
    steps: tuple[Step, ...]
    """The predictions with their probabilities and alternatives; empty if the model predicts numbers or vectors."""
    attention: Literal["memory", "encoder", "decoder"]
    """The kind of attention in `words`: cross-attention (`memory`), or self-attention of the `encoder` or `decoder`."""
    words: WordAlignment
    """The attention of each word (or point in time) to each other, averaged over layers and heads."""
    rows: tuple[str, ...]
    """The tokens that attend: names of the rows of the attention matrices in `weights`."""
    columns: tuple[str, ...]
    """The tokens that are attended to: names of the columns of the attention matrices in `weights`."""
    weights: AttentionBytes
    """The attention of every layer and head, (layers, heads, rows, columns)."""
    attributions: tuple[WordAttribution, ...] = ()
    """Contributions of the words read to each prediction by several methods; empty unless requested."""

    def to_html(self) -> str:
        """Return a self-contained HTML page that shows the inspection without further files or network access."""
        return TextInspectionPage(inspections=(self,)).to_html()

    def draw(self, title: str | None = None) -> str:
        """Return the predictions, and the attention between words as a table, as text for a terminal.

        `title` is the heading of the table; None: one that names the kind of attention.
        """
        shape = len(self.words.target_words), len(self.words.source_words)
        words = np.array(self.words.weights, dtype=np.float32).reshape(shape)
        rows, columns = self.words.target_words, self.words.source_words
        table = draw_attention(WordAttention(columns, rows, words))
        if len(columns) > _MAX_COLUMNS:  # such as points in time
            maximum, label = float(words.max(initial=0.0)) or 1.0, f"{columns[0]} to {columns[-1]}"
            panel = HeatMap("", label, "", words.astype(np.float64), maximum=maximum, row_names=rows)
            table = draw_chart(Chart((panel,)))
        steps = [draw_steps(self.steps, self.outputs)] if self.steps else []
        shown = [self.text, self.answer]
        if self.model.startswith("Forecaster: "):  # the texts describe numbers; those of other models are the user's
            shown = [localized(text) for text in shown]
        head = ["  →  ".join(shown), localized(self.model)]
        return "\n\n".join([*head, *steps, localized(title or _HEADINGS[self.attention]), table])


_HEADINGS = {
    "memory": "attention: a darker column was read more when the word of the row was written",
    "encoder": "attention: a darker column was read more by the word of the row",
    "decoder": "attention: a darker column was read more by the word of the row; later words are hidden",
}


class InspectionPage(_Html, frozen=True, kw_only=True):
    """Inspections of several sentences or models for one page, which shows any two of them side by side."""

    inspections: tuple[Inspection, ...]
    language: Literal["en", "zh"] | None = None
    """The language in which the page opens; None: Chinese if messages are Chinese, else the browser's."""

    def to_html(self) -> str:
        """Return a self-contained HTML page that shows the inspections without further files or network access.

        Raises:
            TransduceError: there is no inspection.
        """
        content = _page_content(self)
        return render_page(f"{self.inspections[0].source} → {self.inspections[0].translation}", content)


class TextInspectionPage(_Html, frozen=True, kw_only=True):
    """Inspections of several texts by models of any kind for one page, which shows one of them at a time."""

    inspections: tuple[TextInspection, ...]
    language: Literal["en", "zh"] | None = None
    """The language in which the page opens; None: Chinese if messages are Chinese, else the browser's."""

    def to_html(self) -> str:
        """Return a self-contained HTML page that shows the inspections without further files or network access.

        Raises:
            TransduceError: there is no inspection.
        """
        content = _page_content(self)
        first = self.inspections[0]
        return render_text_page(" → ".join(filter(None, (first.text, first.answer))), content)


def _page_content(page: InspectionPage | TextInspectionPage) -> str:
    """Return a page's inspections as JSON for the page's script, with the language in which the page opens.

    Raises:
        TransduceError: the page has no inspection.
    """
    if not page.inspections:
        raise TransduceError("A page needs an inspection, but there is none: pass what `inspect` returns.")
    language = page.language or ("zh" if ui_language() == "zh" else None)
    return msgspec.json.encode(msgspec.structs.replace(page, language=language)).decode()


def to_bytes(weights: npt.NDArray[np.float32]) -> AttentionBytes:
    """Return attention weights, (layers, heads, queries, keys), as `AttentionBytes`; a weight errs by at most 1/510."""
    layers, heads, queries, keys = weights.shape
    quantized = np.rint(np.clip(weights, 0.0, 1.0) * 255.0).astype(np.uint8)
    return AttentionBytes((layers, heads, queries, keys), base64.b64encode(quantized.tobytes()).decode("ascii"))


# --- drawing for a terminal ---

_SHADES = " ░▒▓█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 20
_MAX_ALTERNATIVES = 3
_MAX_COLUMNS = 40


def draw_attention(attention: WordAttention) -> str:
    """Return attention as a table of shades: a row per target word, a column per source word; darker means more.

    The darkest shade of a row is its greatest weight.
    """
    label_width = max((columns_of(word) for word in attention.target_words), default=0)
    widths = [max(2, columns_of(word)) for word in attention.source_words]
    header = " ".join(padded(word, width) for word, width in zip(attention.source_words, widths, strict=True))
    lines = [" " * label_width + "  " + header]
    for word, row in zip(attention.target_words, attention.weights, strict=True):
        maximum = float(row.max(initial=0.0)) or 1.0
        shades = (_SHADES[min(4, int(float(weight) / maximum * 4.999))] for weight in row)
        cells = " ".join(padded(shade * 2, width) for shade, width in zip(shades, widths, strict=True))
        lines.append(padded(word, label_width, right=True) + "  " + cells)
    return "\n".join(line.rstrip() for line in lines)


def draw_inspection(inspection: Inspection, attention: WordAttention, title: str = "") -> str:
    """Return an inspection as text for a terminal: translation, tokens' probabilities, and a table.

    The table shows `attention`, below the heading `title`. No heading is drawn if `title` is empty.
    """
    ended = [node for node in inspection.tree if node.ended]
    count = f"score {inspection.score:.3f}; {len(ended)} of {len(inspection.tree) - 1} kept hypotheses ended"
    head = f"{inspection.source}  →  {inspection.translation}\n{localized(count)}"
    heading = [localized(title)] if title else []
    return "\n\n".join([head, draw_steps(inspection.steps), *heading, draw_attention(attention)])


def draw_steps(steps: tuple[Step, ...], outputs: Sequence[str] = ()) -> str:
    """Return text with a line for each predicted token.

    A line has the token, its probability as a number and as a bar, and the likeliest alternatives. Before the tokens
    are the words of `outputs`, such as the words that tags belong to. They are left out if each word is equal to its
    token.
    """
    names = [step.token for step in steps]
    if outputs and any(name not in (output, "") for name, output in zip(names, outputs, strict=True)):
        names = [f"{output}  {name}" for name, output in zip(names, outputs, strict=True)]
    width = max(map(columns_of, names), default=0)
    lines = []
    for name, step in zip(names, steps, strict=True):
        others = [f"{each.token} {100 * each.probability:.1f}" for each in step.candidates if each.token != step.token]
        bar = padded(draw_bar(step.probability, _BAR_CELLS), _BAR_CELLS)
        percent = f"{100 * step.probability:5.1f} %"
        lines.append("  ".join([padded(name, width), percent, bar, *others[:_MAX_ALTERNATIVES]]))
    return "\n".join(line.rstrip() for line in lines)


def draw_bar(share: float, cells: int) -> str:
    """Return a bar of block characters with a length of `share` × `cells` columns.

    `share` is from 0 to 1, and the length is rounded to an eighth of a column.
    """
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
