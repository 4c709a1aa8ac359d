"""Adds up the gradient over processes that each hold the whole model, while the backward pass still runs.

The gradient is one flat vector, cut into chunks of a few million elements. The backward pass completes parameters one
by one, the last of the vector first, more or less; when a chunk and all behind it are complete, the chunk's sum over
the processes starts, and goes on beside the rest of the pass. Sums are paired by their order, so it must be the same in
all processes, whichever way each takes through the model.

PyTorch's DistributedDataParallel does the same with buckets of its own, into which it copies gradients and
out again; here they lie in the vector already, and are summed in float32 although the model computes in bfloat16.
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn

from transduce.model.gpu.recording import is_recording

_CHUNK_ELEMENTS = 4_000_000  # 16 MB: large enough for the network's full rate, small enough to begin early


class GradientReduction:
    """Sums over processes the vector to which micro-batches add their gradients, in the last of a step.

    Args:
        parameters: in the order in which they lie in the vectors.
        gradient: the step's sum, float32; the hooks that add parameters' gradients to it were registered before these.
        chunk_elements: of one sum over the processes, at least.
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
        self._left = 0  # chunks whose sums have not begun: the first ones
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
        """A micro-batch begins; in the last of a step, gradients are summed as they become complete."""
        self._sending = last
        self._missing, self._left = list(self._parameters_in), len(self.bounds)

    def finish(self) -> None:
        """The micro-batch's backward pass is over; in the last, returns when all sums are there."""
        self._missing = [0] * len(self.bounds)  # parameters that played no part, or a pass that was recorded before
        self._begin_sums()
        for work in self._works:
            work.wait()
        self._works.clear()

    def _completed(self, chunk: int):  # type: ignore[no-untyped-def]
        def hook(_: Tensor) -> None:
            if is_recording(self.gradient.device):
                return  # there is no gradient yet
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
    """Bounds of chunks of whole parameters, each of at least so many elements, the last excepted."""
    bounds, start, stop = [], 0, 0
    for size in sizes:
        stop += size
        if stop - start >= least:
            bounds.append((start, stop))
            start = stop
    return bounds if start == stop else [*bounds, (start, stop)]
