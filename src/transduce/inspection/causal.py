"""Causal tools: ablate heads and layers, patch activations between two texts, and read every layer by the logit lens.

Attention shows where a head looks. Ablation and patching change a model's activations (`record_activations`) and
measure the effect on its predictions.

Legend: C copies of a text in one batch, H heads, Q positions of queries, V width of a head's value, T positions, D
model width.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import torch
from torch import Tensor

from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.parser import Parser
from transduce.inference.translator import Translator
from transduce.inspection.plots import Chart, HeatMap, part_name
from transduce.inspection.reading import Reader, Reading, read
from transduce.inspection.recorder import Edit, Recording, hook_points, record_activations
from transduce.inspection.sentence_view import TokenCandidate
from transduce.ui_language import aligned, columns_of, localized

Fill = Literal["zero", "mean"]
"""The replacement of an ablated activation: `zero`, or `mean`, its mean over all positions of reference texts."""

_BATCH_TOKENS = 4096
_MAX_CELL = 12  # terminal columns of a token in a table
_MIN_DIFFERENCE = 1e-4  # of logits; a smaller one has no share that means something
_SUBLAYERS = {"self_attention": "self-attention", "memory_attention": "cross-attention", "feed_forward": "feed-forward"}


# --- tables ---


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """A table of numbers with names of rows and columns, which can be drawn for a terminal or as a heat map."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """The numbers, (rows, columns)."""

    def draw(self, *, as_percent: bool = False) -> str:
        """Return the table as text for a terminal, with three decimals or, with `as_percent`, in whole percent."""
        form = "{:.0f} %" if as_percent else "{:.3f}"
        # Adding zero after rounding turns -0 into 0.
        factor, digits = (100.0, 0) if as_percent else (1.0, 3)
        cells = [[form.format(round(factor * value, digits) + 0.0) for value in row] for row in self.values]
        return f"{localized(self.title)}\n{draw_cells(self.rows, self.columns, cells)}"

    def panel(self, minimum: float, maximum: float, note: str = "") -> HeatMap:
        """Return the table as a `HeatMap`, for a `Chart`, with shades from `minimum` to `maximum` and a note below."""
        values = np.array(self.values, dtype=np.float64)
        return HeatMap(self.title, note, "", values, minimum, maximum, self.rows, self.columns)


def draw_cells(rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return a table of texts as text for a terminal, with aligned columns: names left, cells right.

    Chinese characters count as two columns. Names of layers, heads and sub-layers are shown in the user's language.
    """
    rows, columns = ([part_name(name) for name in names] for names in (rows, columns))
    table = [["", *columns], *([row, *texts] for row, texts in zip(rows, cells, strict=True))]
    return "\n".join(aligned(table, left=1))


def _cut(text: str) -> str:
    while columns_of(text) > _MAX_CELL:
        text = text[:-1]
    return text


def _layer_names(count: int) -> tuple[str, ...]:
    return tuple(f"layer {number}" for number in range(1, count + 1))


def _largest(grids: Sequence[Grid]) -> float:
    return max((abs(value) for grid in grids for row in grid.values for value in row), default=0.0) or 1.0


# --- ablation ---


class Ablation(msgspec.Struct, frozen=True, kw_only=True):
    """The drops of the log-probability of a model's predictions without each head, each sub-layer and each layer."""

    text: str
    answer: str
    """The model's output, whose log-probability is measured: a translation, the text's own tokens, a class or tags."""
    fill: Fill
    log_probability: float
    """The log-probability of all predictions together in the unchanged model, in nats."""
    heads: tuple[Grid, ...]
    """A table for each kind of attention: the drop of the log-probability in nats without each head, layers × heads."""
    layers: tuple[Grid, ...]
    """A table for each stack (encoder, decoder): the drop of the log-probability in nats without each sub-layer, and in
    the last column without the whole layer, layers × sub-layers.
    """

    def draw(self) -> str:
        """Return the text, its log-probability, and the tables of drops by ablation as text for a terminal."""
        head = (
            f"{self.text}  →  {self.answer}\nlog-probability {self.log_probability:.3f} nats; below, how much it drops "
            f"when a part is replaced by {'zeros' if self.fill == 'zero' else 'its mean'} (negative: it rises)"
        )
        return "\n\n".join([localized(head), *(grid.draw() for grid in (*self.layers, *self.heads))])

    def chart(self) -> Chart:
        """Return a `Chart` with each table of drops as a heat map, and a note of the nats at a full shade."""
        panels = []
        for grids in (self.layers, self.heads):
            maximum = _largest(grids)
            panels += [grid.panel(-maximum, maximum, f"full shade: {maximum:.2g} nats") for grid in grids]
        return Chart(tuple(panels))


