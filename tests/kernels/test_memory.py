"""Test named arrays in one block of memory: tensors see what Python writes, and arrays do not overlap."""

import pytest

pytest.importorskip("llvmlite")

import torch

from transduce.kernels.cpu.jit.memory import Arena

ARRAYS = {
    "one": (torch.int64, (3,)),
    "none": (torch.int32, (0, 5)),
    "two": (torch.float32, (2, 17)),
    "three": (torch.float64, (2, 2)),
}


def test_an_array_is_the_same_by_its_address_as_a_tensor_and_as_numbers() -> None:
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
