"""Test that ONNX graphs of language models, encoders and recurrent models compute the same at all shapes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transduce.exchange.comparison import (
    ExportComparison,
    OriginalEncoder,
    OriginalLanguageModel,
    compare_encoders,
    compare_models,
)
from transduce.inference.translator import Translator
from transduce.interop.components import ExportedModel
from transduce.interop.onnx.export import OnnxEncoder, OnnxLanguageModel, OnnxModel, onnx_obstacles, write_onnx
from transduce.model.build import Model
from transduce.model.config import RotaryScaling
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Decoder, Encoder

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'transduce[export]'")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'transduce[export]'")

MakeModel = Callable[..., Model]
MakeTranslator = Callable[..., Translator]
Compare = Callable[[Translator, ExportedModel], ExportComparison]

LLAMA_LIKE = {"positions": "rotary", "num_key_value_heads": 2, "norm": "rms", "activation": "swiglu", "bias": False}
BERT_LIKE = {"norm_order": "post", "positions": "learned", "embedding_norm": True, "activation": "gelu"}
ROWS = [[3 + (7 * row + 5 * place) % 190 for place in range(1 + 11 * row % 17)] for row in range(9)]


# --- language models ---


def opened(model: Decoder, folder: Path) -> OnnxLanguageModel:
    write_onnx(model, folder)
    return OnnxLanguageModel(folder, threads=1, unknown_id=2)


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned", "max_positions": 64, "activation": "gelu-tanh", "scale_embeddings": False},
        LLAMA_LIKE | {"rotary_scaling": RotaryScaling(factor=4.0, original_length=16)},
        {"positions": "rotary-interleaved", "norm_order": "post", "tie_output": False},
        {"positions": "relative", "norm_order": "sandwich", "output_bias": True},
        {"attention_window": 3, "share_layers": True, "output_scale": 0.5},
        {"attention_score": "additive", "norm": "batch"},
        {"attention": "query-key-norm", "positions": "rotary", "norm": "rms", "num_key_value_heads": 2},
    ],
    ids=str,
)
def test_a_language_model_computes_the_same_in_onnx(
    make_model: MakeModel, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Prompts of many lengths are in one batch, and are continued token by token with the cache."""
    model = make_model(kind="decoder", start_id=1, **changes)
    assert isinstance(model, Decoder)
    assert onnx_obstacles(model.config) == []
    own = OriginalLanguageModel(model, unknown_id=2, context=64)
    comparison = compare_models(own, opened(model, tmp_path), ROWS, tokens=range(3, 190), max_tokens=20)
    comparison.check_equal("ONNX")
    assert comparison.agreement.same_translations == len(ROWS)
    assert max(place.token for place in comparison.own_differences) >= 10


@pytest.mark.parametrize("portions", [[1, 1, 1, 1, 1, 1], [6], [2, 3, 1]])
def test_a_prompt_in_portions_has_the_logits_of_the_whole_prompt(
    make_model: MakeModel, tmp_path: Path, portions: list[int]
) -> None:
    model = make_model(kind="decoder", start_id=1, **LLAMA_LIKE)
    assert isinstance(model, Decoder)
    graph = opened(model, tmp_path)
    ids = np.array([[1, 20, 21, 22, 23, 24], [1, 9, 9, 9, 9, 9]], dtype=np.int64)
    known = {
        f"past_{side}.{layer}": np.zeros((2, 2, 0, 4), np.float32) for layer in range(3) for side in ("key", "value")
    }
    parts, first = [], 0
    for size in portions:
        end = first + size
        logits, known = graph.decode(ids[:, first:end], np.arange(end)[None].repeat(2, axis=0), known)
        parts.append(logits)
        first = end
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).numpy()
    assert np.abs(np.concatenate(parts, axis=1) - expected).max() < 1e-4
    assert all(array.shape[2] == 6 for array in known.values())


