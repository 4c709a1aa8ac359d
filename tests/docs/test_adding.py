"""Test docs/adding.md literally: a copy of the project gets the page's changes and runs its commands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from transduce.demonstration.grammar import DemoCorpus

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding.md").read_text("utf-8")
SHORT_OPTIONS = (
    " --preset tiny --steps 12 --threads 1 --set model.d_model=32 --set model.d_ff=64 --set model.num_heads=4"
    " --set model.num_encoder_layers=1 --set model.num_decoder_layers=1 --set search.max_length=12"
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(kind: str) -> list[str]:
    return [content for found, content in _BLOCK.findall(PAGE) if found == kind]


def apply_change(block: str, root: Path) -> str:
    """Apply a change to the file that its first line names, and return that name; the old lines occur exactly once."""
    head, _, body = block.partition("\n")
    name = head.removeprefix("--- ")
    path = root / name
    text = path.read_text("utf-8")
    for hunk in body.rstrip("\n").split("\n@@\n"):
        lines = [line or " " for line in hunk.split("\n")]
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        assert f"\n{text}".count(f"\n{old}") == 1, f"{name} does not have exactly once:\n{old}"
        text = f"\n{text}".replace(f"\n{old}", f"\n{new}")[1:]
    path.write_text(text, "utf-8")
    return name


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, demo_corpus: DemoCorpus) -> Path:
    """Return a copy of the project with the changes of the page."""
    root = tmp_path_factory.mktemp("project")
    for name in ("src", "docs", "tests/model", "tests/conftest.py", "pyproject.toml"):
        source, target = ROOT / name, root / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)  # with bytecode, which remains valid for all files that no change touches
        else:
            shutil.copy(source, target)
    for block in blocks("diff"):
        apply_change(block, root)
    for part, pairs in (("train", demo_corpus.train[:200]), ("test", demo_corpus.test[:4])):
        for language, side in (("zh", "source"), ("en", "target")):
            (root / f"{part}.{language}").write_text("".join(f"{getattr(pair, side)}\n" for pair in pairs), "utf-8")
    return root


def run(arguments: list[str], root: Path) -> subprocess.CompletedProcess[str]:
    paths = {
        "PYTHONPATH": str(root / "src"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    environment = os.environ | paths | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "COLUMNS": "200"}
    return subprocess.run(
        arguments, cwd=root, env=environment, capture_output=True, encoding="utf-8", errors="replace", check=False
    )


def test_a_component_touches_one_file_and_the_configuration() -> None:
    sections = {section.partition("\n")[0]: section for section in PAGE.split("\n## ")[1:]}
    for title in ("An activation", "A norm", "An attention score", "A position scheme", "Another attention"):
        files = {block.partition("\n")[0] for kind, block in _BLOCK.findall(sections[title]) if kind == "diff"}
        files -= {"--- src/transduce/model/config.py"}
        assert len(files) == 1, title


@pytest.mark.slow
def test_the_tests_of_new_components_pass(project: Path) -> None:
    """Search, caching and training with kernels compute what the model's `forward` computes."""
    (commands,) = (block for block in blocks("sh") if "pytest" in block)
    done = run(["bash", "-euo", "pipefail", "-c", commands], project)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 6 * 8
    assert "squared-relu" in (project / "docs" / "settings.md").read_text("utf-8")


# Run after the page's code: components that are registered without a change of the project are trained and decode.
PLUGIN = """
own = {"attention": "own-gate", "positions": "own-distance", "activation": "cubed-relu"}
model = build_model(ModelConfig(**SIZES, **own)).eval()
source, target = torch.tensor([[3, 4, 2]]), torch.tensor([[0, 5, 6]])
logits = model(source, target)
logits.sum().backward()
assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
with torch.inference_mode():
    state = model.start(source)
    steps = [model.project(state.step(target[:, [step]])) for step in range(3)]
torch.testing.assert_close(torch.cat(steps, dim=1), logits)
assert select_decoder(model).backend == "reference"
"""


def test_a_new_component_is_refused_by_every_fast_decoder(project: Path) -> None:
    code, printed = "\n".join([*blocks("python"), PLUGIN]), "".join(blocks("text"))
    done = run([sys.executable, "-c", code], project)
    assert done.stdout == printed, done.stderr


# Run in the copy: every table refuses each model, and each format names the setting that it does not have.
REFUSALS = """
from transduce.exchange import exporters
from transduce.interop.ctranslate2 import CTRANSLATE2
from transduce.interop.hugging_face.families import HUGGING_FACE
from transduce.interop.onnx.export import ONNX
from transduce.kernels.cpu.decoding.compiled_steps import COMPILABLE
from transduce.kernels.cuda.decode_graph import TRITON
from transduce.kernels.prepacked import PREPACKABLE
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.layer_graph import refusal

sizes = {"source_vocabulary_size": 50, "target_vocabulary_size": 50, "d_model": 16, "d_ff": 32, "num_heads": 4}
new = {"activation": "squared-relu", "norm": "scale", "attention_score": "cosine", "positions": "distance"}
for name, value in {**new, "attention": "gated"}.items():
    config = ModelConfig(**sizes, num_encoder_layers=1, num_decoder_layers=1, **{name: value})
    for table in (ONNX, CTRANSLATE2, HUGGING_FACE, TRITON, COMPILABLE, PREPACKABLE):
        assert refusal(table, build_model(config).eval()), (name, table.title)
    for target, exporter in exporters._EXPORTERS.items():
        assert name in exporter.obstacles(config), (name, target)
"""


def test_every_new_component_is_refused_by_every_backend_and_exporter(project: Path) -> None:
    done = run([sys.executable, "-c", REFUSALS], project)
    assert done.returncode == 0, done.stderr


# Run in the copy: the exit status of the page's command for each format.
EXPORTS = """
import shlex, sys
from transduce.commands.main import main

for target in ("onnx", "ctranslate2", "huggingface"):
    print(main(shlex.split(sys.argv[1].format(target=target))))
"""


@pytest.mark.slow
def test_training_comparing_and_exporting_do_what_the_page_says(project: Path) -> None:
    training, export = (block for block in blocks("sh") if "transduce" in block and "pytest" not in block)
    training = re.sub(r"^(transduce train .*)$", rf"\1{SHORT_OPTIONS}", training, flags=re.MULTILINE)
    training = training.replace("transduce ", f"{sys.executable} -m transduce ")
    done = run(["bash", "-euo", "pipefail", "-c", training], project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"base +(?:models/)?cosine", done.stdout), done.stdout
    command = export.replace("--to onnx", "--to {target}").replace("transduce ", "", 1)
    done = run([sys.executable, "-c", EXPORTS, command], project)
    assert done.stdout.split() == ["2", "2", "2"], done.stdout + done.stderr
    refused = [line for line in done.stderr.split("\n") if line.startswith("transduce: ")]
    assert ["`model.attention_score` = cosine" in line for line in refused] == [True, True, True], done.stderr
    assert "Traceback" not in done.stderr
    assert not (project / "models" / "cosine-onnx").exists()


def test_a_diff_that_does_not_apply_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    assert apply_change("--- a.py\n x = 1\n-y = 2\n+y = 3\n", tmp_path) == "a.py"
    assert (tmp_path / "a.py").read_text() == "x = 1\ny = 3\n"
    with pytest.raises(AssertionError, match="does not have exactly once"):
        apply_change("--- a.py\n-y = 2\n+y = 3\n", tmp_path)
