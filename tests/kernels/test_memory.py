"""Test named arrays in one block of memory, and rows of a matrix that are read from its file."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import pytest

pytest.importorskip("llvmlite")

import torch

from transduce.kernels.cpu.gemm.decode import CompiledVocabulary, make_int8_linear
from transduce.kernels.cpu.jit import memory
from transduce.kernels.cpu.jit.compiler import find_integer_tile
from transduce.kernels.cpu.jit.memory import Arena
from transduce.model_folder.tensor_files import MappedTensors, write_tensors

ARRAYS = {
    "one": (torch.int64, (3,)),
    "none": (torch.int32, (0, 5)),
    "two": (torch.float32, (2, 17)),
    "three": (torch.float64, (2, 2)),
}


def test_tensor_and_ctypes_views_of_an_array_share_memory() -> None:
    arena = Arena(ARRAYS, zeroed=True)
    arena.ctypes_array("one")[:] = [1, 2, 3]
    arena.tensor("two")[1, 16] = 0.5
    arena.tensor("three").fill_(-1.0)
    assert arena.tensor("one").tolist() == [1, 2, 3]
    assert arena.ctypes_array("two")[33] == 0.5
    assert sum(arena.ctypes_array("two")) == 0.5
    assert list(arena.ctypes_array("three")) == [-1.0] * 4
    assert arena.tensor("none").shape == (0, 5)
    for name in ARRAYS:
        assert arena.addresses[name] % 64 == 0
        if name != "none":
            assert arena.tensor(name).data_ptr() == arena.addresses[name]


@pytest.mark.skipif(not memory._MAPS.exists(), reason="only Linux tells where a matrix is mapped from")
@pytest.mark.skipif(find_integer_tile() is None, reason="there are no kernels for this processor")
def test_rows_of_a_mapped_matrix_are_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mapping is not read; a matrix that was changed is not read from the file."""
    monkeypatch.setattr(memory, "_MIN_FILE_BYTES", 1 << 20)
    tensors = {"other": torch.zeros(7), "matrix": torch.randn(3000, 128)}
    write_tensors(tmp_path / "model.safetensors", tensors, tensors.items(), {})
    matrix = MappedTensors(tmp_path, "model.safetensors").tensor("matrix")
    mapped, plain = (make_int8_linear(each, None, "vocabulary") for each in (matrix, tensors["matrix"]))
    assert isinstance(mapped, CompiledVocabulary)
    x = torch.randn(9, 128)
    assert torch.equal(mapped(x), plain(x))
    numbers = memory.file_rows(mapped.exact_weight)
    assert numbers[memory._READ] != 0
    numbers[memory._START] += 512
    assert not torch.equal(mapped(x), plain(x))
    numbers[memory._START] -= 512
    assert memory.file_rows(tensors["matrix"]).tolist() == [0]
    with torch.no_grad():
        mapped.exact_weight.mul_(2.0)
    assert not torch.equal(mapped(x), plain(x))
    assert numbers[memory._READ] == 0


@pytest.mark.skipif(not memory._MAPS.exists(), reason="only Linux tells where a matrix is mapped from")
def test_threads_share_the_rows_of_a_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a second thread replaced would close the file that a kernel of the first thread reads."""
    monkeypatch.setattr(memory, "_MIN_FILE_BYTES", 1 << 20)
    tensors = {"matrix": torch.randn(3000, 128)}
    write_tensors(tmp_path / "model.safetensors", tensors, tensors.items(), {})
    matrix = MappedTensors(tmp_path, "model.safetensors").tensor("matrix")
    found = memory.FileRows.find

    def find_slowly(matrix: torch.Tensor) -> memory.FileRows | None:
        sleep(0.05)
        return found(matrix)

    monkeypatch.setattr(memory.FileRows, "find", find_slowly)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(memory.file_rows, [matrix, matrix])
    assert one is other
    assert one[memory._READ] != 0
