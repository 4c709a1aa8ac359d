"""Train some steps alone, replicated and sharded, in processes that are forked after everything is imported.

The first process writes the results of each optimizer as JSON. Arguments: number of processes, file of the results,
file of the settings.
"""

import copy
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.training.distributed import Processes, join_processes
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.optimizer import FlatOptimizer, Optimizer
from transduce.training.settings import ResolvedTraining
from transduce.training.sharding import ShardedOptimizer, shard

STEPS, MICRO_BATCHES = 5, 2
# Micro-batches before a step whose gradient is discarded: whether each is its step's last.
DISCARDED = {1: [False], 2: [False, True], 3: [False, False]}


class Pairs(NamedTuple):
    source: Tensor
    target: Tensor


class Task:
    """A training task: the loss of pairs of token ids by a model."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def loss(self, pairs: Pairs) -> Loss:
        inputs = torch.cat([torch.zeros_like(pairs.target[:, :1]), pairs.target[:, :-1]], dim=1)
        hidden = self.model.hidden(pairs.source, inputs)
        return projected_cross_entropy(hidden, self.model.output_weight, pairs.target, pad_id=0, label_smoothing=0.1)


def make_pairs(number: int) -> Pairs:
    """Return six pairs whose targets have different numbers of tokens."""
    random = np.random.default_rng(number)
    source, target = random.integers(3, 29, (6, 7)), random.integers(3, 29, (6, 9))
    target[1, 5:] = 0
    target[3, 2:] = 0
    return Pairs(torch.from_numpy(source), torch.from_numpy(target))


def train(
    kind: str, start: Transformer, settings: ResolvedTraining, processes: Processes, dtype: torch.dtype
) -> dict[str, object]:
    model = copy.deepcopy(start)
    task = Task(model)
    loss_of: Callable[[Pairs], Loss] = task.loss
    optimizer: Optimizer
    if kind == "sharded":
        loss_of = sharded = shard(model, task.loss, dtype, "cpu")
        optimizer = ShardedOptimizer(sharded, settings, processes)
    else:
        optimizer = FlatOptimizer(model, settings, dtype, processes if kind == "replicated" else None)

    def add_gradient(position: int, *, last: bool) -> Loss:
        pairs = make_pairs(position)
        if kind != "alone":
            pairs = Pairs(*(side[processes.rank :: processes.count] for side in pairs))
        optimizer.begin_batch(last=last)
        loss = loss_of(pairs)
        loss.total.backward()
        optimizer.finish_batch()
        return loss

    losses, norms = [], []
    for step in range(STEPS):
        if step in DISCARDED:  # leaves no trace
            for last in DISCARDED[step]:
                add_gradient(step, last=last)
            optimizer.discard_gradient()
        total, tokens = 0.0, 0
        for number in range(MICRO_BATCHES):
            loss = add_gradient(step * MICRO_BATCHES + number, last=number == MICRO_BATCHES - 1)
            total, tokens = total + float(loss.total.detach()), tokens + loss.tokens
        if kind != "alone":
            total, count = processes.sum([total, tokens])
            tokens = int(count)
        losses.append(total / tokens)
        norms.append(optimizer.step(tokens, 0.01, weight_decay=settings.weight_decay or 0.0))
    weights = optimizer.weights_to_keep()
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    return {"losses": losses, "norms": norms, "updates": optimizer.updates, "shapes": shapes}


def main() -> None:
    processes = join_processes("cpu")
    torch.manual_seed(0)
    config = ModelConfig(
        source_vocabulary_size=29,
        target_vocabulary_size=29,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=16,
        d_ff=32,
        num_heads=2,
        dropout=0.0,
    )
    start = Transformer(config)
    results: dict[str, object] = {
        optimizer: {
            f"{kind} {name}": train(kind, start, msgspec.convert(settings, ResolvedTraining), processes, dtype)
            for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
            for kind in ("alone", "replicated", "sharded")
            if kind != "alone" or processes.is_first
        }
        for optimizer, settings in json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")).items()
    }
    results["shared"] = processes.broadcast({"rank": processes.rank}, dict[str, int])
    if processes.is_first:
        Path(sys.argv[2]).write_text(json.dumps(results), encoding="utf-8")
    processes.leave()


def fork_processes(count: int) -> None:
    """Run `main` in several processes, with the environment that `torchrun` gives them; if one fails, end all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    children = set()
    for rank in range(count):
        if child := os.fork():
            children.add(child)
            continue
        os.environ.update({name: str(value) for name, value in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()})
        try:
            main()
        except BaseException:  # noqa: BLE001  (this process ends here in any case)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


if __name__ == "__main__":
    fork_processes(int(sys.argv[1]))
