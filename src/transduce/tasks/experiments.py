"""Run experiments: variants of settings × seeds, each run in a process of its own, resumable, several at once.

An experiment's folder has a folder for each variant, with the settings, the log, the result and the run of each seed.
"""

import itertools
import os
import re
import signal
import subprocess
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from transduce.atomic_io import exclusive_lock, file_sha256, write_file
from transduce.errors import TransduceError, decode_utf8, toml_error
from transduce.evaluation.scores import choose_tokenizer
from transduce.machine import available_memory, detect_machine, format_bytes, openmp_threads, usable_cores
from transduce.model.build import load_plugin
from transduce.model.config import REGISTERED_NAMES
from transduce.model_folder.load import read_search_settings
from transduce.model_folder.read import MANIFEST, SETTINGS_FILE
from transduce.model_folder.write import to_toml
from transduce.process_environment import child_environment, common_words, handle_sigterm, module_command
from transduce.search.settings import override_search
from transduce.tasks.kinds import kind_of
from transduce.tasks.run.resolving import least_memory_of, preflight
from transduce.tasks.run.run_folder import changes_between
from transduce.tasks.settings.reading import (
    dotted_settings,
    make_settings,
    put_setting,
    read_settings,
    without_idle_defaults,
)
from transduce.tasks.settings.structs import Settings
from transduce.tasks.text_files import StoredTextFiles
from transduce.text.files import content_sha256, read_lines
from transduce.text.tagged import is_tagged_file
from transduce.training.choices import ChoiceLog
from transduce.training.loop import TrainResult

# --- settings of an experiment ---


MAX_RUNS = 1_000
_NAME = re.compile(r"[\w.=,+-]{1,100}")


class VariantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A variant of an experiment, as a TOML table `[[variants]]` describes it: a name, and the settings that differ."""

    name: str
    """The name, which is also that of the variant's folder."""
    settings: dict[str, Any] = {}
    """The settings in which the variant differs from the others: values by dotted names, or in nested tables."""


class TestSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The test set of an experiment: its files, as the TOML table `[test]` names them."""

    source: str
    """The file of texts, or of columns for tagging."""
    target: str | None = None
    """The file of reference translations or of right labels; None for tagging."""
    tokenize: str | None = None
    """BLEU's tokenizer, such as "none" for tokenized references; None: the one that fits the target language."""


class ExperimentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of an experiment's TOML file: variants of settings to train with several seeds and to compare."""

    out: str
    """The experiment's folder, which holds the folders and logs of its runs."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """The seeds (`training.seed`) that each variant is trained with."""
    base: str | None = None
    """A settings file that all runs start from; None: there is none."""
    settings: dict[str, Any] = {}
    """Settings of all runs: values by dotted names, or in nested tables."""
    variants: tuple[VariantSettings, ...] = ()
    """The variants; the first one is what the others are compared with."""
    grid: dict[str, tuple[Any, ...]] = {}
    """Dict: dotted name of a setting → values to try; each combination of values is a variant, or with `variants`, is
    applied to each of these.
    """
    test: TestSettings | None = None
    """The test set; None: the files of the dev set; without these, runs are compared by the measure that selects the
    best model.
    """
    plugins: tuple[str, ...] = ()
    """Paths of Python files that register the user's own components."""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise TransduceError(f"`seeds` must be different numbers, but are {list(self.seeds)}.")
        if not self.variants and not self.grid:
            raise TransduceError("An experiment compares variants: add tables `[[variants]]` or a table `[grid]`.")
        for name, values in self.grid.items():
            if not values:
                raise TransduceError(f"`grid.{name}` has no values: list some.")


def read_experiment(path: str | Path) -> ExperimentSettings:
    """Read the TOML file of an experiment, and return its content as `ExperimentSettings`.

    Raises:
        TransduceError: the file cannot be read, or a setting is wrong.
    """
    try:
        text = decode_utf8(Path(path).read_bytes(), path)
    except OSError as error:
        raise TransduceError(f"The experiment's file {path} cannot be read: {error.strerror}.") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise toml_error(f"The experiment's file {path} is not valid TOML: {error}.", text, error) from error
    return make_experiment(content, str(path))


