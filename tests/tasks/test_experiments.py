"""Test experiments: variants × seeds in processes, with a user's component, resumed, reported; and their statistics."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import transduce
from transduce.commands.main import main
from transduce.deprecation import RenamedWarning
from transduce.errors import TransduceError
from transduce.evaluation.significance import (
    bleu_from_counts,
    bootstrap_differences,
    min_p_value,
    permutation_p_value,
)
from transduce.exchange.exporters import FORMATS, exporter_for
from transduce.inspection.experiments import _score_translations
from transduce.kernels.select import select_decoder
from transduce.model.build import build_model, load_plugin
from transduce.model.config import REGISTERED_NAMES, ModelConfig
from transduce.tasks import experiments
from transduce.tasks.experiments import (
    ExperimentOptions,
    ExperimentRun,
    _test_command,
    _with_fitting_jobs,
    _write_settings,
    expand,
    find_problems,
    make_experiment,
    run_all,
)
from transduce.tasks.settings.reading import make_settings
from transduce.tasks.text_files import store_text_file_states

PLUGIN = """
import torch
from torch import nn

import transduce


@transduce.register("attention", "gated")
class GatedAttention(transduce.MultiHeadAttention):
    def __init__(self, *, d_model, **options):
        super().__init__(d_model=d_model, **options)
        self.gate = nn.Linear(d_model, d_model)

    def forward(self, x, *args, **options):
        return torch.sigmoid(self.gate(x)) * super().forward(x, *args, **options)
"""
SIZES = {"source_vocabulary_size": 500, "target_vocabulary_size": 500, "d_model": 16, "d_ff": 32, "num_heads": 4}


@pytest.fixture
def plugin(tmp_path: Path) -> Any:
    from transduce.model.attention import ATTENTIONS

    path = tmp_path / "gated.py"
    path.write_text(PLUGIN, "utf-8")
    yield path
    ATTENTIONS.pop("gated", None)
    REGISTERED_NAMES["attention"].discard("gated")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Write tagged sentences in which a word's tag is its last letter, and return the files by part."""
    words = [a + b for a in ("ka", "lo", "mi", "nu", "pe") for b in ("s", "t", "r")]
    paths = {}
    for name, count in (("train", 60), ("dev", 30), ("test", 30)):
        sentences = [[words[(7 * i + 4 * j + i * j) % 15] for j in range(4)] for i in range(count)]
        paths[name] = tmp_path / f"{name}.conll"
        text = "\n".join("".join(f"{word}\t{word[-1].upper()}\n" for word in sentence) for sentence in sentences)
        paths[name].write_text(text, "utf-8")
    return paths


