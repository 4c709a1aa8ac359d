"""What the workers of training_speed.py have in common; imports neither ours nor a peer's package.

A worker is one toolkit in a process of its own. It reads a plan, says "ready", and then takes as many steps as each
line of its input says, answering with a line of JSON. So the toolkits can take turns on an otherwise idle machine.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
CHOSEN = "chosen"  # by what the machine, as it is shown to the worker, has


class Work(NamedTuple):
    """The model and the batches that every worker gets."""

    batches: str  # an .npz file: s0, t0, s1, t1, … of ids padded at the right
    vocabulary_size: int
    num_layers: int  # in each of encoder and decoder
    d_model: int
    d_ff: int
    num_heads: int
    dropout: float
    label_smoothing: float
    pad_id: int
    eos_id: int
    threads: int
    device: str
    precision: str  # fp32, bf16 (autocast for a peer) or pure-bf16; CHOSEN by ours
    attention: str  # sdpa or eager; ours chooses by itself
    optimizer: Literal["adam", "muon"]  # muon is ours alone
    kernels: Literal["native", "torch"] | None  # of ours; None: as chosen
    record: bool | None  # of ours: whether steps on a GPU are recorded; None: by choice


def read_plan() -> tuple[Work, list[tuple[Ids, Ids]]]:
    """The plan that stands in the first argument, and its batches."""
    work = Work(**json.loads(sys.argv[1]))
    with np.load(work.batches) as arrays:
        pairs = [(arrays[f"s{n}"], arrays[f"t{n}"]) for n in range(len(arrays.files) // 2)]
    return work, pairs


class Device(NamedTuple):
    """What a worker must know of where it computes."""

    wait: Callable[[], object]
    peak_bytes: Callable[[], int]
    release: Callable[[], object] = lambda: None
    """Gives back memory that is not in use: others take their turn."""


def processor_peak() -> int:
    """The most memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


PROCESSOR = Device(lambda: None, processor_peak)


def serve(work: Work, pairs: list[tuple[Ids, Ids]], step: Callable[[int], Any], device: Device = PROCESSOR) -> None:
    """Takes steps as asked; `step(n)` trains on batch n."""
    _say({"ready": True})
    position = 0
    for line in sys.stdin:
        tokens = source_tokens = 0
        started_at, processor_at = time.monotonic(), time.process_time()
        for _ in range(int(line)):
            source, target = pairs[position % len(pairs)]
            step(position % len(pairs))
            source_tokens += int((source != work.pad_id).sum())
            tokens += int((target != work.pad_id).sum())
            position += 1
        device.wait()
        answer = {
            "seconds": time.monotonic() - started_at,
            "processor_seconds": time.process_time() - processor_at,
            "target_tokens": tokens,
            "source_tokens": source_tokens,
            "peak_bytes": device.peak_bytes(),
        }
        device.release()
        _say(answer)


def _say(answer: dict[str, Any]) -> None:
    os.write(_ANSWERS, (json.dumps(answer) + "\n").encode())


# What a toolkit prints must not come between the answers.
_ANSWERS = os.dup(1)
os.dup2(2, 1)
