"""Compute the cross-entropy with label smoothing (section 5.4), fused with the output projection.

The logits of a whole batch would be its largest tensor by far (4,096 × 32,000). They are computed, used and discarded
in chunks of rows; their gradient has a closed form and is computed in the same pass.
Legend: N target positions, D model width, V vocabulary.
"""

import itertools
from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from transduce.kernel_interfaces import Projection, TrainingKernels
from transduce.model.backend import add_product, add_to, backend_in_use, sum_of_gradients
from transduce.training.distributed import Processes

# Logits per chunk: on a CPU at most 8 MB in bfloat16, which stay in its cache, but enough rows to amortize the addition
# to the weight gradient, whose cost does not depend on the rows. A GPU needs large matrix multiplications.
_CHUNK_ELEMENTS, _MIN_ROWS, _CHUNK_ELEMENTS_OF_GPU = 1 << 22, 256, 1 << 27
_BLOCK_ROWS = 4096  # of the weight gradient on a CPU: each block stays in the cache until it is added in float32
_TINY = torch.finfo(torch.float32).tiny  # a probability below it, e^-87, is too inexact


class Loss(NamedTuple):
    """The loss of a batch: sums over its target tokens, in nats, which the caller divides once per step."""

    total: Tensor
    """The sum that is minimized, with label smoothing: a scalar, float32 (float64 if the model is)."""
    negative_log_likelihood: Tensor
    """The sum without smoothing, whose mean gives the perplexity: a scalar of the same type, detached."""
    tokens: int
    """The number of target tokens, including end symbols and excluding padding."""
    weight: float | None = None
    """The sum of the target tokens' weights, by which the sums are divided; None: every token has the weight 1."""

    @property
    def divisor(self) -> float:
        """The divisor that turns sums into means: the sum of the tokens' weights, or without weights their number."""
        return self.tokens if self.weight is None else self.weight

    def uncounted(self) -> "Loss":
        """Return a loss that counts nothing: its sums and numbers are 0, and the gradient of every parameter is 0."""
        zero = None if self.weight is None else 0.0
        return Loss(0.0 * self.total, 0.0 * self.negative_log_likelihood, 0, zero)


class StepTotals(NamedTuple):
    """Sums over the micro-batches of a training step, in this process (`add`) or in all processes (`sum_over`)."""

    tokens: int = 0
    """The number of target tokens."""
    divisor: float = 0.0
    """The sum of the tokens' weights, by which the sums are divided; without weights, the number of tokens."""
    total: float = 0.0
    """The summed loss in nats, with label smoothing."""
    negative_log_likelihood: float = 0.0
    """The summed negative log-likelihood of the target tokens in nats, without label smoothing."""
    stop: int = 0
    """The number of processes that got a signal to stop the run."""

    def add(self, loss: Loss) -> "StepTotals":
        """Return these totals plus the sums of one more micro-batch."""
        return StepTotals(
            self.tokens + loss.tokens,
            self.divisor + loss.divisor,
            self.total + float(loss.total.detach()),
            self.negative_log_likelihood + float(loss.negative_log_likelihood),
        )

    def sum_over(self, processes: Processes, *, stop: bool) -> "StepTotals":
        """Return the step's totals over all processes.

        Every process must call this method on its own totals.

        Args:
            processes: the processes of the run.
            stop: True if this process got a signal to stop. The result's `stop` is the number of processes that got
                one.
        """
        if processes.count == 1:
            return self._replace(stop=int(stop))
        tokens, divisor, total, negative_log_likelihood, stops = processes.sum([*self[:-1], float(stop)])
        return StepTotals(int(tokens), divisor, total, negative_log_likelihood, int(stops))


M = TypeVar("M", bound=nn.Module)


