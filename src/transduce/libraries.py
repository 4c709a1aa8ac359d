"""What the libraries under PyTorch read from the environment, once, when they are first used."""

import os


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
