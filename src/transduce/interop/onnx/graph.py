"""A graph of ONNX operators under construction. Values are strings: the names by which nodes know one another."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.errors import import_extra

# The oldest operators that have everything: LayerNormalization came with 17, Gelu with 20.
OPSET = 20
IR_VERSION = 10
# A file of this format cannot pass 2 GiB; larger weights go into a file beside it.
MOST_BYTES_INSIDE = 2_000_000_000

Shape = Sequence[int | str]


class Graph:
    """Nodes in the order of their making, weights, inputs and outputs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._onnx = import_extra("onnx", "export")
        self._nodes: list[Any] = []
        self._weights: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        # The tensor is kept, so that no other one gets its place in memory.
        self._known: dict[tuple[Any, ...], tuple[str, Tensor]] = {}

    # --- what goes in and comes out ---

    def add_input(self, name: str, dtype: type, shape: Shape) -> str:
        """An input; an axis whose size is a string may have any size."""
        self._inputs.append(self._describe(name, dtype, shape))
        return name

    def add_output(self, value: str, name: str, dtype: type, shape: Shape) -> None:
        """Gives a value out under a name."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._describe(name, dtype, shape))

    def _describe(self, name: str, dtype: type, shape: Shape) -> Any:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._onnx.helper.make_tensor_value_info(name, kind, list(shape))

    # --- constants ---

    def weight(self, tensor: Tensor) -> str:
        """A tensor of the model, stored once however often it is used."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if key not in self._known:
            name = self._store(tensor.detach().contiguous().numpy())
            self._known[key] = (name, tensor)
        return self._known[key][0]

    def matrix(self, weight: Tensor) -> str:
        """The weight of a layer, (outputs, inputs), as the right side of a product: (inputs, outputs)."""
        return self.weight(weight.T)

    def integers(self, *values: int) -> str:
        """A row of integers."""
        return self._store(np.array(values, dtype=np.int64))

    def integer(self, value: int) -> str:
        """One integer."""
        return self._store(np.array(value, dtype=np.int64))

    def number(self, value: float) -> str:
        """One float32."""
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
        """An operator's one result."""
        return self.results(operator, values, 1, attributes or {})[0]

    def split(self, value: str, sizes: Sequence[int]) -> list[str]:
        """Parts of the last axis."""
        return self.results("Split", (value, self.integers(*sizes)), len(sizes), {"axis": -1})

    def results(self, operator: str, values: Sequence[str], count: int, attributes: Mapping[str, Any]) -> list[str]:
        """The first results of an operator; an input that it does without is an empty name."""
        names = [f"{operator}_{len(self._nodes)}_{number}" for number in range(count)]
        node = self._onnx.helper.make_node(operator, list(values), names, name=f"{operator}_{len(self._nodes)}")
        node.attribute.extend(self._onnx.helper.make_attribute(name, value) for name, value in attributes.items())
        self._nodes.append(node)
        return names

    def cast(self, value: str, dtype: type) -> str:
        """The same in another type."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.apply("Cast", value, attributes={"to": kind})

    def size(self, value: str, axis: int) -> str:
        """The size of an axis, one integer in a row."""
        return self.apply("Shape", value, attributes={"start": axis, "end": axis + 1})

    def reshape(self, value: str, *sizes: int) -> str:
        """Another shape; a size of 0 is the one at the same place, and one of -1 is what is left."""
        return self.apply("Reshape", value, self.integers(*sizes))

    def transpose(self, value: str, *axes: int) -> str:
        """Axes in another order."""
        return self.apply("Transpose", value, attributes={"perm": list(axes)})

    def unsqueeze(self, value: str, *axes: int) -> str:
        """New axes of size 1 at these places."""
        return self.apply("Unsqueeze", value, self.integers(*axes))

    def count(self, first: str, end: str) -> str:
        """The integers from first up to, not including, end; both are rows of one integer."""
        first, end = (self.apply("Squeeze", value, self.integers(0)) for value in (first, end))
        return self.apply("Range", first, end, self.integer(1))

    # --- the file ---

    def save(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Checks the graph, with the shapes of all values, and writes it.

        Args:
            path: the file.
            metadata: texts that a runtime shows beside the model.
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
        apart = sum(len(weight.raw_data) for weight in weights) > MOST_BYTES_INSIDE
        self._onnx.save_model(
            model, str(path), save_as_external_data=apart, location=f"{path.name}.data" if apart else None
        )
        self._onnx.checker.check_model(str(path), full_check=True)


def lowest() -> float:
    """What is added to a score to hide its key, as in `model.masks`."""
    return torch.finfo(torch.float32).min
