"""Test the cache of compiled code: it is reused, damaged files are recompiled, and failures to write are ignored.

Outlines, by which code is found without its IR, are tested too.
"""

import gc
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import NamedTuple, cast

import pytest

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

import torch

from transduce.atomic_io import CACHE_VARIABLE
from transduce.kernels.cpu.attention import AttentionShape
from transduce.kernels.cpu.decoding import search_kernel, state
from transduce.kernels.cpu.decoding.compiled_steps import CompiledModel
from transduce.kernels.cpu.gemm import decode
from transduce.kernels.cpu.gemm.train_calls import gemm_kernels
from transduce.kernels.cpu.jit import compiler, ir_builder, memory, tile
from transduce.kernels.cpu.jit.compiler import cache_code, cache_key, find_integer_tile, load_cached_code
from transduce.kernels.cpu.jit.ir_builder import Outline
from transduce.kernels.cpu.jit.tile import AVX2_TILE, AVX512_TILE, Tile
from transduce.kernels.cpu.train_rows import activation_kernels, row_kernels
from transduce.kernels.cpu.training import autograd, optimizer
from transduce.kernels.prepacked import PrepackedTransformer
from transduce.kernels.select import quantize
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer

if find_integer_tile() is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)

PRODUCT = """
import os
import torch
from transduce.kernels.cpu.gemm import decode
from transduce.kernels.cpu.jit import compiler
from transduce.kernels.cpu.jit.compiler import find_float_tile
counts = {"emitted": 0, "compiled": 0}
make, build = compiler._make_code, compiler._new_builder
def count_module(*values):
    counts["compiled"] += 1
    return make(*values)
def count_builder(name, tile, outline):
    counts["emitted"] += outline is None
    return build(name, tile, outline)
compiler._make_code, compiler._new_builder = count_module, count_builder
weight, x, expected = torch.eye(64) * 2.0, torch.arange(128.0).view(2, 64), 2.0
if "CHANGED" in os.environ:
    store = decode.store_outputs
    def store_twice(k, args, epilogue, row, vector, value):
        store(k, args, epilogue, row, vector, k.build.fadd(value, value))
    decode.store_outputs, expected = store_twice, 4.0
assert torch.equal(decode.CompiledLinear(weight, None, find_float_tile("floats"))(x), expected * x)
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


def test_code_of_a_process_with_other_functions_is_not_found(
    folder: Path, programs_made: Callable[..., tuple[int, int]]
) -> None:
    programs_made = partial(programs_made, **{CACHE_VARIABLE: str(folder.parent)})
    for variables in ({"CHANGED": "1"}, {}):
        assert programs_made(**variables) == (1, 1)
        assert programs_made(**variables) == (0, 0)


def test_nothing_is_cached_if_disabled_or_not_writable(
    tmp_path: Path, programs_made: Callable[..., tuple[int, int]]
) -> None:
    assert programs_made(**{CACHE_VARIABLE: ""}) == (1, 1)
    (tmp_path / "kernels").write_text("a file in the folder's place", encoding="utf-8")
    for _ in range(2):
        assert programs_made(**{CACHE_VARIABLE: str(tmp_path)}) == (1, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["kernels"]


# --- outlines ---


WIDTH = 4
TABLE = {"width": WIDTH}


class Sizes(NamedTuple):
    width: int

    @property
    def double(self) -> int:
        return 2 * self.width


def adder(number: float) -> Callable[[float], float]:
    def add(value: float, factor: int = 2) -> float:
        return (value + number) * factor

    return add


def read_width() -> object:
    return max(WIDTH, compiler._MIN_LLVM), TABLE, tile.HALF_BITS


def read_environment() -> object:
    return os.environ


def import_module() -> object:
    import math

    return math


def outline_of(value: object) -> str | None:
    return Outline(value).text


def test_values_are_described_exactly_or_not_at_all() -> None:
    described: list[object] = [
        0,
        False,
        0.0,
        -0.0,
        "0",
        None,
        (),
        (0,),
        (0, 0),
        ((0,), 0),
        ir_builder.F32,
        "float",
        [0],
    ]
    described += [AVX512_TILE, AVX512_TILE._replace(rows=1), tuple(AVX512_TILE), ("a, b",), ("a", "b"), {0: 1}, {1: 0}]
    described += [adder(1), adder(1.0), adder(-0.0), adder(0.0), read_width, Sizes, Sizes(1), abs, max]
    texts = [outline_of(each) for each in described]
    assert None not in texts
    assert len(set(texts)) == len(texts)
    assert outline_of(adder(1)) == outline_of(adder(1))
    for unknown in (object(), {1}, (0, [object()]), read_environment, import_module, cache(abs), torch.float32, time):
        assert outline_of(unknown) is None


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (sys.modules[__name__], "WIDTH", 5),
        (sys.modules[__name__], "TABLE", {"width": 5}),
        (compiler, "_MIN_LLVM", 21),
        (tile, "HALF_BITS", 5),
        (Sizes, "double", property(lambda self: 3 * self.width)),
        (adder, "__defaults__", (3,)),
        (adder, "__code__", (lambda number: number).__code__),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_outlines_differ_with_all_that_functions_use(
    owner: object, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = read_width, adder, Sizes(1)
    before = outline_of(used)
    monkeypatch.setattr(owner, name, value)
    assert None not in (before, outline_of(used))
    assert outline_of(used) != before


def makers_of_kernels() -> list[Callable[[], object]]:
    """Return a list of functions, each of which compiles the kernels of one module."""
    floats, pairs = (AVX512_TILE._replace(format=each) for each in ("floats", "pairs"))
    shape = AttentionShape(16, ir_builder.F32, 8, 0.25)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 64, "d_ff": 64, "num_heads": 2}
    config = ModelConfig(source_vocabulary_size=64, target_vocabulary_size=64, positions="rotary", **sizes)  # type: ignore[arg-type]
    uncached = [search_kernel.search_kernel, state._compaction_kernel, optimizer._kernels]
    return [
        *(each.__wrapped__ for each in uncached),
        *(partial(decode._linear_kernel.__wrapped__, each) for each in (AVX2_TILE, AVX2_TILE.with_12_bits, pairs)),
        partial(decode._refining_kernel.__wrapped__, floats),
        partial(gemm_kernels.__wrapped__, pairs._replace(amx=True)),
        partial(memory._runner.__wrapped__, floats),
        *(partial(row_kernels.__wrapped__, each, AVX2_TILE) for each in (torch.float32, torch.bfloat16)),
        *(partial(activation_kernels.__wrapped__, each, torch.float32) for each in ("gelu", "swiglu")),
        *(partial(autograd.rotation_kernel.__wrapped__, torch.float32, 32, interleaved=each) for each in (False, True)),
        *(partial(autograd.attention_kernels.__wrapped__, each) for each in (shape, shape._replace(biased=True))),
        partial(CompiledModel, cast(PrepackedTransformer, quantize(Transformer(config).eval()))),
    ]


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and the code of all functions that are defined inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


class EmissionRecorder:
    """Records of a compilation: keys, outlines, and the functions that emitted the outline and then the IR."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.outlines: list[Outline] = []
        self.called: list[set[CodeType]] = []
        self._new_builder = compiler._new_builder

    def new_outline(self, *values: object) -> Outline:
        sys.setprofile(None)  # the IR has been emitted
        self.outlines.append(Outline(*values))
        return self.outlines[-1]

    def new_builder(self, name: str, tile: Tile, outline: Outline | None) -> ir_builder.KernelBuilder:
        sys.setprofile(None)
        self.called.append(set())
        builder = self._new_builder(name, tile, outline)
        sys.setprofile(self._note_call)
        return builder

    def cache_key(self, *parts: object) -> str:
        sys.setprofile(None)
        self.keys.append(cache_key(*parts))
        return self.keys[-1]

    def _note_call(self, frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals["__name__"]
        if event == "call" and not ir_builder._is_known(module) and not module.startswith("importlib."):
            self.called[-1].add(frame.f_code)


def test_each_outline_identifies_one_ir_and_describes_all_functions_that_emit_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "_LOADED", {})
    monkeypatch.setattr(compiler, "_CODE_KEYS", {})
    monkeypatch.setattr(compiler, "_find_kernels", lambda *_: None)
    monkeypatch.setattr(compiler, "_load", lambda _code, _machine, names: dict.fromkeys(names))
    monkeypatch.setattr(compiler, "_make_code", lambda *_: b"")
    monkeypatch.setenv(CACHE_VARIABLE, "")
    not_emitting = {*codes_in(EmissionRecorder.new_outline.__code__), *codes_in(compiler.compile_kernels.__code__)}
    found: dict[str, str] = {}
    makers = makers_of_kernels()
    for maker in makers:
        recorder = EmissionRecorder()
        with monkeypatch.context() as patch:
            patch.setattr(compiler, "Outline", recorder.new_outline)
            patch.setattr(compiler, "_new_builder", recorder.new_builder)
            patch.setattr(compiler, "cache_key", recorder.cache_key)
            gc.disable()  # or finalizers of other tests' objects would count as functions that emit code
            try:
                maker()
            finally:
                sys.setprofile(None)
                gc.enable()
        key, ir_key = recorder.keys
        assert found.setdefault(key, ir_key) == ir_key
        outline, _ = recorder.outlines
        assert outline.text is not None
        functions = [value for _, value in outline._seen.values() if isinstance(value, FunctionType)]
        described = {code for each in functions for code in codes_in(each.__code__)}
        by_outline, by_ir = recorder.called
        assert by_ir - by_outline - described - not_emitting == set()
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
@pytest.mark.parametrize("of_another", ["kernels", ""])
def test_the_cache_folder_is_private_and_folders_of_other_users_are_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, of_another: str
) -> None:
    cache_code("name", b"code")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert load_cached_code("name") == b"code"
    foreign, find_stat = folder.parent / of_another, Path.stat

    def stat_of_another(path: Path, **options: bool) -> os.stat_result:
        found = list(find_stat(path, **options))
        found[stat.ST_UID] += path == foreign
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", stat_of_another)
    assert load_cached_code("name") is None
    cache_code("other", b"code")
    assert not (folder / "other").exists()
