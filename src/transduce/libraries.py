"""What the libraries under PyTorch read from the environment, once, and memory that they keep after use."""

import ctypes
import mmap
import os
import platform
import re
from pathlib import Path

_TRIM_THRESHOLD, _MOST_MAPPINGS = -1, -4  # GNU's names of what `mallopt` sets
_MAPPINGS = Path("/proc/self/smaps")  # Linux's
_MAPPING = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<rights>\S+) \S+ \S+ \d+ +(?P<path>/.*)\n"
    r"(?:.*\n)*?Anonymous: +(?P<own>\d+) kB\n(?:.*\n)*?Swap: +(?P<swapped>\d+) kB$",
    re.MULTILINE,
)


def advise_libraries() -> None:
    """Sets what is better than their own defaults here, unless the user has said otherwise.

    * Threads that wait for one another spin for microseconds, not milliseconds, before they sleep. By default training
      beside another busy process took ten times as long as its share of the cores explains; now about twice.
    * oneDNN keeps at most 64 of the programs that it writes, one for each shape of a product. Batches have ever new
      shapes, so that by default it keeps 1,024 of which none is used again: a gigabyte and more.

    Both figures are in docs/benchmarks.md.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def keep_freed_memory() -> None:
    """From now on freed memory stays with the process, where the C library is GNU's and nobody said otherwise.

    Each step of training frees and asks for the same hundreds of megabytes. The library gives large pieces back at
    once, and the system clears every page of them before it hands them out again: a tenth of all that is no matrix
    product in a step. The most memory that training takes stays the same.
    """
    said = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if platform.libc_ver()[0] == "glibc" and not said:
        library = ctypes.CDLL(None)
        library.mallopt(_MOST_MAPPINGS, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)


def return_memory() -> None:
    """Gives freed memory back to the system, where the C library is GNU's, which otherwise keeps it for later."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def release_library(name: str) -> None:
    """Gives the memory of a library back that is not needed for now, on Linux.

    What is only read is fetched from the file again as soon as somebody asks for it. What was written, as addresses are
    into a library when it is loaded, is no longer the file's and stays: `Anonymous` counts it also where a forked
    process shares it.

    Args:
        name: begins the name of the library's file.
    """
    if not _MAPPINGS.exists():
        return
    for found in _MAPPING.finditer(_MAPPINGS.read_text(encoding="utf-8", errors="surrogateescape")):
        if (
            Path(found["path"]).name.startswith(name)
            and "w" not in found["rights"]
            and found["own"] == found["swapped"] == "0"
        ):
            start, end = int(found["start"], 16), int(found["end"], 16)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