def content(tmp_path: Path, files: dict[str, Path], plugin: Path) -> dict[str, Any]:
    return {
        "out": str(tmp_path / "out"),
        "seeds": [1, 2],
        "plugins": [str(plugin)],
        "settings": {
            "task.kind": "tagging",
            "data.source": [str(files["train"])],
            "data.dev_source": [str(files["dev"])],
            "tokenizer.vocabulary_size": 290,
            "model": {"num_encoder_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0},
            "training": {"steps": 12, "save_every": 4, "validate_every": 4, "warmup_steps": 2, "learning_rate": 0.01},
        },
        "variants": [
            {"name": "plain"},
            {"name": "gated", "settings": {"model": {"attention": "gated"}}},
            {"name": "broken", "settings": {"init_from": str(tmp_path / "nowhere")}},
        ],
        "test": {"source": str(files["test"])},
    }


@pytest.mark.parametrize(
    ("free", "variants", "jobs", "said"),
    [
        (1100 << 20, ("plain", "gated"), 3, []),
        (
            899 << 20,
            ("plain", "gated"),
            2,
            ["At most 2 of the runs at once, not 3, which need 900.* MiB of memory"],
        ),
        (1 << 20, ("plain", "gated"), 1, ["At most 1 of the runs at once, not 3, .*together: 1.* MiB are free."]),
        (700 << 20, ("large", "plain"), 1, ["At most 1 of the runs at once, not 3, which need 1.* GiB"]),
        (None, ("large", "plain"), 3, []),
    ],
)
def test_an_experiment_has_no_more_runs_at_once_than_fit_into_memory(
    free: int | None,
    variants: tuple[str, str],
    jobs: int,
    said: list[str],
    tmp_path: Path,
    files: dict[str, Path],
    plugin: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transduce.tasks.experiments.available_memory", lambda *_, **__: free)
    settings = content(tmp_path, files, plugin)
    large = {"name": "large", "settings": {"model.d_model": 1024, "model.num_heads": 8, "model.d_ff": 4096}}
    settings["variants"] = [each for each in (*settings["variants"], large) if each["name"] in variants]
    lines = list[str]()
    options = ExperimentOptions(jobs=3, device="cpu", threads=1)
    assert _with_fitting_jobs(expand(make_experiment(settings)), options, lines.append).jobs == jobs
    assert len(lines) == len(said)
    assert all(re.match(one, other) for one, other in zip(said, lines, strict=True))


@pytest.mark.slow
def test_an_experiment_compares_an_own_attention_over_seeds(
    tmp_path: Path, files: dict[str, Path], plugin: Path
) -> None:
    settings, said = content(tmp_path, files, plugin), list[str]()
    run = next(run for run in expand(make_experiment(settings)) if (run.variant, run.seed) == ("gated", 1))

    class Stop(transduce.Callback):
        def on_checkpoint(self, _: transduce.CheckpointEvent) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # a run that was interrupted
        transduce.train(
            out=run.folder, settings=run.content, precision="fp32", device="cpu", threads=1, callbacks=[Stop()]
        )
    options: dict[str, Any] = {"jobs": 2, "precision": "fp32", "device": "cpu", "threads": 1, "say": said.append}
    report = transduce.experiment(settings, **options)
    assert [(each.name, each.seeds) for each in report.variants] == [("plain", (1, 2)), ("gated", (1, 2))]
    assert [failure.run for failure in report.failures] == [
        str(tmp_path / "out" / "broken" / f"seed-{s}") for s in (1, 2)
    ]
    assert all("nowhere" in failure.reason for failure in report.failures)
    assert "Resuming after step 4" in run.log_path.read_text("utf-8")
    assert report.measure == "accuracy"
    (difference,) = report.differences
    assert (difference.name, difference.baseline) == ("gated", "plain")
    plain, gated = report.variants
    assert difference.difference == pytest.approx(gated.mean("accuracy") - plain.mean("accuracy"))
    assert difference.interval_low is not None
    assert difference.interval_low <= difference.difference <= (difference.interval_high or 0.0)
    assert "at least 4 seeds" in report.warnings[-1]
    stored = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert stored["variants"][1]["values"]["accuracy"] == list(gated.values["accuracy"])
    page = (tmp_path / "out" / "report.md").read_text("utf-8")
    assert f"| gated | 2 | {gated.cell('accuracy')} |" in page
    assert (tmp_path / "out" / "plot.png").exists() or "accuracy by seed" in page
    # A run's weights do not depend on the number of jobs, and a second start trains nothing.
    said.clear()
    settings["variants"] = settings["variants"][:2]
    again = transduce.experiment(settings, **options | {"jobs": 1})
    assert again.variants == report.variants
    assert not any("training" in line for line in said)
    settings["settings"]["training"]["steps"] = 13
    with pytest.raises(TransduceError, match=r"Variant `plain` has changed .*training.steps: 13, which was 12"):
        transduce.experiment(settings, **options)


def test_an_own_component_takes_the_reference_path_and_no_other_name(plugin: Path) -> None:
    with pytest.raises(TransduceError, match=r"`model\.attention` must be"):
        ModelConfig(**SIZES, attention="gated")  # type: ignore[arg-type]
    load_plugin(plugin)
    model = build_model(ModelConfig(**SIZES, attention="gated")).eval()  # type: ignore[arg-type]
    assert select_decoder(model).backend == "reference"
    for name in FORMATS:
        with pytest.raises(TransduceError, match=r"with `model\.attention` = gated, a component of your own"):
            exporter_for(name, SimpleNamespace(config=model.config))._check_settings()  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match=r"`model\.attention` = 'multi-head' is no new name"):
        transduce.register("attention", "multi-head")
    with pytest.raises(TransduceError, match="must be a subclass of MultiHeadAttention, but is"):
        transduce.register("attention", "other")(dict)
    with pytest.raises(TransduceError, match=r"can be registered for activation, .*, but not for `layer`"):
        transduce.register("layer", "other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "fails: ZeroDivisionError"),
        (None, "own.py is no file: name the Python file that registers components"),
    ],
)
def test_a_bad_plugin_is_named(tmp_path: Path, text: str | None, message: str, capsys: Any) -> None:
    path = tmp_path / "own.py"
    if text is not None:
        path.write_text(text, "utf-8")
    assert main(["plot", "activations", "--plugin", str(path)]) == 2
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(capsys.readouterr().err)


