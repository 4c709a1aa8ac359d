"""Optimize a model: its parameters are one flat vector, which each update changes.

The model computes with float32 or bfloat16 weights; master weights, moments and the moving average are float32. Since
everything lies in one vector, an update is a handful of operations, clipping needs one norm, and processes exchange
few tensors.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.adam import adam
from typing_extensions import override

from transduce.errors import TransduceError, shown_names
from transduce.kernel_interfaces import AdamScalars, TrainingKernels, UpdatedVectors
from transduce.model.backend import add_gradients_to, add_to, backend_in_use
from transduce.model.initialization import layer_matrices
from transduce.model.norms import BatchNorm
from transduce.process_environment import release_freed_memory
from transduce.training.checkpoint import RowRange, StoredTensor
from transduce.training.distributed import Processes
from transduce.training.lora import FrozenWeights
from transduce.training.muon import Gather, MatrixShapes, Muon
from transduce.training.settings import ResolvedTraining

# --- sums of gradients over processes ---
# The gradient is one flat vector, cut into chunks of a few million elements. The backward pass completes parameters
# roughly from the last to the first. When a chunk and all chunks after it are complete, its sum over the processes
# starts and runs during the rest of the pass. Sums are matched by their order, so the order must be the same in all
# processes, whichever path each takes through the model.
# PyTorch's DistributedDataParallel does the same with separate buckets, into which it copies gradients. Here gradients
# lie in the vector already and are summed in float32 although the model computes in bfloat16.


_CHUNK_ELEMENTS = 4_000_000  # 16 MB: large enough for full network bandwidth, small enough to start early


class GradientReduction:
    """A reducer that sums the gradient vector over processes, in chunks, while the last backward pass of a step runs.

    Args:
        parameters: the parameters in the order of the vector.
        gradient: the accumulated gradient, float32; hooks that add gradients to it must be registered before this
            object is created.
        chunk_elements: minimum size of one sum over the processes.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        gradient: Tensor,
        chunk_elements: int = _CHUNK_ELEMENTS,
    ) -> None:
        self.gradient = gradient
        self.bounds = _chunks([p.numel() for p in parameters], chunk_elements)
        self._sending = False
        self._missing: list[int] = []
        self._left = 0  # number of chunks whose sums have not started, always the first ones
        self._works: list[dist.Work] = []
        ends = [stop for _, stop in self.bounds]
        self._parameters_in = [0] * len(ends)
        position = 0
        for parameter in parameters:
            chunk = sum(stop <= position for stop in ends)
            self._parameters_in[chunk] += 1
            parameter.register_post_accumulate_grad_hook(self._completed(chunk))
            position += parameter.numel()

    def begin(self, *, last: bool) -> None:
        """Prepare for a backward pass; `last` is True for the last one of a step.

        During the last backward pass, each chunk of the gradient is summed over processes as soon as it is complete.
        """
        self._sending = last
        self._missing, self._left = list(self._parameters_in), len(self.bounds)

    def finish(self) -> None:
        """Finish a backward pass.

        After the last backward pass of a step, wait until all chunks of the gradient are summed over processes.
        """
        self._missing = [0] * len(self.bounds)  # some parameters may be unused, or the pass may be a replay
        self._begin_sums()
        for work in self._works:
            work.wait()
        self._works.clear()

    def _completed(self, chunk: int):  # type: ignore[no-untyped-def]
        def hook(_: Tensor) -> None:
            if is_recording(self.gradient.device):
                return  # a graph is being recorded and no gradient is computed yet
            self._missing[chunk] -= 1
            self._begin_sums()

        return hook

    def _begin_sums(self) -> None:
        while self._left and not self._missing[self._left - 1]:
            self._left -= 1
            if self._sending:
                start, stop = self.bounds[self._left]
                work = dist.all_reduce(self.gradient[start:stop], async_op=True)
                assert work is not None
                self._works.append(work)


