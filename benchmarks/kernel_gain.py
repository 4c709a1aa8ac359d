"""Measure how much slower training and decoding become without each group of CPU kernels.

    python benchmarks/kernel_gain.py
    DNNL_MAX_CPU_ISA=AVX2 python benchmarks/kernel_gain.py    # as on a processor with AVX2 alone

Each variant switches off one group, and PyTorch computes what the group computed. Whole-layer calls contain the other
kernels of a layer, so most variants of training also switch off whole-layer calls and are compared with "whole layers".
Models have random weights and batches are random. Variants alternate; figures are medians of processor time over the
rounds, on one thread, so other processes disturb them little. There is no peer and no bar.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from training_settings import RATE, batch_of, optimizer_settings
from training_worker import Ids

import transduce.inference.compiled_search
import transduce.inference.scorers
import transduce.kernels.select
from transduce.acceleration import search_reductions
from transduce.inference.scorers import EncoderDecoderScorer
from transduce.kernels.cpu.training.layer import CompiledTraining
from transduce.kernels.select import make_inference_copy, quantize
from transduce.machine import DTYPES, detect_machine
from transduce.model.backend import using_backend
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.process_environment import keep_freed_memory
from transduce.search.beam import BeamOptions, BeamSearch
from transduce.search.greedy import GreedySearch, take_argmax
from transduce.search.scorer import SequenceLimits
from transduce.search.selection import use_kernels
from transduce.tasks.kinds.translation import TranslationObjective
from transduce.training.optimizer import FlatOptimizer
from transduce.training.settings import OptimizerName

SIZES = ((2, 128, 4), (3, 256, 4))  # layers, columns, heads
VOCABULARY, TOKENS = 8000, 20  # the greatest length of sources and translations
TRAINING_SENTENCES = 64  # in a batch
SEARCHES = ((1, 4), (16, 4))  # sentences, beam size

Function = Callable[[], Any]


def build(layers: int, width: int, heads: int, **changes: Any) -> Transformer:
    """Return a Transformer with random weights."""
    torch.manual_seed(1)
    config = ModelConfig(
        source_vocabulary_size=VOCABULARY,
        target_vocabulary_size=VOCABULARY,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        d_model=width,
        d_ff=4 * width,
        num_heads=heads,
        **changes,
    )
    return Transformer(config)


def measure(variants: dict[str, Function], rounds: int, seconds: float) -> dict[str, float]:
    """Return the median processor time of a call of each variant, in ms; the variants alternate."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, call in variants.items():
            calls, start = 0, time.process_time()
            while calls == 0 or time.process_time() - start < seconds:
                call()
                calls += 1
            if number:  # the first round compiles kernels
                found[name].append(1000 * (time.process_time() - start) / calls)
    return {name: statistics.median(times) for name, times in found.items()}


# --- training ---


def no(*_: Any, **__: Any) -> bool:
    """Return False: a kernel supports nothing."""
    return False


def none(*_: Any, **__: Any) -> None:
    """Return None: there is no kernel."""


WHOLE_LAYERS = {"run_layer": none}
TRAINING: dict[str, dict[str, Function] | None] = {
    "all kernels": {},
    "whole layers": WHOLE_LAYERS,
    "attention": {**WHOLE_LAYERS, "supports_attention": no},
    "linear layers": {**WHOLE_LAYERS, "supports_linear": no},
    "norm, dropout and embedding": {**WHOLE_LAYERS, "supports_rows": no, "residual_norm": none},
    "output projection": {**WHOLE_LAYERS, "project": none},
    "softmax": {**WHOLE_LAYERS, "supports_logits": no},
    "optimizer update": {**WHOLE_LAYERS, "supports_update": no},
    "orthogonalization (Muon)": {**WHOLE_LAYERS, "supports_orthogonalization": no},
    "PyTorch alone": None,
}
"""The methods of `CompiledTraining` that each variant replaces."""


class Training:
    """A training run whose steps use some of the kernels."""

    def __init__(self, model: Transformer, optimizer: OptimizerName, changes: dict[str, Function] | None) -> None:
        """Prepare training with the methods of `CompiledTraining` in `changes` replaced; None: without kernels."""
        precision = detect_machine("cpu").precision
        self.kernels = None if changes is None else CompiledTraining()
        for name, function in (changes or {}).items():
            setattr(self.kernels, name, function)
        self.optimizer = FlatOptimizer(model.train(), optimizer_settings(precision, optimizer), DTYPES[precision])
        self.objective = TranslationObjective(model, label_smoothing=0.1)
        self.batches = random_batches(model.config)

    def step(self) -> None:
        """Run one training step."""
        batch = self.batches[0]
        self.batches = [*self.batches[1:], batch]
        with using_backend(self.kernels):
            self.optimizer.begin_batch(last=True)
            self.objective.loss(batch).total.backward()
            self.optimizer.finish_batch()
            self.optimizer.step(batch.target_tokens, RATE)