@explain_wrong_types
def ablate(
    reader: Reader, text: str, target: str | None = None, *, fill: Fill = "zero", reference: Sequence[str] = ()
) -> Ablation:
    """Return an `Ablation`: how much less likely a model's predictions are without each of its heads and layers.

    One head, one sub-layer or one layer is replaced at a time, at every position. A layer without its sub-layers passes
    its input on. The predictions of a translator, parser, classifier or tagger are its own output. A language model
    predicts the text's tokens and one more. A masked language model predicts the masks, or all tokens if there is none.

    Args:
        reader: a loaded model with Transformer layers, as `transduce.load` returns it; in fp32, because
            bfloat16 changes the third digit of the results.
        text: the text.
        target: for a translator, a translation of it; None: the model's own.
        fill: `zero`, or `mean`: the mean of the activation over all positions of the reference texts.
        reference: texts for `mean`; empty: the text itself.

    Raises:
        TransduceError: the model has no such layers or no probabilities, or an option is invalid.
    """
    if fill not in get_args(Fill):
        raise TransduceError(f"`fill` must be one of {', '.join(get_args(Fill))}, but is {fill!r}.")
    if reference and fill != "mean":
        raise TransduceError("Reference texts are averaged by `fill` = mean only: set it, or leave them out.")
    reading = read(reader, text, target)
    _check_layers(reading)
    with torch.inference_mode():
        plain = float(reading.log_probabilities().sum())
        fills = _fills(reading, [read(reader, each) for each in reference] or [reading], fill)

        def drops(edits: Mapping[str, Edit], copies: int) -> tuple[float, ...]:
            with record_activations(reading.model, (), edit=edits):
                scores = reading.log_probabilities(copies).sum(dim=-1)  # (C,)
            return tuple(round(plain - value, 6) for value in scores.tolist())

        heads = _head_grids(reading, {name: fill[:, None] for name, fill in fills.items()}, drops)
        layers = []
        for stack, rows in _sublayer_points(reading).items():
            kinds = [name.split(".")[2] for name in rows[0]]
            # Copy n lacks sub-layer n, and the last copy all sub-layers of the layer.
            values = tuple(
                drops({name: _replacing([n, len(row)], fills[name]) for n, name in enumerate(row)}, len(row) + 1)
                for row in rows
            )
            columns = (*(_SUBLAYERS[kind] for kind in kinds), "whole layer")
            layers.append(Grid(title=f"{stack} layers", rows=_layer_names(len(rows)), columns=columns, values=values))
    return Ablation(
        text=text, answer=reading.answer, fill=fill, log_probability=plain, heads=heads, layers=tuple(layers)
    )


def _check_layers(reading: Reading) -> None:
    """Raise a `TransduceError` if a model has no Transformer layers, or does not give probabilities of predictions."""
    reading.check_head()
    if reading.final_norm is None:
        raise TransduceError(
            "This needs the heads and layers of a Transformer, but the model is of the kind "
            f"`{reading.model.config.kind}`: attribution by `occlusion` works for it."
        )


def _fills(reading: Reading, references: Sequence[Reading], fill: Fill) -> dict[str, Tensor]:
    """Return a dict from hook points to the tensor that replaces an ablated output there.

    Tensors are (heads, value width) for heads and (d_model,) for sub-layers: zero, or with `fill` = mean, the output's
    mean over all positions of the reference texts.
    """
    points = ("*.heads", "*_attention.output", "*.feed_forward.output")
    sums: dict[str, Tensor] = {}
    positions = Counter[str]()
    for each in references if fill == "mean" else [reading]:
        with record_activations(each.model, points) as recording:
            each.forward()
        for name, value in recording.items():  # (1, Q, H, V) or (1, T, D)
            sums[name] = sums.get(name, 0.0) + value[0].double().sum(dim=0)
            positions[name] += value.shape[1]
    return {
        name: torch.zeros_like(total) if fill == "zero" else total / positions[name] for name, total in sums.items()
    }


