"""Sums of gradients over processes that each hold the whole model, overlapped with the backward pass.

The gradient is one flat vector, cut into chunks of a few million elements. The backward pass completes parameters
roughly from the last to the first. When a chunk and all chunks after it are complete, its sum over the processes
starts and runs during the rest of the pass. Sums are matched by their order, so the order must be the same in all
processes, whichever path each takes through the model.

PyTorch's DistributedDataParallel does the same with separate buckets, into which it copies gradients. Here gradients
lie in the vector already and are summed in float32 although the model computes in bfloat16.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from transduce.acceleration import is_recording
from transduce.model.backend import training_kernels
from transduce.model.gradient_sums import add_gradients_to

# --- sums ---
# Float32 sums of bfloat16 tensors, mainly gradients.


_BLOCK_ELEMENTS = 1 << 18  # 1 MB in float32, which stays in a processor's cache
_NORM_ELEMENTS = 1 << 14


def add_to(total: Tensor, part: Tensor) -> None:
    """Compute total += part for tensors of equal shape, possibly of two dtypes, without a temporary copy.

    PyTorch's addition first converts all of `part` to the dtype of the total.
    """
    kernels = training_kernels() if total.dtype != part.dtype and part.dim() else None
    if kernels is not None and kernels.supports_rows(part):
        kernels.add_in_place(total, part)
        return
    if total.dtype == part.dtype or total.device.type != "cpu" or total.numel() <= _BLOCK_ELEMENTS:
        total += part
        return
    rows = max(1, _BLOCK_ELEMENTS // part[0].numel())
    for block, addend in zip(total.split(rows), part.split(rows), strict=True):
        block += addend


def vector_norm(vector: Tensor) -> float:
    """Return the Euclidean norm of a vector.

    On a CPU it combines norms of blocks: PyTorch adds all squares in one thread, and a float32 sum of 48 million of
    them was 0.8 % too small.
    """
    if vector.device.type != "cpu":
        return float(vector.norm())
    aligned = vector.numel() // _NORM_ELEMENTS * _NORM_ELEMENTS
    blocks = vector[:aligned].view(-1, _NORM_ELEMENTS).norm(dim=1)
    return float(torch.cat([blocks, vector[aligned:].norm()[None]]).norm())


def collect_gradients(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Make backward passes accumulate the gradients of parameters in one vector, in which they lie one after another.

    A gradient of the vector's dtype is a view of its part. Any other gradient is added and freed as soon as it is
    complete, during the backward pass: it is then still in the cache, and memory is needed for only one. Kernels may
    add to the vector directly and leave no gradient.
    """
    parts = vector.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        slot = part.view(parameter.shape)
        add_gradients_to(parameter, slot)
        if parameter.dtype == vector.dtype:
            parameter.grad = slot
        else:
            parameter.register_post_accumulate_grad_hook(_move_to(slot))


def discard_gradients(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Zero the accumulated gradients, including those of an interrupted backward pass."""
    vector.zero_()
    for parameter in parameters:
        if parameter.dtype != vector.dtype:
            parameter.grad = None


def _move_to(slot: Tensor) -> Callable[[Tensor], None]:
    def move(parameter: Tensor) -> None:
        if parameter.grad is not None:
            add_to(slot, parameter.grad)
            parameter.grad = None

    return move


# --- reduction ---


_CHUNK_ELEMENTS = 4_000_000  # 16 MB: large enough for full network bandwidth, small enough to start early


class GradientReduction:
    """A sum over processes of the vector that accumulates gradients, taken in the last micro-batch of a step.

    Args:
        parameters: the parameters in the order of the vector.
        gradient: the accumulated gradient, float32; hooks that add gradients to it must be registered before this
            object is created.
        chunk_elements: minimum size of one sum over the processes.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        gradient: Tensor,
        chunk_elements: int = _CHUNK_ELEMENTS,
    ) -> None:
        self.gradient = gradient
        self.bounds = _chunks([p.numel() for p in parameters], chunk_elements)
        self._sending = False
        self._missing: list[int] = []
        self._left = 0  # number of chunks whose sums have not started, always the first ones
        self._works: list[dist.Work] = []
        ends = [stop for _, stop in self.bounds]
        self._parameters_in = [0] * len(ends)
        position = 0
        for parameter in parameters:
            chunk = sum(stop <= position for stop in ends)
            self._parameters_in[chunk] += 1
            parameter.register_post_accumulate_grad_hook(self._completed(chunk))
            position += parameter.numel()

    def begin(self, *, last: bool) -> None:
        """Prepare for a micro-batch; in the last one of a step, gradients are summed as they are completed."""
        self._sending = last
        self._missing, self._left = list(self._parameters_in), len(self.bounds)

    def finish(self) -> None:
        """End a micro-batch after its backward pass; in the last one, wait for all sums."""
        self._missing = [0] * len(self.bounds)  # some parameters may be unused, or the pass may be a replay
        self._begin_sums()
        for work in self._works:
            work.wait()
        self._works.clear()

    def _completed(self, chunk: int):  # type: ignore[no-untyped-def]
        def hook(_: Tensor) -> None:
            if is_recording(self.gradient.device):
                return  # a graph is being recorded and no gradient is computed yet
            self._missing[chunk] -= 1
            self._begin_sums()

        return hook

    def _begin_sums(self) -> None:
        while self._left and not self._missing[self._left - 1]:
            self._left -= 1
            if self._sending:
                start, stop = self.bounds[self._left]
                work = dist.all_reduce(self.gradient[start:stop], async_op=True)
                assert work is not None
                self._works.append(work)


def _chunks(sizes: Sequence[int], least: int) -> list[tuple[int, int]]:
    """Return the bounds of chunks of complete parameters, each of at least `least` elements but possibly the last."""
    bounds, start, stop = [], 0, 0
    for size in sizes:
        stop += size
        if stop - start >= least:
            bounds.append((start, stop))
            start = stop
    return bounds if start == stop else [*bounds, (start, stop)]
