"""Write files and folders atomically: they appear complete or not at all, and survive a crash.

The module also finds the folders of the user's cache.
"""

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from transduce.errors import TransduceError

CACHE_VARIABLE = "TRANSDUCE_CACHE"
"""The environment variable that sets the folder of the user's cache; an empty value disables all caching."""

# --- files ---
# Files survive a crash (new file, flush to disk, rename) and can be locked against other processes.


_MAX_LINKS = 40  # as Linux follows
_STALE_SECONDS = 3600.0  # without a change, after which a partial file is one that a killed process left


def write_file(path: Path, content: bytes) -> None:
    """Write or replace a file atomically.

    Devices and pipes are written to directly. If the path is a symbolic link, the file that it leads to is replaced. If
    several processes write a file at the same time, the last one wins.
    """
    with name_path_in_errors(path), _new_file(path, create_partial) as file:
        file.write(content)


def create_partial(path: Path, *, mode: int = 0o666) -> Path:
    """Create an empty temporary file in the folder of `path`, and return the temporary file's path.

    The caller writes the temporary file, and then renames it to `path`. Every call creates a file with a new name and
    with the permissions `mode`.

    Killed processes may have left temporary files for the same `path`. Those that have not changed for an hour are
    removed.
    """
    partial = path.with_name(f".partial-{secrets.token_hex(4)}-{path.name}")
    partial.touch(mode, exist_ok=False)
    now = partial.stat().st_mtime  # by the clock of the file system
    is_partial = re.compile(rf"\.partial-[0-9a-f]{{8}}-{re.escape(path.name)}").fullmatch
    with contextlib.suppress(OSError):  # they may belong to another user, or another process removes them now
        for other in path.parent.iterdir():
            if is_partial(other.name) and other.stat().st_mtime < now - _STALE_SECONDS:
                other.unlink()
    return partial


def json_bytes(content: Any, *, indent: int = 2) -> bytes:
    """Return a value as the bytes of a JSON file: indented, in UTF-8, with a line feed at the end."""
    return msgspec.json.format(msgspec.json.encode(content), indent=indent) + b"\n"


def write_json(path: Path, content: Any, *, indent: int = 2) -> None:
    """Write a value to a JSON file atomically."""
    write_file(path, json_bytes(content, indent=indent))


@contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that appears at its path when the `with` block succeeds.

    An existing file at the path is replaced. Devices and pipes are written to directly. If the path is a symbolic link,
    the file that it leads to is replaced.

    Raises:
        TransduceError: another process writes the file.
    """
    path = link_target(path)
    with lock_output(path), _new_file(path, lambda path: path.with_name(f".partial-{path.name}")) as file:
        yield file


@contextmanager
def _new_file(path: Path, partial_of: Callable[[Path], Path]) -> Iterator[BinaryIO]:
    """Open a binary file at `partial_of(path)`, and rename it to `path` when the `with` block succeeds.

    If the block fails, the file is removed. Devices and pipes are written to directly. If the path is a symbolic link,
    the file that it leads to is replaced.
    """
    path = link_target(path)
    if path.is_symlink() or is_special_file(path):
        with path.open("wb") as file:
            yield file
        return
    partial = partial_of(path)
    try:
        with partial.open("wb") as file:
            yield file
        replace_file(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)  # frees space on a full disk
        raise


def link_target(path: Path) -> Path:
    """Return the path of the file to write: the target of a symbolic link, or the path itself if it is no link.

    The target need not exist. A link that leads back to itself is returned unchanged.

    A link in `/proc` or `/dev`, such as /dev/stdout, stands for an open file of this process, which must be written to
    directly. A path that leads to such a link is returned unchanged. Files in `/dev/shm` are ordinary files.
    """
    target = path.absolute()
    for _ in range(_MAX_LINKS):
        is_file = target.is_relative_to("/dev/shm") or not any(map(target.is_relative_to, ("/dev", "/proc")))
        if not is_file or not target.is_symlink():
            break
        target = Path(os.path.realpath(target.parent)) / os.readlink(target)
    return path if target.is_symlink() or not path.is_symlink() else target


@contextmanager
def name_path_in_errors(path: Path | str) -> Iterator[None]:
    """Add the path to each OSError of a `with` block that names no file, so that its message shows the path."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def is_special_file(path: Path) -> bool:
    """Return whether a path exists but is not a regular file, such as a device or a pipe."""
    return path.exists() and not path.is_file()


def replace_file(partial: Path, path: Path) -> None:
    """Flush a complete file to disk and rename it to its final path, replacing any file there."""
    sync_file(partial)
    os.replace(partial, path)
    sync_folder(path.parent)


