"""Test the command in a separate process: closed pipes, locales without UTF-8, terminals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transduce.process_environment import handle_sigterm

SOURCES = Path(__file__).resolve().parents[2] / "src"
COMMAND = [sys.executable, "-m", "transduce"]
COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1", "--beam-size", "1", "--max-length", "8"]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCES)} | more


@pytest.mark.skipif(os.name == "nt", reason="this pipe is a shell's")
def test_a_closed_pipe_ends_quietly(trained: Path, toy_corpus: Path) -> None:
    """More than one portion of lines, so that there is something left to write when the reader has gone."""
    lines = (toy_corpus / "train.zh").read_bytes() * 3
    with subprocess.Popen(
        [*COMMAND, "translate", str(trained), *COMPUTING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(lines)
        process.stdin.close()
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


def test_a_locale_without_utf_8_changes_no_output(trained: Path, tmp_path: Path) -> None:
    bare = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*COMMAND, "translate", str(trained), *COMPUTING],
        input="我喜欢苹果。\n🙂\n".encode(),
        capture_output=True,
        env=environment(**bare),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("utf-8").count("\n") == 2
    refused = subprocess.run(
        [*COMMAND, "translate", "模型"], capture_output=True, env=environment(**bare), timeout=60, check=False
    )
    assert refused.returncode == 2
    assert refused.stderr.startswith(b"transduce: ")
    assert refused.stderr.endswith(b"does not exist: name the folder of a model.\n")
    model, source = tmp_path / "模型", tmp_path / "输入.zh"
    model.symlink_to(trained)
    source.write_text("我喜欢苹果。\n", "utf-8")
    begun = subprocess.run(
        [*COMMAND, "translate", str(model), str(source), "--prefix", "I", *COMPUTING],
        capture_output=True,
        env=environment(**bare),
        timeout=60,
        check=False,
    )
    assert (begun.returncode, begun.stderr) == (0, b"")
    assert begun.stdout.decode("utf-8").startswith("I")
    explained = subprocess.run(
        [*COMMAND, "translate", "--help"], capture_output=True, env=environment(**bare), timeout=60, check=False
    )
    assert (explained.returncode, explained.stderr) == (0, b"")
    assert explained.stdout.startswith(b"usage: transduce translate")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
def test_on_a_terminal_there_is_a_prompt_that_stays_out_of_the_output(trained: Path) -> None:
    import pty

    person, terminal = pty.openpty()
    try:
        process = subprocess.Popen(
            [*COMMAND, "translate", str(trained), *COMPUTING],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(LANG="C.UTF-8"),
        )
        os.write(person, "我喜欢苹果。\n你吃鱼。\n\n".encode())
        out, err = process.communicate(timeout=60)
    finally:
        os.close(person)
        os.close(terminal)
    assert process.returncode == 0
    assert out.decode("utf-8").count("\n") == 2
    assert b"> " not in out
    said = err.decode("utf-8")
    assert said.startswith("zh → en. Type a sentence; an empty line ends.\n")
    assert said.count("> ") == 3


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_sigterm_ends_a_block_and_is_then_handled_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"), handle_sigterm(lambda *_: sys.exit(143)):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
