"""Test that a model trains, searches and scores without `transduce.kernels`, with the numbers of its own modules."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}

BLOCKED = """
import sys

class NoKernels:
    def find_spec(self, name, path=None, target=None):
        if name == "transduce.kernels" or name.startswith("transduce.kernels."):
            raise ModuleNotFoundError(f"No module named {name!r}", name="transduce.kernels")

sys.meta_path.insert(0, NoKernels())
"""
# A hook makes a model unknown to every backend, so that kernels are there and unused.
UNUSED = """
from transduce.inference import decoding
from transduce.model_folder import load

decoding.search_reductions = lambda: None
opened = load.convert_to_precision
def with_hook(model, *args):
    model = opened(model, *args)
    model.register_forward_hook(lambda *_: None)
    return model
load.convert_to_precision = with_hook
"""
ARM = """
import platform
platform.machine = lambda: "arm64"

import torch
torch.backends.cpu.get_cpu_capability = lambda: "DEFAULT"
torch.cpu._is_amx_tile_supported = torch.cpu._is_avx512_bf16_supported = lambda: False

from transduce.kernels.cpu.jit import compiler
def compile_kernels(*_):
    raise AssertionError("a kernel for x86 is compiled")
compiler.compile_kernels = compile_kernels
import llvmlite.binding
llvmlite.binding.get_host_cpu_features = compile_kernels

from transduce.inspection.installation import check_install
assert "this is arm64: PyTorch's operators train and decode" in str(check_install(device="cpu"))
"""
WORK = """
import json, sys
from pathlib import Path
import torch, transduce
from transduce.errors import TransduceError

folder = Path(sys.argv[1])
pairs = [(" ".join("abcdefgh"[(i * k + i) % 8] for k in range(1, 5)), " ".join("stuvwxyz"[(i * k + i) % 8]
          for k in range(1, 5))) for i in range(60)]
for name, side in (("train.src", 0), ("train.tgt", 1)):
    (folder / name).write_text("".join(f"{pair[side]}\\n" for pair in pairs))
settings = {"training.kernels": "torch", "training.precision": "fp32", "training.translate_dev": 0}
settings |= {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "model.d_model": 32, "model.d_ff": 64}
transduce.train(source=folder / "train.src", target=folder / "train.tgt", out=folder / "model", preset="tiny",
                steps=40, threads=1, device="cpu", settings=settings | {"search.max_length": 12})
translator = transduce.load(folder / "model", precision="fp32", device="cpu", threads=1)
sources = [source for source, _ in pairs[:6]]
events = [json.loads(line) for line in (folder / "model" / "metrics.jsonl").read_text().splitlines()]
results = {
    "losses": [event[name] for event in events for name in ("loss", "dev_loss") if name in event],
    "greedy": [(each.text, each.alternatives[0].score) for each in translator(sources, beam_size=1)],
    "beam": [
        (best.text, best.score) for each in translator(sources, beam_size=3, n_best=3) for best in each.alternatives
    ],
    "scores": [each.score for each in translator.score(sources, [target for _, target in pairs[:6]])],
    "kernels": sorted(name for name in sys.modules if name.startswith("transduce.kernels")),
}
try:
    transduce.load(folder / "model", precision="int8", device="cpu", threads=1)
except TransduceError as error:
    results["int8"] = str(error)
print(json.dumps(results))
"""


def signatures(functions: list[ast.stmt]) -> dict[str, str]:
    """Return a dict from the names of functions to their arguments, defaults and types."""
    return {
        each.name: f"({ast.unparse(each.args)}) -> {ast.unparse(each.returns)}"
        for each in functions
        if isinstance(each, ast.FunctionDef) and each.returns is not None
    }


def test_replacements_have_the_signatures_of_the_kernels() -> None:
    package = SOURCE / "transduce"
    body = ast.parse((package / "acceleration.py").read_text("utf-8")).body
    (attempt,) = (each for each in body if isinstance(each, ast.Try))
    imports = [each for each in attempt.body if isinstance(each, ast.ImportFrom)]
    files = [package.parent / f"{str(each.module).replace('.', '/')}.py" for each in imports]
    originals = {n: s for file in files for n, s in signatures(ast.parse(file.read_text("utf-8")).body).items()}
    replacements = signatures(attempt.handlers[0].body)
    imported = {name.name for each in imports for name in each.names}
    assert replacements == {name: originals[name] for name in imported if name in originals}
    assert len(replacements) > 15
    assert imported - replacements.keys() == {"PackedLayers", "PrepackedModel"}


@pytest.fixture(scope="module")
def results_without_kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results where imports of the kernels are blocked."""
    return run(BLOCKED, tmp_path_factory.mktemp("blocked") / "run")


def run(prelude: str, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", prelude + WORK, str(folder)],
        env=ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_results_without_kernels_equal_those_with_kernels_disabled(
    results_without_kernels: dict[str, Any], tmp_path: Path
) -> None:
    unused = run(UNUSED, tmp_path / "unused")
    assert results_without_kernels["kernels"] == []
    assert unused["kernels"] != []
    assert len(results_without_kernels["losses"]) > 1
    assert len({text for text, _ in results_without_kernels["beam"]}) > 1
    for name in ("losses", "greedy", "beam", "scores"):
        assert results_without_kernels[name] == unused[name], name


def test_an_unsupported_processor_computes_as_without_kernels(
    results_without_kernels: dict[str, Any], tmp_path: Path
) -> None:
    """An ARM processor has no kernels, so nothing is compiled."""
    found = run(ARM, tmp_path / "arm")
    for name in ("losses", "scores", "greedy", "beam"):
        assert found[name] == results_without_kernels[name], name
    assert found["int8"] == (
        "Precision `int8` needs compiled kernels, but transduce has no kernels for this processor: use `fp32` or "
        "`bf16`."
    )


def test_int8_without_kernels_is_refused_in_one_sentence(results_without_kernels: dict[str, Any]) -> None:
    assert results_without_kernels["int8"] == (
        "Precision `int8` needs compiled kernels, but this installation has no kernels of our own (the folder "
        "`transduce/kernels` is missing): use `fp32` or `bf16`."
    )


def test_every_module_outside_of_the_kernels_opens_without_them() -> None:
    code = f"""{BLOCKED}
import importlib, pathlib
root = pathlib.Path({str(SOURCE)!r})
for path in sorted(root.glob("transduce/**/*.py")):
    parts = path.relative_to(root).with_suffix("").parts
    if "kernels" not in parts and parts[-1] not in ("__main__", "__init__"):
        importlib.import_module(".".join(parts))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