def is_recording(device: torch.device) -> bool:
    """Return whether this thread's operations on a device are now recorded as a CUDA graph instead of being run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _chunks(sizes: Sequence[int], min_size: int) -> list[tuple[int, int]]:
    """Return a list of chunks (start, stop) of a vector that consists of parameters with these numbers of elements.

    A chunk consists of whole parameters and has at least `min_size` elements, except for the last one.
    """
    bounds, start, stop = [], 0, 0
    for size in sizes:
        stop += size
        if stop - start >= min_size:
            bounds.append((start, stop))
            start = stop
    return bounds if start == stop else [*bounds, (start, stop)]


# --- Adam (section 5.3) ---


class Adam:
    """An Adam optimizer for one vector: the two moments of its gradient and the update computed from them.

    PyTorch's function is called instead of `torch.optim.Adam`, whose import loads a compiler (one second and 70 MiB).
    """

    def __init__(self, master: Tensor, gradient: Tensor, settings: ResolvedTraining) -> None:
        """Create the optimizer state with zero moments; `master` and `gradient` are float32 vectors of equal length."""
        self._master, self._gradient, self._settings = master, gradient, settings
        self._moments = {"exp_avg": torch.zeros_like(master), "exp_avg_sq": torch.zeros_like(master)}
        self._updates = torch.zeros((), dtype=torch.float32, device=master.device)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the vector of master weights in place from the gradient, at the learning rate `rate`.

        Weight decay is applied elsewhere.
        """
        adam(
            [self._master],
            [self._gradient],
            [self._moments["exp_avg"]],
            [self._moments["exp_avg_sq"]],
            [],
            [self._updates],
            fused=True,
            amsgrad=False,
            beta1=self._settings.beta1,
            beta2=self._settings.beta2,
            lr=rate,
            weight_decay=0.0,
            eps=self._settings.epsilon,
            maximize=False,
        )

    def scalars(self, factor: float, rate: float, updates: int) -> AdamScalars:
        """Return the scalars of a fused Adam kernel for update number `updates`, counted from 1, with bias correction.

        The kernel multiplies the gradient by `factor`; `rate` is the learning rate.
        """
        beta1, beta2 = self._settings.beta1, self._settings.beta2
        rate, inverse_root = rate / (1.0 - beta1**updates), (1.0 - beta2**updates) ** -0.5
        return AdamScalars(factor, beta1, beta2, rate, inverse_root, self._settings.epsilon)

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """A pair of vectors: the running means of the gradient and of its square."""
        return self._moments["exp_avg"], self._moments["exp_avg_sq"]

    @property
    def updates(self) -> int:
        """The number of updates taken so far, which the bias correction uses."""
        return int(self._updates)

    @updates.setter
    def updates(self, updates: int) -> None:
        self._updates.fill_(updates)

    def vectors(self) -> dict[str, Tensor]:
        """Return a dict of the vectors that a checkpoint stores besides the weights: Adam's two moments, by name."""
        return dict(self._moments)


# --- update: clipping, weight decay, Adam or Muon, moving average ---
# The parameters lie in one flat float32 vector: first those of Adam, then the matrices of Muon.