# --- settings ---


def test_old_names_of_settings_are_valid_forever_in_an_experiment(tmp_path: Path) -> None:
    experiment = make_experiment({"out": str(tmp_path), "grid": {"search.strict": [True]}})
    with pytest.warns(RenamedWarning, match="`search.strict` is now `search.batch_invariant`; settings files may keep"):
        (run, *_) = expand(experiment)
    assert run.content["search"] == {"batch_invariant": True}


def test_a_grid_is_combined_with_variants(tmp_path: Path) -> None:
    experiment = make_experiment(
        {
            "out": str(tmp_path),
            "seeds": [3],
            "settings": {"data.source": ["a"], "data.target": ["b"]},
            "variants": [{"name": "a"}, {"name": "b", "settings": {"model.norm": "rms"}}],
            "grid": {"model": {"d_model": [16, 32]}, "training.steps": [1]},
        }
    )
    runs = expand(experiment)
    assert [run.variant for run in runs] == [f"{name},d_model={width},steps=1" for name in "ab" for width in (16, 32)]
    assert runs[2].content["model"] == {"norm": "rms", "d_model": 16}
    assert runs[2].content["training"] == {"steps": 1, "seed": 3}
    assert runs[2].folder == tmp_path / "b,d_model=16,steps=1" / "seed-3"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": []}, "compares variants: add tables"),
        ({"seeds": [1, 1]}, "`seeds` must be different numbers"),
        ({"seed": 1}, r"is not an experiment: there is no key `seed`; those in its place are out, seeds, "),
        ({"test": {"source": "a", "reference": "b"}}, "no key `test.reference`; those in its place are source, target"),
        ({"variants": [{"name": "a", "set": {}}]}, "no key `variants.set`; those in its place are name, settings"),
        ({"variants": [{"name": "a"}, {"name": "b"}]}, "`a` and `b` have the same settings"),
        ({"variants": [{"name": "a"}, {"name": "a", "settings": {"preset": "tiny"}}]}, "Two variants are named `a`"),
        ({"variants": [{"name": "../a"}]}, "is that of a folder"),
        ({"variants": [{"name": "a", "settings": {"model.d_modl": 3}}]}, "Variant `a`: There is no setting"),
        ({"settings": {"training.seed": 3}}, "lists its `seeds`, but `training.seed` is set too"),
        ({"grid": {"model.d_model": []}}, "`grid.model.d_model` has no values"),
    ],
)
def test_malformed_experiments_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        expand(make_experiment({"out": str(tmp_path), "variants": [{"name": "a"}]} | changes))


