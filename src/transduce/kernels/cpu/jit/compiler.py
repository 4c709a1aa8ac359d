"""Compile LLVM IR to machine code, load it, and run the resulting kernels on one or several threads.

A kernel takes an array of 64-bit integers (sizes, and addresses of tensors), the index of the calling thread and the
number of threads. All threads run the same kernel, split its work, and meet at barriers.
"""

import ctypes
import hashlib
import os
import platform
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, TypeVar

import llvmlite  # type: ignore[import-not-found, import-untyped, unused-ignore]
import llvmlite.binding as llvm  # type: ignore[import-not-found, import-untyped, unused-ignore]
import torch
from torch import Tensor

from transduce.atomic_io import user_cache_folder
from transduce.kernels.cpu.jit.ir_builder import I32, I64, POINTER, KernelBuilder, Outline, Value
from transduce.kernels.cpu.jit.tile import AVX2_TILE, AVX512_TILE, Tile
from transduce.process_environment import release_library

# --- cache of machine code ---
# A file's name is a hash of everything the code depends on: IR, options, processor and LLVM's version. Small files,
# whose names are hashes of outlines, hold such names. Each file begins with a checksum, so truncated or damaged files
# are ignored. Without a writable folder nothing is cached.


_MAX_FILES = 2_000  # half of them of 50 KB on average; the least recently used ones beyond are deleted
_CHECKSUM = hashlib.sha256
_CHECKSUM_BYTES = _CHECKSUM().digest_size


def cache_key(*parts: Any) -> str:
    """Return a SHA-256 hash, in hexadecimal, of everything that machine code depends on: IR, options, processor, LLVM.

    The hash is the name of the code's file in the cache.
    """
    return _CHECKSUM("\0".join(map(str, parts)).encode()).hexdigest()


def load_cached_code(key: str) -> bytes | None:
    """Return the machine code that is in the cache under a key, and mark its file as recently used.

    The result is None if there is no such file, if it cannot be read, or if it does not match its checksum. It is also
    None if there is no usable cache folder.
    """
    if (path := _path(key)) is None:
        return None
    try:
        content = path.read_bytes()
        os.utime(path)  # marks the file as recently used
    except OSError:
        return None
    checksum, code = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    return code if checksum == _CHECKSUM(code).digest() else None


def cache_code(key: str, code: bytes) -> None:
    """Write machine code to the cache under a key.

    Nothing is cached if there is no usable cache folder, or if writing fails. The file is replaced atomically, so
    concurrent readers never see part of it. Afterwards the least recently used files are deleted until at most 2,000
    remain.
    """
    if (path := _path(key)) is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(_CHECKSUM(code).digest() + code)
                file.flush()
            except OSError:
                os.unlink(file.name)  # it would fill the rest of the disk
                raise
        os.replace(file.name, path)
        _drop_oldest(path.parent)
    except OSError:
        return


def _drop_oldest(folder: Path) -> None:
    """Delete the least recently used files of the cache folder until at most 2,000 remain."""
    files = list(folder.iterdir())
    if len(files) > _MAX_FILES:
        files.sort(key=lambda path: path.stat().st_mtime)
        for path in files[: len(files) - _MAX_FILES]:
            path.unlink(missing_ok=True)


def _path(key: str) -> Path | None:
    """Return the path of the cached code for a key; None if there is no usable cache folder."""
    folder = user_cache_folder("kernels")
    return None if folder is None else folder / key


# --- compilation ---


_MIN_LLVM = 22  # older versions declare the intrinsic of `vpdpbusd` with other types
# Values of ONEDNN_MAX_CPU_ISA that exclude our kernels, that exclude nothing, that exclude bfloat16 instructions, and
# that exclude AVX-512.
_NO_ISA = ("SSE41", "AVX")
_EVERY_ISA = ("ALL", "DEFAULT")
_NO_PAIRS = ("AVX512_CORE", "AVX512_CORE_VNNI")
_NARROW_ISA = ("AVX2", "AVX2_VNNI", "AVX2_VNNI_2")