def make_experiment(content: Mapping[str, Any], location: str = "The experiment") -> ExperimentSettings:
    """Return the experiment that nested tables (dicts) describe; `location` names their source in error messages.

    Raises:
        TransduceError: a setting is wrong.
    """
    content = dict(content)
    if isinstance(content.get("grid"), Mapping):
        content["grid"] = dict(dotted_settings(content["grid"]))
    try:
        return msgspec.convert(content, ExperimentSettings)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, TransduceError):
            raise TransduceError(f"{location}: {error.__cause__}") from None
        unknown = re.match(r"Object contains unknown field `(\w+)`(?: - at `\$\.(\w+))?", str(error))
        if unknown is None:
            raise TransduceError(f"{location} is not an experiment: {error}.") from error
        name, table = unknown.groups(default="")
        fields = {"test": TestSettings, "variants": VariantSettings}.get(table, ExperimentSettings).__struct_fields__
        key = f"{table}.{name}" if table else name
        raise TransduceError(
            f"{location} is not an experiment: there is no key `{key}`; those in its place are {', '.join(fields)}."
        ) from error


# --- runs ---


class ExperimentRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run (training) of an experiment: a variant with a seed, and the paths of its files."""

    variant: str
    seed: int
    changes: dict[str, Any]
    """The settings that make the variant: dict of dotted name → value."""
    content: dict[str, Any]
    """All settings of the run, as nested tables of a settings file."""
    folder: Path
    """The run's folder, which becomes a model folder; the run's other files are beside it, at its path with
    suffixes.
    """

    @property
    def settings_path(self) -> Path:
        """The path of the settings file that the run is started with."""
        return self.folder.with_name(f"{self.folder.name}.toml")

    @property
    def log_path(self) -> Path:
        """The path of the file to which the run's output is written."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def result_path(self) -> Path:
        """The path of the JSON file that describes how the run's training ended."""
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def output_path(self) -> Path:
        """The path of the file with the run's translations, labels or tags of the test set, which are scored."""
        return self.folder.with_name(f"{self.folder.name}.test")

    @property
    def tested_path(self) -> Path:
        """The path of a file that records the test text, model and options that the run's output was made from.

        With it, an output of another model or text is not used again.
        """
        return self.folder.with_name(f"{self.folder.name}.tested")

    @property
    def has_started(self) -> bool:
        """True if the run's folder holds a run of `transduce train`."""
        return (self.folder / SETTINGS_FILE).exists()

    def result(self) -> TrainResult | None:
        """Return the result of the run's training; None if it has not started, or was interrupted before its end."""
        if not self.has_started:
            return None
        try:
            result = msgspec.json.decode(self.result_path.read_bytes(), type=TrainResult)
        except (OSError, msgspec.MsgspecError):
            return None
        return None if result.reason.startswith("SIG") else result

    def test_progress(self) -> bytes:
        """Return the content of the file in which an interrupted translation of the test set records its progress.

        The content is empty if there is no such file.
        """
        path = self.output_path.with_name(f"{self.output_path.name}.progress")
        return path.read_bytes() if path.exists() else b""

    def remove_output(self) -> None:
        """Delete the run's output of the test set, finished or not, with the files that describe that output."""
        for suffix in ("", ".partial", ".progress"):  # the last two are files of an interrupted `translate`
            self.output_path.with_name(f"{self.output_path.name}{suffix}").unlink(missing_ok=True)
        self.tested_path.unlink(missing_ok=True)


