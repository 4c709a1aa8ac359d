"""Create, lock and resume the folder of a training run, which holds its settings, corpus, checkpoints and model."""

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError

from transduce.acceleration import why_no_triton
from transduce.atomic_io import exclusive_lock
from transduce.errors import TransduceError
from transduce.machine import Machine
from transduce.model_folder.read import (
    CONFIG,
    MANIFEST,
    SETTINGS_FILE,
    VOCABULARIES,
    WEIGHTS,
    read_run_settings,
)
from transduce.search.settings import EARLIER_DEFAULTS, without_idle_penalties
from transduce.tasks.kinds import kind_of
from transduce.tasks.kinds.kind import DEV_SCORES
from transduce.tasks.settings.reading import check_settings, dotted_settings, make_settings
from transduce.tasks.settings.structs import DataSettings, Settings, batch_setting
from transduce.text.languages import fitting_code
from transduce.text.tokenizer import TOKENIZER_CARD
from transduce.training.checkpoint import Environment, checkpoints
from transduce.training.choices import choose_cuda_graphs, choose_kernels, choose_weight_decay
from transduce.training.events import last_logged_step
from transduce.training.loop import CHECKPOINTS

# --- lock ---
# Two processes that trained in one folder would overwrite each other's files.


LOCK_FILE = ".lock"


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder within a `with` block, so that no other process trains in the folder.

    Raises:
        TransduceError: another process holds the folder's lock.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(folder / LOCK_FILE))
        except BlockingIOError as error:
            raise TransduceError(
                f"Another process is training in {folder}: wait until it has ended, or name another folder with --out."
            ) from error
        yield


# --- new folder ---
# A run that fails before training leaves the folder as it was.


# Other files that a run writes, which could replace the user's files of the same name.
RUN_FILES = ("README.md", CONFIG, MANIFEST, "metrics.jsonl", "checkpoints", "tensorboard")
_TOKENIZER_FILES = (*VOCABULARIES, "tokenizer.json")


def refuse_resume_without_text(folder: Path, data: DataSettings, *, resume: bool) -> None:
    """Raise an error for `--resume` in a folder without a run if the settings name no text to start a run with.

    Raises:
        TransduceError: there is neither a run nor text, or a run was killed before it wrote its settings.
    """
    if resume and not data.source and not data.prepared and not (folder / SETTINGS_FILE).exists():
        if (folder / LOCK_FILE).exists():  # a killed process leaves it
            raise TransduceError(
                f"The run in {folder} was stopped before its settings were written, so there is nothing to resume: "
                "repeat the original command with --resume."
            )
        raise TransduceError(
            f"{folder} holds no run to resume, and no text is named to start one: name the run's folder with "
            "--out, or set `data.source` and `data.target`."
        )


def refuse_to_overwrite(folder: Path, *, resume: bool) -> None:
    """Raise an error if a run would start in a folder that holds another run, a model, or files to be replaced.

    Args:
        folder: the run's folder, which may be missing.
        resume: True if a run that the folder holds is to be continued.

    Raises:
        TransduceError: the folder holds such files, and the run is not resumed.
    """
    has_run = (folder / SETTINGS_FILE).exists()
    if has_run and not resume:
        raise TransduceError(
            f"{folder} holds a run already: continue with --resume (in Python: resume=True), or name another "
            "folder with --out (out=)."
        )
    if not has_run and (folder / WEIGHTS).exists():
        raise TransduceError(
            f"{folder} holds a model, which training would replace, but no run: name another folder with --out."
        )
    # A run that stopped before training may have left its tokenizer, with the tokenizer's card.
    names = RUN_FILES if (folder / TOKENIZER_CARD).exists() else (*RUN_FILES, *_TOKENIZER_FILES)
    conflicts = [name for name in names if (folder / name).exists()]
    if not has_run and conflicts:
        raise TransduceError(f"{folder / conflicts[0]} would be replaced by a run's: name another folder with --out.")


class RunFolder:
    """A run's folder and its state before the run starts in it, which `undo` restores after a failure."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._settings = folder, folder / SETTINGS_FILE
        self._was_there, self._had_run = folder.exists(), self._settings.exists()
        self._made = [parent for parent in folder.parents if not parent.exists()]  # innermost first

    def make(self) -> Path:
        """Create the run's folder, with its parents, if it does not exist, and return its path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    def undo(self) -> None:
        """Restore the folder's state before the run, after a failure.

        A folder that did not exist is removed, with the parents created for it. In a folder that existed, only the
        run's settings are removed.
        """
        if not self._was_there:
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # fails if other files are there
                for parent in self._made:
                    parent.rmdir()
        elif not self._had_run:
            self._settings.unlink(missing_ok=True)


def is_disk_error(error: BaseException) -> bool:
    """Return whether an error was directly caused by a failure to read or write a file."""
    return isinstance(error.__cause__, OSError | SafetensorError)


# --- resumed run ---
# Its settings are kept, except for those that may change without making it another run.