class CompiledKernel:
    """A machine-code function that runs on the calling thread or on PyTorch's OpenMP threads."""

    def __init__(self, name: str, engine: Any) -> None:
        """Look up a kernel by name in an LLVM execution engine, which owns the machine code and is kept alive."""
        self._engine = engine
        kinds = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.address: int = engine.get_function_address(name)
        self._run_on_one = ctypes.CFUNCTYPE(None, *kinds)(self.address)
        self._on_threads = find_openmp()
        together = engine.get_function_address(f"{name}_together") if self._on_threads else 0
        self._entry_of_many = ctypes.c_void_p(together)

    def run(self, *values: int | Tensor | None, threads: int | None = None) -> None:
        """Run the kernel with integer arguments (unchecked) on `threads` threads; None: PyTorch's number.

        A tensor stands for the address of its first element, and None for 0.
        """
        numbers = (each.data_ptr() if isinstance(each, Tensor) else each or 0 for each in values)
        self.run_array((ctypes.c_int64 * len(values))(*numbers), threads or torch.get_num_threads())

    def run_array(self, numbers: Any, threads: int) -> None:
        """Run the kernel with a ctypes array of 64-bit integer arguments, which it may change, on `threads` threads.

        Without an OpenMP library the kernel runs on the calling thread alone.
        """
        if threads == 1 or self._on_threads is None:
            self._run_on_one(numbers, 0, 1)
        else:
            self._on_threads(self._entry_of_many, numbers, threads, 0)


