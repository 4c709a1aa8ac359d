"""Which earlier word each head looks at from a pronoun: what was read off a model, as data, and how it is shown.

A model that resolves "it" somewhere should have heads that look at the right noun, and at another one when the sentence
asks for another. Attention is no proof of that: with two candidates every second head is right by chance.
Legend: N layers, H heads, W words of the sentence.
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
    """Where one head looks from the pronoun."""

    layer: int
    """From 0."""
    head: int
    """From 0."""
    word: int
    """The word that gets most attention, the pronoun and later words included."""
    weight: float
    """How much."""
    candidate: int
    """The candidate that gets most, by its number."""
    candidate_weight: float
    points: bool
    """Whether that candidate is the antecedent."""


class PronounAttention(msgspec.Struct, frozen=True, kw_only=True):
    """From one pronoun to every word of its sentence, by layer and head."""

    words: tuple[str, ...]
    """Of the sentence; punctuation marks are words of their own."""
    pronoun: int
    """Its place among the words, from 0."""
    candidates: tuple[tuple[int, ...], ...]
    """What it may stand for: places of earlier words, several where a name has several (or a script no spaces)."""
    antecedent: int | None = None
    """Which of them it does stand for, by its number; None where that was not said."""
    left_to_right: bool
    """Whether the model had read nothing after the pronoun when it looked."""
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    """(N, H, W). What a head spends on marks around the sentence is missing from its sum of 1."""

    @property
    def array(self) -> npt.NDArray[np.float64]:
        """The weights, (N, H, W)."""
        return np.array(self.weights, dtype=np.float64)

    @property
    def pointers(self) -> tuple[Pointer, ...]:
        """Every head, layer by layer."""
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
        """The candidates, as they are written."""
        return tuple(self._name([self.words[number] for number in candidate]) for candidate in self.candidates)

    @staticmethod
    def _name(parts: list[str]) -> str:
        """Characters of a script without spaces stand without spaces."""
        return ("" if all(len(part) == 1 for part in parts) else " ").join(parts)

    @property
    def chance(self) -> float:
        """The share of heads that would point to the antecedent if they chose a candidate by lot."""
        return 0.0 if self.antecedent is None else 1.0 / len(self.candidates)

    def draw(self) -> str:
        """For the terminal: a line a head, marked where it points to the antecedent."""
        names = self.names
        lines = [f"From `{self.words[self.pronoun]}` (candidates: {', '.join(names)})"]
        widths = _width(self.words), _width(names)
        for each in self.pointers:
            most = f"{_fit(self.words[each.word], widths[0])} {_percent(each.weight)}"
            best = f"{_fit(names[each.candidate], widths[1])} {_percent(each.candidate_weight)}"
            mark = f"  {_MARK}" if each.points else ""
            lines.append(f"layer {each.layer + 1:2}, head {each.head + 1:2}   {most}   {best}{mark}")
        if self.antecedent is not None:
            right = sum(each.points for each in self.pointers)
            lines.append(
                f"{_MARK} {right} of {len(self.pointers)} heads look at `{names[self.antecedent]}` more than at any "
                f"other candidate; by lot it would be {self.chance * len(self.pointers):.0f}."
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [f"layer {each.layer + 1}, head {each.head + 1}" + f" {_MARK}" * each.points for each in self.pointers]
        words = [f"[{word}]" if number == self.pronoun else word for number, word in enumerate(self.words)]
        return shaded_table(rows, words, [weights for heads in self.weights for weights in heads])


class PronounPair(msgspec.Struct, frozen=True):
    """Two sentences that differ in what the pronoun stands for, in the same model."""

    one: PronounAttention
    other: PronounAttention

    @property
    def resolving(self) -> tuple[tuple[int, int], ...]:
        """(layer, head), from 0, of the heads that point to the right word in both."""
        return tuple((one.layer, one.head) for one, other in self._heads() if one.points and other.points)

    @property
    def chance(self) -> float:
        """The share of heads that would do so by lot."""
        return self.one.chance * self.other.chance

    @property
    def largest_difference(self) -> float:
        """By how much any head's attention to any candidate differs between the sentences; infinite where the
        sentences have other words up to the pronoun.
        """
        if self.one.words[: self.one.pronoun + 1] != self.other.words[: self.other.pronoun + 1]:
            return math.inf
        places = list(range(self.one.pronoun + 1))
        return float(np.abs(self.one.array[..., places] - self.other.array[..., places]).max())

    def _heads(self) -> Iterator[tuple[Pointer, Pointer]]:
        return zip(self.one.pointers, self.other.pointers, strict=True)

    def draw(self) -> str:
        """For the terminal: a line a head, both sentences side by side."""
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
            f"{len(self.resolving)} of {heads} heads point to the right word in both; by lot it would be "
            f"{self.chance * heads:.0f}."
        )
        if self.one.left_to_right and self.largest_difference < math.inf:
            lines.append(
                "The model reads from left to right: what follows the pronoun cannot change where it looks from there."
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
