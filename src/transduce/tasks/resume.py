"""A run that goes on: its settings stay, but for those that may change without making it another run."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from transduce.errors import TransduceError
from transduce.model.gpu.available import why_no_triton
from transduce.runtime.machine import Machine
from transduce.tasks.settings import Settings
from transduce.tasks.settings_reading import make_settings
from transduce.training.choices import choose_kernels, choose_record
from transduce.training.surroundings import Surroundings

# What may be said anew when a run is resumed. The rest would change the steps already taken; while there are none, all
# of these tables may change.
_UNTRAINED = ("training.", "model.")
# But for these, by which the weights were prepared that the run begins with.
_PREPARED = "training.lora_"
_CHANGEABLE = {
    f"training.{name}"
    for name in (
        "steps",
        "learning_rate",
        "compile",
        "kernels",
        "record",
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

# Each says when to stop, in place of the other.
_INSTEAD = {"training.steps": "minutes", "training.minutes": "steps"}


def read_stored(path: Path) -> Settings:
    """The settings of a run, as it wrote them.

    Raises:
        TransduceError: the file is damaged, or of another version.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
        # Before there was a choice, there was Adam.
        training = {"optimizer": "adam"} | content.get("training", {})
        return msgspec.convert(content | {"training": training}, Settings)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise TransduceError(f"{path} cannot be read as the settings of a run: {error}.") from error


def override(stored: Settings, said: Mapping[str, Any], *, trained: bool = True) -> Settings:
    """The stored settings, with what was said anew.

    Args:
        stored: what the run began with.
        said: nested, by the names of a settings file.
        trained: whether anything was saved, steps or weights to begin with.

    Raises:
        TransduceError: something that may not change was said to be otherwise.
    """
    content = msgspec.json.decode(msgspec.json.encode(stored))
    for name, leaf in _leaves(said):
        value = list(leaf) if isinstance(leaf, tuple) else leaf
        table, last = _find(content, name)
        old = table.get(last)
        is_moved = name == "data.prepared" and None not in (old, value)  # its content is compared when it is opened
        may_change = name in _CHANGEABLE or is_moved
        if may_change or (not trained and name.startswith(_UNTRAINED) and not name.startswith(_PREPARED)):
            table[last] = value
            if name in _INSTEAD:
                table[_INSTEAD[name]] = None
        elif old != value:
            raise TransduceError(
                f"`{name}` was {_shown(old)} when this run began, and cannot become {_shown(value)} on --resume: leave "
                "it as it was, or start another run with another --out."
            )
    return make_settings(content)


def changes_between(stored: Settings, settings: Settings) -> list[str]:
    """What is another value now than the run was begun with, a line for each."""
    before, now = (dict(_leaves(msgspec.to_builtins(each))) for each in (stored, settings))
    return [
        f"{name}: {_shown(now.get(name))}, which was {_shown(before.get(name))}"
        for name in dict.fromkeys((*before, *now))
        if before.get(name) != now.get(name)
    ]


def suit_machine(
    settings: Settings, said: Mapping[str, Any], machine: Machine, before: Surroundings | None
) -> Settings:
    """The same kernels as before, for the same bits, and compiled layers and recorded steps as before, unless something
    else was said or this machine cannot have them.

    Args:
        settings: of the run.
        said: of them, what was said anew of `training`.
        machine: where it goes on.
        before: what it was computed with; None where nothing was saved.
    """
    training = settings.training
    kernels, compiled, record = training.kernels, training.compile, training.record
    if "kernels" not in said:
        if kernels is None and before is not None:
            kernels = before.kernels  # of a run that was begun when there was nothing to choose
        if kernels == "native":
            kernels = choose_kernels(machine.device, machine.threads, compiled=compiled).value
    if "compile" not in said and compiled:
        compiled = machine.device != "cpu" and why_no_triton(machine.device) is None
    if "record" not in said and record:
        # As many processes as before record again what somebody had said; otherwise it is chosen as for a new run.
        as_many = before is not None and before.processes == machine.processes > 1
        may = not training.sharded and choose_record(machine.device, kernels or "torch", processes=1).value
        record = True if as_many and may else None
    changed = msgspec.structs.replace(training, kernels=kernels, compile=compiled, record=record)
    return msgspec.structs.replace(settings, training=changed)


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _find(content: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    *tables, last = name.split(".")
    for table in tables:
        # A table that the run did not have, such as search.sampling, had nothing set.
        content = {last: None} if content.get(table, {}) is None else content.get(table, {})
    if last not in content:
        raise TransduceError(f"There is no setting `{name}`.")
    return content, last
