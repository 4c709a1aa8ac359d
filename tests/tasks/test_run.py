"""Test a run from files to a model folder: its output, its files, and that stopping changes nothing."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from transduce.errors import TransduceError, shell_word
from transduce.evaluation.scores import ScoreReport
from transduce.inference.load import open_translator
from transduce.inference.translation import Translation
from transduce.inference.translator import Translator
from transduce.process_environment import use_common_options
from transduce.search.settings import SearchSettings
from transduce.tasks import corpus as corpus_module
from transduce.tasks.corpus import TaskCorpus
from transduce.tasks.kinds.kind import RunPlacement
from transduce.tasks.kinds.translation import DevSet
from transduce.tasks.run import run as run_module
from transduce.tasks.run.run import Run, RunRequest, advice
from transduce.tasks.run.run_folder import RunFolder, read_stored
from transduce.tasks.train import train
from transduce.text.languages import LanguageProfiles
from transduce.training.callbacks import Callback
from transduce.training.checkpoint import Environment, load_newest
from transduce.training.display import ProgressDisplay
from transduce.training.distributed import Processes
from transduce.training.loop import Trainer, TrainResult

SOURCES = Path(__file__).resolve().parents[2] / "src"
WriteLines = Callable[[str, Iterable[str]], Path]


def train_events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text("utf-8").split("\n")[:-1]
    return [event for event in map(json.loads, lines) if event["event"] == "train"]


def without_times(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in event.items() if k not in ("tokens_per_second", "elapsed_seconds")} for event in events]


# --- nothing said ---


def test_a_dry_run_prints_every_choice_with_its_reason_and_leaves_nothing(
    toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    out = tmp_path / "model"
    files = {"source": toy_corpus / "train.zh", "target": toy_corpus / "train.en"}
    before = sorted(toy_corpus.iterdir())
    assert train(out=out, source=files["source"], target=files["target"], dry_run=True, device="cpu") is None
    assert not out.exists()
    assert list(temporary.iterdir()) == []
    assert sorted(toy_corpus.iterdir()) == before
    said = capsys.readouterr().err
    for line in (
        "1,000 pairs read, 900 kept, 100 held out",
        "tokenizer.vocabulary_size",
        "and 31 characters of a script without spaces",
        "tiny  900 pairs, fewer than 50,000",
        "128  preset tiny",
        "falls to zero at the last step",
        "muon  needs half of Adam's steps",
        "1 / d_model (128)",
        "a step: 1.3 / the sum of the learning rates of",
        "Dry run: nothing was trained.",
    ):
        assert line in said
    choices = [line for line in said.split("\n") if line.startswith("  ")]
    assert len(choices) >= 15
    (decay,) = (line.split() for line in choices if "training.weight_decay" in line)
    assert float(decay[1]) > 0.0  # what --set training.weight_decay takes
    assert all(len(line.split(maxsplit=2)) == 3 for line in choices)  # name, value, reason


def test_the_choice_log_marks_settings_that_were_set(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(out=tmp_path / "m", settings=toy_settings, dry_run=True, device="cpu", threads=1)
    said = [line.split() for line in capsys.readouterr().err.split("\n")]
    assert ["model.d_model", "32", "set", "by", "you"] in said
    assert ["training.steps", "80", "set", "by", "you"] in said


# --- refusals that leave nothing behind ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data.source": []}, "There is no text to learn from: name it by `data.source` and `data.target`"),
        ({"data.source": ["nowhere.zh"]}, r"nowhere\.zh does not exist: check the file's name"),
        ({"data.target": ["nowhere.en"]}, r"nowhere\.en does not exist: check the file's name"),
        ({"data.dev_source": ["nowhere.zh"]}, r"nowhere\.zh does not exist: check the file's name"),
        ({"data.dev_target": []}, r"dev\.zh holds one side only: name the file of the other side too"),
        ({"model.d_model": 33}, r"`model\.d_model` must be even \(a sine and a cosine a pair\), but is 33"),
        (
            {"model.kind": "recurrent", "training.optimizer": "muon"},
            r"`training\.optimizer` is muon, which updates the matrices of attention .* but `model\.kind` is recurrent",
        ),
        ({"model.num_heads": 5}, r"must be a multiple of `model\.num_heads`, but 32 is not one of 5"),
        ({"tokenizer.vocabulary_size": 5000}, "The text is too small for `tokenizer.vocabulary_size` 5000: set it"),
        ({"tokenizer.vocabulary_size": 20}, "`tokenizer.vocabulary_size` 20 is too small for the text's characters"),
        (
            {"data.filters.max_tokens": 1},
            r"No pair of .* is left: of .* or change `data\.filters\.max_tokens`, which is 1\.",
        ),
        (
            {"model.d_model": 1 << 20},
            r"Training a model of [\d,]+ parameters needs at least .* GiB .* are free: lower `model\.d_model`",
        ),
        ({"training.stepz": 1}, r"There is no setting `training\.stepz`: did you mean `training\.steps`\?"),
    ],
)
def test_a_refused_run_leaves_no_folder(
    toy_settings: dict[str, Any], tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    settings = toy_settings | settings
    if not settings["data.source"]:
        settings["data.target"] = []
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "new" / "folder" / "model", settings=settings, device="cpu", threads=1)
    assert list(tmp_path.iterdir()) == []


def test_undoing_a_run_folder_keeps_parents_with_other_content(tmp_path: Path) -> None:
    new = RunFolder(tmp_path / "a" / "b" / "model")
    (new.make().parent.parent / "another").mkdir()
    new.undo()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["another"]


def test_a_folder_that_holds_a_model_alone_is_not_trained_over(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    weights = tmp_path / "downloaded" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"weights")
    for resume in (False, True):
        with pytest.raises(TransduceError, match=r"downloaded holds a model, which training would replace, but no run"):
            train(out=weights.parent, settings=toy_settings, resume=resume, device="cpu", threads=1)
    assert [path.name for path in weights.parent.iterdir()] == ["model.safetensors"]


def test_a_dev_set_that_stands_in_the_training_text_is_reported(
    toy_corpus: Path, write_lines: WriteLines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {side: toy_corpus / f"train.{side}" for side in ("zh", "en")}
    sources, targets = (path.read_text("utf-8").split("\n")[:3] for path in files.values())
    for known, told in ((2, True), (0, False)):
        dev = [write_lines("dev.zh", [*(f"{line}！" for line in sources[:known]), "没有", ""])]
        dev.append(write_lines("dev.en", [*targets[:known], "none", ""]))
        options: dict[str, Any] = {"dev_source": dev[0], "dev_target": dev[1], "dry_run": True, "device": "cpu"}
        train(out=tmp_path / "model", source=files["zh"], target=files["en"], **options)
        said = capsys.readouterr().err.replace("\n", " ")
        notice = f"The training text has {known} of the dev set's {known + 1} sources, too (first: "
        assert (notice in said) == told


def test_only_the_first_process_cuts_the_dev_set(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would take it from under each other, and from under the first, which validates by it."""
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    card = out / "corpus-dev" / "corpus.json"
    before = card.stat()
    monkeypatch.setattr(corpus_module, "current_processes", lambda: Processes(1, 3))
    request = RunRequest(settings={}, out=out, resume=True, device="cpu", threads=1)
    _, corpus = Run(request).resume()
    assert isinstance(corpus, TaskCorpus)
    assert corpus.dev is not None
    assert corpus.dev.pairs == len(corpus.dev_sources)
    assert (card.stat().st_ino, card.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(("count", "threads"), [(1, 8), (2, 4), (4, 2), (16, 1)])
def test_a_run_resumed_with_several_processes_divides_the_cores(
    trained: Path, monkeypatch: pytest.MonkeyPatch, count: int, threads: int
) -> None:
    """Each with as many threads as the one had would have them wait for each other."""
    monkeypatch.setattr(run_module, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    run = Run(RunRequest(settings={}, out=trained, resume=True, device="cpu"))
    run.processes = Processes(0, count, local_count=count)
    run.machine = msgspec.structs.replace(run.machine, threads=max(1, 8 // count))
    run._use_threads_of(Environment(device="cpu", instructions="", threads=8, torch=""))
    assert run.machine.threads == threads


@pytest.mark.parametrize(("processes", "threads"), [(None, 2), (1, 2), (4, 8)])
def test_a_run_resumed_with_one_process_uses_all_cores(
    trained: Path, monkeypatch: pytest.MonkeyPatch, processes: int | None, threads: int
) -> None:
    monkeypatch.setattr(run_module, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    run = Run(RunRequest(settings={}, out=trained, resume=True, device="cpu"))
    run.machine = msgspec.structs.replace(run.machine, threads=8)
    run._use_threads_of(Environment(device="cpu", instructions="", threads=2, torch="", processes=processes))
    assert run.machine.threads == threads


def test_unequal_sides_are_refused(toy_corpus: Path, write_lines: WriteLines, tmp_path: Path) -> None:
    short = write_lines("short.en", ["one", "two"])
    with pytest.raises(
        TransduceError, match=r"must correspond line by line, but .*train\.zh has 1,000 lines and .* has 2"
    ):
        train(out=tmp_path / "model", source=toy_corpus / "train.zh", target=short)
    assert not (tmp_path / "model").exists()


def test_a_corpus_too_small_to_hold_out_is_refused(write_lines: WriteLines, tmp_path: Path) -> None:
    source, target = write_lines("a.zh", ["我爱你"] * 30), write_lines("a.en", ["I love you"] * 30)
    with pytest.raises(
        TransduceError,
        match=r"too few different sources to hold a dev set out of it: set `data.dev_source` and",
    ):
        train(out=tmp_path / "model", source=source, target=target, settings={"tokenizer.byte_fallback": False})
    assert not (tmp_path / "model").exists()


def test_the_choice_log_reports_languages_and_how_to_set_them(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(out=tmp_path / "run", settings=toy_settings, dry_run=True, device="cpu", threads=1)
    assert re.search(r"data\.languages +zh en  the files' suffixes\n", capsys.readouterr().err)
    for side in ("source", "target"):
        shutil.copy(toy_settings[f"data.{side}"][0], tmp_path / f"{side}.text")
    unnamed = toy_settings | {f"data.{side}": [str(tmp_path / f"{side}.text")] for side in ("source", "target")}
    train(out=tmp_path / "run", settings=unnamed, dry_run=True, device="cpu", threads=1)
    assert re.search(r"data\.languages +unknown  .* suffixes: pass `--languages`", capsys.readouterr().err)
    said = unnamed | {"data.languages": ["zh", "en"]}
    train(out=tmp_path / "run", settings=said, dry_run=True, device="cpu", threads=1)
    assert re.search(r"data\.languages +zh en  set by you\n", capsys.readouterr().err)


def test_references_of_single_words_are_scored_by_chrf(
    write_lines: WriteLines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BLEU of single words is 0, whatever the model has learnt."""
    numbers = [f"{number:03}" for number in range(1000)]
    source, target = write_lines("a.zh", numbers), write_lines("a.en", [number[::-1] for number in numbers])
    train(out=tmp_path / "run", source=source, target=target, dry_run=True, device="cpu", threads=1)
    assert re.search(r"training\.best_by +chrf  dev references have 1\.0 words on average", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("said", "adapts"),
    [
        ({}, True),
        ({"model.dropout": 0.2}, False),
        ({"model.attention_dropout": 0.0}, False),
        ({"model.dropout": 0.2, "training.adapt_dropout": True}, True),
        ({"training.adapt_dropout": False}, False),
    ],
)
def test_dropout_that_somebody_asked_for_is_not_turned_off(
    toy_settings: dict[str, Any], tmp_path: Path, said: dict[str, Any], adapts: bool
) -> None:
    chosen = {name: value for name, value in toy_settings.items() if name != "model.dropout"}
    train(out=tmp_path / "run", settings=chosen | {"training.steps": 1} | said, device="cpu", threads=1)
    assert read_stored(tmp_path / "run" / "settings.toml").training.adapt_dropout is adapts


def test_dev_lines_that_are_not_utf_8_are_left_out_of_validation(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    lines = Path(toy_settings["data.dev_source"][0]).read_bytes().split(b"\n")
    (tmp_path / "dev.zh").write_bytes(b"\n".join([b"caf\xe9", *lines[1:]]))
    settings = toy_settings | {"data.dev_source": [str(tmp_path / "dev.zh")], "training.steps": 2}
    train(out=tmp_path / "run", settings=settings, device="cpu", threads=1)
    assert (tmp_path / "run" / "model.safetensors").exists()
    request = RunRequest(settings={}, out=tmp_path / "run", resume=True, device="cpu", threads=1)
    _, corpus = Run(request).resume()
    assert isinstance(corpus, TaskCorpus)
    assert len(corpus.dev_sources) == len(lines) - 2  # the file ends with a line's end
    assert all("caf" not in source for source in corpus.dev_sources)


def test_a_mistake_does_not_remove_a_folder_that_was_there(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")
    with pytest.raises(TransduceError, match="even"):
        train(out=tmp_path, settings=toy_settings | {"model.d_model": 33}, device="cpu", threads=1)
    assert (tmp_path / "notes.txt").read_text("utf-8") == "mine"


def test_a_folder_that_holds_a_run_is_refused(trained: Path, toy_settings: dict[str, Any]) -> None:
    weights = (trained / "model.safetensors").stat()
    with pytest.raises(
        TransduceError,
        match=r"holds a run already: continue with --resume \(in Python: resume=True\), or",
    ):
        train(out=trained, settings=toy_settings, device="cpu", threads=1)
    assert (trained / "model.safetensors").stat() == weights


# --- what a run leaves ---


def test_a_run_folder_holds_all_files_of_a_model_and_no_partial_ones(trained: Path) -> None:
    for name in (
        "config.json", "model.safetensors", "sentencepiece.model", "tokenizer.json", "generation_config.json",
        "settings.toml", "manifest.json", "README.md", "metrics.jsonl", "dev_score.json",
    ):  # fmt: skip
        assert (trained / name).is_file(), name
    assert not [path for path in trained.rglob("*") if "partial" in path.name]


def test_metrics_jsonl_holds_each_report_and_validation_once(trained: Path) -> None:
    events = train_events(trained)
    assert [event["step"] for event in events] == list(range(5, 81, 5))
    assert events[-1]["loss"] < events[0]["loss"] / 1.5
    lines = (trained / "metrics.jsonl").read_text("utf-8").split("\n")[:-1]
    validations = [event for event in map(json.loads, lines) if event["event"] == "validation"]
    assert [event["step"] for event in validations] == [20, 40, 60, 80]
    assert all(event["signature"].startswith("nrefs:1") and len(event["samples"]) == 3 for event in validations)
    assert all(0.0 <= event["scores"]["exact_match"] <= 1.0 for event in validations)


@pytest.mark.parametrize(("sentences", "wrong", "perfect"), [(120, 0, True), (120, 1, False), (99, 0, False)])
def test_a_validation_is_perfect_where_all_of_many_sentences_are_right(
    trained: Path, monkeypatch: pytest.MonkeyPatch, sentences: int, wrong: int, perfect: bool
) -> None:
    run = Run(RunRequest(settings={}, out=trained, resume=True, device="cpu", threads=1))
    resolved, corpus = run.resume()
    assert isinstance(corpus, TaskCorpus)
    dev = run.kind.validation(
        corpus, resolved, RunPlacement(folder=trained, folder_argument="", device="cpu", threads=1)
    )
    assert isinstance(dev, DevSet)
    ((direction, translator),) = dev.directions
    dev.directions = [
        (direction._replace(sources=["一"] * sentences, references=["one"] * sentences), translator),
    ]
    answers = ["two"] * wrong + ["one"] * (sentences - wrong)
    monkeypatch.setattr(translator, "translate", lambda *_, **__: [SimpleNamespace(text=answer) for answer in answers])
    event = dev.validate(dev.model.state_dict(), 20)
    assert event.perfect is perfect
    assert event.scores == {"exact_match": (sentences - wrong) / sentences}


def test_contributions_to_exact_matches_have_the_score_as_their_mean(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(RunRequest(settings={}, out=trained, resume=True, device="cpu", threads=1))
    resolved, corpus = run.resume()
    assert isinstance(corpus, TaskCorpus)
    dev = run.kind.validation(
        corpus, resolved, RunPlacement(folder=trained, folder_argument="", device="cpu", threads=1)
    )
    assert isinstance(dev, DevSet)
    dev.best_by = "exact_match"
    ((direction, translator),) = dev.directions
    references = ["e\u0301t\u00e9", "one", "", "two"]  # spelled in another form, equal, blank and different
    dev.directions = [(direction._replace(sources=["一"] * 4, references=references), translator)]
    answers = ["\u00e9t\u00e9", "one ", " ", "three"]
    monkeypatch.setattr(translator, "translate", lambda *_, **__: [SimpleNamespace(text=answer) for answer in answers])
    event = dev.validate(dev.model.state_dict(), 20)
    assert [value > 0.0 for value in event.contributions] == [True, True, False, False]
    assert event.scores["exact_match"] == pytest.approx(2 / 3)
    assert sum(event.contributions) / 4 == pytest.approx(event.scores["exact_match"])


def test_tensorboard_holds_the_losses_and_scores_of_the_run(trained: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    found = reader.EventAccumulator(str(trained / "tensorboard")).Reload()
    losses = {event["step"]: event["loss"] for event in train_events(trained)}
    assert {scalar.step: pytest.approx(scalar.value) for scalar in found.Scalars("train/loss")} == losses
    assert [scalar.step for scalar in found.Scalars("dev/bleu")] == [20, 40, 60, 80]


def test_the_card_reports_languages_data_and_score_with_its_signature(trained: Path) -> None:
    card = (trained / "README.md").read_text("utf-8")
    assert card.startswith("---\nlanguage:\n- zh\n- en\n")
    assert "trained by transduce on 1,000 sentence pairs" in card
    assert "nrefs:1|case:mixed" in card
    assert "beam_size=4" in card
    assert "PegasusForConditionalGeneration" in card


def test_the_checkpoint_records_the_best_validation(trained: Path) -> None:
    checkpoint, refused = load_newest(trained / "checkpoints")
    assert checkpoint is not None
    assert refused == []
    lines = (trained / "metrics.jsonl").read_text("utf-8").split("\n")[:-1]
    scores = {e["step"]: e["bleu"] for e in map(json.loads, lines) if e["event"] == "validation"}
    assert checkpoint.state.best.step == max(scores, key=scores.__getitem__)
    assert checkpoint.state.best.value == max(scores.values())


# --- stopping and going on ---


def start_run(folder: Path, settings: dict[str, Any], *more: str) -> "subprocess.Popen[str]":
    sets = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "transduce",
            "train",
            "--out",
            str(folder),
            "--threads",
            "1",
            "--device",
            "cpu",
            *sets,
            *more,
        ],
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
    )


def stop_when(process: "subprocess.Popen[str]", ready: Callable[[], bool], number: signal.Signals, wait: float) -> str:
    """Send a signal some time after the run is ready, and return what the run printed."""
    deadline = time.monotonic() + 60.0
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(wait)
    process.send_signal(number)
    return process.communicate(timeout=60)[1]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_a_run_stopped_twice_ends_as_one_that_never_stopped(
    trained: Path, toy_settings: dict[str, Any], tmp_path: Path
) -> None:
    moments = random.SystemRandom()  # another moment at every run of the tests
    folder = tmp_path / "run"
    metrics = folder / "metrics.jsonl"

    first = start_run(folder, toy_settings)
    said = stop_when(
        first, lambda: metrics.exists() and metrics.stat().st_size > 0, signal.SIGTERM, moments.uniform(0.0, 0.5)
    )
    assert first.returncode == 143, said
    assert "(SIGTERM)" in said
    assert "Everything is saved: continue with --resume." in said
    stopped_at = load_newest(folder / "checkpoints")[0]
    assert stopped_at is not None

    second = start_run(folder, toy_settings, "--resume")
    said = stop_when(
        second,
        lambda: (folder / "config.json").exists() and train_events(folder)[-1]["step"] > max(20, stopped_at.state.step),
        signal.SIGINT,
        moments.uniform(0.0, 0.3),
    )
    assert second.returncode == 130, said
    assert f"Resuming after step {stopped_at.state.step}." in said
    # The run was stopped after its first validation, so its folder has a model.
    half_trained = open_translator(folder, precision="fp32", device="cpu", threads=1)
    assert half_trained("我喜欢苹果。", n_best=2).alternatives[1].tokens

    result = train(out=folder, resume=True, device="cpu", threads=1)
    assert result is not None
    assert (result.step, result.reason) == (80, "finished")
    assert (folder / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()
    assert [event["step"] for event in train_events(folder)] == list(range(5, 81, 5))
    complete = [event for event in without_times(train_events(trained)) if event["step"] > 20]
    resumed = {event["step"]: event for event in without_times(train_events(folder))}
    # A report that spans a stop is a mean over fewer steps; all others are the same to the last digit.
    assert sum(resumed[event["step"]] == event for event in complete) >= len(complete) - 2


def test_resuming_without_a_checkpoint_starts_anew_with_a_message(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, few = tmp_path / "run", {"training.steps": 3, "training.translate_dev": 0}
    train(out=folder, settings=toy_settings | few, resume=True, device="cpu", threads=1)
    assert f"No saved checkpoint in {folder}: starting from step 0." in capsys.readouterr().err
    once = (folder / "model.safetensors").read_bytes()
    # Killed before its first checkpoint, a run has settings and nothing else that counts.
    shutil.rmtree(folder / "checkpoints")
    (folder / "dev_score.json").unlink()
    train(out=folder, resume=True, device="cpu", threads=1)
    assert f"No saved checkpoint in {folder}: starting from step 0." in capsys.readouterr().err
    assert (folder / "model.safetensors").read_bytes() == once


@pytest.mark.parametrize("lost", ["removed", "damaged", "removed before the end"])
def test_a_trained_model_is_not_replaced_by_a_run_that_starts_again(
    toy_settings: dict[str, Any], tmp_path: Path, lost: str
) -> None:
    folder, few = tmp_path / "run", {"training.steps": 3, "training.translate_dev": 0, "training.save_every": 2}
    train(out=folder, settings=toy_settings | few, device="cpu", threads=1)
    trained = (folder / "model.safetensors").read_bytes()
    if lost == "damaged":
        for path in (folder / "checkpoints").rglob("state.json"):
            path.write_bytes(b"")
    else:
        shutil.rmtree(folder / "checkpoints")
    if lost == "removed before the end":
        (folder / "dev_score.json").unlink()
    with pytest.raises(
        TransduceError, match=r"holds a trained model, but no intact checkpoint .* --init-from .* remove"
    ):
        train(out=folder, resume=True, device="cpu", threads=1)
    assert (folder / "model.safetensors").read_bytes() == trained
    settings = (folder / "settings.toml").read_bytes()
    with pytest.raises(TransduceError, match=r"holds a trained model"):
        train(out=folder, resume=True, settings={"training.steps": 9}, device="cpu", threads=1)
    assert (folder / "settings.toml").read_bytes() == settings
    (folder / "model.safetensors").unlink()
    result = train(out=folder, resume=True, device="cpu", threads=1)
    assert result is not None
    assert result.step == 3
    assert (folder / "model.safetensors").read_bytes() == trained


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("num_heads", "2", "1"), ("d_model", "16", "32"), ("norm_order", '"pre"', '"post"')],
)
def test_an_edited_setting_of_the_model_is_refused_on_resume_and_others_are_said(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, old: str, new: str
) -> None:
    folder, few = tmp_path / "run", {"training.steps": 2, "training.translate_dev": 0}
    model = {"model.num_heads": 2, "model.d_model": 16, "model.norm_order": "pre"}
    train(out=folder, settings=toy_settings | few | model, device="cpu", threads=1)
    settings = (folder / "settings.toml").read_text()
    edited = settings.replace(f"{name} = {old}\n", f"{name} = {new}\n")
    assert edited != settings
    (folder / "settings.toml").write_text(edited)
    quoted = re.escape(f"`model.{name}` was {old.strip(chr(34))} up to the newest checkpoint")
    with pytest.raises(TransduceError, match=quoted):
        train(out=folder, resume=True, settings={"training.steps": 4}, device="cpu", threads=1)
    (folder / "settings.toml").write_text(re.sub(r"(?m)^seed = \d+$", "seed = 77", settings))
    capsys.readouterr()
    result = train(out=folder, resume=True, settings={"training.steps": 4}, device="cpu", threads=1)
    assert result is not None
    assert result.step == 4
    assert "training.seed: 77, which was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("data.source", ", which continues with the text as it was then."),
        # The best model by the old text stays the best by a figure that the new one may never reach.
        ("data.dev_source", ": validations on the new text are not comparable with earlier ones,"),
    ],
)
def test_resume_reports_that_a_file_has_changed(
    setting: str, what: str, toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, source = tmp_path / "run", tmp_path / "text.zh"
    shutil.copy(toy_settings[setting][0], source)
    settings = toy_settings | {setting: [str(source)], "training.steps": 3, "training.translate_dev": 0}
    train(out=folder, settings=settings, device="cpu", threads=1)
    for change in (False, True):
        capsys.readouterr()
        if change:
            source.write_text(source.read_text("utf-8").replace("我", "你"), encoding="utf-8")
        train(out=folder, resume=True, device="cpu", threads=1)
        assert (f"{source} has changed since this run started{what}" in capsys.readouterr().err) == change
    if setting == "data.source":
        source.unlink()
        (folder / "text_files.json").unlink()  # as in a run of an earlier version
        train(out=folder, resume=True, device="cpu", threads=1)


def test_resuming_a_missing_run_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"typo holds no run to resume, and no text is named to start one"):
        train(out=tmp_path / "typo", resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_before_its_settings_were_written_is_to_be_repeated(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with pytest.raises(TransduceError, match=r"before its settings were written, .*: repeat the original command with"):
        train(out=tmp_path, resume=True)


@pytest.mark.parametrize("event", ["on_start", "on_validation", "on_checkpoint", "on_end"])
def test_a_run_folder_that_is_moved_ends_the_run_and_resumes_in_its_new_place(
    event: str, toy_settings: dict[str, Any], tmp_path: Path
) -> None:
    folder, moved = tmp_path / "run", tmp_path / "moved"

    def move(*_: object) -> None:
        if folder.exists():
            folder.rename(moved)

    mover = type("Mover", (Callback,), {event: move})
    settings = toy_settings | {"training.steps": 4, "training.validate_every": 2, "training.save_every": 1}
    with pytest.raises(TransduceError, match=r"run is gone, .*: if it was moved, continue with --resume and its new"):
        train(out=folder, settings=settings, device="cpu", threads=1, callbacks=[mover()])
    assert not folder.exists()
    result = train(out=moved, resume=True, device="cpu", threads=1)
    assert result is not None
    assert result.step == 4


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('order = "pre"', 'order = "foo"', "`model.norm_order` must be one of pre, post, sandwich, but is `foo`"),
        ("beam_size = ", "beam_sise = ", "There is no setting `search.beam_sise`: did you mean `search.beam_size`"),
        ("utf-16", "", "files must be UTF-8, but this one is UTF-16: convert it by `iconv -f UTF-16 -t UTF-8 "),
    ],
)
def test_a_wrong_settings_file_of_a_run_is_explained(
    old: str, new: str, said: str, trained: Path, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    text = (trained / "settings.toml").read_text("utf-8")
    assert old in text or not new
    file.write_bytes(text.replace(old, new, 1).encode() if new else text.encode(old))
    with pytest.raises(TransduceError, match=re.escape(f"{file}: {said}")):
        train(out=tmp_path, resume=True)


def test_a_resumed_run_keeps_its_number_of_threads_if_cores_allow(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of sums depends on it. A number that is set, or a machine with fewer cores, overrides it with a
    message.
    """
    line = "The run continues, but not bit for bit as without the interruption: threads 1 then, 2 now."
    monkeypatch.setattr("transduce.machine.usable_cores", lambda: 2)
    found, finish = [], run_module._finish

    def note_threads(*arguments: Any) -> None:
        found.append(torch.get_num_threads())
        finish(*arguments)

    monkeypatch.setattr(run_module, "_finish", note_threads)
    for number, threads in enumerate((None, 2)):
        folder = tmp_path / str(number)
        shutil.copytree(trained, folder)
        train(out=folder, resume=True, device="cpu", threads=threads)
        assert (line in capsys.readouterr().err) == (threads == 2)
        assert torch.get_num_threads() == 1
    assert found == [1, 2]


def test_a_model_that_cannot_translate_yet_is_reported(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(out=tmp_path / "run", settings=toy_settings | {"training.steps": 2}, device="cpu", threads=1)
    said = capsys.readouterr().err
    assert re.search(
        r"The model cannot translate yet: its BLEU of 0\.\d\d is below 1\. The run has taken 2 steps "
        r"\(0\.\d\d epochs\): train longer \(--resume --steps M\), or with more data\.\nThe model of step 2 is in ",
        said,
    )


def test_training_longer_is_not_advised_to_a_run_that_was_best_long_before() -> None:
    result = TrainResult(
        step=300, epochs=150.0, steps=300, best_step=60, best_value=1.0, elapsed_seconds=1.0, reason="finished"
    )
    taken = "It is weak. The run has taken 300 steps (150.00 epochs)"
    assert advice("It is weak.", result) == f"{taken} and was best after 60: train with more data."
    late = msgspec.structs.replace(result, best_step=280)
    assert advice("It is weak.", late) == f"{taken}: train longer (--resume --steps M), or with more data."


def test_more_steps_set_on_resume_are_kept(toy_settings: dict[str, Any], toy_corpus: Path, tmp_path: Path) -> None:
    """With file names that tell no language, too: settings.toml must hold whatever a run has."""
    for name in ("zh", "en"):
        shutil.copy(toy_corpus / f"train.{name}", tmp_path / f"{name}.txt")
    files = {"data.source": [str(tmp_path / "zh.txt")], "data.target": [str(tmp_path / "en.txt")]}
    folder = tmp_path / "run"
    train(
        out=folder,
        settings=toy_settings | files | {"training.steps": 3, "training.translate_dev": 0},
        device="cpu",
        threads=1,
    )
    more = train(out=folder, steps=5, resume=True, device="cpu", threads=1)
    assert more is not None
    assert more.step == 5
    assert read_stored(folder / "settings.toml").training.steps == 5
    with pytest.raises(
        TransduceError,
        match=r"`training\.steps` must be at least 5, because the run in .* taken as many, but is 2",
    ):
        train(out=folder, steps=2, resume=True, device="cpu", threads=1)
    assert read_stored(folder / "settings.toml").training.steps == 5
    again = train(out=folder, resume=True, device="cpu", threads=1)
    assert again is not None
    assert (again.step, again.steps) == (5, 5)


def test_steps_of_a_damaged_checkpoint_do_not_count(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options: dict[str, Any] = {"out": folder, "device": "cpu", "threads": 1}
    settings = toy_settings | {"training.steps": 6, "training.save_every": 2, "training.translate_dev": 0}
    train(settings=settings, **options)
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    (newest / "weights.safetensors").write_bytes(b"damaged")
    with pytest.raises(TransduceError, match=r"`training\.steps` must be at least 4, because the run .* but is 3"):
        train(steps=3, resume=True, **options)
    fewer = train(steps=5, resume=True, **options)
    assert fewer is not None
    assert fewer.step == 5


def test_resuming_a_stopped_run_to_end_at_its_step_validates_it(
    toy_settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_write_report", lambda _self, _log: os.kill(os.getpid(), signal.SIGTERM))
    options: dict[str, Any] = {"out": tmp_path / "run", "device": "cpu", "threads": 1}
    train(settings=toy_settings | {"training.steps": 100, "training.report_every": 3}, **options)
    assert not (tmp_path / "run" / "config.json").exists()
    monkeypatch.undo()
    ended = train(steps=3, resume=True, **options)
    assert ended is not None
    assert (ended.step, ended.best_step, ended.reason) == (3, 3, "finished")
    assert open_translator(tmp_path / "run", device="cpu", threads=1)("我") is not None


def test_dropout_follows_how_often_a_text_is_read(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unsaid = {name: value for name, value in toy_settings.items() if name != "model.dropout"}
    one_text = {name: value for name, value in unsaid.items() if "encoder" not in name and "target" not in name}
    for settings, line in (
        (
            unsaid | {"training.steps": 20},
            r"model.dropout +0.1  the minimum; 0.3 × √\(about [0-9.]+ / 60 epochs\) would be",
        ),
        (unsaid | {"training.steps": 10_000}, r"model.dropout +0.3  preset tiny"),
        (unsaid | {"model.dropout": 0.2}, r"model.dropout +0.2  set by you"),
        (one_text | {"task.kind": "language-model"}, r"model.dropout +0.1  preset tiny"),  # it has its own
    ):
        train(out=tmp_path / "run", settings=settings, dry_run=True, device="cpu", threads=1)
        assert re.search(line, capsys.readouterr().err)


def test_large_steps_of_wide_models_are_taken_in_parts(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = toy_settings | {"model.d_model": 512, "training.batch_tokens": 4_096}
    for settings, line in (
        (wide, r"training.accumulate +2  at most 2,048 tokens at once, for less memory"),
        (wide | {"training.accumulate": 3}, r"training.accumulate +3  set by you"),
    ):
        train(out=tmp_path / "run", settings=settings, dry_run=True, device="cpu", threads=1)
        assert re.search(line, capsys.readouterr().err)
    train(out=tmp_path / "run", settings=toy_settings, dry_run=True, device="cpu", threads=1)
    assert "training.accumulate" not in capsys.readouterr().err


def test_two_runs_at_a_time_in_one_folder_are_refused(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    folder, few = tmp_path / "run", toy_settings | {"training.steps": 2, "training.translate_dev": 0}
    folder.mkdir()
    imports = "from pathlib import Path; from transduce.tasks.run.run_folder import lock_run"
    holding = f"{imports}\nwith lock_run(Path({str(folder)!r}))"
    other = subprocess.Popen(
        [sys.executable, "-c", f"{holding}: print('held', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    message = r"Another process is training in .*run: wait until it has ended, or name another folder with --out\."
    for _ in range(2):  # a new run, and the one that it left
        with pytest.raises(TransduceError, match=message):
            train(out=folder, settings=few, resume=True, device="cpu", threads=1)
    assert not (folder / "checkpoints").exists()
    other.kill()  # the system lets go of what it held
    other.communicate()
    result = train(out=folder, settings=few, resume=True, device="cpu", threads=1)
    assert result is not None
    assert result.step == 2
    assert not (folder / ".lock").exists()


def test_minutes_become_steps_that_are_kept(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {k: v for k, v in toy_settings.items() if k not in ("training.steps", "training.validate_every")}
    settings |= {"training.minutes": 0.04, "training.translate_dev": 0}
    settings |= {"training.optimizer": "muon"}
    folder = tmp_path / "run"
    started_at = time.monotonic()
    result = train(out=folder, settings=settings, device="cpu", threads=1)
    assert time.monotonic() - started_at < 30.0
    assert result is not None
    assert result.steps is not None
    assert result.step == result.steps >= 10
    said = capsys.readouterr().err
    assert re.search(r"0.04 min are about [\d,]+ steps at the current speed.", said)
    assert re.search(r"training.weight_decay +set later  1.3 / the sum of all steps' learning rates, once the", said)
    assert read_stored(folder / "settings.toml").training.weight_decay is None
    checkpoint = load_newest(folder / "checkpoints")[0]
    assert checkpoint is not None
    assert checkpoint.state.steps == result.steps
    again = train(out=folder, resume=True, device="cpu", threads=1)
    assert again is not None
    assert (again.steps, again.step) == (result.steps, result.step)
    assert "minutes are" not in capsys.readouterr().err


def test_an_evaluation_that_a_time_budget_does_not_allow_scores_fewer_sentences(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transduce.tasks.kinds import translation

    scored, seconds_each = list[int](), [0.1]

    def slow(*arguments: Any) -> dict[str, ScoreReport]:
        reports = score_dev(*arguments)
        scored.append(sum(report.sentences for report in reports.values()))
        time.sleep(seconds_each[0] * scored[-1])
        return reports

    score_dev = translation.score_dev
    monkeypatch.setattr(translation, "score_dev", slow)
    monkeypatch.setattr(translation, "_FEWEST_SENTENCES", 10)
    settings = {k: v for k, v in toy_settings.items() if k not in ("training.steps", "training.validate_every")}
    settings |= {"training.minutes": 0.04, "training.translate_dev": 0}
    with use_common_options([("--plugin", "my plugin.py")]):
        train(out=tmp_path / "run", settings=settings, device="cpu", threads=1)
    assert scored[:2] == [8, 10]
    assert scored[-1] < 50  # ten sentences take a second, and far less is left
    said = capsys.readouterr().err
    assert f"Dev set, only {scored[-1]} of 50 sentences, because the time is over (for all: `transduce train" in said
    assert f"train --resume --out {shell_word(tmp_path / 'run')} --plugin {shell_word('my plugin.py')}`)" in said
    seconds_each[0] = 0.0
    train(out=tmp_path / "run", resume=True, device="cpu", threads=1)
    assert scored[-1] == 50
    assert "Dev set, 50 sentences, beam 4:" in capsys.readouterr().err


def test_a_model_that_has_not_learned_to_end_is_validated_in_fewer_steps(
    toy_settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transduce.tasks.kinds import translation

    limits = []

    def record(translator: Translator, direction: Any, search: SearchSettings) -> list[str]:
        limits.append((search.beam_size, search.max_length_extra))
        return translate_dev(translator, direction, search)

    translate_dev = translation.translate_dev
    monkeypatch.setattr(translation, "translate_dev", record)
    train(out=tmp_path / "run", settings=toy_settings | {"training.steps": 2}, device="cpu", threads=1)
    assert limits == [(1, 10), (4, 50)]


def test_train_accepts_seed_and_precision_as_arguments(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    settings = {
        name: value for name, value in toy_settings.items() if name not in ("training.seed", "training.precision")
    }
    few = settings | {"training.steps": 1, "training.translate_dev": 0}
    train(out=tmp_path / "run", settings=few, seed=7, precision="bf16", device="cpu", threads=1)
    stored = read_stored(tmp_path / "run" / "settings.toml").training
    assert (stored.seed, stored.precision) == (7, "bf16")
    with pytest.raises(TransduceError, match=r"`training.precision` must be one of .*, but is `half`"):
        train(out=tmp_path / "other", settings=few, precision="half", device="cpu", threads=1)


def test_equal_settings_give_bit_equal_models(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "again"
    few = toy_settings | {"training.steps": 4, "training.validate_every": 4, "training.translate_dev": 0}
    train(out=folder, settings=few, device="cpu", threads=1)
    first = (folder / "model.safetensors").read_bytes()
    train(out=tmp_path / "more", settings=few, device="cpu", threads=1)
    assert (tmp_path / "more" / "model.safetensors").read_bytes() == first
    train(out=tmp_path / "other", settings=few | {"training.seed": 2}, device="cpu", threads=1)
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != first


def test_a_corpus_in_one_file_of_pairs_with_its_dev_set(
    toy_corpus: Path, toy_settings: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("train", "dev"):
        sides = [(toy_corpus / f"{name}.{side}").read_text("utf-8").split("\n")[:-1] for side in ("zh", "en")]
        lines = [f"{source}\t{target}\n" for source, target in zip(*sides, strict=True)]
        (tmp_path / f"{name}.tsv").write_text("".join(lines), "utf-8", newline="\n")
    pairs = {
        "data.source": [str(tmp_path / "train.tsv")],
        "data.target": [],
        "data.dev_source": [str(tmp_path / "dev.tsv")],
        "data.dev_target": [],
        "data.languages": ["zh", "en"],
    }
    few = {"training.steps": 2, "training.translate_dev": 2}
    train(out=tmp_path / "run", settings=toy_settings | pairs | few, device="cpu", threads=1)
    stored = read_stored(tmp_path / "run" / "settings.toml")
    assert stored.data.languages == ("zh", "en")
    assert json.loads((tmp_path / "run" / "dev_score.json").read_bytes())["sentences"] == 50


def test_validation_of_a_run_on_long_texts_does_not_split_them(
    toy_settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = [str(tmp_path / "dev.zh")], [str(tmp_path / "dev.en")]
    Path(dev[0][0]).write_text("老师喜欢苹果。" * 200 + "\n", "utf-8")
    Path(dev[1][0]).write_text("the teacher likes apples. " * 100 + "\n", "utf-8")
    parts: list[int] = []

    def translate(self: Translator, *args: Any, **options: Any) -> list[Translation]:
        found = whole(self, *args, **options)
        parts.extend(translation.parts for translation in found)
        return found

    whole = Translator.translate
    monkeypatch.setattr(Translator, "translate", translate)
    said = {"data.dev_source": dev[0], "data.dev_target": dev[1], "data.filters.max_tokens": 1000, "training.steps": 1}
    train(out=tmp_path / "run", settings=toy_settings | said, device="cpu", threads=1)
    assert parts == [1, 1]  # at the validation, and at the end


def test_the_display_writes_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    display = ProgressDisplay()
    display.start(0, 10)
    display.say("[red]not a colour[/red]")
    display.stop()
    captured = capsys.readouterr()
    assert captured.err == "[red]not a colour[/red]\n"
    assert captured.out == ""


def test_a_run_stores_language_profiles_with_its_model(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    train(out=tmp_path / "model", settings=toy_settings | {"training.steps": 2}, device="cpu", threads=1)
    profiles = LanguageProfiles.load(tmp_path / "model")
    assert profiles is not None
    found = profiles.probabilities("the teacher eats rice")
    assert set(found) == {"zh", "en"}
    assert found["en"] > 0.99