def _head_grids(
    reading: Reading, values: Mapping[str, Tensor], measure: Callable[[Mapping[str, Edit], int], Sequence[float]]
) -> tuple[Grid, ...]:
    """Measure the effect of replacing the output of each single head; return a table for each kind of attention.

    The rows of a table are layers, and its columns are heads.

    Args:
        reading: the text.
        values: by hook point, the replacements of all heads' outputs, (H, Q, V), or (H, 1, V) for all positions.
        measure: a function of a batch's edits and its number of copies of the text. It returns the measure of each
            copy.
    """
    return tuple(
        Grid(
            title=f"{stack} {_SUBLAYERS[kind]}, heads",
            rows=_layer_names(len(names)),
            columns=tuple(f"head {number}" for number in range(1, len(values[names[0]]) + 1)),
            values=tuple(tuple(measure({name: _one_head_each(values[name])}, len(values[name]))) for name in names),
        )
        for stack, kind, names in _attention_points(reading)
    )


def _replacing(index: Any, values: Tensor) -> Edit:
    """Return a function that edits a batch of copies of a text: it replaces the activations at `index` by `values`."""

    def edit(activations: Tensor) -> Tensor:
        edited = activations.clone()
        edited[index] = values.to(activations.dtype)
        return edited

    return edit


def _one_head_each(values: Tensor) -> Edit:
    """Return a function that replaces the output of head h in copy h of a text by `values[h]`.

    One forward pass then measures every head.
    """
    heads = list(range(len(values)))
    return _replacing((heads, slice(None), heads), values)


def _attention_points(reading: Reading) -> Iterator[tuple[str, str, list[str]]]:
    """Yield for each kind of attention the stack, the sub-layer's name, and a list of hook points, one per layer.

    A hook point is at the outputs of a layer's heads.
    """
    names = [point.name for point in hook_points(reading.model) if point.name.endswith(".heads")]
    for stack, kind in dict.fromkeys((name.split(".")[0], name.split(".")[2]) for name in names):
        yield stack, kind, [name for name in names if name.split(".")[::2] == [stack, kind]]


def _sublayer_points(reading: Reading) -> dict[str, list[list[str]]]:
    """Return the names of the hook points at the outputs of all sub-layers.

    The result is a dict from the name of each stack to a list with an item for each layer. The item is a list of the
    names of the hook points in the layer.
    """
    points: dict[str, dict[str, list[str]]] = {}
    for point in hook_points(reading.model):
        stack, number, *rest = f"{point.name}.".split(".")
        if rest[1:2] == ["output"]:
            points.setdefault(stack, {}).setdefault(number, []).append(point.name)
    return {stack: list(layers.values()) for stack, layers in points.items()}


def residual_points(reading: Reading, stack: str) -> list[str]:
    """Return a list of the names of the hook points at a stack's residual stream, in order.

    The points are at the embedding and after each layer. A recurrent model has no such point at the embedding.
    """
    names = [point.name for point in hook_points(reading.model)]
    return [name for name in names if name.startswith(f"{stack}.") and name.endswith((".embedding", ".residual"))]


# --- activation patching ---


class Patching(msgspec.Struct, frozen=True, kw_only=True):
    """The share of a logit difference that is restored when activations of a clean text enter a corrupted one.

    At a share of 1, the model answers as for the clean text; at 0, the activation changes nothing.
    """

    clean: str
    corrupted: str
    answers: tuple[str, str]
    """The answer to the clean text and that to the corrupted text, whose logits are subtracted from each other."""
    after: str
    """The beginning of the translation, which precedes both answers; empty in models that do not translate."""
    clean_difference: float
    """The logit of the first answer less that of the second one, for the clean text."""
    corrupted_difference: float
    """The logit of the first answer less that of the second one, for the corrupted text."""
    residual: tuple[Grid, ...]
    """A table for each stack (encoder, decoder): the share of the difference that is restored by patching the residual
    stream at each position after each layer, positions × layers.
    """
    heads: tuple[Grid, ...]
    """A table for each kind of attention: the share of the difference that is restored by patching a head's output at
    all positions, layers × heads.
    """

    def draw(self) -> str:
        """Return both texts, their logit differences, and the tables of restored shares as text for a terminal."""
        (one, other), before = self.answers, f"{self.after} " if self.after else ""
        head = (
            f"clean      {self.clean}  →  {before}{one}\ncorrupted  {self.corrupted}  →  {before}{other}\n"
            f"logit of {one} less that of {other}: {self.clean_difference:.2f} and {self.corrupted_difference:.2f}; "
            "below, the share that returns with an activation of the clean sentence"
        )
        return "\n\n".join([localized(head), *(grid.draw(as_percent=True) for grid in (*self.residual, *self.heads))])

    def chart(self) -> Chart:
        """Return a `Chart` with each table of restored shares of the logit difference as a heat map, from -1 to 1."""
        return Chart(tuple(grid.panel(-1.0, 1.0) for grid in (*self.residual, *self.heads)))


