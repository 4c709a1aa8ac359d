"""Which kernels of our own a process trains with: each does in one pass what PyTorch takes several for.

They are installed by whoever trains, and used by the bricks for whatever they suit; everything works without them.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.model.config import ModelConfig
from transduce.model.packing import PackedMask
from transduce.model.positions import Rotation


class Rows(NamedTuple):
    """Of a matrix, one after another."""

    start: int
    stop: int


class UpdatedVectors(NamedTuple):
    """What an update of parameters changes, element by element: vectors of one length, float32 but the last."""

    master: Tensor
    gradient: Tensor
    """Zero afterwards."""
    average: Tensor | None
    """Of the masters over the updates, where one is kept."""
    working: Tensor | None
    """What the masters are rounded to, where the model computes in something else."""


class AdamNumbers(NamedTuple):
    """Of an update by Adam (section 5.3), the t-th one."""

    factor: float
    """Of the gradient, before anything else."""
    beta1: float
    beta2: float
    rate: float
    """The learning rate over 1 - β1^t."""
    inverse_root: float
    """1 / √(1 - β2^t)."""
    epsilon: float


class Projection(Protocol):
    """Products of ever new rows with one matrix: (N, D) with (V, D), and back; all contiguous."""

    def logits(self, x: Tensor, out: Tensor) -> None:
        """out = x · matrixᵀ, (N, V)."""

    def back(self, gradient: Tensor, x: Tensor, by_x: Tensor | None, weight_sum: Tensor | None) -> None:
        """From the gradient by logits, (N, V), to the one by x, (N, D), and to the matrix', added to a float32 sum."""


Polynomials = tuple[tuple[float, float, float], ...]
"""Odd ones, one after another: a, b and c of a x + b x³ + c x⁵."""


