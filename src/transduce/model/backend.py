"""Define the interface between a model and the kernels that a process trains with.

A model is written in plain PyTorch. Each `Component` asks the backend in use, if there is one, to compute its output.
The backend uses its kernels or calls the component's `forward`. Training code asks for the remaining kernels (loss,
optimizer) through `backend_in_use`. Without a backend everything works, but slower.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model.masks import PackedBatch, PackedMask
from transduce.model.positions import Rotation


class Rows(NamedTuple):
    """A range of rows of a weight matrix, from `start` to `stop` (exclusive), such as the rows of the queries alone.

    A linear layer that gets this range computes only these outputs.
    """

    start: int
    stop: int


class AttentionOptions(NamedTuple):
    """Options of scaled dot-product attention whose defaults suit most models."""

    shared: int = 1
    """The number of neighboring query heads that share a head of keys and values."""
    scale: float | None = None
    """The factor of the dot products; None: 1 / √K."""
    drop_256ths: int = 0
    """The dropout rate of the attention weights in 256ths; 0: no dropout."""


PLAIN_ATTENTION = AttentionOptions()


class UpdatedVectors(NamedTuple):
    """The float32 master weights of a model as one vector, with the other vectors that an optimizer update uses.

    All vectors have the same length.
    """

    master: Tensor
    gradient: Tensor
    """The gradient, which the update reads and sets to zero."""
    average: Tensor | None
    """The moving average of the master weights; None: the run keeps none."""
    working: Tensor | None
    """The master weights rounded to the dtype that the model computes in; None: the model computes in float32."""


class AdamScalars(NamedTuple):
    """The numbers, equal for all weights, that a kernel needs for the t-th update by Adam (section 5.3)."""

    factor: float
    """The factor that the gradient is multiplied by before the update."""
    beta1: float
    beta2: float
    rate: float
    """The learning rate divided by 1 - β1^t, which corrects the bias of the first moment."""
    inverse_root: float
    """The number 1 / √(1 - β2^t), which corrects the bias of the square root of the second moment."""
    epsilon: float


class Projection(Protocol):
    """A model's output projection, prepared by a backend to compute the logits of a block of N hidden states at once.

    The matrix is (V, D), with a bias or without. All tensors are contiguous. Logits have C ≥ V columns; those after the
    first V are -inf.
    """

    columns: int
    """The number C of columns of the logits and of their gradient, at least the vocabulary size V."""

    def logits(self, x: Tensor, out: Tensor) -> None:
        """Write the logits x · matrixᵀ + bias of hidden states x, (N, D), to `out`, (N, C)."""

    def backward(self, gradient: Tensor, x: Tensor, grad_x: Tensor | None, weight_sum: Tensor | None) -> None:
        """Compute the gradients of the hidden states and of the matrix from the gradient of the logits.

        Args:
            gradient: the gradient with respect to the logits, (N, C).
            x: the hidden states that `logits` multiplied, (N, D).
            grad_x: receives the gradient with respect to x, (N, D); None: it is not computed.
            weight_sum: float32, (C, D); the gradient with respect to the matrix is added to it; None: it is not
                computed.
        """


Polynomials = tuple[tuple[float, float, float], ...]
"""A tuple with the coefficients (a, b, c) of each odd polynomial a x + b x³ + c x⁵ that Muon applies to
orthogonalize."""


class LossRecorder(Protocol):
    """A function that computes losses of batches; on a GPU it replays one recorded CUDA graph for each batch size."""

    def __call__(
        self, size: Hashable, numbers: NDArray[np.int64], compute: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss of a batch, and one more number; the caller must run `backward` before the next call.

        Args:
            size: a key of the CUDA graph, such as the batch's shape. Calls with an equal key run the same sequence of
                operations, whatever `numbers` holds.
            numbers: the batch as one int64 array; equally long for equal sizes.
            compute: computes two scalars from the batch on the model's device. It must not read values back to the CPU,
                and may read no changing tensors except parameters. Only the first scalar has gradients.

        Returns:
            The two scalars of `compute`.
        """


