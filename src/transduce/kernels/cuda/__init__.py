"""Compute on GPUs by Triton kernels; this module has launch sizes and the recording of CUDA graphs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

# --- launch sizes ---


def ceil_div(count: int, size: int) -> int:
    """Return count / size rounded up, a launch size; Triton's own function for it is slower than some kernels."""
    return -(-count // size)


def power_of_2(minimum: int) -> int:
    """Return the smallest power of two that is at least `minimum`, a positive number."""
    return 1 << (minimum - 1).bit_length()


@cache
def shared_bytes(device: torch.device) -> int:
    """Return the shared memory in bytes that a Triton program may use on a GPU.

    On other devices, where Triton interprets the programs, the result is 1 GiB.
    """
    if device.type != "cuda":
        return 1 << 30
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)


# --- recording ---


Pool = Any
"""A handle of a pool of memory that several CUDA graphs share, or None.

A replay of one graph overwrites the results of the others.
"""

_STREAMS: dict[torch.device, torch.cuda.Stream] = {}  # one per GPU, as cuBLAS keeps a workspace for each stream
_RECORDING = threading.Lock()


@contextmanager
def recording(device: torch.device, pool: Pool | None = None) -> Iterator[torch.cuda.CUDAGraph]:
    """Record the operations in the body of `with` as a CUDA graph, without running them; yield the graph.

    The operations must have run before, so that libraries are initialized. `pool` is memory to share with other graphs;
    None: the graph has its own. Raises RuntimeError if an operation cannot be recorded.
    """
    graph = torch.cuda.CUDAGraph()
    with _RECORDING:
        if device not in _STREAMS:
            _STREAMS[device] = torch.cuda.Stream(device)
        stream = _STREAMS[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # other threads may use the GPU
            try:
                yield graph
            finally:
                _end(graph, device)
        torch.cuda.current_stream(device).wait_stream(stream)


def _end(graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
    """End the capture of a CUDA graph.

    If the capture failed, PyTorch's random number generator is repaired, and PyTorch's RuntimeError is raised.
    """
    try:
        graph.capture_end()
    except RuntimeError:
        # After a failed capture, PyTorch still treats the GPU's default generator as registered with the graph.
        generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
        generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
        generator.manual_seed(torch.initial_seed())
        raise