def test_a_dry_run_names_missing_files_and_wrong_settings_of_every_variant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "train.de"
    text.write_text("eins\n", "utf-8")
    experiment = tmp_path / "experiment.toml"
    here = f'data.source = ["{text}"]\ndata.target = ["{text}"]\nmodel.d_model = 16\nmodel.num_heads = 2\n'
    experiment.write_text(
        f'out = "{tmp_path / "out"}"\nseeds = [1, 2]\n[settings]\n{here}'
        '[[variants]]\nname = "plain"\n'
        '[[variants]]\nname = "heads"\nsettings.model.num_heads = 3\n'
        '[[variants]]\nname = "typo"\nsettings.model.num_hedas = 3\n'
        '[[variants]]\nname = "dev"\nsettings.data.dev_source = ["no.de"]\nsettings.data.dev_target = ["no.en"]\n'
        '[[variants]]\nname = "base"\nsettings.init_from = "nowhere"\n'
        '[test]\nsource = "test.de"\ntarget = "test.en"\n',
        "utf-8",
    )
    assert main(["experiment", str(experiment), "--dry-run", "--device", "cpu"]) == 1
    printed = capsys.readouterr()
    assert "plain, seed 2: new" in printed.out
    problems = printed.err.splitlines()
    assert len(problems) == 7
    assert problems[0].startswith("Variant `typo`: There is no setting `model.num_hedas`")
    assert problems[1].startswith("Variant `heads`: `model.d_model` ")
    assert problems[2] == "Variant `dev`: `data.dev_source` names no.de, which does not exist."
    assert problems[4] == "Variant `base`: `init_from` names nowhere, which does not exist."
    assert problems[5] == "`test.source` names test.de, which does not exist."


def test_test_files_that_do_not_match_are_refused_before_training(tmp_path: Path) -> None:
    for name, text in (("a.de", "eins\nzwei\n"), ("a.en", "one\n")):
        (tmp_path / name).write_text(text, "utf-8")
    settings = {"data": {"source": [str(tmp_path / "a.de")], "target": [str(tmp_path / "a.de")]}}
    test = {"source": str(tmp_path / "a.de"), "target": str(tmp_path / "a.en")}
    content = {"out": str(tmp_path / "out"), "variants": [{"name": "a"}], "settings": settings, "test": test}
    experiment = make_experiment(content)
    runs = expand(experiment)
    assert "a.de has 2 and" in find_problems(experiment, runs, "cpu")[0]
    with pytest.raises(TransduceError, match=r"must have as many lines, but .*a\.de has 2 and .*a\.en has 1: use"):
        run_all(experiment, runs, ExperimentOptions(device="cpu"), print)
    assert not (tmp_path / "out" / "a").exists()


def test_the_tokenizer_for_bleu_is_checked_before_training(tmp_path: Path) -> None:
    (tmp_path / "a.de").write_text("eins\n", "utf-8")
    path = str(tmp_path / "a.de")
    for kind, tokenize, message in (
        ("translation", "13b", r"`test\.tokenize` cannot be used: The tokenizer must be one of"),
        ("classification", "none", r"`test\.tokenize` is BLEU's tokenizer, but the task is classification"),
    ):
        settings = {"task.kind": kind, "data.source": [path], "data.target": [path]}
        test = {"source": path, "target": path, "tokenize": tokenize}
        experiment = make_experiment(
            {"out": str(tmp_path / "out"), "variants": [{"name": "a"}], "settings": settings, "test": test}
        )
        assert any(re.search(message, each) for each in find_problems(experiment, expand(experiment), "cpu"))


def test_tokenized_references_are_named_and_may_have_their_own_tokenizer(
    start_experiment: tuple[Any, list[list[str]]], tmp_path: Path
) -> None:
    start, _ = start_experiment
    test = tmp_path / "test.en"
    test.write_text("he reads a long book .\n" * 20, "utf-8")
    run = start(test, "translation")
    plain = _score_translations(run, str(test), None)
    (warning,) = plain.warnings
    assert "look tokenized" in warning
    exact = _score_translations(run, str(test), "none")
    assert "tok:none" in exact.notes[0]
    assert not exact.warnings


