"""A simulated GPU: a PyTorch device whose tensors are in CPU memory, but which obeys the rules of a GPU.

An operation that mixes tensors of the CPU and of the device is an error, except for single numbers and for what a GPU
allows: copies between them, and indices on the CPU. The device's memory has no address, so a kernel for the CPU cannot
read it. Each time the CPU must wait for a result, the line of the package that asked for it is counted.

The device uses PyTorch's dispatch key `PrivateUse1` for third-party devices. A process can register that only once, so
each trial runs in a separate process (`trials.py`).
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import safetensors.torch
import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

NAME = "cudapretend"  # begins with "cuda", by which the package recognizes a GPU

_SOURCE = str(Path(__file__).resolve().parents[2] / "src")
_WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "_unique2", "item", "is_nonzero"}
_BETWEEN_DEVICES = {"copy_", "_to_copy", "_copy_from", "_copy_from_and_resize", "set_"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}

waits: Counter[str] = Counter()
"""How often the CPU waited for the device, by the file and function of the package that waited."""


class OnDevice(torch.Tensor):
    """A tensor that reports to be on the simulated device, around a CPU tensor that computes."""

    inside: torch.Tensor

    @staticmethod
    def __new__(cls, inside: torch.Tensor) -> "OnDevice":
        """Wrap a CPU tensor."""
        outside: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls,
            inside.size(),
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            device=torch.device(f"{NAME}:0"),
            requires_grad=False,
        )
        outside.inside = inside
        return outside

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Compute an operation that has such a tensor as an argument."""
        return _compute(func, args, kwargs or {})

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Index the tensor; lists of indices are converted to tensors first."""
        return super().__getitem__(tree_map(_as_tensor, index, is_leaf=_is_list))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Assign to a part of the tensor; lists of indices are converted to tensors first."""
        super().__setitem__(tree_map(_as_tensor, index, is_leaf=_is_list), value)

    @property
    def data(self) -> torch.Tensor:
        """The values, detached from the graph."""
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        assert isinstance(other, OnDevice)
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.inside = other.inside

    def tolist(self) -> Any:
        """Copy the numbers to the CPU, and return them as lists."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:  # noqa: ARG002
        """Raise TypeError, as for a tensor on a GPU."""
        raise TypeError(f"can't convert a tensor of {NAME} to numpy: copy it to the processor first")

    def __array__(self, dtype: Any = None) -> Any:
        """Raise TypeError, as for a tensor on a GPU."""
        return self.numpy()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return the numbers as text, without counting a wait."""
        return f"OnDevice({self.inside!r})"


def _is_list(leaf: Any) -> bool:
    return isinstance(leaf, list)


def _as_tensor(leaf: Any) -> Any:
    return torch.tensor(leaf, device=NAME, dtype=None if leaf else torch.int64) if isinstance(leaf, list) else leaf


def _compute(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = function._opname
    tensors = list(_tensors((args, *kwargs.values())))
    _check(name, args, tensors)
    asked = kwargs.get("device")
    to_processor = asked is not None and torch.device(asked).type == "cpu"
    if name in _WAITS or (to_processor and any(isinstance(tensor, OnDevice) for tensor in tensors)):
        _count()
    if name == "copy_" and isinstance(args[1], OnDevice) and not isinstance(args[0], OnDevice):
        _count()
    if asked is not None:
        kwargs = (
            kwargs | {"device": "cpu", "pin_memory": False} if "pin_memory" in kwargs else kwargs | {"device": "cpu"}
        )
    inside = {name: _map(_inside, value) for name, value in kwargs.items()}
    found = function(*(_map(_inside, value) for value in args), **inside)
    if to_processor or (name == "copy_" and not isinstance(args[0], OnDevice)):
        return found
    known = {
        id(tensor.inside): tensor for tensor in tensors if isinstance(tensor, OnDevice)
    }  # results of in-place operations
    return _map(lambda leaf: _outside(leaf, known), found)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested lists and tuples; PyTorch's own function for trees takes several times as long."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to every element of nested lists and tuples, which lose their own types, such as sizes."""
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_map(function, each) for each in value)
    return function(value)


def _check(name: str, args: tuple[Any, ...], tensors: list[torch.Tensor]) -> None:
    """Raise RuntimeError if the tensors of an operation are on different devices, where a GPU would refuse that."""
    if name in _BETWEEN_DEVICES:
        return
    if name in _INDEXING:  # indices may be on either device
        tensors = [tensor for tensor in (args[0], *args[2:3]) if isinstance(tensor, torch.Tensor)]
    devices = {tensor.device.type for tensor in tensors if tensor.dim() > 0 or tensor.device.type != "cpu"}
    if len(devices) > 1:
        shapes = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
        raise RuntimeError(f"{name}: all tensors must be on one device, but there are {shapes}")


