"""What a run of this corpus on this machine can use against trouble."""

import dataclasses
import platform
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from transduce.runtime.machine import Machine
from transduce.training.precautions import Precautions
from transduce.training.processes import Processes
from transduce.training.settings import Kernels
from transduce.training.surroundings import Surroundings


def surroundings_of(machine: Machine, kernels: Kernels) -> Surroundings:
    """What decides the order in which this machine adds up numbers."""
    on_gpu = machine.device.startswith("cuda")
    bfloat16 = [name for name, has in (("AVX512_BF16", machine.avx512_bf16), ("AMX", machine.amx)) if has]
    return Surroundings(
        device=torch.cuda.get_device_name(machine.device) if on_gpu else machine.device,
        instructions=" ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *bfloat16]),
        threads=machine.threads,
        torch=str(torch.__version__),
        kernels=kernels,
        processes=machine.processes,
    )


def share_of_machine(machine: Machine, processes: Processes, *, threads_said: bool) -> Machine:
    """What one of several processes on this machine has of it: a GPU, or a part of the cores."""
    if processes.count == 1:
        return machine
    machine = msgspec.structs.replace(machine, processes=processes.count)
    if machine.device.startswith("cuda"):
        return msgspec.structs.replace(machine, device=f"cuda:{processes.local_rank}")
    threads = machine.threads if threads_said else max(1, machine.threads // processes.local_count)
    return msgspec.structs.replace(machine, threads=threads)


def take_precautions(
    machine: Machine,
    largest: Sequence[Any],
    describe: Callable[[Any], dict[str, Any]],
    processes: int = 1,
    *,
    kernels: Kernels = "torch",
) -> Precautions:
    """The largest batches, a readable form of each batch, and the machine's part in the bits.

    Of several processes each tries the largest share, which is the first one's.
    """
    return Precautions(
        largest=[_share(batch, processes) for batch in largest],
        describe=describe,
        surroundings=surroundings_of(machine, kernels),
    )


def _share(batch: Any, processes: int) -> Any:
    """The first process' rows of a batch, whose arrays all have a row for each example."""
    arrays = {field.name: vars(batch)[field.name] for field in dataclasses.fields(batch)}
    own = {name: array[::processes] for name, array in arrays.items() if isinstance(array, np.ndarray)}
    return dataclasses.replace(batch, **own) if processes > 1 else batch
