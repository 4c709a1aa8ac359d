"""Make `Chart` objects of losses, BLEU and attention, and those that explain the parts of a Transformer."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from transduce.errors import TransduceError
from transduce.evaluation.scores import check_line_counts, choose_tokenizer, make_metrics
from transduce.inspection.attention import AttentionKind, AttentionMaps
from transduce.inspection.plots import Chart, Curve, Curves, HeatMap, curve
from transduce.model.feed_forward import ACTIVATIONS
from transduce.model.masks import look_ahead_mask, padding_mask, target_mask
from transduce.model.positions import RotaryPositions, sinusoids
from transduce.text.files import unique_suffixes
from transduce.text.word_spans import split_words
from transduce.training.events import read_events
from transduce.training.schedule import ScheduleName, learning_rate, paper_peak
from transduce.ui_language import localized

_MAX_GROUPS = 6
_MIN_SENTENCES = 20  # of a group; BLEU of fewer is unreliable


class _MetricsLine(msgspec.Struct, frozen=True):
    """A line of a run's metrics.jsonl, with the fields that charts plot; other fields are ignored."""

    event: str
    step: int
    loss: float | None
    """Training or dev loss in nats per token; None if no step updated the model since the last report."""
    bleu: float | None = None


def plot_training(runs: Sequence[Path]) -> Chart:
    """Return a chart of losses and BLEU over the steps of one or several runs, of which `runs` are the folders.

    Raises:
        TransduceError: a folder has no `metrics.jsonl`, the file is damaged, or no run has a measurement yet.
    """
    lines = {name: _read_metrics(run) for name, run in zip(unique_suffixes(runs), runs, strict=True)}
    losses, bleu = list[Curve](), list[Curve]()
    for color, (name, run_lines) in enumerate(lines.items()):
        prefix = f"{name}: " if len(lines) > 1 else ""
        for event, label in (("train", localized("training")), ("validation", localized("dev"))):
            is_dev = event == "validation"
            points = [(line.step, line.loss) for line in run_lines if line.event == event]
            losses += _curve_of(f"{prefix}{label}", points, color=color, dashed=not is_dev, marked=is_dev)
        points = [(line.step, line.bleu) for line in run_lines if line.event == "validation"]
        bleu += _curve_of(name, points, color=color, marked=True)
    panels = [
        Curves(localized("Loss"), "step", "nats per token", tuple(losses)),
        Curves("Dev BLEU", "step", "BLEU", tuple(bleu)),
    ]
    shown = tuple(panel for panel in panels if panel.curves)
    if not shown:
        raise TransduceError(f"{runs[0]} has no measurements yet: let the run go on until its first report.")
    return Chart(shown)


def _curve_of(name: str, points: Iterable[tuple[int, float | None]], **look: Any) -> list[Curve]:
    """Return a list with one curve through points (step, value).

    Points whose value is None are left out. The list is empty if no point is left.
    """
    known = [point for point in points if point[1] is not None]
    return [curve(name, *zip(*known, strict=True), **look)] if known else []


def _read_metrics(run: Path) -> list[_MetricsLine]:
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise TransduceError(f"{path} does not exist: pass a folder that `transduce train` made.")
    return read_events(run, _MetricsLine)


def plot_variants(runs: Mapping[str, Sequence[Path]], scores: Mapping[str, Mapping[int, float]], measure: str) -> Chart:
    """Return a chart of an experiment: the scores of each variant's runs by seed, and its mean dev loss by step.

    Args:
        runs: the folders of the finished runs of each variant, by the variant's name.
        scores: the score of each variant's runs, by the variant's name and by seed.
        measure: the name of the score.
    """
    by_seed = [curve(name, list(values), list(values.values()), marked=True) for name, values in scores.items()]
    losses = list[Curve]()
    for name, folders in runs.items():
        of_runs = [
            {line.step: line.loss for line in _read_metrics(folder) if line.event == "validation" and line.loss}
            for folder in folders
        ]
        common = sorted(set.intersection(*(set(each) for each in of_runs))) if of_runs else []
        losses += _curve_of(
            name, [(step, float(np.mean([each[step] for each in of_runs]))) for step in common], marked=True
        )
    panels = [Curves(f"{measure} by seed", "seed", measure, tuple(by_seed))]
    if losses:
        panels.append(Curves("Mean dev loss", "step", "nats", tuple(losses)))
    return Chart(tuple(panels))


