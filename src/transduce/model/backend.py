"""Define the interface through which a backend computes a model's components in place of PyTorch.

A model is written in plain PyTorch. Each `Component` asks the backend in use, if there is one, to compute its output.
The backend uses its kernels or calls the component's `forward`. Without a backend everything works, but slower.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError


class Rows(NamedTuple):
    """A range of rows of a weight matrix, from `start` to `stop` (exclusive), such as the rows of the queries alone.

    A linear layer that gets a range computes only the outputs of the rows in this range.
    """

    start: int
    stop: int


class Backend(Protocol):
    """An object that computes a model's components in place of PyTorch, by its own kernels where they are faster."""

    def execute(self, component: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Return the result of `component(*args, **kwargs)`, by kernels if they compute the same function.

        Otherwise the component's own `forward` computes it.
        """

    def supports_rows(self, x: Tensor) -> bool:
        """Return whether the row-wise kernels (dropout, norms, embeddings) support x's dtype, device and width.

        The width is the size of its last axis.
        """

    def add_in_place(self, total: Tensor, part: Tensor) -> None:
        """Add `part`, of any dtype, to `total`, which is float32; both are contiguous."""


# The backend of this thread's `with` statement; other threads, which may translate meanwhile, have none.
_BACKEND: ContextVar[Backend | None] = ContextVar("_BACKEND", default=None)


class _InUse:
    """The process-wide record of the training backend in use, which PyTorch's own threads need for backward passes."""

    backend: Backend | None = None
    thread: int | None = None
    """The id of the thread that uses the backend; None: there is no backend."""


@contextmanager
def using_backend(kernels: Backend | None) -> Iterator[None]:
    """Use a backend in the body of the `with` statement; None: plain PyTorch.

    Raises:
        TransduceError: another thread already uses a backend. Only one thread of a process can use one at a time.
    """
    before, this = (_InUse.backend, _InUse.thread), get_ident()
    if kernels is not None and before[1] not in (None, this):
        raise TransduceError(
            "Only one thread of a process can train with our kernels at a time, but another thread already does: "
            "train in another process, or wait until the other thread has finished."
        )
    if kernels is not None or before[1] == this:
        _InUse.backend, _InUse.thread = kernels, this
    token = _BACKEND.set(kernels)
    try:
        yield
    finally:
        _BACKEND.reset(token)
        if kernels is not None or before[1] == this:
            _InUse.backend, _InUse.thread = before


def backend_in_use() -> Any:
    """Return the `Backend` that this thread uses; None: plain PyTorch.

    PyTorch's own threads, which run backward passes on a GPU, get the backend of the process. The declared type is
    `Any`, because callers also use methods that only one backend has.
    """
    kernels = _BACKEND.get()
    # PyTorch's threads that run backward passes on a GPU have no context variables.
    return _InUse.backend if kernels is None and torch.cuda.is_initialized() else kernels


class Component(nn.Module):
    """A module whose output may be computed by the training backend in use instead of by PyTorch.

    Subclasses define the mathematics in `forward`. Models ask the backend in `__call__` only.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output: computed by the backend in use, or by `forward` if there is none.

        Raises:
            TransduceError: an argument breaks a rule of `forward`, as `_check_call` reports it.
        """
        try:
            # `torch.compile` can trace a class attribute, but no context variable.
            if _InUse.backend is not None and (kernels := _BACKEND.get()) is not None:
                return kernels.execute(self, *args, **kwargs)
            # A copy of `nn.Module.__call__`, whose additional Python frame is noticeable in decoding.
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        except (RuntimeError, IndexError, AttributeError):
            # A `forward` of another class or of this module alone may have other arguments and rules.
            checking: Any = next(each for each in type(self).__mro__ if "_check_call" in vars(each))
            if "forward" not in vars(self) and type(self).forward is checking.forward:
                self._check_call(*args, **kwargs)
            raise

    def _check_call(self, *args: Any, **kwargs: Any) -> None:
        """Check the arguments of a call of `forward` that failed, so that the error names the wrong argument.

        A call that succeeds is not checked, and costs no time. This method checks nothing; subclasses override it.

        Raises:
            TransduceError: an argument breaks a rule of `forward`.
        """

    def _check_input(self, x: Tensor, width: int, weight: Tensor | None = None, *, name: str = "x") -> None:
        """Check that a tensor has the axes (batch, positions, width), and the dtype of a weight if one is passed.

        Under autocast, the dtype is not checked.

        Raises:
            TransduceError: the argument `name` is no tensor, or has other axes or another dtype.
        """
        owner = type(self).__name__
        if not isinstance(x, Tensor):
            raise TransduceError(f"`{name}` of `{owner}` must be a tensor, but is a `{type(x).__name__}`.")
        if x.dim() != 3 or x.shape[-1] != width:
            rule = f"`{name}` of `{owner}` must have the axes (batch, positions, width), here of width {width}"
            if x.dim() == 2:
                raise TransduceError(f"{rule}, but its shape is {tuple(x.shape)}: add the batch by `{name}[None]`.")
            raise TransduceError(f"{rule}, but its shape is {tuple(x.shape)}.")
        if weight is None or x.dtype == weight.dtype or torch.is_autocast_enabled(x.device.type):
            return
        if not x.is_floating_point():
            raise TransduceError(
                f"`{name}` of `{owner}` must hold vectors of the type {weight.dtype}, but has {x.dtype}: embed token "
                "ids first."
            )
        raise TransduceError(
            f"`{name}` of `{owner}` must have the dtype of the weights, {weight.dtype}, but has {x.dtype}: convert it "
            f"by `{name}.to({weight.dtype})`, or the module by `.to({x.dtype})`."
        )


# --- gradient sums ---
# Float32 tensors to which kernels add the gradients of parameters while they compute them.


_BLOCK_ELEMENTS = 1 << 18  # 1 MB in float32, which stays in a processor's cache
_SUM = "sum_of_gradients"


def add_gradients_to(parameter: Tensor, total: Tensor) -> None:
    """Make kernels add a parameter's gradient to `total`, float32 of equal shape, and return no gradient to PyTorch."""
    setattr(parameter, _SUM, total)


def sum_of_gradients(parameter: Tensor) -> Tensor | None:
    """Return the tensor to which kernels may add a parameter's gradient, or None if PyTorch must receive the gradient.

    PyTorch must receive it if `add_gradients_to` was not called for the parameter, or if the parameter has hooks.
    """
    total: Tensor | None = None if parameter._backward_hooks else getattr(parameter, _SUM, None)
    return total


def add_to(total: Tensor, part: Tensor) -> None:
    """Compute total += part for tensors of equal shape, possibly of different dtypes, without a temporary copy.

    PyTorch's addition first converts all of `part` to the dtype of the total.
    """
    kernels = backend_in_use() if total.dtype != part.dtype and part.dim() else None
    if kernels is not None and kernels.supports_rows(part):
        kernels.add_in_place(total, part)
        return
    if total.dtype == part.dtype or total.device.type != "cpu" or total.numel() <= _BLOCK_ELEMENTS:
        total += part
        return
    rows = max(1, _BLOCK_ELEMENTS // part[0].numel())
    for block, addend in zip(total.split(rows), part.split(rows), strict=True):
        block += addend


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the matrix product left · right to `total` in place.

    A product of bfloat16 matrices is summed in float32 on a GPU; a CPU computes it in bfloat16 first.
    """
    if right.dtype == total.dtype:
        torch.addmm(total, left, right, out=total)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        add_to(total, left @ right)
