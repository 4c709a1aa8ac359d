"""Test that AMX gives the results of vector instructions, equal to the last bit for integers.

On processors without AMX the same machine code runs: each AMX instruction raises a signal, whose handler (emulator.c)
emulates the instruction.
"""

import copy
import ctypes
import os
import platform
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.kernels.cpu.gemm import decode
from transduce.kernels.cpu.gemm.decode import amx_matches_vectors, make_int8_linear
from transduce.kernels.cpu.gemm.train_calls import bfloat16_tile
from transduce.kernels.cpu.jit import compiler
from transduce.kernels.cpu.jit import compiler as threads_module
from transduce.kernels.cpu.jit.compiler import find_float_tile, find_integer_tile

HERE = Path(__file__)
TRAINING = ("test_gemm_kernels.py", "test_muon_kernels.py", "test_training_kernels.py")
BEST = find_integer_tile()
if BEST is None or BEST.format != "bytes" or BEST.lanes != 16:
    pytest.skip("AMX is for processors with AVX-512 and VNNI, and this is none", allow_module_level=True)
if platform.system() != "Linux" or platform.machine() != "x86_64" or shutil.which("cc") is None:
    pytest.skip("emulating AMX takes Linux on x86-64 and a C compiler", allow_module_level=True)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("amx") / "emulator.so"
    source = HERE.with_name("emulator.c")
    # Vector instructions make the emulation several times faster; without contraction, sums round as written.
    options = ["-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["cc", *options, "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture(scope="module")
def run_case(emulator: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Yield a function that runs a case, and returns its exit code and output.

    A separate process imports everything and handles the signal, which applies to a whole process. Each case runs in a
    fork of that process.
    """
    output = tmp_path_factory.mktemp("cases") / "output"
    with subprocess.Popen(
        [sys.executable, str(HERE), str(emulator), str(output)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        stdin, stdout = parent.stdin, parent.stdout

        def run(case: str) -> tuple[int, str]:
            stdin.write(f"{case}\n")
            return int(stdout.readline()), output.read_text("utf-8")

        yield run
        stdin.close()


@pytest.mark.parametrize("case", ["products", "model", "pairs", "model of pairs", "training of pairs"])
def test_amx_products_equal_those_of_vector_instructions(run_case: Callable[[str], tuple[int, str]], case: str) -> None:
    if "pairs" in case and find_float_tile("pairs") is None:
        pytest.skip("products of bfloat16 are for processors that have instructions for them, and this is none")
    code, output = run_case(case)
    assert code == 0, output
    assert int(output.split()[-1]) > 1000  # AMX instructions; otherwise AMX was not used


def test_amx_is_not_used_where_its_self_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BEST is not None
    monkeypatch.setattr(decode, "require_integer_tile", lambda: BEST._replace(amx=True))
    weight = torch.randn(64, 64)
    for agrees in (True, False):
        monkeypatch.setattr(decode, "amx_matches_vectors", lambda _, agrees=agrees: agrees)
        for use in ("layer", "memory", "vocabulary"):
            assert make_int8_linear(weight, None, use).tile.amx is agrees  # type: ignore[union-attr]


# --- in a separate process ---


@torch.inference_mode()
def _compare_products() -> None:
    assert BEST is not None
    assert amx_matches_vectors(BEST._replace(amx=True))
    torch.manual_seed(1)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for width in (48, 64, 512):
            weight, bias = torch.randn(150, width), torch.randn(150)
            for tile in (BEST, BEST.with_12_bits):
                vectors = decode.CompiledLinear(weight, bias, tile._replace(amx=False))
                tiles = decode.CompiledLinear(weight, bias, tile._replace(amx=True))
                for rows in (1, 3, 4, 15, 16, 17, 31, 32, 33, 70):
                    x = torch.randn(rows, width)
                    assert torch.equal(tiles(x), vectors(x)), (tile, width, rows)


@torch.inference_mode()
def _compare_models() -> None:
    from transduce.kernels.cpu.decoding.state import CompiledState
    from transduce.kernels.select import quantize, start_fast
    from transduce.model.config import ModelConfig
    from transduce.model.transformer import Transformer

    assert BEST is not None
    torch.manual_seed(1)
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 512, "num_heads": 2}
    model = Transformer(ModelConfig(source_vocabulary_size=300, target_vocabulary_size=300, **sizes)).eval()  # type: ignore[arg-type]
    sources, pieces = torch.randint(2, 300, (9, 12)), torch.randint(2, 300, (5, 9, 1))
    found = []
    for amx in (False, True):
        setattr(decode, "require_integer_tile", lambda amx=amx: BEST._replace(amx=amx))  # noqa: B010
        state = start_fast(quantize(copy.deepcopy(model)), sources)
        assert isinstance(state, CompiledState)
        assert state.output.tile.amx is amx
        found.append([state.step(newest).clone() for newest in pieces])
    assert all(map(torch.equal, *found))


@torch.inference_mode()
def _compare_pairs() -> None:
    tile = find_float_tile("pairs")
    assert tile is not None
    tile = tile._replace(amx=True)
    assert amx_matches_vectors(tile)
    torch.manual_seed(1)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for width in (48, 64, 512):
            weight, bias = torch.randn(150, width), torch.randn(150)
            product = decode.CompiledLinear(weight, bias, tile)
            x = torch.randn(70, width)
            whole = product(x)
            expected = x.bfloat16().float() @ weight.bfloat16().float().T + bias
            assert (whole - expected).abs().max() < 1e-5 * expected.abs().max(), width
            for rows in (1, 3, 4, 15, 16, 17, 31, 32, 33):
                assert torch.equal(product(x[:rows]), whole[:rows]), (width, rows)


@torch.inference_mode()
def _compare_models_of_pairs() -> None:
    from transduce.kernels import select
    from transduce.kernels.cpu.decoding.state import CompiledState
    from transduce.model.config import ModelConfig
    from transduce.model.transformer import Transformer

    torch.manual_seed(1)
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 512, "num_heads": 2}
    model = Transformer(ModelConfig(source_vocabulary_size=300, target_vocabulary_size=300, **sizes)).eval()  # type: ignore[arg-type]
    sources, pieces = torch.randint(2, 300, (9, 12)), torch.randint(2, 300, (5, 9, 1))
    found = []
    for amx in (False, True):
        setattr(compiler, "_has_amx_pairs", lambda amx=amx: amx)  # noqa: B010
        own = copy.deepcopy(model)
        select.make_inference_copy(own, torch.bfloat16)
        for count in (9, 1):
            state = select.start_fast(own, sources[:count])
            assert isinstance(state, CompiledState)
            assert state.output.tile.amx is amx
            found.append([state.step(newest[:count]).clone() for newest in pieces])
    vectors, _, tiles, alone = found
    for one, other, first in zip(vectors, tiles, alone, strict=True):
        assert (one - other).norm() < 0.01 * one.norm()
        assert torch.equal(first[0], other[0])


class AmxRows:
    """A pytest plugin that selects the rows of tests in which AMX computes something that no other row does."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._uses_amx(item.path.name, item.name)]

    @staticmethod
    def _uses_amx(file: str, name: str) -> bool:
        """Return whether a row multiplies bfloat16 matrices by AMX, and not in the way of another row.

        With 8 lanes GEMMs are those of 16, and attention does without AMX. One thread is left to attention, and to the
        GEMM tests that compare numbers of threads.
        """
        if "float32" in name or "8 lanes" in name:
            return False
        is_attention = name.startswith("test_attention_and_its_gradients_equal_pytorchs[")
        is_linear = name.startswith("test_linear_layers_and_their_gradients_equal_pytorchs[")
        if file == "test_training_kernels.py" and not (is_attention or is_linear):
            return False
        return is_attention or "one thread" not in name


def _test_training() -> None:
    """Run the tests of the training kernels with AMX."""
    setattr(compiler, "_has_amx_pairs", lambda: True)  # noqa: B010
    tile = bfloat16_tile()
    assert tile is not None
    assert tile.amx
    files = [str(HERE.parent / name) for name in TRAINING]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    if code := pytest.main([*options, *files], plugins=[AmxRows()]):
        sys.exit(int(code))


def _run(case: str) -> None:
    """Run a case, and print the number of AMX instructions that were emulated."""
    cases = {
        "products": _compare_products,
        "model": _compare_models,
        "pairs": _compare_pairs,
        "model of pairs": _compare_models_of_pairs,
        "training of pairs": _test_training,
    }
    cases[case]()
    print(library.instructions_done() if not torch.cpu._is_amx_tile_supported() else 10**6, flush=True)


if __name__ == "__main__":
    library = ctypes.CDLL(sys.argv[1])
    if not torch.cpu._is_amx_tile_supported():
        assert library.install_amx() == 0
    threads_module._THREAD_WORK = 1  # even the smallest work uses several threads
    for line in sys.stdin:
        child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        file = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        try:
            _run(line.strip())
            os._exit(0)
        except BaseException:  # noqa: BLE001  (this process ends here in any case)
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