class FlatUpdate:
    """An updater of all weights as one vector, with master weights, optimizer states and moving average."""

    def __init__(
        self,
        master: Tensor,
        gradient: Tensor,
        shapes: Mapping[str, torch.Size],
        settings: ResolvedTraining,
        matrices: Mapping[str, tuple[int, ...]],
        *,
        working: Tensor | None = None,
        gather: Gather | None = None,
        processes: Processes | None = None,
    ) -> None:
        """Create zero optimizer states, and a moving average that starts at the master weights.

        Args:
            master: float32 vector of weights, changed by each update.
            gradient: a vector of equal length.
            shapes: shapes of the parameters by name, in their order in `master`; the parameters in `matrices` come
                last.
            settings: settings of the run.
            matrices: names of the parameters that Muon updates, each with the row counts of its stacked matrices.
            working: receives a rounded copy of the master weights after each update; None if no copy is needed.
            gather: a function as for `Muon`, for processes that each hold some of the rows; None: this process holds
                all.
            processes: the processes that each hold all rows and take the same update; None: there is only this process.
        """
        self.master, self.gradient, self.settings, self.shapes = master, gradient, settings, shapes
        self.masters = self._named(master, shapes)
        self.average = master.clone() if settings.average_decay else None
        self._vectors = UpdatedVectors(master, gradient, self.average, working)
        self._names = [name for name in shapes if name not in matrices], [name for name in shapes if name in matrices]
        # Parameters of Adam and of Muon that decay; all of Muon's are matrices.
        self._decaying = [[self.masters[name] for name in names if len(shapes[name]) > 1] for names in self._names]
        self._start_of_muon = start = sum(shapes[name].numel() for name in self._names[0])
        self.adam = Adam(master[:start], gradient[:start], settings)
        weights = {name: MatrixShapes(shapes[name], matrices[name]) for name in self._names[1]}
        self.muon = (
            Muon(master[start:], gradient[start:], weights, settings, gather=gather, processes=processes)
            if weights
            else None
        )

    def update(self, norm: float, tokens: float, rate: float, weight_decay: float) -> None:
        """Update all parameters from the accumulated gradient, and set the gradient to zero.

        The gradient is clipped and divided by `tokens` first.

        Args:
            norm: the norm of the gradient per token, which decides about clipping.
            tokens: the number of tokens over which the gradient was summed, or the sum of their weights.
            rate: the learning rate.
            weight_decay: matrices are multiplied by 1 - rate × weight_decay before the update.
        """
        clip = self.settings.clip_norm
        factor = (min(1.0, clip / (norm + 1e-6)) if clip else 1.0) / tokens
        updates = self.updates + 1
        # Decay of the average; smaller at the start, so that the average covers only the steps taken so far.
        decay = min(self.settings.average_decay or 0.0, (1 + updates) / (10 + updates))
        kernels: TrainingKernels | None = backend_in_use()
        if kernels is not None and kernels.supports_update(self._vectors):
            self._update_by(kernels, factor, (rate, 1.0 - rate * weight_decay), decay, updates)
            return
        _shrink([*self._decaying[0], *self._decaying[1]], 1.0 - rate * weight_decay)
        self.gradient *= factor
        self.adam.step(rate)
        if self.muon is not None:
            self.muon.step(rate)
        if self.average is not None:
            self.average.lerp_(self.master, 1.0 - decay)
        if self._vectors.working is not None:
            self._vectors.working.copy_(self.master)
        self.gradient.zero_()

    def _update_by(
        self, kernels: TrainingKernels, factor: float, rates: tuple[float, float], decay: float, updates: int
    ) -> None:
        """Update all parameters by a backend's fused kernels, in one pass except for Muon's orthogonalization.

        Args:
            kernels: the backend.
            factor: multiplies the gradient.
            rates: the learning rate, and the factor, at most 1, by which weight decay multiplies matrices.
            decay: the decay of the moving average.
            updates: the number of updates including this one.
        """
        start, (rate, shrink) = self._start_of_muon, rates
        _shrink(self._decaying[0], shrink)
        if start:
            scalars = self.adam.scalars(factor, rate, updates)
            kernels.update_by_adam(self._part(slice(0, start)), self.adam.moments, scalars, decay)
        if self.muon is not None:
            direction = self.muon.find_update(kernels, factor)
            kernels.apply_update(self._part(slice(start, None)), decay, direction, rate, shrink)
        self.adam.updates = updates

    def _part(self, part: slice) -> UpdatedVectors:
        master, gradient, average, working = self._vectors
        cut = (None if vector is None else vector[part] for vector in (average, working))
        return UpdatedVectors(master[part], gradient[part], *cut)

    @property
    def updates(self) -> int:
        """The number of optimizer updates taken so far; skipped steps do not count."""
        return self.adam.updates

    @updates.setter
    def updates(self, updates: int) -> None:
        self.adam.updates = updates

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors for a checkpoint as views: a dict by kind (such as "weights") of dicts by name."""
        state = {"weights": self.masters}
        optimizer_states = (self.adam.vectors(), {} if self.muon is None else self.muon.vectors())
        for vectors, names in zip(optimizer_states, self._names, strict=True):
            state |= {kind: self._named(vector, names) for kind, vector in vectors.items()}
        if self.average is not None:
            state["average"] = self._named(self.average, self.shapes)
        return state

    @property
    def weights_to_keep(self) -> dict[str, Tensor]:
        """A dict of the weights for a model folder: the moving average, or the master weights if there is none."""
        return self.masters if self.average is None else self._named(self.average, self.shapes)

    def _named(self, vector: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        shapes = {name: self.shapes[name] for name in names}
        parts = vector.split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _shrink(masters: list[Tensor], factor: float) -> None:
    """Multiply master weights in place by a factor below 1, which applies weight decay."""
    if masters and factor != 1.0:
        torch._foreach_mul_(masters, factor)


# --- gradients ---


_NORM_ELEMENTS = 1 << 14


def vector_norm(vector: Tensor) -> float:
    """Return the Euclidean norm of a float32 vector.

    On a CPU, norms of blocks are combined: PyTorch adds all squares in one thread, and a float32 sum of 48 million of
    them was 0.8 % too small.
    """
    if vector.device.type != "cpu":
        return float(vector.norm())
    aligned = vector.numel() // _NORM_ELEMENTS * _NORM_ELEMENTS
    blocks = vector[:aligned].view(-1, _NORM_ELEMENTS).norm(dim=1)
    return float(torch.cat([blocks, vector[aligned:].norm()[None]]).norm())


def collect_gradients(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Make backward passes add the gradients of parameters to one contiguous vector, in the order of the parameters.

    If a parameter has the vector's dtype, its gradient is a view of the vector. Any other gradient is added and freed
    as soon as it is complete, during the backward pass: it is then still in the cache, and memory is needed for only
    one. Kernels may add to the vector directly and leave no gradient.
    """
    parts = vector.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        slot = part.view(parameter.shape)
        add_gradients_to(parameter, slot)
        if parameter.dtype == vector.dtype:
            parameter.grad = slot
        else:
            parameter.register_post_accumulate_grad_hook(_move_to(slot))


