"""Test that commands never replace a user's files, and report invalid paths and texts in one sentence."""

import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import transduce
from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.tasks.run.run_folder import lock_run
from transduce.training.schedule import constant_weight_decay

WriteLines = Callable[[str, Iterable[str]], Path]
Capture = pytest.CaptureFixture[str]


def message_of(arguments: list[str], capsys: Capture) -> str:
    """Return the one-sentence error message of a command."""
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("transduce: ")
    assert err.count("\n") == 1
    return err.removeprefix("transduce: ").removesuffix("\n")


# --- outputs ---


@pytest.fixture
def files(trained: Path, toy_corpus: Path, tmp_path: Path) -> dict[str, str]:
    """Return the files of a user, a model and texts, by the names that commands use for them."""
    shutil.copytree(trained, tmp_path / "m")
    for name in ("dev.zh", "dev.en"):
        shutil.copy(toy_corpus / name, tmp_path / name)
    (tmp_path / "link.en").symlink_to(tmp_path / "dev.en")
    return {
        "MODEL": str(tmp_path / "m"),
        "ZH": str(tmp_path / "dev.zh"),
        "EN": str(tmp_path / "dev.en"),
        "LINK": str(tmp_path / "link.en"),
        "CONFIG": str(tmp_path / "m" / "config.json"),
        "WEIGHTS": str(tmp_path / "m" / "model.safetensors"),
        "NEW": str(tmp_path / "new.txt"),
    }


