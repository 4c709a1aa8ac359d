"""A builder of ONNX graphs, in which a value is represented by its name (a string)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.errors import import_extra

# The oldest operator set with all needed operators: LayerNormalization needs 17, Gelu 20.
OPSET = 20
IR_VERSION = 10
# An ONNX file is limited to 2 GiB; larger weights are stored in a second file.
MAX_FILE_BYTES = 2_000_000_000

Shape = Sequence[int | str]


class Graph:
    """An ONNX graph under construction: nodes, weights, inputs and outputs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._onnx = import_extra("onnx", "export")
        self._nodes: list[Any] = []
        self._weights: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        # Keeping a reference to the tensor prevents reuse of its address, which is the key.
        self._names_by_tensor: dict[tuple[Any, ...], tuple[str, Tensor]] = {}

    # --- inputs and outputs ---

    def add_input(self, name: str, dtype: type, shape: Shape) -> str:
        """Add an input and return its name; an axis whose size is a string is dynamic."""
        self._inputs.append(self._describe(name, dtype, shape))
        return name

    def add_output(self, value: str, name: str, dtype: type, shape: Shape) -> None:
        """Add an output with this name for a value; an axis whose size is a string is dynamic."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._describe(name, dtype, shape))

    def _describe(self, name: str, dtype: type, shape: Shape) -> Any:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._onnx.helper.make_tensor_value_info(name, kind, list(shape))

    # --- constants ---

    def weight(self, tensor: Tensor) -> str:
        """Add a tensor as a constant and return its name; a tensor used several times is stored once."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if key not in self._names_by_tensor:
            name = self._store(tensor.detach().contiguous().numpy())
            self._names_by_tensor[key] = (name, tensor)
        return self._names_by_tensor[key][0]

    def matrix(self, weight: Tensor) -> str:
        """Add a linear layer's weight (outputs, inputs), transposed to (inputs, outputs) for a MatMul from the left."""
        return self.weight(weight.T)

    def integers(self, *values: int) -> str:
        """Add a vector of int64 constants, and return its name."""
        return self._store(np.array(values, dtype=np.int64))

    def integer(self, value: int) -> str:
        """Add an int64 scalar constant, and return its name."""
        return self._store(np.array(value, dtype=np.int64))

    def number(self, value: float) -> str:
        """Add a float32 scalar constant, and return its name."""
        return self._store(np.array(value, dtype=np.float32))

    def _store(self, array: NDArray[Any]) -> str:
        small = array.size <= 8
        name = (
            f"constant_{array.dtype.name}_{array.shape}_{array.tolist()}" if small else f"weight_{len(self._weights)}"
        )
        if name not in self._weights:
            self._weights[name] = self._onnx.numpy_helper.from_array(array, name)
        return name

    # --- nodes ---

    def apply(self, operator: str, *values: str, attributes: Mapping[str, Any] | None = None) -> str:
        """Add an operator with one result, and return the result's name."""
        return self.results(operator, values, 1, attributes or {})[0]

    def split(self, value: str, sizes: Sequence[int]) -> list[str]:
        """Add a split of a value along its last axis into parts of these sizes."""
        return self.results("Split", (value, self.integers(*sizes)), len(sizes), {"axis": -1})

    def results(self, operator: str, values: Sequence[str], count: int, attributes: Mapping[str, Any]) -> list[str]:
        """Add an operator and return the names of its first `count` results; an omitted input is an empty string."""
        names = [f"{operator}_{len(self._nodes)}_{number}" for number in range(count)]
        node = self._onnx.helper.make_node(operator, list(values), names, name=f"{operator}_{len(self._nodes)}")
        node.attribute.extend(self._onnx.helper.make_attribute(name, value) for name, value in attributes.items())
        self._nodes.append(node)
        return names

    def cast(self, value: str, dtype: type) -> str:
        """Add a conversion of a value to another dtype."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.apply("Cast", value, attributes={"to": kind})

    def size(self, value: str, axis: int) -> str:
        """Add the size of an axis of a value, as a vector of one integer."""
        return self.apply("Shape", value, attributes={"start": axis, "end": axis + 1})

    def reshape(self, value: str, *sizes: int) -> str:
        """Add a reshape of a value; a size of 0 keeps the axis's size, and -1 infers it."""
        return self.apply("Reshape", value, self.integers(*sizes))

    def transpose(self, value: str, *axes: int) -> str:
        """Add a permutation of a value's axes."""
        return self.apply("Transpose", value, attributes={"perm": list(axes)})

    def unsqueeze(self, value: str, *axes: int) -> str:
        """Add an insertion of axes of size 1 at these indices of a value's shape."""
        return self.apply("Unsqueeze", value, self.integers(*axes))

    def count(self, first: str, end: str) -> str:
        """Add the integers from `first` up to, not including, `end`; both are vectors of one integer."""
        first, end = (self.apply("Squeeze", value, self.integers(0)) for value in (first, end))
        return self.apply("Range", first, end, self.integer(1))

    # --- the file ---

    def save(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the graph to a file, and check it with full shape inference.

        Args:
            path: the file; weights over 2 GB go into a second file with `.data` appended to its name.
            metadata: string properties that are stored in the model.
        """
        weights = list(self._weights.values())
        graph = self._onnx.helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, weights)
        model = self._onnx.helper.make_model(
            graph,
            opset_imports=[self._onnx.helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="transduce",
        )
        self._onnx.helper.set_model_props(model, dict(metadata))
        external = sum(len(weight.raw_data) for weight in weights) > MAX_FILE_BYTES
        self._onnx.save_model(
            model, str(path), save_as_external_data=external, location=f"{path.name}.data" if external else None
        )
        self._onnx.checker.check_model(str(path), full_check=True)


def lowest() -> float:
    """Return the lowest finite float32, which is added to an attention score to mask a key."""
    return torch.finfo(torch.float32).min
