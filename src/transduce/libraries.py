"""What the libraries under PyTorch read from the environment, once, and memory that they keep after use."""

import ctypes
import os
import platform


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


def return_memory() -> None:
    """Gives freed memory back to the system, where the C library is GNU's, which otherwise keeps it for later."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