def file_sha256(path: Path, start: int = 0) -> str:
    """Return the SHA-256 digest (hexadecimal) of a file's bytes from the byte with the index `start` to the end."""
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(path: Path) -> None:
    """Flush a file's content to disk."""
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flush a directory's entries to disk (a no-op on Windows, which does not need it)."""
    if os.name != "nt":
        sync_file(path)


@contextmanager
def exclusive_lock(lock_file: Path) -> Iterator[None]:
    """Hold a lock file for this process during a `with` block, and remove the file afterwards.

    The operating system releases the lock when the process ends, even if it is killed; a lock file that stays behind
    then blocks nobody. On a file system that supports no locks, the block runs without one.

    Raises:
        BlockingIOError: another process, or another context of this process, holds the lock.
    """
    from filelock import FileLock, Timeout  # 30 ms, needed only by runs and large translations

    lock = FileLock(lock_file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise BlockingIOError(errno.EWOULDBLOCK, "another process holds this lock", str(lock_file)) from None
    except OSError:
        yield
        return
    try:
        yield
    finally:
        # Unix keeps the file on release. A process that opened it in the meantime notices that it is gone and fails.
        with contextlib.suppress(OSError):
            lock_file.unlink()
        lock.release()


@contextmanager
def lock_output(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder during a `with` block, while this process writes it.

    No lock is held for a device or pipe, or if the parent folder does not exist.

    Raises:
        TransduceError: another process, or another thread of this process, holds the lock.
    """
    with contextlib.ExitStack() as stack:
        if path.parent.is_dir() and not is_special_file(path):
            try:
                stack.enter_context(exclusive_lock(path.with_name(f".{path.name}.lock")))
            except BlockingIOError:
                raise TransduceError(
                    f"Another process is writing {path}: wait until it has ended, or name another one."
                ) from None
        yield


# --- folders ---


@contextmanager
def atomic_folder(folder: str | Path, required_entry: str, description: str) -> Iterator[Path]:
    """Yield a temporary folder, and rename it to its final name when the `with` block succeeds.

    If the block fails, the temporary folder is removed. If the final name is a symbolic link, the folder that it leads
    to is replaced, and the link stays.

    Args:
        folder: the final name. An existing folder is replaced if it is empty or contains ``required_entry``.
        required_entry: name of a file or folder that every folder of this kind contains.
        description: a description of such a folder for messages: "a prepared corpus".

    Raises:
        TransduceError: the name belongs to a file, or to a folder with other content, or another process writes the
            folder.
    """
    folder = Path(folder).absolute()
    folder = folder.resolve() if folder.is_symlink() else folder
    if folder.exists() and not folder.is_dir():
        raise TransduceError(f"{folder} is a file, but {description} is a folder: choose another name.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_output(folder):
        _recover(folder)
        if folder.is_dir() and not (folder / required_entry).exists() and any(folder.iterdir()):
            raise TransduceError(f"{folder} holds something other than {description}: choose an empty or a new folder.")
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            with name_path_in_errors(folder):
                yield partial
            _replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _replace(partial: Path, folder: Path) -> None:
    """Rename a finished folder to its final name, replacing any folder there.

    The old folder is moved away first and deleted last.
    """
    old = _moved_away(folder)
    if old.is_symlink():  # which earlier versions left behind where the folder's name was a link
        old.unlink()
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _recover(folder: Path) -> None:
    """Move the old folder back to its final name if a process was killed while `_replace` exchanged the folders."""
    old = _moved_away(folder)
    if old.is_dir() and not folder.exists():
        os.replace(old, folder)


def _moved_away(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


# --- the user's cache ---


def user_cache_folder(name: str) -> Path | None:
    """Return the folder `name` of the user's cache, which may not exist yet; None if there is no usable folder.

    The cache is the folder in $TRANSDUCE_CACHE if that is set, else `transduce` in the user's cache folder. It is not
    usable if the variable is empty, if there is no home directory, or if the cache or its folder `name` belongs to
    another user, whose files cannot be trusted.
    """
    configured = os.environ.get(CACHE_VARIABLE)
    if configured == "":
        return None
    base = os.environ.get("LOCALAPPDATA" if platform.system() == "Windows" else "XDG_CACHE_HOME")
    try:
        cache = Path(configured) if configured else Path(base or Path.home() / ".cache") / "transduce"
    except RuntimeError:  # there is no home directory
        return None
    return None if any(map(_may_be_of_another_user, (cache, cache / name))) else cache / name


def _may_be_of_another_user(path: Path) -> bool:
    """Return whether a file or folder belongs to another user; True if unknown, False if it does not exist."""
    try:
        return hasattr(os, "getuid") and path.stat().st_uid != os.getuid()
    except FileNotFoundError:
        return False
    except OSError:
        return True
