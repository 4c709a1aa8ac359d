"""Test that the ONNX graphs compute the same as the model, for every component and all shapes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from transduce.exchange.comparison import ExportComparison
from transduce.inference.batching import pad
from transduce.inference.translator import Translator
from transduce.interop.components import ExportedModel, max_sequence_length
from transduce.interop.ctranslate2 import ctranslate2_obstacles
from transduce.interop.onnx import layers as onnx_layers
from transduce.interop.onnx.export import OnnxModel, onnx_obstacles, write_onnx
from transduce.model import layer_graph
from transduce.model.config import RotaryScaling

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'transduce[export]'")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'transduce[export]'")

MakeTranslator = Callable[..., Translator]
Compare = Callable[[Translator, ExportedModel], ExportComparison]

LLAMA_LIKE = {"positions": "rotary", "num_key_value_heads": 2, "norm": "rms", "activation": "swiglu", "bias": False}
BART_LIKE = {"norm_order": "post", "positions": "learned", "position_offset": 2, "embedding_norm": True}
SHAPES: list[dict[str, Any]] = [
    {},
    *({"norm_order": order} for order in ("post", "sandwich")),
    {"norm_order": "post", "final_norm": True},
    {"final_norm": False, "d_model": 8},
    *({"norm": norm} for norm in ("rms", "batch")),
    {"norm_epsilon": 1e-3},
    *({"activation": name} for name in ("gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh", "reglu")),
    {"bias": False},
    *({name: False} for name in ("projection_bias", "attention_output_bias", "feed_forward_bias")),
    {"positions": "learned"},
    {"positions": "rotary"},
    {"positions": "rotary-interleaved", "rotary_base": 500.0},
    {"positions": "rotary", "rotary_scaling": RotaryScaling(factor=4.0, original_length=16)},
    {"positions": "relative"},
    {"positions": "none"},
    {"position_offset": 2, "sinusoids_to_end": True},
    *({"attention_score": score} for score in ("dot", "general", "additive")),
    {"attention_kind": "hard"},
    {"attention": "query-key-norm", "num_key_value_heads": 2},
    {"attention_scale": 0.3},
    {"attention_window": 3},
    {"attention_window": 3, "positions": "relative"},
    *({"num_key_value_heads": heads} for heads in (1, 2)),
    {"d_k": 6, "d_v": 5},
    {"share_layers": True},
    {"tie_output": False},
    {"tie_source_target": False},
    {"scale_embeddings": False},
    {"output_scale": 0.25, "output_bias": True},
    {"start_id": 1, "zero_padding_row": False},
    LLAMA_LIKE,
    BART_LIKE,
]


def write_and_open(translator: Translator, folder: Path) -> OnnxModel:
    write_onnx(translator.transformer, folder)
    return OnnxModel(folder, threads=1)


@pytest.mark.parametrize("changes", SHAPES, ids=lambda changes: " ".join(map(str, changes.items())) or "default")
def test_log_probabilities_and_translations_equal_those_of_the_model(
    make_translator: MakeTranslator, compare: Compare, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Log-probabilities are computed for whole targets, translations token by token with the cache."""
    translator = make_translator(**changes)
    assert onnx_obstacles(translator.model.config) == []
    comparison = compare(translator, write_and_open(translator, tmp_path))
    comparison.check_equal("ONNX")
    assert comparison.agreement.same_translations == comparison.agreement.sentences == 12


def our_logits(translator: Translator, sources: list[list[int]], target_ids: NDArray[np.int64]) -> NDArray[Any]:
    source_ids = pad(sources, 0, torch.device("cpu"))
    with torch.no_grad():
        logits: NDArray[Any] = translator.model(source_ids, torch.from_numpy(target_ids)).numpy()
    return logits


@pytest.mark.parametrize("changes", [{}, LLAMA_LIKE, {"attention_window": 4}], ids=["default", "llama-like", "window"])
@pytest.mark.parametrize("portions", [[1, 1, 1, 1, 1, 1], [6], [2, 3, 1], [1, 5]])
def test_the_cache_may_be_filled_in_any_portions(
    make_translator: MakeTranslator, tmp_path: Path, changes: dict[str, Any], portions: list[int]
) -> None:
    translator = make_translator(**changes)
    model = write_and_open(translator, tmp_path)
    sources = [[4, 5, 6, 7, 8, 9, 10, 1], [11, 12, 1], [13, 1]]
    target_ids = np.array([[0, 20, 21, 22, 23, 24], [0, 9, 9, 9, 9, 9], [0, 7, 6, 5, 4, 3]], dtype=np.int64)
    memory, known = model.encode(sources), model.empty_caches(3)
    parts, first = [], 0
    for size in portions:
        logits, known = model.decode(target_ids[:, first : first + size], memory, known)
        parts.append(logits)
        first += size
    assert np.abs(np.concatenate(parts, axis=1) - our_logits(translator, sources, target_ids)).max() < 1e-4
    assert all(array.shape[2] == 6 for array in known.values())


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 40), (17, 3), (1, 300)])
def test_graphs_accept_any_batch_size_and_length(
    make_translator: MakeTranslator, tmp_path: Path, batch: int, length: int
) -> None:
    translator = make_translator()
    model = write_and_open(translator, tmp_path)
    sources = [[3 + (row + place) % 90 for place in range(length)] for row in range(batch)]
    target_ids = np.array([[0, *row[:-1]] for row in sources], dtype=np.int64)
    logits, _ = model.decode(target_ids, model.encode(sources), model.empty_caches(batch))
    assert logits.shape == (batch, length, translator.tokenizer.target.size)
    assert np.abs(logits - our_logits(translator, sources, target_ids)).max() < 1e-4