class Objective(ABC, Generic[M]):
    """A base class of training objectives: a function from a batch to the loss of a model."""

    def __init__(self, model: M, *, label_smoothing: float = 0.0) -> None:
        """Create the objective of a model; `label_smoothing` is ε of section 5.4."""
        self.model = model
        self.label_smoothing = label_smoothing

    def __call__(self, batch: Any) -> Loss:
        """Return the `Loss` of a batch, as the subclass's method `loss` computes it."""
        return self.loss(batch)

    @abstractmethod
    def loss(self, batch: Any) -> Loss:
        """Return the `Loss` of a batch: sums over its labels, which the caller divides by their number or weight."""


def projected_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    pad_id: int | None,
    bias: Tensor | None = None,
    frozen_row: int | None = None,
    label_smoothing: float = 0.0,
    sentence_weights: Tensor | None = None,
) -> Loss:
    """Compute the cross-entropy of softmax(hidden · weightᵀ + bias) with labels smoothed by ε, in chunks of positions.

    The target distribution is 1 - ε at the label plus ε / V everywhere. The result is a `Loss`.

    Args:
        hidden: the decoder's output, (B, T, D).
        weight: the output projection, (V, D).
        labels: the tokens to predict, (B, T); `pad_id` or a negative number marks positions without a label.
        pad_id: the padding id; None if there is no padding.
        bias: the output projection's bias, (V,); None: there is none.
        frozen_row: a row of weight and bias that gets no gradient; None if all rows are trained.
        label_smoothing: ε.
        sentence_weights: factors of the losses of the B sentences, (B,), float32; None: 1.

    Returns:
        Sums over the labels that are not padding.
    """
    counted = labels >= 0 if pad_id is None else (labels >= 0) & (labels != pad_id)
    present = counted.flatten().nonzero().flatten()
    rows = hidden.flatten(0, 1)  # (B × T, D)
    if len(present) < len(rows):
        rows = rows.index_select(0, present)
    present_labels = labels.flatten()[present]  # (N,)
    factors = None if sentence_weights is None else sentence_weights[:, None].expand_as(labels).flatten()[present]
    return row_cross_entropy(
        rows, weight, present_labels, bias=bias, frozen_row=frozen_row, label_smoothing=label_smoothing, factors=factors
    )


def row_cross_entropy(
    rows: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    present: Tensor | None = None,
    frozen_row: int | None = None,
    label_smoothing: float = 0.0,
    factors: Tensor | None = None,
) -> Loss:
    """Compute the cross-entropy of hidden states and labels, with label smoothing, as a `Loss`.

    Args:
        rows: the hidden states, (N, D).
        weight: the output projection, (V, D).
        labels: the labels, (N,).
        bias: the output projection's bias, (V,); None: there is none.
        present: a mask (N,) of the rows whose losses count; None: all rows count. Other rows are computed, too, because
            a selection would synchronize with the GPU. They need finite hidden states and valid token ids as labels,
            and `Loss.tokens` includes them.
        frozen_row: a row of weight and bias that gets no gradient; None if all rows are trained.
        label_smoothing: ε.
        factors: the weight of each row's loss, (N,), float32; None: 1. It must be None if `present` is set.
    """
    if present is not None:
        # Zero rows contribute nothing to the weight gradient or to sums of rows.
        rows = rows * present.to(rows.dtype)[:, None]
    sums = sum_of_gradients(weight), None if bias is None else sum_of_gradients(bias)
    options = _Options(label_smoothing, frozen_row, torch.is_grad_enabled(), sums, present, factors)
    total, negative_log_likelihood = _ProjectedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows, weight, bias, labels, options
    )
    sum_of_factors = None if factors is None else float(factors.sum(dtype=torch.float64))
    return Loss(total, negative_log_likelihood.detach(), len(labels), sum_of_factors)


class _Options(NamedTuple):
    label_smoothing: float
    frozen_row: int | None
    recording: bool
    """True if gradients are enabled, which an autograd function cannot query; validation computes no gradients."""
    sums: tuple[Tensor | None, Tensor | None]
    """The buffers to which the gradients of weight and bias are added, instead of returning them to PyTorch; None: no
    buffer.
    """
    present: Tensor | None = None
    """The positions whose losses count, a mask (N,); None: all."""
    factors: Tensor | None = None
    """The factor of each row's loss, (N,), float32; None: 1."""


