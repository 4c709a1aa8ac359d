"""Operations that one process performs alone and several perform together: optimizer setup, step totals, saving."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from transduce.errors import TransduceError
from transduce.model.precision import DTYPES
from transduce.training.checkpoint import Checkpoint, save_checkpoint
from transduce.training.loss import Loss
from transduce.training.optimizer import FlatOptimizer, Optimizer
from transduce.training.processes import Processes
from transduce.training.settings import ResolvedTraining
from transduce.training.sharded import ShardedOptimizer, shard
from transduce.training.statistics import RunningStatistics


def make_optimizer(
    model: nn.Module, loss: Callable[[Any], Loss], settings: ResolvedTraining, processes: Processes
) -> tuple[Optimizer, Callable[[Any], Loss]]:
    """Create the optimizer of a model, and return it with the loss function to call, which sharding replaces.

    Raises:
        TransduceError: there are several processes, and the model keeps BatchNorm statistics, which would differ
            between them.
    """
    if processes.count > 1 and RunningStatistics(model).accepted:
        raise TransduceError(
            "`model.norm` = batch keeps statistics of the rows that a process sees, so the number of processes would "
            f"change the model, but there are {processes.count}: train with one, or set `model.norm` to layer or rms."
        )
    dtype = DTYPES[settings.precision]
    if not settings.sharded or processes.count == 1:
        return FlatOptimizer(model, settings, dtype, processes), loss
    sharded = shard(model, loss, dtype, next(model.parameters()).device.type)
    return ShardedOptimizer(sharded, settings, processes), sharded


class StepTotals(NamedTuple):
    """Sums over the micro-batches of a step, first of this process and then of all processes."""

    tokens: int = 0
    total: float = 0.0
    likelihood: float = 0.0
    stop: int = 0
    """The number of processes that were asked to stop."""

    def plus(self, loss: Loss) -> "StepTotals":
        """Return the totals with one more micro-batch added."""
        return StepTotals(
            self.tokens + loss.tokens,
            self.total + float(loss.total.detach()),
            self.likelihood + float(loss.negative_log_likelihood),
        )

    def over(self, processes: Processes, *, stop: bool) -> "StepTotals":
        """Return the totals summed over all processes, equal in each of them."""
        if processes.count == 1:
            return self._replace(stop=int(stop))
        tokens, total, likelihood, stops = processes.sum([*self[:-1], float(stop)])
        return StepTotals(int(tokens), total, likelihood, int(stops))


def save_together(folder: Path, checkpoint: Checkpoint, processes: Processes, *, keep: int) -> None:
    """Save a checkpoint: the first process alone if it holds everything, otherwise each process its own part.

    Raises:
        TransduceError: the checkpoint cannot be written; earlier checkpoints are untouched.
    """
    if checkpoint.rows is None:
        try:
            if processes.is_first:
                save_checkpoint(folder, checkpoint, keep=keep)
        finally:
            processes.wait()  # also after a failure: the run may continue and needs all processes
        return
    save_checkpoint(folder, checkpoint, keep=keep, processes=processes)
