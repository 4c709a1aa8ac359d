"""Find out what a base model was trained for, which determines the learning rate."""

import tomllib
from pathlib import Path
from typing import Any

from transduce.tasks.settings import Settings


def goes_on_learning(settings: Settings, kind: str) -> bool:
    """Return whether training continues a whole base model on the same kind of task.

    With LoRA, the answer is False, because only new adapter weights are trained.
    """
    if settings.start_from is None or settings.training.lora_rank:
        return False
    return _task_of(Path(settings.start_from)) in (kind, None)


def _task_of(folder: Path) -> str | None:
    """Return the task that the run in a folder was trained for; None if unknown, such as for an imported model."""
    try:
        content: dict[str, Any] = tomllib.loads((folder / "settings.toml").read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    task = content.get("task", {})
    kind = task.get("kind") if isinstance(task, dict) else None
    return kind if isinstance(kind, str) else None