class _ProjectedCrossEntropy(torch.autograd.Function):
    """The output projection and the cross-entropy as one autograd function, whose forward pass computes gradients.

    The gradient of the logits is softmax - (1 - ε) one-hot - ε / V; only softmax needs a pass over the logits. The
    one-hot term selects rows of the weight, and the constant term is a sum of its rows, so both are computed without a
    tensor of the logits' size.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: _Options
    ) -> tuple[Tensor, Tensor]:
        dtype = _sum_dtype(hidden)
        counted = options.present if options.factors is None else options.factors
        row_factors = (
            torch.ones(len(hidden), dtype=dtype, device=hidden.device) if counted is None else counted.to(dtype)
        )
        # The gradient of the weight is linear in the hidden states, so their factors give it the rows' factors.
        weighted = hidden if options.factors is None else (hidden * options.factors[:, None]).to(hidden.dtype)
        found = _LossGradients(*(options.recording and learns for learns in ctx.needs_input_grad[:3]))
        at_labels, log_sum_exps = found.of_softmax((hidden, weighted), (weight, bias), labels, counted)
        negative_log_likelihood = _sum_present(log_sum_exps - at_labels, counted)
        # Σ over v of -log p_v / V is the log-sum-exp minus the mean logit, which is x · (mean row) + mean bias.
        total_hidden, total_row = _sum_rows(weighted), _sum_rows(weight)
        uniform = _sum_present(log_sum_exps, counted) - total_hidden @ total_row / len(weight)
        if bias is not None:
            uniform -= row_factors.sum() * bias.to(dtype).mean()
        found.subtract_targets(weighted, weight, labels, options, row_factors, (total_hidden, total_row))
        ctx.sums = options.sums
        ctx.save_for_backward(found.hidden, *found.of_parameters(weight, options))
        ctx.mark_non_differentiable(negative_log_likelihood)
        smoothing = options.label_smoothing
        return (1.0 - smoothing) * negative_log_likelihood + smoothing * uniform, negative_log_likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, *grad_parameters = ctx.saved_tensors
        scale, found = gradients[0], []
        for gradient, total in zip(grad_parameters, ctx.sums, strict=True):
            if gradient is not None and total is not None:
                total.addcmul_(gradient, scale.to(gradient.dtype))
            found.append(_scaled(gradient if total is None else None, scale))
        return _scaled(grad_hidden, scale), *found, None, None


class _LossGradients:
    """An accumulator of the gradients of the cross-entropy with respect to hidden states, weight and bias.

    A gradient that is not requested stays None.
    """

    def __init__(self, hidden_requires_grad: bool, weight_requires_grad: bool, bias_requires_grad: bool) -> None:
        self._requires_grad = hidden_requires_grad, weight_requires_grad, bias_requires_grad
        self.hidden: Tensor | None = None
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def of_softmax(
        self,
        states: tuple[Tensor, Tensor],
        projected_by: tuple[Tensor, Tensor | None],
        labels: Tensor,
        counted: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the logits, and the gradients of the summed log-sum-exp (the softmax term of all gradients).

        Args:
            states: the hidden states, and the hidden states times the rows' factors, (N, D) each.
            projected_by: the output projection: its weight, (V, D), and its bias, (V,), or None.
            labels: the labels, (N,).
            counted: a mask or the factors of the rows, (N,); None: all rows count with the factor 1.

        Returns:
            The logit at each row's label, and each row's log-sum-exp, (N, 1) each.
        """
        (hidden, weighted), (weight, bias) = states, projected_by
        hidden_requires_grad, weight_requires_grad, bias_requires_grad = self._requires_grad
        dtype, projection = _sum_dtype(hidden), _project(hidden, weight, bias)
        at_labels, log_sum_exps = torch.empty(2, len(hidden), 1, dtype=dtype, device=hidden.device)
        self.hidden = torch.empty_like(hidden) if hidden_requires_grad else None
        self.weight = (
            weight.new_zeros(projection.columns, weight.shape[1], dtype=dtype) if weight_requires_grad else None
        )
        self.bias = weight.new_zeros(projection.columns, dtype=dtype) if bias_requires_grad else None
        chunks = _chunks(len(hidden), weight)
        logits = hidden.new_empty(max((part.stop - part.start for part in chunks), default=0), projection.columns)
        for part in chunks:
            x, part_labels = hidden[part], labels[part, None]
            chunk = logits[: len(x)]
            projection.logits(x, chunk)
            at_labels[part] = chunk.gather(1, part_labels)
            probabilities, log_sum_exps[part] = _softmax(chunk, at_labels[part], part_labels)
            if self.hidden is not None or self.weight is not None:
                grad_x = None if self.hidden is None else self.hidden[part]
                projection.backward(probabilities, weighted[part], grad_x, self.weight)
            if self.bias is not None:
                self.bias += _sum_rows(probabilities, None if counted is None else counted[part])
        return at_labels, log_sum_exps

    def subtract_targets(
        self,
        weighted: Tensor,
        weight: Tensor,
        labels: Tensor,
        options: _Options,
        row_factors: Tensor,
        totals: tuple[Tensor, Tensor],
    ) -> None:
        """Complete all gradients by subtracting the term of the smoothed targets.

        The loss of each row of the batch is multiplied by the row's factor.

        Args:
            weighted: the hidden states, each row times its factor, (N, D).
            weight: the weight of the output projection, (V, D).
            labels: the labels, (N,).
            options: label smoothing and the factors.
            row_factors: the factor of each row, (N,). Without factors, it is 1 for rows that count and 0 for others.
            totals: two sums over rows, (D,) each: of the rows of `weighted` and of the rows of `weight`.
        """
        (total_hidden, total_row), smoothing = totals, options.label_smoothing
        if self.hidden is not None:
            uniform_part = (total_row * (smoothing / len(weight))).to(weight.dtype)  # (D,)
            self.hidden -= (weight[labels] * (1.0 - smoothing)).add_(uniform_part)
            if options.factors is not None:
                self.hidden *= options.factors[:, None]
        if self.weight is not None:
            # Σ over n of (smoothed target of n) ⊗ (hidden of n).
            _add_rows(self.weight, labels, weighted, smoothing - 1.0)
            self.weight -= total_hidden * (smoothing / len(weight))
        if self.bias is not None:
            self.bias.index_add_(0, labels, row_factors, alpha=smoothing - 1.0)
            self.bias -= row_factors.sum() * (smoothing / len(weight))

    def of_parameters(self, weight: Tensor, options: _Options) -> list[Tensor | None]:
        """Return a list of two gradients, of the weight and of the bias.

        A gradient that was not requested is None. Each gradient is zero in the frozen row, `options.frozen_row`. A
        gradient that is added to a buffer of `options.sums` later keeps the dtype in which it was summed. Any other
        gradient is converted to the weight's dtype.

        Args:
            weight: the weight of the output projection, (V, D).
            options: the frozen row and the buffers.
        """
        found: list[Tensor | None] = []
        for gradient, total in zip((self.weight, self.bias), options.sums, strict=True):
            if gradient is not None and options.frozen_row is not None:
                gradient[options.frozen_row] = 0.0
            kept = None if gradient is None else gradient[: len(weight)]
            found.append(kept if kept is None or total is not None else kept.to(weight.dtype))
        return found