# Before the first step, all settings of these tables may change, except those on which stored initial weights depend.
_CHANGEABLE_BEFORE_FIRST_STEP = ("training.", "model.")
_FIXED_BY_INITIAL_WEIGHTS = "training.lora_"
# Files of text, which may have moved.
_TEXT_FILES = ("data.source", "data.target", "data.dev_source", "data.dev_target", "data.back_translated")
# Settings that may change whenever a run is resumed; the others affect steps already taken.
_CHANGEABLE = {
    f"training.{name}"
    for name in (
        "steps",
        "learning_rate",
        "compile",
        "kernels",
        "cuda_graphs",
        "sharded",
        "report_every",
        "validate_every",
        "save_every",
        "best_by",
        "patience",
        "translate_dev",
        "keep_checkpoints",
    )
}

# Each of these sets when to stop, and replaces the other.
_ALTERNATIVES = {"training.steps": "minutes", "training.minutes": "steps"}


def read_stored(path: Path) -> Settings:
    """Return the settings in the file that a run wrote to its folder; settings of earlier versions are converted.

    Raises:
        TransduceError: the file is damaged, of an unknown version, or names a component that is not registered.
    """
    content = read_run_settings(path.parent)
    # Runs that name no optimizer used Adam.
    training = {"optimizer": "adam", "spread_copies": False} | content.get("training", {})
    search = without_idle_penalties(content.get("search", {}))
    try:
        return check_settings(content | {"training": training, "search": search})
    except TransduceError as error:
        raise TransduceError(f"{path}: {error}") from error


def _is_same_path(old: str, new: str) -> bool:
    return Path(old).absolute() == Path(new).absolute()


def apply_changes(
    stored: Settings,
    specified: Mapping[str, Any],
    *,
    trained: bool = True,
    is_same_text: Callable[[str, str], bool] = _is_same_path,
) -> Settings:
    """Return a stopped run's settings with the user's changes.

    Args:
        stored: the settings that the run started with.
        specified: the user's settings, nested as in a settings file.
        trained: True if a checkpoint or initial weights were saved; before that, more settings may change.
        is_same_text: compares an old and a new path of a text file. It returns whether the new file has the text that
            the old file had when the run started; by default, whether the paths are the same.

    Raises:
        TransduceError: the user changes a setting that must stay as it was.
    """
    content = msgspec.json.decode(msgspec.json.encode(stored))
    for name, leaf in dotted_settings(specified):
        value = list(leaf) if isinstance(leaf, tuple) else leaf
        is_batch = name == batch_setting(stored.task.kind)
        table, last = _find(content, "training.batch_tokens" if is_batch else name)
        old = table.get(last)
        is_moved = name == "data.prepared" and None not in (old, value)  # the corpus is compared when it is opened
        if name in _TEXT_FILES and old and value and len(old) == len(value):
            is_moved = all(one == new or is_same_text(one, str(new)) for one, new in zip(old, value, strict=True))
        if name == "init_from" and old is not None and value is not None:
            is_moved = _is_same_path(old, str(value))
        if name.startswith("search.") and table.get("diverse_groups") == 1 and (last, value) in EARLIER_DEFAULTS:
            continue  # nobody set it
        if name == "data.languages" and old and value and all(map(fitting_code, value, ([each] for each in old))):
            continue  # another spelling, such as the user's of a base model's codes
        may_change = name in _CHANGEABLE or is_moved
        is_fixed = trained or name.startswith(_FIXED_BY_INITIAL_WEIGHTS)
        if may_change or (not is_fixed and name.startswith(_CHANGEABLE_BEFORE_FIRST_STEP)):
            table[last] = value
            if name in _ALTERNATIVES:
                table[_ALTERNATIVES[name]] = None
                table["time_plan"] = []
        elif old != value:
            is_text = name in _TEXT_FILES and bool(value)
            raise TransduceError(
                f"`{name}` was {_shown(old)} when this run started, and cannot become {_shown(value)}"
                f"{', which has other content' if is_text else ''} on --resume: leave it as it was, or start another "
                "run with another --out."
            )
    data = content["data"]
    moved = dict(zip(stored.data.source, data["source"], strict=True))
    data["back_translated"] = [moved.get(path, path) for path in data["back_translated"]]
    training, before = content["training"], msgspec.structs.asdict(stored.training)
    decay, chosen = stored.training.weight_decay, _chosen_decay(stored)
    has_chosen = decay is not None and chosen is not None and math.isclose(decay, chosen, rel_tol=1e-6)
    if has_chosen and any(training[name] != before[name] for name in ("steps", "learning_rate")):
        training["weight_decay"] = _chosen_decay(make_settings(content))
    return make_settings(content)


def _chosen_decay(settings: Settings) -> float | None:
    """Return the weight decay that a run with Muon gets by default; None if it is unknown.

    The result tells whether a run's weight decay is the default. It is None for other optimizers, if the decay follows
    from the number of steps only later, or if a setting that the decay depends on is missing.
    """
    training, d_model = settings.training, settings.model.d_model
    rate, schedule, warmup = training.learning_rate, training.schedule, training.warmup_steps
    if training.optimizer != "muon" or rate is None or schedule is None or warmup is None:
        return None
    usual = 0.0
    if settings.init_from is not None and training.batch_tokens is not None and d_model is not None:
        usual = kind_of(settings.task.kind).choose_learning_rate(settings, d_model).value
    return choose_weight_decay("muon", schedule, rate, warmup, training.steps, usual).value


