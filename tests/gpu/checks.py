# ruff: noqa: E402 -- the environment variable that makes Triton interpret kernels must be set before its import
"""Check the kernels for GPUs against PyTorch's operations: on a GPU, or interpreted on the CPU.

test_kernels.py runs this script in a separate process, because Triton decides at its import whether it interprets.
"""

import gc
import itertools
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
from numpy.typing import NDArray

from transduce.data.batches import Batch
from transduce.errors import TransduceError
from transduce.inference.compiled_search import CompiledSearch, find_compiled_search
from transduce.inference.scorers import EncoderDecoderScorer
from transduce.kernel_interfaces import AdamScalars, UpdatedVectors
from transduce.kernels.cuda import backend, decode_graph, rows
from transduce.kernels.cuda import search as gpu_search
from transduce.kernels.cuda.backend import GpuTraining
from transduce.kernels.cuda.decode_graph import GpuState, why_not_triton
from transduce.kernels.cuda.search import GpuSearch
from transduce.kernels.select import why_triton_fails
from transduce.kernels.training_executor import embed
from transduce.model.attention import AttentionTrace
from transduce.model.backend import Rows, add_gradients_to, using_backend
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import Dropout
from transduce.model.layers import EncoderLayer
from transduce.model.masks import PackedMask, Packing
from transduce.model.transformer import Transformer
from transduce.search.beam import BeamOptions, BeamSearch, beam_search
from transduce.search.greedy import GreedySearch, greedy_search, take_argmax
from transduce.search.scorer import Hypothesis, Search, SequenceLimits, run_search
from transduce.tasks.kinds.translation import TranslationObjective
from transduce.training import prefetch
from transduce.training.lora import LowRankSettings, adapt
from transduce.training.optimizer import FlatOptimizer
from transduce.training.prefetch import recording_disabled
from transduce.training.settings import OptimizerName, ResolvedTraining

if DEVICE == "cpu":
    import triton.language as tl
    from triton.runtime import interpreter

    gc.set_threshold(50_000, 10, 10)  # the interpreter's many small objects need not be looked at so often
    _patch_lang = interpreter._patch_lang

    @cache
    def patch_once(*languages: ModuleType) -> SimpleNamespace:
        """Replace the functions of Triton's language by interpreted ones, for good.

        Triton replaces and restores them at each call of a kernel, and of a function in a kernel: 40 % of the time.
        """
        _patch_lang(SimpleNamespace(__globals__={each.__name__: each for each in languages}))
        return SimpleNamespace(restore=lambda: None)

    @cache
    def patch_languages_of(function: Any) -> SimpleNamespace:
        return patch_once(*(each for each in (tl, tl.core) if each in function.__globals__.values()))

    interpreter._patch_lang = patch_languages_of
    # The interpreter computes overflows of integers, but reports none: it does so only when it debugs.
    assert not interpreter.interpreter_builder.options.debug
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    _numpy_dtype, _dtypes = interpreter._get_np_dtype, dict[str, Any]()

    def numpy_dtype(dtype: Any) -> Any:
        """Return the NumPy type of an element of a Triton type; Triton makes a table of all types at each call."""
        element = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if element.name not in _dtypes:
            _dtypes[element.name] = _numpy_dtype(element)
        return _dtypes[element.name]

    interpreter._get_np_dtype = numpy_dtype
    _make_block_type, _shapes = tl.block_type.__init__, dict[Any, dict[str, Any]]()
    _scalar_shape = {"shape": tl.tuple([]), "numel": tl.constexpr(1)}

    def make_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        """Initialize a block's type; types of one shape share what describes it, which Triton makes for each tensor."""
        key = element_ty.name, *(size.value if isinstance(size, tl.constexpr) else size for size in shape)
        if key not in _shapes:
            _make_block_type(self, element_ty, shape)
            sizes = {"shape": tl.tuple([tl.constexpr(size) for size in self.shape]), "numel": tl.constexpr(self.numel)}
            _shapes[key] = {"shape": self.shape, "numel": self.numel, "name": self.name, "of_tensor": sizes}
        self.__dict__.update(_shapes[key], element_ty=element_ty)

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        """Initialize a tensor, whose shape is shared with all others of its type."""
        shape = type.of_tensor if isinstance(type, tl.block_type) else _scalar_shape
        self.__dict__.update(shape, handle=handle, type=type, dtype=type.scalar)

    tl.block_type.__init__, tl.tensor.__init__ = make_block_type, make_tensor

KERNELS = GpuTraining(DEVICE)
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 0.03, "atol": 0.03}}
# Triton's interpreter multiplies the bits of bfloat16 numbers as integers.
GEMM_DTYPES = [torch.float32, *([torch.bfloat16] if DEVICE == "cuda" else [])]


def randn(*shape: int, dtype: torch.dtype = torch.float32, learns: bool = False) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_(learns)


def compare(found: Sequence[Tensor], expected: Sequence[Tensor], **bounds: float) -> None:
    for one, other in zip(found, expected, strict=True):
        own = bounds or CLOSE[other.dtype]
        torch.testing.assert_close(one, other, rtol=own["rtol"], atol=own["atol"])


# --- rows ---