def clear_gradients(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Set the vector of accumulated gradients to zero, and drop gradients that an interrupted backward pass left."""
    vector.zero_()
    for parameter in parameters:
        if parameter.dtype != vector.dtype:
            parameter.grad = None


def _move_to(slot: Tensor) -> Callable[[Tensor], None]:
    def move(parameter: Tensor) -> None:
        if parameter.grad is not None:
            add_to(slot, parameter.grad)
            parameter.grad = None

    return move


# --- running statistics ---
# The statistics of BatchNorm change in every forward pass, even if its step is skipped, abandoned or only a trial.
# So there are two copies: the live one, and one from the last complete update, which a checkpoint stores.


STATISTICS = "statistics"
"""The name, in a checkpoint, of the kind of tensors that `RunningStatistics` stores."""


class RunningStatistics:
    """A copy of a model's persistent buffers (such as BatchNorm's statistics), used to undo skipped steps."""

    def __init__(self, model: nn.Module) -> None:
        stored = model.state_dict().keys()
        self._live = {name: buffer for name, buffer in model.named_buffers() if name in stored}
        self.accepted = {name: buffer.detach().clone() for name, buffer in self._live.items()}
        """A dict by name of copies of the buffers, as of the last complete update."""

    @torch.no_grad()
    def changed(self) -> list[str]:
        """Return a list of the names of buffers whose values differ from those of the last complete update.

        NaN counts as equal to NaN.
        """
        pairs = ((name, live, self.accepted[name]) for name, live in self._live.items())
        return [name for name, one, other in pairs if not ((one == other) | (one.isnan() & other.isnan())).all()]

    @torch.no_grad()
    def accept(self) -> None:
        """Copy the model's current buffers, after a complete update, as the state to return to."""
        _copy(self._live, self.accepted)

    @torch.no_grad()
    def restore(self) -> None:
        """Set the model's buffers to those stored at the last complete update."""
        _copy(self.accepted, self._live)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor | StoredTensor]) -> None:
        """Set the model's buffers to the tensors of a checkpoint, by name.

        The copies that `restore` uses are set to the same tensors.
        """
        for name, accepted in self.accepted.items():
            stored = tensors[name]
            accepted.copy_(stored if isinstance(stored, Tensor) else stored[:])
        self.restore()