def random_batches(config: ModelConfig) -> list[Any]:
    """Return a few batches of random ids; sentences of a batch have similar lengths, as in training."""
    random = np.random.default_rng(1)
    batches = []
    for longest in (8, 12, 16, TOKENS, 2 * TOKENS):
        source, target = (_random_ids(random, longest, config) for _ in range(2))
        batches.append(batch_of(source, target, config.pad_id))
    return batches


def _random_ids(random: np.random.Generator, longest: int, config: ModelConfig) -> Ids:
    """Return random sentences of at most `longest` tokens with their end symbols, padded."""
    ids = random.integers(4, VOCABULARY, (TRAINING_SENTENCES, longest))
    for row, length in zip(ids, random.integers(longest - 4, longest + 1, TRAINING_SENTENCES), strict=True):
        row[length - 1] = config.eos_id
        row[length:] = config.pad_id
    return ids


# --- decoding ---


@contextmanager
def decoding_without(*groups: str) -> Iterator[None]:
    """Switch off groups of decoding kernels in the body of the `with` statement."""
    select = transduce.kernels.select
    with ExitStack() as stack:
        if "compiled search" in groups:
            stack.enter_context(patch.object(transduce.inference.compiled_search, "find_batch_search", none))
        if "compiled steps" in groups:
            stack.enter_context(patch.object(select, "_find_compiled", lambda _: "switched off"))
        stack.enter_context(use_kernels(None if "top-k" in groups else search_reductions()))
        yield


@torch.inference_mode()
def search(model: Transformer, sentences: int, beam_size: int) -> None:
    """Translate random sentences into `TOKENS` tokens, or fewer if the model ends them."""
    sources = torch.randint(4, VOCABULARY, (sentences, TOKENS), generator=torch.Generator().manual_seed(1))
    limits = SequenceLimits(model.config.start_id, model.config.eos_id, torch.full((sentences,), TOKENS))
    scorer, beam = EncoderDecoderScorer(model, sources), BeamOptions(beam_size=beam_size, n_best=1, alpha=0.6)
    found: Any = transduce.inference.compiled_search.find_compiled_search(scorer, limits, beam)
    if found is None and beam_size == 1:
        found = GreedySearch(scorer, limits, take_argmax)
    elif found is None:
        found = BeamSearch(scorer, limits, beam)
    while len(found.sentence_indices):
        found.advance(TOKENS)


def decoding_variants(size: tuple[int, int, int], precision: str) -> Iterator[tuple[str, dict[str, Function]]]:
    """Yield, for each of `SEARCHES`, its name and searches with all groups of kernels and with ever fewer groups."""
    removed = ("compiled search", "compiled steps", "top-k")
    model = build(*size).eval()
    if precision == "int8":
        model = quantize(model)
    else:
        make_inference_copy(model, DTYPES[precision])
    for sentences, beam_size in SEARCHES:
        variants = {"all kernels": _searching(model, sentences, beam_size, ())}
        for count in range(1, len(removed) + 1):
            variants[f"-{removed[count - 1]}"] = _searching(model, sentences, beam_size, removed[:count])
        yield f"{sentences} × {beam_size}", variants


def _searching(model: Transformer, sentences: int, beam_size: int, removed: tuple[str, ...]) -> Function:
    """Return a function that searches without the removed groups of kernels."""

    def call() -> None:
        with decoding_without(*removed):
            search(model, sentences, beam_size)

    return call


def report(title: str, times: dict[str, float]) -> None:
    """Print the times of all variants of one measurement as a table row, relative to the first."""
    first = next(iter(times.values()))
    cells = " | ".join(f"{name} {value / first:.3f}" for name, value in times.items())
    print(f"| {title} | {first:.2f} ms | {cells} |", flush=True)


def main() -> None:
    """Print the ratios of processor times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="processor time of each variant in a round")
    parser.add_argument("--only", choices=("training", "decoding"))
    parser.add_argument("--positions", default="sinusoidal", help="`model.positions` of the models that are trained")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    for size in SIZES:
        title = "{0}+{0} × {1}".format(*size)
        if options.only != "decoding":
            optimizers: tuple[OptimizerName, ...] = ("adam", "muon")
            for optimizer in optimizers:
                steps = {
                    name: Training(build(*size, positions=options.positions), optimizer, changes).step
                    for name, changes in TRAINING.items()
                    if "Muon" not in name or optimizer == "muon"
                }
                report(f"training, {title}, {optimizer}", measure(steps, options.rounds, options.seconds))
        if options.only != "training":
            for precision in ("int8", "bf16", "fp32"):
                for name, variants in decoding_variants(size, precision):
                    report(f"{precision}, {title}, {name}", measure(variants, options.rounds, options.seconds))


if __name__ == "__main__":
    main()
