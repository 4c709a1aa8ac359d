"""Test `transduce translate` on large files (shards, workers, resuming after a kill) and its search options."""

import argparse
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from transduce.commands.main import build_parser, main
from transduce.commands.translate import identity, make_job
from transduce.errors import TransduceError
from transduce.inference import bulk_files
from transduce.inference.bulk_files import LineOptions
from transduce.inference.translator import Translator
from transduce.search.settings import SamplingSettings, SearchSettings

SOURCES = Path(__file__).resolve().parents[2] / "src"
COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
QUICK = ["--beam-size", "1", "--max-length", "8", *COMPUTING]
Capture = pytest.CaptureFixture[str]
WriteLines = Callable[[str, Iterable[str]], Path]


@pytest.fixture
def lines(toy_corpus: Path) -> list[str]:
    return (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:12]


def run(capsys: Capture, *arguments: str | Path) -> str:
    assert main(["translate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_shards_are_joined_line_by_line(
    capsys: Capture, trained: Path, write_lines: WriteLines, lines: list[str]
) -> None:
    r"""Shards are joined like `paste -d '\n'` does, without the empty lines that it adds at the end."""
    file = write_lines("in.zh", lines[:11])
    whole = run(capsys, trained, file, *QUICK).split("\n")[:-1]
    shards = [run(capsys, trained, file, "--shard", f"{n}/3", *QUICK).split("\n")[:-1] for n in (1, 2, 3)]
    assert [len(shard) for shard in shards] == [4, 4, 3]
    joined = [shard[row] for row in range(4) for shard in shards if row < len(shard)]
    assert joined == whole


def test_numbers_of_alternatives_are_those_of_the_whole_input(
    capsys: Capture, trained: Path, write_lines: WriteLines, lines: list[str]
) -> None:
    out = run(capsys, trained, write_lines("in.zh", lines[:5]), "--shard", "2/2", "--n-best", "2", *COMPUTING)
    assert [row.split(" ||| ")[0] for row in out.split("\n")[:-1]] == ["1", "1", "3", "3"]


def test_workers_write_what_one_process_writes(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path, write_lines: WriteLines, lines: list[str]
) -> None:
    monkeypatch.setattr("transduce.inference.bulk_files.PORTION_LINES", 2)
    file = write_lines("in.zh", [*lines, "", "🙂", "我\u2028你"])
    alone = run(capsys, trained, file, *QUICK)
    assert alone.count("\n") == 15
    assert run(capsys, trained, file, "--workers", "2", *QUICK) == alone


def test_no_more_workers_start_than_there_is_work_for(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path, write_lines: WriteLines, lines: list[str]
) -> None:
    started = []

    class Counted(bulk_files._Worker):
        def __init__(self, settings: bulk_files.WorkerSettings) -> None:
            started.append(settings)
            super().__init__(settings)

    monkeypatch.setattr(bulk_files, "_Worker", Counted)
    file = write_lines("in.zh", lines)
    assert run(capsys, trained, file, "--workers", "1000", *QUICK) == run(capsys, trained, file, *QUICK)
    assert len(started) == 1


def test_a_workers_mistake_is_one_sentence(
    capsys: Capture, trained: Path, tmp_path: Path, write_lines: WriteLines, lines: list[str]
) -> None:
    file, output = write_lines("in.zh", lines), tmp_path / "out.en"
    arguments = ["--must-contain", "龘", "--workers", "2", "--output", str(output), *QUICK]
    assert main(["translate", str(trained), str(file), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("transduce: A translation cannot contain `龘`: ")
    assert captured.err.count("\n") == 1
    assert not output.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows ends processes otherwise")
def test_a_killed_translation_resumes_to_the_same_output(
    capsys: Capture, trained: Path, tmp_path: Path, write_lines: WriteLines, toy_corpus: Path
) -> None:
    lines = (toy_corpus / "train.zh").read_text("utf-8").split("\n")[:-1] * 2
    file, output = write_lines("in.zh", lines), tmp_path / "out.en"
    arguments = ["translate", str(trained), str(file), "--output", str(output), "--resume", *QUICK]
    command = [sys.executable, "-m", "transduce", *arguments]
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        while not output.with_name("out.en.progress").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not output.exists()
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert "Continuing after line " in said
    assert f"{len(lines):,} lines in {output}" in said
    whole = tmp_path / "whole.en"
    assert main(["translate", str(trained), str(file), "--output", str(whole), *QUICK]) == 0
    assert output.read_bytes() == whole.read_bytes()
    assert main(arguments) == 0
    assert f"{output} exists already, so nothing was done: delete it to translate again." in capsys.readouterr().err
    newer = output.stat().st_mtime + 1
    os.utime(file, (newer, newer))
    assert main(arguments) == 2
    assert f"{output} is complete, but older than {file}: delete it, or leave --resume out" in capsys.readouterr().err


@pytest.mark.parametrize("finished", [0, 2])
def test_an_interrupted_translation_says_what_is_finished(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    trained: Path,
    tmp_path: Path,
    write_lines: WriteLines,
    lines: list[str],
    finished: int,
) -> None:
    file, output = write_lines("in.zh", lines), tmp_path / "out.en"
    translate, calls = bulk_files._translate_lines, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > finished:
            raise KeyboardInterrupt
        return translate(*arguments)

    monkeypatch.setattr(bulk_files, "_translate_lines", interrupted)
    monkeypatch.setattr(bulk_files, "PORTION_LINES", 4)
    arguments = ["translate", str(trained), str(file), "--output", str(output), *QUICK]
    assert main(arguments) == 130
    said = capsys.readouterr().err
    if not finished:
        assert said.endswith(f"No line of {output} was finished, so it starts at the first line next time.\n")
        assert not list(tmp_path.glob("out.en*"))
        return
    assert said.endswith(f"Finished: 8 lines, in {output}.partial. Continue with the same command and --resume.\n")
    assert main(arguments) == 2
    assert f"{output}.partial has 8 lines of an interrupted translation: pass --resume" in capsys.readouterr().err
    monkeypatch.setattr(bulk_files, "_translate_lines", translate)
    assert main([*arguments, "--resume"]) == 0
    assert output.read_text("utf-8") == run(capsys, trained, file, *QUICK)


def test_a_very_long_line_is_reported_before_it_is_translated(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path, write_lines: WriteLines
) -> None:
    monkeypatch.setattr("transduce.commands.options._LONG_LINE", 9)
    assert main(["translate", str(trained), str(write_lines("in.zh", ["1", "2" * 9])), *QUICK]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"1\n{'2' * 9}\n"
    assert "warning: line 2 has 9 characters, which takes long: separate lines by line feeds.\n" in captured.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_output_is_named(capsys: Capture, trained: Path, write_lines: WriteLines) -> None:
    file = str(write_lines("in.zh", ["我吃鱼。"]))
    assert main(["translate", str(trained), file, "--output", "/dev/full", *QUICK]) == 2
    assert capsys.readouterr().err == (
        "transduce: A file or folder could not be used: /dev/full: No space left on device.\n"
    )


def test_lines_end_as_those_of_the_input(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path, tmp_path: Path, lines: list[str]
) -> None:
    """The first line decides; a translation into a file resumes only if the ends are still the same."""
    content = "\n".join(lines).encode()
    file, output = tmp_path / "in.zh", tmp_path / "out.en"
    file.write_bytes(content)
    expected = run(capsys, trained, file, *QUICK).replace("\n", "\r\n")
    assert expected.count("\r\n") == 12
    file.write_bytes(content.replace(b"\n", b"\r\n"))
    assert run(capsys, trained, file, *QUICK) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert run(capsys, trained, *QUICK) == expected
    monkeypatch.setattr(bulk_files, "PORTION_LINES", 4)
    monkeypatch.setattr(bulk_files.ResumableFile, "finish", lambda _: sys.exit(1))
    command = ["--output", str(output), *QUICK]
    with pytest.raises(SystemExit):
        run(capsys, trained, file, *command)
    monkeypatch.undo()
    file.write_bytes(content)
    assert main(["translate", str(trained), str(file), *command, "--resume"]) == 2
    assert "but the input begins with other lines" in capsys.readouterr().err
    file.write_bytes(content.replace(b"\n", b"\r\n"))
    run(capsys, trained, file, *command, "--resume")
    assert output.read_bytes() == expected.encode()


def test_an_output_file_equals_the_printed_output(
    capsys: Capture, trained: Path, tmp_path: Path, write_lines: WriteLines, lines: list[str]
) -> None:
    file, output = write_lines("in.zh", lines), tmp_path / "out.en"
    printed = run(capsys, trained, file, *QUICK)
    assert main(["translate", str(trained), str(file), "--output", str(output), "--resume", *QUICK]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("There is nothing to resume, so this starts at the first line.\n12 lines in ")
    assert output.read_bytes() == printed.encode()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_written_to_and_a_link_stays_one(
    capsys: Capture, trained: Path, tmp_path: Path, write_lines: WriteLines, lines: list[str]
) -> None:
    """Replacing a special file by a regular one would remove a device from the whole system."""
    file, pipe, link = write_lines("in.zh", lines[:3]), tmp_path / "pipe", tmp_path / "link"
    printed = run(capsys, trained, file, *QUICK)
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    run(capsys, trained, file, "--output", pipe, *QUICK)
    assert reader.communicate()[0] == printed.encode()
    assert pipe.is_fifo()
    assert main(["translate", str(trained), str(file), "--output", str(pipe), "--resume", *QUICK]) == 2
    assert f"--resume continues a file, but {pipe} is not a file" in capsys.readouterr().err
    (tmp_path / "target").write_text("old", "utf-8")
    link.symlink_to("target")
    run(capsys, trained, file, "--output", link, *QUICK)
    assert (tmp_path / "target").read_bytes() == printed.encode()
    assert link.is_symlink()
    (dangling := tmp_path / "dangling").symlink_to("missing/file")
    assert main(["translate", str(trained), str(file), "--output", str(dangling), *QUICK]) == 2
    assert f"there is no folder {tmp_path / 'missing'}." in capsys.readouterr().err


def test_a_dash_names_standard_input_and_output(
    capsys: Capture, trained: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{lines[0]}\n".encode())))
    assert run(capsys, trained, "-", "--output", "-", *QUICK).count("\n") == 1


def test_phrases_may_come_through_a_pipe(
    capsys: Capture, trained: Path, tmp_path: Path, write_lines: WriteLines, lines: list[str]
) -> None:
    file, output = write_lines("in.zh", lines[:2]), tmp_path / "out.en"
    reading, writing = os.pipe()
    os.write(writing, b"milk\n\n")
    os.close(writing)
    run(capsys, trained, file, "--phrases", f"/dev/fd/{reading}", "--output", output, *COMPUTING)
    os.close(reading)
    assert "milk" in output.read_text("utf-8").split("\n")[0]


def test_several_models_translate_together(
    capsys: Capture, trained: Path, write_lines: WriteLines, lines: list[str]
) -> None:
    file = write_lines("in.zh", lines)
    assert run(capsys, trained, trained, file, *QUICK) == run(capsys, trained, file, *QUICK)


def test_search_options_of_the_command_take_effect(
    capsys: Capture, trained: Path, write_lines: WriteLines, lines: list[str], translator: Translator
) -> None:
    file = write_lines("in.zh", lines[:3])
    terms = write_lines("terms.tsv", ["milk", "", "tea\twater"])
    first, second, third, _ = run(
        capsys, trained, file, "--phrases", terms, "--must-contain", "the teacher", *COMPUTING
    ).split("\n")
    assert all("the teacher" in line for line in (first, second, third))
    assert "milk" in first
    assert "tea" in third
    assert "water" in third
    assert "rice" not in run(capsys, trained, file, "--forbid", "rice", "--forbid", "the teacher", *COMPUTING)
    prefixed = run(capsys, trained, file, "--prefix", "she likes", *COMPUTING)
    assert all(line.startswith("she likes") for line in prefixed.split("\n")[:-1])
    strict = run(capsys, trained, file, "--batch-invariant", "--precision", "fp32", "--device", "cpu")
    assert strict == "".join(f"{translation.text}\n" for translation in translator(lines[:3]))
    diverse = ["--diverse-groups", "2", "--diversity-penalty", "20", "--n-best", "2", "--coverage-penalty", "0.1"]
    rows = run(capsys, trained, file, *diverse, *COMPUTING).split("\n")[:-1]
    assert len(rows) == 6
    starts = [row.split(" ||| ")[1].split(" ")[0] for row in rows]
    assert sum(one != two for one, two in zip(starts[::2], starts[1::2], strict=True)) >= 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard", "5/4"], "A shard must be I/N with I from 1 to N, such as 1/4, but is 5/4"),
        (["--workers", "0"], "`--workers` must be at least 1, but is 0"),
        (["--resume"], "--resume continues a file, but none is named: add --output FILE"),
        (["--output", "/nowhere/at/all"], "/nowhere/at/all cannot be written: there is no folder /nowhere/at"),
        (["--diverse-groups", "3"], "`--diverse-groups` must divide `--beam-size` (4), but is 3: change one of them"),
        (
            ["--coverage-penalty", "1", "--beam-size", "1"],
            "`--coverage-penalty` ranks the hypotheses of a beam, but `--beam-size` is 1: raise it.",
        ),
        (
            ["--diversity-penalty", "2"],
            "`--diversity-penalty` applies between groups of a beam, but `--diverse-groups`",
        ),
        (
            ["--sample", "--beam-size", "2"],
            "`--beam-size` sets how to search, but --sample does not search: leave one of them out",
        ),
        (["--coverage-penalty", "-1"], "`--coverage-penalty` must not be negative, but is -1.0"),
        (
            ["--batch-invariant", "--threads", "2"],
            "Batch-invariant results need one thread a process, but this one computes with 2",
        ),
        (["--temperature", "0.5"], "`--temperature` sets how to sample: add --sample, or leave it out."),
        (["--seed", "1"], "`--seed` sets how to sample: add --sample, or leave it out."),
        (["--phrases", "nowhere.tsv"], "nowhere.tsv does not exist: check the file's name"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(
    capsys: Capture, trained: Path, write_lines: WriteLines, lines: list[str], options: list[str], message: str
) -> None:
    import torch

    threads = torch.get_num_threads()
    try:
        assert main(["translate", str(trained), str(write_lines("in.zh", lines)), "--device", "cpu", *options]) == 2
    finally:
        torch.set_num_threads(threads)
    captured = capsys.readouterr()
    assert f"transduce: {message}" in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_sampling_settings_of_the_folder_are_used(
    capsys: pytest.CaptureFixture[str], trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "corpus*"))
    (folder / "settings.toml").write_text("[search.sampling]\ntemperature = 0.7\nseed = 5\n", "utf-8")

    def job(*options: str) -> LineOptions:
        parser = build_parser("translate")
        return make_job(parser.parse([str(folder), *options]), str(folder))

    assert job().search.sampling == SamplingSettings(temperature=0.7, seed=5)
    assert job("--sample", "--top-k", "3").search.sampling == SamplingSettings(temperature=0.7, seed=5, top_k=3)
    assert job("--seed", "6").search.sampling == SamplingSettings(temperature=0.7, seed=6)
    searched = job("--beam-size", "3", "--n-best", "2").search
    assert (searched.sampling, searched.beam_size, searched.n_best) == (None, 3, 2)
    assert main(["translate", str(folder), "--beam-size", "3", "--seed", "6"]) == 2
    assert "sets how to sample" in capsys.readouterr().err


def test_options_win_over_the_folders_settings_and_say_so(
    capsys: pytest.CaptureFixture[str], trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "corpus*"))
    (folder / "settings.toml").write_text("[search]\nn_best = 4\ncoverage_penalty = 0.2\n", "utf-8")

    def search(*options: str) -> SearchSettings:
        return make_job(build_parser("translate").parse([str(folder), *options]), str(folder)).search

    assert search() == search("--n-best", "4") == SearchSettings(n_best=4, coverage_penalty=0.2)
    assert capsys.readouterr().err == ""
    assert search("--beam-size", "2") == SearchSettings(beam_size=2, n_best=2, coverage_penalty=0.2)
    assert capsys.readouterr().err == f"`n_best` (4 in {folder}) is 2 with these options.\n"
    assert search("--beam-size", "1") == SearchSettings(beam_size=1)
    assert capsys.readouterr().err == (
        f"`coverage_penalty` (0.2 in {folder}) has no effect with these options.\n"
        f"`n_best` (4 in {folder}) is 1 with these options.\n"
    )
    with pytest.raises(TransduceError, match="`--length-penalty` ranks the hypotheses of a beam, but `beam_size` is 1"):
        search("--beam-size", "1", "--length-penalty", "1")
    (folder / "settings.toml").write_text("[search]\nmax_length = 9\ndiverse_groups = 2\n", "utf-8")
    assert search("--min-length", "9") == SearchSettings(min_length=9, diverse_groups=2)
    assert capsys.readouterr().err == f"`max_length` (9 in {folder}) has no effect with these options.\n"
    assert search("--sample") == SearchSettings(max_length=9, sampling=SamplingSettings())
    assert capsys.readouterr().err == f"`diverse_groups` (2 in {folder}) has no effect with these options.\n"
    (folder / "settings.toml").write_text("[search]\nbeam_size = 8\n", "utf-8")
    search("--sample")
    assert capsys.readouterr().err == f"`beam_size` (8 in {folder}) has no effect with these options.\n"


def test_a_stored_penalty_without_effect_is_reported_once(
    capsys: pytest.CaptureFixture[str], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "corpus*"))
    (folder / "settings.toml").write_text("[search]\ndiversity_penalty = 3.0\n", "utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("我吃鱼。\n我喝茶。\n".encode())))
    assert main(["translate", str(folder), "--workers", "2", "--output", str(tmp_path / "b.txt")]) == 0
    assert capsys.readouterr().err.count("`search.diversity_penalty` = 3.0") == 1


# --- terms ---


@pytest.fixture
def terms(write_lines: WriteLines) -> Path:
    return write_lines("terms.tsv", ["鱼\tmilk", "", "茶\tthe water\tapples"])


def test_a_glossarys_terms_are_reported_by_one_process_and_by_several(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path, write_lines: WriteLines, terms: Path
) -> None:
    monkeypatch.setattr("transduce.inference.bulk_files.PORTION_LINES", 2)
    file = write_lines("in.zh", ["我吃鱼。", "我们喝水。", "老师喝茶。"])
    arguments = ["translate", str(trained), str(file), "--glossary", str(terms), "--beam-size", "2", *COMPUTING]
    assert main(arguments) == 0
    alone = capsys.readouterr()
    assert "milk" in alone.out.split("\n")[0]
    assert alone.err.splitlines()[0].startswith(
        "warning: 2 lines (2, 3) have letters that the vocabulary lacks (们, 喝)"
    )
    assert alone.err.splitlines()[1:] == ["glossary: 2 terms in the sources, 2 of them in the translations"]
    assert main([*arguments, "--workers", "2"]) == 0
    assert capsys.readouterr() == alone


def test_lines_too_short_for_a_glossary_term_are_reported(
    capsys: Capture, trained: Path, write_lines: WriteLines, terms: Path, tmp_path: Path
) -> None:
    file, out = write_lines("in.zh", ["我们喝水。", "老师喝茶。"]), tmp_path / "out.en"
    options = ["--glossary", str(terms), "--max-length", "1", "--output", str(out), *COMPUTING]
    assert main(["translate", str(trained), str(file), *options]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    assert told[0] == "glossary: 1 term in the sources, 0 of them in the translations; missing"
    assert told[1] == "  line 2 lacks `the water` or `apples` for `茶`"
    assert len(out.read_text("utf-8").splitlines()) == 2


def test_a_wrong_glossary_is_reported_before_anything_is_written(
    capsys: Capture, trained: Path, write_lines: WriteLines, tmp_path: Path
) -> None:
    file, out = write_lines("in.zh", ["我们喝水。"]), tmp_path / "out.en"
    for line, message in (("鱼\t", "line 1: A term needs a text"), ("鱼\t☃", "line 1: A translation cannot contain")):
        path = write_lines("wrong.tsv", [line])
        options = ["--glossary", str(path), "--output", str(out), *COMPUTING]
        assert main(["translate", str(trained), str(file), *options]) == 2
        assert message in capsys.readouterr().err
        assert list(tmp_path.glob("out.en*")) == []


def test_an_interruption_of_a_version_with_another_idle_penalty_is_resumed() -> None:
    options = argparse.Namespace(
        phrases=None, source_language=None, target_language=None, tag=None, datastore=None, shard=None, precision="auto"
    )
    job = LineOptions(search=SearchSettings(beam_size=4))
    earlier = msgspec.json.encode(([], job, None, "auto", None, (None, None), [], None))
    earlier = earlier.replace(b'"diversity_penalty":1.0', b'"diversity_penalty":0.5')
    assert identity(options, [], job) == earlier
    groups = LineOptions(search=SearchSettings(beam_size=4, diverse_groups=2))
    assert b'"diversity_penalty":1.0' in identity(options, [], groups)