# --- outputs that are made again ---


@pytest.fixture
def start_experiment(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, list[list[str]]]:
    """Return a function that starts an experiment whose commands only copy files, and the list of these commands."""
    commands = list[list[str]]()

    def execute(_: Any, run: ExperimentRun, arguments: list[str], __: str) -> bool:
        commands.append([arguments[0], *arguments[5:]])
        if arguments[0] == "train":
            run.folder.mkdir(exist_ok=True)
            store_text_file_states(run.folder, make_settings(run.content).data, None)
            for name in ("settings.toml", "manifest.json"):
                (run.folder / name).write_text(run.settings_path.read_text("utf-8"), "utf-8")
            result = {"step": 12, "steps": 12, "best_step": 12, "best_value": None, "elapsed_seconds": 1.0}
            run.result_path.write_text(json.dumps(result | {"reason": "finished"}), "utf-8")
        elif "stop" in Path(arguments[2]).read_text("utf-8"):
            run.output_path.with_name("seed-1.test.partial").write_text("half", "utf-8")
            return False
        else:
            run.output_path.write_text(Path(arguments[2]).read_text("utf-8"), "utf-8")
        return True

    monkeypatch.setattr("transduce.tasks.experiments._Runner._execute", execute)

    def start(test: Path, kind: str = "tagging", **settings: Any) -> ExperimentRun:
        commands.clear()
        if kind == "translation":
            settings |= {"data.target": [str(files["train"])], "data.dev_target": [str(files["dev"])]}
        common = {"task.kind": kind, "data.source": [str(files["train"])], "data.dev_source": [str(files["dev"])]}
        content = {
            "out": str(tmp_path / "out"),
            "seeds": [1],
            "variants": [{"name": "a", "settings": common | settings}],
            "test": {"source": str(test)} | ({} if kind == "tagging" else {"target": str(test)}),
        }
        experiment = make_experiment(content)
        (run,) = expand(experiment)
        run_all(experiment, [run], ExperimentOptions(), lambda _: None)
        return run

    return start, commands


def test_the_test_set_is_read_again_if_it_changed(
    files: dict[str, Path], start_experiment: tuple[Any, list[list[str]]]
) -> None:
    start, commands = start_experiment
    start(files["dev"])
    assert commands == [["train", str(files["dev"].parent / "out/a/seed-1.json"), "--resume"], ["tag"]]
    start(files["dev"])
    assert not commands
    files["test"].write_text("b\tB\n", "utf-8")
    run = start(files["test"])
    assert commands == [["tag"]]
    assert run.output_path.read_text("utf-8") == "b\tB\n"
    files["test"].write_text("a\tA\n", "utf-8")  # corrected in place
    start(files["test"])
    assert commands == [["tag"]]
    assert run.output_path.read_text("utf-8") == "a\tA\n"


def test_a_deleted_folder_is_trained_and_tested_again(
    files: dict[str, Path], start_experiment: tuple[Any, list[list[str]]]
) -> None:
    start, commands = start_experiment
    run = start(files["dev"])
    with pytest.raises(
        TransduceError, match=r"Variant `a` has .* \(preset: tiny, which was not set\): .* delete that folder, or set"
    ):
        start(files["dev"], preset="tiny")
    shutil.rmtree(run.folder)
    assert run.result() is None
    start(files["dev"], preset="tiny")
    assert [command[0] for command in commands] == ["train", "tag"]


def test_an_experiment_continued_with_another_training_text_is_refused(
    files: dict[str, Path], start_experiment: tuple[Any, list[list[str]]]
) -> None:
    start, _ = start_experiment
    start(files["dev"])
    files["dev"].write_text("a\tA\n", "utf-8")  # tested again
    assert start(files["dev"]).output_path.read_text("utf-8") == "a\tA\n"
    files["train"].write_text("a\tA\n", "utf-8")
    with pytest.raises(TransduceError, match=r"train\.conll has changed since .*seed-1 was trained on it, .* restore"):
        start(files["dev"])


