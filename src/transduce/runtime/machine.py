"""What this machine has: cores, instruction sets, an accelerator. Decisions that change bits rest on this alone."""

import os
import platform
import re
from pathlib import Path

import msgspec
import torch

from transduce.errors import TransduceError
from transduce.given import as_whole
from transduce.model.precision import Precision

# Values of ONEDNN_MAX_CPU_ISA, by which a person keeps instructions from being used.
_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}
_WITHOUT_AMX = _WITHOUT_BF16 | {"AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_256", "AVX10_1_512"}

_MOST_THREADS = 1024  # of some ten thousand the system ends the process


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as far as it matters here."""

    device: str
    threads: int
    amx: bool
    """Tiles for bfloat16 matrix products, 5 to 8 times as fast as float32."""
    avx512_bf16: bool
    """Dot products in bfloat16, about twice as fast as float32. Where a processor with AMX is kept from it they do not
    count: there they are slower than float32's (docs/benchmarks.md, "Training by AMX")."""
    gpu_bf16: bool = False
    """A GPU, and one that multiplies bfloat16: NVIDIA's since Ampere."""
    processes: int = 1
    """That train one model together, here and elsewhere."""

    @property
    def precision(self) -> Precision:
        """bf16 where the hardware multiplies it faster than fp32."""
        return "bf16" if self.gpu_bf16 or (self.device == "cpu" and (self.amx or self.avx512_bf16)) else "fp32"

    @property
    def operations_per_second(self) -> float:
        """Multiplications and additions of training on a machine of this kind: a round number."""
        if self.device.startswith("cuda"):
            return 1e14
        return self.threads * (3e11 if self.amx else 1e11 if self.avx512_bf16 else 4e10)

    @property
    def precision_reason(self) -> str:
        """Why, for people."""
        if self.device.startswith("cuda"):
            return "the GPU multiplies bfloat16 fastest" if self.gpu_bf16 else "this GPU has no units for bfloat16"
        if self.amx:
            return "this processor has AMX tiles for bfloat16"
        if self.avx512_bf16:
            return "this processor has AVX-512 instructions for bfloat16"
        return "this processor has no instructions that multiply bfloat16 faster"


def detect_machine(device: str = "auto", threads: int | None = None) -> Machine:
    """The machine at hand; where it is a GPU, PyTorch's attention by cuDNN is turned off.

    Args:
        device: "cpu", "cuda", "cuda:1" or "auto": the GPU where there is one.
        threads: threads to compute with; None: as many as `OMP_NUM_THREADS` says, else all cores that this process may
            use.

    Raises:
        TransduceError: the device is not there, or the number of threads is not positive, or more than any machine has.
    """
    threads = None if threads is None else as_whole(threads, "threads", least=1, most=_MOST_THREADS)
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    has_amx = bool(torch.cpu._is_amx_tile_supported())
    found = _find_device(device)
    if found.startswith("cuda"):
        # It plans anew for each shape, which takes longer than a step of decoding, and keeps all plans.
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    return Machine(
        device=found,
        threads=threads or _said_to_openmp() or usable_cores(),
        amx=has_amx and isa not in _WITHOUT_AMX,
        avx512_bf16=isa not in (_WITHOUT_AMX if has_amx else _WITHOUT_BF16) and _has_avx512_bf16(),
        gpu_bf16=found.startswith("cuda") and torch.cuda.get_device_capability(found) >= (8, 0),
    )


def _find_device(asked: str) -> str:
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(asked, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", asked):
        raise TransduceError(f"`device` must be `auto`, `cpu`, `cuda` or `cuda:NUMBER`, but is `{asked}`.")
    gpus = torch.cuda.device_count() if asked != "cpu" and torch.cuda.is_available() else 0
    if asked != "cpu" and int(asked.partition(":")[2] or 0) >= gpus:
        found = "no GPU" if not gpus else "1 GPU" if gpus == 1 else f"{gpus} GPUs, counted from 0"
        raise TransduceError(f"The device `{asked}` was asked for, but PyTorch finds {found} here: use another.")
    return asked


def _has_avx512_bf16() -> bool:
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(probe()) if probe is not None else False


def _said_to_openmp() -> int | None:
    """Threads as a person, or a cluster's scheduler, wants them of all programs; torchrun says 1 where nobody does."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(said) if said.isdecimal() and int(said) and "TORCHELASTIC_RUN_ID" not in os.environ else None


def usable_cores() -> int:
    """Cores that this process may use: its affinity, and the limit of its control group."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        cores = os.cpu_count() or 1
    limit = _cgroup_limit(Path("/sys/fs/cgroup"))
    return max(1, cores if limit is None else min(cores, limit))


def _cgroup_limit(root: Path) -> int | None:
    """CPUs granted by a control group of version 2 or 1, rounded up, or None."""
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text("ascii").split()
        else:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text("ascii")
            period = (root / "cpu" / "cpu.cfs_period_us").read_text("ascii")
        if quota == "max" or int(quota) <= 0:
            return None
        return -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def describe(machine: Machine) -> str:
    """One line for people."""
    extras = [name for name, has in (("AMX", machine.amx), ("AVX-512 bf16", machine.avx512_bf16)) if has]
    threads = "1 thread" if machine.threads == 1 else f"{machine.threads} threads"
    return f"{platform.system()} {platform.machine()}, {machine.device}, {threads}" + (
        f", {' and '.join(extras)}" if extras else ""
    )
