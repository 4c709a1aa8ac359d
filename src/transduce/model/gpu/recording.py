"""Recording what is launched on a GPU, to play it again: no operation is launched by itself then."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Memory that recordings share, none of which is played while what another one wrote is still wanted; PyTorch names it.
Pool = Any

_STREAMS: dict[torch.device, torch.cuda.Stream] = {}  # one a GPU, for the library keeps room to work in for each
_RECORDING = threading.Lock()


def is_recording(device: torch.device) -> bool:
    """Whether what this thread launches on a device is written down, and not computed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@contextmanager
def recording(device: torch.device, pool: Pool | None = None) -> Iterator[torch.cuda.CUDAGraph]:
    """In the body of `with`, what is launched is written down and not computed. It must have run before."""
    graph = torch.cuda.CUDAGraph()
    with _RECORDING:
        if device not in _STREAMS:
            _STREAMS[device] = torch.cuda.Stream(device)
        stream = _STREAMS[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # other threads go on
            try:
                yield graph
            finally:
                _end(graph, device)
        torch.cuda.current_stream(device).wait_stream(stream)


def _end(graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
    try:
        graph.capture_end()
    except RuntimeError:
        # PyTorch then still takes the GPU's generator of random numbers for one that a recording draws from.
        generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
        generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
        generator.manual_seed(torch.initial_seed())
        raise
