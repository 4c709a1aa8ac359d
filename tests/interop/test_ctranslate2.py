"""Test that CTranslate2 computes the same as the exported model, for every component that it supports."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.exchange.comparison import ExportComparison, OriginalLanguageModel, compare_models
from transduce.inference.translator import Translator
from transduce.interop.components import ExportedModel
from transduce.interop.ctranslate2 import (
    QUANTIZATIONS,
    CTranslate2LanguageModel,
    CTranslate2Model,
    ctranslate2_obstacles,
    write_ctranslate2,
)
from transduce.model.build import Model
from transduce.model.config import RotaryScaling
from transduce.model.transformer import Decoder
from transduce.text.tokenizer import Tokenizer

pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install 'transduce[export]'")

MakeModel = Callable[..., Model]
MakeTranslator = Callable[..., Translator]
Compare = Callable[[Translator, ExportedModel], ExportComparison]

LLAMA_LIKE = {"positions": "rotary", "num_key_value_heads": 2, "norm": "rms", "activation": "swiglu", "bias": False}
BART_LIKE = {"norm_order": "post", "positions": "learned", "position_offset": 2, "embedding_norm": True}
SHAPES: list[dict[str, Any]] = [
    {},
    *({"norm_order": order} for order in ("post", "sandwich")),
    {"final_norm": False, "d_model": 8},
    {"norm": "rms"},
    {"norm_epsilon": 1e-3},
    *({"activation": name} for name in ("gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh", "reglu")),
    {"bias": False},
    *({name: False} for name in ("projection_bias", "attention_output_bias", "feed_forward_bias")),
    {"positions": "learned"},
    {"positions": "rotary"},
    {"positions": "rotary-interleaved", "rotary_base": 500.0},
    {"positions": "relative"},
    {"positions": "none"},
    {"position_offset": 2, "sinusoids_to_end": True},
    {"attention_score": "dot"},
    {"attention_score": "general"},
    {"attention_scale": 0.3},
    *({"num_key_value_heads": heads} for heads in (1, 2)),
    {"d_k": 6, "d_v": 6},
    {"share_layers": True},
    {"tie_output": False},
    {"tie_source_target": False},
    {"scale_embeddings": False},
    {"output_scale": 0.25, "output_bias": True},
    {"start_id": 1, "zero_padding_row": False},
    LLAMA_LIKE,
    BART_LIKE,
]


def write_and_open(translator: Translator, folder: Path, quantization: str = "float32") -> CTranslate2Model:
    write_ctranslate2(translator.transformer, translator.tokenizer, folder, quantization=quantization)
    start_id = translator.model.config.start_id
    return CTranslate2Model(folder, translator.tokenizer, start_id=start_id, threads=1)


@pytest.mark.parametrize("changes", SHAPES, ids=lambda changes: " ".join(map(str, changes.items())) or "default")
def test_log_probabilities_and_translations_equal_those_of_the_model(
    make_translator: MakeTranslator, compare: Compare, tmp_path: Path, changes: dict[str, Any]
) -> None:
    translator = make_translator(**changes)
    assert ctranslate2_obstacles(translator.model.config) == []
    comparison = compare(translator, write_and_open(translator, tmp_path))
    comparison.check_equal("CTranslate2")
    assert comparison.agreement.same_translations == comparison.agreement.sentences == 12


def test_the_comparison_covers_many_different_tokens_and_probabilities(
    make_translator: MakeTranslator, compare: Compare, tmp_path: Path
) -> None:
    translator = make_translator()
    comparison = compare(translator, write_and_open(translator, tmp_path))
    values = {round(place.ours, 3) for place in [*comparison.own_differences, *comparison.random_differences]}
    assert len(values) > 100
    assert max(place.token for place in comparison.own_differences) >= 15


@pytest.mark.parametrize(
    ("changes", "obstacles"),
    [
        ({"norm": "batch"}, ["norm"]),
        ({"norm": "annotated"}, ["norm"]),
        ({"attention_score": "additive"}, ["attention_score"]),
        ({"attention_kind": "hard"}, ["attention_kind"]),
        ({"attention_window": 4}, ["attention_window"]),
        ({"attention": "query-key-norm"}, ["attention"]),
        ({"d_v": 8}, ["d_v"]),
        ({"norm_order": "post", "final_norm": True}, ["final_norm"]),
        ({"positions": "rotary", "rotary_scaling": RotaryScaling(factor=4.0, original_length=16)}, ["rotary_scaling"]),
    ],
)
def test_settings_that_ctranslate2_does_not_support_are_listed(
    make_translator: MakeTranslator, changes: dict[str, Any], obstacles: list[str]
) -> None:
    assert ctranslate2_obstacles(make_translator(**changes).model.config) == obstacles


def test_tied_weights_are_stored_once(make_translator: MakeTranslator, tmp_path: Path) -> None:
    sizes = []
    for name, tied in (("tied", True), ("untied", False)):
        (tmp_path / name).mkdir()
        write_and_open(make_translator(tie_output=tied, d_model=64), tmp_path / name)
        sizes.append((tmp_path / name / "model.bin").stat().st_size)
    assert sizes[1] - sizes[0] > 64 * 100 * 4


def test_quantization_halves_the_file_and_leaves_the_model_unchanged(
    make_translator: MakeTranslator, compare: Compare, tmp_path: Path
) -> None:
    translator = make_translator(d_model=64, d_ff=128)
    before = {name: parameter.clone() for name, parameter in translator.model.named_parameters()}
    sizes = {}
    for quantization in ("float32", "int8"):
        (tmp_path / quantization).mkdir()
        model = write_and_open(translator, tmp_path / quantization, quantization)
        comparison = compare(translator, model)
        comparison.check_close("CTranslate2")
        sizes[quantization] = (tmp_path / quantization / "model.bin").stat().st_size
        assert (comparison.agreement.mean_difference > 1e-4) == (quantization == "int8")
    assert sizes["int8"] < 0.55 * sizes["float32"]  # the table of positions stays as it is
    assert all(torch.equal(before[name], parameter) for name, parameter in translator.model.named_parameters())
    assert QUANTIZATIONS[0] == "float32"


def test_the_folder_holds_the_configuration_weights_and_shared_vocabulary(
    make_translator: MakeTranslator, tmp_path: Path
) -> None:
    translator = make_translator()
    write_and_open(translator, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.bin", "shared_vocabulary.json"]
    config = json.loads((tmp_path / "config.json").read_bytes())
    assert config["add_source_eos"] is True
    assert (config["decoder_start_token"], config["eos_token"], config["unk_token"]) == ("<pad>", "</s>", "<unk>")
    vocabulary = json.loads((tmp_path / "shared_vocabulary.json").read_bytes())
    assert vocabulary == translator.tokenizer.source.tokens(range(translator.tokenizer.source.size))


# --- language models ---


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned", "max_positions": 64, "activation": "gelu-tanh", "scale_embeddings": False},
        {"positions": "learned", "norm_order": "post", "embedding_norm": True},
        {"norm_order": "sandwich", "tie_output": False, "output_bias": True},
        {"positions": "none", "output_scale": 0.5, "share_layers": True},
        {"positions": "rotary-interleaved", "attention_score": "dot", "rotary_base": 500.0},
        {"final_norm": False, "d_k": 6, "d_v": 6},
        LLAMA_LIKE,
    ],
    ids=str,
)
def test_log_probabilities_and_continuations_of_a_language_model_are_equal(
    make_model: MakeModel, small_tokenizer: Tokenizer, tmp_path: Path, changes: dict[str, Any]
) -> None:
    model = make_model(kind="decoder", start_id=1, **changes)
    assert isinstance(model, Decoder)
    assert ctranslate2_obstacles(model.config) == []
    write_ctranslate2(model, small_tokenizer, tmp_path)
    theirs = CTranslate2LanguageModel(tmp_path, small_tokenizer, start_id=1, threads=1)
    rows = [[3 + (7 * row + 5 * place) % 90 for place in range(1 + 11 * row % 17)] for row in range(9)]
    own = OriginalLanguageModel(model, unknown_id=2, context=64)
    comparison = compare_models(own, theirs, rows, tokens=range(3, 90), max_tokens=20)
    comparison.check_equal("CTranslate2")
    assert comparison.agreement.same_translations == len(rows)


@pytest.mark.parametrize("prompts", [[[5, 6, 7], [], [8], []], [[], []], []], ids=str)
def test_a_language_model_continues_empty_prompts_equally(
    make_model: MakeModel, small_tokenizer: Tokenizer, tmp_path: Path, prompts: list[list[int]]
) -> None:
    model = make_model(kind="decoder", start_id=1)
    assert isinstance(model, Decoder)
    write_ctranslate2(model, small_tokenizer, tmp_path)
    theirs = CTranslate2LanguageModel(tmp_path, small_tokenizer, start_id=1, threads=1)
    own = OriginalLanguageModel(model, unknown_id=2, context=64)
    found = theirs.translate(prompts, 8)
    assert found == [own.translate([prompt], 8)[0] for prompt in prompts]
    assert all(found)


def test_the_folder_of_a_language_model_holds_one_vocabulary(
    make_model: MakeModel, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = make_model(kind="decoder", start_id=1)
    assert isinstance(model, Decoder)
    write_ctranslate2(model, small_tokenizer, tmp_path, quantization="int8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.bin", "vocabulary.json"]
    config = json.loads((tmp_path / "config.json").read_bytes())
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("</s>", "</s>", "<unk>")


@pytest.mark.parametrize("kind", ["encoder", "recurrent"])
def test_encoders_and_recurrent_models_are_not_supported(make_model: MakeModel, kind: str) -> None:
    config = make_model(kind=kind, **({"attention_score": "dot"} if kind == "recurrent" else {})).config
    assert ctranslate2_obstacles(config) == ["kind"]
    assert ctranslate2_obstacles(make_model(kind="decoder", positions="relative").config) == ["positions"]
