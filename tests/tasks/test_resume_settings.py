"""Test which settings may change when a run is resumed, and which may not."""

import gzip
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from transduce.errors import TransduceError
from transduce.machine import detect_machine
from transduce.tasks.run import run_folder as resume_module
from transduce.tasks.run.run_folder import adapt_to_machine, apply_changes, read_stored
from transduce.tasks.settings.reading import make_settings
from transduce.tasks.train import train
from transduce.training.checkpoint import Environment
from transduce.training.choices import Choice
from transduce.training.loop import TrainResult
from transduce.training.schedule import constant_weight_decay


def test_steps_may_be_set_again(trained: Path) -> None:
    stored = read_stored(trained / "settings.toml")
    changed = apply_changes(stored, {"training": {"steps": 120, "patience": 0, "report_every": 7}})
    assert (changed.training.steps, changed.training.patience, changed.training.report_every) == (120, 0, 7)
    assert (changed.model, changed.data, changed.tokenizer) == (stored.model, stored.data, stored.tokenizer)


def test_a_weight_decay_that_was_chosen_follows_the_number_of_steps(trained: Path, tmp_path: Path) -> None:
    stored = read_stored(trained / "settings.toml")
    before = stored.training.weight_decay
    assert stored.training.steps == 80
    assert before
    longer = apply_changes(stored, {"training": {"steps": 800}}).training
    assert longer.weight_decay == constant_weight_decay(
        800, schedule="linear", peak=longer.learning_rate or 0.0, warmup_steps=longer.warmup_steps or 0
    )
    assert longer.weight_decay < before / 5
    assert apply_changes(stored, {"training": {"steps": 80}}) == stored
    again = apply_changes(stored, {"training": {"steps": 800}})
    assert apply_changes(again, {"training": {"steps": 80}}).training.weight_decay == pytest.approx(before)
    path = tmp_path / "settings.toml"
    text = (trained / "settings.toml").read_text("utf-8")
    path.write_text(re.sub(r"^weight_decay = .*$", "weight_decay = 0.5", text, flags=re.MULTILINE), "utf-8")
    assert apply_changes(read_stored(path), {"training": {"steps": 800}}).training.weight_decay == 0.5


def test_an_earlier_default_of_search_is_no_change(trained: Path) -> None:
    stored = read_stored(trained / "settings.toml")
    assert apply_changes(stored, {"search": {"diversity_penalty": 0.5}}) == stored
    with pytest.raises(TransduceError, match=r"`search.diversity_penalty` was 1.0 when this run started"):
        apply_changes(stored, {"search": {"diversity_penalty": 2.0}})


def test_a_weight_decay_that_was_chosen_follows_the_learning_rate(trained: Path) -> None:
    stored = read_stored(trained / "settings.toml")
    before, rate = stored.training.weight_decay, stored.training.learning_rate
    assert before
    assert rate
    slower = apply_changes(stored, {"training": {"learning_rate": rate / 2}})
    assert slower.training.weight_decay == pytest.approx(2 * before)
    longer = apply_changes(slower, {"training": {"steps": 800}}).training
    assert longer.weight_decay == constant_weight_decay(
        800, schedule="linear", peak=rate / 2, warmup_steps=longer.warmup_steps or 0
    )


def test_the_lower_weight_decay_of_a_base_model_follows_the_steps_and_the_rate(trained: Path) -> None:
    stored = read_stored(trained / "settings.toml")
    usual = 0.05 / (stored.model.d_model or 1)  # of a base model
    options: dict[str, Any] = {"schedule": "linear", "warmup_steps": stored.training.warmup_steps}
    training = msgspec.structs.replace(
        stored.training, learning_rate=usual / 4, weight_decay=constant_weight_decay(80, peak=usual, **options)
    )
    base = msgspec.structs.replace(stored, init_from=str(trained), training=training)
    longer = apply_changes(base, {"training": {"steps": 800}}).training
    assert longer.weight_decay == constant_weight_decay(800, peak=usual, **options)
    faster = apply_changes(base, {"training": {"learning_rate": 2 * usual}}).training
    assert faster.weight_decay == constant_weight_decay(80, peak=2 * usual, **options)
    own = msgspec.structs.replace(base, training=msgspec.structs.replace(training, weight_decay=0.5))
    assert apply_changes(own, {"training": {"steps": 800}}).training.weight_decay == 0.5