def refuse_buffers_of_one_process(model: nn.Module, count: int, *, sharded: bool) -> None:
    """Refuse to train a model with several processes if its buffers would differ between them or be lost.

    Nothing is refused if `count`, the number of processes, is 1. Buffers that only become known when they change, in
    the first step, are refused by `FlatOptimizer.step`.

    Raises:
        TransduceError: a normalization keeps running statistics of its inputs, which differ between processes. Or the
            model is divided among the processes (`sharded`) and has persistent buffers, which are not stored then.
    """
    if count == 1:
        return
    norms = BatchNorm | nn.modules.batchnorm._NormBase
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, norms)]
    statistics = [name for name, module in modules if getattr(module, "running_mean", None) is not None]
    if statistics:
        raise TransduceError(
            f"BatchNorm keeps statistics of the rows that a process sees ({shown_names(statistics, 3)}), so the number "
            f"of processes would change the model, but there are {count}: train with one, or use another "
            "normalization, such as `model.norm` = layer."
        )
    if sharded and (buffers := RunningStatistics(model).accepted):
        raise TransduceError(
            f"With `training.sharded`, only parameters are stored, but the model has buffers "
            f"({shown_names(buffers, 3)}): set `training.sharded` to false, or register them with `persistent=False`."
        )


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


# --- optimizers ---