class LossRecorder(Protocol):
    """Computes losses of batches that come in few sizes: on a GPU each size is recorded, and played from then on."""

    def __call__(
        self, size: Hashable, numbers: NDArray[np.int64], compute: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """A loss, whose gradients have to be asked for before the next one is computed.

        Args:
            size: which way the computation takes, whatever the numbers are.
            numbers: the batch, as many as ever with this size.
            compute: takes them, on the model's device, to two scalars. It asks for no value on the way, and reads
                nothing else that changes but parameters. The first scalar has gradients by them.

        Returns:
            What `compute` does.
        """


class PackedAttention(Protocol):
    """Attention among the sentences of a packed batch (`packing.py`)."""

    def suits(self, config: ModelConfig, longest: int, weight: Tensor) -> bool:
        """Whether `attend` takes the heads of a model with such weights, over sentences of so many pieces at most."""

    def attend(self, projected: Tensor, memory: Tensor | None, mask: PackedMask, num_heads: int) -> Tensor:
        """Scaled dot-product attention, equation (1), of all heads side by side.

        Args:
            projected: queries, keys and values, (1, N, 3 × H × K); with a memory, queries alone, (1, N, H × K).
            memory: its keys and values, (1, M, 2 × H × K).
            mask: where the sentences stand.
            num_heads: H.

        Returns:
            (1, N, H × K).
        """

    def record_losses(self, model: nn.Module) -> LossRecorder:
        """Of a model in training."""


class TrainingKernels(Protocol):
    """What bricks may ask for, in training and in validation."""

    @property
    def packed(self) -> PackedAttention | None:
        """Where batches are best packed: attention among them."""

    def run_layer(self, layer: nn.Module, x: Tensor, memory: Tensor | None, masks: Sequence[object]) -> Tensor | None:
        """A whole layer in training, of an encoder or, with a memory, of a decoder; None where that is not offered.

        Args:
            layer: of any bricks.
            x: its input, (B, T, D), or of a packed batch (1, N, D), which `suits_rows` takes.
            memory: the encoder's output, (B, S, D), or (1, M, D).
            masks: of attention to itself, and to the memory. Nothing else says who sees whom.

        Returns:
            What the layer's bricks compute one after another, like x.
        """

    def suits_attention(self, x: Tensor, num_keys: int, width: int) -> bool:
        """Whether `attend` takes heads of this width with so many keys, in x's kind of numbers, on its device."""

    def attend(self, projected: Tensor, memory: Tensor | None, lengths: Tensor | None, num_heads: int) -> Tensor:
        """Scaled dot-product attention, equation (1), of all heads side by side.

        Args:
            projected: queries, keys and values, (B, Q, 3 × H × K); with a memory, queries alone, (B, Q, H × K).
            memory: its keys and values, (B, L, 2 × H × K).
            lengths: how many keys of each sentence there are, at least one, int64, (B,); None: as many as there are
                queries, and none sees what follows it.
            num_heads: H.

        Returns:
            (B, Q, H × K).
        """

    def suits_turning(self, x: Tensor, width: int) -> bool:
        """Whether `turn` takes heads of this width, in x's kind of numbers, on its device."""

    def turn(self, projected: Tensor, rotation: Rotation, heads: int) -> Tensor:
        """The first heads of each row turned by their positions, the rest as it is: (B, T, C) to (B, T, C).

        The rotation is the same for all of a batch, (T, K / 2).
        """

    def suits_rows(self, x: Tensor) -> bool:
        """Whether the kernels from here to `add_rows_in_place` take rows of this width, in x's kind, on its device."""

    def drop_and_add(self, residual: Tensor | None, x: Tensor, drop_of_256: int) -> Tensor:
        """residual + dropout(x), where so many of 256 elements are dropped (section 5.4); x's shape and dtype."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """(x - mean) / √(variance + ε) · weight + bias over the last dimension: (…, D) to (…, D)."""

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """x / √(mean of x² + ε) · weight over the last dimension: (…, D) to (…, D)."""

    def fork_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor] | None:
        """x itself and its norm, LayerNorm's, or without a bias RMSNorm's; None where that is not offered.

        It is for residual connections: the gradients by both are added up as they come.
        """

    def sum_rows(self, x: Tensor) -> Tensor:
        """What the rows of x, (N, D), add up to, float32, (D,); of whatever `suits_rows` takes."""

    def add_in_place(self, total: Tensor, part: Tensor) -> None:
        """total += part, for a float32 total and a part that `suits_rows` takes, both contiguous."""

    def embed(self, ids: Tensor, weight: Tensor, scale: float, frozen_row: int | None) -> Tensor:
        """Rows of a matrix that `suits_rows` takes, times a number: ids (…), int64, to (…, D).

        If the matrix has a `sum_of_gradients`, its gradient is added there, and it gets none; a frozen row has none.
        """

    def add_rows_in_place(
        self, total: Tensor, ids: Tensor, part: Tensor, factor: float, frozen_row: int | None
    ) -> None:
        """total[ids[n]] += factor · part[n], for each n but those of the frozen row.

        Args:
            total: float32, (V, D), contiguous.
            ids: int64, (N,).
            part: what `suits_rows` takes, (N, D).
            factor: of all of it.
            frozen_row: of `total`, or None.
        """

    def suits_linear(self, x: Tensor, weight: Tensor, rows: Rows | None) -> bool:
        """Whether `linear` takes them."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, *, relu: bool) -> Tensor:
        """x · weightᵀ + bias, and with `relu` what of it is positive.

        Args:
            x: (…, I).
            weight: (O, I). If there is a `sum_of_gradients`, its gradient is added there, and it gets none.
            bias: (O,); the same.
            rows: of weight and bias, if only some are asked for.
            relu: whether what is negative becomes zero.

        Returns:
            (…, O), or as many columns as rows were asked for.
        """

    def project(self, hidden: Tensor, weight: Tensor) -> Projection | None:
        """What multiplies parts of rows, each of no fewer than 8, by a matrix; None where PyTorch does it better."""

    def suits_update(self, vectors: UpdatedVectors) -> bool:
        """Whether `update_by_adam` and `follow_update` take them, and `take_momentum` their gradients."""

    def update_by_adam(
        self, vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], numbers: AdamNumbers, kept: float
    ) -> None:
        """An update by Adam, and all that follows it.

        Args:
            vectors: all change.
            moments: the means of the gradient and of its square, float32; they change.
            numbers: what Adam goes by.
            kept: how much of the average stays what it was.
        """

    def take_momentum(self, gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
        """Nesterov's momentum, of vectors of one length.

        Args:
            gradient: float32; it is multiplied by the factor first, and stays as it is.
            momentum: float32: becomes decay · momentum + (1 - decay) · gradient.
            out: float32 or bfloat16: becomes decay · momentum + (1 - decay) · gradient, by the momentum of afterwards.
            factor: of the gradient.
            decay: of the momentum.
        """

    def follow_update(
        self, vectors: UpdatedVectors, kept: float, move: Tensor | None = None, rate: float = 0.0, shrink: float = 1.0
    ) -> None:
        """What follows an update by something else than Adam.

        Args:
            vectors: all change.
            kept: how much of the average stays what it was.
            move: float32 or bfloat16: rate times this is taken from the masters first.
            rate: the learning rate.
            shrink: what the masters are multiplied by before they move.
        """

    def suits_squares(self, matrices: Sequence[Tensor]) -> bool:
        """Whether `make_orthogonal` takes matrices (R, C), and PyTorch is slower."""

    def make_orthogonal(
        self, matrices: Sequence[Tensor], polynomials: Polynomials, scale: float, *, by_gram_matrix: bool
    ) -> list[bool]:
        """Takes odd polynomials of matrices, where they stand, divided by the root of ‖x xᵀ‖ before.

        Args:
            matrices: (R, C) each, wherever they are.
            polynomials: three.
            scale: of the result.
            by_gram_matrix: whether they are to be taken of x xᵀ, and multiply x once: faster where C is many times R.

        Returns:
            Of each whether that was done: not where x is so large, or so small, that numbers could not hold powers.
        """

    def suits_logits(self, logits: Tensor) -> bool:
        """Whether `softmax_` takes them."""

    def softmax_(self, logits: Tensor) -> Tensor:
        """Logits of rows, (N, V), become their softmax where they stand; gives their normalisers, float32, (N,).

        The normaliser of a row is the logarithm of the sum of its exponentials.
        """


class _Kernels:
    """Those in use, by the whole process."""

    training: TrainingKernels | None = None


@contextmanager
def training_with(kernels: TrainingKernels | None) -> Iterator[None]:
    """In the body of `with`, bricks use these kernels; None: PyTorch's operations alone."""
    before, _Kernels.training = _Kernels.training, kernels
    try:
        yield
    finally:
        _Kernels.training = before


def run_layer(layer: nn.Module, x: Tensor, memory: Tensor | None, *masks: object) -> Tensor | None:
    """`TrainingKernels.run_layer` by the kernels in use; None where there are none."""
    kernels = _Kernels.training
    return None if kernels is None or not kernels.suits_rows(x) else kernels.run_layer(layer, x, memory, masks)


def training_kernels() -> TrainingKernels | None:
    """Those in use."""
    return _Kernels.training
