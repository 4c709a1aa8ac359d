"""Every `transduce` command on every page, in both languages, is one that the command line accepts; first pages run.

The commands of pages for the first hour run here, in one process, with a small model in place of the demonstration's.
"""

import ast
import inspect
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transduce
from transduce.commands.experiments import _RESULTS
from transduce.commands.main import VERBS, build_parser, main
from transduce.demonstration import paper
from transduce.demonstration.grammar import AlignedPair, DemoCorpus
from transduce.errors import TransduceError
from transduce.inspection import complexity
from transduce.inspection.plots import Chart, HeatMap, render_chart
from transduce.text.files import read_lines

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("README*.md"), *DOCS.rglob("*.md")])
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+")
_SHORT = ["--preset", "tiny", "--steps", "4", "--threads", "1"]


def code_blocks(page: str) -> list[str]:
    """Return the blocks of a page that hold commands: those marked as sh, and indented ones."""
    fenced = [content for kind, content in _FENCED.findall(page) if kind == "sh"]
    return fenced + [
        re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in _INDENTED.findall(_FENCED.sub("", page))
    ]


def command_lines(block: str) -> Iterator[str]:
    """Yield the command lines of a block: continued lines joined, here-documents left out."""
    block = re.sub(r"<<'?(\w+)'?[^\n]*\n.*?^\1$", "", block, flags=re.DOTALL | re.MULTILINE)
    yield from (line.strip() for line in block.replace("\\\n", " ").split("\n") if line.strip())


def words_of(command: str) -> list[str]:
    """Return the words of a command without comments and redirections; of `a|b`, a choice for the reader, the first."""
    command = re.sub(r"(\w+)(?:\|\w+)+", r"\1", command)
    words = shlex.split(re.sub(r"\s(<<<|>>|<|>)\s*", r" \1 ", command), comments=True)
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not {before, word} & {"<<<", ">>", "<", ">"} and word != "&"
    ]