class Optimizer(Protocol):
    """An interface of optimizers, which accumulate gradients of micro-batches and apply one update per step."""

    def begin_batch(self, *, last: bool) -> None:
        """Prepare for a micro-batch; during the last one of a step, gradients are summed over processes."""

    def finish_batch(self) -> None:
        """Complete the gradient of the micro-batch whose backward pass has finished.

        After the last micro-batch of a step, wait for the sums over processes.
        """

    def step(self, tokens: float, rate: float, weight_decay: float = 0.0) -> float:
        """Update the weights from the gradients of the step.

        Args:
            tokens: target tokens of the whole step, over all micro-batches and processes, each times its weight.
            rate: the learning rate.
            weight_decay: matrices are multiplied by 1 - rate × weight_decay before the update.

        Returns:
            The norm of the gradient per token before clipping. If it is not finite, nothing was updated.
        """

    def discard_gradient(self) -> None:
        """Discard the gradients since the last step, including that of an interrupted backward pass."""

    @property
    def updates(self) -> int:
        """The number of optimizer updates taken so far; skipped steps do not count."""

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors that this process holds, a dict by kind (weights, moments, average) of dicts by name."""

    @property
    def rows(self) -> dict[str, RowRange] | None:
        """The range of rows of each parameter that this process holds, by name; None if it holds all rows."""

    def load_state(self, state: Mapping[str, Mapping[str, Tensor | StoredTensor]], updates: int) -> None:
        """Load the tensors of a checkpoint, a dict by kind of dicts by name.

        The tensors are complete; a process that holds only some rows reads only these rows. `updates` is the number of
        updates taken before the checkpoint.
        """

    def weights_to_keep(self) -> dict[str, Tensor]:
        """Return a dict by name of the complete float32 weights to write into a model folder.

        They are the moving average of the weights, or the current weights if there is no average. Every process must
        call this method.
        """


class FlatOptimizer(Optimizer):
    """An optimizer that turns a model's trainable parameters into views of one vector in the working precision.

    Gradients are *sums* over the target tokens of micro-batches; `step` divides them once by the tokens of the step.
    Every process holds the complete model.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: ResolvedTraining,
        dtype: torch.dtype,
        processes: Processes | None = None,
    ) -> None:
        self.settings = settings
        learning, matrices = trainable_parameters(model, settings)
        parameters = list(learning.values())
        self.master = torch.cat([p.detach().float().flatten() for p in parameters])
        self.gradient = torch.zeros_like(self.master)
        self.working = self.master if dtype == torch.float32 else self.master.to(dtype)
        self._parameters = parameters
        self._frozen = FrozenWeights(model)
        if dtype != torch.float32:
            model.to(dtype)  # before views are made, since recurrent cells reallocate their weights here
        _make_views(parameters, self.working)
        release_freed_memory()  # the weights as they were opened
        collect_gradients(parameters, self.gradient)
        self._statistics, self._between_steps = RunningStatistics(model), True
        shapes = {name: parameter.shape for name, parameter in learning.items()}
        working = None if self.working is self.master else self.working
        self._update = FlatUpdate(
            self.master, self.gradient, shapes, settings, matrices, working=working, processes=processes
        )
        several = processes is not None and processes.count > 1
        self._reduction = GradientReduction(parameters, self.gradient) if several else None

    @override
    def begin_batch(self, *, last: bool) -> None:
        if self._between_steps:
            self._statistics.restore()
            self._between_steps = False
        if self._reduction is not None:
            self._reduction.begin(last=last)

    @override
    def finish_batch(self) -> None:
        if self._reduction is not None:
            self._reduction.finish()

    @override
    def step(self, tokens: float, rate: float, weight_decay: float = 0.0) -> float:
        norm = vector_norm(self.gradient) / tokens
        if self._reduction is not None and (changed := self._statistics.changed()):
            raise TransduceError(
                f"Training changes buffers of the model ({shown_names(changed, 3)}), and each of the processes would "
                "keep other values: train with one process, or register the buffers with `persistent=False`."
            )
        if math.isfinite(norm):
            self._update.update(norm, tokens, rate, weight_decay)
            self._statistics.accept()
        else:
            self.gradient.zero_()
        self._between_steps = True
        return norm

    @override
    def discard_gradient(self) -> None:
        clear_gradients(self._parameters, self.gradient)
        self._between_steps = True

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return a dict by kind of dicts by name: views of all tensors that a checkpoint stores.

        Kinds are master weights, moments, moving average, and running statistics (BatchNorm); some may be missing.
        """
        return self._update.state() | ({STATISTICS: self._statistics.accepted} if self._statistics.accepted else {})

    @property
    @override
    def rows(self) -> None:
        return None

    @property
    @override
    def updates(self) -> int:
        return self._update.updates

    @override
    def load_state(self, state: Mapping[str, Mapping[str, Tensor | StoredTensor]], updates: int) -> None:
        for kind, tensors in self._update.state().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[kind][name][:])
        self._statistics.load(state.get(STATISTICS, {}))
        self._update.updates = updates
        if self.working is not self.master:
            self.working.copy_(self.master)

    def weights_to_keep(self) -> dict[str, Tensor]:
        """Return a dict by name of the weights for a model folder, and of BatchNorm's statistics if there are any.

        The weights are their moving average or, if there is none, the master weights.
        """
        return self._frozen.complete(self._update.weights_to_keep) | self._statistics.accepted


def trainable_parameters(
    model: nn.Module, settings: ResolvedTraining
) -> tuple[dict[str, nn.Parameter], dict[str, tuple[int, ...]]]:
    """Return a model's trainable parameters, and which of them Muon updates.

    Returns:
        A pair of dicts by name. The first holds all trainable parameters, each shared parameter once; the parameters
        that Muon updates come last. The second maps the name of each parameter that Muon updates to the numbers of rows
        of its stacked matrices. It is empty for other optimizers.
    """
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    matrices = layer_matrices(model) if settings.optimizer == "muon" else {}
    taken = {name: matrices[name] for name in learning if name in matrices}
    return {name: learning[name] for name in sorted(learning, key=taken.__contains__)}, taken


def _make_views(parameters: Sequence[nn.Parameter], working: Tensor) -> None:
    for parameter, weights in zip(parameters, working.split([p.numel() for p in parameters]), strict=True):
        parameter.data = weights.view(parameter.shape)