def expand(experiment: ExperimentSettings, problems: list[str] | None = None) -> list[ExperimentRun]:
    """Return a list of all runs of an experiment, ordered by seed, so that all variants have results early.

    Args:
        experiment: the experiment.
        problems: receives a sentence for each variant with a wrong setting, whose runs are then left out; None: the
            first wrong setting is raised.

    Raises:
        TransduceError: a setting of a variant is wrong, two variants have the same name or settings, a name cannot be
            that of a folder, a plugin cannot be loaded, or there are too many runs.
    """
    for path in experiment.plugins:
        load_plugin(path)
    variants = experiment.variants or (VariantSettings(name=""),)
    combinations = list(itertools.product(*experiment.grid.values()))
    found: dict[str, dict[str, Any]] = {}
    for variant, values in itertools.product(variants, combinations):
        chosen = dict(zip(experiment.grid, values, strict=True))
        label = ",".join(f"{name.rpartition('.')[2]}={value}" for name, value in chosen.items())
        name = ",".join(filter(None, (variant.name, label)))
        if not _NAME.fullmatch(name) or name.startswith("."):
            raise TransduceError(
                f"A variant's name is that of a folder, of letters, digits and . = , + - _, but one is `{name}`: name "
                "variants in tables `[[variants]]`."
            )
        if name in found:
            raise TransduceError(f"Two variants are named `{name}`: rename one.")
        found[name] = dict(dotted_settings(variant.settings)) | chosen
    if len(found) * len(experiment.seeds) > MAX_RUNS:
        raise TransduceError(f"An experiment has at most {MAX_RUNS:,} runs, but this one has {len(found):,} variants.")
    contents = {}
    for name, changes in found.items():
        try:
            contents[name] = _content(experiment, name, changes)
        except TransduceError as error:
            if problems is None:
                raise
            problems.append(str(error))
    for one, other in itertools.combinations(contents, 2):
        if contents[one] == contents[other]:
            raise TransduceError(f"The variants `{one}` and `{other}` have the same settings: change one of them.")
    runs = []
    for seed, (name, content) in itertools.product(experiment.seeds, contents.items()):
        training = content.get("training", {}) | {"seed": seed}
        runs.append(
            ExperimentRun(
                variant=name,
                seed=seed,
                changes=found[name],
                content=content | {"training": training},
                folder=Path(experiment.out) / name / f"seed-{seed}",
            )
        )
    return runs


