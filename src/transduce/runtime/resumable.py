"""A text file that is written in portions and can be gone on with after a crash.

It grows under the name FILE.partial. Beside it, FILE.progress says how many lines of the input are finished and how
many bytes that is, and is replaced atomically after each portion has reached the disk: whatever stops the program, both
agree on where to go on. The finished file gets its own name as the last act.
"""

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from transduce.durable import exclusive_lock, naming, replace_file, write_file
from transduce.errors import TransduceError

_FORMAT_VERSION = 1


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How far a file is."""

    format_version: int = _FORMAT_VERSION
    lines: int = 0
    """Of the input, finished."""
    size_bytes: int = 0
    """Of what was written for them."""
    input_sha256: str = ""
    """Of those lines."""
    options_sha256: str = ""
    """Of what decides the output: models and settings."""


class ResumableFile:
    """A file that is being written, by one process at a time. A context in which `open` holds it."""

    def __init__(self, path: Path, *, options: bytes, resume: bool) -> None:
        """Begins, or finds out where to go on.

        Args:
            path: its name when it is finished.
            options: what decides its content; when it is gone on with, it must be the same.
            resume: go on with what is there.

        Raises:
            TransduceError: there is something to go on with and `resume` is not said, or it has other options.
        """
        self.path = path = path.resolve() if path.is_symlink() else path  # a link stays one
        self.partial = path.with_name(f"{path.name}.partial")
        self.side = path.with_name(f"{path.name}.progress")
        self.options_sha256 = hashlib.sha256(options).hexdigest()
        self.digest = hashlib.sha256()
        self.progress = Progress(options_sha256=self.options_sha256)
        self.is_finished = resume and path.is_file() and not self.side.exists()
        if self.side.exists():
            self.progress = self._read(resume)
            if not self.partial.exists():
                self.is_finished = True
                self.side.unlink()
        self._held, self._is_held = ExitStack(), False

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Lets go of the file; where nothing came of it, it does not stay behind."""
        if kind is not None and self._is_held and self.progress.lines == 0:
            self.partial.unlink(missing_ok=True)
        self._held.close()

    def _read(self, resume: bool) -> Progress:
        try:
            progress = msgspec.json.decode(self.side.read_bytes(), type=Progress)
        except (OSError, msgspec.MsgspecError) as error:
            raise TransduceError(f"{self.side} cannot be read ({error}): delete it to start anew.") from None
        if not resume:
            raise TransduceError(
                f"{self.partial} has {progress.lines:,} lines of an interrupted translation: say --resume to go on, or "
                f"delete {self.side} to start anew."
            )
        if progress.options_sha256 != self.options_sha256 or progress.format_version != _FORMAT_VERSION:
            raise TransduceError(
                f"{self.partial} was begun with another model or other options: use the same, or delete {self.side} "
                "to start anew."
            )
        if self.partial.is_file():
            is_whole = self.partial.stat().st_size >= progress.size_bytes
        else:  # it had its own name already when something stopped the program
            is_whole = self.path.is_file() and self.path.stat().st_size == progress.size_bytes
        if not is_whole:
            raise TransduceError(f"{self.partial} is shorter than {self.side} says: delete the latter to start anew.")
        return progress

    def skip(self, lines: list[str]) -> None:
        """Takes the input's first lines for done.

        Raises:
            TransduceError: they are not those that were translated.
        """
        self._add(lines)
        if len(lines) < self.progress.lines or self.digest.hexdigest() != self.progress.input_sha256:
            raise TransduceError(
                f"{self.partial} holds translations of {self.progress.lines:,} lines, but the input begins with "
                f"others: give the same input, or delete {self.side} to start anew."
            )

    def open(self) -> None:
        """Lock the partial file and truncate it to the finished lines.

        Raises:
            TransduceError: another process writes the file.
        """
        try:
            self._held.enter_context(exclusive_lock(self.partial.with_name(f"{self.partial.name}.lock")))
        except BlockingIOError:
            raise self._not_alone() from None
        stands = self.side.read_bytes() if self.side.exists() else None
        if stands != (self._encoded() if self.progress.lines else None):  # it went on while this one began
            raise self._not_alone()
        if self.progress.lines == 0:
            self.partial.touch()
        elif not self.partial.exists():
            raise self._not_alone()
        os.truncate(self.partial, self.progress.size_bytes)
        self._is_held = True

    def append(self, lines: list[str], text: str) -> None:
        """Writes what belongs to further lines of the input."""
        content = text.encode("utf-8", "replace")
        with naming(self.partial), self.partial.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._add(lines)
        self.progress = msgspec.structs.replace(
            self.progress,
            lines=self.progress.lines + len(lines),
            size_bytes=self.progress.size_bytes + len(content),
            input_sha256=self.digest.hexdigest(),
        )
        write_file(self.side, self._encoded())

    def finish(self) -> None:
        """Rename the partial file to its final name, and release the lock.

        Raises:
            TransduceError: it does not have the size of what was written.
        """
        if self.partial.stat().st_size != self.progress.size_bytes:
            raise self._not_alone()
        replace_file(self.partial, self.path)
        self.side.unlink(missing_ok=True)
        self._held.close()

    def _encoded(self) -> bytes:
        return msgspec.json.encode(self.progress) + b"\n"

    def _not_alone(self) -> TransduceError:
        return TransduceError(
            f"Another process is writing {self.path}: wait until it has ended, or name another file with --output."
        )

    def _add(self, lines: list[str]) -> None:
        for line in lines:
            self.digest.update(line.encode("utf-8", "replace") + b"\n")
