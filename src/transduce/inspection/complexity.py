"""Measure what layers and training cost, beside Tables 1 and 2 of "Attention Is All You Need".

Table 1 compares layers by operations, by sequential operations and by the longest path between two positions. Here,
gradients measure a path, the longest chain in the recorded computation shows sequential operations, and processor time
at several lengths and widths shows complexity. Tensors: n positions, d width.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import TransduceError
from transduce.model.attention import Window, attend, attend_in_window
from transduce.training.choices import PRESETS, count_multiplied_weights
from transduce.ui_language import aligned, localized

# --- reports ---


Cell = str | int | float | None


class PaperReport(msgspec.Struct, frozen=True, kw_only=True):
    """A table or figure of "Attention Is All You Need", reproduced, with notes; `str` formats it as a table of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [[localized(_shown(cell)) for cell in row] for row in (self.columns, *self.rows)]
        return "\n".join([self.title, "", *aligned(rows), *([""] if self.notes else []), *self.notes])


def _shown(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.1e}" if abs(cell) >= 1e6 else f"{cell:.2f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


# --- Table 1: layers ---


class LayerType(NamedTuple):
    """A type of layer in Table 1 of the paper: the paper's formulas, and functions that compute such a layer."""

    name: str
    formulas: tuple[str, str, str]
    """The paper's formulas of a layer's operations, such as "O(n² · d)", of the operations that must wait for one
    another, and of the longest path between two positions, in layers or steps.
    """
    run: Callable[[Tensor, int], Tensor]
    """A function of x (n, d) and a layer's index from 0, which selects its weights, that returns the layer's output (n,
    d).
    """
    timed: Callable[[int, int], Callable[[], object]]
    """A function of n and d that returns a function to be timed: it has no arguments, and computes a layer for n
    positions of width d.
    """


def compare_layers(
    *,
    lengths: Sequence[int] = (16, 32, 64, 128),
    timed_lengths: Sequence[int] = (512, 1_024, 2_048),
    timed_widths: Sequence[int] = (128, 256, 512),
    kernel: int = 3,
    radius: int = 4,
) -> PaperReport:
    """Return Table 1 of the paper with measured path lengths, sequential operations and times, as a `PaperReport`.

    Args:
        lengths: the numbers n of positions for paths and sequential operations.
        timed_lengths: the numbers n of positions for times, at the smallest of the widths.
        timed_widths: the widths d for times, at the smallest of the lengths.
        kernel: the positions k that a convolution reads.
        radius: the positions to each side that restricted self-attention reads; r of the table is 2 × radius + 1.

    Raises:
        TransduceError: a number is out of its range.
    """
    _check_sizes(lengths, timed_lengths, timed_widths, kernel, radius)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so that processor time is the time of the computation
    try:
        rows = [_measure(each, lengths, timed_lengths, timed_widths) for each in layer_types(kernel, radius)]
    finally:
        torch.set_num_threads(before)
    paper, sizes = ("complexity", "sequential", "path"), "/".join(map(str, lengths))
    times = [f"{timed_lengths[-1]}×{timed_widths[0]}", f"{timed_lengths[0]}×{timed_widths[-1]}"]
    return PaperReport(
        title=f"Table 1: n positions of width d, kernel k = {kernel}, neighborhood r = {2 * radius + 1}",
        columns=("layer type", *paper, f"path, n={sizes}", "chain, the same n", "time", *times),
        rows=tuple(rows),
        notes=(
            "complexity, sequential, path: the paper's. Then, measured: how many layers (recurrent: steps) until the",
            "last output depends on the first input, by its gradient; the longest chain of operations that wait for",
            "one another; the time of one layer in one thread, without projections, as n^a · d^b and in ms at n×d.",
        ),
    )


def _check_sizes(
    lengths: Sequence[int], timed_lengths: Sequence[int], timed_widths: Sequence[int], kernel: int, radius: int
) -> None:
    if kernel < 2:
        raise TransduceError(f"`kernel` must be at least 2, but is {kernel}.")
    if radius < 1:
        raise TransduceError(f"`radius` must be at least 1, but is {radius}.")
    for name, values in (("lengths", lengths), ("timed_lengths", timed_lengths), ("timed_widths", timed_widths)):
        if len(values) < 2 or min(values) < 2 or list(values) != sorted(set(values)):
            raise TransduceError(f"`{name}` must be two or more rising numbers of at least 2, but is {list(values)}.")


def layer_types(kernel: int, radius: int) -> tuple[LayerType, ...]:
    """Return the four layer types of Table 1 of the paper: self-attention, recurrent, convolutional and restricted.

    A convolution reads `kernel` positions, the last of which is its own, as in ByteNet's decoder. Layer i is dilated by
    kernel^i, so that a path has log_k(n) layers. Restricted self-attention reads `radius` positions to each side.
    """
    window = Window(radius, causal=False, present=None, bias=None)

    def convolution(x: Tensor, layer: int) -> Tensor:
        weight = _weights(x.shape[1], x.shape[1], kernel, seed=layer)
        dilation = kernel**layer
        padded = F.pad(x.T[None], ((kernel - 1) * dilation, 0))
        return F.conv1d(padded, weight, dilation=dilation)[0].T

    def restricted(query: Tensor) -> Tensor:
        return attend_in_window(attend, query, query, query, window)

    def in_heads(attention: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
        return lambda x, _: attention(x[None, None])[0, 0]

    return (
        LayerType(
            "Self-Attention",
            ("O(n² · d)", "O(1)", "O(1)"),
            in_heads(lambda query: attend(query, query, query)),
            lambda n, d: _timed(lambda x: attend(x, x, x), 1, 1, n, d),
        ),
        LayerType(
            "Recurrent",
            ("O(n · d²)", "O(n)", "O(n)"),
            run_recurrent,
            lambda n, d: _timed(nn.RNN(d, d, batch_first=True), 1, n, d),
        ),
        LayerType(
            "Convolutional",
            ("O(k · n · d²)", "O(1)", "O(log_k(n))"),
            convolution,
            lambda n, d: _timed(nn.Conv1d(d, d, kernel, padding=kernel // 2), 1, d, n),
        ),
        LayerType(
            "Self-Attention (restricted)",
            ("O(r · n · d)", "O(1)", "O(n/r)"),
            in_heads(restricted),
            lambda n, d: _timed(restricted, 1, 1, n, d),
        ),
    )


def run_recurrent(x: Tensor, layer: int, states: list[Tensor] | None = None) -> Tensor:
    """Compute a layer of plain recurrent cells from x (n, d), position by position, and return the states, (n, d).

    `layer` seeds the random weights. The state of each position is also appended to the list `states`, if any, so that
    its gradient can be taken.
    """
    width = x.shape[1]
    inner, outer = _weights(width, width, seed=layer), _weights(width, width, seed=layer + 1)
    state, outputs = torch.zeros(width, dtype=x.dtype), list[Tensor]()
    for row in x:
        state = torch.tanh(row @ inner + state @ outer)
        outputs.append(state)
    if states is not None:
        states += outputs
    return torch.stack(outputs)


def _weights(*shape: int, seed: int) -> Tensor:
    weights = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return weights / math.sqrt(math.prod(shape[1:]))


def _timed(compute: Callable[[Tensor], object], *shape: int) -> Callable[[], object]:
    x = torch.randn(*shape)
    return lambda: compute(x)


_WIDTH = 8  # of layers whose paths are measured


def path_length(layer: LayerType, n: int) -> int:
    """Return the number of layers, or of recurrent steps, on the path from the first of n inputs to the last output.

    Layers are stacked until the gradient of the last output by the first input is not zero, at most n. In a recurrent
    layer, the states that the gradient passes are counted.
    """
    x = torch.randn(n, _WIDTH, generator=torch.Generator().manual_seed(n), dtype=torch.float64, requires_grad=True)
    if layer.run is run_recurrent:
        states: list[Tensor] = []
        run_recurrent(x, 0, states)
        gradients = torch.autograd.grad(states[-1].sum(), states)
        return sum(bool(gradient.any()) for gradient in gradients)
    output = x
    for depth in range(n):
        output = layer.run(output, depth)
        (gradient,) = torch.autograd.grad(output[-1].sum(), x, retain_graph=True)
        if gradient[0].any():
            return depth + 1
    return n


def chain_length(output: Tensor) -> int:
    """Return the length of the longest chain of operations, recorded by autograd, that leads to a tensor.

    Operations on the chain must wait for one another, so that the length measures a layer's sequential operations.
    """
    root: Any = output.grad_fn
    lengths: dict[Any, int] = {}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        before = [one for one, _ in node.next_functions if one is not None]
        missing = [one for one in before if one not in lengths]
        if missing:
            waiting += missing
            continue
        lengths[node] = 1 + max((lengths[one] for one in before), default=0)
        waiting.pop()
    return lengths[root]


_SIZE = 1_024
_REPETITIONS = 7


def _milliseconds(run: Callable[[], object]) -> float:
    """Return the median processor time of 7 runs of a function, in milliseconds, in this thread."""
    return 1e3 * _median_time(run, time.thread_time)


def _median_time(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the median time of 7 runs of a function, in seconds, by a clock; one run before warms up."""
    run()
    times = []
    for _ in range(_REPETITIONS):
        before = clock()
        run()
        times.append(clock() - before)
    return statistics.median(times)


def _exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the exponent p for which times proportional to size^p fit the measured times best (by logarithms)."""
    xs, ys = ([math.log(value) for value in values] for values in (sizes, times))
    return statistics.linear_regression(xs, ys).slope


@torch.no_grad()
def _times(layer: LayerType, lengths: Sequence[int], widths: Sequence[int]) -> tuple[list[float], list[float]]:
    by_length = [_milliseconds(layer.timed(n, widths[0])) for n in lengths]
    return by_length, [by_length[0], *(_milliseconds(layer.timed(lengths[0], d)) for d in widths[1:])]


def _measure(
    layer: LayerType, lengths: Sequence[int], timed_lengths: Sequence[int], timed_widths: Sequence[int]
) -> tuple[Cell, ...]:
    by_length, by_width = _times(layer, timed_lengths, timed_widths)
    paths = "/".join(str(path_length(layer, n)) for n in lengths)
    inputs = (torch.randn(n, _WIDTH, dtype=torch.float64, requires_grad=True) for n in lengths)
    chains = "/".join(str(chain_length(layer.run(x, 0))) for x in inputs)
    exponents = _exponent(timed_lengths, by_length), _exponent(timed_widths, by_width)
    time_needed = f"n^{exponents[0]:.1f} · d^{exponents[1]:.1f}"
    return (layer.name, *layer.formulas, paths, chains, time_needed, by_length[-1], by_width[-1])


# --- Table 2: training cost ---


# A model's BLEU on newstest2014 (EN-DE, EN-FR) and its training cost in operations (EN-DE, EN-FR), as the paper prints
# them; None: not reported.
TABLE_2: tuple[tuple[Cell, ...], ...] = (
    ("ByteNet", 23.75, None, None, None),
    ("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    ("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    ("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    ("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    ("Deep-Att + PosUnk Ensemble", None, 40.4, None, 8.0e20),
    ("GNMT + RL Ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    ("ConvS2S Ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    ("Transformer (base model)", 27.3, 38.1, 3.3e18, 3.3e18),
    ("Transformer (big)", 28.4, 41.8, 2.3e19, 2.3e19),
)
_P100_FLOPS = 9.5e12  # sustained single precision, footnote 5 of the paper
_GPUS = 8
_HOURS = {"paper-base": 12.0, "paper-big": 3.5 * 24}
_STEPS = {"paper-base": 100_000, "paper-big": 300_000}
_STEP_TOKENS, _VOCABULARY = 25_000, 37_000


def training_flops(preset: str) -> float:
    """Return how many floating-point operations the matrix multiplications of a training run of the paper take.

    `preset` is `paper-base` or `paper-big`. There are 6 operations for each weight and token, forward and backward,
    with 25,000 tokens a side in each step. Attention scores and attention's weighted sums, which depend on the lengths,
    are left out.
    """
    return 6.0 * count_multiplied_weights(PRESETS[preset], _VOCABULARY) * _STEP_TOKENS * _STEPS[preset]


def measure_flops() -> float:
    """Return this machine's float32 operations per second in a square matrix product, with all of PyTorch's threads.

    Processor time, divided by the number of threads, is measured, so that other programs do not count.
    """
    one, other = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    return 2.0 * _SIZE**3 / _median_time(lambda: one @ other, time.process_time) * torch.get_num_threads()


def training_costs(model: str | None = None, bleu: float | None = None, scores: Sequence[str] = ()) -> PaperReport:
    """Return Table 2 of the paper as a `PaperReport`, with how its costs were computed, and days on this machine.

    The days are a lower limit: they assume matrix multiplications at full speed and nothing else.

    Args:
        model: the name of a model that was trained here; None: the paper's rows alone.
        bleu: the BLEU of that model on a test set of yours.
        scores: lines that describe the score, with sacreBLEU's signature.
    """
    columns: tuple[str, ...] = ("model", "EN-DE", "EN-FR", "cost EN-DE", "cost EN-FR")
    rows = TABLE_2
    speed = measure_flops()
    notes = [f"This machine multiplies matrices with {speed / 1e9:,.0f} Gflop/s in float32."]
    for preset, hours in _HOURS.items():
        paper = hours * 3_600 * _GPUS * _P100_FLOPS
        counted = training_flops(preset)
        notes.append(
            f"{preset}: the paper's {hours:g} hours × {_GPUS} GPUs × 9.5 Tflop/s = {paper:.1e}; its matrix "
            f"multiplications have {counted:.1e} ({counted / paper:.0%}), here at least "
            f"{counted / speed / 86_400:,.0f} days."
        )
    if model is not None:
        columns = (*columns, "your test set")
        rows = (*((*row, None) for row in rows), (model, None, None, None, None, bleu))
        notes += ["BLEU of another test set cannot be compared with the paper's.", *scores]
    title = "Table 2: BLEU on newstest2014 and training cost in floating-point operations, as the paper reports them"
    return PaperReport(title=title, columns=columns, rows=rows, notes=tuple(notes))