def test_a_dry_run_reports_what_has_changed_since_a_run_was_started(
    files: dict[str, Path], start_experiment: tuple[Any, list[list[str]]]
) -> None:
    start, _ = start_experiment
    run = start(files["dev"])
    changed = msgspec.structs.replace(run, content=run.content | {"model": {"d_model": 32}})
    experiment = make_experiment({"out": str(run.folder.parent), "variants": [{"name": "a"}]})
    assert not find_problems(experiment, [run], "cpu")
    (problem,) = find_problems(experiment, [changed], "cpu")
    assert problem == (
        f"Variant `a` has changed since {run.folder} was started (model.d_model: 32, which was not set): restore it, "
        "delete that folder, or set another `out`."
    )
    files["train"].write_text("a\tA\n", "utf-8")
    (problem,) = find_problems(experiment, [run], "cpu")
    assert "train.conll has changed since" in problem


def test_other_search_settings_need_only_another_test(
    files: dict[str, Path], start_experiment: tuple[Any, list[list[str]]]
) -> None:
    start, commands = start_experiment
    run = start(files["test"], "translation")
    start(files["test"], "translation", **{"search.beam_size": 8, "search.no_repeated_ngrams": 3})
    beam = ["--beam-size", "8", "--no-repeated-ngrams", "3"]
    assert commands == [["translate", "--format", "txt", *beam]]
    start(files["test"], "translation", **{"search.beam_size": 8, "search.no_repeated_ngrams": 3})
    assert not commands
    # Training chose a coverage penalty, which a run with search settings of its own would not have.
    (run.folder / "settings.toml").write_text("format_version = 1\n[search]\ncoverage_penalty = 0.2\n", "utf-8")
    start(files["test"], "translation", **{"search.beam_size": 1})
    assert commands == [["translate", "--format", "txt", "--beam-size", "1", "--coverage-penalty", "0.0"]]
    start(files["test"], "translation")
    assert commands == [["translate", "--format", "txt"]]
    for settings in ({"search.max_length_factor": 2.0}, {"search.beam_size": 1, "search.length_penalty": 0.5}):
        with pytest.raises(TransduceError, match=r"Variant `a` has changed since .* \(search\..*, which was "):
            start(files["test"], "translation", **settings)
    with pytest.raises(
        TransduceError, match=r"training.label_smoothing: 0.3, which was not set; search.beam_size: 8, which was 4"
    ):
        start(
            files["test"], "translation", **{"search.beam_size": 8, "training.label_smoothing": 0.3, "init_from": "no"}
        )


