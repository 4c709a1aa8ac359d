"""Configure processes: signals, child processes and their options, ranks, library variables, and unused memory."""

import ctypes
import mmap
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from transduce.errors import TransduceError, shell_word

# --- signals ---


@contextmanager
def handle_sigterm(handler: Callable[..., object] | signal.Handlers) -> Iterator[None]:
    """Call `handler` when SIGTERM arrives in the body of `with`; outside of the main thread, nothing is changed.

    A handler that raises an exception lets the body remove partial output and end its child processes. With
    `signal.SIG_DFL`, the system ends the process, even while it waits in a library that runs no Python code.
    """
    with _handle_signal(signal.SIGTERM, handler):
        yield


@contextmanager
def handle_hangup(handler: Callable[..., object]) -> Iterator[None]:
    """Call `handler` when SIGHUP arrives in the body of `with`; if the terminal has been closed, exit instead.

    Outside of the main thread, and on Windows, which has no such signal, nothing is changed.
    """
    if not hasattr(signal, "SIGHUP"):
        yield
        return
    has_terminal = os.isatty(2)

    def handle(number: int, frame: object) -> None:
        if has_terminal and not os.isatty(2):
            sys.exit(0)
        handler(number, frame)

    with _handle_signal(signal.SIGHUP, handle):
        yield


