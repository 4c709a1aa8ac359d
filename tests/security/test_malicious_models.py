"""Test malicious model folders: none runs code, reads outside its folder or uses much memory; each gives one error
message.

Every attack is loaded in a separate process, which may use 200 MB more than for a sound folder. An audit hook records
opening other files, starting processes and connecting.
"""

import json
import os
import pickle
import random
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from transduce.atomic_io import file_sha256

Attack = Callable[[Path], None]
ATTACKS: dict[str, tuple[Attack, str]] = {}
WEIGHTS, VOCABULARY = "model.safetensors", "sentencepiece.model"


def attack(name: str, message: str) -> Callable[[Attack], Attack]:
    """Return a decorator that registers an attack, with the error message that must result."""

    def enter(function: Attack) -> Attack:
        ATTACKS[name] = function, message
        return function

    return enter


class Bomb:
    """An object that creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch EXPLODED",)


def sign(folder: Path, *names: str) -> None:
    """Update the manifest with the digests of changed files."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for name in names:
        manifest["sha256"][name] = [file_sha256(folder / name)]
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")


def put(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    sign(folder, name)


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    config["transduce"] |= changes
    put(folder, "config.json", json.dumps(config).encode())


def header(entries: dict[str, Any], data: bytes = b"") -> bytes:
    """Return the content of a safetensors file with this header and data."""
    content = json.dumps(entries).encode()
    return struct.pack("<Q", len(content)) + content + data


def change_tensor(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)
    sign(folder, WEIGHTS)


# --- code ---


@attack("pickle under the name of the weights", r"looks like a pickle, which is never opened")
def _(folder: Path) -> None:
    put(folder, WEIGHTS, pickle.dumps(Bomb()))


@attack("PyTorch's zip of pickles under the name of the weights", r"looks like a zip archive, which is never opened")
def _(folder: Path) -> None:
    torch.save({"weight": Bomb()}, folder / WEIGHTS)
    sign(folder, WEIGHTS)


@attack("pickles in place of the weights", r"is incomplete: its manifest lists model\.safetensors, which is not there")
def _(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    for name in ("pytorch_model.bin", "model.pt"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))


@attack("code named by config.json", r"asks for code of its own to be run \(`auto_map`\), which is never done")
def _(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    config["auto_map"] = {"AutoModel": "modeling_evil.Evil"}
    put(folder, "config.json", json.dumps(config).encode())
    (folder / "modeling_evil.py").write_text("open('EXPLODED', 'w')", "utf-8")


@attack("code in a YAML configuration", r"cannot be read as a model's configuration")
def _(folder: Path) -> None:
    put(folder, "config.json", b"!!python/object/apply:os.system ['touch EXPLODED']\n")


@attack("a pickle for a vocabulary", r"sentencepiece\.model is not a sentencepiece model")
def _(folder: Path) -> None:
    put(folder, VOCABULARY, pickle.dumps(Bomb()))


# --- memory ---


@attack("zip bomb under the name of the weights", r"looks like a zip archive, which is never opened")
def _(folder: Path) -> None:
    with zipfile.ZipFile(folder / WEIGHTS, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x", "w") as member:
        for _ in range(300):
            member.write(bytes(1 << 20))
    sign(folder, WEIGHTS)


@attack("header of 100 MB", r"its header is not one of safetensors")
def _(folder: Path) -> None:
    put(folder, WEIGHTS, struct.pack("<Q", 100_000_000) + b"{" + b" " * 99_999_998 + b"}")


@attack("header that is said to be longer than the file", r"its header is not one of safetensors")
def _(folder: Path) -> None:
    put(folder, WEIGHTS, struct.pack("<Q", 2**63) + b'{"a":1}')


@attack(
    "shape without data", r"is damaged: 'model\.shared\.weight' of shape \(1000000, 1000000\) needs 4,000,000,000,000"
)
def _(folder: Path) -> None:
    entry = {"dtype": "F32", "shape": [1_000_000, 1_000_000], "data_offsets": [0, 4]}
    put(folder, WEIGHTS, header({"model.shared.weight": entry}, bytes(4)))


@attack("shape whose product wraps around", r"is damaged: 'x' of shape \(4294967296, 4294967296\) needs")
def _(folder: Path) -> None:
    put(folder, WEIGHTS, header({"x": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}}))


@attack(
    "tensors over one another", r"is damaged: 'b' of shape \(1\) needs 4 bytes from 4 on, but its header says 0 to 4"
)
def _(folder: Path) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    put(folder, WEIGHTS, header({"a": entry, "b": entry}, bytes(4)))


@attack("bytes behind the tensors", r"is damaged: its header describes 0 bytes of weights, but it has 2,000,000")
def _(folder: Path) -> None:
    put(folder, WEIGHTS, header({}, bytes(2_000_000)))


@attack("sizes that no machine has", r"`d_model` must be from 0 to 16,777,216, but is 1,000,000,000,000")
def _(folder: Path) -> None:
    change_config(folder, d_model=10**12, num_heads=1)


@attack("a billion layers", r"`num_encoder_layers` must be from 0 to 1,000, but is 1,000,000,000")
def _(folder: Path) -> None:
    change_config(folder, num_encoder_layers=10**9)


@attack("positions that begin far out", r"`position_offset` must be from 0 to 65,536, but is 2,097,152")
def _(folder: Path) -> None:
    change_config(folder, position_offset=2**21)


@attack("sizes that overflow when multiplied", r"cannot be built|does not hold the weights|must have the shape")
def _(folder: Path) -> None:
    change_config(folder, d_k=2**24, d_v=2**24, num_heads=2**24)


@attack("JSON of 200,000 brackets", r"config\.json cannot be read as a model's configuration: it is nested too deeply")
def _(folder: Path) -> None:
    put(folder, "config.json", b'{"transduce":' + b"[" * 200_000)


# From Python 3.14 on the stack itself is the bound, and may be deep enough to find that nothing is closed.
NESTED = (
    "it is nested too deeply" if sys.version_info < (3, 14) else "(it is nested too deeply|Input data was truncated)"
)


@attack("manifest of 200,000 brackets", rf"manifest\.json cannot be read: {NESTED}")
def _(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b'{"x":' * 200_000)


@attack("tokenizer's card of 200,000 brackets", r"tokenizer_settings\.json is not a tokenizer's description \(Expected")
def _(folder: Path) -> None:
    put(folder, "tokenizer_settings.json", b"[" * 200_000)


@attack("configuration of 30 MB", r"config\.json may have 4,194,304 bytes at most, but has more")
def _(folder: Path) -> None:
    put(folder, "config.json", b'{"x":"' + b"a" * 30_000_000 + b'"}')


@attack("vocabulary of 2 GB of nothing", r"sentencepiece\.model may have 67,108,864 bytes at most")
def _(folder: Path) -> None:
    with (folder / VOCABULARY).open("r+b") as file:
        file.truncate(2 << 30)
    sign(folder, VOCABULARY)


# --- other places ---


@attack("name that leads out", r"must list files of its own folder, but lists `\.\./secret`")
def _(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["sha256"]["../secret"] = ["0" * 64]
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")


def link(folder: Path, name: str, content: bytes) -> None:
    """Move a file with new content out of the folder, and leave a symbolic link to it."""
    outside = folder.parent / "secret"
    outside.write_bytes(content)
    (folder / name).unlink()
    (folder / name).symlink_to(outside)


@attack("weights that are a link out", r"model\.safetensors is a link that leads out of its folder")
def _(folder: Path) -> None:
    link(folder, WEIGHTS, (folder / WEIGHTS).read_bytes())


@attack("configuration that is a link out", r"config\.json is a link that leads out of its folder")
def _(folder: Path) -> None:
    link(folder, "config.json", (folder / "config.json").read_bytes())


@attack("vocabulary that is a link out", r"sentencepiece\.model is a link that leads out of its folder")
def _(folder: Path) -> None:
    link(folder, VOCABULARY, (folder / VOCABULARY).read_bytes())
    manifest = json.loads((folder / "manifest.json").read_bytes())
    del manifest["sha256"][VOCABULARY]
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")


@attack("weights that never end", r"model\.safetensors is a link that leads out of its folder")
def _(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("/dev/zero")


@attack("weights that are a pipe", r"is incomplete: its manifest lists model\.safetensors, which is not there")
def _(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


@attack("link to itself", r"manifest\.json (cannot be followed|cannot be read)")
def _(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to("manifest.json")


# --- nonsense ---


@attack("vocabulary cut off", r"sentencepiece\.model is not a sentencepiece model|of different models")
def _(folder: Path) -> None:
    content = (folder / VOCABULARY).read_bytes()
    put(folder, VOCABULARY, content[: len(content) // 2])


@attack("vocabulary of another model", r"but its tokenizer has \d+ and \d+: they are of different models")
def _(folder: Path) -> None:
    piece = b"\x0a\x0b\x0a\x04evil\x15\x00\x00\x80\xbf"  # one more piece, "evil" with score -1
    put(folder, VOCABULARY, (folder / VOCABULARY).read_bytes() + piece)


@attack("empty vocabulary", r"sentencepiece\.model is not a sentencepiece model")
def _(folder: Path) -> None:
    put(folder, VOCABULARY, b"")


@attack("weights of whole numbers", r"weights must be F64, F32, F16, BF16, but 'model\.shared\.weight' is 'I32'")
def _(folder: Path) -> None:
    change_tensor(folder, lambda w: w.update({"model.shared.weight": w["model.shared.weight"].int()}))


@attack("weights that are not numbers", r"has values that are not finite \(NaN or infinite\)")
def _(folder: Path) -> None:
    change_tensor(folder, lambda w: w["model.shared.weight"].fill_(float("nan")))


@attack("weights missing", r"does not hold the weights of .*: missing model\.shared\.weight; unexpected none\.")
def _(folder: Path) -> None:
    change_tensor(folder, lambda w: w.pop("model.shared.weight"))


@attack("weights too many", r"unexpected backdoor\.")
def _(folder: Path) -> None:
    change_tensor(folder, lambda w: w.update({"backdoor": torch.ones(3)}))


@attack("negative sizes", r"`model\.d_ff` must be at least 1, but is -64")
def _(folder: Path) -> None:
    change_config(folder, d_ff=-64)


@attack(
    "padding outside the vocabulary",
    r"`model\.pad_id` must be a token id of the target vocabulary, 0 to 299, but is 300",
)
def _(folder: Path) -> None:
    change_config(folder, pad_id=300)


@attack("negative id", r"`model\.eos_id` must be a token id of the target vocabulary, 0 to 299, but is -1")
def _(folder: Path) -> None:
    change_config(folder, eos_id=-1)


@attack("numbers that JSON has not", r"config\.json cannot be read as a model's configuration")
def _(folder: Path) -> None:
    change_config(folder, dropout=float("nan"))


# --- the trial ---

_VICTIM = """
import json, os, resource, sys
import torch
from pathlib import Path
from transduce.errors import TransduceError
from transduce.model_folder.read import read_model_folder

torch.set_num_threads(1)
noted = []

def note(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        noted.append(os.path.realpath(os.fsdecode(arguments[0])))
    elif event in ("os.system", "subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "socket.connect", "exec"):
        noted.append(event)

def load(folder):
    try:
        read_model_folder(Path(folder))
        return "loaded"
    except TransduceError as error:
        return str(error)

sound, *hostile = sys.argv[1:]
load(sound)  # imports what is imported late
sys.addaudithook(note)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for folder in hostile:
    noted.clear()
    before = peak()
    said = load(folder)
    inside = os.path.realpath(folder) + os.sep
    outside = [place for place in noted if not place.startswith(inside)]
    print(json.dumps([said, peak() - before, outside]), flush=True)
"""


@pytest.fixture(scope="module")
def outcomes(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the outcome of every attack: message, kilobytes, accesses outside. Several share a process."""
    root = tmp_path_factory.mktemp("attacks")
    ignore = shutil.ignore_patterns("checkpoints", "corpus*", "tensorboard*")
    folders = []
    for number, (prepare, _) in enumerate(ATTACKS.values()):
        shutil.copytree(trained, root / str(number) / "model", ignore=ignore)
        prepare(root / str(number) / "model")
        folders.append(str(root / str(number) / "model"))
    run = subprocess.run(
        [sys.executable, "-c", _VICTIM, str(trained), *folders],
        cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert not list(root.rglob("EXPLODED"))
    return dict(zip(ATTACKS, map(json.loads, run.stdout.strip().split("\n")), strict=True))


def test_at_least_25_attacks_are_tested() -> None:
    assert len(ATTACKS) >= 25


@pytest.mark.parametrize("name", ATTACKS)
def test_each_malicious_folder_is_refused_in_one_sentence(outcomes: dict[str, Any], name: str) -> None:
    said, _, _ = outcomes[name]
    assert re.search(ATTACKS[name][1], said), said
    assert "\n" not in said
    assert len(said) < 3_000


@pytest.mark.parametrize("name", ATTACKS)
def test_each_malicious_folder_uses_little_memory_and_reads_nothing_outside(
    outcomes: dict[str, Any], name: str
) -> None:
    _, kilobytes, outside = outcomes[name]
    assert kilobytes < 200_000
    assert outside == []


def test_the_audit_hook_detects_unpickling_and_foreign_files(tmp_path: Path) -> None:
    """The audit hook records forbidden accesses if they happen."""
    code = _VICTIM.replace("read_model_folder(Path(folder))", "open('/dev/null'); __import__('pickle').loads(BOMB)")
    code = code.replace("load(sound)", f"BOMB = {pickle.dumps(Bomb())!r}", 1)
    run = subprocess.run(
        [sys.executable, "-c", code, "sound", "hostile"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said, _, outside = json.loads(run.stdout)
    assert said == "loaded"
    assert {"/dev/null", "os.system"} <= set(outside)
    assert (tmp_path / "EXPLODED").exists()


def test_crafted_vocabularies_never_crash(trained: Path, tmp_path: Path) -> None:
    """Files truncated at many offsets or with changed bytes are rejected or read, but never crash the process."""
    content = (trained / VOCABULARY).read_bytes()
    code = (
        "import sys\nfrom pathlib import Path\nfrom transduce.errors import TransduceError\n"
        "from transduce.text.vocabulary import Vocabulary\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try:\n        Vocabulary.read(path).encode('我爱你 abc')\n        print('taken')\n"
        "    except TransduceError:\n        print('refused')\n"
    )
    for number, broken in enumerate(_broken(content)):
        (tmp_path / f"{number:04}").write_bytes(broken)
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answers = run.stdout.split()
    assert len(answers) == len(list(tmp_path.iterdir()))
    assert answers.count("refused") > 10


def _broken(content: bytes) -> Iterator[bytes]:
    draw = random.Random(1)
    for cut in range(0, len(content), len(content) // 40):
        yield content[:cut]
    for _ in range(200):
        changed = bytearray(content)
        for _ in range(draw.choice([1, 1, 8, 64])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        yield bytes(changed)
