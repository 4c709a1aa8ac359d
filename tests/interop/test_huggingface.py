"""Test that Hugging Face's classes open a model folder offline and compute the same results."""

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from transduce.inference.batching import pad
from transduce.inference.translator import Translator
from transduce.interop.hugging_face.export import (
    class_for,
    config_json,
    generation_config,
    redundant_names,
    stored_parameters,
    stored_tensors,
)
from transduce.interop.hugging_face.families import huggingface_obstacles, huggingface_remedy
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.model_folder.write import write_model_folder
from transduce.search.rules import GenerateSettings
from transduce.search.settings import SearchSettings

OpenFolder = Callable[[Path], tuple[Any, Any]]
MakeTranslator = Callable[..., Translator]


LEARNED = {"positions": "learned", "position_offset": 2, "embedding_norm": True}
M2M100 = {"position_offset": 2, "sinusoids_to_end": True, "pad_id": 1, "eos_id": 2, "start_id": 2}
T5 = {
    "norm": "rms",
    "bias": False,
    "positions": "relative",
    "attention_score": "dot",
    "scale_embeddings": False,
    "output_scale": 0.25,
    "num_decoder_layers": 2,
}
# Settings that no Hugging Face class supports: a model with any of them keeps this package's names.
NOT_THEIRS: list[dict[str, Any]] = [
    {"num_key_value_heads": 2},
    {"share_layers": True},
    *({"norm": norm} for norm in ("rms", "batch")),
    {"norm_order": "sandwich"},
    {"final_norm": False},
    {"norm_order": "post", "final_norm": True},
    *({name: False} for name in ("projection_bias", "attention_output_bias", "feed_forward_bias")),
    *({"positions": name} for name in ("learned", "rotary", "rotary-interleaved", "relative")),
    {"position_offset": 2},
    {"sinusoids_to_end": True},
    *({"attention_score": score} for score in ("dot", "general", "additive")),
    {"attention_kind": "hard"},
    {"attention_scale": 0.5},
    {"attention_window": 8},
    {"embedding_norm": True},
    {"output_scale": 0.5},
]


def make_config(**changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "source_vocabulary_size": 300,
        "target_vocabulary_size": 300,
        "num_encoder_layers": 2,
        "num_decoder_layers": 3,
        "d_model": 16,
        "d_ff": 24,
        "num_heads": 4,
    }
    return ModelConfig(**(shape | changes))


# --- names and configuration, with no other library ---


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "PegasusForConditionalGeneration"),
        ({"norm_order": "post"}, "MarianMTModel"),
        ({"activation": "gelu"}, "PegasusForConditionalGeneration"),
        ({"activation": "swiglu"}, None),
        ({"positions": "none"}, None),
        ({"bias": False}, None),
        ({"tie_output": False}, None),
        ({"tie_source_target": False}, None),
        ({"tie_source_target": False, "norm_order": "post"}, "MarianMTModel"),
        ({"zero_padding_row": False, "output_bias": True}, "PegasusForConditionalGeneration"),
        (T5, "T5ForConditionalGeneration"),
        (T5 | {"tie_output": False, "output_scale": 1.0}, "T5ForConditionalGeneration"),
        (T5 | {"output_scale": 1.0}, "T5ForConditionalGeneration"),
        (T5 | {"output_scale": 0.5}, None),
        (T5 | {"tie_output": False}, None),
        (T5 | {"activation": "geglu-tanh", "d_k": 6, "d_v": 6}, "T5ForConditionalGeneration"),
        (T5 | {"d_k": 6}, None),
        (T5 | {"num_decoder_layers": 3}, None),
        ({"d_k": 8}, None),
        ({"d_v": 8}, None),
        ({"norm_epsilon": 1e-6}, None),
        ({"activation": "gelu-tanh"}, "PegasusForConditionalGeneration"),
        ({"activation": "silu", "norm_order": "post"}, "MarianMTModel"),
        ({"d_k": 4, "d_v": 4, "num_key_value_heads": 4, "final_norm": True}, "PegasusForConditionalGeneration"),
        (LEARNED | {"norm_order": "post"}, "BartForConditionalGeneration"),
        (LEARNED, "MBartForConditionalGeneration"),
        (M2M100, "M2M100ForConditionalGeneration"),
        (M2M100 | {"start_id": 1}, None),
        (LEARNED | {"position_offset": 0}, None),
    ],
)
def test_each_configuration_has_the_hugging_face_class_that_computes_it(
    changes: dict[str, Any], name: str | None
) -> None:
    config = make_config(**changes)
    assert class_for(config) == name
    content = config_json(config)
    assert content.get("architectures") == (None if name is None else [name])
    assert content["transduce"]["d_model"] == 16


@pytest.mark.parametrize(
    "changes", [{"d_k": 6}, {"output_scale": 0.5}, {"output_scale": 0.5, "tie_output": False}, {"tie_output": False}]
)
def test_the_suggested_change_gives_a_configuration_that_a_class_computes(changes: dict[str, Any]) -> None:
    config = make_config(**T5 | changes)
    assert huggingface_obstacles(config)
    remedy = huggingface_remedy(config)
    assert not remedy or class_for(msgspec.structs.replace(config, **remedy)) is not None


