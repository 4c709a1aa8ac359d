"""Plots of measurements: a run's losses and BLEU, BLEU by length, and attention."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from transduce.errors import TransduceError
from transduce.evaluation.scores import check_line_counts, make_metrics
from transduce.evaluation.tokenizers import choose_tokenizer
from transduce.inspection.charts import Chart, Curve, Curves, HeatMap, curve
from transduce.inspection.payload import AttentionBytes, Inspection, from_bytes
from transduce.text.word_spans import split_words

_MAX_GROUPS = 6
_MIN_SENTENCES = 20  # of a group; BLEU of fewer is unreliable


class _Line(msgspec.Struct, frozen=True):
    """The plotted fields of a line of metrics.jsonl."""

    event: str
    step: int
    loss: float | None
    """None if no step updated the model since the last report."""
    bleu: float | None = None


def plot_training(runs: Sequence[Path]) -> Chart:
    """Return a chart of losses and BLEU over the steps of one or several runs.

    Raises:
        TransduceError: a folder has no `metrics.jsonl`, or it is damaged.
    """
    lines = {name: _read_metrics(run) for name, run in zip(short_names(runs), runs, strict=True)}
    panels = [
        Curves(
            title=title,
            x_label="step",
            y_label=label,
            curves=tuple(_curve_of(name, run_lines, event, field) for name, run_lines in lines.items()),
            marked=event == "validation",
        )
        for title, label, event, field in (
            ("Training loss", "nats per token", "train", "loss"),
            ("Dev loss", "nats per token", "validation", "loss"),
            ("Dev BLEU", "BLEU", "validation", "bleu"),
        )
    ]
    shown = [panel for panel in panels if any(len(run_lines.x) for run_lines in panel.curves)]
    if not shown:
        raise TransduceError(f"{runs[0]} has no measurements yet: let the run go on until its first report.")
    return Chart(tuple(shown))


def _curve_of(name: str, lines: Sequence[_Line], event: str, field: str) -> Curve:
    chosen = [line for line in lines if line.event == event]
    values = [(line.step, line.bleu if field == "bleu" else line.loss) for line in chosen]
    points = [(step, value) for step, value in values if value is not None]
    return curve(name, [step for step, _ in points], [value for _, value in points])


def _read_metrics(run: Path) -> list[_Line]:
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise TransduceError(f"{path} does not exist: pass a folder that `transduce train` made.")
    lines = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            lines.append(msgspec.json.decode(line, type=_Line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransduceError(f"{path}, line {number}, is not what a run writes: {error}.") from None
    return lines


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest path endings that are unique."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(path_parts[-length:]) for path_parts in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(path) for path in paths]


def plot_lengths(
    sources: Sequence[str],
    references: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    *,
    target_language: str | None,
) -> Chart:
    """Return a chart of BLEU by sentence length.

    Length is counted in source words, or in characters for scripts without spaces. Groups have about equal numbers of
    sentences; each is plotted at its mean length.

    Args:
        sources: the test set's source sentences.
        references: reference translations.
        systems: translations to score, by name.
        target_language: selects sacreBLEU's tokenizer.

    Raises:
        TransduceError: line counts differ, or there are too few lines.
    """
    check_line_counts({"sources": sources, "references": references} | dict(systems))
    lengths = np.array([len(split_words(source)) for source in sources])
    groups = group_by_length(lengths)
    bleu, _ = make_metrics(choose_tokenizer(target_language, None).name, lowercase=False)
    curves = []
    for name, hypotheses in systems.items():
        scores = [
            bleu.corpus_score([hypotheses[line] for line in group], [[references[line] for line in group]]).score
            for group in groups
        ]
        curves.append(curve(name, [float(lengths[group].mean()) for group in groups], scores))
    counts = " / ".join(str(len(group)) for group in groups)
    return Chart(
        (
            Curves(
                title=f"BLEU by length ({counts} sentences)",
                x_label="source words (characters where there are no spaces)",
                y_label="BLEU",
                curves=tuple(curves),
                marked=True,
            ),
        )
    )


def group_by_length(lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[list[int]]:
    """Return the indices of lines grouped by similar length, shortest first; lines of equal length stay together.

    Raises:
        TransduceError: there are too few lines for one group.
    """
    if len(lengths) < _MIN_SENTENCES:
        raise TransduceError(
            f"BLEU of a group needs at least {_MIN_SENTENCES} sentences, but there are {len(lengths)}: pass more."
        )
    num_groups = min(_MAX_GROUPS, len(lengths) // _MIN_SENTENCES)
    group_size = len(lengths) / num_groups
    groups: list[list[int]] = [[]]
    for length in np.unique(lengths).tolist():
        indices = np.nonzero(lengths == length)[0].tolist()
        if groups[-1] and len(groups[-1]) + len(indices) / 2 > group_size:
            groups.append([])
        groups[-1].extend(indices)
    if len(groups) > 1 and len(groups[-1]) < _MIN_SENTENCES:
        groups[-2].extend(groups.pop())
    return groups


def plot_attention(inspection: Inspection, *, kind: str, layer: int | None) -> Chart:
    """Return a chart with the attention of every head of a layer, for one translated sentence.

    Args:
        inspection: the inspection of the sentence.
        kind: memory (cross-attention), encoder, or decoder.
        layer: layer number from 1; None: the last one.

    Raises:
        TransduceError: there is no such layer.
    """
    packed, rows, columns = _attention_of(inspection, kind)
    layers, heads = packed.shape[:2]
    if layer is not None and not 1 <= layer <= layers:
        raise TransduceError(f"`--layer` must be from 1 to {layers}, but is {layer}.")
    chosen = layers if layer is None else layer
    weights = from_bytes(packed)[chosen - 1].astype(np.float64)  # (H, Q, L)
    names = {"memory": "source token", "encoder": "source token", "decoder": "target token"}
    return Chart(
        tuple(
            HeatMap(
                title=f"layer {chosen}, head {head + 1}",
                x_label=names[kind] if head + columns_of(heads) >= heads else "",
                y_label="",
                values=weights[head],
                least=0.0,
                most=1.0,
                row_names=rows,
                column_names=columns,
            )
            for head in range(heads)
        ),
        columns=columns_of(heads),
    )


def columns_of(heads: int) -> int:
    """Return the number of panels per row that makes the picture about as wide as a page."""
    return min(4, math.ceil(heads / math.ceil(heads / 4)))


def _attention_of(inspection: Inspection, kind: str) -> tuple[AttentionBytes, tuple[str, ...], tuple[str, ...]]:
    source, target = inspection.source_pieces, inspection.target_pieces
    if kind == "encoder":
        return inspection.encoder, source, source
    if kind == "decoder":
        return inspection.decoder, target, ("<start>", *target[:-1])
    return inspection.memory, target, source
