"""Test that contradictory settings are rejected before a corpus is read; these tests have no corpus."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from transduce.errors import TransduceError
from transduce.model.build import register
from transduce.model.config import REGISTERED_NAMES
from transduce.model.norms import NORMS
from transduce.tasks.run.run import RunRequest, train_run
from transduce.tasks.train import train

MISSING = {"data.source": ["nowhere.zh"], "data.target": ["nowhere.en"]}


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"model.num_heads": 3}, r"`model\.d_model` must be a multiple of `model\.num_heads`, but 128 is not one of 3"),
        ({"preset": "base", "model.num_heads": 5}, r"512 is not one of 5"),
        ({"model.positions": "rotary", "model.attention_score": "additive"}, r"Rotary positions act through the dot"),
        (
            {"model.max_positions": 7},
            r"`model\.max_positions` = 7 means nothing where",
        ),
        ({"model.kind": "recurrent", "training.optimizer": "muon"}, r"`training\.optimizer` is muon, which updates"),
        (
            {"model.kind": "recurrent", "model.recurrent_attention": "none", "search.coverage_penalty": 0.2},
            r"`coverage_penalty` needs the decoder's cross-attention, but this model has no attention",
        ),
        (
            {"search.generate.forbidden_ids": [-1]},
            r"`search\.generate\.forbidden_ids` must be a token id, at least 0, but is -1",
        ),
        ({"training.best_by": "accuracy"}, r"`training\.best_by` is accuracy, but `task\.kind` = translation"),
        ({"training.optimizer": "adam", "training.momentum": 0.9}, r"`training\.momentum` \(0\.9\) is Muon's"),
        (
            {"task.kind": "classification", "tokenizer.joint": False},
            r"`tokenizer\.joint` = false is for separate vocabularies, but classification has one text with labels",
        ),
        (
            {"task.kind": "language-model", "data.target": [], "search.max_length": 5},
            r"`search\.max_length` does nothing where .* language-model: pass it to `transduce generate` each time",
        ),
        (
            {"task.kind": "masked-language-model", "data.target": [], "search.sampling.temperature": 0.1},
            r"`search\.sampling` does nothing where",
        ),
        ({"task.kind": "classification", "search.beam_size": 3}, r"`search\.beam_size` does nothing .*: leave it out"),
        (
            {"task.kind": "time-series", "data.target": [], "search.beam_size": 3},
            r"`search\.beam_size` does nothing .*: leave it out",
        ),
        ({"model.norm_order": "post", "training.momentum": 0.9}, r"`training\.momentum` \(0\.9\) is Muon's"),
        ({"data.temperature": 5.0}, r"`data\.temperature` sets how often .* is sampled, but there are none"),
        ({"search.diversity_penalty": 3.0}, r"`diversity_penalty` applies .*, but `diverse_groups` is 1"),
        (
            {"task.kind": "denoising", "data.target": [], "search.beam_size": 2},
            r"`search\.beam_size` does nothing .* denoising: set it in the run that continues from this model",
        ),
        (
            {"task.kind": "language-model", "data.target": [], "data.strict_format": True},
            r"`data\.strict_format` means nothing where `task\.kind` is language-model",
        ),
        (
            {"task.kind": "classification", "training.placeholder_rate": 0.2},
            r"`training\.placeholder_rate` means nothing where `task\.kind` is classification",
        ),
    ],
)
def test_contradictory_settings_are_refused_before_the_corpus_is_read(
    settings: dict[str, Any], refusal: str, tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match=refusal):
        train(out=tmp_path / "run", settings=MISSING | settings, device="cpu", threads=1)
    assert not (tmp_path / "run").exists()


def test_a_registered_component_that_decodes_otherwise_than_it_trains_is_refused_before_the_corpus_is_read(
    tmp_path: Path,
) -> None:
    register("norm", "over-time")(lambda _width, _epsilon: CenteredOverTime())
    try:
        for dry_run in (False, True):
            with pytest.raises(
                TransduceError, match=r"`model\.norm` = over-time decodes something else than it trains"
            ):
                train(
                    out=tmp_path / "run", settings=MISSING | {"model.norm": "over-time"}, device="cpu", dry_run=dry_run
                )
    finally:
        NORMS.pop("over-time")
        REGISTERED_NAMES["norm"].discard("over-time")
    assert not (tmp_path / "run").exists()


class CenteredOverTime(nn.Module):
    """A norm over the positions of a sequence, which decoding does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"model.num_heads": 16},  # of a preset that is not known yet
        {"training.optimizer": "muon", "training.momentum": 0.9},
        {"tokenizer.joint": False, "model.tie_source_target": False},
        {"task.kind": "language-model", "data.target": [], "model.positions": "rotary"},
        {"task.kind": "masked-language-model", "data.target": []},
    ],
)
def test_settings_that_depend_on_the_corpus_are_not_refused_before_reading_it(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match=r"nowhere\.zh"):
        train(out=tmp_path / "run", settings=MISSING | settings, device="cpu", threads=1)


