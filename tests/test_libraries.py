"""Test that libraries release memory and read it again correctly, and that child processes end with their parent."""

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transduce.process_environment import child_environment, release_library


def _resident_kilobytes(name: str) -> int:
    """Return the resident memory of a library's read-only pages."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            counts = "w" not in words[1] and len(words) == 6 and Path(words[5]).name.startswith(name)
        elif counts and words[0] == "Rss:":
            total += int(words[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what is in memory can only be seen on Linux")
def test_released_library_pages_leave_memory_and_are_read_again() -> None:
    llvm = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed", exc_type=ImportError)
    llvm.initialize_native_target()
    text = "define i64 @answer() {\n ret i64 42\n}\n"
    llvm.parse_assembly(text).verify()
    before = _resident_kilobytes("libllvmlite")
    release_library("libllvmlite")
    released = _resident_kilobytes("libllvmlite")
    assert released < before / 2
    assert "@answer" in str(llvm.parse_assembly(text))
    assert _resident_kilobytes("libllvmlite") > released
    release_library("libllvmlite")  # again, by the addresses that are known now
    assert _resident_kilobytes("libllvmlite") == released


_LIBRARY_DEFAULTS = """
import os
before = dict(os.environ)
import transduce, transduce.inference.load, transduce.tasks.train
print(os.environ == before)
from transduce.commands.main import main
try:
    main()
except SystemExit:
    pass
print(sorted(os.environ.keys() - before.keys()))
"""


def test_the_command_alone_sets_environment_variables() -> None:
    names = ["GOMP_SPINCOUNT", "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"]
    environment = {name: value for name, value in os.environ.items() if name not in (*names, "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", _LIBRARY_DEFAULTS, "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=120)
    imported, *_, after_command = done.stdout.splitlines()
    assert (imported, after_command) == ("True", str(names))


_FORK = """
import os, signal, sys
import torch
from transduce.kernels.cpu.jit.compiler import find_integer_tile
from transduce.kernels.cpu.train_rows import softmax_

find_integer_tile()  # loads the library
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


_FREED = """
import resource, torch
from transduce.process_environment import keep_freed_memory

def step():
    kept = [torch.ones(millions << 20) for millions in (3, 5, 2, 4, 3)]
    return [x.add(1.0) for x in kept]

torch.set_num_threads(1)
keep_freed_memory()
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
"""
_PAGES_OF_A_STEP = 2 * 17 * 1024  # of 4 KiB
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this is of GNU's C library")
@pytest.mark.parametrize("said", [{}, {"MALLOC_TOP_PAD_": "65536"}, {"GLIBC_TUNABLES": "glibc.malloc.top_pad=65536"}])
def test_freed_memory_is_reused_unless_malloc_is_configured_by_the_user(said: dict[str, str]) -> None:
    """If the allocator returned freed memory to the system, reusing each page would cause a page fault."""
    if said and _LARGE_PAGES.exists() and "[always]" in _LARGE_PAGES.read_text(encoding="utf-8"):
        pytest.skip("this system's pages are large, so that there are few")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", _FREED], env=clean | said, capture_output=True, text=True, check=True)
    faults = int(done.stdout)
    assert (faults > _PAGES_OF_A_STEP / 2) if said else (faults < _PAGES_OF_A_STEP / 10), faults


@pytest.mark.skipif(os.name == "nt", reason="Windows does not replace the parent of a process")
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    child = f"""
import os, signal, sys, time
from transduce.process_environment import stop_with_parent
signal.signal(signal.SIGTERM, lambda *_: (open({str(tmp_path / "ended")!r}, "w").close(), os._exit(0)))
stop_with_parent()
assert "TRANSDUCE_PARENT" not in os.environ
open({str(tmp_path / "started")!r}, "w").close()
time.sleep(120)
"""
    parent = f"""
import subprocess, sys
from transduce.process_environment import child_environment
command = [sys.executable, "-c", {child!r}]
subprocess.Popen(command, env=child_environment(stops_with_parent=True), start_new_session=True).wait()
"""
    process = subprocess.Popen([sys.executable, "-c", parent], env=child_environment())

    def wait_for(name: str) -> None:
        give_up_at = time.monotonic() + 60.0
        while not (tmp_path / name).exists():
            assert time.monotonic() < give_up_at, name
            time.sleep(0.05)

    wait_for("started")
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for("ended")