def changes_between(stored: Settings, settings: Settings) -> list[str]:
    """Return a list with a line of text for each setting that differs between two runs; empty if none differs."""
    old, new = (dict(dotted_settings(msgspec.to_builtins(each))) for each in (stored, settings))
    return [
        _change(name, new.get(name), old.get(name))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def _change(name: str, new: object, old: object) -> str:
    """Return a line of text with a setting's new and old value; None: not set."""
    if old is None:
        return f"{name}: {new}, which was not set"
    return f"{name}: not set, which was {old} before" if new is None else f"{name}: {new}, which was {old} before"


def check_edits(before: Mapping[str, Any], stored: Settings, folder: Path, say: Callable[[str], None]) -> None:
    """Report how a run's settings file differs from the settings of its newest checkpoint; refuse another model.

    Args:
        before: the checkpoint's settings, nested as in a settings file; empty in checkpoints that did not store them.
        stored: the settings file.
        folder: the run's folder, for messages.
        say: prints a line.

    Raises:
        TransduceError: a setting of the model, its vocabulary or its task was changed.
    """
    old, new = (dict(dotted_settings(each)) for each in (before, msgspec.json.decode(msgspec.json.encode(stored))))
    for name in old:
        if name == "training.time_plan" or name not in new or old[name] == new[name]:
            continue
        if name == "task.kind" or (name.startswith(("model.", "tokenizer.")) and "dropout" not in name):
            raise TransduceError(
                f"`{name}` was {_shown(old[name])} up to the newest checkpoint, but {folder / SETTINGS_FILE} now has "
                f"{_shown(new[name])}: a trained model cannot change it. Write {_shown(old[name])} again, or start "
                "another run with another --out."
            )
        say(_change(name, new[name], old[name]))


def refuse_to_replace_model(folder: Path, save_every: int | None) -> None:
    """Raise an error if training from step 0 would replace the model that the run trained before.

    A run that was killed before its first checkpoint may start again.

    Args:
        folder: the run's folder, in which no checkpoint is intact.
        save_every: number of steps between two checkpoints; None: unknown, because the time decides it.

    Raises:
        TransduceError: the folder holds the model of a run that had a checkpoint.
    """
    had_checkpoint = (folder / DEV_SCORES).exists() or any(checkpoints(folder / CHECKPOINTS))
    if save_every is not None:
        had_checkpoint = had_checkpoint or last_logged_step(folder) > save_every
    if had_checkpoint and (folder / WEIGHTS).exists():
        raise TransduceError(
            f"{folder} holds a trained model, but no intact checkpoint to resume from, and training from step 0 would "
            f"replace the model: continue from its weights with --init-from {folder} and another --out, or remove "
            f"{folder / WEIGHTS} to train again from step 0."
        )


def adapt_to_machine(
    settings: Settings, specified: Mapping[str, Any], machine: Machine, before: Environment | None
) -> Settings:
    """Return a resumed run's settings, with kernels, compiled layers and CUDA graphs for this machine.

    A setting that the user changed is kept. Kernels and compiled layers stay as before if the machine supports them, so
    that results are equal bit by bit. CUDA graphs stay only with an unchanged number of several processes. Otherwise,
    their use is chosen as for a new run.

    Args:
        settings: the run's settings.
        specified: the user's changes in `training`.
        machine: the machine that the run resumes on.
        before: the environment of the last checkpoint; None if there is none.
    """
    training = settings.training
    kernels, compiled, cuda_graphs = training.kernels, training.compile, training.cuda_graphs
    if "kernels" not in specified:
        if kernels is None and before is not None:
            kernels = before.kernels  # a run of a version without this setting
        if kernels == "native":
            kernels = choose_kernels(machine.device, machine.threads, compiled=compiled).value
    if "compile" not in specified and compiled:
        compiled = machine.device != "cpu" and why_no_triton(machine.device) is None
    if "cuda_graphs" not in specified and cuda_graphs:
        # With the same number of processes, an explicit choice is kept; otherwise it is chosen as for a new run.
        same_processes = before is not None and before.processes == machine.processes > 1
        can_record = not training.sharded and choose_cuda_graphs(machine.device, kernels or "torch", processes=1).value
        cuda_graphs = True if same_processes and can_record else None
    changed = msgspec.structs.replace(training, kernels=kernels, compile=compiled, cuda_graphs=cuda_graphs)
    return msgspec.structs.replace(settings, training=changed)


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _find(content: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    *tables, last = name.split(".")
    for table in tables:
        content = {last: None} if content.get(table, {}) is None else content.get(table, {})
    if last not in content:
        raise TransduceError(f"There is no setting `{name}`.")
    return content, last
