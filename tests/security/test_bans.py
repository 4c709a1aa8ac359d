"""Test that no module of the package can run code from a file: no unpickling, no evaluation, no shell."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "transduce"

# Full names, as imports resolve them, regardless of aliases.
BANNED = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "builtins.eval",
    "builtins.exec",
    "builtins.compile",
    "os.system",
    "os.popen",
    "torch.load",
    "torch.jit.load",
    "torch.hub.load",
    "torch.package.PackageImporter",
    "torch.serialization.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "runpy.run_path",
    "runpy.run_module",
    "code.interact",
}
BANNED_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
BANNED_KEYWORDS = {"allow_pickle": True, "weights_only": False, "trust_remote_code": True, "shell": True}


def breaches(text: str) -> Iterator[str]:
    """Yield the banned names that a module uses, as `line: name`."""
    tree = ast.parse(text)
    names = _imported(tree)
    for node in ast.walk(tree):
        used = _full_name(node, names)
        if used in BANNED or (used or "").partition(".")[0] in BANNED_MODULES:
            yield f"{getattr(node, 'lineno', 0)}: {used}"
        if isinstance(node, ast.Call):
            yield from _banned_keywords(node)
            yield from _getattr_of(node, names)


def _imported(tree: ast.AST) -> dict[str, str]:
    """Return the names that a module imports, each with the dotted name that it stands for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                (a.asname or a.name.partition(".")[0]): (a.name if a.asname else a.name.partition(".")[0])
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {(alias.asname or alias.name): f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _full_name(node: ast.AST, names: dict[str, str]) -> str | None:
    """Return the dotted name that an expression stands for; None if it is not a name."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = _full_name(node.value, names)
        return None if owner is None else f"{owner}.{node.attr}"
    if isinstance(node, ast.ImportFrom):
        return node.module
    return None


def _banned_keywords(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg in BANNED_KEYWORDS and not (
            isinstance(keyword.value, ast.Constant) and keyword.value.value is not BANNED_KEYWORDS[keyword.arg]
        ):
            yield f"{call.lineno}: {keyword.arg}"


def _getattr_of(call: ast.Call, names: dict[str, str]) -> Iterator[str]:
    """Yield the banned functions that a call such as `getattr(torch, "load")` returns."""
    if isinstance(call.func, ast.Name) and call.func.id == "getattr" and len(call.args) >= 2:
        owner, attribute = _full_name(call.args[0], names), call.args[1]
        if isinstance(attribute, ast.Constant) and f"{owner}.{attribute.value!s}" in BANNED:
            yield f"{call.lineno}: {owner}.{attribute.value!s}"


def test_no_module_of_the_package_runs_code_from_files() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{breach}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for breach in breaches(path.read_text(encoding="utf-8"))
    ]
    # Tensors alone, within limits of size: tests/interop/test_import_tutorials.py has the refusals.
    reader = [breach for breach in found if breach.startswith("interop/tutorial_files.py:")]
    assert [breach.rpartition(" ")[2] for breach in reader] == ["torch.load"]
    assert "weights_only=True" in (PACKAGE / "interop" / "tutorial_files.py").read_text(encoding="utf-8")
    assert [breach for breach in found if breach not in reader] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle\npickle.loads(b'')",
        "from pickle import loads as read\nread(b'')",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x', weights_only=False)",
        "from torch import load\nload('x')",
        "from torch.serialization import load as open_weights\nopen_weights('x')",
        "import torch\nread = torch.load",
        "import torch\ngetattr(torch, 'load')('x')",
        "import yaml\nyaml.load('x')",
        "eval('1')",
        "run = exec",
        "import builtins\nbuiltins.eval('1')",
        "__import__('os')",
        "import os\nos.system('ls')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=chosen)",
        "from transformers import AutoModel\nAutoModel.from_pretrained('x', trust_remote_code=True)",
        "import joblib\njoblib.load('x')",
        "import marshal\nmarshal.loads(b'')",
    ],
)
def test_each_banned_call_is_found(text: str) -> None:
    assert list(breaches(text))


@pytest.mark.parametrize(
    "text",
    [
        "model.eval()",
        "import re\nre.compile('x')",
        "import tomllib\ntomllib.loads('')",
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "import torch\ntorch.compile(model)",
        "load('x')",
    ],
)
def test_harmless_code_that_resembles_a_banned_call_is_accepted(text: str) -> None:
    assert list(breaches(text)) == []
