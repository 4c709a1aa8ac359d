"""The result of measuring attention from a pronoun, as data and as text.

A model that resolves "it" should have heads that attend to the right noun, and to another noun if the sentence
requires it. Attention does not prove this: with two candidates every second head is right by chance.
Shapes: N layers, H heads, W words of the sentence.
"""

import math
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from transduce.inspection.attention import shaded_table

_MARK = "◀"


class Pointer(msgspec.Struct, frozen=True, kw_only=True):
    """The words that one attention head attends to most from the pronoun's position."""

    layer: int
    """Layer number from 0."""
    head: int
    """Head number from 0."""
    word: int
    """Index of the word with the most attention, the pronoun and later words included."""
    weight: float
    """Attention to the word with the most attention."""
    candidate: int
    """Index of the candidate with the most attention."""
    candidate_weight: float
    """Attention to the candidate with the most attention."""
    points: bool
    """True if the candidate with the most attention is the antecedent."""


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
    """True if the model had read nothing after the pronoun."""
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    """Attention weights, (layers, heads, words). A head's sum is below 1 if it attends to special tokens."""

    @property
    def array(self) -> npt.NDArray[np.float64]:
        """The attention weights as an array, (layers, heads, words)."""
        return np.array(self.weights, dtype=np.float64)

    @property
    def pointers(self) -> tuple[Pointer, ...]:
        """A pointer (the words attended to most) for every attention head, layer by layer."""
        return tuple(
            self._pointer(layer, head, weights)
            for layer, heads in enumerate(self.weights)
            for head, weights in enumerate(heads)
        )

    def _pointer(self, layer: int, head: int, weights: tuple[float, ...]) -> Pointer:
        word = int(np.argmax(weights))
        sums = [sum(weights[number] for number in candidate) for candidate in self.candidates]
        best = int(np.argmax(sums))
        return Pointer(
            layer=layer,
            head=head,
            word=word,
            weight=weights[word],
            candidate=best,
            candidate_weight=sums[best],
            points=best == self.antecedent,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The candidate antecedents as texts."""
        return tuple(self._name([self.words[number] for number in candidate]) for candidate in self.candidates)

    @staticmethod
    def _name(parts: list[str]) -> str:
        """Join the words of a candidate, without spaces if each word is a single character."""
        return ("" if all(len(part) == 1 for part in parts) else " ").join(parts)

    @property
    def chance(self) -> float:
        """The share of heads that would point to the antecedent if heads chose candidates at random."""
        return 0.0 if self.antecedent is None else 1.0 / len(self.candidates)

    def draw(self) -> str:
        """Return a text for the terminal with a line per head, which is marked if it points to the antecedent."""
        names = self.names
        lines = [f"From `{self.words[self.pronoun]}` (candidates: {', '.join(names)})"]
        widths = _width(self.words), _width(names)
        for pointer in self.pointers:
            top_word = f"{_fit(self.words[pointer.word], widths[0])} {_percent(pointer.weight)}"
            top_candidate = f"{_fit(names[pointer.candidate], widths[1])} {_percent(pointer.candidate_weight)}"
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
    """Attention of the same model in two sentences that differ in the pronoun's antecedent."""

    one: PronounAttention
    """Attention in the first sentence."""
    other: PronounAttention
    """Attention in the second sentence."""

    @property
    def resolving(self) -> tuple[tuple[int, int], ...]:
        """The (layer, head) pairs, from 0, of the heads that point to the right word in both sentences."""
        return tuple((one.layer, one.head) for one, other in self._heads() if one.points and other.points)

    @property
    def chance(self) -> float:
        """The share of heads that would point to the right word in both sentences by chance."""
        return self.one.chance * self.other.chance

    @property
    def largest_difference(self) -> float:
        """The largest difference in attention between the sentences, over all heads and words up to the pronoun.

        It is infinite if the sentences differ in a word up to the pronoun.
        """
        if self.one.words[: self.one.pronoun + 1] != self.other.words[: self.other.pronoun + 1]:
            return math.inf
        indices = list(range(self.one.pronoun + 1))
        return float(np.abs(self.one.array[..., indices] - self.other.array[..., indices]).max())

    def _heads(self) -> Iterator[tuple[Pointer, Pointer]]:
        return zip(self.one.pointers, self.other.pointers, strict=True)

    def draw(self) -> str:
        """Return a text for the terminal with a line per head and a column per sentence."""
        sides = self.one, self.other
        lines = [" ".join(side.words) for side in sides]
        names = [side.names for side in sides]
        widths = [_width(each) for each in names]
        for pair in self._heads():
            cells = [
                f"{_fit(name[each.candidate], width)} {_percent(each.candidate_weight)} {_MARK * each.points:1}"
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
    return max(map(cell_len, words))


def _fit(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
