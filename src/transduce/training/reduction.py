"""Sums of gradients over processes that each hold the whole model, overlapped with the backward pass.

The gradient is one flat vector, cut into chunks of a few million elements. The backward pass completes parameters
roughly from the last to the first. When a chunk and all chunks after it are complete, its sum over the processes
starts and runs during the rest of the pass. Sums are matched by their order, so the order must be the same in all
processes, whichever path each takes through the model.

PyTorch's DistributedDataParallel does the same with separate buckets, into which it copies gradients. Here gradients
lie in the vector already and are summed in float32 although the model computes in bfloat16.
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn

from transduce.acceleration import is_recording

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
