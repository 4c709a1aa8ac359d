"""Write a text file in portions so that writing can resume after a crash.

The file grows under the name FILE.partial. FILE.progress records how many lines of the input are finished and the
file's size in bytes at that point. It is replaced atomically after each portion is flushed to disk. Whatever stops the
program, both files agree on where to resume. The finished file is renamed to FILE in the last step.
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
    """The progress of a file, as stored in FILE.progress."""

    format_version: int = _FORMAT_VERSION
    lines: int = 0
    """Number of finished lines of the input."""
    size_bytes: int = 0
    """Size in bytes of the output for these lines."""
    input_sha256: str = ""
    """SHA-256 digest of these input lines."""
    options_sha256: str = ""
    """SHA-256 digest of everything that determines the output: models and settings."""


class ResumableFile:
    """A file that one process writes in portions. As a context manager, it releases the lock that `open` takes."""

    def __init__(self, path: Path, *, options: bytes, resume: bool) -> None:
        """Start a new file, or find out where to resume.

        Args:
            path: final path of the file.
            options: everything that determines the content; it must be the same when writing resumes.
            resume: resume an unfinished file.

        Raises:
            TransduceError: there is an unfinished file and `resume` is False, or the file was started with other
                options.
        """
        self.path = path = path.resolve() if path.is_symlink() else path  # keeps a symbolic link and writes its target
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
        self._lock, self._is_open = ExitStack(), False

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock; after an error before the first portion, delete the empty file."""
        if kind is not None and self._is_open and self.progress.lines == 0:
            self.partial.unlink(missing_ok=True)
        self._lock.close()

    def _read(self, resume: bool) -> Progress:
        try:
            progress = msgspec.json.decode(self.side.read_bytes(), type=Progress)
        except (OSError, msgspec.MsgspecError) as error:
            raise TransduceError(f"{self.side} cannot be read ({error}): delete it to start again.") from None
        if not resume:
            raise TransduceError(
                f"{self.partial} has {progress.lines:,} lines of an interrupted translation: pass --resume to "
                f"continue, or delete {self.side} to start again."
            )
        if progress.options_sha256 != self.options_sha256 or progress.format_version != _FORMAT_VERSION:
            raise TransduceError(
                f"{self.partial} was started with another model or other options: use the same, or delete {self.side} "
                "to start again."
            )
        if self.partial.is_file():
            is_complete = self.partial.stat().st_size >= progress.size_bytes
        else:  # the program stopped after the final rename
            is_complete = self.path.is_file() and self.path.stat().st_size == progress.size_bytes
        if not is_complete:
            raise TransduceError(f"{self.partial} is shorter than {self.side} says: delete the latter to start again.")
        return progress

    def skip(self, lines: list[str]) -> None:
        """Skip the first lines of the input, which are already translated.

        Raises:
            TransduceError: the lines differ from the translated ones.
        """
        self._add(lines)
        if len(lines) < self.progress.lines or self.digest.hexdigest() != self.progress.input_sha256:
            raise TransduceError(
                f"{self.partial} holds translations of {self.progress.lines:,} lines, but the input begins with "
                f"other lines: use the same input, or delete {self.side} to start again."
            )

    def open(self) -> None:
        """Lock the partial file and truncate it to the finished lines.

        Raises:
            TransduceError: another process writes the file.
        """
        try:
            self._lock.enter_context(exclusive_lock(self.partial.with_name(f"{self.partial.name}.lock")))
        except BlockingIOError:
            raise self._locked_error() from None
        stored = self.side.read_bytes() if self.side.exists() else None
        if stored != (self._encoded() if self.progress.lines else None):  # another process made progress meanwhile
            raise self._locked_error()
        if self.progress.lines == 0:
            self.partial.touch()
        elif not self.partial.exists():
            raise self._locked_error()
        os.truncate(self.partial, self.progress.size_bytes)
        self._is_open = True

    def append(self, lines: list[str], text: str) -> None:
        """Append the output of further input lines, flush it to disk and record the progress."""
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
            TransduceError: the file's size differs from what was written.
        """
        if self.partial.stat().st_size != self.progress.size_bytes:
            raise self._locked_error()
        replace_file(self.partial, self.path)
        self.side.unlink(missing_ok=True)
        self._lock.close()

    def _encoded(self) -> bytes:
        return msgspec.json.encode(self.progress) + b"\n"

    def _locked_error(self) -> TransduceError:
        return TransduceError(
            f"Another process is writing {self.path}: wait until it has ended, or name another file with --output."
        )

    def _add(self, lines: list[str]) -> None:
        for line in lines:
            self.digest.update(line.encode("utf-8", "replace") + b"\n")
