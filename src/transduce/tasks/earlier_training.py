"""What the model that training begins with has learnt before: it tells how large the steps may be."""

import tomllib
from pathlib import Path
from typing import Any

from transduce.tasks.settings import Settings


def goes_on_learning(settings: Settings, kind: str) -> bool:
    """Whether a whole model that has learnt this kind of task, here or elsewhere, is to learn more of it.

    With LoRA it is not the model that learns, but updates that are new.
    """
    if settings.start_from is None or settings.training.lora_rank:
        return False
    return _task_of(Path(settings.start_from)) in (kind, None)


def _task_of(folder: Path) -> str | None:
    """What a run in this folder learnt; None where nothing tells it: the model comes from elsewhere."""
    try:
        content: dict[str, Any] = tomllib.loads((folder / "settings.toml").read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    task = content.get("task", {})
    kind = task.get("kind") if isinstance(task, dict) else None
    return kind if isinstance(kind, str) else None
