"""Test limits on the size of files and functions, and that nothing runs code from a file."""

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "transduce"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MAX_LINES_OF_A_FILE = 800
MAX_LINES_OF_A_FUNCTION = 80
MAX_PARAMETERS = 9
# These have the options of a command, each by its name.
WIDE_FUNCTIONS = {
    "src/transduce/tasks/train.py": ("train",),
    "src/transduce/tasks/preparing.py": ("prepare",),
    "src/transduce/inference/translator.py": ("__call__", "translate"),
}
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "core", "misc", "tools"}

# Triton's take pointers, strides and sizes one by one; and it comes with PyTorch for GPUs.
PROGRAMS = "src/transduce/kernels/cuda/triton/"
BROUGHT_BY_TORCH = "triton"

BANNED_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# The one file that opens what torch.save wrote, with weights_only=True and limits on size.
TENSOR_READER = "src/transduce/interop/tutorial_files.py"
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "torch.load", "torch.jit.load"}

# Put together from halves, so that this file does not hold what it looks for.
REGISTRY_HOSTS = tuple(
    ".".join(halves)
    for halves in (("pypi", "org"), ("pythonhosted", "org"), ("download.pytorch", "org"), ("anaconda", "org"))
)
PROSE = {".py", ".md", ".toml", ".txt", ".html", ".js", ".css", ".cfg", ".yml", ".yaml", ".sh", ""}
FOLDERS = ("src", "tests", "docs", "benchmarks", "deploy", "examples", ".ci", ".github")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def long_files(name: str, text: str) -> Iterator[str]:
    lines = text.count("\n")
    if lines > MAX_LINES_OF_A_FILE:
        yield f"{name} has {lines} lines, but at most {MAX_LINES_OF_A_FILE} are allowed"


def large_functions(name: str, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function) and node.name not in WIDE_FUNCTIONS.get(name, ()):
            yield from _excess(f"{name}:{node.lineno} {node.name}", node)


def _excess(where: str, function: Function) -> Iterator[str]:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if lines > MAX_LINES_OF_A_FUNCTION:
        yield f"{where} has {lines} lines, but at most {MAX_LINES_OF_A_FUNCTION} are allowed"
    if where.startswith(PROGRAMS):
        return
    positional = [*function.args.posonlyargs, *function.args.args]
    if positional and positional[0].arg in {"self", "cls"}:
        positional = positional[1:]
    parameters = len(positional) + len(function.args.kwonlyargs)
    if parameters > MAX_PARAMETERS:
        yield f"{where} has {parameters} parameters, but at most {MAX_PARAMETERS} are allowed"


def banned_code(name: str, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        for used in _used_names(node):
            if used == "torch.load" and name == TENSOR_READER and "weights_only=True" in ast.unparse(node):
                continue
            if used in BANNED_CALLS or used.partition(".")[0] in BANNED_MODULES:
                yield f"{name}:{node.lineno} uses {used}"  # type: ignore[attr-defined]


def _used_names(node: ast.AST) -> Iterator[str]:
    """Yield the modules that an import names, or the dotted name of the function that a call calls."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from (f"{module}.{alias.name}" for alias in names)
        case ast.Call(func=ast.Name(id=called)):
            yield called
        case ast.Call(func=ast.Attribute() as called):
            yield ast.unparse(called)
        case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
            yield "pickle"


CHECKS = [long_files, large_functions, banned_code]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_source_file_passes_each_layout_check(check: object) -> None:
    assert callable(check)
    names = [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in SOURCES]
    assert [finding for name, text in names for finding in check(name, text)] == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("x = 1\n" * 801, "a.py has 801 lines"),
        ("def f():\n" + "    x = 1\n" * 80, "a.py:1 f has 81 lines"),
        ("class A:\n    def f(self, a, b, c, d, e, f, g, h, i, *, j): ...\n", "a.py:2 f has 10 parameters"),
        ("import pickle\n", "a.py:1 uses pickle"),
        ("from pickle import loads\n", "a.py:1 uses pickle.loads"),
        ("\nimport torch\ntorch.load('x')\n", "a.py:3 uses torch.load"),
        ("from torch import load\n", "a.py:1 uses torch.load"),
        ("eval('1')\n", "a.py:1 uses eval"),
        ("exec('1')\n", "a.py:1 uses exec"),
    ],
)
def test_each_layout_check_finds_its_violation(text: str, finding: str) -> None:
    findings = [found for check in CHECKS for found in check("a.py", text)]
    assert len(findings) == 1
    assert findings[0].startswith(finding)


def test_code_that_only_resembles_a_violation_is_accepted() -> None:
    text = "class A:\n    def f(self, a, b, c, d, e, f, g, h, i): ...\nmodel.eval()\nre.compile('x')\n"
    assert [found for check in CHECKS for found in check("a.py", text)] == []


def test_no_module_has_a_vague_name() -> None:
    names = {part.removesuffix(".py") for path in SOURCES for part in path.relative_to(PACKAGE).parts}
    assert sorted(names & VAGUE_NAMES) == []


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {parent for path in SOURCES for parent in path.parents if parent.is_relative_to(PACKAGE)}
    missing = [folder for folder in folders if not (folder / "__init__.py").exists()]
    assert sorted(folder.relative_to(ROOT).as_posix() for folder in missing) == []


ROOT_FILES = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "README.zh.md",
    "constraints.txt",
    "mkdocs.yml",
    "mkdocs.zh.yml",
    "pyproject.toml",
]
ROOT_FOLDERS = ["benchmarks", "deploy", "docs", "examples", "src", "tests"]


def test_the_root_has_nothing_but_the_project() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and its record of the project's files; a user's own files do not count")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {name.partition("/")[0] for name in listing.split("\0") if name and name[0] != "."}
    assert sorted(found) == sorted([*ROOT_FILES, *ROOT_FOLDERS])


def test_every_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name != "dev"}
    declared = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    distributions = {line.partition(">=")[0].replace("-", "_") for line in declared}
    imported = {
        used.partition(".")[0]
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for used in _used_names(node)
    }
    assert sorted(imported - sys.stdlib_module_names - distributions - {"transduce", BROUGHT_BY_TORCH}) == []


def test_no_file_names_a_package_registry() -> None:
    files = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".coverage")]
    files += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    found = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in files
        if path.suffix in PROSE and "__pycache__" not in path.parts
        for host in REGISTRY_HOSTS
        if host in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []


def repeated_classes(sources: dict[str, str]) -> list[str]:
    """Return the names of classes, also private ones, that two modules define at their top level, with the modules."""
    owners: dict[str, list[str]] = {}
    for name, text in sources.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                owners.setdefault(node.name, []).append(name)
    return [f"{name}: {', '.join(files)}" for name, files in sorted(owners.items()) if len(files) > 1]


def test_each_class_has_a_name_of_its_own() -> None:
    assert not repeated_classes({path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in SOURCES})


def test_a_repeated_class_name_is_found() -> None:
    sources = {"a.py": "class Plan: ...\nclass _Row: ...", "b.py": "class Plan: ...\nclass _Row: ...", "c.py": ""}
    assert repeated_classes(sources) == ["Plan: a.py, b.py", "_Row: a.py, b.py"]
