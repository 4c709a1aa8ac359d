"""Detect the machine's cores, memory, instruction sets and GPU, and recognize errors of exhausted memory.

`detect_machine` returns a `Machine`, from which defaults are chosen that depend on the machine. The module also lists
the names of the precisions of weights.
"""

import os
import platform
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Literal

import msgspec
import torch

from transduce.argument_checks import as_integer
from transduce.errors import TransduceError

# --- precisions ---


Precision = Literal["fp32", "bf16"]
DTYPES: Mapping[str, torch.dtype] = MappingProxyType({"fp32": torch.float32, "bf16": torch.bfloat16})


# --- hardware ---


_UNKNOWN_MEMORY = 2**32  # bytes, where the system does not tell


# Values of ONEDNN_MAX_CPU_ISA with which the user disables instruction sets.
_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}
_WITHOUT_AMX = _WITHOUT_BF16 | {"AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_256", "AVX10_1_512"}

_MAX_THREADS = 1024  # with some ten thousand threads, the system kills the process


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a machine that decide defaults, such as precision and batch size."""

    device: str
    """PyTorch device that computes, such as "cpu" or "cuda"."""
    threads: int
    """Number of compute threads."""
    amx: bool
    """True if the processor has AMX tiles for bfloat16 matrix multiplication, 5 to 8 times as fast as float32."""
    avx512_bf16: bool
    """True if the processor has AVX-512 dot products in bfloat16, about twice as fast as float32.

    False on a processor with AMX that is disabled: there, these instructions are slower than float32
    (docs/log/training_speed.md).
    """
    gpu_bf16: bool = False
    """True on a GPU that multiplies bfloat16: NVIDIA Ampere or later."""
    processes: int = 1
    """Number of processes that train one model together, on all machines."""

    @property
    def precision(self) -> Precision:
        """The default precision: "bf16" if the hardware multiplies it faster than fp32, else "fp32"."""
        return "bf16" if self.gpu_bf16 or (self.device == "cpu" and (self.amx or self.avx512_bf16)) else "fp32"

    @property
    def operations_per_second(self) -> float:
        """A rough estimate of multiply-add operations per second when a machine of this kind trains."""
        if self.device.startswith("cuda"):
            return 1e14
        return self.threads * (3e11 if self.amx else 1e11 if self.avx512_bf16 else 4e10)

    @property
    def precision_reason(self) -> str:
        """The reason for the default precision, for messages."""
        if self.device.startswith("cuda"):
            return "the GPU multiplies bfloat16 fastest" if self.gpu_bf16 else "this GPU has no units for bfloat16"
        if self.device == "mps":
            return "other precisions are not checked on Apple's GPUs"
        if self.amx:
            return "this processor has AMX tiles for bfloat16"
        if self.avx512_bf16:
            return "this processor has AVX-512 instructions for bfloat16"
        return "this processor has no instructions that multiply bfloat16 faster"


class _Fork:
    """A record of whether this process was forked from one that ran compute threads.

    A fork has none of its parent's threads. OpenMP would wait for them forever (GCC's bug 52303).
    """

    had_threads = False
    in_child = False

    @classmethod
    def before(cls) -> None:
        """Record, before this process is forked, whether it has threads that Python did not start."""
        try:
            cls.had_threads = len(os.listdir("/proc/self/task")) > threading.active_count()
        except OSError:  # not Linux
            cls.had_threads = False

    @classmethod
    def after(cls) -> None:
        """Restrict PyTorch to one thread in a forked process that lacks the compute threads of its parent."""
        cls.in_child = cls.in_child or cls.had_threads
        if cls.in_child:
            torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_Fork.before, after_in_child=_Fork.after)


def detect_machine(device: str = "auto", threads: int | None = None) -> Machine:
    """Detect this machine's properties; on a GPU, also disable PyTorch's cuDNN attention.

    Args:
        device: "cpu", "cuda", "cuda:1", "mps" (Apple's GPUs), or "auto": an NVIDIA GPU if there is one.
        threads: number of compute threads; None: `OMP_NUM_THREADS`, or else all cores that this process may use.

    Raises:
        TransduceError: the device does not exist, `threads` is no whole number in range, or `threads` is greater than 1
            in a process that was forked from one with compute threads.
    """
    threads = None if threads is None else as_integer(threads, "threads", minimum=1, maximum=_MAX_THREADS)
    if _Fork.in_child:
        if threads is not None and threads > 1:
            raise TransduceError(
                f"`threads` must be 1 in a process forked from one that computed on several threads, but is {threads}: "
                "start the process by multiprocessing's `spawn` instead."
            )
        threads = 1
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    has_amx = bool(torch.cpu._is_amx_tile_supported())
    device_name = _find_device(device)
    return Machine(
        device=device_name,
        threads=threads or openmp_threads() or usable_cores(),
        amx=has_amx and isa not in _WITHOUT_AMX,
        avx512_bf16=isa not in (_WITHOUT_AMX if has_amx else _WITHOUT_BF16) and _has_avx512_bf16(),
        gpu_bf16=device_name.startswith("cuda") and torch.cuda.get_device_capability(device_name) >= (8, 0),
    )


def prepare_device(device: str) -> None:
    """Set PyTorch up to compute with models on a device: on a GPU, cuDNN's attention is turned off in this process.

    cuDNN's attention makes a new plan for each shape, which takes longer than a decoding step, and keeps all plans.
    """
    if device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)


def _find_device(device: str | torch.device) -> str:
    if isinstance(device, torch.device):
        device = str(device)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(device, str) or not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise TransduceError(f"`device` must be `auto`, `cpu`, `cuda`, `cuda:NUMBER` or `mps`, but is `{device}`.")
    if device == "mps":
        if not torch.backends.mps.is_available():
            raise TransduceError("The device `mps` was asked for, but PyTorch finds no Apple GPU here: use `cpu`.")
        return device
    gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    if device != "cpu" and int(device.partition(":")[2] or 0) >= gpus:
        if not gpus:
            raise TransduceError(f"The device `{device}` was asked for, but PyTorch finds no GPU here: use `cpu`.")
        available = "1 GPU" if gpus == 1 else f"{gpus} GPUs, counted from 0"
        raise TransduceError(f"The device `{device}` was asked for, but PyTorch finds {available} here: use another.")
    return device


def _has_avx512_bf16() -> bool:
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(probe()) if probe is not None else False


def openmp_threads() -> int | None:
    """Return the number of threads in $OMP_NUM_THREADS (the first number of a list).

    The result is None if the variable is no positive number, or under torchrun, which sets it to 1.
    """
    value = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(value) if value.isdecimal() and int(value) and "TORCHELASTIC_RUN_ID" not in os.environ else None


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its CPU affinity and the cgroup's limit; at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        cores = os.cpu_count() or 1
    limit = _cgroup_limit(Path("/sys/fs/cgroup"))
    return max(1, cores if limit is None else min(cores, limit))


def peak_memory() -> int | None:
    """Return the largest resident memory of this process so far, in bytes; None if the system does not report it."""
    try:
        import resource  # missing on Windows
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _cgroup_limit(root: Path) -> int | None:
    """Return the number of cores, rounded up, that a cgroup (version 2 or 1) at a path allows.

    The result is None if the cgroup sets no limit or cannot be read.
    """
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


def usable_memory() -> int:
    """Return the bytes of memory that this process may use.

    This is the machine's memory, or the cgroup's limit if the limit is lower. On Windows, which reports neither, the
    result is 4 GiB.
    """
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # Windows
        return _UNKNOWN_MEMORY
    limits = [physical]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _number(Path("/sys/fs/cgroup") / name)
        limits += [] if limit is None else [limit]
    return min(limits)


def _number(path: Path) -> int | None:
    """Return the whole number that a file of the system holds; None if there is no such file, or it says `max`."""
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None


def available_memory(device: str = "cpu", *, address_space: bool = True) -> int | None:
    """Return the bytes of memory that this process can still take on a device; None if the system does not report it.

    On a CPU this is the lowest of several figures: the machine's available memory, what the limits of control groups
    leave and, with `address_space`, what the limit of the process's address space (`ulimit -v`) leaves.
    """
    if device.startswith("cuda"):
        own = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + own
    if device != "cpu":
        return None
    return _available(Path("/"), address_space=address_space)


# The files with a control group's limit and use of memory, and the line of memory.stat that counts its cached files,
# which the system takes back when memory is short: version 2, then version 1.
_GROUP_FILES = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _available(root: Path, *, address_space: bool) -> int | None:
    """Return the bytes of memory that are left to this process, from Linux's files below the folder `root`.

    The result is the lowest of the machine's available memory, what is left below the limits of control groups and, if
    `address_space` is true, what is left below the limit of the address space. The result is None if no file gives a
    number, as on Windows.
    """
    found = []
    try:
        in_all = re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text("ascii"), re.MULTILINE)
        found += [] if in_all is None else [1024 * int(in_all[1])]
    except OSError:
        pass
    for groups, limit_file, used_file, cached in _GROUP_FILES:
        for folder in _memory_groups(root, groups):
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is None or used is None:
                continue
            try:
                statistics = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
            except (OSError, ValueError):
                statistics = {}
            found.append(max(0, limit - used + int(statistics.get(cached, 0))))
    if address_space and (left := _free_address_space(root)) is not None:
        found.append(left)
    return min(found, default=None)


def _memory_groups(root: Path, groups: str) -> list[Path]:
    """Return a list of the folders of this process's memory control group and of all groups that contain it.

    The files of a group are looked up there; a folder need not exist.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    controllers = "memory" if groups.endswith("memory") else ""
    names = [name for _, found, name in (line.split(":", 2) for line in lines) if controllers in found.split(",")]
    own = PurePosixPath((names or ["/"])[0].lstrip("/"))
    return [root / groups / each for each in dict.fromkeys((own, *own.parents, PurePosixPath()))]


def _free_address_space(root: Path) -> int | None:
    """Return what `ulimit -v` leaves of the address space, in bytes; None without a limit."""
    try:
        import resource  # missing on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int((root / "proc/self/statm").read_text("ascii").split()[0])
    except (ImportError, OSError, ValueError):
        return None
    return max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))


def format_bytes(size: int) -> str:
    """Format a number of bytes as text such as "870 MiB" or "2.4 GiB"."""
    return f"{size / 2**20:,.0f} MiB" if size < 2**30 else f"{size / 2**30:,.1f} GiB"


def describe(machine: Machine) -> str:
    """Return a one-line description of the machine: its system, device, threads and fast instructions."""
    extras = [name for name, has in (("AMX", machine.amx), ("AVX-512 bf16", machine.avx512_bf16)) if has]
    threads = "1 thread" if machine.threads == 1 else f"{machine.threads} threads"
    return f"{platform.system()} {platform.machine()}, {machine.device}, {threads}" + (
        f", {' and '.join(extras)}" if extras else ""
    )


# --- exhausted memory ---


@contextmanager
def explain_out_of_memory(sentence: str) -> Iterator[None]:
    """Raise a `TransduceError` with the message `sentence` if the body of `with` runs out of memory.

    Raises:
        TransduceError: memory ran out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TransduceError(sentence) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out.

    PyTorch's CPU allocator and oneDNN raise a plain RuntimeError, which is known by its message.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "DefaultCPUAllocator" in str(error) or "could not create a memory object" in str(error)