def transduce_commands(block: str) -> Iterator[list[str]]:
    """Yield the arguments of each `transduce` command of a block."""
    for line in command_lines(block):
        for part in re.split(r"\s(?:\||&&|;)\s", line):
            if part.startswith("transduce ") and part.split()[1] in VERBS:
                yield words_of(part)[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_accepted(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in code_blocks(page.read_text("utf-8")):
        for verb, *arguments in transduce_commands(block):
            try:
                build_parser(verb).parse(arguments)
            except SystemExit:
                pytest.fail(f"transduce {verb} {shlex.join(arguments)}\n{capsys.readouterr().err}")


def test_a_mistaken_command_is_found() -> None:
    page = (
        "# A\n\n```sh\necho x | transduce translate m --beem 2 < a > b  # no\n```\n\n"
        "    transduce align m \\\n        --know x\n"
    )
    assert [list(transduce_commands(block)) for block in code_blocks(page)] == [
        [["translate", "m", "--beem", "2"]],
        [["align", "m", "--know", "x"]],
    ]
    with pytest.raises(SystemExit):
        build_parser("translate").parse(["m", "--beem", "2"])


# --- Python ---


def python_blocks(page: str) -> Iterator[ast.Module]:
    """Yield the syntax trees of a page's Python code; an indented block that is none, such as a table, is left out."""
    for kind, content in _FENCED.findall(page):
        if kind == "python":
            yield ast.parse(content.replace(", …", ", ..."))
    for block in code_blocks(page):
        try:
            tree = ast.parse(block)
        except SyntaxError:
            continue
        yield tree


def unknown_arguments(tree: ast.Module) -> Iterator[str]:
    """Yield the keyword arguments of calls of public names that these do not have."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "transduce"
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="transduce"), attr=str(name))):
                pass
            case ast.Call(func=ast.Name(id=str(name))) if name in imported:
                pass
            case _:
                continue
        parameters = inspect.signature(getattr(transduce, name)).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            yield from (f"{name}: {each.arg}" for each in node.keywords if each.arg and each.arg not in parameters)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "api.md"], ids=lambda page: page.name)
def test_python_code_calls_what_exists(page: Path) -> None:
    trees = list(python_blocks(page.read_text("utf-8")))
    assert [each for tree in trees for each in unknown_arguments(tree)] == []


def test_an_unknown_argument_is_found() -> None:
    code = "from transduce import load\ntransduce.train(pairs=1, stepz=2)\nload('m', precision='fp32', speed=1)\n"
    assert list(unknown_arguments(ast.parse(code))) == ["train: stepz", "load: speed"]


# --- pages for the first hour run ---


@pytest.fixture
def demonstration(trained: Path, toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which `make demo` seems to have run, the current one; its model is a small one."""
    shutil.copytree(trained, tmp_path / "models" / "demo", ignore=shutil.ignore_patterns("tensorboard", "corpus*"))
    (tmp_path / "models" / "demo-text").mkdir()
    for language in ("zh", "en"):
        for name, part in (("train", "train"), ("dev", "dev"), ("test", "dev")):
            text = (toy_corpus / f"{part}.{language}").read_text("utf-8").split("\n")[:50]
            path = tmp_path / "models" / "demo-text" / f"{name}.{language}"
            path.write_text("\n".join(text).rstrip("\n") + "\n", "utf-8", newline="\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command line: what is before a pipe by the shell, `transduce` in this process, training shortened."""
    before, pipe, command = line.rpartition(" | ")
    text = subprocess.run(["bash", "-c", before], capture_output=True, check=True).stdout if pipe else b""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    arguments = words_of(command)[1:]
    assert main([*arguments, *(_SHORT[2:] if arguments[0] == "train" else [])]) == 0, line


def next_line(process: "subprocess.Popen[str]", beginning: str) -> str:
    """Return the first line of a process's output that begins so."""
    for stream in (process.stderr, process.stdout):
        for line in stream or ():
            if line.startswith(beginning):
                return line
    raise AssertionError(f"no line begins with {beginning}")


def test_the_first_hour_runs(demonstration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "start.md").read_text("utf-8")
    lines = [line for block in code_blocks(page) for line in command_lines(block) if "transduce " in line.split("#")[0]]
    assert len(lines) > 8
    for line in lines:
        run_line(line, monkeypatch)
    assert "<html" in (demonstration / "page.html").read_text("utf-8")
    (code,) = (content for kind, content in _FENCED.findall(page) if kind == "python")
    exec(compile(code, "start.md", "exec"), {"__name__": "start"})


@pytest.mark.usefixtures("demonstration")
def test_the_code_of_more_questions_about_a_model_runs() -> None:
    page = (DOCS / "more_questions.md").read_text("utf-8")
    (code,) = (content for kind, content in _FENCED.findall(page) if kind == "python" and "models/demo" in content)
    exec(compile(code, "more_questions.md", "exec"), {"__name__": "more_questions"})


@pytest.fixture
def draws_chinese() -> None:
    """Skip a test whose pictures have Chinese characters if this machine cannot draw them."""
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    squares = HeatMap(title="字", x_label="x", y_label="y", values=np.eye(2), minimum=0.0, maximum=1.0)
    try:
        render_chart(Chart((squares,)), "svg")
    except TransduceError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("draws_chinese")
def test_the_views_run(demonstration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands and the code of the page about views; its other models are the demonstration's, too."""
    page = (DOCS / "views.md").read_text("utf-8")
    for name in ("models/a", "models/b"):
        (demonstration / name).symlink_to(demonstration / "models" / "demo")
    for side in ("zh", "en"):
        text = (demonstration / "models" / "demo-text" / f"test.{side}").read_text("utf-8").split("\n")[:24]
        for part in ("some", "test"):
            (demonstration / f"{part}.{side}").write_text("\n".join(text) + "\n", "utf-8")
        (demonstration / "output.b").write_text("\n".join(text) + "\n", "utf-8")
    (demonstration / "some.align").write_text("0-0 1-1\n" * 24, "utf-8")
    (demonstration / "test.align").write_text("0-0 1-1\n" * 24, "utf-8")
    lines = (demonstration / "models" / "demo-text" / "test.zh").read_text("utf-8").splitlines()
    (demonstration / "labels.txt").write_text("".join(f"{'苹果' in line}\n" for line in lines), "utf-8")
    for block in code_blocks(page):
        for line in command_lines(block):
            if line.startswith("transduce ") and not re.search("models/(?:en-de|de-en|novels)", line):
                run_line(line, monkeypatch)
    assert (demonstration / "attention.png").is_file()
    # The small model has not all words of the page.
    translator: Any = transduce.load("models/demo")
    known = translator("昨天我吃了苹果").alternatives[0].tokens[0]
    namespace: dict[str, object] = {"__name__": "views"}
    for kind, code in _FENCED.findall(page):
        # Pronouns are asked of an English sentence, which this model cannot read.
        if kind == "python" and "pronoun_attention" not in code:
            exec(compile(re.sub('"▁(?:bought|ate)"', repr(known), code), "views.md", "exec"), namespace)


@pytest.mark.usefixtures("draws_chinese")
def test_the_gallery_s_commands_draw_its_pictures(demonstration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, chinese = ((DOCS / name).read_text("utf-8") for name in ("gallery.md", "zh/gallery.md"))
    lines = [line for block in code_blocks(page) for line in command_lines(block)]
    assert lines == [line for block in code_blocks(chinese) for line in command_lines(block)]
    for line in lines:
        run_line(line, monkeypatch)
    pictures = re.findall(r"pictures/(\w+)\.svg", page)
    assert pictures == re.findall(r"pictures/(\w+)\.zh\.svg", chinese)
    assert len(pictures) == len(lines)
    for picture in pictures:
        assert (DOCS / "pictures" / f"{picture}.svg").is_file()
        assert (DOCS / "pictures" / f"{picture}.zh.svg").is_file()
        assert (demonstration / f"{picture}.png").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("draws_chinese")
def test_the_paper_is_reproduced_in_small(
    demonstration: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run each command of the page with tiny models and layers, two steps, one row of Table 3 and some trees."""
    text, sizes = demonstration / "models" / "demo-text", {"d_model": 16, "d_ff": 32, "num_heads": 2}
    sides = [read_lines(text / f"train.{language}") for language in ("zh", "en")]
    pairs = tuple(AlignedPair((one,), (other,), ()) for one, other in zip(*sides, strict=True))
    corpus = DemoCorpus(pairs, pairs[:9], pairs[:9], frozenset())
    for name, part in (("train.en", "train.en"), ("train.de", "train.zh"), ("dev.en", "dev.en"), ("dev.de", "dev.zh")):
        shutil.copy(text / part, demonstration / name)
    (demonstration / "text.en").write_text((text / "train.en").read_text("utf-8") * 20, "utf-8")  # for 1,024 tokens
    tiny = {f"model.{name}": size for name, size in sizes.items()} | {"tokenizer.vocabulary_size": 400}
    monkeypatch.setattr(paper, "SMALL_BASE", paper.SMALL_BASE | tiny)
    monkeypatch.setattr(paper, "SMALLEST_BASE", paper.SMALLEST_BASE | tiny)
    monkeypatch.setattr(paper, "QUICK_VARIATIONS", ("base",))
    monkeypatch.setattr(paper, "generate", lambda: corpus)
    quick = partial(complexity.compare_layers, timed_lengths=(8, 16), timed_widths=(4, 8))
    monkeypatch.setattr(complexity, "compare_layers", quick)
    monkeypatch.setattr(paper, "_TREES", {"train": 60, "dev": 6, "test": 6})
    monkeypatch.setattr(paper, "_PARSER", {"task": {"kind": "parsing"}, "model": sizes})
    for name in ("train", "dev", "test"):
        trees = "".join(f"{tree}\n" for tree in paper.generate_trees(60 if name == "train" else 6))
        (demonstration / f"{name}.trees").write_text(trees, "utf-8")
    layers = {"bert-base": ["encoder"], "gpt2": ["decoder"], "paper-base": ["encoder", "decoder"]}
    page = (DOCS / "paper.md").read_text("utf-8")
    commands = [words for block in code_blocks(page) for words in transduce_commands(block)]
    assert {words[1] for words in commands if words[0] == "paper"} == set(_RESULTS)
    for number, words in enumerate(commands):
        if words[0] == "train":
            preset = words[words.index("--preset") + 1]
            small = tiny | {f"model.num_{side}_layers": 1 for side in layers[preset]} | {"training.batch_tokens": 512}
            more = [*(word for name, value in small.items() for word in ("--set", f"{name}={value}")), "--steps", "2"]
        elif words[1] in ("table3", "table4"):
            rows = ["--rows", "base"] if words[1] == "table3" else []
            more = [*rows, "--steps", "2", "--runs", str(demonstration / f"runs-{number}")]
        else:
            more = []
        assert main([*words, *more, "--threads", "1"]) == 0, words
    assert (demonstration / "figure3.png").is_file()
    assert "The paper, layer 5 of 6" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_code_about_the_doctor_runs() -> None:
    from transduce.model.config import ModelConfig
    from transduce.model.transformer import Transformer

    ids: Any = {"source_vocabulary_size": 8000, "target_vocabulary_size": 8000, "start_id": 1, "eos_id": 2}
    sizes: Any = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    page = (DOCS / "doctor.md").read_text("utf-8")
    for code in (content for kind, content in _FENCED.findall(page) if kind == "python"):
        exec(compile(code, "doctor.md", "exec"), {"model": Transformer(ModelConfig(**ids, **sizes)).double()})


@pytest.mark.usefixtures("demonstration")
def test_the_service_answers_as_the_page_says() -> None:
    pytest.importorskip("starlette", reason="the extra `serve` is not installed")
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed, whose commands this page has")
    page = (DOCS / "serving_start.md").read_text("utf-8")
    blocks = [content for kind, content in _FENCED.findall(page) if kind == "sh"]
    start = words_of(next(line for line in command_lines(blocks[0]) if line.startswith("transduce serve")))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", *start, "--port", "0"]
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", next_line(server, "Serving"))
            assert address is not None
            for block in blocks[1:]:
                asked = block.replace("http://127.0.0.1:5000", address[0])
                done = subprocess.run(["bash", "-euc", asked], capture_output=True, text=True, check=True)
                assert "error" not in done.stdout
            (code,) = (content for kind, content in _FENCED.findall(page) if kind == "python")
            exec(compile(code.replace("http://127.0.0.1:5000", address[0]), "page", "exec"), {"__name__": "page"})
        finally:
            server.terminate()
