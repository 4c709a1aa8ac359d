"""What the bits of a run depend on beside its settings: the machine and the versions under it."""

from collections.abc import Iterator

import msgspec

from transduce.training.settings import Kernels


class Surroundings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Stored with every checkpoint. Where one of these differs on resume, sums are taken in another order."""

    device: str
    """"cpu", or the GPU's name."""
    instructions: str
    """The processor's architecture and the instructions that PyTorch found, such as "x86_64 AVX512 AMX"."""
    threads: int
    torch: str
    """PyTorch's version."""
    kernels: Kernels = "torch"
    """Whose kernels a step uses where there is a choice: "torch" or "native"."""
    processes: int | None = None
    """How many train together; None where nobody said."""


def differences(before: Surroundings, now: Surroundings) -> Iterator[str]:
    """What is not as it was, each as "name: before, now"."""
    for name in Surroundings.__struct_fields__:
        old, new = (msgspec.structs.asdict(one)[name] for one in (before, now))
        if old not in (new, None):
            yield f"{name} {old} then, {new} now"