def test_settings_are_compared_with_the_base_model_before_the_corpus_is_read(trained: Path, tmp_path: Path) -> None:
    said = {"init_from": str(trained), "model.d_model": 48} | MISSING
    with pytest.raises(TransduceError, match=r"`model\.d_model` is 48, but the model in .* has \d+, and its weights"):
        train(out=tmp_path / "run", settings=said, device="cpu", threads=1)


def test_settings_changed_on_resume_are_reported_with_their_former_values(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"training": {"steps": 1_000, "report_every": 50}}
    train_run(RunRequest(settings=content, out=trained, resume=True, dry_run=True, device="cpu", threads=1))
    told = [line for line in capsys.readouterr().err.splitlines() if "which was" in line]
    names = [line.partition(":")[0] for line in told]
    assert names == ["training.steps", "training.weight_decay", "training.report_every"]  # the decay follows the steps
    assert told[0].startswith("training.steps: 1000, which was ")
    train_run(RunRequest(settings={}, out=trained, resume=True, dry_run=True, device="cpu", threads=1))
    assert "which was" not in capsys.readouterr().err


def test_a_dev_set_that_learned_positions_have_no_capacity_for_is_refused(
    toy_settings: dict[str, Any], toy_corpus: Path, tmp_path: Path
) -> None:
    """The error would otherwise occur at the first validation, which may be hours later."""
    for side in ("zh", "en"):
        lines = (toy_corpus / f"dev.{side}").read_text("utf-8").split("\n")[:5]
        (tmp_path / f"dev.{side}").write_text("\n".join([*lines, " ".join(lines * 4)]) + "\n", "utf-8")
    said = {"model.positions": "learned", "model.max_positions": 40}
    dev = {f"data.dev_{name}": [str(tmp_path / f"dev.{side}")] for name, side in (("source", "zh"), ("target", "en"))}
    with pytest.raises(
        TransduceError,
        match=r"`model\.max_positions` must be at least \d+, as many tokens as a text of the dev set has",
    ):
        train(out=tmp_path / "run", settings=toy_settings | said | dev, device="cpu", threads=1)
    assert not (tmp_path / "run").exists()


def test_a_warm_up_that_leaves_no_steps_to_fall_is_reported(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = toy_settings | {"training.steps": 40, "training.warmup_steps": 30, "training.schedule": "linear"}
    train(out=tmp_path / "run", settings=settings, dry_run=True, device="cpu", threads=1)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "training.warmup_steps" in line)
    assert line.split()[1] == "20"
    assert line.endswith("half of the steps, as the rate falls in the rest; you set 30")


def test_a_step_larger_than_the_text_is_not_accumulated(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = toy_settings | {"training.batch_tokens": 1_000_000}
    train(out=tmp_path / "run", settings=settings, dry_run=True, device="cpu", threads=1)
    assert "training.accumulate" not in capsys.readouterr().err  # all of it is one part


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (
            {"search.generate.forced_first_id": 99_999},
            r"`search\.generate\.forced_first_id` must be a token id .* 99,999",
        ),
        (
            {"search.generate.forbidden_ids": [5, 300]},
            r"forbidden_ids` must be a token id of the vocabulary, 0 to \d+, but",
        ),
        (
            {"training.batch_tokens": 600, "training.accumulate": 601},
            r"`training\.accumulate` must be at most .* \(600\)",
        ),
    ],
)
def test_settings_that_contradict_the_corpus_are_refused_before_the_first_step(
    settings: dict[str, Any], refusal: str, toy_settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match=refusal):
        train(out=tmp_path / "run", settings=toy_settings | settings, device="cpu", threads=1)
    assert not (tmp_path / "run").exists()


