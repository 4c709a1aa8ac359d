"""Measure the fastest matrix multiplication with a model's shapes, the upper bound for training_speed.py.

    python benchmarks/training_ceiling.py cpu 512 2048 8000 4096    # width, inner width, vocabulary, rows: operations/s

It runs in a separate process, so that libraries can be restricted to some instruction sets.
"""

import statistics
import sys
import time

import torch

from transduce.machine import Machine, detect_machine


def ceiling(d_model: int, d_ff: int, vocabulary_size: int, rows: int, machine: Machine) -> float:
    """Return the operations per second of the fastest GEMM of (rows, k) by (k, n), in the machine's precision."""
    dtype = torch.bfloat16 if machine.precision == "bf16" else torch.float32
    torch.set_num_threads(machine.threads)
    shapes = [(d_model, d_model), (d_model, 3 * d_model), (d_model, d_ff), (d_ff, d_model), (d_model, vocabulary_size)]
    return max(_rate(rows, k, n, dtype, machine.device) for k, n in shapes)


def _rate(rows: int, k: int, n: int, dtype: torch.dtype, device: str) -> float:
    x = torch.randn(rows, k, device=device, dtype=dtype)
    weight = torch.randn(n, k, device=device, dtype=dtype)
    operations = 2.0 * rows * k * n
    repeats = max(1, int(2e10 // operations))
    seconds = []
    for _ in range(7):
        wait(device)
        started_at = time.monotonic()
        for _ in range(repeats):
            torch.nn.functional.linear(x, weight)
        wait(device)
        seconds.append((time.monotonic() - started_at) / repeats)
    return operations / statistics.median(seconds)


def wait(device: str) -> None:
    """Wait until a GPU has finished all work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    d_model, d_ff, vocabulary_size, rows = map(int, sys.argv[2:])
    print(ceiling(d_model, d_ff, vocabulary_size, rows, detect_machine(sys.argv[1])))