@pytest.mark.parametrize(("variable", "threads", "used"), [("3", None, "3"), ("3", 2, "2"), ("", None, "4")])
def test_runs_have_the_threads_of_the_option_of_the_variable_or_of_the_cores(
    tmp_path: Path,
    files: dict[str, Path],
    plugin: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    threads: int | None,
    used: str,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr("transduce.tasks.experiments.usable_cores", lambda: 8)
    commands = list[list[str]]()

    class Recorded:
        def __init__(self, command: list[str], **_: Any) -> None:
            commands.append(command)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("subprocess.Popen", Recorded)
    experiment = make_experiment(content(tmp_path, files, plugin))
    runs = expand(experiment)
    runs[0].log_path.parent.mkdir(parents=True)
    options = ExperimentOptions(jobs=2, threads=threads)
    assert experiments._Runner(experiment, runs, options, lambda _: None)._execute(runs[0], ["train"], "a")
    assert commands[0][commands[0].index("--threads") + 1] == used


def test_an_interrupted_translation_of_the_test_set_is_resumed(
    tmp_path: Path, files: dict[str, Path], start_experiment: tuple[Any, list[list[str]]]
) -> None:
    start, commands = start_experiment
    test = tmp_path / "test.de"
    test.write_text("stop\n", "utf-8")
    run = start(test, "translation")
    partial = run.output_path.with_name("seed-1.test.partial")
    assert partial.exists()
    start(test, "translation")
    assert commands == [["translate", "--format", "txt"]]  # no line was finished
    assert partial.exists()
    run.output_path.with_name("seed-1.test.progress").write_text("{}", "utf-8")  # which does not advance
    start(test, "translation")
    assert commands == [["translate", "--resume", "--format", "txt"]]
    assert not partial.exists()
    start(test, "translation")
    test.write_text("go\n", "utf-8")  # another text does not continue the translation of the first one
    start(test, "translation")
    assert not partial.exists()
    shutil.rmtree(run.folder)
    files["train"].write_text("x\n", "utf-8")
    settings = {"data.context_before": 1, "data.context_sides": "both"}  # which `translate --resume` refuses
    start(test, "translation", **settings)
    assert commands[1] == ["translate", "--format", "txt"]


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.conllu.gz", []), ("a.CoNLLU", []), ("a.jsonl", []), ("a.jsonl.xz", []), ("a.txt", ["--columns", "1"])],
)
def test_the_columns_of_a_tagged_test_set_are_those_of_its_format(
    tmp_path: Path, files: dict[str, Path], plugin: Path, name: str, options: list[str]
) -> None:
    run = expand(make_experiment(content(tmp_path, files, plugin)))[0]
    assert _test_command(run, experiments.TestSettings(source=name))[1] == options


