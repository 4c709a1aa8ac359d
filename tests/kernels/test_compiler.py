"""Test the cache of compiled code: it is reused, damaged files are recompiled, and failures to write are ignored.

Outlines, by which code is found without its IR, are tested too.
"""

import ast
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

import torch

from transduce.kernels.cpu.gemm import decode
from transduce.kernels.cpu.gemm.train_calls import gemm_kernels
from transduce.kernels.cpu.jit import compiler, ir_builder
from transduce.kernels.cpu.jit.compiler import (
    CACHE_VARIABLE,
    cache_code,
    cache_key,
    find_integer_tile,
    load_cached_code,
)
from transduce.kernels.cpu.jit.tile import AVX2_TILE, AVX512_TILE
from transduce.kernels.cpu.train_rows import activation_kernels, row_kernels

if find_integer_tile() is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)

PRODUCT = """
import os, torch
import torch

from transduce.kernels.cpu.gemm import decode
from transduce.kernels.cpu.gemm.train_calls import gemm_kernels
from transduce.kernels.cpu.jit import compiler, ir_builder
from transduce.kernels.cpu.jit.compiler import find_float_tile
from transduce.kernels.cpu.gemm.decode import CompiledLinear
counts = {"emitted": 0, "compiled": 0}
make, build = compiler._make_code, compiler._new_builder
def count_module(*values):
    counts["compiled"] += 1
    return make(*values)
def count_builder(*values, is_outline):
    counts["emitted"] += not is_outline
    return build(*values, is_outline=is_outline)
compiler._make_code, compiler._new_builder = count_module, count_builder
compiler._SOURCES._is_settled = "CHANGED" not in os.environ
weight, x = torch.eye(64) * 2.0, torch.arange(128.0).view(2, 64)
assert torch.equal(CompiledLinear(weight, None, find_float_tile("floats"))(x), 2.0 * x)
print(*counts.values(), flush=True)
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
def programs_made() -> Iterator[Callable[..., tuple[int, int]]]:
    """Yield a function that returns how many modules a new process with these variables emits, and compiles."""

    def read(line: str) -> tuple[int, int]:
        emitted, compiled = map(int, line.split())
        return emitted, compiled

    if not hasattr(os, "fork"):
        program = [sys.executable, "-c", PRODUCT]
        yield lambda **variables: read(subprocess.check_output(program, env=os.environ | variables, text=True))
        return
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        stdin, stdout = parent.stdin, parent.stdout

        def fork(**variables: str) -> tuple[int, int]:
            stdin.write(f"{json.dumps(variables)}\n")
            return read(stdout.readline())

        yield fork
        stdin.close()
    assert parent.returncode == 0


def test_the_next_process_makes_only_damaged_files_again(
    folder: Path, programs_made: Callable[..., tuple[int, int]]
) -> None:
    programs_made = partial(programs_made, **{CACHE_VARIABLE: str(folder.parent)})
    assert programs_made() == (1, 1)
    name, code = sorted(folder.iterdir(), key=lambda path: path.stat().st_size)
    assert programs_made() == (0, 0)
    for file, compiled in ((code, 1), (name, 0)):
        whole = file.read_bytes()
        for damaged in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
            file.write_bytes(damaged)
            assert programs_made() == (1, compiled)
            assert file.read_bytes() == whole
    tile = find_integer_tile()
    if tile is not None and tile.lanes == AVX512_TILE.lanes:  # narrower vectors need other code
        assert programs_made(ATEN_CPU_CAPABILITY="avx2") == (1, 1)


def test_a_process_whose_source_files_changed_finds_code_by_its_ir(
    folder: Path, programs_made: Callable[..., tuple[int, int]]
) -> None:
    programs_made = partial(programs_made, **{CACHE_VARIABLE: str(folder.parent)})
    assert programs_made(CHANGED="1") == (1, 1)
    assert len(list(folder.iterdir())) == 1
    assert programs_made(CHANGED="1") == (1, 0)


def test_nothing_is_cached_if_disabled_or_not_writable(
    tmp_path: Path, programs_made: Callable[..., tuple[int, int]]
) -> None:
    assert programs_made(**{CACHE_VARIABLE: ""}) == (1, 1)
    (tmp_path / "kernels").write_text("a file in the folder's place", encoding="utf-8")
    for _ in range(2):
        assert programs_made(**{CACHE_VARIABLE: str(tmp_path)}) == (1, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["kernels"]


def test_outlines_count_only_while_the_source_files_are_unchanged(tmp_path: Path) -> None:
    for folder in ("kernels/cpu", "model"):
        (tmp_path / folder).mkdir(parents=True)
    file = tmp_path / "kernels" / "cpu" / "emitter.py"
    file.write_text("WIDTH = 1", "utf-8")
    young = compiler._Sources(tmp_path, time.time())
    assert not young.are_current()  # this process may have imported what was there before
    later = partial(compiler._Sources, tmp_path, time.time() + 61)
    sources = later()
    assert sources.are_current()
    file.write_text("WIDTH = 2", "utf-8")
    os.utime(file, (1, 1))  # a package manager may keep the times of the files that it copies
    assert not sources.are_current()
    assert later().are_current()
    assert later().digest != sources.digest
    file.unlink()
    assert not sources.are_current()
    assert not later().are_current()  # without source files, as in an archive, nothing tells versions apart


def test_kernels_depend_on_no_source_file_outside_of_those_that_outlines_name() -> None:
    package = Path(compiler.__file__).parents[3]
    without_effect = {"errors", "kernel_interfaces", "process_environment"}
    for path in (*(package / "kernels" / "cpu").rglob("*.py"), *(package / "model").rglob("*.py")):
        modules = {node.module for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ImportFrom)}
        imported = {name.split(".")[1] for name in modules if name is not None and name.startswith("transduce.")}
        assert imported <= {"kernels", "model"} | without_effect, path


def test_arguments_of_emitters_are_described_exactly_or_not_at_all() -> None:
    described: list[object] = [0, False, 0.0, -0.0, "0", None, (), (0,), (0, 0), ((0,), 0), ir_builder.F32, "float"]
    described += [AVX512_TILE, AVX512_TILE._replace(rows=1), tuple(AVX512_TILE), ("a, b",), ("a", "b")]
    texts = [ir_builder._describe(each) for each in described]
    assert None not in texts
    assert len(set(texts)) == len(texts)
    assert [ir_builder._describe(each) for each in ([0], {}, (0, [0]), object())] == [None] * 4


def test_each_outline_identifies_one_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, str] = {}
    keys: list[str] = []

    def note_key(*parts: object) -> str:
        keys.append(cache_key(*parts))
        return keys[-1]

    monkeypatch.setattr(compiler._SOURCES, "_is_settled", True)
    monkeypatch.setattr(compiler, "cache_key", note_key)
    monkeypatch.setattr(compiler, "_LOADED", {})
    monkeypatch.setattr(compiler, "_CODE_KEYS", {})
    monkeypatch.setattr(compiler, "_find_kernels", lambda *_: None)
    monkeypatch.setattr(compiler, "_load", lambda _code, _machine, names: dict.fromkeys(names))
    monkeypatch.setattr(compiler, "_make_code", lambda *_: b"")
    monkeypatch.setenv(CACHE_VARIABLE, "")
    makers: list[Callable[[], object]] = []
    for tile in (AVX2_TILE, AVX512_TILE, AVX512_TILE._replace(format="floats"), AVX512_TILE._replace(format="pairs")):
        makers += [partial(function.__wrapped__, tile) for function in (decode._linear_kernel, decode._refining_kernel)]
        if tile.is_float:
            makers.append(partial(gemm_kernels.__wrapped__, tile))
    for dtype in (torch.float32, torch.bfloat16):
        makers += [partial(row_kernels.__wrapped__, dtype, tile) for tile in (AVX2_TILE, AVX512_TILE)]
        makers += [partial(activation_kernels.__wrapped__, name, dtype) for name in ("relu", "gelu", "swiglu")]
    for maker in makers:
        keys.clear()
        maker()
        outline, text = keys
        assert found.setdefault(outline, text) == text
    assert len(found) == len(makers)


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
