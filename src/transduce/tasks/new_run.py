"""Create a run's folder safely; a run that fails before training leaves the folder as it was."""

import contextlib
import shutil
from pathlib import Path

from safetensors import SafetensorError

from transduce.errors import TransduceError
from transduce.runtime.folder import CONFIG, MANIFEST, TOKENIZER_CARD, VOCABULARIES, WEIGHTS
from transduce.tasks.settings import DataSettings

SETTINGS_FILE = "settings.toml"
# Other files that a run writes, which could replace the user's files of the same name.
RUN_FILES = ("README.md", CONFIG, MANIFEST, "metrics.jsonl", "checkpoints", "tensorboard")
_TOKENIZER_FILES = (*VOCABULARIES, "tokenizer.json")


def refuse_to_resume_nothing(folder: Path, data: DataSettings, *, resume: bool) -> None:
    """Refuse `--resume` in a folder without a run if the settings name no text to start a run with.

    Raises:
        TransduceError: there is neither a run nor text.
    """
    if resume and not data.source and not data.prepared and not (folder / SETTINGS_FILE).exists():
        raise TransduceError(
            f"{folder} holds no run to resume, and no text is named to start one: name the run's folder with "
            "--out, or pass --source and --target."
        )


def refuse_to_overwrite(folder: Path, *, resume: bool) -> None:
    """Refuse to start a run in a folder that holds another run, a model, or files that would be replaced.

    Raises:
        TransduceError: the folder holds such files, and the run is not resumed.
    """
    has_run = (folder / SETTINGS_FILE).exists()
    if has_run and not resume:
        raise TransduceError(
            f"{folder} holds a run already: continue with --resume, or name another folder with --out."
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


class NewRun:
    """The state of a folder before a run starts in it, which can be restored."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._settings = folder, folder / SETTINGS_FILE
        self._was_there, self._had_run = folder.exists(), self._settings.exists()
        self._made = [parent for parent in folder.parents if not parent.exists()]  # innermost first

    def make(self) -> Path:
        """Create the folder and return it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    def undo(self) -> None:
        """Restore the folder's earlier state after a failure.

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


def is_of_the_disk(error: BaseException) -> bool:
    """Return whether an error came from reading or writing a file, not from the settings or the data."""
    return isinstance(error.__cause__, OSError | SafetensorError)