def _count() -> None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_SOURCE):
        frame = frame.f_back
    if frame is not None:
        where = Path(frame.f_code.co_filename).relative_to(_SOURCE)
        waits[f"{where}:{frame.f_code.co_name}"] += 1
    else:
        waits["elsewhere"] += 1


def _inside(leaf: Any) -> Any:
    return leaf.inside if isinstance(leaf, OnDevice) else leaf


def _to_processor(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, OnDevice) else leaf


def _outside(leaf: Any, known: dict[int, OnDevice]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if id(leaf) not in known:
        return OnDevice(leaf)
    assert known[id(leaf)].shape == leaf.shape, "an in-place operation changed a tensor's size, which is not supported"
    return known[id(leaf)]


class _Whole(torch.autograd.Function):
    """An operation that a GPU computes by one kernel: computed on the CPU tensors, with a single backward node."""

    @staticmethod
    def forward(context: Any, operation: Callable[..., Any], *args: Any) -> Any:
        inside = [
            leaf.inside.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, OnDevice) else leaf
            for leaf in args
        ]
        with torch.enable_grad():
            found = operation(*inside)
        context.inside, context.found = inside, found
        return tuple(OnDevice(each.detach()) for each in found)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        inside = [_inside(gradient) for gradient in gradients]
        learning = [leaf for leaf in context.inside if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        pairs = [(made, each) for made, each in zip(context.found, inside, strict=True) if each is not None]
        torch.autograd.backward([made for made, _ in pairs], [each for _, each in pairs], inputs=learning)
        return None, *(
            OnDevice(leaf.grad) if isinstance(leaf, torch.Tensor) and leaf.grad is not None else None
            for leaf in context.inside
        )


def _made(operation: Callable[..., torch.Tensor], *args: Any, device: Any = None, **more: Any) -> torch.Tensor:
    return operation(*args, **more).to(device or "cpu")


def _cells(operation: Callable[..., Any], x: torch.Tensor, state: Any, weights: Any, *more: Any) -> Any:
    if not isinstance(x, OnDevice):
        return operation(x, state, weights, *more)
    states = list(state) if isinstance(state, tuple) else [state]
    _check("cells", (), [x, *states, *weights])

    def whole(x: torch.Tensor, *others: torch.Tensor) -> Any:
        parts = others[: len(states)]
        return operation(x, parts if isinstance(state, tuple) else parts[0], list(others[len(states) :]), *more)

    return _Whole.apply(whole, x, *states, *weights)  # type: ignore[no-untyped-call]


class _Module:
    """A stand-in for a PyTorch device module, with the functions that PyTorch calls."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def is_bf16_supported(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing, because the CPU's generator draws the numbers."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def install() -> None:
    """Register the simulated device as the only GPU of this process, with compute capability 9.0."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda function, *args, **kwargs: _compute(function, args, kwargs), "PrivateUse1")
    _KEPT.append(library)
    from transduce import machine

    save = safetensors.torch.save_file  # needs the addresses of tensors, which the device's tensors lack
    safetensors.torch.save_file = lambda tensors, *args, **more: save(tree_map(_to_processor, tensors), *args, **more)
    for name in ("tensor", "arange", "randperm", "linspace", "eye"):  # these first create a tensor of another size
        setattr(torch, name, partial(_made, getattr(torch, name)))
    # In inference mode, views of a wrapped tensor would have the wrong type.
    replacements: dict[Any, dict[str, Any]] = {
        torch: {"inference_mode": lambda mode=True: torch.no_grad() if mode else torch.enable_grad()},
        torch.cuda: {
            "get_device_capability": lambda _=None: (9, 0),
            "get_device_name": lambda _=None: "a pretence",
            "mem_get_info": lambda _=None: (1 << 40, 1 << 40),
            "memory_reserved": lambda _=None: 0,
            "memory_allocated": lambda _=None: 0,
        },
        machine: {"_find_device": lambda asked: "cpu" if asked == "cpu" else NAME},
    }
    for module, functions in replacements.items():
        for name, function in functions.items():
            setattr(module, name, function)
    for name in ("lstm", "gru"):
        setattr(torch._VF, name, partial(_cells, getattr(torch._VF, name)))


_KEPT: list[torch.library.Library] = []  # keeps libraries alive, as they unregister their functions when deleted
