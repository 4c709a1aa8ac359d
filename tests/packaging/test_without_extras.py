"""Test that the command line works and a model trains without the optional Triton and llvmlite."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}

PRELUDE = """
import sys

sys.modules["triton"] = None
sys.modules["llvmlite"] = None
"""
COMMAND = "from transduce.commands.main import main; raise SystemExit(main(sys.argv[1:]))"
WORK = """
from pathlib import Path

import transduce

folder = Path(sys.argv[1])
pairs = [(f"{a} {b}", f"{a.upper()} {b.upper()}") for a in "abcdefgh" for b in "abcdefgh"]
for name, side in (("train.zh", 0), ("train.en", 1)):
    (folder / name).write_text("".join(f"{pair[side]}\\n" for pair in pairs), "utf-8")
settings = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "model.d_model": 32, "model.d_ff": 64}
transduce.train(source=folder / "train.zh", target=folder / "train.en", out=folder / "model", preset="tiny", steps=2,
                threads=1, device="cpu", settings=settings | {"training.translate_dev": 0, "search.max_length": 8})
translation = transduce.load(folder / "model", device="cpu", threads=1)("a b")
assert isinstance(translation.text, str)
slow = {"torch._dynamo", "torch.distributed.fsdp"}  # these take two seconds to import
print("translated, slow imports:", sorted(slow & set(sys.modules)))
"""


def _run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("argument", "printed"),
    [("--version", "transduce "), ("--help", "usage: transduce"), ("check-install", "llvmlite")],
)
def test_version_help_and_check_install_work_without_extras(argument: str, printed: str) -> None:
    assert printed in _run(COMMAND, argument)


def test_a_model_trains_and_translates(tmp_path: Path) -> None:
    assert _run(WORK, str(tmp_path)).endswith("translated, slow imports: []\n")
