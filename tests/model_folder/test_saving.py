"""Test `transduce.save`: a trained model reads back the same, and other files are not overwritten."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import transduce
from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.model.build import build_any_model
from transduce.model.config import ModelConfig
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Decoder, Encoder, Transformer

KINDS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_order": "post"},
    "batch": {"norm": "batch"},
    "one layer": {"share_layers": True},
    "rotary": {"positions": "rotary", "activation": "swiglu", "norm": "rms", "bias": False},
    "recurrent": {"kind": "recurrent", "attention_score": "general"},
    "decoder": {"kind": "decoder", "positions": "learned"},
}


def make(translator: Translator, **changes: Any) -> Transformer | Recurrent | Decoder:
    """Return a model with random weights for the translator's vocabulary."""
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2}
    size = translator.tokenizer.source.size
    torch.manual_seed(3)
    model = build_any_model(ModelConfig(source_vocabulary_size=size, target_vocabulary_size=size, **(sizes | changes)))
    assert isinstance(model, Transformer | Recurrent | Decoder)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_loads_with_the_same_weights(kind: str, translator: Translator, tmp_path: Path) -> None:
    model = make(translator, **KINDS[kind])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    transduce.save(model, tmp_path / "saved", tokenizer=translator.tokenizer, languages=("zh", "en"))
    opened = transduce.load(tmp_path / "saved", precision="fp32")
    assert isinstance(opened, transduce.Generator if kind == "decoder" else transduce.Translator)
    after = opened.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert model.training  # the loop continues training it
    assert opened.tokenizer.fingerprint == translator.tokenizer.fingerprint


def test_a_saved_model_keeps_its_languages(translator: Translator, tmp_path: Path) -> None:
    transduce.save(translator.model, tmp_path, tokenizer=translator.tokenizer, languages=("zh", "en"))
    opened = transduce.load(tmp_path, task="translation")
    assert (opened.source_language, opened.target_language) == ("zh", "en")


def test_a_model_in_bfloat16_is_saved_in_float32_and_stays_as_it_was(translator: Translator, tmp_path: Path) -> None:
    model = make(translator).to(torch.bfloat16)
    transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    opened = transduce.load(tmp_path, precision="fp32", task="translation")
    assert torch.equal(opened.model.source_weight, model.source_weight.float())
    assert model.source_weight.dtype == torch.bfloat16


def test_saving_again_to_the_same_folder_replaces_the_weights(translator: Translator, tmp_path: Path) -> None:
    model = make(translator)
    transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    with torch.no_grad():
        model.source_weight.add_(1.0)
    transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    opened = transduce.load(tmp_path, precision="fp32", task="translation")
    assert torch.equal(opened.model.source_weight, model.source_weight)


def test_a_run_is_not_written_over(trained: Path, translator: Translator, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    weights = (run / "model.safetensors").read_bytes()
    with pytest.raises(TransduceError, match="holds a run or an imported model"):
        transduce.save(make(translator), run, tokenizer=translator.tokenizer)
    assert (run / "model.safetensors").read_bytes() == weights


def test_saving_into_a_folder_with_other_files_is_refused(translator: Translator, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("\\documentclass{article}\n")
    with pytest.raises(TransduceError, match="holds other files"):
        transduce.save(make(translator), tmp_path, tokenizer=translator.tokenizer)
    with pytest.raises(TransduceError, match="is a file"):
        transduce.save(make(translator), tmp_path / "thesis.tex", tokenizer=translator.tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_tokenizer_of_another_model_is_refused(translator: Translator, tmp_path: Path) -> None:
    size = translator.tokenizer.source.size
    longer = ModelConfig(source_vocabulary_size=size + 8, target_vocabulary_size=size + 8, d_model=16, num_heads=2)
    with pytest.raises(TransduceError, match=f"{size + 8} .* tokens .* has {size}"):
        transduce.save(Transformer(longer), tmp_path / "out", tokenizer=translator.tokenizer)
    with pytest.raises(TransduceError, match="padding and end"):
        transduce.save(make(translator, eos_id=2), tmp_path / "out", tokenizer=translator.tokenizer)
    assert not (tmp_path / "out").exists()


def test_saving_something_other_than_a_float_model_with_its_tokenizer_is_refused(
    trained: Path, translator: Translator, tmp_path: Path
) -> None:
    tokenizer = translator.tokenizer
    size = tokenizer.source.size
    encoder = ModelConfig(kind="encoder", source_vocabulary_size=size, target_vocabulary_size=size)
    for model, name in ((nn.Linear(2, 2), "Linear"), (Encoder(encoder), "Encoder")):
        with pytest.raises(TransduceError, match=f"not {name}: for"):
            transduce.save(model, tmp_path / "out", tokenizer=tokenizer)  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match="not Translator: for"):
        transduce.save(translator, tmp_path / "out", tokenizer=tokenizer)  # type: ignore[arg-type]
    rounded = transduce.load(trained, precision="int8", task="translation")
    with pytest.raises(TransduceError, match="8 bits"):
        transduce.save(rounded.model, tmp_path / "out", tokenizer=tokenizer)
    with pytest.raises(TransduceError, match="`tokenizer` must be a Tokenizer"):
        transduce.save(make(translator), tmp_path / "out", tokenizer="bpe")  # type: ignore[arg-type]


@pytest.mark.parametrize("languages", ["zh", ("zh",), ("zh", "no language"), (1, "en")])
def test_saving_with_malformed_languages_is_refused(languages: Any, translator: Translator, tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match="`languages` must be"):
        transduce.save(make(translator), tmp_path / "out", tokenizer=translator.tokenizer, languages=languages)
    assert not (tmp_path / "out").exists()
