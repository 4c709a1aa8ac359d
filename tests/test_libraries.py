"""What a library takes of memory is given back, and what is read again is there."""

import subprocess
import sys
from pathlib import Path

import pytest

from transduce.libraries import release_library


def _resident_kilobytes(name: str) -> int:
    """Of a library's pages that are only read."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            counts = "w" not in words[1] and len(words) == 6 and Path(words[5]).name.startswith(name)
        elif counts and words[0] == "Rss:":
            total += int(words[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what is in memory can only be seen on Linux")
def test_a_librarys_pages_are_given_back_and_read_again() -> None:
    llvm = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed", exc_type=ImportError)
    llvm.initialize_native_target()
    text = "define i64 @answer() {\n ret i64 42\n}\n"
    llvm.parse_assembly(text).verify()
    before = _resident_kilobytes("libllvmlite")
    release_library("libllvmlite")
    assert _resident_kilobytes("libllvmlite") < before / 2
    assert "@answer" in str(llvm.parse_assembly(text))


_FORK = """
import os, signal, sys
import torch
from transduce.model.native.engine import find_tile
from transduce.model.native.fused_rows import softmax_

find_tile()  # loads the library
child = os.fork()
if child == 0 and sys.argv[1] == "parent":
    signal.pause()
if (child == 0) == (sys.argv[1] == "child"):
    softmax_(torch.randn(2, 5))  # is compiled, after which the library's memory is given back
    softmax_(torch.randn(2, 5, dtype=torch.bfloat16))
if child == 0:
    os._exit(0)
if sys.argv[1] == "parent":
    os.kill(child, signal.SIGKILL)
status = os.waitpid(child, 0)[1]
sys.exit(sys.argv[1] == "child" and status != 0)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="forks and memory can only be seen on Linux")
@pytest.mark.parametrize("who", ["child", "parent"])
def test_kernels_are_compiled_in_a_forked_process_and_beside_one(who: str) -> None:
    pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed", exc_type=ImportError)
    done = subprocess.run([sys.executable, "-c", _FORK, who], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