def test_steps_replace_minutes(trained: Path, tmp_path: Path) -> None:
    text = (trained / "settings.toml").read_text("utf-8").replace("steps = 80", "minutes = 1.0")
    path = tmp_path / "settings.toml"
    path.write_text(text, "utf-8")
    stored = read_stored(path)
    assert (stored.training.steps, stored.training.minutes) == (None, 1.0)
    changed = apply_changes(stored, {"training": {"steps": 50}})
    assert (changed.training.steps, changed.training.minutes) == (50, None)


def test_a_run_stored_without_an_optimizer_setting_resumes_with_adam(trained: Path, tmp_path: Path) -> None:
    text = (trained / "settings.toml").read_text("utf-8")
    assert 'optimizer = "muon"\n' in text
    path = tmp_path / "settings.toml"
    path.write_text(text.replace('optimizer = "muon"\n', ""), "utf-8")
    assert read_stored(path).training.optimizer == "adam"
    assert read_stored(trained / "settings.toml").training.optimizer == "muon"


def test_a_run_of_an_earlier_version_resumes_without_spreading_copies(trained: Path, tmp_path: Path) -> None:
    text = (trained / "settings.toml").read_text("utf-8")
    path = tmp_path / "settings.toml"
    path.write_text(text, "utf-8")
    assert read_stored(path).training.spread_copies
    path.write_text(text.replace("spread_copies = true\n", ""), "utf-8")
    assert not read_stored(path).training.spread_copies