def check_norms() -> None:
    for dtype, (count, width) in itertools.product(CLOSE, ((37, 48), (9, 1030))):
        x, weight, bias = (
            randn(count, width, dtype=dtype, learns=True),
            *(randn(width, dtype=dtype, learns=True) for _ in range(2)),
        )
        gradient = randn(count, width, dtype=dtype)
        for inputs in ((x, weight, bias), (x, weight)):
            if len(inputs) == 3:
                found, expected = rows.residual_norm(*inputs, 1e-5)[1], F.layer_norm(x, (width,), weight, bias, 1e-5)
            else:
                found, expected = rows.residual_norm(*inputs, None, 1e-5)[1], F.rms_norm(x, (width,), weight, 1e-5)
            slopes = (torch.autograd.grad(each, inputs, gradient) for each in (found, expected))
            bounds = {"rtol": 0.03, "atol": 0.25} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
            compare([found, *next(slopes)], [expected, *next(slopes)], **bounds)


def check_residual_norm_adds_both_gradients() -> None:
    x, weight, bias = randn(9, 64, learns=True), randn(64, learns=True), randn(64, learns=True)
    kept, found = rows.residual_norm(x, weight, bias, 1e-5)
    torch.testing.assert_close(kept, x)
    expected = F.layer_norm(x, (64,), weight, bias, 1e-5)
    one, other = randn(9, 64), randn(9, 64)
    both = torch.autograd.grad((kept, found), x, (one, other))
    compare(both, torch.autograd.grad((x * 1.0, expected), x, (one, other)))
    kept, _ = rows.residual_norm(x, weight, bias, 1e-5)
    compare(torch.autograd.grad(kept, x, one), [one])


def check_dropout() -> None:
    for dtype in CLOSE:
        x, residual = torch.ones(300, 101, device=DEVICE, dtype=dtype, requires_grad=True), randn(300, 101, dtype=dtype)
        torch.manual_seed(5)
        dropped = rows.drop_and_add(None, x, 64)
        kept = dropped != 0
        assert abs(kept.float().mean().item() - 0.75) < 0.01
        torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 256 / 192))
        (slope,) = torch.autograd.grad(dropped, x, torch.ones_like(x))
        torch.testing.assert_close(slope, dropped)  # the backward pass drops the same elements
        torch.manual_seed(5)
        compare([rows.drop_and_add(residual, x, 64)], [residual + dropped])
        assert not torch.equal(rows.drop_and_add(None, x, 64), dropped)  # the next call drops other elements


def check_dropped_elements_are_independent() -> None:
    x = torch.ones(1 << 16, device=DEVICE)
    for _ in range(4):
        kept = (rows.drop_and_add(None, x, 128) != 0).float() * 2 - 1
        for distance in (1, 2, 4, 7, 8, 64, 1024):
            assert abs((kept[distance:] * kept[:-distance]).mean().item()) < 0.025  # six standard deviations


def check_sums_of_rows() -> None:
    for dtype, count, width in itertools.product(CLOSE, (1, 300), (20, 256)):
        x, kept = randn(count, width, dtype=dtype), randn(count, width, dtype=dtype)
        compare([rows.sum_rows(x)], [x.float().sum(dim=0)], rtol=1e-3, atol=1e-3)
        total = torch.ones(width, device=DEVICE)
        expected = torch.where(kept > 0, x, 0.0).to(dtype)
        compare(
            [rows.add_sum_of_rows(x, total, kept), total],
            [expected, 1 + expected.float().sum(dim=0)],
            rtol=1e-3,
            atol=1e-3,
        )


def check_rows_are_added_at_their_indices() -> None:
    total, ids, part = torch.zeros(5, 24, device=DEVICE), torch.tensor([1, 4, 1, 0, 2], device=DEVICE), randn(5, 24)
    rows.add_rows_in_place(total, ids, part, 2.0, frozen_row=4)
    expected = torch.zeros_like(total).index_add_(0, ids, part, alpha=2.0)
    expected[4] = 0.0
    compare([total], [expected])


def check_softmax() -> None:
    for dtype, width in itertools.product(CLOSE, (37, 1000, 5000)):
        logits = randn(6, width, dtype=dtype) * 4
        expected = logits.float().clone()
        normalizers = rows.softmax_(logits)
        compare([normalizers], [expected.logsumexp(dim=-1)], rtol=1e-4, atol=1e-4)
        compare([logits], [expected.softmax(dim=-1).to(dtype)], rtol=0.01, atol=1e-4)


def check_the_trial_detects_wrong_results() -> None:
    assert why_triton_fails(DEVICE) is None
    with mock.patch.object(rows, "add_and_norm", lambda x, y, *_: (x + y, x)):
        assert why_triton_fails(DEVICE) == "triton's kernels give wrong results on it"
    with mock.patch.object(rows, "add_and_norm", side_effect=RuntimeError("no ptxas\nat all")):
        assert why_triton_fails(DEVICE) == "triton fails on it: no ptxas"


# --- linear layers ---


def check_linear_layers() -> None:
    for dtype, activation, part in itertools.product(CLOSE, (None, "relu"), (None, Rows(8, 24))):
        x, weight, bias = (
            randn(2, 7, 16, dtype=dtype, learns=True),
            *(randn(*shape, dtype=dtype, learns=True) for shape in ((40, 16), (40,))),
        )
        chosen = slice(*(part or (0, 40)))
        for inputs in ((x, weight, bias), (x, weight)):
            found = backend.linear(x, weight, bias if len(inputs) == 3 else None, part, activation=activation)
            expected = F.linear(x, weight[chosen], bias[chosen] if len(inputs) == 3 else None)
            expected = F.relu(expected) if activation else expected
            gradient = torch.randn_like(found)
            slopes = (torch.autograd.grad(each, inputs, gradient) for each in (found, expected))
            compare(
                [found, *next(slopes)],
                [expected, *next(slopes)],
                rtol=0.03,
                atol=1e-4 if dtype == torch.float32 else 0.1,
            )