def plot_lengths(
    sources: Sequence[str],
    references: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    *,
    target_language: str | None,
) -> Chart:
    """Return a chart with a curve for each system: BLEU of test sentences by their length.

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
        curves.append(curve(name, [float(lengths[group].mean()) for group in groups], scores, marked=True))
    counts = " / ".join(str(len(group)) for group in groups)
    title, length = f"BLEU by length ({counts} sentences)", "source words (characters where there are no spaces)"
    return Chart((Curves(title, length, "BLEU", tuple(curves)),))


def group_by_length(lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[list[int]]:
    """Group lines by length; return a list of groups, each a list of line indices.

    Groups are in order of length, shortest lines first, and of about equal size. There are at most 6 groups, of about
    20 lines or more. Lines of equal length stay together.

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


def plot_attention(maps: AttentionMaps, *, kind: AttentionKind | None, layer: int | None) -> Chart:
    """Return a chart with a heat map of attention for every head of one layer, for one text.

    Args:
        maps: the attention of a model for the text, see `attention_maps`.
        kind: `memory` (cross-attention), `encoder` or `decoder` (self-attention); None: the first that the model has.
        layer: layer number from 1; None: the last one.

    Raises:
        TransduceError: the model has no attention of this kind, or no such layer.
    """
    kind = maps.kinds[0] if kind is None else kind
    if kind not in maps.kinds:
        raise TransduceError(
            f"`--attention` must be {' or '.join(maps.kinds)} for this model, which has no other, but is {kind}."
        )
    weights, rows, columns = maps.of(kind)
    layers, heads = weights.shape[:2]
    if layer is not None and not 1 <= layer <= layers:
        raise TransduceError(f"`--layer` must be from 1 to {layers}, but is {layer}.")
    chosen = layers if layer is None else layer
    key = "target token" if kind == "decoder" else "source token"
    query = "source token" if kind == "encoder" else "target token"
    if len(maps.kinds) == 1:
        query = key = "token"
    panels = tuple(
        HeatMap(
            f"layer {chosen}, head {head + 1}",
            key,
            query,
            weights[chosen - 1, head].astype(np.float64),  # (Q, L)
            row_names=rows,
            column_names=columns,
        )
        for head in range(heads)
    )
    # Rows of at most four panels, about equally long.
    return Chart(panels, columns=min(4, math.ceil(heads / math.ceil(heads / 4))))


# --- charts that explain the parts of a Transformer, computed with the model's own modules ---
# Shapes: T positions, D model width.


_POINTS = 400


def plot_positions(*, length: int, d_model: int) -> Chart:
    """Return a chart of the sinusoidal positions of the paper's section 3.5: the whole table, and some of its columns.

    Dimension 2i of position p is sin(p / 10000^(2i/d_model)), and dimension 2i + 1 its cosine. `length` is the number
    of positions.
    """
    _check_even(d_model)
    table = sinusoids(length, d_model, interleaved=True).double().numpy()  # (T, D)
    curves = tuple(
        curve(f"dimension {dimension}", np.arange(length), table[:, dimension])
        for dimension in _readable(length, d_model)
    )
    heat_map = HeatMap("Sinusoidal positions", "dimension", "position", table, minimum=-1.0)
    return Chart((heat_map, Curves("Sines of some dimensions", "position", "value", curves)))