def test_a_failed_run_is_reported_with_its_own_error_only(
    tmp_path: Path, files: dict[str, Path], plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that outlives an experiment that was killed writes to the same log."""
    experiment = make_experiment(content(tmp_path, files, plugin))
    run = expand(experiment)[0]
    run.log_path.parent.mkdir(parents=True, exist_ok=True)
    run.log_path.write_text("transduce: An old error.\n", "utf-8")

    class Failing:
        def __init__(self, *_: Any, stdout: Any, **__: Any) -> None:
            stdout.write(b"transduce: Another process is training.\nFinished at step 60.\n")

        def wait(self) -> int:
            return 2

    monkeypatch.setattr("subprocess.Popen", Failing)
    runner = experiments._Runner(experiment, [run], experiments.ExperimentOptions(), lambda _: None)
    assert not runner._execute(run, ["train"], "a")
    assert [failure.reason for failure in runner._failures] == ["transduce: Another process is training."]


def test_a_killed_run_is_reported_with_the_signal(
    tmp_path: Path, files: dict[str, Path], plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = make_experiment(content(tmp_path, files, plugin))
    run = expand(experiment)[0]
    run.log_path.parent.mkdir(parents=True, exist_ok=True)
    killed = [sys.executable, "-c", "import os; print('step 30/60', flush=True); os.kill(os.getpid(), 9)"]
    monkeypatch.setattr("transduce.tasks.experiments.module_command", lambda _: killed)
    runner = experiments._Runner(experiment, [run], experiments.ExperimentOptions(), lambda _: None)
    assert not runner._execute(run, ["train"], "a")
    (failure,) = runner._failures
    assert failure.reason == "killed by signal 9 (SIGKILL), perhaps for lack of memory"


def test_a_run_uses_this_package_where_the_folder_has_another(
    tmp_path: Path, files: dict[str, Path], plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transduce").mkdir()
    (tmp_path / "transduce" / "__init__.py").write_text("raise SystemExit('another transduce')", "utf-8")
    monkeypatch.chdir(tmp_path)
    experiment = make_experiment(content(tmp_path, files, plugin))
    run = expand(experiment)[0]
    run.log_path.parent.mkdir(parents=True, exist_ok=True)
    runner = experiments._Runner(experiment, [run], experiments.ExperimentOptions(), lambda _: None)
    assert runner._execute(run, ["--version"], "a"), run.log_path.read_text("utf-8")


# --- statistics ---


def test_permutation_p_values_equal_hand_computed_ones() -> None:
    # Of the 20 divisions of six runs, the observed one and its opposite differ as much.
    assert permutation_p_value([1, 2, 3], [4, 5, 6]) == pytest.approx(2 / 20)
    # Of 4 divisions of {1, 2, 3} into one and two... only {3} differs from the others by as much as 1.5.
    assert permutation_p_value([1, 2], [3]) == pytest.approx(2 / 3)
    assert permutation_p_value([5, 5], [5, 5]) == 1.0
    assert min_p_value(3, 3) == 0.1
    assert min_p_value(4, 4) == pytest.approx(2 / 70)
    assert min_p_value(1, 3) == 0.25


def test_permutation_p_values_keep_the_significance_level() -> None:
    generator = np.random.default_rng(1)
    small = [permutation_p_value(*generator.normal(size=(2, 5)).tolist()) < 0.05 for _ in range(300)]
    assert 0.01 < np.mean(small) < 0.09
    assert permutation_p_value(list(range(12)), list(range(20, 32))) < 0.001


def test_the_bootstrap_of_several_runs_compares_their_means() -> None:
    counts = np.random.default_rng(1).integers(1, 9, size=(2, 50, 10)).astype(np.float64)
    options: dict[str, Any] = {"resamples": 200, "seed": 7}
    single = bootstrap_differences([counts[0]], [counts[1]], bleu_from_counts, **options)
    # The mean of a system with itself is the system, and a system does not differ from itself.
    twice = bootstrap_differences([counts[0]] * 2, [counts[1]] * 3, bleu_from_counts, **options)
    assert np.allclose(single, twice)
    assert not bootstrap_differences([counts[0]], [counts[0]], bleu_from_counts, **options).any()


def test_a_changed_plugin_is_noticed(tmp_path: Path, files: dict[str, Path], plugin: Path) -> None:
    table = content(tmp_path, files, plugin)
    table["variants"] = [{"name": "gated", "settings": {"model.attention": "gated"}}]
    experiment = make_experiment(table)
    run = expand(experiment)[0]
    _write_settings(run, experiment.plugins)
    run.folder.mkdir(parents=True)
    (run.folder / "settings.toml").write_text("", "utf-8")
    _write_settings(run, experiment.plugins)
    plugin.write_text(plugin.read_text("utf-8") + "# another line\n", "utf-8")
    with pytest.raises(TransduceError, match=r"Variant `gated` has .* \(the plugin that its model needs\): restore"):
        _write_settings(run, experiment.plugins)
    assert "the plugin that its model needs" in find_problems(experiment, [run], "cpu")[0]


def test_an_own_component_keeps_its_initial_weights(tmp_path: Path, plugin: Path) -> None:  # noqa: ARG001 -- cleans up
    path = tmp_path / "kept.py"
    path.write_text(
        """
import torch, transduce
from torch import nn

@transduce.register("attention", "kept")
class Kept(transduce.MultiHeadAttention):
    def __init__(self, *, d_model, **options):
        super().__init__(d_model=d_model, **options)
        self.gate = nn.Linear(d_model, d_model)
        nn.init.constant_(self.gate.bias, 2.0)
        self.offset = nn.Parameter(torch.ones(d_model))

    def reset_parameters(self):
        nn.init.constant_(self.output.weight, 0.5)
""",
        "utf-8",
    )
    load_plugin(path)
    model = build_model(ModelConfig(**SIZES, attention="kept"))  # type: ignore[arg-type]
    weights = dict(model.named_parameters())
    kept = [name for name in weights if name.endswith("gate.bias")]
    assert kept
    for name in kept:
        layer = name.removesuffix(".gate.bias")
        assert bool((weights[name] == 2.0).all())
        assert bool((weights[f"{layer}.offset"] == 1.0).all())
        assert bool((weights[f"{layer}.output.weight"] == 0.5).all())
        assert not bool(weights[f"{layer}.projection.bias"].any())
