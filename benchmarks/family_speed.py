"""Measure training tokens/s by sentence length: parallel in Transformers, sequential in recurrent models.

This reproduces the paper's Table 1 on random tokens, with a Transformer of 6+6 layers x 256 and recurrent models of 2+2
layers x 512, in two setups:

* Steps with about 4,096 target tokens at every length, as in `transduce train`. Batches keep a core busy, so the
  arithmetic decides, and attention's grows with the length.
* Steps with one sentence, forward and backward only. Then a recurrent model multiplies vectors by matrices one after
the
  other, while the Transformer multiplies matrices.
"""

import itertools
import time
from statistics import median

import numpy as np
import torch
from family_variants import BASELINE, CORPORA, VARIANTS, WITH_ATTENTION, WITHOUT_ATTENTION, settings_of
from report import Row
from training_settings import LABEL_SMOOTHING, RATE, STEP_TOKENS, optimizer_settings

from transduce.data.batches import Batch
from transduce.kernels.select import kernels_for_training
from transduce.machine import DTYPES, detect_machine
from transduce.model.backend import using_backend
from transduce.model.config import ModelConfig
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.tasks.kinds.translation import TranslationObjective
from transduce.training.choices import PRESETS, choose_kernels
from transduce.training.optimizer import FlatOptimizer

LENGTHS = (8, 16, 32, 64, 128, 256, 512)
QUICK_LENGTHS = (8, 64)
PRESET, RECURRENT_WIDTH = "small", 512
MODELS = (BASELINE, WITH_ATTENTION, WITHOUT_ATTENTION)
_FIRST_PIECE = 3


def config_of(name: str, *, quick: bool) -> ModelConfig:
    """Return a larger version of the model that family.py trains under this name."""
    settings = settings_of(VARIANTS[name], CORPORA["de-en"], quick=quick)
    preset = PRESETS[PRESET]
    sizes = {field: getattr(preset, field) for field in ("d_model", "d_ff", "num_heads", "dropout")}
    layers = {side: getattr(preset, side) for side in ("num_encoder_layers", "num_decoder_layers")}
    model_settings = {key.removeprefix("model."): value for key, value in settings.items() if key.startswith("model.")}
    if VARIANTS[name].recurrent and not quick:
        model_settings["d_model"] = RECURRENT_WIDTH
    size = settings["tokenizer.vocabulary_size"]
    return ModelConfig(
        **({"source_vocabulary_size": size, "target_vocabulary_size": size} | sizes | layers | model_settings)
    )


def random_batch(config: ModelConfig, length: int, tokens: int) -> Batch:
    """Return a batch of random pairs of one length, end symbol included."""
    rows = max(1, tokens // length)
    pieces = np.random.default_rng(length).integers(_FIRST_PIECE, config.target_vocabulary_size, (2, rows, length))
    pieces[:, :, -1] = config.eos_id
    return Batch(pieces[0], pieces[1], np.arange(rows), rows * length, rows * length)


def tokens_per_second(config: ModelConfig, length: int, *, repetitions: int, tokens: int, update: bool) -> float:
    """Return the target tokens per second of the median step, with or without the optimizer's update, after a warm-up
    step.
    """
    torch.manual_seed(1)
    model = (Recurrent if config.kind == "recurrent" else Transformer)(config).train()
    precision = detect_machine("cpu").precision
    optimizer = FlatOptimizer(model, optimizer_settings(precision), DTYPES[precision])
    objective = TranslationObjective(model, label_smoothing=LABEL_SMOOTHING)
    batch = random_batch(config, length, tokens)
    seconds = []
    for _ in range(1 + repetitions):
        started_at = time.monotonic()
        optimizer.begin_batch(last=True)
        loss = objective.loss(batch)
        loss.total.backward()
        optimizer.finish_batch()
        if update:
            optimizer.step(loss.tokens, RATE)
        seconds.append(time.monotonic() - started_at)
    return batch.target_tokens / median(seconds[1:])


def rows(*, quick: bool) -> list[Row]:
    """Return the speed of every model at every length, with recurrent models compared with the Transformer."""
    threads = detect_machine("cpu").threads
    torch.set_num_threads(threads)
    with using_backend(kernels_for_training(choose_kernels("cpu", threads).value, "cpu")):
        return _rows(quick=quick)


def _rows(*, quick: bool) -> list[Row]:
    found: list[Row] = []
    lengths = QUICK_LENGTHS if quick else LENGTHS
    for length, alone in itertools.product(lengths, (False, True)):
        tokens = length if alone else 512 if quick else STEP_TOKENS
        repetitions = 2 if quick else 5
        rates = {
            name: tokens_per_second(
                config_of(name, quick=quick), length, repetitions=repetitions, tokens=tokens, update=not alone
            )
            for name in MODELS
        }
        for name, rate in rates.items():
            what = "one sentence" if alone else "steps of sentences"
            row = Row(f"training, {what} of {length} tokens, {name}", rate, "target tokens/s")
            if name != BASELINE:
                row = row._replace(peer=BASELINE, peer_value=rates[BASELINE], ratio=rate / rates[BASELINE])
            found.append(row)
    return found
