"""Protocol of the worker processes of training_speed.py; imports no toolkit.

A worker runs one toolkit in a separate process. It reads a plan, reports "ready", runs as many steps as each line of
standard input requests, and answers with a line of JSON. Thus toolkits can alternate on an otherwise idle machine.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
CHOSEN = "chosen"  # the default on the machine, as visible to the worker


class Work(NamedTuple):
    """The model sizes, batches and settings that every worker gets."""

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
    attention: str  # sdpa or eager; ignored by ours
    optimizer: Literal["adam", "muon"]  # only ours has muon
    kernels: Literal["native", "torch"] | None  # of ours; None: the default
    record: bool | None  # of ours: whether GPU steps are recorded; None: the default


def read_plan() -> tuple[Work, list[tuple[Ids, Ids]]]:
    """Return the plan from the first argument, and its batches."""
    _answers()
    work = Work(**json.loads(sys.argv[1]))
    with np.load(work.batches) as arrays:
        pairs = [(arrays[f"s{n}"], arrays[f"t{n}"]) for n in range(len(arrays.files) // 2)]
    return work, pairs


class Device(NamedTuple):
    """Functions of the device on which a worker computes."""

    wait: Callable[[], object]
    peak_bytes: Callable[[], int]
    release: Callable[[], object] = lambda: None
    """A function that releases unused memory for the other processes."""


def processor_peak() -> int:
    """Return the peak memory of the process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


PROCESSOR = Device(lambda: None, processor_peak)


def serve(work: Work, pairs: list[tuple[Ids, Ids]], step: Callable[[int], Any], device: Device = PROCESSOR) -> None:
    """Run training steps as standard input requests; `step(n)` trains on batch n."""
    _send({"ready": True})
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
        _send(answer)


def _send(answer: dict[str, Any]) -> None:
    os.write(_answers(), (json.dumps(answer) + "\n").encode())


@cache
def _answers() -> int:
    """Return the file descriptor for answers, and redirect later output of the toolkit to standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers
