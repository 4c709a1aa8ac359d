"""What a library takes of memory is given back, and what is read again is there."""

from pathlib import Path

import pytest

from transduce.libraries import release_library


def _resident_kilobytes(name: str) -> int:
    """Of a library's pages that are only read."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            counts = "w" not in words[1] and len(words) == 6 and Path(words[5]).name.startswith(name)
        elif counts and words[0] == "Rss:":
            total += int(words[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what is in memory can only be seen on Linux")
def test_a_librarys_pages_are_given_back_and_read_again() -> None:
    llvm = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed", exc_type=ImportError)
    llvm.initialize_native_target()
    text = "define i64 @answer() {\n ret i64 42\n}\n"
    llvm.parse_assembly(text).verify()
    before = _resident_kilobytes("libllvmlite")
    release_library("libllvmlite")
    assert _resident_kilobytes("libllvmlite") < before / 2
    assert "@answer" in str(llvm.parse_assembly(text))
