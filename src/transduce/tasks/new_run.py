"""The folder of a run that begins: where nothing is learnt, it is left as if there had been no run."""

import contextlib
import shutil
from pathlib import Path

from safetensors import SafetensorError

from transduce.errors import TransduceError
from transduce.runtime.folder import CONFIG, MANIFEST, TOKENIZER_CARD, VOCABULARIES, WEIGHTS
from transduce.tasks.settings import DataSettings

SETTINGS_FILE = "settings.toml"
# What else a run writes, of which something of the user's may have the name.
RUN_FILES = ("README.md", CONFIG, MANIFEST, "metrics.jsonl", "checkpoints", "tensorboard")
_OF_TOKENIZERS = (*VOCABULARIES, "tokenizer.json")


def refuse_to_resume_nothing(folder: Path, data: DataSettings, *, resume: bool) -> None:
    """Where there is no run yet, `--resume` begins one, for which there must be text.

    Raises:
        TransduceError: there is none.
    """
    if resume and not data.source and not data.prepared and not (folder / SETTINGS_FILE).exists():
        raise TransduceError(
            f"{folder} holds no run to go on with, and no text is named to begin one with: name the run's folder with "
            "--out, or give --source and --target."
        )


def refuse_to_overwrite(folder: Path, *, resume: bool) -> None:
    """Before a run begins: a folder that holds another one, or a model, is left alone.

    Raises:
        TransduceError: it does, and a run is not to be gone on with.
    """
    has_run = (folder / SETTINGS_FILE).exists()
    if has_run and not resume:
        raise TransduceError(f"{folder} holds a run already: go on with --resume, or name another folder with --out.")
    if not has_run and (folder / WEIGHTS).exists():
        raise TransduceError(
            f"{folder} holds a model, which training would replace, but no run: name another folder with --out."
        )
    # A tokenizer may be of a run that something stopped before it began: then its card is there.
    names = RUN_FILES if (folder / TOKENIZER_CARD).exists() else (*RUN_FILES, *_OF_TOKENIZERS)
    mine = [name for name in names if (folder / name).exists()]
    if not has_run and mine:
        raise TransduceError(f"{folder / mine[0]} would be replaced by a run's: name another folder with --out.")


class NewRun:
    """What a folder is before a run begins in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._settings = folder, folder / SETTINGS_FILE
        self._was_there, self._had_run = folder.exists(), self._settings.exists()
        self._made = [parent for parent in folder.parents if not parent.exists()]  # the innermost first

    def make(self) -> Path:
        """The folder, which is there from here on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    def undo(self) -> None:
        """Removes a folder that was not there before, with its parents that were made for it; one that was there holds
        no run afterwards, and all that it held.
        """
        if not self._was_there:
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # somebody else has put something there
                for parent in self._made:
                    parent.rmdir()
        elif not self._had_run:
            self._settings.unlink(missing_ok=True)


def is_of_the_disk(error: BaseException) -> bool:
    """Whether a file could not be read or written, which is no fault of the settings or the data."""
    return isinstance(error.__cause__, OSError | SafetensorError)