def check_gradients_are_added_to_their_buffers() -> None:
    weight, bias = nn.Parameter(randn(8, 16)), nn.Parameter(randn(8))
    sums = torch.zeros(8, 16, device=DEVICE), torch.zeros(8, device=DEVICE)
    for parameter, total in zip((weight, bias), sums, strict=True):
        add_gradients_to(parameter, total)
    x, gradient = randn(5, 16), randn(5, 8)
    for _ in range(2):
        backend.linear(x, weight, bias, None).backward(gradient)
    assert weight.grad is None
    assert bias.grad is None
    compare(sums, [2 * gradient.t() @ x, 2 * gradient.sum(dim=0)])


def check_embedding() -> None:
    weight, ids = randn(9, 16, learns=True), torch.tensor([[1, 8, 0], [1, 1, 3]], device=DEVICE)
    found, expected = embed(KERNELS, ids, weight, 4.0, 0), F.embedding(ids, weight, padding_idx=0) * 4.0
    gradient = torch.randn_like(found)
    slopes = (torch.autograd.grad(each, weight, gradient)[0] for each in (found, expected))
    compare([found, next(slopes)], [expected, next(slopes)])


# --- attention ---


def packing(counts: Sequence[int]) -> Packing:
    sizes = torch.tensor(counts, dtype=torch.int32, device=DEVICE)
    positions = torch.cat([torch.arange(count) for count in counts]).to(DEVICE)
    return Packing((sizes.cumsum(0) - sizes).to(torch.int32), sizes, positions, max(counts))


def attend_by_sentence(own: Tensor, others: Tensor | None, mask: PackedMask, heads: int) -> Tensor:
    """Return the attention among packed sentences, computed by PyTorch sentence by sentence."""
    inner = own.shape[-1] // (3 if others is None else 1)
    found = []
    for number in range(len(mask.queries.starts)):
        first, count = int(mask.queries.starts[number]), int(mask.queries.counts[number])
        first_key, keys = int(mask.keys.starts[number]), int(mask.keys.counts[number])
        query = own[0, first : first + count, :inner]
        known = own[0, first : first + count, inner:] if others is None else others[0, first_key : first_key + keys]
        parts = (query, known[:, :inner], known[:, inner:])
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(0, 1).float() for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=mask.causal)
        found.append(attended.transpose(0, 1).flatten(1))
    return torch.cat(found)[None].to(own.dtype)


def check_attention_among_packed_sentences() -> None:
    queries, keys = packing([3, 1, 70, 5]), packing([4, 2, 7, 33])
    for dtype, width in itertools.product(GEMM_DTYPES, (16, 32)):
        inner = 2 * width
        for causal, has_memory in ((True, False), (False, False), (False, True)):
            own = randn(1, 79, inner if has_memory else 3 * inner, dtype=dtype, learns=True)
            memory = randn(1, 46, 2 * inner, dtype=dtype, learns=True) if has_memory else None
            mask = PackedMask(queries, keys if has_memory else queries, causal)
            found = KERNELS.packed.attend(own, memory, mask, 2)
            expected = attend_by_sentence(own, memory, mask, 2)
            inputs = [own] if memory is None else [own, memory]
            gradient = torch.randn_like(found)
            slopes = (torch.autograd.grad(each, inputs, gradient) for each in (found, expected))
            compare([found, *next(slopes)], [expected, *next(slopes)], **CLOSE[dtype])


# --- updates ---


def check_updates() -> None:
    size, numbers = 1500, AdamScalars(0.5, 0.9, 0.98, 0.01, 1.3, 1e-9)
    for has_average, has_working in itertools.product((False, True), repeat=2):
        master, gradient, mean = (randn(size) for _ in range(3))
        square = randn(size).abs()
        average = randn(size) if has_average else None
        working = randn(size, dtype=torch.bfloat16) if has_working else None
        slope, before = gradient * 0.5, average
        first, second = 0.9 * mean + 0.1 * slope, 0.98 * square + 0.02 * slope * slope
        expected = master - 0.01 * first / (second.sqrt() * 1.3 + 1e-9)
        averaged = None if before is None else before + (expected - before) * 0.25
        vectors = UpdatedVectors(master, gradient, average, working)
        backend.update_by_adam(vectors, (mean, square), numbers, 0.75)
        compare([master, mean, square, gradient], [expected, first, second, torch.zeros_like(gradient)])
        if average is not None and averaged is not None:
            compare([average], [averaged])
        if working is not None:
            compare([working], [master.to(torch.bfloat16)], rtol=0.01, atol=0.0)  # the interpreter cuts off
        moved, before = 0.9 * master - 0.1 * first, None if average is None else average.clone()
        backend.apply_update(vectors, 0.75, first, 0.1, 0.9)
        compare([master], [moved])
        if average is not None and before is not None:
            compare([average], [before + (moved - before) * 0.25])