class PackedAttention(Protocol):
    """Kernels for training on batches without padding (`PackedBatch`); a backend has them only where they save time."""

    def supports(self, model: nn.Module, max_length: int) -> bool:
        """Return whether `hidden` can compute this model on sentences of at most `max_length` tokens.

        Otherwise, padded batches must be used.
        """

    def hidden(self, model: nn.Module, batch: PackedBatch) -> Tensor:
        """Return the decoder's last hidden states for a packed batch of N target tokens in total, (1, N, D)."""

    def attend(self, projected: Tensor, memory: Tensor | None, mask: PackedMask, num_heads: int) -> Tensor:
        """Compute scaled dot-product attention, equation (1), for a packed batch of N queries, with heads of width K.

        Args:
            projected: queries, keys and values, (1, N, 3 × H × K); with a memory, queries alone, (1, N, H × K).
            memory: keys and values of the encoder's output, (1, M, 2 × H × K); None for self-attention.
            mask: describes where the sentences begin and end.
            num_heads: H.

        Returns:
            (1, N, H × K).
        """

    def record_losses(self, model: nn.Module) -> LossRecorder:
        """Return a `LossRecorder`: a function that computes losses by replaying one CUDA graph for each batch size."""


class TrainingKernels(Protocol):
    """A training backend: kernels for training and validation, and checks of which inputs they support.

    A backend without kernels for attention, rotary embeddings or Muon inherits methods that answer "not supported".
    """

    def execute(self, component: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Return the result of `component(*args, **kwargs)`, by kernels if they compute the same function.

        Otherwise the component's own `forward` computes it.
        """

    @property
    def packed(self) -> PackedAttention | None:
        """The backend's kernels for packed batches (without padding); None if padded batches are at least as fast."""

    def run_layer(
        self,
        layer: nn.Module,
        x: Tensor,
        memory: Tensor | None,
        masks: Sequence[object],
        rotation: Rotation | None = None,
    ) -> Tensor | None:
        """Compute a whole encoder or decoder layer in training, or return None if the kernels do not support it.

        Args:
            layer: an encoder layer, or a decoder layer if there is a memory.
            x: the layer's input, (B, T, D), or (1, N, D) for a packed batch; `supports_rows` must hold for it.
            memory: the encoder's output, (B, S, D) or (1, M, D).
            masks: the mask of self-attention, then, with a memory, the mask of cross-attention.
            rotation: the rotary embedding of the queries and keys of self-attention; None: there is none.

        Returns:
            The output of the layer, in the shape of x.
        """

    def supports_attention(self, x: Tensor, num_keys: int, width: int) -> bool:  # noqa: ARG002
        """Return whether `attend` supports `num_keys` keys and heads of this width, in x's dtype on x's device."""
        return False

    def attend(
        self,
        projected: Tensor,
        memory: Tensor | None,
        lengths: Tensor | None,
        num_heads: int,
        options: AttentionOptions = PLAIN_ATTENTION,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Compute scaled dot-product attention, equation (1), with G key/value heads and heads of width K.

        Args:
            projected: queries, keys and values, (B, Q, (H + 2 G) × K); with a memory, queries alone, (B, Q, H × K).
            memory: keys and values of the encoder's output, (B, L, 2 × G × K); None for self-attention.
            lengths: the number of keys in each sentence, at least 1, int64, (B,); None: the look-ahead mask.
            num_heads: H, the number of query heads.
            options: among them H / G, the number of query heads for each key/value head.
            bias: a term added to the scores of all sentences, such as a relative position bias, (H, Q, Q).

        Returns:
            (B, Q, H × K).
        """

    def supports_rotary(self, x: Tensor, width: int) -> bool:  # noqa: ARG002
        """Return whether `apply_rotary` supports heads of this width, in x's dtype on x's device."""
        return False

    def apply_rotary(self, projected: Tensor, rotation: Rotation, heads: int) -> Tensor:
        """Rotate the first `heads` heads of each position by a rotary embedding, and copy the other heads.

        The input and the result are the projections (B, T, C) that hold the heads side by side. The rotation, for heads
        of width K, is the same for all sentences of a batch, (T, K / 2).
        """

    def supports_rows(self, x: Tensor) -> bool:
        """Return whether the row-wise kernels (dropout, norms, embeddings) support x's dtype, device and width.

        The width is the size of its last axis.
        """

    def dropout_add(self, residual: Tensor | None, x: Tensor, drop_256ths: int) -> Tensor:
        """Return residual + dropout(x) (section 5.4), in x's shape and dtype; the dropout rate is drop_256ths / 256.

        A residual of None counts as zero.
        """

    def residual_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
        """Return a pair: x itself, for a residual connection, and x normalized over the last dimension, (…, D) each.

        The norm is LayerNorm, (x - mean) / √(variance + ε) · weight + bias, or without a bias RMSNorm, x / √(mean of x²
        + ε) · weight. The backward pass adds the gradients of both outputs.
        """

    def sum_rows(self, x: Tensor) -> Tensor:
        """Return the sum of the rows of x, (N, D), as float32, (D,)."""

    def add_in_place(self, total: Tensor, part: Tensor) -> None:
        """Add `part`, of any dtype, to `total`, which is float32; both are contiguous."""

    def add_rows_in_place(
        self, total: Tensor, ids: Tensor, part: Tensor, factor: float, frozen_row: int | None
    ) -> None:
        """Add factor · part[n] to total[ids[n]] for each n, except to the frozen row, to sum gradients of embeddings.

        Args:
            total: float32, (V, D), contiguous.
            ids: int64, (N,).
            part: (N, D); `supports_rows` must hold for it.
            factor: multiplies each row of `part`.
            frozen_row: the row of `total` that stays unchanged, or None.
        """

    @property
    def linear_activations(self) -> frozenset[str]:
        """The set of the names of the activations that `linear` can apply to its output."""

    def supports_activation(self, name: str, x: Tensor, width: int) -> bool:  # noqa: ARG002
        """Return whether `activate` supports the activation with this name for width F, in x's dtype on x's device."""
        return False

    def activate(self, projected: Tensor, name: str) -> Tensor:
        """Apply an activation: (…, F) to (…, F); a gated activation maps (…, 2 F), gates before values, to (…, F)."""

    def supports_linear(self, x: Tensor, weight: Tensor, rows: Rows | None) -> bool:
        """Return whether `linear`, a linear layer, supports the input (…, I) and these rows of the weight (O, I)."""

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, *, activation: str | None = None
    ) -> Tensor:
        """Return activation(x · weightᵀ + bias).

        Args:
            x: (…, I).
            weight: (O, I). If it has a `sum_of_gradients`, its gradient is added there instead of being returned.
            bias: (O,); its gradient is treated as that of the weight.
            rows: the rows of weight and bias to use; None: all.
            activation: one of `linear_activations`; None: no activation.

        Returns:
            (…, O), or as many columns as there are `rows`.
        """

    def project(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Projection | None:  # noqa: ARG002
        """Return a `Projection` for an output matrix, (V, D), to compute logits of blocks of at least 8 hidden states.

        `bias`, (V,), may be None, and `hidden` is an example of the hidden states, (N, D). The result is None if
        PyTorch is at least as fast.
        """
        return None

    def supports_update(self, vectors: UpdatedVectors) -> bool:
        """Return whether the kernels for optimizer updates support the device and dtypes of these vectors."""

    def update_by_adam(
        self, vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], numbers: AdamScalars, average_decay: float
    ) -> None:
        """Update parameters by Adam in one pass, together with their moving average and their bfloat16 copy.

        Args:
            vectors: the vectors to change.
            moments: the running means of the gradient and of its square, float32; both change.
            numbers: the scalars of this update.
            average_decay: the weight of the old average in the new one.
        """

    def update_momentum(self, gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
        """Update Nesterov momentum, and write the resulting direction to `out`; all vectors have equal length.

        Args:
            gradient: float32; it is multiplied by the factor first, and does not change.
            momentum: float32; becomes decay · momentum + (1 - decay) · gradient.
            out: float32 or bfloat16; becomes decay · (new momentum) + (1 - decay) · gradient.
            factor: multiplies the gradient.
            decay: the decay rate of the momentum.
        """

    def apply_update(
        self, vectors: UpdatedVectors, average_decay: float, direction: Tensor, rate: float, shrink: float
    ) -> None:
        """Replace the master weights by master · shrink - rate · direction, for optimizers other than Adam.

        The gradient is set to zero, and the moving average and the bfloat16 copy of the weights are refreshed.

        Args:
            vectors: the vectors to change.
            average_decay: the weight of the old average in the new one.
            direction: float32 or bfloat16; rate · direction is subtracted from the master weights.
            rate: the learning rate.
            shrink: multiplies the master weights before the subtraction.
        """

    def supports_orthogonalization(self, matrices: Sequence[Tensor]) -> bool:  # noqa: ARG002
        """Return whether `orthogonalize_in_place` supports these matrices, each (R, C), and is faster than PyTorch."""
        return False

    def orthogonalize_in_place(
        self, matrices: Sequence[Tensor], polynomials: Polynomials, scale: float, *, by_gram_matrix: bool
    ) -> list[bool]:
        """Orthogonalize matrices x in place (Muon): divide x by the square root of ‖x xᵀ‖, then apply odd polynomials.

        Args:
            matrices: (R, C) each.
            polynomials: three polynomials, each by its coefficients (a, b, c), applied in turn.
            scale: multiplies the result.
            by_gram_matrix: whether to apply the polynomials to x xᵀ and multiply x once, which is faster if C is many
                times R.

        Returns:
            A list that tells for each matrix whether it was changed: not if powers of its elements would overflow or
            underflow.
        """

    def supports_logits(self, logits: Tensor) -> bool:
        """Return whether `softmax_`, the in-place softmax, supports these logits' device and dtype."""

    def softmax_(self, logits: Tensor) -> Tensor:
        """Replace each row of logits, (N, V), by its softmax, and return the rows' log-sum-exp, float32, (N,)."""


# The backend of this thread's `with` statement; other threads, which may translate meanwhile, have none.
_BACKEND: ContextVar[TrainingKernels | None] = ContextVar("_BACKEND", default=None)


class _InUse:
    """The process-wide record of the training backend in use, which PyTorch's own threads need for backward passes."""

    backend: TrainingKernels | None = None
    thread: int | None = None
    """The id of the thread that uses the backend; None: there is no backend."""


@contextmanager
def using_backend(kernels: TrainingKernels | None) -> Iterator[None]:
    """Use a backend in the body of the `with` statement; None: plain PyTorch.

    Raises:
        TransduceError: another thread uses a backend, whose memory and random numbers belong to the process.
    """
    before, this = (_InUse.backend, _InUse.thread), get_ident()
    if kernels is not None and before[1] not in (None, this):
        raise TransduceError(
            "Only one thread of a process can train with our kernels at a time, but another thread already does: "
            "train in another process, or wait until the other thread has finished."
        )
    if kernels is not None or before[1] == this:
        _InUse.backend, _InUse.thread = kernels, this
    token = _BACKEND.set(kernels)
    try:
        yield
    finally:
        _BACKEND.reset(token)
        if kernels is not None or before[1] == this:
            _InUse.backend, _InUse.thread = before


def backend_in_use() -> TrainingKernels | None:
    """Return the training backend that this thread uses; None: plain PyTorch.

    On a GPU, PyTorch's threads for backward passes get the process's backend.
    """
    kernels = _BACKEND.get()
    # PyTorch's threads that run backward passes on a GPU have no context variables.
    return _InUse.backend if kernels is None and torch.cuda.is_initialized() else kernels


class Component(nn.Module):
    """A module whose output may be computed by the training backend in use instead of by PyTorch.

    Subclasses define the mathematics in `forward`. Models ask the backend in `__call__` only.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output: computed by the backend in use, or by `forward` if there is none."""
        try:
            # `torch.compile` can trace a class attribute, but no context variable.
            if _InUse.backend is not None and (kernels := _BACKEND.get()) is not None:
                return kernels.execute(self, *args, **kwargs)
            # A copy of `nn.Module.__call__`, whose additional Python frame is noticeable in decoding.
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        except (RuntimeError, IndexError, AttributeError):
            # A `forward` of another class or of this module alone may have other arguments and rules.
            checking: Any = next(each for each in type(self).__mro__ if "_check_call" in vars(each))
            if "forward" not in vars(self) and type(self).forward is checking.forward:
                self._check_call(*args, **kwargs)
            raise

    def _check_call(self, *args: Any, **kwargs: Any) -> None:
        """Check the arguments of a call of `forward` that failed, so that the error names the wrong argument.

        A call that succeeds is not checked, and costs no time. This method checks nothing; subclasses override it.

        Raises:
            TransduceError: an argument breaks a rule of `forward`.
        """

    def _check_input(self, x: Tensor, width: int, weight: Tensor | None = None, *, name: str = "x") -> None:
        """Check that a tensor has the axes (batch, positions, width), and the dtype of a weight if one is passed.

        Under autocast, the dtype is not checked.

        Raises:
            TransduceError: the argument `name` is no tensor, or has other axes or another dtype.
        """
        owner = type(self).__name__
        if not isinstance(x, Tensor):
            raise TransduceError(f"`{name}` of `{owner}` must be a tensor, but is a `{type(x).__name__}`.")
        if x.dim() != 3 or x.shape[-1] != width:
            rule = f"`{name}` of `{owner}` must have the axes (batch, positions, width), here of width {width}"
            if x.dim() == 2:
                raise TransduceError(f"{rule}, but its shape is {tuple(x.shape)}: add the batch by `{name}[None]`.")
            raise TransduceError(f"{rule}, but its shape is {tuple(x.shape)}.")
        if weight is None or x.dtype == weight.dtype or torch.is_autocast_enabled(x.device.type):
            return
        if not x.is_floating_point():
            raise TransduceError(
                f"`{name}` of `{owner}` must hold vectors of the type {weight.dtype}, but has {x.dtype}: embed token "
                "ids first."
            )
        raise TransduceError(
            f"`{name}` of `{owner}` must have the dtype of the weights, {weight.dtype}, but has {x.dtype}: convert it "
            f"by `{name}.to({weight.dtype})`, or the module by `.to({x.dtype})`."
        )


# --- gradient sums ---
# Float32 tensors to which kernels add the gradients of parameters while they compute them.


_BLOCK_ELEMENTS = 1 << 18  # 1 MB in float32, which stays in a processor's cache
_SUM = "sum_of_gradients"


def add_gradients_to(parameter: Tensor, total: Tensor) -> None:
    """Make kernels add a parameter's gradient to `total`, float32 of equal shape, and return no gradient to PyTorch."""
    setattr(parameter, _SUM, total)


def sum_of_gradients(parameter: Tensor) -> Tensor | None:
    """Return the tensor to which kernels may add a parameter's gradient, or None if PyTorch must receive the gradient.

    PyTorch must receive it if `add_gradients_to` was not called for the parameter, or if the parameter has hooks.
    """
    total: Tensor | None = None if parameter._backward_hooks else getattr(parameter, _SUM, None)
    return total


def add_to(total: Tensor, part: Tensor) -> None:
    """Compute total += part for tensors of equal shape, possibly of different dtypes, without a temporary copy.

    PyTorch's addition first converts all of `part` to the dtype of the total.
    """
    kernels = backend_in_use() if total.dtype != part.dtype and part.dim() else None
    if kernels is not None and kernels.supports_rows(part):
        kernels.add_in_place(total, part)
        return
    if total.dtype == part.dtype or total.device.type != "cpu" or total.numel() <= _BLOCK_ELEMENTS:
        total += part
        return
    rows = max(1, _BLOCK_ELEMENTS // part[0].numel())
    for block, addend in zip(total.split(rows), part.split(rows), strict=True):
        block += addend


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the matrix product left · right to `total` in place.

    A product of bfloat16 matrices is summed in float32 on a GPU; a CPU computes it in bfloat16 first.
    """
    if right.dtype == total.dtype:
        torch.addmm(total, left, right, out=total)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        add_to(total, left @ right)
