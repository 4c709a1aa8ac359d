"""Test the doctor on sound models of this package and of PyTorch, its reports, and its use with settings."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch
from torch import Tensor, nn

from transduce.commands.main import main
from transduce.errors import TransduceError, shell_word
from transduce.inspection.doctor import CHECKS, DoctorReport, ResidualLayer, SplitModel, Subject, examine
from transduce.inspection.doctor.transduce_models import (
    config_from_settings,
    subject_from_path,
    subject_from_transformer,
)
from transduce.model.config import ModelConfig
from transduce.model.masks import AttentionMask
from transduce.model.positions import sinusoids
from transduce.model.transformer import Transformer
from transduce.tasks.settings.reading import make_settings

WriteLines = Callable[[str, Iterable[str]], Path]
SHAPES: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"norm_order": "post"},
    "gated, no biases, odd heads": {"activation": "swiglu", "bias": False, "d_k": 5, "d_v": 7},
    "untied": {"tie_source_target": False, "tie_output": False, "target_vocabulary_size": 60},
    "dropout": {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.2},
}


def build(**changes: Any) -> Transformer:
    shape = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2}
    sizes = {"source_vocabulary_size": 50, "target_vocabulary_size": 50}
    torch.manual_seed(3)
    return Transformer(ModelConfig(**(shape | sizes | changes)))


OTHER_COMPONENTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "learned positions": ({"positions": "learned", "max_positions": 64}, {"sinusoids"}),
    "rotation": ({"positions": "rotary"}, {"sinusoids", "target positions"}),
    "relative bias": ({"positions": "relative"}, {"sinusoids", "target positions"}),
    "RMSNorm, shared keys": ({"norm": "rms", "num_key_value_heads": 1}, set()),
    "sandwich": ({"norm_order": "sandwich"}, {"residual"}),
    "BatchNorm": ({"norm": "batch"}, {"residual"}),
    "additive": ({"attention_score": "additive"}, set()),
    "hard": ({"attention_kind": "hard"}, {"past", "source"}),
    "window": ({"attention_window": 2}, set()),
    "shared layers, embedding norm": ({"share_layers": True, "embedding_norm": True}, set()),
}


@pytest.mark.parametrize("component", OTHER_COMPONENTS)
def test_models_of_other_components_pass_all_applicable_checks(component: str) -> None:
    changes, left_out = OTHER_COMPONENTS[component]
    report = examine(subject_from_transformer(build(**changes), name=component))
    assert report.passed, str(report)
    assert {check.name for check in report.checks if check.passed is None} == left_out


@pytest.mark.parametrize("shape", SHAPES)
def test_our_model_passes_every_check(shape: str) -> None:
    model = build(**SHAPES[shape])
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    report = examine(subject_from_transformer(model, name=shape))
    assert [check.passed for check in report.checks] == [True] * len(CHECKS), str(report)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_a_model_without_positions_skips_the_position_checks() -> None:
    report = examine(subject_from_transformer(build(positions="none"), name="bag"))
    assert report.passed
    left_out = {check.name for check in report.checks if check.passed is None}
    assert left_out == {"source positions", "target positions", "sinusoids"}


class Leaking(Transformer):
    """A Transformer of this package whose decoder attends to future tokens in training."""

    def decode(self, target_input_ids: Tensor, *arguments: Any, **named: Any) -> Tensor:
        length = target_input_ids.shape[1]
        if named.get("cache") is None:
            named["mask"] = AttentionMask(torch.ones(1, 1, length, length, dtype=torch.bool))
        return super().decode(target_input_ids, *arguments, **named)


def test_our_model_with_a_planted_fault_fails() -> None:
    report = examine(subject_from_transformer(Leaking(build().config), name="leaking"))
    assert {"future", "cache"} <= set(report.failed())


# --- PyTorch's own Transformer, as a person would wrap it ---


class Wrapped(nn.Module):
    """A model of torch's `nn.Transformer` between an embedding and a projection."""

    def __init__(self, *, norm_first: bool, inverted: str = "") -> None:
        super().__init__()
        self.inverted = inverted
        self.embedding = nn.Embedding(50, 16)
        nn.init.normal_(self.embedding.weight, std=0.25)
        self.transformer = nn.Transformer(16, 2, 2, 2, 32, 0.1, norm_first=norm_first, batch_first=True)
        self.output = nn.Linear(16, 50)

    def embed(self, ids: Tensor) -> Tensor:
        table = sinusoids(ids.shape[1], 16, interleaved=True)
        return self.embedding(ids) * math.sqrt(16) + table  # type: ignore[no-any-return]

    def encode(self, source: Tensor) -> Tensor:
        # A row of padding alone would be NaN: nn.Transformer masks with minus infinity.
        hidden = (source == 0) & (source != 0).any(dim=1, keepdim=True)
        hidden = hidden ^ (self.inverted == "padding mask")
        return self.transformer.encoder(self.embed(source), src_key_padding_mask=hidden)  # type: ignore[no-any-return]

    def decode(self, target: Tensor, memory: Tensor, present: Tensor) -> Tensor:
        ahead = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        ahead = ahead ^ (self.inverted == "target mask")
        hidden = ~present & present.any(dim=1, keepdim=True)
        hidden = hidden ^ (self.inverted == "padding mask")
        x = self.transformer.decoder(
            *(self.embed(target), memory),
            tgt_mask=ahead,
            tgt_is_causal=self.inverted != "target mask",
            memory_key_padding_mask=hidden,
        )
        return self.output(x)  # type: ignore[no-any-return]

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.decode(target, self.encode(source), source != 0)


