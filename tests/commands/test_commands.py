"""Test the command line: output streams, error messages, and exit codes that scripts rely on."""

import gc
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import torch

from transduce.commands import options as offered
from transduce.commands.main import VERBS, main
from transduce.demonstration.grammar import DemoCorpus
from transduce.demonstration.run import STEPS, refuse_other_run
from transduce.errors import TransduceError, shell_word
from transduce.exchange.export import FORMATS
from transduce.inference.generator import DEFAULT_LENGTH
from transduce.inference.translator import Translator
from transduce.inspection.attribution import Method
from transduce.inspection.plots import SUFFIXES
from transduce.interop.ctranslate2 import QUANTIZATIONS
from transduce.interop.tutorials import Style
from transduce.model.config import REGISTERED_NAMES
from transduce.model.feed_forward import ACTIVATIONS
from transduce.process_environment import common_options
from transduce.tasks.kinds import KINDS
from transduce.tasks.preparing import PREPARED_KINDS
from transduce.tasks.settings import options as setting_options
from transduce.tasks.settings.reading import struct_of
from transduce.tasks.settings.structs import Settings
from transduce.training.choices import PRESETS

WriteLines = Callable[[str, Iterable[str]], Path]
COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
Capture = pytest.CaptureFixture[str]


def feed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Replace standard input by bytes, as from a pipe in a locale that supports ASCII only."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))


# --- verbs and options ---


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_verb(capsys: Capture, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: transduce COMMAND [options]")
    assert all(f"  {verb} " in out and purpose in out for verb, purpose in VERBS.items())


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("asked", [("VERB", "--help"), ("help", "VERB")])
def test_every_verb_explains_itself(capsys: Capture, verb: str, asked: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb if word == "VERB" else word for word in asked])
    assert left.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"usage: transduce {verb}" in out
    assert VERBS[verb][1:] in out
    assert not re.search(r"\(default: (None|False|\[\]|)\)", out)
    if verb not in ("prepare", "import", "import-tutorial", "quantize", "verify"):  # which compute nothing with a model
        assert "--device" in out
        assert "--threads" in out


def test_version_option_prints_the_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("transduce 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "transduce: There is no command `trian`: did you mean `train`?\n"),
        (["TRAIN"], "transduce: There is no command `TRAIN`: did you mean `train`?\n"),
        (["tranlsate", "x"], "transduce: There is no command `tranlsate`: did you mean `translate`?\n"),
        (["qqq"], "transduce: There is no command `qqq`: the commands are demo, train, "),
        (["--versoin"], "there is no option --versoin; did you mean --version? (see transduce --help)"),
        (["translate", "m", "--bem-size", "4"], "there is no option --bem-size; did you mean --beam-size?"),
        (["translate", "m", "--beam_size=4"], "there is no option --beam_size; did you mean --beam-size?"),
        (["train", "--out", "o", "--sorce", "x"], "there is no option --sorce; did you mean --source?"),
        (["train", "--sorce", "x"], "there is no option --sorce; did you mean --source?"),
        (["evaluate", "m", "--source", "s", "--reference", "r", "--zzz"], "there is no option --zzz (see transduce"),
        (["translate"], "the following arguments are required: model"),
        (["train", "--source", "x"], "the following arguments are required: --out"),
        (["translate", "m", "--beam-size", "four"], "argument --beam-size: invalid int value: 'four'"),
        (["translate", "m", "--precision", "fp16"], "argument --precision: invalid choice: 'fp16'"),
        (["translate", "m", "-q"], "unrecognized arguments: -q"),
        (["train", "a.zh", "a.en", "--out", "m"], "unrecognized arguments: a.en; pass texts with --source and"),
        (
            ["compare", "m", "n", "x", "--source", "s", "--reference", "r"],
            "x; pass texts with --source and --reference",
        ),
        (["help", "trian"], "transduce: There is no command `trian`: did you mean `train`?\n"),
        (
            ["train", "--out", "o", "--task", "translatoin"],
            "argument --task: invalid choice: 'translatoin' (choose from",
        ),
        (["translate", "m", "--beam"], "there is no option --beam; did you mean --beam-size?"),
    ],
)
def test_a_mistyped_word_gets_one_line_and_code_2(capsys: Capture, arguments: list[str], message: str) -> None:
    try:
        code = main(arguments)
    except SystemExit as left:
        code = left.code  # type: ignore[assignment]
    captured = capsys.readouterr()
    assert code == 2
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