def float_bits(value: float) -> int:
    """Return the bits of a number in float32 as an integer, so that it can be a kernel argument.

    The emitted code reads it by `KernelBuilder.float_from_bits`.
    """
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def address_of(tensor: Tensor | None) -> int:
    """Return the memory address of a tensor's first element; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


@cache
def find_integer_tile() -> Tile | None:
    """Return the `Tile` for quantized GEMMs on this processor; None if there are no kernels for the processor.

    Kernels need an x86-64 processor with AVX2 and FMA, or AVX-512, and LLVM 22. The environment variables that restrict
    the instructions of oneDNN (ONEDNN_MAX_CPU_ISA) and PyTorch (ATEN_CPU_CAPABILITY) restrict these kernels too.
    """
    if platform.machine().lower() not in ("x86_64", "amd64") or llvm.llvm_version_info[0] < _MIN_LLVM:
        return None
    features = llvm.get_host_cpu_features()
    limit, capability = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper(), os.environ.get("ATEN_CPU_CAPABILITY", "")
    if limit in _NO_ISA or capability == "default":
        return None
    narrow = limit in _NARROW_ISA or capability == "avx2"
    if features.get("avx512bw") and not narrow:
        has_bytes = features.get("avx512vnni") and limit != "AVX512_CORE"
        return AVX512_TILE._replace(
            format="bytes" if has_bytes else "six_bits", amx=has_bytes and _has_amx(features, limit, "amx-int8")
        )
    if features.get("avx2") and features.get("fma"):
        return AVX2_TILE._replace(format="bytes" if features.get("avxvnni") and not narrow else "six_bits")
    return None


def _has_amx(features: dict[str, bool], limit: str, feature: str) -> bool:
    """Return whether this process may use the AMX instruction set `feature`, such as "amx-int8".

    The processor must have it, `limit` (oneDNN's instruction limit) must not exclude it, and the operating system must
    grant the tile registers, which this function requests.
    """
    if not (features.get("amx-tile") and features.get(feature)) or not ("AMX" in limit or limit in _EVERY_ISA):
        return False
    request = getattr(torch.cpu, "_init_amx", None)
    return request is not None and bool(request())


def find_float_tile(format: Literal["pairs", "floats"]) -> Tile | None:
    """Return the `Tile` for bfloat16 (`pairs`) or float32 (`floats`) GEMMs; None if there are no such kernels.

    bfloat16 needs AVX-512's instruction for pairs of bfloat16 numbers.
    """
    tile = find_integer_tile()
    if tile is None or format == "floats":
        return tile and tile._replace(format=format, amx=False)
    has_pairs = tile.lanes == AVX512_TILE.lanes and _has_pairs()
    return tile._replace(format=format, amx=_has_amx_pairs()) if has_pairs else None


@cache
def _has_pairs() -> bool:
    """Return whether this process may use AVX-512's instruction that multiplies pairs of bfloat16 numbers."""
    has_instruction = bool(llvm.get_host_cpu_features().get("avx512bf16"))
    return has_instruction and os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper() not in _NO_PAIRS


@cache
def _has_amx_pairs() -> bool:
    """Return whether this process may use AMX's instruction that multiplies pairs of bfloat16 numbers."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    return _has_amx(llvm.get_host_cpu_features(), limit, "amx-bf16")


def require_integer_tile() -> Tile:
    """Return the `Tile` for quantized GEMMs on this processor, as `find_integer_tile` does.

    Raises:
        AssertionError: there are no kernels for the processor.
    """
    tile = find_integer_tile()
    assert tile is not None, "there are no kernels for this processor"
    return tile


def _new_builder(name: str, tile: Tile, outline: Outline | None) -> KernelBuilder:
    """Return a new IR builder for this processor's vector registers.

    The builder has an empty module. With an `outline`, it makes an outline, a short description of the IR. The kernels
    support several threads if PyTorch ships an OpenMP library.
    """
    return KernelBuilder(
        name,
        tile.lanes,
        threaded=find_openmp() is not None,
        has_bfloat16_rounding=tile.lanes == AVX512_TILE.lanes and _has_pairs(),
        outline=outline,
    )


@contextmanager
def kernel(k: KernelBuilder, name: str, count: int) -> Iterator[tuple[list[Value], Value, Value]]:
    """Emit a kernel, whose code is emitted in the body of `with`; yield its arguments, thread index and thread count.

    The `count` arguments are a list of 64-bit integers; `KernelBuilder.pointer` converts addresses among them to
    pointers. The kernel can be looked up from Python.
    """
    with raw_kernel(k, name) as (numbers, thread, threads):
        yield [k.load(k.element_pointer(numbers, index, I64), I64) for index in range(count)], thread, threads


_Arguments = TypeVar("_Arguments", bound=NamedTuple)


@contextmanager
def kernel_of(k: KernelBuilder, name: str, arguments: type[_Arguments]) -> Iterator[tuple[_Arguments, Value, Value]]:
    """Emit a kernel whose arguments are the fields of the named tuple class `arguments`.

    The kernel's code is emitted in the body of `with`. Yield (arguments, thread index, thread count), where the
    arguments are an instance of the class.
    """
    with kernel(k, name, len(arguments._fields)) as (numbers, thread, threads):
        yield arguments(*numbers), thread, threads


@contextmanager
def raw_kernel(k: KernelBuilder, name: str) -> Iterator[tuple[Value, Value, Value]]:
    """Emit a kernel, whose code is emitted in the body of `with`, without loads of its arguments.

    Yield (pointer to the arguments, thread index, thread count). If kernels run on several threads, a second function
    `NAME_together` is emitted, which OpenMP calls on each thread.
    """
    with k.function(name, POINTER, I64, I64, exported=True) as (numbers, thread, threads):
        yield numbers, thread, threads
    if k.threaded:
        with k.function(f"{name}_together", POINTER, exported=True) as (numbers,):
            share = (k.intrinsic(f"transduce_thread_{each}", I32) for each in ("number", "count"))
            k.call(name, numbers, *(k.build.sext(each, I64) for each in share))


def compile_kernels(
    name: str, tile: Tile, names: tuple[str, ...], emit: Callable[[KernelBuilder], None]
) -> dict[str, CompiledKernel]:
    """Compile the kernels `names` of one module; return a dict from names to `CompiledKernel`.

    Machine code is reused if this or another process has compiled the same IR for the same processor. If the module's
    outline is exact, machine code is found by it, and the IR need not be emitted (see `Outline`).

    Args:
        name: the module's name.
        tile: the `Tile` whose vector length the kernels have.
        names: the names of the kernels.
        emit: emits the kernels with a builder. It is called for the outline, if outlines may be used. It is called for
            the IR if no machine code was found by the outline.
    """
    outline_key = None
    processor, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    outline = Outline(KernelBuilder, _make_code, _target_machine)
    k = _new_builder(name, tile, outline)
    emit(k)
    if outline.text is not None:
        traits = names, tile, k.threaded, k.has_bfloat16_rounding, sorted(k.features)
        versions = sys.version, llvmlite.__version__, llvm.llvm_version_info
        outline_key = cache_key(k.module, outline.text, *traits, processor, features, *versions)
        with _COMPILING:
            kernels = _find_kernels(outline_key, processor, features, names)
        if kernels is not None:
            return kernels
    k = _new_builder(name, tile, None)
    emit(k)
    text, features = str(k.module), ",".join([features, *(f"+{each}" for each in sorted(k.features))])
    compilation = Outline(_make_code, _target_machine).text
    key = cache_key(text, compilation, processor, features, llvmlite.__version__, llvm.llvm_version_info)
    with _COMPILING:
        if key not in _LOADED:
            machine = _target_machine(processor, features)
            code = load_cached_code(key)
            if code is None:
                code = _make_code(text, machine)
                cache_code(key, code)
            _LOADED[key] = _load(code, machine, names)
        if outline_key is not None:
            _CODE_KEYS[outline_key] = key
            cache_code(outline_key, key.encode())
        return _LOADED[key]


_LOADED: dict[str, dict[str, CompiledKernel]] = {}
_CODE_KEYS: dict[str, str] = {}  # of outlines, whose modules are loaded
_COMPILING = Lock()


def _find_kernels(
    outline_key: str, processor: str, features: str, names: tuple[str, ...]
) -> dict[str, CompiledKernel] | None:
    """Return a dict of the kernels of a module, from this process or from the cache; None if there are none.

    `outline_key` is the hash of the module's outline, a short description of its IR.
    """
    key = _CODE_KEYS.get(outline_key)
    if key is None:
        if (noted := load_cached_code(outline_key)) is None:
            return None
        key = noted.decode()
    if key not in _LOADED:
        if (code := load_cached_code(key)) is None:
            return None
        _LOADED[key] = _load(code, _target_machine(processor, features), names)
    _CODE_KEYS[outline_key] = key
    return _LOADED[key]


def _target_machine(processor: str, features: str) -> Any:
    """Return LLVM's target machine for a processor with a list of features, such as "+avx2,-avx512f"."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm.Target.from_default_triple().create_target_machine(cpu=processor, features=features, opt=2)


def _load(code: bytes, machine: Any, names: tuple[str, ...]) -> dict[str, CompiledKernel]:
    """Load machine code, an object file, for a target machine; return a dict of its kernels, whose names are given."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    release_library("libllvmlite")  # 70 MiB that nothing reads until the next compilation
    return {name: CompiledKernel(name, engine) for name in names}


def _make_code(text: str, machine: Any) -> bytes:
    """Optimize a module's LLVM IR and compile it for a target machine; return the bytes of the object file."""
    module = llvm.parse_assembly(text)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = False  # the IR is vectorized by hand
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    code: bytes = machine.emit_object(module)
    return code


@cache
def find_openmp() -> Callable[..., None] | None:
    """Return OpenMP's function that runs a kernel on several threads; None where PyTorch ships no OpenMP library.

    The function is `GOMP_parallel` of the library that PyTorch ships on Linux. The library's barrier and thread-number
    functions are registered with LLVM, under `transduce_…` names.
    """
    folders = [Path(torch.__file__).parent / "lib", Path(torch.__file__).parent.parent / "torch.libs"]
    libraries = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("libgomp*"))]
    if not libraries:
        return None
    library = ctypes.CDLL(str(libraries[0]))

    def address(name: str) -> int:
        """Return the memory address of the OpenMP library's function `name`."""
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

    llvm.add_symbol("transduce_barrier", address("GOMP_barrier"))
    llvm.add_symbol("transduce_thread_number", address("omp_get_thread_num"))
    llvm.add_symbol("transduce_thread_count", address("omp_get_num_threads"))
    start = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    return start(address("GOMP_parallel"))