def test_hypotheses_are_reordered_by_indexing_the_cache(make_translator: MakeTranslator, tmp_path: Path) -> None:
    translator = make_translator()
    model = write_and_open(translator, tmp_path)
    memory = model.encode([[4, 5, 6, 1]] * 2)
    _, known = model.decode(np.array([[0, 9], [0, 8]], dtype=np.int64), memory, model.empty_caches(2))
    swapped = {name: array[[1, 0]] for name, array in known.items()}
    logits, _ = model.decode(np.array([[7], [7]], dtype=np.int64), memory, swapped)
    expected = our_logits(translator, [[4, 5, 6, 1]] * 2, np.array([[0, 8, 7], [0, 9, 7]], dtype=np.int64))
    assert np.abs(logits[:, 0] - expected[:, 2]).max() < 1e-4


def test_graphs_have_the_documented_inputs_outputs_and_metadata(
    make_translator: MakeTranslator, tmp_path: Path
) -> None:
    translator = make_translator(num_decoder_layers=2, positions="learned", max_positions=30, start_id=1)
    write_onnx(translator.transformer, tmp_path)
    encoder, decoder = (onnx.load(str(tmp_path / name)) for name in ("encoder.onnx", "decoder.onnx"))
    assert [given.name for given in encoder.graph.input] == ["source_ids"]
    memory = ["memory_mask", "memory_key.0", "memory_value.0", "memory_key.1", "memory_value.1"]
    assert [given.name for given in encoder.graph.output] == memory
    past = ["past_key.0", "past_value.0", "past_key.1", "past_value.1"]
    assert [given.name for given in decoder.graph.input] == ["target_ids", *memory, *past]
    outputs = [given.name for given in decoder.graph.output]
    assert outputs == ["logits", *(name.removeprefix("past_") for name in past)]
    assert {entry.key: entry.value for entry in decoder.metadata_props} == {
        "pad_id": "0",
        "eos_id": "1",
        "start_id": "1",
        "max_positions": "30",
        "kind": "transformer",
    }
    assert max_sequence_length(translator.model.config) == 30


def test_a_sequence_beyond_the_table_is_refused_rather_than_wrong(
    make_translator: MakeTranslator, tmp_path: Path
) -> None:
    model = write_and_open(make_translator(positions="learned", max_positions=12), tmp_path)
    assert len(model.encode([[5] * 12])["memory_mask"][0]) == 12
    with pytest.raises(Exception, match="out of data bounds"):
        model.encode([[5] * 13])


def test_weights_are_stored_once(make_translator: MakeTranslator, tmp_path: Path) -> None:
    sizes, vocabulary = [], make_translator().tokenizer.target.size
    for shared in (True, False):
        translator = make_translator(share_layers=shared, num_encoder_layers=4, num_decoder_layers=1, d_model=32)
        write_onnx(translator.transformer, tmp_path)
        sizes.append((tmp_path / "encoder.onnx").stat().st_size)
    one_layer = 4 * (4 * 32 * 32 + 2 * 32 * 24)
    assert 2.9 * one_layer < sizes[1] - sizes[0] < 3.6 * one_layer
    decoder = onnx.load(str(tmp_path / "decoder.onnx"))
    assert [list(weight.dims) for weight in decoder.graph.initializer].count([vocabulary, 32]) == 1
    assert [32, vocabulary] not in [list(weight.dims) for weight in decoder.graph.initializer]


def test_large_weights_are_stored_in_an_external_data_file(
    make_translator: MakeTranslator, compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_layers, "MAX_FILE_BYTES", 10_000)
    translator = make_translator()
    model = write_and_open(translator, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "decoder.onnx",
        "decoder.onnx.data",
        "encoder.onnx",
        "encoder.onnx.data",
    ]
    assert (tmp_path / "encoder.onnx").stat().st_size < 50_000
    compare(translator, model).check_equal("ONNX")


def test_a_setting_unknown_to_the_exporters_is_refused(
    make_translator: MakeTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_translator(output_scale=0.5).model.config
    assert onnx_obstacles(config) == ctranslate2_obstacles(config) == []
    monkeypatch.setattr(layer_graph, "SETTINGS", layer_graph.SETTINGS - {"output_scale"})
    assert onnx_obstacles(config) == ctranslate2_obstacles(config) == ["output_scale"]