def wrapped(*, norm_first: bool, inverted: str = "") -> Subject:
    torch.manual_seed(1)
    model = Wrapped(norm_first=norm_first, inverted=inverted)
    transformer = model.transformer
    memory = torch.randn(2, 3, 16)

    def layer(part: nn.Module, run: Callable[[Tensor], Tensor], *sublayers: str) -> ResidualLayer:
        modules = tuple(part.get_submodule(sublayer) for sublayer in sublayers)
        order: Literal["pre", "post"] = "pre" if norm_first else "post"
        return ResidualLayer(name="layer", run=run, sublayers=modules, norm_order=order, d_model=16)

    def with_memory(part: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: part(x, memory)

    layers = [
        *(layer(part, part, "self_attn", "linear2") for part in transformer.encoder.layers),
        *(
            layer(part, with_memory(part), "self_attn", "multihead_attn", "linear2")
            for part in transformer.decoder.layers
        ),
    ]
    return Subject(
        name="nn.Transformer",
        module=model,
        logits=model,
        source_vocabulary_size=50,
        target_vocabulary_size=50,
        pad_id=0,
        start_id=1,
        eos_id=2,
        split=SplitModel(encode=model.encode, decode=model.decode),
        layers=tuple(layers),
        fresh=lambda: wrapped(norm_first=norm_first, inverted=inverted),
        learning_rate=1e-2,
    )


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_pytorchs_own_transformer_passes(norm_first: bool) -> None:
    report = examine(wrapped(norm_first=norm_first))
    assert report.passed, str(report)
    assert report.mistakes == ()
    assert {check.name for check in report.checks if check.passed is None} == {"cache", "sinusoids", "loss"}


@pytest.mark.parametrize(
    ("inverted", "norm_first"), list(itertools.product(("target mask", "padding mask"), (True, False)))
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_inverted_mask_is_the_one_cause_of_its_failures(inverted: str, norm_first: bool) -> None:
    report = examine(wrapped(norm_first=norm_first, inverted=inverted), CHECKS[:-1])
    assert report.causes() == ["finite logits"], str(report)
    assert len(report.failed()) > 8
    text = str(report)
    assert "hides every position. In `nn.Transformer`, True in a mask means hidden: perhaps `~mask` was meant." in text
    assert ": inf (" not in text
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nan_is_never_a_finite_figure_or_infinity() -> None:
    subject = wrapped(norm_first=True)
    with torch.no_grad():
        subject.module.output.bias[7] = math.nan  # type: ignore[union-attr, operator]
    subject = replaced(subject, loss=lambda source, target: subject.logits(source, target).mean())
    figures = {check.name: check.figure for check in examine(subject, CHECKS[:-3]).checks if check.passed is False}
    assert figures.pop("finite logits") == 1 / 50
    assert {"future", "past", "source", "batch-mates", "target positions", "all padding", "loss"} <= set(figures)
    assert all(figure is not None and math.isnan(figure) for figure in figures.values()), figures


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_new_model_may_be_a_module_alone() -> None:
    subject = replaced(wrapped(norm_first=False), fresh=lambda: Wrapped(norm_first=False))
    report = examine(subject)
    assert report.passed, str(report)
    assert {"first loss", "gradient", "overfit"} <= {check.name for check in report.checks if check.passed}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_a_new_model_that_cannot_be_trained_is_refused_before_any_check() -> None:
    subject = wrapped(norm_first=True)
    function = replaced(subject, logits=subject.module.forward)
    for changes, message in (
        ({"fresh": lambda: None}, r"must be a function that returns a new `nn.Module` or a `DoctorSubject`, not "),
        ({"fresh": lambda: subject.module}, r"returns the examined model itself"),
        ({"fresh": lambda: subject}, r"returns the examined model itself"),
        ({"fresh": subject.module}, r"must be a function .*, not Wrapped: "),
    ):
        with pytest.raises(TransduceError, match=message):
            examine(replaced(subject, **changes))
    with pytest.raises(TransduceError, match=r"but `logits` is a function of another module"):
        examine(replaced(function, fresh=lambda: Wrapped(norm_first=True)))


# --- reports, and what stands in the way ---


def test_a_model_that_raises_fails_with_its_error() -> None:
    def refuse(source: Tensor, target: Tensor) -> Tensor:
        raise RuntimeError(f"cannot add {source.shape[1]} and {target.shape[1]}")

    subject = replaced(subject_from_transformer(build(), name="x"), logits=refuse)
    (result,) = examine(subject, CHECKS[:1]).checks
    assert result.passed is False
    assert "The model raised RuntimeError (cannot add 7 and 9)," in result.meaning


def replaced(subject: Subject, **changes: Any) -> Subject:
    return dataclasses.replace(subject, **changes)


def test_examining_a_model_restores_its_training_mode() -> None:
    subject = subject_from_transformer(build(), name="x")
    for mode in (True, False):
        subject.module.train(mode)
        examine(subject, CHECKS[:1])
        assert subject.module.training is mode


def test_a_vocabulary_without_words_is_refused() -> None:
    model = build(source_vocabulary_size=4, target_vocabulary_size=4)
    with pytest.raises(TransduceError, match=r"needs 4 ordinary tokens, but only 2 of the vocabulary's 4 are"):
        examine(subject_from_transformer(model, name="x"))


def test_a_report_prints_as_text_and_survives_json() -> None:
    report = examine(subject_from_transformer(build(), name="mine"), CHECKS[2:3])
    text = str(report)
    assert text.startswith("The doctor on mine\npass  future            later target tokens replaced;")
    assert "all 1 passed" in text
    assert msgspec.json.decode(msgspec.json.encode(report), type=DoctorReport) == report


# --- a model folder, a settings file ---


def test_a_trained_model_passes(trained: Path) -> None:
    report = examine(subject_from_path(trained))
    assert [check.passed for check in report.checks] == [True] * len(CHECKS), str(report)


def test_a_settings_file_describes_the_model_that_training_builds(trained: Path) -> None:
    from transduce.model_folder.read import read_model_folder

    subject = subject_from_path(trained / "settings.toml")
    config = read_model_folder(trained).model.config
    assert isinstance(subject.module, Transformer)
    assert subject.module.config == config
    assert subject.name.endswith("settings.toml")


def test_settings_left_open_are_chosen_as_by_training(write_lines: WriteLines) -> None:
    source, target = write_lines("a.zh", ["我爱你"] * 100), write_lines("a.en", ["I love you"] * 100)
    data = {"source": [str(source)], "target": [str(target)]}
    chosen = config_from_settings(make_settings({"data": data}))
    assert (chosen.d_model, chosen.source_vocabulary_size) == (128, 400)
    said = {"preset": "small", "tokenizer": {"vocabulary_size": 900}, "model": {"norm_order": "post"}}
    without_text = config_from_settings(make_settings(said))
    assert (without_text.d_model, without_text.target_vocabulary_size, without_text.norm_order) == (256, 900, "post")


def test_a_path_that_is_neither_model_folder_nor_settings_file_is_refused(
    tmp_path: Path, write_lines: WriteLines
) -> None:
    with pytest.raises(TransduceError, match=r"a model folder or a settings file, but .*gone does not exist"):
        subject_from_path(tmp_path / "gone")
    with pytest.raises(TransduceError, match=r"is not valid TOML"):
        subject_from_path(write_lines("s.toml", ["= ="]))


@pytest.mark.parametrize("name", ["my model.pt", "weights"])
def test_a_file_of_weights_is_refused_with_the_command_that_imports_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    torch.save({"a": torch.zeros(2)}, path)
    assert main(["doctor", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"convert it by `transduce import-tutorial {shell_word(path)} OUT --style STYLE --heads N" in said
    assert "call `transduce.examine` in Python." in said
    assert main(["translate", str(path)]) == 2
    assert "import-tutorial" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}", "utf-8")
    with pytest.raises(TransduceError, match=r"is one file of a model folder: name the folder, "):
        subject_from_path(path)
