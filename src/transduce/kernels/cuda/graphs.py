"""Record GPU operations as CUDA graphs, which a replay launches all at once, and check whether kernels run on a GPU."""

import importlib.util
import os
import shutil
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

# --- launch sizes ---


def ceil_div(count: int, size: int) -> int:
    """Return count / size rounded up; Triton's own function is slower than some kernels."""
    return -(-count // size)


def power_of_2(minimum: int) -> int:
    """Return the smallest power of two that is at least `minimum`, a positive number."""
    return 1 << (minimum - 1).bit_length()


@cache
def shared_bytes(device: torch.device) -> int:
    """Return the shared memory in bytes that a Triton program may use; unlimited if Triton interprets on a CPU."""
    if device.type != "cuda":
        return 1 << 30
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)


# --- recording ---


Pool = Any
"""A handle of memory that CUDA graphs share; a replay overwrites the results of the other graphs."""

_STREAMS: dict[torch.device, torch.cuda.Stream] = {}  # one per GPU, as cuBLAS keeps a workspace for each stream
_RECORDING = threading.Lock()


def is_recording(device: torch.device) -> bool:
    """Return whether this thread's operations on a device are being recorded and not run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@contextmanager
def recording(device: torch.device, pool: Pool | None = None) -> Iterator[torch.cuda.CUDAGraph]:
    """Record the operations in the body of `with` without running them; they must have run before."""
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
    """End the capture of a CUDA graph; if the capture failed, repair PyTorch's random number generator."""
    try:
        graph.capture_end()
    except RuntimeError:
        # After a failed capture, PyTorch still treats the GPU's default generator as registered with the graph.
        generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
        generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
        generator.manual_seed(torch.initial_seed())
        raise


# --- trial of the kernels ---
# The kernels are imported only for the trial, once everything else is present.


def why_triton_fails(device: str) -> str | None:
    """Return why Triton does not work on a device, as a phrase for a message; None if it works."""
    from transduce.kernels.cuda.rows import add_and_norm

    x = torch.linspace(-1.0, 1.0, 96, device=device).view(2, 48)
    weight, bias = x[0] + 2.0, x[1]
    try:
        with torch.cuda.device_of(x):
            total, normed = add_and_norm(x, x * x, weight, bias, 1e-5)
    except Exception as error:  # noqa: BLE001  (its compiler, the C compiler and the driver have errors of their own)
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"triton fails on it: {reason}"
    expected = F.layer_norm(x + x * x, (48,), weight, bias, 1e-5)
    right = torch.allclose(total, x + x * x) and torch.allclose(normed, expected, rtol=1e-4, atol=1e-4)
    return None if right else "triton's kernels give wrong results on it"


# --- check of a GPU ---


_MIN_CAPABILITY = (8, 0)  # compute capability of NVIDIA's Ampere, the first with bfloat16


@cache
def why_no_triton(device: str) -> str | None:
    """Return why Triton kernels do not work on a GPU, as a phrase for a message; None if they do."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if sys.platform == "linux":  # Triton for other systems ships a compiler
        if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
            return "there is no C compiler for triton: install gcc"
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            return "there is no Python.h for triton: install Python's headers"
    if torch.cuda.get_device_capability(device) < _MIN_CAPABILITY:
        return "the kernels need an NVIDIA GPU of the Ampere generation or later"
    return why_triton_fails(device)