# --- suggested commands ---


PLUGIN = """
import torch
from transduce import register

@register("activation", "cubed_for_suggestions")
def cubed(x: torch.Tensor) -> torch.Tensor:
    return x**3
"""


def test_the_command_that_training_suggests_works_as_it_is(
    capsys: Capture, toy_corpus: Path, write_lines: WriteLines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, out = write_lines("my plugin.py", PLUGIN.split("\n")), tmp_path / "my model"
    settings = ["model.activation=cubed_for_suggestions", "tokenizer.vocabulary_size=320", "model.d_model=16"]
    try:
        assert main([
            "train", "--source", str(toy_corpus / "train.zh"), "--target", str(toy_corpus / "train.en"), "--steps", "1",
            *(word for setting in settings for word in ("--set", setting)), "--out", str(out), *COMPUTING,
            "--plugin", str(plugin), "--ui-language", "en",
        ]) == 0  # fmt: skip
        (command,) = re.findall(r"Try: (.*)$", capsys.readouterr().err, re.MULTILINE)
        words = shlex.split(command)
        assert words == [
            "transduce", "translate", str(out), "--ui-language", "en", "--plugin", str(plugin)
        ]  # fmt: skip
        feed(monkeypatch, "你好\n".encode())
        assert main(words[1:]) == 0
        lines = str(write_lines("lines.zh", ["你好"] * 40))
        assert main([*words[1:], lines, "--workers", "2", *COMPUTING]) == 0  # in processes that need the plugin, too
    finally:
        REGISTERED_NAMES["activation"].discard("cubed_for_suggestions")
        ACTIVATIONS.pop("cubed_for_suggestions", None)
    assert common_options() == ""


@pytest.mark.parametrize(
    ("argument", "posix", "windows"),
    [
        ("models/a-b", "models/a-b", "models/a-b"),
        ("my model", "'my model'", '"my model"'),
        ("C:\\models\\a", "'C:\\models\\a'", "C:\\models\\a"),
        ("a&b", "'a&b'", '"a&b"'),
        ("模型", "'模型'", "模型"),
    ],
)
def test_suggested_commands_quote_as_the_system_does(
    argument: str, posix: str, windows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell_word(argument) == posix
    with monkeypatch.context() as patched:
        patched.setattr("transduce.errors._IS_WINDOWS", True)
        assert shell_word(argument) == windows
    assert shell_word("-m") == "./-m"


# --- train ---


def test_train_with_a_settings_file_set_and_options(
    capsys: Capture, toy_corpus: Path, write_lines: WriteLines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.tasks.run.run.PROBE_SECONDS", 0.0)
    settings = write_lines("s.toml", ["[training]", "steps = 10", "seed = 7", "[model]", "d_model = 64"])
    code = main([
        "train", str(settings), "--out", str(tmp_path / "m"), "--dry-run", "--steps", "30",
        "--set", "model.dropout=0.05",
        "--source", str(toy_corpus / "train.zh"), "--target", str(toy_corpus / "train.en"), "--threads", "1",
        "--precision", "fp32", "--preset", "small", "--device", "cpu",
    ])  # fmt: skip
    captured = capsys.readouterr()
    assert code == 0
    assert captured.out == ""
    said = [line.split() for line in captured.err.split("\n")]
    for name, value in {
        "training.steps": "30", "model.d_model": "64", "model.dropout": "0.05", "training.precision": "fp32",
        "preset": "small",
    }.items():  # fmt: skip
        assert [name, value, "set", "by", "you"] in said
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "5", "--minutes", "1"], "`--steps` (5) and `--minutes` (1.0) both set when to stop"),
        (["--steps", "0"], "`--steps` must be greater than 0, but is 0"),
        (["--minutes", "-1"], "`--minutes` must be greater than 0, but is -1.0"),
        (["--minutes", "nan"], "`--minutes` must be finite, but is nan"),
        (["--preset", "huge"], f"`--preset` must be one of {', '.join(PRESETS)}, but is `huge`"),
        (["--set", "model.d_modle=5"], "There is no setting `model.d_modle`: did you mean `model.d_model`?"),
        (["--set", "training.steps=0"], "`training.steps` must be greater than 0, but is 0"),
        (["--mix", "old:2"], "`--mix` takes the folder of a run and a share above 0 and below 1"),
        (["--mix", "old:0.5", "--monolingual", "x"], "`--monolingual` is for one pair of languages, but `--mix` names"),
        (["--set", "model.d_model"], "`--set` takes a key and a value"),
        (["--set", "data=5"], "`data.source` belongs to the table `data`, but `data` was set to 5"),
        (["--threads", "0"], "`--threads` must be at least 1, but is 0"),
        (["--device", "tpu"], "`--device` must be `auto`, `cpu`, `cuda`, `cuda:NUMBER` or `mps`, but is `tpu`"),
        (["--languages", "zh", "English"], "`--languages` must be language codes such as zh or en"),
        (
            ["--source", "/dev/null", "--target", "/dev/null"],
            "/dev/null is a pipe or a device, but text is read several times: write it to a file.",
        ),
        (["--source", "nowhere.zh"], "nowhere.zh does not exist: check the file's name."),
        (["missing.toml"], "The settings file missing.toml cannot be read: No such file or directory."),
    ],
)
def test_a_mistake_in_training_is_one_sentence_and_leaves_nothing(
    capsys: Capture, toy_corpus: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    files = ["--source", str(toy_corpus / "train.zh"), "--target", str(toy_corpus / "train.en")]
    code = main(["train", *files, "--out", str(tmp_path / "m"), *options])
    captured = capsys.readouterr()
    assert code == 2
    assert f"transduce: {message}" in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["train", "prepare"])