def check_momentum() -> None:
    gradient, momentum = randn(1500), randn(1500)
    for dtype in CLOSE:
        known = 0.9 * momentum + 0.1 * 0.5 * gradient
        expected, out = 0.9 * known + 0.1 * 0.5 * gradient, randn(1500, dtype=dtype)
        backend.update_momentum(gradient, momentum, out, 0.5, 0.9)
        compare([momentum], [known])
        compare([out], [expected.to(dtype)])


# --- training ---


def padded(generator: np.random.Generator, sentences: int, longest: int) -> NDArray[np.int64]:
    ids = generator.integers(3, 50, (sentences, longest))
    for row, count in enumerate(generator.integers(2, longest + 1, sentences)):
        ids[row, count - 1], ids[row, count:] = 1, 0
    return ids


def small_config(**changes: Any) -> ModelConfig:
    sizes = {"d_model": 32, "d_ff": 48, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    vocabularies = {"source_vocabulary_size": 50, "target_vocabulary_size": 50, "pad_id": 0, "eos_id": 1}
    return ModelConfig(**{**sizes, **vocabularies, "dropout": 0.0, **changes})


def training_settings(optimizer: OptimizerName) -> ResolvedTraining:
    return ResolvedTraining(
        seed=1, steps=10, minutes=None, batch_tokens=64, accumulate=1, optimizer=optimizer, learning_rate=0.01,
        schedule="linear", warmup_steps=0, beta1=0.9, beta2=0.98, epsilon=1e-3, weight_decay=0.0, clip_norm=1.0,
        label_smoothing=0.1, precision="fp32", kernels="torch", cuda_graphs=False, average_decay=0.9,
        adapt_dropout=False, report_every=5, validate_every=None, save_every=None, best_by="loss",
        patience=0, translate_dev=0, keep_checkpoints=1,
    )  # fmt: skip


def losses(
    kernels: GpuTraining | None,
    config: ModelConfig,
    optimizer: OptimizerName,
    *,
    steps: int = 3,
    cuda_graphs: bool = False,
    adapted: bool = False,
) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses of some steps and of a validation after them, and the weights."""
    generator = np.random.default_rng(3)
    batches = [
        Batch(source, target, np.arange(4), int((source != 0).sum()), int((target != 0).sum()))
        for source, target in ((padded(generator, 4, 6), padded(generator, 4, 8)) for _ in range(2))
    ]
    torch.manual_seed(3)
    model = Transformer(config).to(DEVICE).train()
    if adapted:
        adapt(model, LowRankSettings(rank=4))
    owner = FlatOptimizer(model, training_settings(optimizer), GEMM_DTYPES[-1] if adapted else torch.float32)
    objective, found = TranslationObjective(model, label_smoothing=0.1, cuda_graphs=cuda_graphs), []
    with using_backend(kernels):
        for number in range(steps):
            owner.begin_batch(last=True)
            torch.manual_seed(number)
            if number % 2:
                objective.prefetch(batches[1])
            loss = objective.loss(batches[number % 2])
            loss.total.backward()
            owner.finish_batch()
            found += [loss.total.item(), loss.negative_log_likelihood.item(), owner.step(loss.tokens, 0.01)]
        model.eval()
        with torch.inference_mode():
            found.append(objective.loss(batches[0]).total.item())
    return found, owner.weights_to_keep()


def check_training() -> None:
    variants: list[tuple[OptimizerName, dict[str, Any]]] = [
        ("adam", {}),
        ("muon", {"norm_order": "post"}),
        ("muon", {"norm": "rms", "bias": False, "activation": "swiglu"}),
        (
            "adam",
            {
                "positions": "learned",
                "max_positions": 20,
                "output_bias": True,
                "share_layers": True,
                "num_decoder_layers": 2,
            },
        ),
        ("adam", {"norm": "batch", "final_norm": False}),
        ("adam", {"positions": "relative"}),  # does not support packed sentences
    ]
    for optimizer, changes in variants:
        config = small_config(**changes)
        found, expected = (losses(kernels, config, optimizer) for kernels in (KERNELS, None))
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
        for name, weight in expected[1].items():
            torch.testing.assert_close(found[1][name], weight, rtol=1e-3, atol=1e-3)


def check_whole_layers_equal_their_components() -> None:
    variants: list[dict[str, Any]] = [
        {"dropout": 0.25, "num_decoder_layers": 2},
        {"dropout": 0.25, "norm_order": "post"},
        {"norm": "rms", "bias": False, "share_layers": True, "num_decoder_layers": 2, "num_encoder_layers": 2},
    ]
    for changes in variants:
        config = small_config(**changes)
        layers: list[Tensor] = []

        def run_layer(*arguments: Any, seen: list[Tensor] = layers) -> Tensor | None:
            found = backend.run_layer(*arguments)
            seen.extend([] if found is None else [found])
            return found

        with mock.patch.object(GpuTraining, "run_layer", staticmethod(run_layer)):
            found = losses(KERNELS, config, "adam", steps=2)
        assert len(layers) == 2 * (config.num_encoder_layers + config.num_decoder_layers)  # of each step
        with mock.patch.object(GpuTraining, "run_layer", return_value=None):
            expected = losses(KERNELS, config, "adam", steps=2)
        if DEVICE == "cpu":  # sums have a fixed order
            assert found[0] == expected[0]
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
        for name, weight in expected[1].items():
            torch.testing.assert_close(found[1][name], weight, rtol=1e-4, atol=1e-4)


def pretend_to_record(loss: Any, pool: object, read: object) -> None:  # noqa: ARG001
    """Replace recording where there is no GPU: each replay computes the loss anew, into the same tensors."""
    there: list[Tensor] = []

    def play() -> None:
        found = loss.launch()
        there[:] = found[:1]
        for place, each in zip(loss._out, found, strict=True):
            place.copy_(each.detach())

    loss._out = torch.zeros(()), torch.zeros(())
    loss._graphs = mock.Mock(replay=play), mock.Mock(replay=lambda: there.pop().backward(loss._slope))


@contextmanager
def recording() -> Iterator[list[object]]:
    """Record losses within the context and list the recorded ones; without a GPU, recording is simulated."""
    recorded: list[object] = []
    record = backend._RecordedLoss.record if DEVICE == "cuda" else pretend_to_record

    def note(loss: Any, *arguments: Any) -> None:
        recorded.append(loss)
        record(loss, *arguments)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(backend._RecordedLoss, "record", note))
        if DEVICE == "cpu":
            patches.enter_context(mock.patch.object(backend, "can_record", return_value=True))
            patches.enter_context(mock.patch.object(backend, "_has_free_memory", return_value=True))
            patches.enter_context(mock.patch.object(torch.cuda, "graph_pool_handle", return_value=(0, 0)))
        yield recorded


def check_recorded_steps_equal_unrecorded_ones() -> None:
    variants: list[tuple[OptimizerName, dict[str, Any]]] = [
        ("adam", {"dropout": 0.25, "norm": "rms", "bias": False, "activation": "swiglu", "output_bias": True}),
        ("muon", {"dropout": 0.25, "norm_order": "post", "positions": "learned", "max_positions": 12}),
    ]
    for (optimizer, changes), adapted in [*((each, False) for each in variants), (("adam", {"dropout": 0.25}), True)]:
        config = small_config(**changes)
        with recording() as recorded:
            found = losses(KERNELS, config, optimizer, steps=4, cuda_graphs=True, adapted=adapted)
        assert 1 <= len(recorded) <= 2
        expected = losses(KERNELS, config, optimizer, steps=4, adapted=adapted)
        rough = adapted and DEVICE == "cuda"  # in bfloat16
        np.testing.assert_allclose(found[0], expected[0], rtol=0.02 if rough else 1e-4)
        for name, weight in expected[1].items():
            bound = 0.02 if rough else 1e-3
            torch.testing.assert_close(found[1][name], weight, rtol=bound, atol=bound)


def check_replays_use_current_inputs_and_settings() -> None:
    """Check a replay with another gradient factor or dropout rate, and errors if losses are used in a wrong order."""
    generator = np.random.default_rng(3)
    batch = Batch(padded(generator, 4, 6), target := padded(generator, 4, 8), np.arange(4), 9, int((target != 0).sum()))
    model = Transformer(small_config(dropout=0.5)).to(DEVICE).train()
    owner = FlatOptimizer(model, training_settings("adam"), torch.float32)
    objective, gradients = TranslationObjective(model, label_smoothing=0.1, cuda_graphs=True), []

    def gradient(factor: float) -> Tensor:
        torch.manual_seed(4)
        (objective.loss(batch).total * factor).backward()
        found = owner.gradient.clone()
        owner.discard_gradient()
        return found

    with using_backend(KERNELS), recording() as recorded:
        gradients = [gradient(factor) for factor in (1.0, 1.0, 3.0, math.nan, 1.0)]
        compare(gradients[1:3] + gradients[4:], [gradients[0], 3.0 * gradients[0], gradients[0]], rtol=1e-4, atol=1e-5)
        assert bool(gradients[3].isnan().any())
        assert len(recorded) == 1
        first, second = objective.loss(batch), objective.loss(batch)
        with pytest.raises(RuntimeError, match="are gone"):
            first.total.backward()
        second.total.backward()
        with pytest.raises(RuntimeError, match="are gone"):
            second.total.backward()
        owner.discard_gradient()
        objective.prefetch(batch)
        with mock.patch.object(prefetch, "pack_arrays", side_effect=AssertionError):  # the batch is packed already
            compare([gradient(1.0)], [gradients[0]], rtol=1e-4, atol=1e-5)
        with recording_disabled():
            compare([gradient(1.0)], [gradients[0]], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(
            objective.loss(batch).total, objective.loss(batch).total
        )  # other elements are dropped
        for module in model.modules():
            if isinstance(module, Dropout):
                module.p = 0.0
        plain = [objective.loss(batch).total for _ in range(3)]
        torch.testing.assert_close(plain[0], plain[2])
        assert len(recorded) == 2
        with torch.no_grad():
            torch.testing.assert_close(objective.loss(batch).total, plain[0].detach(), rtol=1e-5, atol=1e-5)


def check_what_cannot_be_recorded_is_launched() -> None:
    weight = torch.ones((), device=DEVICE, requires_grad=True)

    def compute(numbers: Tensor) -> tuple[Tensor, Tensor]:
        if len(numbers) == 3:
            numbers.sum().item()  # waits for a result, which is impossible while recording
        return numbers.sum() * weight, numbers[0]

    def refuse(loss: Any, pool: object, read: object) -> None:
        if len(loss._inputs) - rows.MAX_SEEDS == 3:
            raise RuntimeError("it waits\nfor something")
        pretend_to_record(loss, pool, read)

    with recording(), mock.patch.object(backend._LOG, "warning") as warning, ExitStack() as patches:
        if DEVICE == "cpu":
            patches.enter_context(mock.patch.object(backend._RecordedLoss, "record", refuse))
        recorder = backend.GpuLossRecorder(nn.Linear(1, 1).to(DEVICE))
        for size in (2, 2, 2, 3, 3, 3, 2, 2):
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad.zero_()
            total, _ = recorder(size, np.arange(size) + 1, compute)
            total.backward()
            assert total.item() == size * (size + 1) / 2
            compare([weight.grad], [total.detach()])
    warning.assert_called_once()
    torch.randn(3, device=DEVICE)  # the device still works
    assert (DEVICE == "cuda") or warning.call_args.args[-1] == "it waits"


def check_nothing_is_recorded_if_memory_is_scarce() -> None:
    weight = torch.ones((), device=DEVICE, requires_grad=True)

    def compute(numbers: Tensor) -> tuple[Tensor, Tensor]:
        return numbers.sum() * weight, numbers[0]

    with (
        recording() as recorded,
        mock.patch.object(backend, "_has_free_memory", return_value=False),
        mock.patch.object(backend._LOG, "warning") as warning,
    ):
        recorder = backend.GpuLossRecorder(nn.Linear(1, 1).to(DEVICE))
        for _ in range(3):
            total, _likelihood = recorder(2, np.arange(2) + 1, compute)
            assert total.item() == 3
    assert recorded == []
    warning.assert_called_once()
    # Steps need 300 - 100 = 200 bytes in addition to allocated memory, so twice as much must be free.
    sizes = {"max_memory_allocated": 300, "memory_allocated": 100}
    for free, has_room in ((399, False), (400, True)):
        with ExitStack() as patches:
            for name, found in {**sizes, "mem_get_info": (free, 1000)}.items():
                patches.enter_context(mock.patch.object(torch.cuda, name, return_value=found))
            assert backend._has_free_memory(torch.device("cuda")) is has_room


def check_more_dropouts_than_there_are_seeds() -> None:
    many = torch.arange(3, device=DEVICE)
    with rows.seeds_from_buffer(many):
        assert [int(rows.next_seed()) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RuntimeError, match="there are seeds for 1024 dropouts, but the model has more"):
            rows.next_seed()


def check_a_limited_number_of_sizes_is_kept() -> None:
    def compute(numbers: Tensor) -> tuple[Tensor, Tensor]:
        return numbers.sum() * torch.ones((), device=DEVICE, requires_grad=True), numbers[0]

    with recording() as recorded, mock.patch.object(backend, "_MAX_SIZES", 2):
        recorder = backend.GpuLossRecorder(nn.Linear(1, 1).to(DEVICE))
        for size in (1, 2, 1, 3, 1, 2):  # the third size evicts the second
            total, negative_log_likelihood = recorder(size, np.arange(size) + 1, compute)
            assert (total.item(), negative_log_likelihood.item()) == (size * (size + 1) / 2, 1.0)
        assert len(recorded) == 1


def check_backward_uses_the_dropout_of_the_forward_pass() -> None:
    x, mask, slopes = randn(1, 4, 32, learns=True), PackedMask(packing([4]), packing([4])), []
    torch.manual_seed(5)
    layer = EncoderLayer(small_config(dropout=0.25)).to(DEVICE)
    for parameter in layer.parameters():
        add_gradients_to(parameter, torch.zeros_like(parameter))
    for turns_off in (False, True):
        layer.train()
        torch.manual_seed(6)
        found = backend.run_layer(layer, x, None, [mask])
        assert found is not None
        layer.train(not turns_off)
        slopes.append(torch.autograd.grad(found.square().sum(), x)[0])
    compare(slopes[:1], slopes[1:])


def check_other_components_run_as_modules() -> None:
    x, mask = randn(1, 4, 32), PackedMask(packing([4]), packing([4]))
    for changes in ({"activation": "gelu"}, {"activation": "swiglu"}, {"norm_order": "sandwich"}):
        layer = EncoderLayer(small_config(**changes)).to(DEVICE).train()
        assert backend.run_layer(layer, x, None, [mask]) is None  # gradients have no buffers
        for parameter in layer.parameters():
            add_gradients_to(parameter, torch.zeros_like(parameter))
        assert backend.run_layer(layer, x, None, [mask]) is None
    layer = EncoderLayer(small_config()).to(DEVICE).train()
    for parameter in layer.parameters():
        add_gradients_to(parameter, torch.zeros_like(parameter))
    found = backend.run_layer(layer, x, None, [mask])
    assert found is not None
    found.sum().backward()
    with pytest.raises(RuntimeError, match="was taken before: compute it again"):
        found.sum().backward()
    next(layer.parameters()).register_hook(lambda gradient: gradient)  # a hook must see the gradient
    assert backend.run_layer(layer, x, None, [mask]) is None


# --- decoding ---


def decoder(**changes: Any) -> tuple[Transformer, Tensor]:
    torch.manual_seed(1)
    model = Transformer(small_config(**changes)).to(DEVICE).eval()
    source = torch.tensor([[5, 6, 7, 1, 0], [8, 9, 1, 0, 0], [3, 4, 5, 6, 1], [3, 1, 0, 0, 0]], device=DEVICE)
    return model, source


def compare_decoding(model: Transformer, source: Tensor, widths: Sequence[int], steps: int) -> None:
    """Compare the decoding kernels with the reference over random steps.

    Args:
        model: the model.
        source: the source ids, (B, S).
        widths: the numbers of hypotheses per sentence, each for an equal share of the steps.
        steps: the number of steps; after the fourth and the tenth, the first sentence is removed.
    """
    expected, found = model.start(source), GpuState(model, source)
    generator, count, width = torch.Generator().manual_seed(len(widths)), len(source), 1
    for step in range(steps):
        pieces = torch.randint(2, 50, (count, width), generator=generator).to(DEVICE)
        torch.testing.assert_close(found.step(pieces), expected.step(pieces), rtol=1e-4, atol=1e-5)
        if len(widths) > 1 or widths[0] > 1:
            wider = widths[step * len(widths) // steps]
            parents = torch.randint(0, width, (count, wider), generator=generator).to(DEVICE)
            expected.reorder(parents)
            found.reorder(parents)
            width = wider
        if step in (3, 9):
            staying = torch.arange(count, device=DEVICE)[1:]
            expected.keep_sentences(staying)
            found.keep_sentences(staying)
            count = len(staying)


@torch.inference_mode()
def check_decoding() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"norm_order": "post"},
        {"norm": "rms", "bias": False},
        {"activation": "swiglu", "share_layers": True, "num_decoder_layers": 2},
        {"positions": "learned", "max_positions": 90},
    ]
    for changes in variants:
        model, source = decoder(**changes)
        assert why_not_triton(model) is None
        for widths in ((1,), (1, 3, 5), (1,)) if not changes else ((1, 3),):
            compare_decoding(model, source, widths, 16 if DEVICE == "cuda" else 11)


@torch.inference_mode()
def check_long_outputs_move_into_larger_buffers() -> None:
    model, source = decoder()
    if DEVICE == "cuda":
        compare_decoding(model, source, (1,), 70)
        compare_decoding(model, source, (9,), 32)
        return
    with mock.patch.object(decode_graph, "initial_capacity", lambda width: 4 * width):  # buffers grow after four tokens
        compare_decoding(model, source, (1,), 11)
        compare_decoding(model, source, (9,), 7)


@torch.inference_mode()
def check_buffers_are_used_again_and_released() -> None:
    model, source = decoder()
    for _ in range(3):
        compare_decoding(model, source, (1,), 5)
        gc.collect()
    sizes = [step.size for step in decode_graph._FREE_STEPS[model].free]
    assert len(sizes) == len(set(sizes)) == 1
    for parameter in model.parameters():  # other weights at other addresses
        parameter.data = parameter.data * 0.5
    compare_decoding(model, source, (1,), 5)
    del model
    gc.collect()
    assert not len(decode_graph._FREE_STEPS)


@torch.inference_mode()
def check_learned_positions_end() -> None:
    model, source = decoder(positions="learned", max_positions=12)
    state = GpuState(model, source)
    for _ in range(12):
        state.step(torch.full((4, 1), 5, device=DEVICE))
    with pytest.raises(TransduceError, match="learned positions end at 12 tokens"):
        state.step(torch.full((4, 1), 5, device=DEVICE))


@torch.inference_mode()
def check_unsupported_calls_are_refused() -> None:
    model, source = decoder()
    state = GpuState(model, source)
    with pytest.raises(ValueError, match="attention weights are not kept here"):
        state.step(torch.full((4, 1), 5, device=DEVICE), trace=AttentionTrace())
    state.step(torch.full((4, 1), 5, device=DEVICE))
    state.reorder(torch.zeros(4, 2, dtype=torch.int64, device=DEVICE))
    state.step(torch.full((4, 2), 5, device=DEVICE))
    state.reorder(torch.ones(4, 1, dtype=torch.int64, device=DEVICE))
    with pytest.raises(ValueError, match="hypotheses do not become one again here"):
        state.step(torch.full((4, 1), 5, device=DEVICE))


@torch.inference_mode()
def check_searches() -> None:
    model, source = decoder()
    model.output_weight.mul_(4.0)  # distinct probabilities
    longest = torch.full((4,), 12, device=DEVICE)
    common: dict[str, Any] = {"start_id": model.config.start_id, "eos_id": 1, "max_lengths": longest}
    searches: list[Callable[[EncoderDecoderScorer], Any]] = [
        lambda scorer: greedy_search(scorer, **common),
        lambda scorer: beam_search(scorer, beam_size=4, n_best=3, **common),
    ]
    for search in searches:
        results = []
        for state in (GpuState(model, source), model.start(source)):
            scorer = EncoderDecoderScorer(model, source)
            scorer.state = state
            results.append(search(scorer))
        for found, expected in zip(*results, strict=True):
            assert [each.ids for each in found] == [each.ids for each in expected]
            scores = ([each.score for each in side] for side in (found, expected))
            np.testing.assert_allclose(next(scores), next(scores), rtol=1e-4)


def random_search_model(ending: float, **changes: Any) -> Transformer:
    """Return a random model with distinct probabilities, whose logit of the end symbol is raised by `ending`."""
    torch.manual_seed(3)
    model = Transformer(small_config(output_bias=True, **changes)).to(DEVICE).eval()
    for parameter in model.parameters():
        parameter.mul_(2.5) if parameter.dim() > 1 else parameter.add_(torch.randn(parameter.shape).to(DEVICE) * 0.1)
    assert model.output_bias is not None
    model.output_bias[1] += ending
    return model


def compiled_search(model: Transformer, source: Tensor, longest: Sequence[int], beam: BeamOptions) -> CompiledSearch:
    """Return a search that runs as compiled kernels, each step recorded as one CUDA graph."""
    scorer = EncoderDecoderScorer(model, source)
    scorer.state = GpuState(model, source)
    limits = SequenceLimits(model.config.start_id, 1, torch.tensor(longest, device=DEVICE))
    found = find_compiled_search(scorer, limits, beam)
    assert found is not None
    return found


def reference_search(model: Transformer, source: Tensor, longest: Sequence[int], beam: BeamOptions) -> Search:
    """Return the equivalent search of the reference implementation."""
    scorer = EncoderDecoderScorer(model, source)
    scorer.state = model.start(source)
    limits = SequenceLimits(model.config.start_id, 1, torch.tensor(longest, device=DEVICE))
    if beam.beam_size == 1:
        return GreedySearch(scorer, limits, take_argmax, alpha=beam.alpha)
    return BeamSearch(scorer, limits, beam)


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [(each.ids, each.ended) for each in one] == [(each.ids, each.ended) for each in other]
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_allclose(
                mine.token_log_probabilities, theirs.token_log_probabilities, rtol=1e-3, atol=1e-4
            )


SENTENCES = [[5, 6, 7, 1, 0], [8, 9, 1, 0, 0], [3, 4, 5, 6, 1], [3, 1, 0, 0, 0], [9, 9, 9, 1, 0]]


@torch.inference_mode()
def check_compiled_search_equals_beam_search() -> None:
    source, longest = torch.tensor(SENTENCES, device=DEVICE), [3, 6, 8, 7, 1]
    large = {"target_vocabulary_size": 4700, "source_vocabulary_size": 4700}  # more than one block of the vocabulary
    cases = [
        (
            4.0,
            {},
            [
                BeamOptions(beam_size=1),
                BeamOptions(beam_size=3, n_best=2),
                BeamOptions(beam_size=4, n_best=4, alpha=1.0),
            ],
        ),
        (7.0, {}, [BeamOptions(beam_size=1), BeamOptions(beam_size=2, alpha=0.0)]),
        (
            6.0,
            {"positions": "learned", "max_positions": 9, **large},
            [BeamOptions(beam_size=1), BeamOptions(beam_size=2)],
        ),
    ]
    ended = 0
    for ending, changes, beams in cases:
        model = random_search_model(ending, **changes)
        for beam in beams:
            found = run_search(compiled_search(model, source, longest, beam))
            assert_same(found, run_search(reference_search(model, source, longest, beam)))
            ended += sum(each.ended for hypotheses in found for each in hypotheses)
    assert ended >= 10


@torch.inference_mode()
def check_a_search_with_nan_logits_ends() -> None:
    model, source = random_search_model(0.0), torch.tensor(SENTENCES[:2], device=DEVICE)
    assert model.output_bias is not None
    model.output_bias.fill_(math.nan)
    for (found,) in run_search(compiled_search(model, source, [3, 2], BeamOptions(beam_size=1))):
        assert all(0 <= piece < 50 for piece in found.ids)
    assert run_search(compiled_search(model, source, [3, 2], BeamOptions(beam_size=2))) == [[], []]
    assert run_search(reference_search(model, source, [3, 2], BeamOptions(beam_size=2))) == [[], []]


@torch.inference_mode()
def check_sentences_of_a_search_move_into_other_buffers() -> None:
    model, source = random_search_model(3.0), torch.tensor([SENTENCES[n % 5] for n in range(17)], device=DEVICE)
    with mock.patch.object(gpu_search, "initial_capacity", lambda width: 4 * width):  # buffers grow after four tokens
        for beam, few in ((BeamOptions(beam_size=1), 8), (BeamOptions(beam_size=3), 8)):
            longest = [1 + n % 3 for n in range(17)]
            longest[7] = longest[12] = 11
            with mock.patch.object(gpu_search, "_FEW_ROWS", few):
                search = compiled_search(model, source, longest, beam)
                found = run_search(search)
            assert_same(found, run_search(reference_search(model, source, longest, beam)))
            size = cast("GpuSearch", search.search)._step.size
            assert size.sentences < 17
            assert size.capacity > 4 * beam.beam_size


@torch.inference_mode()
def check_abandoned_sentences_leave_the_search() -> None:
    model, source, longest = random_search_model(3.0), torch.tensor(SENTENCES, device=DEVICE), [9, 9, 9, 9, 9]
    for beam in (BeamOptions(beam_size=1), BeamOptions(beam_size=3, n_best=2)):
        searches = compiled_search(model, source, longest, beam), reference_search(model, source, longest, beam)
        for step in range(4):
            for search in searches:
                search.advance(1)
            assert searches[0].sentence_indices.tolist() == searches[1].sentence_indices.tolist()
            torch.testing.assert_close(searches[0].hypotheses().to(DEVICE), searches[1].hypotheses())
            if step == 1:
                for search in searches:
                    search.abandon([search.sentence_indices.tolist()[0], 1000])
        assert_same(*(run_search(search) for search in searches))


def main() -> None:
    """Run all checks, and write the error of each (empty: none) by name to a JSON file."""
    found = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                torch.manual_seed(0)
                check()
                found[name] = ""
            except Exception as error:  # noqa: BLE001  (the test shows it)
                found[name] = "".join(traceback.format_exception(error))
    Path(sys.argv[1]).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