def _readable(length: int, d_model: int) -> list[int]:
    """Return a sorted list of at most four dimensions whose sinusoids are readable in a plot.

    The dimensions are even, and their sinusoids have about 8, 4, 2 and 1 periods in `length` positions.
    """
    exponents = [math.log(max(1.0, length / times / math.tau), 10000.0) for times in (8, 4, 2, 1)]
    return sorted({2 * min(round(exponent * d_model / 2), d_model // 2 - 1) for exponent in exponents})


def plot_rotation(*, length: int, d_k: int) -> Chart:
    """Return a chart on rotary embeddings (Su et al. 2021): the product of query and key by their positions.

    The chart shows that the product depends on distance only. Query and key are the same vector with norm 1, all
    numbers equal, so that the product at distance 0 is 1.
    """
    _check_even(d_k)
    vector = torch.full((1, 1, length, d_k), d_k**-0.5, dtype=torch.float64)
    rotated = RotaryPositions(d_k)(torch.arange(length), torch.float64).apply(vector)[0, 0]  # (T, K)
    products = (rotated @ rotated.T).numpy()  # (T, T)
    heat_map = HeatMap(
        "Query · key after the rotation", "position of the key", "position of the query", products, minimum=-1.0
    )
    curves = (
        curve("from the first query", np.arange(length), products[0]),
        curve("from the last query", np.arange(length) - length + 1, products[-1]),
    )
    by_distance = Curves("Query · key by distance", "key's position − query's position", "query · key", curves)
    return Chart((heat_map, by_distance))


def plot_masks(*, length: int, padding: int) -> Chart:
    """Return a chart with a target's look-ahead mask, padding mask and both: 1 where a query may attend to a key.

    The last `padding` of `length` tokens are padding.

    Raises:
        TransduceError: `padding` is negative, or not less than `length`.
    """
    if not 0 <= padding < length:
        raise TransduceError(f"`--padding` must be from 0 to {length - 1} (`--length` - 1), but is {padding}.")
    ids = torch.ones(1, length, dtype=torch.int64)
    ids[0, length - padding :] = 0
    masks = {
        "Look-ahead mask": look_ahead_mask(length).allowed[0, 0],
        "Padding mask": padding_mask(ids, 0).allowed[0, 0].expand(length, length),
        "Both: the target's mask": target_mask(ids, 0).allowed[0, 0],
    }
    key = "key (shaded: may be attended to)"
    return Chart(tuple(HeatMap(title, key, "query", each.double().numpy()) for title, each in masks.items()))


def plot_schedules(
    *, schedules: Sequence[ScheduleName], warmups: Sequence[int], widths: Sequence[int], steps: int
) -> Chart:
    """Return a chart of learning rates by step: a curve for each combination of schedule, width and warm-up.

    The peak rate is the paper's for that width and warm-up.
    """
    x = np.unique(np.linspace(1, steps, min(steps, _POINTS)).round().astype(np.int64))
    curves = []
    for schedule, width, warmup in product(schedules, widths, warmups):
        peak = paper_peak(width, warmup)
        rate = partial(learning_rate, schedule=schedule, peak=peak, warmup_steps=warmup, steps=steps)
        curves.append(curve(f"{schedule}, d_model {width}, warm-up {warmup:,}", x, list(map(rate, x.tolist()))))
    return Chart((Curves("Learning rate", "step", "rate", tuple(curves)),))


def plot_activations() -> Chart:
    """Return a chart of the activation functions of feed-forward layers, and of their derivatives."""
    x = torch.linspace(-4.0, 4.0, _POINTS, dtype=torch.float64, requires_grad=True)
    values, slopes = list[Curve](), list[Curve]()
    for name, function in ACTIVATIONS.items():
        y = function(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        # Every second curve has dashes, which leave the one below visible: gelu and gelu-tanh differ by 0.0005.
        look = {"dashed": len(values) % 2 == 1}
        values.append(curve(name, x.detach().numpy(), y.detach().numpy(), **look))
        slopes.append(curve(name, x.detach().numpy(), slope.numpy(), **look))
    functions = Curves("Activation functions", "input", "output", tuple(values))
    return Chart((functions, Curves("Their slopes", "input", "slope", tuple(slopes))))


def _check_even(width: int) -> None:
    if width < 2 or width % 2:
        raise TransduceError(f"Positions come in pairs of dimensions, so `--d-model` must be even, but is {width}.")