@pytest.mark.parametrize(
    ("arguments", "replaced"),
    [
        (["translate", "MODEL", "ZH", "--output", "ZH"], "ZH"),
        (["translate", "MODEL", "ZH", "--phrases", "EN", "--output", "EN"], "EN"),
        (["translate", "MODEL", "ZH", "--output", "CONFIG"], "CONFIG"),
        (["evaluate", "MODEL", "--source", "ZH", "--reference", "EN", "--output", "LINK"], "EN"),
        (["evaluate", "MODEL", "--source", "ZH", "--reference", "LINK", "--json", "EN"], "EN"),
        (["score", "MODEL", "--source", "ZH", "--target", "EN", "--json", "WEIGHTS"], "WEIGHTS"),
        (["compare", "EN", "EN", "--reference", "EN", "--json", "EN"], "EN"),
        (["align", "MODEL", "--source", "ZH", "--target", "EN", "--known", "EN", "--learn", "ZH"], "ZH"),
        (["doctor", "MODEL", "--source", "ZH", "--target", "EN", "--html", "ZH"], "ZH"),
        (["inspect", "MODEL", "我吃鱼。", "--html", "CONFIG"], "CONFIG"),
        (["prepare", "--source", "ZH", "--target", "EN", "--out", "NEW", "--json", "EN"], "EN"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_no_output_replaces_what_is_read(
    capsys: Capture, files: dict[str, str], arguments: list[str], replaced: str
) -> None:
    before = {name: Path(path).read_bytes() for name, path in files.items() if Path(path).is_file()}
    said = message_of([files.get(argument, argument) for argument in arguments], capsys)
    place = Path(files[replaced]).resolve()
    assert said == f"{place} is read here, and would be replaced: name another file to write."
    assert before == {name: Path(path).read_bytes() for name, path in files.items() if Path(path).is_file()}


def test_a_report_in_a_model_folder_may_be_written_again(
    files: dict[str, str], write_lines: WriteLines, capsys: Capture
) -> None:
    texts = ["--source", str(write_lines("a", ["我吃鱼。"])), "--reference", str(write_lines("b", ["I eat fish."]))]
    report = Path(files["MODEL"]) / "scores.json"
    for _ in range(2):
        assert main(["evaluate", files["MODEL"], *texts, "--json", str(report), "--threads", "1"]) == 0
    assert '"bleu"' in report.read_text("utf-8")
    capsys.readouterr()


def test_two_outputs_need_two_names_and_no_name_of_gzip(capsys: Capture, files: dict[str, str]) -> None:
    texts = ["evaluate", files["MODEL"], "--source", files["ZH"], "--reference", files["EN"]]
    assert message_of([*texts, "--output", files["NEW"], "--json", files["NEW"]], capsys) == (
        f"{files['NEW']} is named for two outputs: name another file for one of them."
    )
    assert message_of([*texts, "--output", "o.txt.gz"], capsys) == (
        "o.txt.gz would be gzip by its name, but plain text is written: leave .gz out."
    )


# --- folders ---


@pytest.mark.parametrize("name", ["README.md", "config.json", "checkpoints", "sentencepiece.model"])
def test_a_run_does_not_replace_files_of_its_folder(
    capsys: Capture, files: dict[str, str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("mine", "utf-8")
    arguments = ["train", "--source", files["ZH"], "--target", files["EN"], "--out", str(tmp_path / "mine")]
    assert message_of(arguments, capsys) == (
        f"{tmp_path / 'mine' / name} would be replaced by a run's: name another folder with --out."
    )
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [name]
    assert (tmp_path / "mine" / name).read_text("utf-8") == "mine"


def test_an_empty_name_is_not_the_current_folder(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path / "m")
    texts = ["--source", files["ZH"], "--target", files["EN"]]
    for verb in ("train", "prepare"):
        assert message_of([verb, *texts, "--out", ""], capsys) == (
            "The folder to write is an empty text: pass `.` for the current folder."
        )
    for arguments in (["translate", ""], ["translate", files["MODEL"], ""]):
        assert "is an empty text: pass `.` for the current folder." in message_of(arguments, capsys)
    with pytest.raises(TransduceError, match="is an empty text"):
        transduce.load("")


def test_two_runs_do_not_begin_in_one_folder(capsys: Capture, files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with lock_run(tmp_path / "run"):  # another process is preparing there, and has written nothing yet
        said = message_of(
            ["train", "--source", files["ZH"], "--target", files["EN"], "--out", str(tmp_path / "run")], capsys
        )
    assert said.startswith(f"Another process is training in {tmp_path / 'run'}: wait until it has ended")
    assert list((tmp_path / "run").iterdir()) == []


# --- corpora ---


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (("p.tsv", ["a\tb"]), ("t.en", ["c"]), "p.tsv holds both sides by its name, as tsv, but target file"),
        (("s.zh", ["a"]), ("t.JSONL.gz", ["c"]), "t.JSONL.gz holds both sides by its name, as jsonl, but target file"),
        (("p.jsonl", ['{"source": "a", "target": null}']), None, 'p.jsonl:1: under "target" stands null instead of a'),
        (("p.jsonl", ['{"source": ["a"], "target": "b"}']), None, 'p.jsonl:1: under "source" stands ["a"] instead'),
    ],
)
def test_a_file_of_pairs_with_a_target_file_is_refused(
    capsys: Capture,
    write_lines: WriteLines,
    tmp_path: Path,
    source: tuple[str, list[str]],
    target: tuple[str, list[str]] | None,
    message: str,
) -> None:
    arguments = ["train", "--source", str(write_lines(*source)), "--out", str(tmp_path / "m")]
    if target:
        arguments += ["--target", str(write_lines(*target))]
    assert message in message_of(arguments, capsys)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("name", ["source.ids", "target.ids", "source.offsets"])
def test_a_prepared_corpus_that_was_damaged_is_not_learnt_from(
    capsys: Capture, toy_corpus: Path, tmp_path: Path, name: str
) -> None:
    texts = ["--source", str(toy_corpus / "train.zh"), "--target", str(toy_corpus / "train.en")]
    assert main(["prepare", *texts, "--out", str(tmp_path / "p"), "--workers", "1"]) == 0
    capsys.readouterr()
    path = tmp_path / "p" / "corpus" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(bytes(content))
    said = message_of(["train", "--prepared", str(tmp_path / "p"), "--out", str(tmp_path / "m")], capsys)
    assert said == f"{path} is not what was prepared (its SHA-256 differs): prepare again."
    assert not (tmp_path / "m").exists()


# --- numbers ---


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "training.seed=9223372036854775808",
            "`training.seed` must be below 2 to the power of 63, but is 9223",
        ),
        ("training.learning_rate=1e30", "`training.learning_rate` must be at most 1e+06, but is 1e+30."),
        ('data.languages=["en"]', '`data.languages` must be a list of 2, such as ["a", "b"], but is'),
    ],
)
def test_settings_beyond_numeric_limits_are_refused_without_a_run_folder(
    capsys: Capture, files: dict[str, str], tmp_path: Path, setting: str, message: str
) -> None:
    texts = ["--source", files["ZH"], "--target", files["EN"]]
    assert message in message_of(["train", *texts, "--set", setting, "--out", str(tmp_path / "new")], capsys)
    assert not (tmp_path / "new").exists()


def test_the_decay_of_a_very_long_run_is_found_at_once() -> None:
    """The decay of a million steps is summed one by one; of ten times as many steps, each counts about a tenth."""
    each, sampled = (
        constant_weight_decay(steps, schedule="cosine", peak=1e-3, warmup_steps=100)
        for steps in (1_000_000, 10_000_000)
    )
    assert sampled == pytest.approx(each / 10, rel=1e-3)
    assert constant_weight_decay(10**9, schedule="linear", peak=1e-3, warmup_steps=100) == pytest.approx(
        2.6e-6, rel=1e-3
    )


# --- streams ---


@pytest.mark.skipif(sys.platform == "win32", reason="shells close streams otherwise there")
@pytest.mark.parametrize(
    ("closed", "options", "code", "said"),
    [
        ("<&-", "", 2, "transduce: Standard input is closed: redirect it from something, or name a file.\n"),
        (">&-", "", 2, "transduce: Standard output is closed: redirect it to something, or name a file.\n"),
        (">&-", "--output {out}", 0, None),
        ("2>&- >&-", "--output {out}", 0, ""),
    ],
)
def test_closed_standard_streams_are_reported_or_ignored(
    trained: Path, write_lines: WriteLines, tmp_path: Path, closed: str, options: str, code: int, said: str | None
) -> None:
    out = tmp_path / "out.en"
    text = write_lines("in.zh", ["我吃鱼。"])
    reads = closed if closed == "<&-" else f"< {text} {closed}"
    command = f"{sys.executable} -m transduce translate {trained} --threads 1 {options.format(out=out)} {reads}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stderr
    if said is not None:
        assert done.stderr == said
    assert done.stdout == ""
    assert out.exists() == (code == 0)
    if code == 0:
        assert out.read_text("utf-8").count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8b\x08\x00", "must be lines of UTF-8, but begins as gzip does: put it through `zcat`."),
        (
            "我".encode("utf-16"),
            "must be lines of UTF-8, but begins as UTF-16 does: put it through `iconv -f UTF-16 -t UTF-8`.",
        ),
        (
            b"a\rb\rc\r",
            "ends its lines with carriage returns alone, so it is one line: convert it by `tr '\\r' '\\n'`.",
        ),
    ],
)
def test_compressed_or_utf_16_standard_input_is_refused(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, content: bytes, message: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert main(["translate", str(trained), "--threads", "1"]) == 2
    assert capsys.readouterr() == ("", f"transduce: Standard input {message}\n")


# --- from Python ---


def calls(trained: Path) -> dict[str, Callable[[], object]]:
    """Return calls with arguments of wrong types."""
    anything: Any = None
    number: Any = 3

    def translator() -> Any:
        return transduce.load(trained, device="cpu", threads=1)

    return {
        "load(None)": lambda: transduce.load(anything),
        "load(3)": lambda: transduce.load(number),
        "load([None])": lambda: transduce.load([anything]),
        "prefix": lambda: translator()("我", prefix=number),
        "phrases": lambda: translator()("我", phrases=[["house"]]),
        "score": lambda: translator().score(None, None),
        "score of None": lambda: translator().score(["我"], [None]),
        "scores": lambda: transduce.score([anything], ["a"], target_language="en"),
        "references": lambda: transduce.score(["a"], anything, target_language="en"),
        "train(source=3)": lambda: transduce.train(source=number, target="b", out="m"),
        "train(out=None)": lambda: transduce.train(source="a", target="b", out=anything),
        "train(settings=3)": lambda: transduce.train(source="a", target="b", out="m", settings=number),
        "export": lambda: transduce.export(anything, "out", to="onnx"),
    }


@pytest.mark.parametrize("name", calls(Path()))
def test_arguments_that_are_no_path_or_text_are_refused(trained: Path, name: str) -> None:
    with pytest.raises(TransduceError, match=r"(must be|is asked for|was given|not ).*(None|3|\['house'\])"):
        calls(trained)[name]()
