"""What a run of this corpus on this machine can use against trouble."""

import dataclasses
import platform
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from transduce.data.batches import Batch
from transduce.runtime.machine import Machine
from transduce.text.tokenizer import Tokenizer
from transduce.training.precautions import Precautions
from transduce.training.processes import Processes
from transduce.training.surroundings import Surroundings


def surroundings_of(machine: Machine) -> Surroundings:
    """What decides the order in which this machine adds up numbers."""
    on_gpu = machine.device.startswith("cuda")
    bfloat16 = [name for name, has in (("AVX512_BF16", machine.avx512_bf16), ("AMX", machine.amx)) if has]
    return Surroundings(
        device=torch.cuda.get_device_name(machine.device) if on_gpu else machine.device,
        instructions=" ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *bfloat16]),
        threads=machine.threads,
        torch=str(torch.__version__),
    )


def share_of_machine(machine: Machine, processes: Processes, *, threads_said: bool) -> Machine:
    """What one of several processes on this machine has of it: a GPU, or a part of the cores."""
    if processes.count == 1:
        return machine
    if machine.device.startswith("cuda"):
        return msgspec.structs.replace(machine, device=f"cuda:{processes.local_rank}")
    threads = machine.threads if threads_said else max(1, machine.threads // processes.local_count)
    return msgspec.structs.replace(machine, threads=threads)


def take_precautions(
    machine: Machine, largest: Sequence[Batch], tokenizer: Tokenizer, processes: int = 1
) -> Precautions:
    """The largest batches, a readable form of each batch, and the machine's part in the bits.

    Of several processes each tries the largest share, which is the first one's.
    """
    return Precautions(
        largest=[_share(batch, processes) for batch in largest],
        describe=lambda batch: describe_batch(batch, tokenizer),
        surroundings=surroundings_of(machine),
    )


def _share(batch: Batch, processes: int) -> Batch:
    indices, source, target = batch.indices[::processes], batch.source[::processes], batch.target[::processes]
    return dataclasses.replace(batch, source=source, target=target, indices=indices) if processes > 1 else batch


def describe_batch(batch: Batch, tokenizer: Tokenizer) -> dict[str, Any]:
    """Numbers of the pairs in the prepared corpus, from 0, and their text and ids."""
    sides = {"source": (tokenizer.source, batch.source), "target": (tokenizer.target, batch.target)}
    rows = {
        name: [[id for id in row if id != vocabulary.pad_id] for row in ids.tolist()]
        for name, (vocabulary, ids) in sides.items()
    }
    texts = {name: [sides[name][0].decode(row) for row in found] for name, found in rows.items()}
    return {"pairs": batch.indices.tolist(), **texts, "source_ids": rows["source"], "target_ids": rows["target"]}
