"""Measure the time of windowed self-attention: it grows as length × radius, that of full attention as length².

    python benchmarks/attention_window.py                  # lengths up to 16,384: some minutes
    python benchmarks/attention_window.py --quick          # fewer repetitions
    python benchmarks/attention_window.py --json rows.json # the figures as a list of rows; `-` for standard output

One attention module with 8 heads × 32, without gradients, fp32, batch 1; the best of several runs. The peer of each row
is the same attention without a window, up to 4,096 positions, where its scores fit into memory. Bar: from 4,096 to
16,384 positions, the time of each radius grows at most 5.5 times.
"""

import sys
import time
from collections.abc import Callable

import torch
from report import Row, machine, parser, report

from transduce.model.attention import MultiHeadAttention, Window

LENGTHS = (1024, 2048, 4096, 8192, 16384)
RADII = (64, 128, 256)
LONGEST_FULL = 4096
D_MODEL, NUM_HEADS = 256, 8


def milliseconds(run: Callable[[], object], repetitions: int) -> float:
    """Return the shortest time of several runs in milliseconds, after one warm-up run."""
    run()
    best = float("inf")
    for _ in range(repetitions):
        started_at = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started_at)
    return 1000.0 * best


def measure(repetitions: int) -> list[Row]:
    """Return the times of all lengths and radii, and their growth from 4,096 to 16,384 positions."""
    torch.manual_seed(1)
    width = D_MODEL // NUM_HEADS
    attention = MultiHeadAttention(d_model=D_MODEL, num_heads=NUM_HEADS, d_k=width, d_v=width).eval()
    inputs = {length: torch.randn(1, length, D_MODEL) for length in LENGTHS}
    full = {
        length: milliseconds(lambda x=inputs[length]: attention(x), repetitions)  # type: ignore[misc]
        for length in LENGTHS
        if length <= LONGEST_FULL
    }
    rows = []
    for radius in RADII:
        window = Window(radius, causal=False, present=None, bias=None)
        times = {n: milliseconds(lambda x=inputs[n]: attention(x, mask=window), repetitions) for n in LENGTHS}  # type: ignore[misc]  # noqa: B023
        for length, own in times.items():
            name, peer = f"radius {radius}, {length} positions", full.get(length)
            if peer is None:
                rows.append(Row(name, own, "ms"))
            else:
                rows.append(Row(name, own, "ms", "no window", peer, own / peer))
        growth = times[16384] / times[4096]
        bar = "at most 5.5 (4 is linear, 16 is quadratic)"
        rows.append(Row(f"radius {radius}, growth to 4 × the length", growth, "×", bar=bar, holds=growth <= 5.5))
    return rows


def main() -> int:
    """Run the benchmark, report its rows, and return 1 if a bar is missed."""
    options = parser(__doc__)
    options.add_argument("--threads", type=int, default=1, help="threads to compute with")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    sys.stderr.write(machine() + "\n")
    with torch.inference_mode():
        return report(measure(3 if args.quick else 10), args.json)


if __name__ == "__main__":
    sys.exit(main())
