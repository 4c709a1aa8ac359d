"""From LLVM's intermediate language to programs that run, on one thread or on several.

A program is a function of an array of 64-bit numbers (sizes, and addresses of tensors), and of a thread's number among
so many. All threads run through the same program, share out the work of each kernel, and wait for one another after it.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import llvmlite.binding as llvm  # type: ignore[import-not-found, import-untyped, unused-ignore]
import torch
from torch import Tensor

from transduce.libraries import release_library
from transduce.model.native.code_files import find_code, keep_code, key_of
from transduce.model.native.emit import I64, POINTER, Emitter, Value
from transduce.model.native.tile import NARROW, WIDE, Tile

_LEAST_LLVM = 22  # before, `vpdpbusd` was declared with other types
_NO_ISA = ("SSE41", "AVX")
_EVERY_ISA = ("ALL", "DEFAULT")
_NO_PAIRS = ("AVX512_CORE", "AVX512_CORE_VNNI")
_NARROW_ISA = ("AVX2", "AVX2_VNNI", "AVX2_VNNI_2")  # values of ONEDNN_MAX_CPU_ISA


class Program:
    """A function in machine code."""

    def __init__(self, name: str, engine: Any) -> None:
        """Of the machine code's owner."""
        self.name = name
        self._engine = engine
        kinds = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.address: int = engine.get_function_address(name)
        self._alone = ctypes.CFUNCTYPE(None, *kinds)(self.address)
        self._on_threads = find_threading()
        self._together = ctypes.c_void_p(engine.get_function_address(f"{name}_together") if self._on_threads else 0)

    def run(self, *values: int, threads: int | None = None) -> None:
        """Runs with these numbers on so many threads, PyTorch's number where nothing is said. Nothing is checked."""
        self.run_with((ctypes.c_int64 * len(values))(*values), threads or torch.get_num_threads())

    def run_with(self, numbers: Any, threads: int) -> None:
        """The same on so many threads, with an array of ctypes; the program may change what is in it."""
        if threads == 1 or self._on_threads is None:
            self._alone(numbers, 0, 1)
        else:
            self._on_threads(self._together, numbers, threads, 0)


def float_bits(value: float) -> int:
    """How a program is given a float32 among its numbers; it takes it by `Emitter.float_of`."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def address_of(tensor: Tensor | None) -> int:
    """Of its first element; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


@cache
def find_tile() -> Tile | None:
    """What this processor multiplies at a time; None where there are no kernels for it.

    Whoever keeps PyTorch or oneDNN from instructions by their environment variables, keeps these kernels from them too.
    """
    if platform.machine().lower() not in ("x86_64", "amd64") or llvm.llvm_version_info[0] < _LEAST_LLVM:
        return None
    features = llvm.get_host_cpu_features()
    limit, capability = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper(), os.environ.get("ATEN_CPU_CAPABILITY", "")
    if limit in _NO_ISA or capability == "default":
        return None
    narrow = limit in _NARROW_ISA or capability == "avx2"
    if features.get("avx512bw") and not narrow:
        has_bytes = features.get("avx512vnni") and limit != "AVX512_CORE"
        return WIDE._replace(
            kind="bytes" if has_bytes else "sextets", amx=has_bytes and _has_amx(features, limit, "amx-int8")
        )
    if features.get("avx2") and features.get("fma"):
        return NARROW._replace(kind="bytes" if features.get("avxvnni") and not narrow else "sextets")
    return None


def _has_amx(features: dict[str, bool], limit: str, products: str) -> bool:
    """Whether this process may use AMX for some products: the system grants its registers to those who ask."""
    if not (features.get("amx-tile") and features.get(products)) or not ("AMX" in limit or limit in _EVERY_ISA):
        return False
    ask = getattr(torch.cpu, "_init_amx", None)
    return ask is not None and bool(ask())


def find_float_tile(kind: Literal["pairs", "floats"]) -> Tile | None:
    """What this processor multiplies at a time of floats; None where it has no instructions for them."""
    tile = find_tile()
    if tile is None or kind == "floats":
        return tile and tile._replace(kind=kind, amx=False)
    return tile._replace(kind=kind, amx=_has_amx_pairs()) if tile.lanes == WIDE.lanes and _has_pairs() else None