@pytest.mark.parametrize("inside", [(), ("a", "b")])
def test_out_below_an_existing_file_is_refused_in_one_sentence(
    capsys: Capture, toy_corpus: Path, tmp_path: Path, verb: str, inside: tuple[str, ...]
) -> None:
    (tmp_path / "m").write_text("mine", "utf-8")
    files = ["--source", str(toy_corpus / "train.zh"), "--target", str(toy_corpus / "train.en")]
    out = tmp_path.joinpath("m", *inside)
    assert main([verb, *files, "--out", str(out)]) == 2
    sentence = f"transduce: {out} cannot be a folder, for {tmp_path / 'm'} is a file: name another one.\n"
    assert capsys.readouterr().err == sentence
    assert (tmp_path / "m").read_text("utf-8") == "mine"


def test_a_path_that_must_not_be_written_to_is_reported_at_once(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path, toy_corpus: Path, tmp_path: Path
) -> None:
    files = ["--source", str(toy_corpus / "dev.zh"), "--reference", str(toy_corpus / "dev.en")]
    # The root user may write to any folder, regardless of its mode.
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    assert main(["evaluate", str(trained), *files, "--output", str(tmp_path / "out.en")]) == 2
    assert f"out.en cannot be written: you may not write to {tmp_path}, so name" in capsys.readouterr().err
    assert main(["train", *files[:2], "--out", str(tmp_path / "m")]) == 2
    assert f"m cannot be filled, for you may not write to {tmp_path}: name another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["plot", "activations", "--output", "{link}"],
        ["plot", "activations", "--output", "{link}/a.svg"],
        ["translate", "{folder}", "{folder}/text", "--output", "{link}"],
        ["check-install", "--json", "{link}"],
        ["import", "{folder}", "{link}"],
        ["train", "--source", "{folder}/text", "--out", "{link}/run"],
    ],
)
def test_a_link_that_leads_back_to_itself_is_no_output(capsys: Capture, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "text").write_text("a\n", "utf-8")
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to("other")
    other.symlink_to("link")
    assert main([each.format(link=link, folder=tmp_path) for each in arguments]) == 2
    assert "cannot be written: a symbolic link in it leads back to itself" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "other", "text"]