def test_settings_without_effect_in_a_recurrent_model_are_reported(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"model.kind": "recurrent", "model.recurrent_attention": "none", "model.attention_score": "general"}
    train(out=tmp_path, settings=toy_settings | own, dry_run=True, device="cpu", threads=1)
    told = capsys.readouterr().err
    assert re.search(r"model.d_ff +64  has no effect: a recurrent model has none", told)
    assert re.search(r"model.attention_score +general  has no effect: this model has no attention", told)
    assert "model.num_heads" not in told


def test_translations_that_a_task_does_not_write_are_reported(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {name: value for name, value in toy_settings.items() if "target" not in name and "encoder" not in name}
    for translated, is_reported in ((7, True), (0, False)):
        changed = own | {"task.kind": "language-model", "training.translate_dev": translated}
        train(out=tmp_path, settings=changed, dry_run=True, device="cpu", threads=1)
        told = capsys.readouterr().err
        assert ("has no effect: a run of language-model writes no translations" in told) == is_reported


def test_the_choice_log_lists_every_setting_of_the_model_that_was_set(
    toy_settings: dict[str, Any], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {
        "share_layers": True,
        "activation": "swiglu",
        "norm": "rms",
        "attention_window": 4,
        "attention_dropout": 0.2,
    }
    settings = toy_settings | {f"model.{name}": value for name, value in said.items()}
    train(out=tmp_path / "run", settings=settings, dry_run=True, device="cpu", threads=1)
    lines = capsys.readouterr().err.splitlines()
    for name, value in said.items():
        (line,) = (line for line in lines if f" model.{name} " in line)
        assert re.search(rf" {value} +set by you$", line)
    kept = {
        name: value for name, value in toy_settings.items() if not name.startswith(("model.", "tokenizer.", "preset"))
    }
    kept |= {"init_from": str(trained), "model.attention_dropout": 0.2, "model.norm": "layer"}
    train(out=tmp_path / "run", settings=kept, dry_run=True, device="cpu", threads=1)
    told = capsys.readouterr().err
    assert re.search(r" model\.attention_dropout +0\.2 +set by you\n", told)
    assert re.search(r" model\.norm +layer +set by you\n", told)


def test_a_model_that_needs_more_than_the_free_memory_is_refused_before_the_corpus_is_read(tmp_path: Path) -> None:
    sizes = {"preset": "big", "model.d_model": 1 << 16, "model.num_encoder_layers": 900}
    for kind in ({}, {"task.kind": "language-model", "data.target": []}):
        layers = {"model.num_decoder_layers": 900} if kind else {}
        settings = MISSING | {"preset": "big", "model.d_model": 1 << 16} | (layers or sizes) | kind
        with pytest.raises(TransduceError, match=r"needs at least .* GiB of memory .* but only .* free: lower `model"):
            train(out=tmp_path / "run", settings=settings, dry_run=True, device="cpu")
    with pytest.raises(TransduceError, match="needs at least"):
        train(out=tmp_path / "run", settings=MISSING | {"model.d_model": 1 << 40}, device="cpu")


def test_the_vocabulary_counts_once_it_is_known(
    toy_settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter((1 << 40, 1_000))  # before and after the corpus is read
    monkeypatch.setattr("transduce.training.memory.available_memory", lambda _: next(free))
    with pytest.raises(TransduceError, match=r"needs at least \d+ MiB of memory .* but only 0 MiB"):
        train(out=tmp_path / "run", settings=toy_settings, device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_task_that_counts_tokens_has_no_batch_size(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    settings = {name: value for name, value in toy_settings.items() if name != "training.batch_tokens"}
    with pytest.raises(TransduceError, match=r"`task\.kind` is `translation`, which counts tokens: set `training\.b"):
        train(out=tmp_path / "run", settings=settings | {"training.batch_size": 24}, device="cpu", threads=1)
    assert not (tmp_path / "run").exists()