@explain_wrong_types
def patch_activations(
    reader: Reader, clean: str, corrupted: str, *, answers: tuple[str, str] | None = None, after: str | None = None
) -> Patching:
    """Run a model on a corrupted text with single activations of a clean one; return what each restores (`Patching`).

    The measure is the logit of the clean text's answer less that of the corrupted text's answer (Meng et al. 2022; Wang
    et al. 2023). A translator answers with the first token in which its translations differ, a language model with the
    next token, and encoders with their first prediction that differs.

    Args:
        reader: a loaded model with Transformer layers, as `transduce.load` returns it; in fp32, because
            bfloat16 changes the third digit of the results.
        clean: a text.
        corrupted: another text of as many tokens, usually with one word replaced.
        answers: the two answers: tokens as the vocabulary spells them, classes or tags; None: the model's own.
        after: for a translator, the beginning of the translation that both answers follow; None: what both translations
            begin with.

    Raises:
        TransduceError: the texts have different numbers of tokens, the model answers both alike, or the model does not
            fit.
    """
    first, second, row = _aligned(reader, clean, corrupted, after, needs_difference=answers is None)
    for reading in (first, second):
        _check_layers(reading)
    columns = _answer_columns(first, second, row, answers)
    if columns[0] == columns[1]:
        raise TransduceError(
            f"The model answers both texts with `{first.column_name(columns[0])}`: name two answers to compare "
            "(`answers`, --answers), or another corrupted text."
        )
    with torch.inference_mode():
        with record_activations(first.model, ("*.embedding", "*.residual", "*.heads")) as recording:
            clean_difference = _difference(first.logits(), row, columns)[0]
        corrupted_difference = _difference(second.logits(), row, columns)[0]
        span = clean_difference - corrupted_difference
        if abs(span) < _MIN_DIFFERENCE:
            raise TransduceError("Both texts give the same difference of logits: name other answers or another text.")

        def recovered(edits: Mapping[str, Edit], copies: int) -> list[float]:
            with record_activations(second.model, (), edit=edits):
                differences = _difference(second.logits(copies), row, columns)
            return [round((value - corrupted_difference) / span, 6) for value in differences]

        clean_heads = {name: recording[name][0].transpose(0, 1) for name in recording if name.endswith(".heads")}
        heads = _head_grids(second, clean_heads, recovered)
        stacks = [stack for stack in ("encoder", "decoder") if residual_points(second, stack)]
        residual = tuple(_patched_residual(first, second, stack, recording, recovered) for stack in stacks)
    answer_names = tuple(first.column_name(column) for column in columns)
    return Patching(
        clean=clean,
        corrupted=corrupted,
        answers=(answer_names[0], answer_names[1]),
        after=first.answer if isinstance(reader, Translator) else "",
        clean_difference=clean_difference,
        corrupted_difference=corrupted_difference,
        residual=residual,
        heads=heads,
    )