# --- translate ---

ODD_LINES = [
    "我喜欢苹果。".encode(),
    b"",
    "我吃鱼。\u2028你吃鱼。\u0085".encode(),
    b"\r",
    "你\r买书。".encode(),
    "🙂🙃".encode(),
    b"\xff\xfe bytes",
    b"   ",
    "他买茶".encode(),
]


def test_many_damaged_lines_are_counted(capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    feed(monkeypatch, b"\xff\n" * 9)
    assert main(["translate", str(trained), "--max-length", "2", *COMPUTING]) == 0
    told = capsys.readouterr().err.split("\n")[:-1]
    assert told[:5] == [f"Standard input, line {n}: bytes that are not UTF-8 were read as U+FFFD." for n in range(1, 6)]
    assert told[5:] == [
        "Standard input: 9 lines had such bytes in total.",
        "Convert text in another encoding first: Chinese by `iconv -f GB18030 -t UTF-8`.",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "我喜欢苹果。\n".encode("gbk"),
            "must be lines of UTF-8, but line 1 is not: convert it from its encoding",
        ),
        ("One line.\nÄpfel schälen.\n".encode("latin-1"), "must be lines of UTF-8, but line 2 is not: convert it"),
        (b"\xff\n" * 20, "must be lines of UTF-8, but 20 of the first 20 lines are not: convert it"),
        ("我喜欢苹果。\n你好。\n".encode("utf-16-le"), "begins as UTF-16LE does: put it through `iconv -f UTF-16LE -t"),
        ("I see.\n".encode("utf-32"), "begins as UTF-32 does: put it through `iconv -f UTF-32 -t"),
    ],
)
def test_standard_input_in_another_encoding_is_refused(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path, content: bytes, said: str
) -> None:
    feed(monkeypatch, content)
    assert main(["translate", str(trained), "--max-length", "2", *COMPUTING]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


@pytest.mark.parametrize("final", [b"\n", b"", b"\n\n"])
def test_each_input_line_gives_one_output_line(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, trained: Path, final: bytes
) -> None:
    content = b"\n".join(ODD_LINES) + final
    feed(monkeypatch, content)
    assert main(["translate", str(trained), *COMPUTING]) == 0
    captured = capsysbinary.readouterr()
    lines = captured.out.split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == len(ODD_LINES) + (final == b"\n\n")
    assert (lines[1], lines[3], lines[7]) == (b"", b"", b"   ")  # layout is kept
    assert lines[0]
    assert captured.err.decode().splitlines() == [
        "Standard input, line 7: bytes that are not UTF-8 were read as U+FFFD.",
        "Convert text in another encoding first: Chinese by `iconv -f GB18030 -t UTF-8`.",
    ]


def test_standard_input_and_a_file_give_the_same(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path, toy_corpus: Path, translator: Translator
) -> None:
    content = (toy_corpus / "dev.zh").read_bytes()
    feed(monkeypatch, b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    assert main(["translate", str(trained), *COMPUTING]) == 0
    piped = capsys.readouterr().out.replace("\r\n", "\n")
    assert main(["translate", str(trained), str(toy_corpus / "dev.zh"), *COMPUTING]) == 0
    assert capsys.readouterr().out == piped
    expected = translator(content.decode().split("\n")[:-1])
    assert piped == "".join(f"{translation.text}\n" for translation in expected)


def test_a_file_may_stand_behind_options(capsys: Capture, trained: Path, write_lines: WriteLines) -> None:
    file = str(write_lines("in.zh", ["我吃鱼。", "你买茶。"]))
    assert main(["translate", str(trained), file, "--beam-size", "2", *COMPUTING]) == 0
    before = capsys.readouterr().out
    assert main(["translate", str(trained), "--beam-size", "2", *COMPUTING, file]) == 0
    assert capsys.readouterr().out == before


def test_empty_input_gives_empty_output(capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    feed(monkeypatch, b"")
    assert main(["translate", str(trained), *COMPUTING]) == 0
    assert capsys.readouterr() == ("", "")


def test_alternatives_carry_number_and_score(capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    feed(monkeypatch, "我吃鱼。\n\n你吃鱼。\n".encode())
    assert main(["translate", str(trained), "--n-best", "2", "--beam-size", "3", *COMPUTING]) == 0
    rows = [line.split(" ||| ") for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    assert float(rows[0][2]) >= float(rows[1][2])


def test_portions_keep_the_order(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path, toy_corpus: Path
) -> None:
    lines = (toy_corpus / "dev.zh").read_bytes().split(b"\n")[:12]
    outputs = []
    for size in (1024, 5):
        monkeypatch.setattr("transduce.inference.bulk_files.PORTION_LINES", size)
        feed(monkeypatch, b"\n".join(lines))
        assert main(["translate", str(trained), "--beam-size", "1", *COMPUTING]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == 12


def test_samples_follow_the_seed_across_portions(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, trained: Path, toy_corpus: Path
) -> None:
    def drawn(*options: str) -> str:
        arguments = [str(trained), str(toy_corpus / "dev.zh"), "--sample", "--max-length", "8", "--precision", "fp32"]
        assert main(["translate", *arguments, *options]) == 0
        return capsys.readouterr().out

    first = drawn("--seed", "3")
    assert first != drawn("--seed", "4")
    monkeypatch.setattr("transduce.inference.bulk_files.PORTION_LINES", 7)
    assert drawn("--seed", "3") == first
    assert drawn("--n-best", "5").count("\n") == 5 * first.count("\n")


def test_errors_of_translate_are_one_sentence_with_code_2(capsys: Capture, trained: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"ok\n\xff\n")
    for arguments, message in (
        ([str(tmp_path / "nowhere")], "nowhere does not exist: name the folder of a model."),
        ([str(trained), str(tmp_path / "nowhere.txt")], "nowhere.txt does not exist: name a file of sentences, or"),
        ([str(trained), str(tmp_path)], "A model folder holds a config.json, but "),
        ([str(trained), str(bad)], "bad.txt:2: files must be UTF-8"),
        ([str(trained), str(bad), "--beam-size", "0"], "`--beam-size` must be at least 1, but is 0."),
        ([str(trained), str(bad), "--n-best", "9"], "`--n-best` must be at most `--beam-size` (4), but is 9"),
        ([str(trained), str(bad), "--sample", "--top-p", "2"], "`--top-p` must be in (0, 1], but is 2.0."),
        ([str(trained), str(bad), "--sample", "--temperature", "0"], "`--temperature` must be greater than 0"),
        ([str(trained), "--threads", "0"], "`--threads` must be at least 1, but is 0."),
    ):
        assert main(["translate", *arguments, "--precision", "fp32"]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert captured.out == ""


# --- demo ---


def test_memory_that_runs_out_is_one_sentence(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_: object) -> int:
        torch.empty(1 << 60, dtype=torch.uint8)
        return 0

    monkeypatch.setattr("transduce.commands.checks.run_doctor", exhausted)
    assert main(["doctor", "models/large"]) == 2
    assert capsys.readouterr().err.startswith("transduce: Memory ran out: use a smaller model, ")


def test_the_demonstration_as_json(
    capsys: Capture, demo_corpus: DemoCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {"train": demo_corpus.train[:500], "dev": demo_corpus.dev[:20], "test": demo_corpus.test[:60]}
    part = msgspec.structs.replace(demo_corpus, **sides)
    monkeypatch.setattr("transduce.demonstration.run.generate", lambda: part)
    options = ["--steps", "2", "--precision", "fp32", "--device", "cpu", "--threads", "1", "--json", "-"]
    threads = torch.get_num_threads()
    try:
        assert main(["demo", "--out", str(tmp_path / "demo"), *options]) == 0
    finally:
        torch.set_num_threads(threads)
    captured = capsys.readouterr()
    assert json.loads(captured.out)["sentences"] == 60
    assert "A hand-written grammar made 500 Chinese-English pairs" in captured.err
    assert f'transduce inspect {tmp_path / "demo"} "昨天我吃了苹果"' in captured.err
    assert 'precision = "fp32"' in (tmp_path / "demo" / "settings.toml").read_text("utf-8")
    refuse_other_run(tmp_path / "demo")


def test_training_as_json(capsys: Capture, trained: Path, tmp_path: Path) -> None:
    """Resuming a complete run reports how it ended."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    options = ["--out", str(run), "--resume", "--device", "cpu", "--threads", "1"]
    threads = torch.get_num_threads()
    try:
        assert main(["train", *options, "--json", "-"]) == 0
        captured = capsys.readouterr()
        found = json.loads(captured.out)
        assert "This run has finished at step 80; to train longer: --resume --steps M." in captured.err
        assert "Finished at step 80 after " in captured.err
        assert main(["train", *options, "--json", str(tmp_path / "end.json")]) == 0
    finally:
        torch.set_num_threads(threads)
    assert (found["step"], found["reason"]) == (80, "finished")
    assert json.loads((tmp_path / "end.json").read_bytes()) == found
    assert main(["train", *options, "--dry-run", "--json", "-"]) == 2
    assert "`--json` writes the estimate of a new run: leave --json out, or --resume." in capsys.readouterr().err


def test_demo_again_refuses_a_folder_that_is_no_run(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")
    assert main(["demo", "--again", "--out", str(tmp_path)]) == 2
    assert "`--again` removes a run, but " in capsys.readouterr().err
    assert (tmp_path / "notes.txt").exists()


def test_a_refused_demonstration_leaves_no_files(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.demonstration.run.generate", lambda: pytest.fail("made its corpus first"))
    assert main(["demo", "--out", str(tmp_path / "demo"), "--steps", "0"]) == 2
    assert capsys.readouterr().err == "transduce: `--steps` must be greater than 0, but is 0.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["--again"]])
def test_a_demonstration_touches_no_other_run(
    capsys: Capture, trained: Path, tmp_path: Path, options: list[str]
) -> None:
    shutil.copytree(trained, tmp_path / "mine")
    assert main(["demo", "--out", str(tmp_path / "mine"), *options]) == 2
    assert "mine holds a run that is no demonstration: name another folder with --out." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine" / "model.safetensors").exists()


def test_a_demonstration_that_was_moved_is_made_again(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run knows its text by the whole path."""
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "settings.toml").write_text('[data]\nsource = ["/elsewhere/demo-text/train.zh"]\n', "utf-8")
    assert main(["demo", "--out", str(folder)]) == 2
    assert "so its text files are not where the run expects them: pass --again." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]

    def begin(out: str, **options: object) -> None:
        assert not Path(out).exists()
        raise TransduceError(f"begun with {sorted(options)}")

    monkeypatch.setattr("transduce.demonstration.run.demo", begin)
    assert main(["demo", "--out", str(folder), "--again"]) == 2
    assert "begun with" in capsys.readouterr().err


def test_a_default_that_is_no_value_is_not_shown(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["classify", "--help"])
    assert "(default: 0)" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "options", "name"),
    [
        ("translate", ["--prefix", "\udcff"], "--prefix"),
        ("translate", ["--must-contain", "caf\udce9"], "--must-contain"),
        ("translate", ["--forbid", "\udcff"], "--forbid"),
        ("generate", ["\udcff"], "prompt"),
        ("fill-mask", ["\udcff"], "text"),
        ("inspect", ["\udcff"], "sentence"),
        ("inspect", ["it", "--pronoun", "\udcff"], "--pronoun"),
    ],
)
def test_a_text_that_is_no_utf8_is_refused(capsys: Capture, verb: str, options: list[str], name: str) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb, "nowhere", *options])
    assert left.value.code == 2
    message = f"transduce {verb}: argument {name}: {options[-1]!a} is not UTF-8: write it in UTF-8 ("
    assert capsys.readouterr().err.startswith(message)


def test_paths_that_are_not_utf8_are_refused_by_train(capsys: Capture, tmp_path: Path) -> None:
    files = ["--source", str(tmp_path / "\udcff.zh"), "--target", str(tmp_path / "\udcff.en")]
    (tmp_path / "\udcff.zh").write_text("我\n" * 3, "utf-8")
    (tmp_path / "\udcff.en").write_text("I\n" * 3, "utf-8")
    assert main(["train", "--out", str(tmp_path / "run"), *files, "--dry-run"]) == 2
    assert "is not UTF-8: convert it, or put it into a file.\n" in capsys.readouterr().err


def test_help_is_printed_without_importing_torch() -> None:
    program = (
        "import contextlib, sys\nfrom transduce.commands.main import VERBS, main\n"
        "for arguments in (['--help'], *([verb, '--help'] for verb in VERBS)):\n"
        "    with contextlib.suppress(SystemExit):\n        main(arguments)\n"
        "    assert not {'torch', 'numpy', 'sacrebleu'} & sys.modules.keys(), arguments\n"
        "print('imported none of them')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines()[-1] == "imported none of them"


@pytest.mark.parametrize(("verb", "leaves_out"), [("verify", True), ("compare", False)])
def test_the_garbage_collector_leaves_pytorch_out_in_the_process_of_a_command(
    verb: str, leaves_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(gc.isenabled()))
    monkeypatch.setattr("transduce.commands.main._functions_of", lambda _: (lambda _: None, lambda _: 0))
    assert main([verb]) == 0
    assert frozen == []  # what a caller of `main` has made remains its own
    monkeypatch.setattr("sys.argv", ["transduce", verb])
    assert main() == 0
    assert frozen == [False] * leaves_out
    assert gc.isenabled()


def test_options_offer_what_the_package_has() -> None:
    assert tuple(KINDS) == setting_options.TASK_KINDS
    assert tuple(PREPARED_KINDS) == offered.PREPARED_KINDS
    assert offered.EXPORT_FORMATS == FORMATS
    assert offered.QUANTIZATIONS == QUANTIZATIONS
    assert get_args(Style) == offered.TUTORIAL_STYLES
    assert get_args(Method) == offered.ATTRIBUTION_METHODS
    assert offered.PICTURE_SUFFIXES == SUFFIXES
    assert (offered.DEMO_STEPS, offered.GENERATED_TOKENS) == (STEPS, DEFAULT_LENGTH)


@pytest.mark.parametrize("table", [setting_options.OPTIONS, offered.SEARCH_OPTIONS])
def test_an_option_takes_what_its_setting_holds(table: dict[str, setting_options.SettingOption]) -> None:
    for name, option in table.items():
        hint: Any = Settings
        for key in option.setting.split("."):
            hint = get_type_hints(struct_of(hint) or Settings)[key]
        kinds = [each for each in get_args(hint) if each is not type(None)] if type(None) in get_args(hint) else [hint]
        is_list = "nargs" in option.form or option.form.get("action") == "append"
        assert is_list == (getattr(kinds[0], "__origin__", None) is tuple), name
        assert (option.form == setting_options.FLAG) == (kinds[0] is bool), name
        if kinds[0] in (int, float):
            assert option.form["type"] is kinds[0], name


def test_a_message_names_options_that_were_passed_and_settings_that_a_file_sets(
    capsys: Capture, toy_corpus: Path, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "m")]
    assert main(["train", *out, "--mix", "old:0.3"]) == 2
    by_options = "transduce: `--mix` adds text of earlier runs to new text: name that by `--source` and `--target`.\n"
    assert capsys.readouterr().err == by_options
    settings = tmp_path / "settings.toml"
    settings.write_text("training.minutes = 3\n", "utf-8")
    assert main(["train", str(settings), *out, "--source", str(toy_corpus / "train.zh"), "--steps", "5"]) == 2
    assert "line 1: `--steps` (5) and `training.minutes` (3.0) both set when to stop" in capsys.readouterr().err
    assert main(["train", str(settings), *out]) == 2
    assert "name it by `data.source` and `data.target`.\n" in capsys.readouterr().err