def test_inputs_outputs_and_metadata_of_a_language_model(make_model: MakeModel, tmp_path: Path) -> None:
    write_onnx(make_model(kind="decoder", start_id=1, num_decoder_layers=1), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    graph = onnx.load(str(tmp_path / "model.onnx"))
    assert [given.name for given in graph.graph.input] == ["ids", "positions", "past_key.0", "past_value.0"]
    assert [given.name for given in graph.graph.output] == ["logits", "key.0", "value.0"]
    metadata = {entry.key: entry.value for entry in graph.metadata_props}
    assert (metadata["kind"], metadata["eos_id"], metadata["start_id"]) == ("decoder", "1", "1")


# --- encoders ---


@pytest.mark.parametrize(
    ("changes", "outputs"),
    [
        (
            BERT_LIKE | {"output_bias": True, "token_types": 2, "num_labels": 3},
            ["states", "logits", "pooled", "classes"],
        ),
        (BERT_LIKE | {"masked_language_head": False, "pooler": True}, ["states", "pooled"]),
        (BERT_LIKE | {"num_labels": 3, "pooler_activation": "relu"}, ["states", "logits", "pooled", "classes"]),
        (BERT_LIKE | {"num_labels": 3, "pooler_activation": "gelu"}, ["states", "logits", "pooled", "classes"]),
        (LLAMA_LIKE, ["states", "logits"]),
        ({"positions": "relative", "tie_output": False, "output_scale": 0.5}, ["states", "logits"]),
        ({"attention_window": 3, "norm": "batch", "share_layers": True}, ["states", "logits"]),
        ({"masked_language_head": False, "norm_order": "sandwich", "attention_kind": "hard"}, ["states"]),
    ],
    ids=str,
)
def test_an_encoder_computes_the_same_in_onnx(
    make_model: MakeModel, tmp_path: Path, changes: dict[str, Any], outputs: list[str]
) -> None:
    model = make_model(kind="encoder", **changes)
    assert isinstance(model, Encoder)
    write_onnx(model, tmp_path)
    graph = onnx.load(str(tmp_path / "model.onnx"))
    assert [given.name for given in graph.graph.output] == outputs
    types = [[int(place > 3) for place in range(len(row))] for row in ROWS]
    theirs = OnnxEncoder(tmp_path, threads=1)
    comparison = compare_encoders(OriginalEncoder(model), theirs, ROWS, types)
    comparison.check_equal("ONNX")
    assert list(comparison.agreement.largest_differences) == outputs
    assert comparison.agreement.same_choices == len(ROWS)
    # A row by itself is what it was in a batch.
    alone = theirs.outputs(ROWS[3:4], types[3:4])["states"][0]
    assert np.abs(alone - theirs.outputs(ROWS, types)["states"][3]).max() < 1e-4


# --- recurrent models ---


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_score": "general"},
        {"recurrent_cell": "gru", "attention_score": "additive", "recurrent_attention": "bahdanau"},
        {"input_feeding": True, "recurrent_context": "mean", "recurrent_context_to": "both", "output_bias": True},
        {"recurrent_attention": "none", "recurrent_context": "last", "bidirectional": False},
        {"recurrent_self_attention": True, "recurrent_context_to": "steps", "attention_score": "dot"},
        {
            "recurrent_self_attention": True,
            "recurrent_cell": "gru",
            "recurrent_attention": "bahdanau",
            "attention_kind": "hard",
            "embedding_norm": True,
        },
        {"recurrent_cell": "gru", "bidirectional": False, "recurrent_context": "mean", "tie_output": False},
    ],
    ids=str,
)
def test_a_recurrent_model_computes_the_same_in_onnx(
    make_translator: MakeTranslator, compare: Compare, tmp_path: Path, changes: dict[str, Any]
) -> None:
    translator = make_translator(kind="recurrent", num_decoder_layers=2, **changes)
    assert onnx_obstacles(translator.model.config) == []
    write_onnx(translator.model, tmp_path)
    comparison = compare(translator, OnnxModel(tmp_path, threads=1))
    comparison.check_equal("ONNX")
    assert comparison.agreement.same_translations == comparison.agreement.sentences == 12


def test_recurrent_graphs_take_and_return_the_decoder_state(make_translator: MakeTranslator, tmp_path: Path) -> None:
    translator = make_translator(kind="recurrent", num_decoder_layers=1, attention_score="dot", input_feeding=True)
    assert isinstance(translator.model, Recurrent)
    write_onnx(translator.model, tmp_path)
    encoder, decoder = (onnx.load(str(tmp_path / name)) for name in ("encoder.onnx", "decoder.onnx"))
    state = ["hidden.0", "cell.0", "attentional"]
    given = ["memory_mask", "memory", *(f"past_{name}" for name in state)]
    assert [output.name for output in encoder.graph.output] == given
    assert sorted(each.name for each in decoder.graph.input) == sorted(["target_ids", *given])
    assert [output.name for output in decoder.graph.output] == ["logits", *state]


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 40), (17, 3)])
def test_recurrent_graphs_accept_any_batch_size_and_length(
    make_translator: MakeTranslator, tmp_path: Path, batch: int, length: int
) -> None:
    translator = make_translator(kind="recurrent", attention_score="general")
    write_onnx(translator.model, tmp_path)
    model = OnnxModel(tmp_path, threads=1)
    sources = [[*(3 + (row + place) % 90 for place in range(length)), 1] for row in range(batch)]
    target_ids = np.array([[0, *row[:-2]] for row in sources], dtype=np.int64)
    logits, _ = model.decode(target_ids, model.encode(sources), model.empty_caches(batch))
    with torch.no_grad():
        expected = translator.model(torch.tensor(sources), torch.from_numpy(target_ids)).numpy()
    assert np.abs(logits - expected).max() < 1e-4