# --- the number of threads of a decoding step ---
# The threads of a kernel meet at several barriers per layer. If another process occupies a core, the system suspends
# one thread for milliseconds and the others wait: two threads took up to 19 times as long as one (docs/results.md). So
# small steps run on one thread, and fewer threads are used while cores are busy. Results do not depend on the number of
# threads.


_THREAD_WORK = 8_000_000  # multiply-adds per thread, a few tenths of a millisecond
_MIN_SHARE = 0.7  # CPU time over wall time × threads below which cores count as busy; on an idle machine it is ≥ 0.9
_WINDOW = 0.05  # seconds of calls per measurement: the system counts CPU time in ticks of milliseconds
_SHORTEST, _LONGEST = 0.25, 4.0  # seconds before more threads are tried again, doubled after each failure


class ThreadLimiter:
    """A controller that reduces the number of decoding threads while the cores are busy, and later tries more again."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Create a limiter that starts without a limit; `clock` returns the time in seconds, for tests."""
        self._clock = clock
        self._most: int | None = None  # limit on threads; None: no limit
        self._failed = 0  # number of threads that last proved too many
        self._pause = _SHORTEST
        self._retry_at = 0.0  # clock time at which more threads are tried
        self._threads = 0  # of the calls in the current window; 0: none yet
        self._seconds = self._own = 0.0  # wall time and the caller's CPU time of those calls
        self._others = 0.0  # CPU time of the other threads when the window began

    def size(self, wanted: int) -> int:
        """Return how many threads to use for work that could use `wanted` threads: fewer if cores were busy lately."""
        if self._most is not None and self._clock() >= self._retry_at:
            self._most = self._most * 2 if self._most * 2 < self._failed else None
        return wanted if self._most is None else min(wanted, self._most)

    def record_call(
        self, threads: int, seconds: float, cpu_seconds: float, other_cpu_seconds: tuple[float, float]
    ) -> None:
        """Record the timing of a kernel call on several threads; halve their number if they got too little CPU time.

        Timings of at least 50 ms in total are judged together.

        Args:
            threads: the number of threads that ran.
            seconds: the wall time of the call.
            cpu_seconds: the CPU time of the calling thread during the call, in seconds.
            other_cpu_seconds: the total CPU time of the process's other threads before and after the call, in seconds.
        """
        if threads != self._threads:
            self._threads, self._others = threads, other_cpu_seconds[0]
            self._seconds = self._own = 0.0
        self._seconds += seconds
        self._own += cpu_seconds
        if self._seconds < _WINDOW:
            return
        if self._own + other_cpu_seconds[1] - self._others < _MIN_SHARE * threads * self._seconds:
            self._most, self._failed = threads // 2, threads
            self._retry_at = self._clock() + self._pause
            self._pause = min(2 * self._pause, _LONGEST)
        elif threads >= self._failed:
            self._pause = _SHORTEST
        self._threads = 0