@pytest.mark.parametrize("changes", NOT_THEIRS, ids=str)
def test_configurations_that_no_class_computes_name_their_obstacles(changes: dict[str, Any]) -> None:
    config = make_config(**changes)
    assert class_for(config) is None
    # A table of positions is BART's; what is in the way is what BART has besides.
    assert set(huggingface_obstacles(config)) & (set(changes) | {"position_offset"})
    assert config_json(config)["model_type"] == "transduce"
    assert huggingface_obstacles(make_config()) == []


def test_config_json_holds_the_settings_under_the_names_of_the_class() -> None:
    content = config_json(make_config(dropout=0.2))
    assert content["model_type"] == "pegasus"
    assert content["normalize_before"] is True
    assert (content["encoder_layers"], content["decoder_layers"], content["encoder_ffn_dim"]) == (2, 3, 24)
    assert (content["pad_token_id"], content["eos_token_id"], content["decoder_start_token_id"]) == (0, 1, 0)
    assert content["dropout"] == 0.2
    assert config_json(make_config(norm_order="post"))["normalize_before"] is False


@pytest.mark.parametrize(
    "changes", [{}, {"norm_order": "post"}, LEARNED, LEARNED | {"norm_order": "post"}, M2M100], ids=str
)
def test_every_tensor_has_one_name_and_none_is_lost(changes: dict[str, Any]) -> None:
    config = make_config(**changes)
    weights = {name: parameter.detach() for name, parameter in Transformer(config).named_parameters()}
    renamed = dict(stored_tensors(weights, config))
    kept = stored_parameters(weights, config, renamed)
    for name, tensor in weights.items():
        assert torch.equal(kept[name].restore([renamed[part] for part in kept[name].names]), tensor)
    names = [part for place in kept.values() for part in place.names]
    assert len(names) == len(set(names))
    assert set(renamed) - set(names) <= redundant_names(config, renamed)
    assert "model.encoder.layers.0.self_attn.q_proj.weight" in names
    assert "model.decoder.layers.2.encoder_attn.out_proj.bias" in names
    assert ("model.encoder.layer_norm.weight" in names) == (config.norm_order == "pre")
    assert ("model.decoder.layernorm_embedding.bias" in names) == config.embedding_norm
    assert ("model.decoder.embed_positions.weight" in names) == (config.positions == "learned")


def test_positions_are_written_as_sines_then_cosines() -> None:
    config = make_config()
    weights = {name: parameter.detach() for name, parameter in Transformer(config).named_parameters()}
    table = dict(stored_tensors(weights, config))["model.encoder.embed_positions.weight"]
    assert table.shape == (1024, 16)
    assert torch.allclose(table[3, :2], torch.tensor([3.0, 3.0 / 10000 ** (2 / 16)]).sin())
    assert torch.allclose(table[3, 8:10], torch.tensor([3.0, 3.0 / 10000 ** (2 / 16)]).cos())


def test_weights_that_no_class_computes_keep_transduces_names() -> None:
    config = make_config(activation="swiglu")
    weights = {name: parameter.detach() for name, parameter in Transformer(config).named_parameters()}
    assert set(dict(stored_tensors(weights, config))) == set(weights)
    assert redundant_names(config, weights) == set()
    assert config_json(config)["model_type"] == "transduce"


# --- opened there ---


