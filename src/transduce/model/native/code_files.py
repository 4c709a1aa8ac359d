"""Cache compiled machine code in files, so that the next process need not compile it again.

A file's name is a hash of everything the code depends on: the IR, the processor and LLVM's version. The file begins
with a checksum, so truncated or damaged files are ignored. Without a writable folder nothing is cached.
"""

import hashlib
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

VARIABLE = "TRANSDUCE_CACHE"
"""The environment variable for the cache folder; empty disables the cache."""

_MOST_FILES = 100  # the least recently used ones beyond are deleted
_CHECKSUM = hashlib.sha256
_CHECKSUM_BYTES = _CHECKSUM().digest_size


def key_of(*parts: Any) -> str:
    """Return a cache key: a hash of these parts."""
    return _CHECKSUM("\0".join(map(str, parts)).encode()).hexdigest()


def find_code(key: str) -> bytes | None:
    """Return the cached code of a key; None if there is none or it is damaged."""
    path = _path(key)
    if path is None:
        return None
    try:
        content = path.read_bytes()
        os.utime(path)  # marks the file as recently used
    except OSError:
        return None
    checksum, code = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    return code if checksum == _CHECKSUM(code).digest() else None


def keep_code(key: str, code: bytes) -> None:
    """Cache code under a key if possible.

    The file is replaced atomically, so concurrent readers never see part of it.
    """
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
    """Delete the least recently used files beyond the limit."""
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - _MOST_FILES)]:
        path.unlink(missing_ok=True)


def _path(key: str) -> Path | None:
    """Return the file of a key; None if caching is disabled or the folder belongs to another user."""
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
    """Return the cache folder; None if caching is disabled or there is no home directory."""
    configured = os.environ.get(VARIABLE)
    if configured is not None:
        return Path(configured) / "kernels" if configured else None
    base = os.environ.get("LOCALAPPDATA" if platform.system() == "Windows" else "XDG_CACHE_HOME")
    try:
        return Path(base or Path.home() / ".cache") / "transduce" / "kernels"
    except RuntimeError:  # there is no home directory
        return None
