"""Test that of two processes that write the same file or folder, one is refused, or the last one wins."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.atomic_io import atomic_folder, lock_output, open_atomically, write_file
from transduce.commands.main import main
from transduce.documents.formats import read_document
from transduce.documents.limits import LOCAL_LIMITS
from transduce.documents.translate import write_translated
from transduce.documents.units import DocumentSettings
from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.model_folder.write import save

QUICK = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]


def _write_folder(path: Path) -> None:
    with atomic_folder(path, "card.json", "a corpus") as folder:
        (folder / "card.json").write_text("{}", "utf-8")


def _write_stream(path: Path) -> None:
    with open_atomically(path) as file:
        file.write(b"x")


def _write_document(path: Path) -> None:
    document = read_document("a.txt", b"word\n", DocumentSettings(), LOCAL_LIMITS)
    write_translated(document, path, lambda texts, kind: list(texts), identity=b"")  # noqa: ARG005


@pytest.mark.parametrize("write", [_write_folder, _write_stream, _write_document])
def test_a_second_writer_is_refused_and_leaves_the_first_ones_files(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    path = tmp_path / "out"
    code = (
        "import pathlib, sys, transduce.atomic_io as io\n"
        "with io.lock_output(pathlib.Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline().strip() == b"locked"
        before = sorted(tmp_path.iterdir())
        with pytest.raises(TransduceError, match=r"Another process is writing .*out: wait until it has ended, or name"):
            write(path)
        assert sorted(tmp_path.iterdir()) == before
        first.stdin.close()
        assert first.wait() == 0
    write(path)
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_folder_is_written_where_a_link_names_it(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link, real = tmp_path / "out", tmp_path / "disk" / "real"
    link.symlink_to(real)
    for _ in range(3):  # new, then replaced, then beside a link that an earlier version left behind
        _write_folder(link)
        assert link.is_symlink()
        assert [path.name for path in real.iterdir()] == ["card.json"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "out"]
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real"]
        if not (tmp_path / "disk" / ".real.old").exists():
            (tmp_path / "disk" / ".real.old").symlink_to(tmp_path)


def test_small_files_that_are_written_at_once_are_whole(tmp_path: Path) -> None:
    path, contents = tmp_path / "report.json", [bytes([number]) * 300_000 for number in range(8)]
    threads = [threading.Thread(target=write_file, args=(path, content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_partial_files_of_killed_processes_are_removed_by_a_later_write(tmp_path: Path) -> None:
    old = [tmp_path / name for name in (".partial-0123abcd-a", ".partial-0123abcd-b-a", ".partial-report-a")]
    fresh = tmp_path / ".partial-ffffffff-a"
    for path in (*old, fresh):
        path.write_bytes(b"half")
    for path in old:
        os.utime(path, (path.stat().st_mtime - 3700.0,) * 2)
    os.utime(fresh, (fresh.stat().st_mtime - 3500.0,) * 2)  # perhaps another process writes it
    write_file(tmp_path / "a", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["a", fresh.name, *(path.name for path in old[1:])]  # those of other files stay
    )


def test_models_and_exports_are_written_by_one_process(
    translator: Translator, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, export = tmp_path / "model", tmp_path / "export"
    save(translator.model, model, tokenizer=translator.tokenizer)
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    with lock_output(model / "model.safetensors"), pytest.raises(TransduceError, match="Another process is writing"):
        save(translator.model, model, tokenizer=translator.tokenizer)
    assert {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()} == before
    with lock_output(export):
        assert main(["export", str(trained), str(export), "--to", "huggingface"]) == 2
    assert f"Another process is writing {export}" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_second_translation_of_the_same_document_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "a.srt", tmp_path / "b.srt"
    source.write_text("1\n00:00:01,000 --> 00:00:02,000\n我吃鱼。\n", "utf-8")
    command = ["translate", str(trained), str(source), "--output", str(target), *QUICK]
    with lock_output(target):
        assert main([*command, "--resume"]) == 2
        assert f"Another process is writing {target}" in capsys.readouterr().err
    assert main(command) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.srt", "b.srt"]
