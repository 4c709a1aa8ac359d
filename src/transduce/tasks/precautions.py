"""Collect what a run needs to detect and report trouble: largest batches, readable batches, and its environment."""

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
    """Return the properties of a machine and its kernels that determine the order of floating-point sums."""
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
    """Return the share of the machine for one of several training processes: a GPU, or a part of the cores."""
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
    """Return the largest batches, a function that describes a batch, and the machine's environment.

    With several processes, each tries the first process's share of the largest batches, which is the largest share.
    """
    return Precautions(
        largest=[_share(batch, processes) for batch in largest],
        describe=describe,
        surroundings=surroundings_of(machine, kernels),
    )


def _share(batch: Any, processes: int) -> Any:
    """Return the first process's rows of a batch; all its arrays have a row for each example."""
    arrays = {field.name: vars(batch)[field.name] for field in dataclasses.fields(batch)}
    rows = {name: array[::processes] for name, array in arrays.items() if isinstance(array, np.ndarray)}
    return dataclasses.replace(batch, **rows) if processes > 1 else batch
