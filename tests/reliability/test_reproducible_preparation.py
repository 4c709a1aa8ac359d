"""Test that the same text gives the same bytes, regardless of hash seed, number of processes and time of day."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

WriteLines = Callable[[str, Iterable[str]], Path]

_PREPARE = """
import sys
from transduce.data.prepared import prepare
from transduce.text.corpus import CorpusFiles, read_pairs
from transduce.text.filters import FilterSettings
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

if __name__ == "__main__":
    source, target, folder, workers, kind = sys.argv[1:]
    files = CorpusFiles(source=(source,), target=(target,))
    settings = TokenizerSettings(vocabulary_size=500, kind=kind)
    tokenizer = Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)
    tokenizer.save(folder)
    filters = FilterSettings(drop_duplicates=True)
    prepare(files, tokenizer, filters, folder + "/corpus", workers=int(workers))
"""


def digest(folder: Path) -> str:
    """Return the SHA-256 of all files below a folder, including their names."""
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_one_hash_over_hash_seeds_processes_and_repeats(tmp_path: Path, toy_corpus: Path, kind: str) -> None:
    script = tmp_path / "prepare.py"
    script.write_text(_PREPARE, "utf-8")
    digests = set()
    for repeat, (seed, workers) in enumerate([("0", "1"), ("1", "2"), ("1", "1")]):
        folder = tmp_path / str(repeat)
        subprocess.run(
            [sys.executable, script, toy_corpus / "train.zh", toy_corpus / "train.en", folder, workers, kind],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=True,
            timeout=120,
        )
        digests.add(digest(folder))
    assert len(digests) == 1


def test_the_digest_sees_a_changed_byte_and_a_changed_name(write_lines: WriteLines, tmp_path: Path) -> None:
    write_lines("a/x", ["1"])
    write_lines("b/x", ["2"])
    write_lines("c/y", ["1"])
    write_lines("d/x", ["1"])
    assert len({digest(tmp_path / name) for name in "abc"}) == 3
    assert digest(tmp_path / "a") == digest(tmp_path / "d")
