"""The environment of a run: machine and library versions that its exact results depend on besides its settings."""

from collections.abc import Iterator

import msgspec

from transduce.training.settings import Kernels


class Surroundings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An environment, stored in every checkpoint; if it differs on resume, results are no longer equal bit for bit."""

    device: str
    """"cpu", or the GPU's name."""
    instructions: str
    """The CPU architecture and the instruction sets that PyTorch uses, such as "x86_64 AVX512 AMX"."""
    threads: int
    torch: str
    """The version of PyTorch."""
    kernels: Kernels = "torch"
    """The kernels that steps use: "torch" or "native"."""
    processes: int | None = None
    """The number of processes that train together; None in checkpoints that did not store it."""


def differences(before: Surroundings, now: Surroundings) -> Iterator[str]:
    """Yield the differences between two environments, each as text "name old then, new now"."""
    for name in Surroundings.__struct_fields__:
        old, new = (msgspec.structs.asdict(one)[name] for one in (before, now))
        if old not in (new, None):
            yield f"{name} {old} then, {new} now"
