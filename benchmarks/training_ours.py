"""Run transduce as a worker of training_speed.py: the model, loss and optimizer of `transduce train`."""

from typing import cast

import numpy as np
import torch
from training_settings import RATE, Present, batch_of, config_of, optimizer_settings
from training_worker import CHOSEN, PROCESSOR, Device, Ids, read_plan, serve

from transduce.data.batches import Batch
from transduce.kernels.select import kernels_for_training
from transduce.machine import DTYPES, Precision, detect_machine, prepare_device
from transduce.model.backend import using_backend
from transduce.model.transformer import Transformer
from transduce.process_environment import keep_freed_memory
from transduce.tasks.kinds.translation import TranslationObjective
from transduce.training.choices import choose_accumulate, choose_cuda_graphs, choose_kernels
from transduce.training.optimizer import FlatOptimizer
from transduce.training.prefetch import PrefetchedBatches


class PartsAhead:
    """A prefetcher that prepares all micro-batches of a step."""

    def __init__(self, objective: TranslationObjective) -> None:
        self._objective = objective

    def look_ahead(self, parts: list[Batch]) -> None:
        """Prepare the micro-batches of a step before it runs."""
        for part in parts:
            self._objective.prefetch(part)


def main() -> None:
    """Build the model and train as requested."""
    work, pairs = read_plan()
    torch.set_num_threads(work.threads)
    torch.manual_seed(1)
    keep_freed_memory()
    prepare_device(work.device)
    with torch.device(work.device):
        model = Transformer(config_of(work))
    model.train()
    chosen = work.precision == CHOSEN
    precision = detect_machine(work.device).precision if chosen else cast("Precision", work.precision)
    optimizer = FlatOptimizer(model, optimizer_settings(precision, work.optimizer), DTYPES[precision])
    kind = work.kernels or choose_kernels(work.device, work.threads).value
    record = choose_cuda_graphs(work.device, kind, processes=1).value if work.record is None else work.record
    objective = TranslationObjective(model, label_smoothing=work.label_smoothing, cuda_graphs=record)

    def make_parts(source: Ids, target: Ids) -> list[Batch]:
        tokens = int((target != work.pad_id).sum())
        count = choose_accumulate(tokens, work.d_model, precision, work.device).value
        return [
            batch_of(s, t, work.pad_id)
            for s, t in zip(np.array_split(source, count), np.array_split(target, count), strict=True)
        ]

    steps = Present([make_parts(source, target) for source, target in pairs])
    batches = steps if work.device == "cpu" else PrefetchedBatches(steps, PartsAhead(objective))

    def step(number: int) -> None:
        tokens, parts = 0, batches.batch(0, number)
        for part in parts:
            optimizer.begin_batch(last=part is parts[-1])
            loss = objective.loss(part)
            loss.total.backward()
            optimizer.finish_batch()
            tokens += loss.tokens
        optimizer.step(tokens, RATE)

    gpu = Device(torch.cuda.synchronize, torch.cuda.max_memory_allocated, torch.cuda.empty_cache)
    with using_backend(kernels_for_training(kind, work.device)):
        serve(work, pairs, step, gpu if work.device.startswith("cuda") else PROCESSOR)


if __name__ == "__main__":
    main()