@pytest.fixture(scope="module")
def open_folder() -> OpenFolder:
    """Return a function that opens a folder by Hugging Face's automatic classes, without a network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'transduce[hf]'")
    library = importlib.import_module("transformers")
    library.logging.disable_progress_bar()

    def open_it(folder: Path) -> tuple[Any, Any]:
        model, notes = library.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
        assert not any(notes.values()), notes  # no tensor missing, left over, or of another shape
        return library.AutoTokenizer.from_pretrained(folder), model.eval()

    return open_it


def compare_logits(translator: Translator, theirs: Any, sources: Tensor, inputs: Tensor) -> float:
    """Return the largest difference of logits at positions without padding."""
    pad_id = translator.model.config.pad_id
    with torch.no_grad():
        our_logits = translator.model(sources, inputs)
        their_logits = theirs(
            input_ids=sources, attention_mask=(sources != pad_id).long(), decoder_input_ids=inputs
        ).logits
    present = inputs != pad_id
    present[:, 0] = True
    return float((our_logits - their_logits)[present].abs().max())


@pytest.mark.filterwarnings("default")  # what that library warns of is not ours
@pytest.mark.parametrize(
    "changes",
    [
        {"scale_embeddings": False},
        {"activation": "silu"},
        {"norm_order": "post", "activation": "gelu"},
        {"norm_order": "post", "scale_embeddings": False},
        LEARNED | {"norm_order": "post", "max_positions": 50, "activation": "gelu", "start_id": 1},
        LEARNED,
        M2M100 | {"activation": "gelu-tanh"},
        {"norm_order": "post", "output_bias": True, "zero_padding_row": False, "start_id": 1},
        {"norm_order": "post", "tie_source_target": False},
        T5 | {"activation": "silu"},
        T5 | {"output_scale": 1.0},
        T5 | {"activation": "geglu-tanh", "d_k": 6, "d_v": 6, "tie_output": False, "output_scale": 1.0},
    ],
    ids=str,
)
def test_logits_and_translations_equal_those_of_the_hugging_face_class(
    open_folder: OpenFolder, make_translator: MakeTranslator, tmp_path: Path, changes: dict[str, Any]
) -> None:
    made = make_translator(**changes)
    config = made.model.config
    write_model_folder(
        tmp_path,
        weights={name: parameter.detach() for name, parameter in made.model.named_parameters()},
        config=config,
        tokenizer=made.tokenizer,
        languages=("zh", "en"),
        documents={},
    )
    _, theirs = open_folder(tmp_path)
    assert type(theirs).__name__ == class_for(config)
    pad_id, eos_id = config.pad_id, config.eos_id
    rows = [[*range(5, 40), eos_id], [7, 8, eos_id], [9] * 20 + [eos_id]]
    sources = pad(rows, pad_id, torch.device("cpu"))
    targets = [[5, 6, 7, 8], list(range(60, 90)), []]
    inputs = pad([[config.start_id, *row] for row in targets], pad_id, torch.device("cpu"))
    assert compare_logits(made, theirs, sources, inputs) < 1e-5
    written = theirs.generate(
        input_ids=sources, attention_mask=(sources != pad_id).long(), num_beams=1, do_sample=False, max_length=20
    )
    ours = made.search_ids(rows, SearchSettings(beam_size=1, max_length=19))
    for row, (best, *_) in zip(written[:, 1:].tolist(), ours, strict=True):
        assert row[: row.index(eos_id) if eos_id in row else None] == list(best.ids)
    # Loading the folder gives the weights that were saved.
    stored = load_file(tmp_path / "model.safetensors")
    kept = stored_parameters(made.model.state_dict(), config, stored)
    for name, tensor in made.model.state_dict().items():
        assert torch.equal(kept[name].restore([stored[part] for part in kept[name].names]), tensor)


@pytest.mark.filterwarnings("default")
def test_a_run_folder_opens_in_hugging_face_with_equal_ids_and_translations(
    open_folder: OpenFolder, translator: Translator, trained: Path, toy_corpus: Path
) -> None:
    tokenizer, theirs = open_folder(trained)
    lines = [(toy_corpus / f"dev.{side}").read_text("utf-8").split("\n")[:-1] for side in ("zh", "en")]
    ids = [[[*translator.tokenizer.source.encode(line), 1] for line in side] for side in lines]
    assert tokenizer(lines[0])["input_ids"] == ids[0]
    encoded = tokenizer(lines[0], padding=True, return_tensors="pt")
    sources = pad(ids[0], 0, torch.device("cpu"))
    assert torch.equal(encoded["input_ids"], sources)
    inputs = pad([[0, *row[:-1]] for row in ids[1]], 0, torch.device("cpu"))
    assert compare_logits(translator, theirs, sources, inputs) < 1e-5
    written = theirs.generate(**encoded, num_beams=1, do_sample=False, max_length=60)
    texts = tokenizer.batch_decode(written, skip_special_tokens=True)
    assert texts == [found.text for found in translator(lines[0], beam_size=1, max_length=59)]


@pytest.mark.filterwarnings("default")
def test_the_opened_configuration_holds_norm_order_and_search_settings(open_folder: OpenFolder, trained: Path) -> None:
    _, theirs = open_folder(trained)
    stored = json.loads((trained / "config.json").read_bytes())
    assert theirs.config.transduce["norm_order"] == "pre" == stored["transduce"]["norm_order"]
    assert theirs.generation_config.num_beams == 4
    assert theirs.generation_config.bad_words_ids == [[0]]


def test_generation_settings_have_the_beams_of_the_search() -> None:
    config = ModelConfig(source_vocabulary_size=9, target_vocabulary_size=9)
    plain = generation_config(config, 2)
    assert plain is not None
    assert plain == generation_config(config, 2, SearchSettings())
    changed = {"num_beams": 6, "no_repeat_ngram_size": 3}
    assert generation_config(config, 2, SearchSettings(beam_size=6, no_repeated_ngrams=3)) == plain | changed


def test_a_forbidden_end_symbol_is_exported_as_one_that_generate_heeds() -> None:
    generate = GenerateSettings(forbidden_ids=(1, 7))
    config = ModelConfig(source_vocabulary_size=9, target_vocabulary_size=9, pad_id=0, eos_id=1)
    content = generation_config(config, 3, SearchSettings(generate=generate))
    assert content is not None
    assert (content["bad_words_ids"], content["suppress_tokens"]) == ([[0], [7]], [1])