_LIMITER = ThreadLimiter()  # one per process


def useful_threads(work: int, max_threads: int | None = None) -> int:
    """Return how many threads to use for `work` multiply-adds between barriers, at most `max_threads`.

    A None `max_threads` is PyTorch's number. Small work runs on one thread, and fewer threads are used while cores are
    busy.
    """
    wanted = min(torch.get_num_threads() if max_threads is None else max_threads, work // _THREAD_WORK)
    return _LIMITER.size(wanted) if wanted > 1 else 1


def run_timed(kernel: CompiledKernel, array: Any, work: int, max_threads: int | None = None) -> None:
    """Run a kernel on as many threads as its work deserves, and record its timing for the next choice of threads.

    Args:
        kernel: a kernel whose threads meet at barriers.
        array: its arguments, a ctypes array of 64-bit integers, which the kernel may change.
        work: multiply-adds between barriers, roughly; small work runs on one thread.
        max_threads: the maximum number of threads; PyTorch's if None.
    """
    threads = useful_threads(work, max_threads)
    if threads == 1:
        kernel.run_array(array, 1)
        return
    before = time.perf_counter(), time.thread_time(), time.process_time()
    kernel.run_array(array, threads)
    after = time.perf_counter(), time.thread_time(), time.process_time()
    seconds, own, _ = (now - then for then, now in zip(before, after, strict=True))
    _LIMITER.record_call(threads, seconds, own, (before[2] - before[1], after[2] - after[1]))