def _scaled(gradient: Tensor | None, scale: Tensor) -> Tensor | None:
    return None if gradient is None else gradient * scale.to(gradient.dtype)


def _sum_present(values: Tensor, present: Tensor | None) -> Tensor:
    """Return the sum of values (N, 1), each times its entry in `present` (N,), a mask or factors; None: all count."""
    return values.sum() if present is None else (values * present[:, None]).sum()


def _chunks(positions: int, weight: Tensor) -> list[slice]:
    """Return slices of about equal size of N target positions, such that the logits of each fit into a buffer.

    `weight` is (V, D); the size of the buffer suits the cache of a CPU, or a GPU.
    """
    if weight.device.type != "cpu":
        max_positions = max(1, _CHUNK_ELEMENTS_OF_GPU // len(weight))
    else:
        max_positions = max(_MIN_ROWS, _CHUNK_ELEMENTS // len(weight))
    count = -(-positions // max_positions)
    bounds = [positions * number // count for number in range(count + 1)] if count else []
    return [slice(*pair) for pair in itertools.pairwise(bounds)]


class _LibraryProjection:
    """An output projection to logits, forward and backward, by PyTorch, for when no backend has kernels for it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias, self.columns = weight, bias, len(weight)

    def logits(self, x: Tensor, out: Tensor) -> None:
        if self._bias is None:
            torch.mm(x, self._weight.t(), out=out)
        else:
            torch.addmm(self._bias, x, self._weight.t(), out=out)

    def backward(self, gradient: Tensor, x: Tensor, grad_x: Tensor | None, weight_sum: Tensor | None) -> None:
        if grad_x is not None:
            torch.mm(gradient, self._weight, out=grad_x)
        if weight_sum is None:
            return
        if gradient.dtype == weight_sum.dtype or weight_sum.device.type != "cpu":
            add_product(weight_sum, gradient.t(), x)
            return
        for block, rows in zip(weight_sum.split(_BLOCK_ROWS), gradient.t().split(_BLOCK_ROWS), strict=True):
            add_to(block, rows @ x)


def _project(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Projection:
    kernels: TrainingKernels | None = backend_in_use()
    return (kernels and kernels.project(hidden, weight, bias)) or _LibraryProjection(weight, bias)


def _add_rows(total: Tensor, ids: Tensor, part: Tensor, factor: float) -> None:
    """Add factor · part[n] to the row total[ids[n]] for each n, in place; `total` is (V, D) and `part` (N, D).

    A backend's kernels do it if they support the rows.
    """
    kernels: TrainingKernels | None = backend_in_use()
    if kernels is not None and kernels.supports_rows(part):
        kernels.add_rows_in_place(total, ids, part, factor, None)
    else:
        total.index_add_(0, ids, part.to(total.dtype), alpha=factor)


def _softmax(logits: Tensor, at_label: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities, (N, V), and the log-sum-exp of each row, (N, 1); the logits may be overwritten.

    The log-sum-exp is the logit of a label minus the logarithm of the label's probability. If this probability
    underflows, the largest logit of the row takes the place of the label's.

    Args:
        logits: the logits, (N, V).
        at_label: the logit of each row's label, (N, 1).
        labels: the label of each row, (N, 1).
    """
    kernels: TrainingKernels | None = backend_in_use()
    if kernels is not None and kernels.supports_logits(logits):
        return logits, kernels.softmax_(logits)[:, None]
    probabilities = logits.softmax(dim=-1)
    at_probability = probabilities.gather(1, labels)
    underflow = at_probability < _TINY
    if logits.device.type != "cpu" or bool(underflow.any()):  # a GPU would wait for this test
        labels = torch.where(underflow, logits.argmax(dim=-1, keepdim=True), labels)
        at_label, at_probability = logits.gather(1, labels).to(at_label.dtype), probabilities.gather(1, labels)
    return probabilities, at_label - at_probability.to(at_label.dtype).log()


def _sum_rows(x: Tensor, factors: Tensor | None = None) -> Tensor:
    """Return the sum of the rows of a matrix, each times its factor in `factors` (N,), if any: (N, D) to (D,)."""
    if factors is not None and x.is_cuda and x.dtype != torch.float32:
        return torch.mm(factors[None].to(x.dtype), x, out_dtype=torch.float32)[0]
    if factors is not None:
        return factors.to(_sum_dtype(x)) @ x.to(_sum_dtype(x))
    kernels: TrainingKernels | None = backend_in_use()
    if kernels is not None and kernels.supports_rows(x):
        return kernels.sum_rows(x)
    return x.sum(dim=0, dtype=_sum_dtype(x))


def _sum_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which values like `x` are summed: float32, or float64 for float64 values."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