def test_repeating_unchanged_settings_on_resume_is_accepted(trained: Path) -> None:
    stored = read_stored(trained / "settings.toml")
    said = {"data": {"source": list(stored.data.source)}, "model": {"d_model": 32}, "training": {"seed": 1}}
    assert apply_changes(stored, said) == stored
    assert apply_changes(stored, {"data": {"source": stored.data.source}}) == stored  # a tuple, as Python has them


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"model": {"d_model": 64}},
            r"`model\.d_model` was 32 when this run started, and cannot become 64",
        ),
        (
            {"search": {"sampling": {"seed": 3}}},
            r"`search\.sampling\.seed` was not set when this run started, and cannot become 3 on --resume",
        ),
        ({"training": {"seed": 2}}, r"`training\.seed` was 1 when this run started, and cannot become 2"),
        (
            {"training": {"minutes": 2.0}},
            r"`training\.minutes` was not set when this run started, and cannot become 2\.0",
        ),
        (
            {"data": {"source": ["other.zh"]}},
            r"`data\.source` was \[.*train\.zh'\] when .* cannot become \['other\.zh'\]",
        ),
    ],
)
def test_changing_model_data_or_seed_on_resume_is_refused(trained: Path, said: dict[str, object], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        apply_changes(read_stored(trained / "settings.toml"), said)


def test_a_run_resumes_with_its_files_elsewhere_and_under_other_names(
    toy_corpus: Path, toy_settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spelled in another way, in another working folder, moved, and compressed: the content counts."""
    names = ("train.zh", "train.en", "dev.zh", "dev.en")
    files = {name: value for name, value in toy_settings.items() if not name.startswith("data.")}
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    for name in names:
        shutil.copy(toy_corpus / name, first / name)
    options = ("source", "target", "dev_source", "dev_target")
    out = tmp_path / "m"

    def go_on(steps: int, form: str) -> TrainResult | None:
        said: dict[str, Any] = dict(zip(options, (form.format(name) for name in names), strict=True)) if form else {}
        settings = files | {"training.steps": steps, "training.validate_every": 4}
        return train(out=out, settings=settings, resume=True, device="cpu", threads=1, **said)

    monkeypatch.chdir(first)
    go_on(4, "{}")
    go_on(6, "./{}")
    monkeypatch.chdir(second)
    go_on(8, "")
    for name in names:
        with gzip.open(second / f"{name}.gz", "wb") as file:
            file.write((first / name).read_bytes())
        (first / name).unlink()
    with pytest.raises(TransduceError, match=r"dev\.zh, a file of the run's dev set, is not there any more: set"):
        go_on(10, "")
    go_on(10, "{}.gz")
    monkeypatch.chdir(tmp_path)
    result = go_on(12, "")
    assert result is not None
    assert result.step == 12
    (second / "dev.en.gz").write_bytes(gzip.compress(b"other\n"))
    with pytest.raises(TransduceError, match=r"cannot become .*, which has other content on --resume"):
        go_on(14, "second/{}.gz")


def test_model_and_training_settings_may_change_before_the_first_checkpoint(trained: Path) -> None:
    """The largest batch did not fit: the same folder may be tried with a smaller one."""
    stored = read_stored(trained / "settings.toml")
    changed = apply_changes(
        stored, {"training": {"batch_tokens": 64, "accumulate": 2}, "model": {"d_ff": 8}}, trained=False
    )
    assert (changed.training.batch_tokens, changed.training.accumulate, changed.model.d_ff) == (64, 2, 8)
    minutes = apply_changes(stored, {"training": {"minutes": 2.0}}, trained=False)
    assert (minutes.training.minutes, minutes.training.steps) == (2.0, None)
    with pytest.raises(TransduceError, match=r"`data\.source` was"):
        apply_changes(stored, {"data": {"source": ["other.zh"]}}, trained=False)


@pytest.mark.parametrize("trained", [False, True])
def test_a_resumed_run_knows_both_names_of_its_batch_size(trained: bool) -> None:
    stored = make_settings({"task": {"kind": "tagging"}, "training": {"batch_tokens": 32}})
    same = apply_changes(stored, {"training": {"batch_size": 32}}, trained=trained)
    assert same == stored
    if trained:
        with pytest.raises(TransduceError, match=r"`training\.batch_size` was 32 when this run started"):
            apply_changes(stored, {"training": {"batch_size": 16}}, trained=True)


@pytest.mark.parametrize(
    ("before", "now", "changed", "cuda_graphs"),
    [
        (2, 2, {}, True),
        (1, 1, {}, None),
        (2, 1, {}, None),
        (1, 2, {}, None),
        (None, 2, {}, None),
        (2, 2, {"sharded": True}, None),
        (2, 2, {"cuda_graphs": False}, False),
        (2, 4, {"cuda_graphs": True}, True),
    ],
)
def test_steps_are_recorded_as_before_by_as_many_processes(
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: int | None,
    now: int,
    changed: dict[str, bool],
    cuda_graphs: bool | None,
) -> None:
    """None: chosen anew, by all that a new run goes by."""
    monkeypatch.setattr(resume_module, "choose_kernels", lambda *_, **__: Choice("native", ""))
    stored = apply_changes(
        read_stored(trained / "settings.toml"), {"training": {"cuda_graphs": True, "kernels": "native"}}
    )
    settings = apply_changes(stored, {"training": changed})
    machine = msgspec.structs.replace(detect_machine("cpu", 1), device="cuda:0", processes=now)
    environment = Environment(device="", instructions="", threads=1, torch="", processes=before)
    assert adapt_to_machine(settings, changed, machine, environment).training.cuda_graphs is cuda_graphs


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (b"preset = 5\n", ": `preset` must be a text, but is `5`."),
        (b"not toml", " cannot be read: Expected '=' after a key"),
        (b"\xff\xfe", ": files must be UTF-8, but this one is UTF-16: convert it by `iconv -f UTF-16"),
        (b'preset = "tiny"\nunknown = 1\n', ": There is no setting `unknown`: "),
    ],
)
def test_damaged_settings_are_refused(tmp_path: Path, damage: bytes, said: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(damage)
    with pytest.raises(TransduceError, match=f"^{re.escape(f'{path}{said}')}"):
        read_stored(path)
