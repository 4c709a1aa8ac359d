"""Test the cache of compiled code: it is reused, damaged files are recompiled, and failures to write are ignored."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.kernels.cpu.jit import compiler
from transduce.kernels.cpu.jit.compiler import (
    CACHE_VARIABLE,
    cache_code,
    cache_key,
    find_integer_tile,
    load_cached_code,
)
from transduce.kernels.cpu.jit.tile import AVX512_TILE

if find_integer_tile() is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)

PRODUCT = """
import torch
from transduce.kernels.cpu.jit import compiler
from transduce.kernels.cpu.jit.compiler import find_float_tile
from transduce.kernels.cpu.gemm.decode import CompiledLinear
made = []
make = compiler._make_code
compiler._make_code = lambda *values: made.append(values) or make(*values)
weight, x = torch.eye(64) * 2.0, torch.arange(128.0).view(2, 64)
assert torch.equal(CompiledLinear(weight, None, find_float_tile("floats"))(x), 2.0 * x)
print(len(made), flush=True)
"""
# Imports what is slow to import, and forks a process for each line: it has compiled nothing, as a new one.
FORKS = f"""
import json, os, sys
import transduce.kernels.cpu.gemm.decode
for line in sys.stdin:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
    else:
        os.environ.update(json.loads(line))
        exec({PRODUCT!r})
        os._exit(0)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path / "kernels"


@pytest.fixture(scope="module")
def programs_made() -> Iterator[Callable[..., int]]:
    """Yield a function that returns how many modules a new process with these environment variables compiles."""
    if not hasattr(os, "fork"):
        program = [sys.executable, "-c", PRODUCT]
        yield lambda **variables: int(subprocess.check_output(program, env=os.environ | variables, text=True))
        return
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        stdin, stdout = parent.stdin, parent.stdout

        def fork(**variables: str) -> int:
            stdin.write(f"{json.dumps(variables)}\n")
            return int(stdout.readline())

        yield fork
        stdin.close()
    assert parent.returncode == 0


def test_the_next_process_recompiles_only_damaged_files(folder: Path, programs_made: Callable[..., int]) -> None:
    programs_made = partial(programs_made, **{CACHE_VARIABLE: str(folder.parent)})
    assert programs_made() == 1
    (file,) = folder.iterdir()
    assert programs_made() == 0
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        file.write_bytes(damaged)
        assert programs_made() == 1
        assert file.read_bytes() == whole
    tile = find_integer_tile()
    if tile is not None and tile.lanes == AVX512_TILE.lanes:  # narrower vectors need other code
        assert programs_made(ATEN_CPU_CAPABILITY="avx2") == 1


def test_nothing_is_cached_if_disabled_or_not_writable(tmp_path: Path, programs_made: Callable[..., int]) -> None:
    assert programs_made(**{CACHE_VARIABLE: ""}) == 1
    (tmp_path / "kernels").write_text("a file in the folder's place", encoding="utf-8")
    for _ in range(2):
        assert programs_made(**{CACHE_VARIABLE: str(tmp_path)}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["kernels"]


def test_cache_keys_differ_with_every_part() -> None:
    assert len({cache_key("ab", "c"), cache_key("a", "bc"), cache_key("ab", "c", (1, 2)), cache_key("ab", "d")}) == 4


def test_the_least_recently_used_files_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_MAX_FILES", 3)
    for number in range(3):
        cache_code(f"name{number}", bytes([number]))
        os.utime(folder / f"name{number}", (number, number))
    assert load_cached_code("name0") == bytes([0])  # it is the most recently used now
    cache_code("name3", bytes([3]))
    assert sorted(path.name for path in folder.iterdir()) == ["name0", "name2", "name3"]
    assert load_cached_code("name1") is None


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit of the size of files")
def test_code_for_which_the_disk_is_too_full_leaves_nothing(folder: Path) -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        cache_code("name", bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners here")
def test_the_cache_folder_is_private_and_folders_of_other_users_are_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_code("name", b"code")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    assert load_cached_code("name") is None