@contextmanager
def _handle_signal(number: int, handler: Callable[..., object] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


# --- child processes ---
# They run this package from the location it was imported from.


_PACKAGES = Path(__file__).resolve().parents[1]


def module_command(name: str) -> list[str]:
    """Return a list of the first words of a command that runs a Python module: `python -P -m NAME`.

    The option -P keeps Python from importing modules of the current folder.
    """
    return [sys.executable, "-P", "-m", name]


def child_environment(*, stops_with_parent: bool = False) -> dict[str, str]:
    """Return a dict of environment variables for a Python subprocess that imports this package.

    The variables put this package first on the subprocess's search path. With `stops_with_parent`, a `transduce`
    command in the subprocess stops when this process has ended for any reason.
    """
    paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    parent = {_PARENT: str(os.getpid())} if stops_with_parent else {}
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | parent


_COMMON_OPTIONS: list[tuple[str, str]] = []


def common_words() -> list[str]:
    """Return the options that `use_common_options` set, as a list of the words of a command: ["--plugin", "FILE"].

    Another command for the same model needs them, too.
    """
    return [word for option in _COMMON_OPTIONS for word in option]


def common_options() -> str:
    """Return the options that `use_common_options` set, as text for the end of a suggested command.

    Values are quoted for the shell. The text begins with a space; without such options it is empty.
    """
    return "".join(f" {option} {shell_word(value)}" for option, value in _COMMON_OPTIONS)


@contextmanager
def use_common_options(options: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Add options, such as --plugin, to the commands that are suggested or started within a `with` block."""
    before = list(_COMMON_OPTIONS)
    _COMMON_OPTIONS.extend(options)
    try:
        yield
    finally:
        _COMMON_OPTIONS[:] = before


_PARENT = "TRANSDUCE_PARENT"  # the id of the process that must outlive this one
_SECONDS_BETWEEN_CHECKS = 1.0


def stop_with_parent() -> None:
    """Start a thread that sends SIGTERM to this process when its parent has ended.

    Training saves when it receives SIGTERM. No thread is started unless the parent asked for it (`child_environment`).
    On Windows the signal is never sent, because a process keeps the id of its ended parent.
    """
    parent = os.environ.pop(_PARENT, "")
    if not parent.isdigit():
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(_SECONDS_BETWEEN_CHECKS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="stop-with-parent", daemon=True).start()


# --- processes that train one model together ---

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class Ranks(NamedTuple):
    """The rank of a process among those that train one model together, and among those on its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def launched_ranks() -> Ranks:
    """Return the `Ranks` of this process that `torchrun` has set in its environment; a single process has rank 0 of 1.

    Raises:
        TransduceError: the environment is incomplete.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return Ranks()
    try:
        return Ranks(*(int(os.environ[name]) for name in _RANK_VARIABLES))
    except (KeyError, ValueError) as error:
        raise TransduceError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(_RANK_VARIABLES)} are not all numbers "
            f"({error}): start the processes with torchrun, or unset WORLD_SIZE."
        ) from error


# --- environment variables and memory ---


_TRIM_THRESHOLD, _MAX_MAPPINGS = -1, -4  # parameter numbers of `mallopt` in glibc's malloc.h
_MAPPINGS, _PAGE_COUNTS = Path("/proc/self/maps"), Path("/proc/self/smaps")  # exist on Linux only
_MAPPING = re.compile(
    r"^(?P<range>(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+)) \S+ \S+ \S+ \d+ +(?P<path>/.*)\n"
    r"(?:.*\n)*?Anonymous: +(?P<own>\d+) kB\n(?:.*\n)*?Swap: +(?P<swapped>\d+) kB$",
    re.MULTILINE,
)


def set_library_defaults() -> None:
    """Set environment variables to better defaults for OpenMP and oneDNN, unless the user has set these variables.

    * Threads that wait for one another spin for microseconds, not milliseconds, before they sleep. With OpenMP's
      default, training next to other busy processes was half as fast (docs/log/training_speed.md).
    * oneDNN caches at most 64 compiled primitives, one for each shape. Batches have ever new shapes, so the default
      cache of 1,024 primitives fills up with a gigabyte and more that is never used again.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def keep_freed_memory() -> None:
    """Make the process keep freed memory, if the C library is glibc and the user has not configured malloc.

    Each training step frees and allocates the same hundreds of megabytes. By default, glibc returns large blocks to the
    system at once, and the system zeroes each page before it hands the page out again. That costs a tenth of the step's
    time outside matrix multiplications. The peak memory of training stays the same.
    """
    is_configured = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if platform.libc_ver()[0] == "glibc" and not is_configured:
        library = ctypes.CDLL(None)
        library.mallopt(_MAX_MAPPINGS, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)


def release_freed_memory() -> None:
    """Return freed memory to the system, if the C library is glibc, which otherwise keeps it."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def release_mapped_pages(address: int, size: int) -> None:
    """Release the resident memory of a privately mapped file, whose pages are read again on access (Linux only).

    Pages that the process has written lose what was written.

    Args:
        address: the address of the mapping.
        size: its size in bytes.
    """
    if platform.system() == "Linux":
        start = address & -mmap.PAGESIZE
        length = ctypes.c_size_t(address + size - start)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), length, mmap.MADV_DONTNEED)


def release_library(name: str) -> None:
    """Release the resident memory of a loaded shared library that is not needed for now (Linux only).

    Read-only pages are dropped and read from the file again on the next access. Pages that the process has written,
    such as relocated addresses, cannot be read again and stay resident. `/proc/self/smaps` counts them as `Anonymous`.

    Args:
        name: prefix of the library's file name.
    """
    if not _MAPPINGS.exists():
        return
    ranges = [
        line.partition(" ")[0]
        for line in _MAPPINGS.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
        if f"/{name}" in line and "w" not in line.split(" ", 2)[1]
    ]
    for start, end in _unwritten(name, tuple(ranges)):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


@cache
def _unwritten(name: str, ranges: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return a list of the (start, end) addresses of a library's read-only mappings that this process never wrote to.

    The result is cached, because looking it up takes tens of milliseconds in a process with many mappings. It does not
    change: nothing can be written to a read-only mapping later.

    Args:
        name: prefix of the library's file name.
        ranges: the address ranges of the library's read-only mappings, such as "7f01a000-7f02b000".
    """
    found = (
        mapping
        for mapping in _MAPPING.finditer(_PAGE_COUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
        if mapping["range"] in ranges and mapping["own"] == mapping["swapped"] == "0"
    )
    return [
        (int(mapping["start"], 16), int(mapping["end"], 16))
        for mapping in found
        if Path(mapping["path"]).name.startswith(name)
    ]
