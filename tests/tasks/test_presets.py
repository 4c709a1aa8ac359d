"""Test presets: each setting of section 5 of the paper, the sizes of published models, and runs with them."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from transduce.errors import TransduceError
from transduce.model.build import build_any_model
from transduce.model.config import ModelConfig
from transduce.model_folder.read import read_model_folder
from transduce.model_folder.write import to_toml
from transduce.tasks.run.resolving import VocabularyProperties, resolve_model
from transduce.tasks.run.run import RunRequest, prepare_run
from transduce.tasks.settings.presets import RECIPES, preset_settings, with_preset
from transduce.tasks.settings.reading import make_settings
from transduce.tasks.train import train
from transduce.training.choices import ChoiceLog
from transduce.training.schedule import step_rates
from transduce.training.settings import ResolvedTraining

SMALL: dict[str, Any] = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 32,
    "model.d_ff": 64,
    "model.num_heads": 2,
    "tokenizer.vocabulary_size": 400,
    "training.batch_tokens": 512,
    "training.translate_dev": 4,
    "training.report_every": 2,
}


@pytest.mark.parametrize(
    ("preset", "own"),
    [
        ("paper-base", {"steps": 100_000, "average_checkpoints": 5, "save_every": 1_500, "d_model": 512, "d_ff": 2048}),
        ("paper-big", {"steps": 300_000, "average_checkpoints": 20, "save_every": 600, "d_model": 1024, "d_ff": 4096}),
    ],
)
def test_the_presets_of_the_paper_follow_section_5(
    toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], preset: str, own: dict[str, int]
) -> None:
    files = {"source": [str(toy_corpus / "train.zh")], "target": [str(toy_corpus / "train.en")]}
    request = RunRequest(settings={"preset": preset, "data": files}, out=tmp_path / "run", device="cpu", threads=1)
    resolved = prepare_run(request)
    model, training, search = resolved.model, resolved.training, resolved.search
    # Every setting that must be chosen has a value, of the right type.
    assert msgspec.convert(msgspec.to_builtins(training), ResolvedTraining) == training

    is_big = preset == "paper-big"
    # Sections 3 and 5.4, and Table 3.
    assert (model.num_encoder_layers, model.num_decoder_layers, model.num_heads) == (6, 6, 16 if is_big else 8)
    assert (model.d_model, model.d_ff, model.key_width, model.value_width) == (own["d_model"], own["d_ff"], 64, 64)
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.3 if is_big else 0.1, 0.0, 0.0)
    assert (model.norm, model.norm_order, model.activation, model.positions) == ("layer", "post", "relu", "sinusoidal")
    assert (model.tie_source_target, model.tie_output, model.scale_embeddings) == (True, True, True)
    assert not model.has_final_norm
    # Section 5.1.
    assert resolved.built_tokenizer is not None
    assert (resolved.built_tokenizer.kind, resolved.built_tokenizer.joint, resolved.built_tokenizer.placeholders) == (
        "bpe",
        True,
        0,
    )
    assert make_settings({"preset": preset}).tokenizer.vocabulary_size == 37_000
    assert training.batch_tokens == 25_000
    # Sections 5.2 and 5.3; equation (3) before, at and after the end of the warm-up.
    assert (training.steps, training.minutes, training.patience) == (own["steps"], None, 0)
    assert (training.optimizer, training.beta1, training.beta2, training.epsilon) == ("adam", 0.9, 0.98, 1e-9)
    for step in (1, 100, 4_000, 50_000, own["steps"]):
        rate, decay = step_rates(step, training, training.steps, [])
        assert rate == pytest.approx(model.d_model**-0.5 * min(step**-0.5, step * 4_000**-1.5))
        assert decay == 0.0
    # Section 5.4, and what the paper does not have.
    assert (training.label_smoothing, training.clip_norm, training.adapt_dropout) == (0.1, 0.0, False)
    assert training.precision == "fp32"
    assert (training.bpe_dropout, training.unigram_alpha, training.lora_rank) == (0.0, None, 0)
    # Section 6.1.
    assert (training.average_checkpoints, training.save_every) == (own["average_checkpoints"], own["save_every"])
    assert (training.average_decay, training.best_by) == (0.0, "last")
    assert (search.beam_size, search.length_penalty) == (4, 0.6)
    assert (search.max_length_factor, search.max_length_extra, search.max_length) == (1.0, 50, None)

    said = capsys.readouterr().err
    assert f"0  preset {preset}: section 5 clips no gradients" in said
    assert said.count("set by you") == 1  # the preset


def test_settings_of_the_user_override_those_of_a_preset() -> None:
    content = {"preset": "paper-base", "training": {"clip_norm": 1.0, "steps": 1_000}, "tokenizer": {"kind": "word"}}
    settings = make_settings(content)
    assert settings.training.clip_norm == 1.0
    assert settings.training.save_every == 15  # 1,500 of 100,000 steps
    assert settings.tokenizer.kind == "word"
    assert settings.tokenizer.vocabulary_size is None
    in_time = make_settings({"preset": "paper-base", "training": {"minutes": 5.0}})
    assert (in_time.training.minutes, in_time.training.steps) == (5.0, None)
    moving = make_settings({"preset": "paper-base", "training": {"average_decay": 0.9}}).training
    assert (moving.average_decay, moving.average_checkpoints) == (0.9, 0)
    on_base_model = make_settings({"preset": "paper-base", "init_from": "folder"})
    assert on_base_model.tokenizer == make_settings({}).tokenizer
    assert on_base_model.training.clip_norm == 0.0
    assert with_preset({"preset": "small"}) == {"preset": "small"}
    complete = with_preset({"preset": "t5-small"})
    assert preset_settings(complete) == {}
    assert "t5-small" in to_toml(make_settings(complete))


def test_the_page_about_the_paper_has_each_setting_of_the_preset() -> None:
    for name in ("paper.md", "zh/paper.md"):
        page = (Path(__file__).resolve().parents[2] / "docs" / name).read_text("utf-8")
        listed = dict(re.findall(r"`([\w.]+)` = `([^`]+)`", page))
        for setting, (value, _) in RECIPES["paper-base"].settings.items():
            assert listed.get(setting) == json.dumps(value), setting


def test_a_preset_for_other_tasks_is_refused() -> None:
    message = r"`preset` is bert-base, a model for `task\.kind` = masked-language-model or classification or tagging, "
    with pytest.raises(TransduceError, match=message + r"but `task\.kind` is translation: change one of them"):
        make_settings({"preset": "bert-base", "task": {"kind": "translation"}})
    assert make_settings({"preset": "paper-base", "task": {"kind": "language-model"}}).training.clip_norm == 1.0


@pytest.mark.parametrize(
    ("preset", "task", "count"),
    [
        ("paper-base", "translation", 63_082_496),
        ("paper-big", "translation", 214_245_376),
        # BertForPreTraining: BertModel (109,482,240 and 335,141,888), the head of masked tokens, two classes.
        ("bert-base", "masked-language-model", 110_106_428),
        ("bert-large", "masked-language-model", 336_226_108),
        ("gpt2", "language-model", 124_439_808),
        ("t5-small", "denoising", 60_506_624),
        ("bart-base", "denoising", 139_420_416),
    ],
)
def test_presets_have_the_published_numbers_of_parameters(preset: str, task: str, count: int) -> None:
    size = RECIPES[preset].settings["tokenizer.vocabulary_size"][0]
    settings = make_settings({"preset": preset, "task": {"kind": task}})
    config = resolve_model(
        settings, preset, VocabularyProperties(size, size, 0, 1, tie_source_target=True), ChoiceLog()
    )
    assert count_parameters(config) == count


@pytest.mark.parametrize(
    ("preset", "config_class", "model_class", "options"),
    [
        ("bert-base", "BertConfig", "BertForPreTraining", {}),
        (
            "bert-large",
            "BertConfig",
            "BertForPreTraining",
            {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        ),
        ("gpt2", "GPT2Config", "GPT2LMHeadModel", {}),
        (
            "t5-small",
            "T5Config",
            "T5ForConditionalGeneration",
            {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "d_kv": 64},
        ),
        (
            "bart-base",
            "BartConfig",
            "BartForConditionalGeneration",
            {
                "d_model": 768,
                "encoder_layers": 6,
                "decoder_layers": 6,
                "encoder_ffn_dim": 3072,
                "decoder_ffn_dim": 3072,
                "encoder_attention_heads": 12,
                "decoder_attention_heads": 12,
            },
        ),
    ],
)
def test_presets_have_as_many_parameters_as_transformers_models(
    preset: str, config_class: str, model_class: str, options: dict[str, int]
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    size = RECIPES[preset].settings["tokenizer.vocabulary_size"][0]
    with torch.device("meta"):
        theirs = getattr(transformers, model_class)(getattr(transformers, config_class)(vocab_size=size, **options))
    theirs.tie_weights()
    expected = sum(parameter.numel() for parameter in {id(each): each for each in theirs.parameters()}.values())
    settings = make_settings({"preset": preset})
    config = resolve_model(
        settings, preset, VocabularyProperties(size, size, 0, 1, tie_source_target=True), ChoiceLog()
    )
    assert count_parameters(config) == expected


def count_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_any_model(config).parameters())


def test_a_small_run_with_a_preset_of_the_paper_resumes_and_keeps_the_mean_of_checkpoints(
    toy_corpus: Path, tmp_path: Path
) -> None:
    def run(folder: str, steps: int) -> dict[str, torch.Tensor]:
        train(
            out=tmp_path / folder,
            source=toy_corpus / "train.zh",
            target=toy_corpus / "train.en",
            preset="paper-base",
            settings=SMALL | {"training.steps": steps, "training.save_every": 2, "training.warmup_steps": 4},
            resume=True,
            device="cpu",
            threads=1,
        )
        return dict(read_model_folder(tmp_path / folder).model.named_parameters())

    whole = run("whole", 12)
    run("cut", 7)
    resumed = run("cut", 12)
    assert {name: torch.equal(each, whole[name]) for name, each in resumed.items()} == dict.fromkeys(whole, True)
    stored = [load_file(path / "weights.safetensors") for path in sorted((tmp_path / "whole/checkpoints").iterdir())]
    assert len(stored) == 5
    for name, tensor in whole.items():
        mean = sum(each[name].double() for each in stored) / 5
        torch.testing.assert_close(tensor.detach().double(), mean, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("preset", ["bert-base", "gpt2", "t5-small", "bart-base"])
def test_presets_of_published_models_train(toy_corpus: Path, tmp_path: Path, preset: str) -> None:
    small = {name: value for name, value in SMALL.items() if "layers" not in name and "translate" not in name}
    layers = ["encoder"] if preset == "bert-base" else ["decoder"] if preset == "gpt2" else ["encoder", "decoder"]
    small |= {f"model.num_{side}_layers": 1 for side in layers}
    if preset in ("bert-base", "gpt2"):
        small["task.context"] = 32
    result = train(
        out=tmp_path / "run",
        source=toy_corpus / "train.en",
        preset=preset,
        settings=small | {"training.steps": 2},
        device="cpu",
        threads=1,
    )
    assert result is not None
    assert result.step == 2