@cache
def _has_pairs() -> bool:
    features = llvm.get_host_cpu_features()
    return bool(features.get("avx512bf16")) and os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper() not in _NO_PAIRS


@cache
def _has_amx_pairs() -> bool:
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    return _has_amx(llvm.get_host_cpu_features(), limit, "amx-bf16")


def own_tile() -> Tile:
    """The same, where it is known that there is one."""
    tile = find_tile()
    assert tile is not None, "asked for kernels of a processor that has none"
    return tile


def new_emitter(name: str, tile: Tile) -> Emitter:
    """For programs on one thread or, where there is a way, on several."""
    narrows = tile.lanes == WIDE.lanes and _has_pairs()
    return Emitter(name, tile.lanes, threaded=find_threading() is not None, narrows=narrows)


@contextmanager
def program(k: Emitter, name: str, count: int) -> Iterator[tuple[list[Value], Value, Value]]:
    """A program of so many numbers, written in the body of `with`; gives them, the thread's number and the threads.

    Places among the numbers become pointers by `Emitter.place`.
    """
    with entry(k, name) as (numbers, thread, threads):
        yield [k.load(k.at(numbers, place, I64), I64) for place in range(count)], thread, threads


@contextmanager
def entry(k: Emitter, name: str) -> Iterator[tuple[Value, Value, Value]]:
    """A program, written in the body of `with`; gives the place of its numbers, the thread's number and the threads."""
    with k.function(name, POINTER, I64, I64, exported=True) as (numbers, thread, threads):
        yield numbers, thread, threads
    if k.threaded:
        with k.function(f"{name}_together", POINTER, exported=True) as (numbers,):
            k.call(name, numbers, k.ask("transduce_thread_number"), k.ask("transduce_thread_count"))


def compile_programs(k: Emitter, names: tuple[str, ...]) -> dict[str, Program]:
    """Machine code of the programs of these names: what was made of the same text before, by another process even."""
    text, processor = str(k.module), llvm.get_host_cpu_name()
    features = ",".join([llvm.get_host_cpu_features().flatten(), *(f"+{name}" for name in sorted(k.features))])
    key = key_of(text, processor, features, llvm.llvm_version_info)
    if key not in _LOADED:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
        target = llvm.Target.from_default_triple()
        _LOADED[key] = _load(key, text, target.create_target_machine(cpu=processor, features=features, opt=2), names)
    return _LOADED[key]


_LOADED: dict[str, dict[str, Program]] = {}


def _load(key: str, text: str, machine: Any, names: tuple[str, ...]) -> dict[str, Program]:
    code = find_code(key)
    if code is None:
        code = _make_code(text, machine)
        keep_code(key, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    release_library("libllvmlite")  # 70 MiB that nothing reads before the next program is made
    return {name: Program(name, engine) for name in names}


def _make_code(text: str, machine: Any) -> bytes:
    """The object file of a module."""
    module = llvm.parse_assembly(text)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = False  # what is worth it is written in vectors
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    code: bytes = machine.emit_object(module)
    return code


@cache
def find_threading() -> Callable[..., None] | None:
    """What runs a function on several threads: `GOMP_parallel` of the OpenMP library that PyTorch brings, on Linux.

    The functions of the library that programs call get names of their own.
    """
    folders = [Path(torch.__file__).parent / "lib", Path(torch.__file__).parent.parent / "torch.libs"]
    libraries = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("libgomp*"))]
    if not libraries:
        return None
    library = ctypes.CDLL(str(libraries[0]))

    def address(name: str) -> int:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

    llvm.add_symbol("transduce_barrier", address("GOMP_barrier"))
    llvm.add_symbol("transduce_thread_number", address("omp_get_thread_num"))
    llvm.add_symbol("transduce_thread_count", address("omp_get_num_threads"))
    start = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    return start(address("GOMP_parallel"))
