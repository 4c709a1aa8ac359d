"""Training tokens/s by sentence length: what the Transformer does at once, a recurrent model does step by step.

Table 1 of the paper, measured twice, on random pieces; a Transformer of 6+6 layers x 256, and recurrent models of 2+2 x
512.

* About 4,096 target tokens a step at every length, as in `transduce train`. A core has enough to do with the sentences
  that stand side by side: what counts is the arithmetic, and attention's grows with the length.
* One sentence a step, forward and backward alone. Now a recurrent model multiplies vectors by matrices, one after the
  other, where the Transformer multiplies matrices.
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
from transduce.model.build import build_encoder_decoder
from transduce.model.config import ModelConfig
from transduce.tasks.kinds.translation import TranslationTask
from transduce.training.choices import PRESETS, choose_kernels
from transduce.training.optimizer import FlatOptimizer

LENGTHS = (8, 16, 32, 64, 128, 256, 512)
QUICK_LENGTHS = (8, 64)
PRESET, RECURRENT_WIDTH = "small", 512
MODELS = (BASELINE, WITH_ATTENTION, WITHOUT_ATTENTION)
_FIRST_PIECE = 3


def config_of(name: str, *, quick: bool) -> ModelConfig:
    """The model that family.py trains under this name, of a larger size."""
    said = settings_of(VARIANTS[name], CORPORA["de-en"], quick=quick)
    preset = PRESETS[PRESET]
    sizes = {field: getattr(preset, field) for field in ("d_model", "d_ff", "num_heads", "dropout")}
    layers = {side: getattr(preset, side) for side in ("num_encoder_layers", "num_decoder_layers")}
    own = {key.removeprefix("model."): value for key, value in said.items() if key.startswith("model.")}
    if VARIANTS[name].recurrent and not quick:
        own["d_model"] = RECURRENT_WIDTH
    size = said["tokenizer.vocabulary_size"]
    return ModelConfig(**({"source_vocabulary_size": size, "target_vocabulary_size": size} | sizes | layers | own))


def random_batch(config: ModelConfig, length: int, tokens: int) -> Batch:
    """Pairs of one length, the end symbol included."""
    rows = max(1, tokens // length)
    pieces = np.random.default_rng(length).integers(_FIRST_PIECE, config.target_vocabulary_size, (2, rows, length))
    pieces[:, :, -1] = config.eos_id
    return Batch(pieces[0], pieces[1], np.arange(rows), rows * length, rows * length)


def tokens_per_second(config: ModelConfig, length: int, *, repetitions: int, tokens: int, update: bool) -> float:
    """Target tokens in the median step, with the weights' update or without, after one that warms up."""
    torch.manual_seed(1)
    model = build_encoder_decoder(config).train()
    precision = detect_machine("cpu").precision
    optimizer = FlatOptimizer(model, optimizer_settings(precision), DTYPES[precision])
    task = TranslationTask(model, label_smoothing=LABEL_SMOOTHING)
    batch = random_batch(config, length, tokens)
    seconds = []
    for _ in range(1 + repetitions):
        started_at = time.monotonic()
        optimizer.begin_batch(last=True)
        loss = task.loss(batch)
        loss.total.backward()
        optimizer.collect_gradient()
        if update:
            optimizer.step(loss.tokens, RATE)
        seconds.append(time.monotonic() - started_at)
    return batch.target_tokens / median(seconds[1:])


def rows(*, quick: bool) -> list[Row]:
    """Every model at every length; recurrent ones beside the Transformer."""
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
            row = Row(f"training, {what} of {length} pieces, {name}", rate, "target tokens/s")
            if name != BASELINE:
                row = row._replace(peer=BASELINE, peer_value=rates[BASELINE], ratio=rate / rates[BASELINE])
            found.append(row)
    return found