def _aligned(
    reader: Reader, clean: str, corrupted: str, after: str | None, *, needs_difference: bool
) -> tuple[Reading, Reading, int]:
    """Return the clean and the corrupted text as `Reading`s, and the index of the prediction to compare.

    In a translator, this is the prediction after `after`, or, if that is None, after what both translations begin with.
    In a language model, it is the last prediction. In an encoder, it is the last prediction, or with
    `needs_difference`, the first that differs between the texts.

    Raises:
        TransduceError: the numbers of tokens differ, both translations are equal, or the model does not fit.
    """
    if isinstance(reader, Parser):
        raise TransduceError("Patching compares two answers, but a parser writes trees: use a model of another kind.")
    if after is not None and not isinstance(reader, Translator):
        raise TransduceError(
            "`after` is the beginning of a translation, but this model does not translate: leave it out."
        )
    if isinstance(reader, Translator):
        vocabulary = reader.tokenizer.target
        if after is None:
            one, other = read(reader, clean).labels, read(reader, corrupted).labels
            shared = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
            if shared is None:
                raise TransduceError(
                    "Both texts have the same translation: name another corrupted text, or two answers and what "
                    "precedes them (`after`, --after)."
                )
            beginning = list(one[len(vocabulary.before) : shared])
        else:
            beginning = vocabulary.encode(after)
        first, second = read(reader, clean, beginning), read(reader, corrupted, beginning)
        row = len(vocabulary.before) + len(beginning)
    else:
        first, second, row = read(reader, clean), read(reader, corrupted), -1
    for name in ("source_tokens", "decoder_tokens"):
        counts = len(getattr(first, name)), len(getattr(second, name))
        if counts[0] != counts[1]:
            raise TransduceError(
                f"Activations are patched position by position, but the texts have {counts[0]} and {counts[1]} tokens: "
                "replace words by words of as many tokens."
            )
    if row < 0:
        pairs = list(zip(first.labels, second.labels, strict=True))
        differing = (number for number, pair in enumerate(pairs) if pair[0] != pair[1])
        row = len(pairs) - 1 if first.stack == "decoder" or not needs_difference else next(differing, 0)
    return first, second, row


def _answer_columns(first: Reading, second: Reading, row: int, answers: tuple[str, str] | None) -> tuple[int, int]:
    """Return the indices, in the logits of prediction `row`, of the answers to the clean and to the corrupted text.

    `first` is the reading of the clean text, `second` that of the corrupted one. Answers are named by `answers`; None:
    the prediction with the highest logit for each text.

    Raises:
        TransduceError: the model has no column with the name of an answer.
    """
    with torch.inference_mode():
        one, other = first.logits()[0, row], second.logits()[0, row]
    if answers is None:
        # A translator's own answers are the best tokens after what both translations begin with.
        return int(one.argmax()), int(other.argmax())
    names = {first.column_name(column): column for column in range(len(one))}
    for answer in answers:
        if answer not in names:
            raise TransduceError(
                f"The model cannot answer `{answer}`: write a token as the vocabulary does (▁ stands for a space), or "
                "the name of a class or tag."
            )
    return names[answers[0]], names[answers[1]]


def _difference(logits: Tensor, row: int, columns: tuple[int, int]) -> list[float]:
    """Return a list with the difference of two logits of prediction `row` for each copy of a text in a batch.

    `logits` is (copies, predictions, vocabulary size), and `columns` are the indices of the two tokens, classes or
    tags.
    """
    differences: list[float] = (logits[:, row, columns[0]] - logits[:, row, columns[1]]).tolist()
    return differences


