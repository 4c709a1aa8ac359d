"""Run transduce as a worker of fine_tuning_speed.py: import the folder, and train as `transduce train` chooses."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from training_settings import RATE, batch_of, optimizer_settings
from training_worker import _answers, serve

from transduce.data.batches import Batch
from transduce.data.masked_language_model import MaskedBatch
from transduce.interop.hugging_face.import_weights import StoredTensors, import_model
from transduce.kernels.select import kernels_for_training
from transduce.machine import DTYPES, detect_machine
from transduce.model.backend import using_backend
from transduce.model.build import AnyModel, build_any_model
from transduce.model.transformer import Decoder, Encoder, Transformer
from transduce.model_folder.tensor_files import MappedTensors
from transduce.process_environment import keep_freed_memory
from transduce.tasks.kinds.language_model import LanguageModelObjective
from transduce.tasks.kinds.masked_language_model import MaskedLanguageObjective
from transduce.tasks.kinds.translation import TranslationObjective
from transduce.training.choices import choose_accumulate, choose_kernels
from transduce.training.loss import Loss
from transduce.training.optimizer import FlatOptimizer


def open_model(folder: Path) -> AnyModel:
    """Return the model of a Hugging Face folder, in float32."""
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    file = MappedTensors(folder, "model.safetensors", whole_numbers=None)
    readers = {name: partial(file.tensor, name) for name in file.entries}
    start = {"start_id": content["decoder_start_token_id"]} if content.get("is_encoder_decoder") else {}
    found = import_model(content, StoredTensors(readers, str(folder)), start)
    model = build_any_model(found.config)
    model.load_state_dict(found.weights)
    return model


def loss_of(model: AnyModel) -> Callable[[Batch], Loss]:
    """Return the objective of a model's class."""
    if isinstance(model, Encoder):
        return MaskedLanguageObjective(model).loss
    if isinstance(model, Decoder):
        return LanguageModelObjective(model, label_smoothing=0.0).loss
    return TranslationObjective(cast("Transformer", model), label_smoothing=0.1).loss


def as_batch(source: Any, target: Any, pad_id: int, *, masked: bool) -> Batch:
    """Return ids as a batch of the task."""
    batch = batch_of(source, target, pad_id)
    if not masked:
        return batch
    types, none = np.zeros_like(source), np.empty(0, np.int64)
    return MaskedBatch(**vars(batch), token_types=types, follows=none, masked_per_row=1.0)


def main() -> None:
    """Open the model and train as requested."""
    _answers()
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(plan["threads"])
    torch.manual_seed(1)
    keep_freed_memory()
    model = open_model(Path(plan["folder"])).train()
    precision = detect_machine("cpu").precision
    settings = optimizer_settings(precision)
    optimizer = FlatOptimizer(model, settings, DTYPES[precision])
    kind = "torch" if plan["form"] == "kernels=torch" else choose_kernels("cpu", plan["threads"]).value
    loss_function = loss_of(model)
    with np.load(plan["batches"]) as arrays:
        pairs = [(arrays[f"s{n}"], arrays[f"t{n}"]) for n in range(len(arrays.files) // 2)]
    pad_id = plan["pad_id"]

    def step(number: int) -> None:
        source, target = pairs[number]
        count = choose_accumulate(source.size, model.config.d_model, precision, "cpu").value
        parts = zip(np.array_split(source, count), np.array_split(target, count), strict=True)
        tokens = 0
        for index, part in enumerate(parts):
            optimizer.begin_batch(last=index == count - 1)
            loss = loss_function(as_batch(*part, pad_id, masked=isinstance(model, Encoder)))
            loss.total.backward()
            optimizer.finish_batch()
            tokens += loss.tokens
        optimizer.step(tokens, RATE / 10)

    with using_backend(kernels_for_training(kind, "cpu")):
        serve(SimpleNamespace(pad_id=pad_id), pairs, step)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
