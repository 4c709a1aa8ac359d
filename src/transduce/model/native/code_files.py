"""Machine code in files, so that the next process need not make it again.

A file is named by what the code was made of: the program's text, the processor and LLVM's version. It begins with a
checksum, so what was cut off or damaged is made anew. Without a folder to write in, nothing is kept.
"""

import hashlib
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

VARIABLE = "TRANSDUCE_CACHE"
"""The environment variable that names another folder for what is kept between processes; empty: nothing is kept."""

_MOST_FILES = 100
_CHECKSUM = hashlib.sha256
_CHECKSUM_BYTES = _CHECKSUM().digest_size


def key_of(*parts: Any) -> str:
    """A name for what is made of these."""
    return _CHECKSUM("\0".join(map(str, parts)).encode()).hexdigest()


def find_code(key: str) -> bytes | None:
    """What was kept under this name; None where there is nothing, or not all of it."""
    path = _path(key)
    if path is None:
        return None
    try:
        found = path.read_bytes()
        os.utime(path)  # the least recently used ones are dropped
    except OSError:
        return None
    checksum, code = found[:_CHECKSUM_BYTES], found[_CHECKSUM_BYTES:]
    return code if checksum == _CHECKSUM(code).digest() else None


def keep_code(key: str, code: bytes) -> None:
    """Keeps it, if that is possible; who reads at the same time finds all of it or nothing."""
    path = _path(key)
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(_CHECKSUM(code).digest() + code)
        os.replace(file.name, path)
        _drop_oldest(path.parent)
    except OSError:
        return


def _drop_oldest(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - _MOST_FILES)]:
        path.unlink(missing_ok=True)


def _path(key: str) -> Path | None:
    """None where nothing is to be kept, or the folder is somebody else's."""
    folder = _folder()
    if folder is None:
        return None
    try:
        if hasattr(os, "getuid") and folder.exists() and folder.stat().st_uid != os.getuid():
            return None
    except OSError:
        return None
    return folder / key


def _folder() -> Path | None:
    said = os.environ.get(VARIABLE)
    if said is not None:
        return Path(said) / "kernels" if said else None
    known = os.environ.get("LOCALAPPDATA" if platform.system() == "Windows" else "XDG_CACHE_HOME")
    try:
        return Path(known or Path.home() / ".cache") / "transduce" / "kernels"
    except RuntimeError:  # nobody's home
        return None