def _patched_residual(
    first: Reading,
    second: Reading,
    stack: str,
    recording: Recording,
    recovered: Callable[[Mapping[str, Edit], int], list[float]],
) -> Grid:
    """Return a table, positions × layers, of the shares of a logit difference that patching restores.

    For each cell, the activation of the clean text after one layer and at one position replaces that of the corrupted
    text.

    Args:
        first: the clean text.
        second: the corrupted text.
        stack: "encoder" or "decoder".
        recording: the activations of the clean text.
        recovered: returns the restored shares for edits of a number of copies of the corrupted text.
    """
    tokens = [each.decoder_tokens if stack == "decoder" else each.source_tokens for each in (first, second)]
    names = residual_points(second, stack)
    size = max(1, _BATCH_TOKENS // max(1, len(second.source_tokens) + len(second.decoder_tokens)))
    columns = []
    for name in names:
        shares: list[float] = []
        for start in range(0, len(tokens[0]), size):
            # Copy n has the clean activation at the n-th position.
            positions = list(range(start, min(start + size, len(tokens[0]))))
            edit = _replacing((list(range(len(positions))), positions), recording[name][0, positions])
            shares += recovered({name: edit}, len(positions))
        columns.append(shares)
    return Grid(
        title=f"{stack}, residual stream",
        rows=tuple(one if one == other else f"{one} | {other}" for one, other in zip(*tokens, strict=True)),
        columns=("embedding", *_layer_names(len(names) - 1)),
        values=tuple(zip(*columns, strict=True)),
    )


# --- logit lens ---


class LogitLens(msgspec.Struct, frozen=True, kw_only=True):
    """A model's predictions after each layer, as if the layers above it were left out, for one text."""

    text: str
    answer: str
    """The model's output for the text: a translation, a class, tags, …"""
    stack: str
    """The stack whose layers are read: `encoder` or `decoder`."""
    outputs: tuple[str, ...]
    """A name for each prediction: the token that is predicted, the word that is tagged, or the class."""
    layers: tuple[str, ...]
    """Names of the layers: `embedding`, `layer 1`, …; after the last layer, predictions are the model's output."""
    candidates: tuple[tuple[tuple[TokenCandidate, ...], ...], ...]
    """For each layer and each prediction, a tuple of the most probable tokens, classes or tags with probabilities, best
    first: (layers, predictions, candidates).
    """
    probabilities: tuple[tuple[float, ...], ...]
    """The probability of the model's own output at each prediction after each layer, (layers, predictions)."""
    ranks: tuple[tuple[int, ...], ...]
    """The rank of the model's own output at each prediction after each layer, from 1, (layers, predictions)."""

    def draw(self) -> str:
        """Return a table, as text for a terminal, of the most probable token of each prediction after each layer.

        Each cell also has the token's probability in percent.
        """
        cells = [
            [f"{_cut(best.token)} {100 * best.probability:3.0f}" for best, *_ in row]
            for row in zip(*self.candidates, strict=True)
        ]
        title = f"{self.text}  →  {self.answer}\nmost probable after each layer of the {self.stack}, in per cent"
        return f"{localized(title)}\n\n{draw_cells(self.outputs, self.layers, cells)}"

    def chart(self) -> Chart:
        """Return a `Chart` with a heat map of the probability of the model's own output, predictions × layers."""
        values = tuple(zip(*self.probabilities, strict=True))
        title = "Probability of the output after each layer"
        grid = Grid(title=title, rows=self.outputs, columns=self.layers, values=values)
        return Chart((grid.panel(0.0, 1.0),))


@explain_wrong_types
def logit_lens(reader: Reader, text: str, target: str | None = None, *, candidates: int = 3) -> LogitLens:
    """Return a `LogitLens`: what a model would predict after each of its layers (nostalgebraist 2020).

    The residual stream after a layer passes through the final norm, if the model has one, and the output projection, or
    the head of classes or tags.

    Args:
        reader: a loaded model with Transformer layers, as `transduce.load` returns it; in fp32, because
            bfloat16 changes the third digit of the results.
        text: the text.
        target: for a translator, a translation of it; None: the model's own.
        candidates: the number of candidates for each prediction.

    Raises:
        TransduceError: the model has no such layers or no probabilities, or an option is invalid.
    """
    if candidates < 1:
        raise TransduceError(f"`candidates` must be at least 1, but is {candidates}.")
    reading = read(reader, text, target)
    _check_layers(reading)
    assert reading.final_norm is not None
    names = residual_points(reading, reading.stack)
    found, probabilities, ranks = [], [], []
    with torch.inference_mode():
        with record_activations(reading.model, names) as recording:
            reading.forward()
        for name in names:
            chances = reading.predict(reading.final_norm(recording[name])).softmax(dim=-1)  # (1, R, V)
            best = chances[0].topk(min(candidates, chances.shape[-1]), dim=-1)
            own = reading.chosen(chances)[0]  # (R,)
            rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            found.append(tuple(_candidates(reading, *row) for row in rows))
            probabilities.append(tuple(round(value, 6) for value in own.tolist()))
            ranks.append(tuple((1 + (chances[0] > own[:, None]).sum(dim=-1)).tolist()))
    return LogitLens(
        text=text,
        answer=reading.answer,
        stack=reading.stack,
        outputs=reading.outputs,
        layers=("embedding", *_layer_names(len(names) - 1)),
        candidates=tuple(found),
        probabilities=tuple(probabilities),
        ranks=tuple(ranks),
    )


def _candidates(reading: Reading, columns: Sequence[int], chances: Sequence[float]) -> tuple[TokenCandidate, ...]:
    """Return the tokens, classes or tags at these indices of the logits, with their probabilities, rounded."""
    pairs = zip(columns, chances, strict=True)
    return tuple(TokenCandidate(reading.column_name(column), round(chance, 6)) for column, chance in pairs)