def _content(experiment: ExperimentSettings, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    content = read_settings(None if experiment.base is None else Path(experiment.base))
    for settings in (experiment.settings, changes):
        for key, value in settings.items():
            put_setting(content, key, value, in_file=True)
    content = without_idle_defaults(content)
    if "seed" in content.get("training", {}):
        raise TransduceError("An experiment lists its `seeds`, but `training.seed` is set too: leave that out.")
    try:
        make_settings(content)
    except TransduceError as error:
        raise TransduceError(f"Variant `{name}`: {error}") from None
    return content


def find_problems(experiment: ExperimentSettings, runs: Sequence[ExperimentRun], device: str = "auto") -> list[str]:
    """Return a list of sentences, one for each reason that a variant cannot be trained or tested; empty without any.

    The training text of runs that have started is read, to see whether it has changed since.

    Args:
        experiment: the experiment.
        runs: its runs, as `expand` returns them.
        device: the device that trains.
    """
    problems = []
    machine = detect_machine(device)
    for run in {run.variant: run for run in runs}.values():
        settings = make_settings(run.content)
        missing = [f"`{name}` names {path}, which does not exist." for name, path in _missing_files(settings)]
        try:
            preflight(kind_of(settings.task.kind), settings, machine, ChoiceLog())
            test_set(experiment, run)
        except TransduceError as error:
            # A missing base model is among the missing files already.
            missing += [] if settings.init_from and not Path(settings.init_from).exists() else [str(error)]
        problems += [f"Variant `{run.variant}`: {problem}" for problem in missing]
    changes = filter(None, (_change_since_start(run, experiment.plugins) for run in runs))
    return [*problems, *changes, *_test_problems(experiment.test)]


def _test_problems(test: TestSettings | None) -> list[str]:
    """Return a list of sentences, one for each reason that a test set cannot be used; empty if it can, or is None."""
    if test is None:
        return []
    try:
        choose_tokenizer(None, test.tokenize)
    except TransduceError as error:
        return [f"`test.tokenize` cannot be used: {error}"]
    paths = {name: path for name, path in (("source", test.source), ("target", test.target)) if path is not None}
    missing = [
        f"`test.{name}` names {path}, which does not exist." for name, path in paths.items() if not Path(path).exists()
    ]
    if missing or len(paths) < 2:
        return missing
    source, target = (sum(1 for _ in read_lines(path)) for path in paths.values())
    if source == target:
        return []
    problem = (
        f"`test.source` and `test.target` must have as many lines, but {test.source} has {source:,} and {test.target} "
        f"has {target:,}: use files that match."
    )
    return [problem]


def _missing_files(settings: Settings) -> list[tuple[str, str]]:
    """Return a list of pairs (setting, path) of files or folders that settings name but that do not exist.

    `-`, standard input, is left out.
    """
    data, sides = settings.data, ("source", "target", "dev_source", "dev_target")
    tables = [
        ("data.", data, (*sides, "prepared", "monolingual", "back_translated", "distill_from")),
        *(("data.corpora.", corpus, (*sides, "run")) for corpus in data.corpora),
        ("tokenizer.", settings.tokenizer, ("vocabulary", "text")),
        ("", settings, ("init_from",)),
        ("word_vectors.", settings.word_vectors, ("source", "target")),
    ]
    named = [("data.mix", part.rpartition(":")[0]) for part in data.mix]
    for prefix, table, names in tables:
        for name in names:
            value = getattr(table, name, None) or ()
            named += [(prefix + name, path) for path in ([value] if isinstance(value, str) else value)]
    return [(name, path) for name, path in dict.fromkeys(named) if path != "-" and not Path(path).exists()]


# --- running ---


class ExperimentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an experiment's runs: how many at once, and where and how they compute."""

    jobs: int = 1
    """Number of runs that are trained or tested at once."""
    device: str = "auto"
    """The device of the runs: "cpu", "cuda", or "auto", which is a GPU if there is one."""
    threads: int | None = None
    """Number of threads of a run; None: $OMP_NUM_THREADS, or the run's part of the cores."""
    precision: str = "auto"
    """The precision of training and of testing: "fp32", "bf16" or "auto"."""


class Failure(msgspec.Struct, frozen=True):
    """A run that failed, with the reason."""

    run: str
    """The path of the run's folder."""
    reason: str
    """The last error message in the run's log, or the signal that killed the run, or else the log's last line."""


def run_all(
    experiment: ExperimentSettings,
    runs: Sequence[ExperimentRun],
    options: ExperimentOptions,
    say: Callable[[str], None],
) -> list[Failure]:
    """Train and test all runs of an experiment that are not finished, and return a list of those that failed.

    A failed run does not stop the others. Interrupting the process (Ctrl-C) interrupts its runs, which save; starting
    the experiment again resumes them.

    Args:
        experiment: the experiment.
        runs: its runs, as `expand` returns them.
        options: how many run at once, and where.
        say: called with each line of progress.

    Raises:
        TransduceError: `options.jobs` is below 1, a finished or interrupted run has other settings now, another process
            runs the experiment, or the test set cannot be used.
    """
    if options.jobs < 1:
        raise TransduceError(f"`jobs` must be at least 1, but is {options.jobs}.")
    if problems := _test_problems(experiment.test):
        raise TransduceError(problems[0])
    Path(experiment.out).mkdir(parents=True, exist_ok=True)
    try:
        with exclusive_lock(Path(experiment.out) / ".lock"):
            for run in runs:
                _write_settings(run, experiment.plugins)
                for change in StoredTextFiles(run.folder).changes(make_settings(run.content).data):  # of the dev set
                    say(f"{run.variant}, seed {run.seed}: {change}")
            return _Runner(experiment, runs, _with_fitting_jobs(runs, options, say), say).run()
    except BlockingIOError:
        raise TransduceError(f"Another process runs the experiment in {experiment.out}: wait for it.") from None


_PROCESS_BYTES = 300 << 20  # of a process that has loaded PyTorch, without a model


def _with_fitting_jobs(
    runs: Sequence[ExperimentRun], options: ExperimentOptions, say: Callable[[str], None]
) -> ExperimentOptions:
    """Return options with only as many runs at once as the machine's free memory holds, at least one.

    `least_memory_of` estimates the memory of each run, and the runs that need the most are assumed to run at the same
    time. A reduction is reported by `say`. If the free memory is unknown, the options stay as they are.
    """
    open_runs = {run.variant: run for run in runs if run.result() is None}
    count = {variant: sum(run.variant == variant for run in runs if run.result() is None) for variant in open_runs}
    machine = detect_machine(options.device)
    free = available_memory(machine.device, address_space=False) if options.jobs > 1 else None
    if free is None:
        return options
    needed = list[int]()
    for variant, run in open_runs.items():
        try:
            settings = make_settings(run.content)
            settings, base = preflight(kind_of(settings.task.kind), settings, machine, ChoiceLog())
            least = least_memory_of(settings, None if base is None else base.model.config, machine)
        except TransduceError:  # the run itself will report it
            least = 0
        needed += [_PROCESS_BYTES + least] * count[variant]
    needed = sorted(needed, reverse=True)[: options.jobs]
    jobs = max(1, sum(total <= free for total in itertools.accumulate(needed)))
    if jobs >= len(needed):
        return options
    say(
        f"At most {jobs} of the runs at once, not {len(needed)}, which need {format_bytes(sum(needed))} of memory or "
        f"more together: {format_bytes(free)} are free."
    )
    return msgspec.structs.replace(options, jobs=jobs)


def _write_settings(run: ExperimentRun, plugins: Sequence[str]) -> None:
    """Write a run's settings file, unless the run was started; a started run keeps its settings and plugins.

    A new run's old results are deleted.

    Raises:
        TransduceError: the settings, a plugin or a training file differ from those that the run was started with.
    """
    if run.settings_path.exists() and run.has_started:
        if problem := _change_since_start(run, plugins):
            raise TransduceError(problem)
        return
    # Results of a run whose folder was deleted describe another model.
    run.result_path.unlink(missing_ok=True)
    run.remove_output()
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{line}\n" for line in _plugin_lines(run, plugins))
    write_file(run.settings_path, (to_toml(run.content) + lines).encode())


def _plugin_lines(run: ExperimentRun, plugins: Sequence[str]) -> list[str]:
    """Return a list of comment lines for a run's settings file: each plugin's path and digest.

    The digest shows whether a plugin has changed since. The list is empty if the run's model uses no component of a
    plugin.
    """
    model = run.content.get("model", {})
    is_affected = any(model.get(name) in names for name, names in REGISTERED_NAMES.items())
    return [f"# SHA-256 of the plugin {path}: {file_sha256(Path(path))}" for path in plugins] if is_affected else []


def _change_since_start(run: ExperimentRun, plugins: Sequence[str]) -> str | None:
    """Return a sentence on changes since a run was started, if they keep the run from continuing; else None.

    The settings, the plugins that the model needs, and the training files are compared. Changed search settings are no
    obstacle if only the test depends on them (`_changed_search`).
    """
    if not run.settings_path.exists() or not run.has_started:
        return None
    text = run.settings_path.read_text("utf-8")
    former, settings = make_settings(read_settings(run.settings_path)), make_settings(run.content)
    if _changed_search(run) is not None:
        former = msgspec.structs.replace(former, search=settings.search)
    changes = changes_between(former, settings)
    lines = [line for line in text.splitlines() if line.startswith("# SHA-256 of the plugin ")]
    new_lines = _plugin_lines(run, plugins)
    if lines != new_lines:
        changes.append("the plugin that its model needs")
    if changes:
        return (
            f"Variant `{run.variant}` has changed since {run.folder} was started ({'; '.join(changes)}): restore it, "
            "delete that folder, or set another `out`."
        )
    if changed := StoredTextFiles(run.folder).changed_training_files(settings.data):
        return (
            f"{changed[0]} has changed since {run.folder} was trained on it, but variants are compared by the same "
            "text: restore the file, delete that folder, or set another `out`."
        )
    return None


# Numbers among the search settings, which `translate` takes as options of the same names.
_SEARCH_OPTIONS = (
    *("beam_size", "length_penalty", "coverage_penalty", "diverse_groups", "diversity_penalty"),
    *("max_length", "min_length", "no_repeated_ngrams", "repetition_penalty"),
)


def _changed_search(run: ExperimentRun) -> dict[str, Any] | None:
    """Return a dict of the search settings, by name, that have changed since a run was started.

    A trained run can be tested with these settings, because training does not depend on them. The dict is empty if
    nothing has changed. The result is None if the run must be trained again: if its task is not translation, if it
    starts from a base model, or if options of `transduce translate` cannot express the change.
    """
    former, settings = make_settings(read_settings(run.settings_path)), make_settings(run.content)
    search = settings.search
    if former.search == search:
        return {}
    if settings.task.kind != "translation" or settings.init_from is not None:
        return None
    stored = read_search_settings(run.folder)
    changes = {name: value for name in _SEARCH_OPTIONS if (value := getattr(search, name)) != getattr(stored, name)}
    idle = (
        {"length_penalty"} if search.beam_size == 1 else {"diversity_penalty"} if search.diverse_groups == 1 else set()
    )
    try:
        is_exact = override_search(stored, changes) == search and idle.isdisjoint(changes)
    except TransduceError:
        return None
    return changes if is_exact else None


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


class _Runner:
    """An executor of an experiment's runs, in several threads.

    A thread starts the processes of a run, one after the other, and waits for their ends.
    """

    def __init__(
        self,
        experiment: ExperimentSettings,
        runs: Sequence[ExperimentRun],
        options: ExperimentOptions,
        say: Callable[[str], None],
    ) -> None:
        self._experiment, self._runs, self._options, self._say = experiment, runs, options, say
        share = max(1, usable_cores() // min(options.jobs, max(1, len(runs))))
        self._threads = options.threads or openmp_threads() or share
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_stopping = False
        self._failures: list[Failure] = []

    def run(self) -> list[Failure]:
        """Train and test all runs of the experiment that are not finished, and return a list of those that failed."""
        with ThreadPoolExecutor(max_workers=self._options.jobs) as pool, handle_sigterm(_interrupt):
            try:
                list(pool.map(self._run_one, range(len(self._runs))))
            except BaseException:
                self._stop()
                raise
        return self._failures

    def _run_one(self, number: int) -> None:
        run = self._runs[number]
        label = f"[{number + 1}/{len(self._runs)}] {run.variant}, seed {run.seed}"
        if run.result() is None:
            self._say(f"{label}: {'resuming' if run.has_started else 'training'}; log in {run.log_path}")
            command = ["train", str(run.settings_path), "--out", str(run.folder), "--json", str(run.result_path)]
            if not self._execute(run, [*command, "--resume"], label):
                return
        result = run.result()
        test = test_set(self._experiment, run)
        if result is not None and (test is None or self._test(run, test, label)):
            self._say(f"{label}: done, step {result.step:,}")

    def _test(self, run: ExperimentRun, test: TestSettings, label: str) -> bool:
        """Write a run's output of the test set, and return whether the output exists now.

        An output that was made from the same text, model and options is kept. `label` names the run in messages.
        """
        command, options = _test_command(run, test)
        # Without one of these files, the command fails and names it.
        if Path(test.source).is_file() and (run.folder / MANIFEST).is_file():
            digests = [content_sha256(test.source), file_sha256(run.folder / MANIFEST)]
            made_from = msgspec.json.encode([*digests, *options, self._options.precision])
            is_same = run.tested_path.exists() and run.tested_path.read_bytes() == made_from
            if is_same and run.output_path.exists():
                return True
            if not is_same or "--resume" not in command:
                run.remove_output()
                write_file(run.tested_path, made_from)
        self._say(f"{label}: testing on {test.source}")
        before = run.test_progress()
        command = [word for word in command if before or word != "--resume"]
        succeeds = self._execute(run, [*command, *options], label)
        if not succeeds and not self._is_stopping and before and run.test_progress() == before:
            run.remove_output()  # cannot be resumed, such as after an update
        return succeeds

    def _execute(self, run: ExperimentRun, arguments: Sequence[str], label: str) -> bool:
        """Run a `transduce` command with these arguments for a run, in a new process; return whether it succeeded.

        The output goes to the run's log, and a failure is added to the list of failures. `label` names the run in
        messages.
        """
        plugins = [option for path in self._experiment.plugins for option in ("--plugin", path)]
        computing = ["--device", self._options.device, "--threads", str(self._threads)]
        computing += ["--precision", self._options.precision]
        command = [*module_command("transduce"), *arguments, *computing, *plugins, *common_words()]
        with run.log_path.open("ab") as log:
            start = log.seek(0, os.SEEK_END)
            with self._lock:
                if self._is_stopping:
                    return False
                # In a session of its own, so that Ctrl-C reaches it once, by `_stop`: a second signal would not save.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=child_environment(stops_with_parent=True),
                    start_new_session=True,
                )
                self._processes.add(process)
            code = process.wait()
            with self._lock:
                self._processes.discard(process)
        if code == 0 or self._is_stopping:
            return code == 0
        lines = run.log_path.read_bytes()[start:].decode("utf-8", "replace").strip().splitlines()
        # A process that outlived an experiment that was killed may write to the log, too.
        errors = [line for line in lines if line.startswith("transduce: ")] or lines
        reason = errors[-1] if errors else f"exit code {code}"
        if code < 0 and not reason.startswith("transduce: "):
            reason = f"killed by signal {-code} ({signal.Signals(-code).name}), perhaps for lack of memory"
        self._failures.append(Failure(str(run.folder), reason))
        self._say(f"{label}: failed: {reason}")
        return False

    def _stop(self) -> None:
        """Ask the processes of the runs to save and end, and prevent further processes."""
        with self._lock:
            self._is_stopping = True
            for process in self._processes:
                process.terminate()


def test_set(experiment: ExperimentSettings, run: ExperimentRun) -> TestSettings | None:
    """Return the files that a run is tested on: the experiment's test set, or else the files of the dev set.

    The result is None for tasks other than translation, classification and tagging, and for a run with several corpora.
    Without a test set, it is also None if the settings name no dev files, more than one on a side, or a file of pairs.

    Raises:
        TransduceError: the experiment's test set lacks the file of references or labels, or sets BLEU's tokenizer for a
            task without BLEU.
    """
    settings = make_settings(run.content)
    kind, data = settings.task.kind, settings.data
    if experiment.test is not None and experiment.test.tokenize is not None and kind != "translation":
        raise TransduceError(f"`test.tokenize` is BLEU's tokenizer, but the task is {kind}: leave it out.")
    if kind not in ("translation", "classification", "tagging") or data.corpora:
        return None
    test = experiment.test
    if test is None and len(data.dev_source) == 1:
        test = TestSettings(source=data.dev_source[0], target=data.dev_target[0] if data.dev_target else None)
    needs_target = kind != "tagging"
    if test is not None and needs_target and test.target is None:
        if experiment.test is None:
            return None  # a dev set in a file of pairs
        raise TransduceError("`test` needs a `target`, the file of references or right labels: add it.")
    return test


def _test_command(run: ExperimentRun, test: TestSettings) -> tuple[list[str], list[str]]:
    """Return the command that writes a run's output of a test set, and options to append to it, as two lists of words.

    The output depends on the options, which set how the text is read and searched. If they change, earlier output is
    not used again.
    """
    settings: Settings = make_settings(run.content)
    data, options = settings.data, list[str]()
    verb = {"translation": "translate", "classification": "classify", "tagging": "tag"}[settings.task.kind]
    command = [verb, str(run.folder), test.source, "--output", str(run.output_path)]
    if verb == "translate":
        options = ["--format", "txt"]  # the lines of the file, as in training, whatever its name
        if not (data.context_before and data.context_sides == "both"):  # which `translate` cannot resume
            command.append("--resume")
        for name, value in (_changed_search(run) or {}).items():
            options += [f"--{name.replace('_', '-')}", str(value)]
    if verb == "tag" and (data.columns or not is_tagged_file(test.source)):
        options = ["--columns", *(data.columns or ("1",))[:1]]
    return command, options
