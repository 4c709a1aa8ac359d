"""Test `torchrun … -m transduce train`: several processes train the same run as one, and resume each other's runs.

Two tests use `torchrun`. The others fork processes that have imported everything, with the variables that it sets.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from transduce.commands.main import main
from transduce.tasks.train import train
from transduce.text.files import read_lines

Done = subprocess.CompletedProcess[str]
TrainTogether = Callable[..., Done]

# Each line has the number of processes, the arguments of a command, and the file of their standard error.
FORKS = """
import json, os, signal, socket, sys
import transduce.tasks.run.run, transduce.training.sharding
from transduce.commands.main import main

def run(arguments, errors, variables):
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    os.environ.update(variables)
    try:
        code = main(arguments)
        sys.stderr.flush()
        os._exit(code)
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    finally:
        sys.excepthook(*sys.exc_info())
        os._exit(1)

for line in sys.stdin:
    count, arguments, errors = json.loads(line)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    children, code = set(), 0
    for rank in range(count):
        if child := os.fork():
            children.add(child)
        else:
            variables = shared | {"RANK": rank, "LOCAL_RANK": rank}
            run(arguments, errors, {name: str(value) for name, value in variables.items()})
    while children:
        child, status = os.wait()
        children.remove(child)
        code = code or os.waitstatus_to_exitcode(status)
        for other in children if code else ():
            os.kill(other, signal.SIGKILL)
    print(code, flush=True)
"""


def start_by_torchrun(count: int, settings: Path, out: Path, *options: str) -> Done:
    """Train in so many processes of one thread each; return the exit code and what they wrote to standard error."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m"]
    command = ["transduce", "train", str(settings), "--out", str(out), "--device", "cpu", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*launch, *command], capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def train_together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainTogether]:
    """Yield a function as `start_by_torchrun` that forks the processes; a single one is this process itself."""
    errors = tmp_path_factory.mktemp("errors") / "stderr"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        parents: list[subprocess.Popen[str]] = []

        def train_forked(count: int, settings: Path, out: Path, *options: str) -> Done:
            command = ["train", str(settings), "--out", str(out), "--device", "cpu", *options]
            if count == 1:
                with contextlib.redirect_stderr(io.StringIO()) as stream:
                    return Done(command, main([*command, "--threads", "1"]), stderr=stream.getvalue())
            if not hasattr(os, "fork"):
                return start_by_torchrun(count, settings, out, *options)
            if not parents:
                pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
                starting = subprocess.Popen([sys.executable, "-c", FORKS], env=environment, **pipes)
                parents.append(stack.enter_context(starting))
            (parent,) = parents
            assert parent.stdin is not None
            assert parent.stdout is not None
            errors.write_bytes(b"")
            parent.stdin.write(f"{json.dumps([count, command, str(errors)])}\n")
            return Done(command, int(parent.stdout.readline()), stderr=errors.read_text("utf-8"))

        yield train_forked
        for parent in parents:
            assert parent.stdin is not None
            parent.stdin.close()


def losses(out: Path) -> dict[int, float]:
    """Return the mean loss of every report by step; with `report_every` = 1, of every step."""
    events = [json.loads(line) for line in read_lines(out / "metrics.jsonl")]
    return {event["step"]: event["loss"] for event in events if event["event"] == "train"}


@pytest.fixture(scope="module")
def settings_file(toy_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write settings without dropout, which would differ between processes, that report every step; return the file."""
    changes = {
        "model.dropout": 0.0,
        "model.num_heads": 2,  # wide enough for our own kernels
        "training.steps": 12,
        "training.schedule": "constant",
        "training.warmup_steps": 0,
        "training.learning_rate": 0.002,  # the greater, the faster do roundings grow
        "training.accumulate": 2,
        "training.report_every": 1,
        "training.validate_every": 6,
        "training.save_every": 6,
        "training.precision": "fp32",
    }
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in (toy_settings | changes).items()]
    path = tmp_path_factory.mktemp("settings") / "settings.toml"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def check_training(done: Done, out: Path) -> None:
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("Training ") == 1  # one process speaks
    assert (out / "model.safetensors").exists()


@pytest.fixture(scope="module")
def losses_of_one_process(
    settings_file: Path, train_together: TrainTogether, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, float]:
    """Return the losses of a run of one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    check_training(train_together(1, settings_file, out), out)
    found = losses(out)
    assert list(found) == list(range(1, 13))
    assert found[12] < found[1] - 0.1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
def test_two_processes_train_the_run_of_one(
    settings_file: Path,
    losses_of_one_process: dict[int, float],
    train_together: TrainTogether,
    tmp_path: Path,
    sharded: bool,
) -> None:
    out, start = tmp_path / "out", start_by_torchrun if sharded else train_together
    check_training(start(2, settings_file, out, *(("--set", "training.sharded=true") if sharded else ())), out)
    assert losses(out) == pytest.approx(losses_of_one_process, abs=1e-5)
    if sharded:
        files = sorted(path.name for path in (out / "checkpoints" / "step-000000012").glob("weights*"))
        assert files == [f"weights.0000{rank}-of-00002.safetensors" for rank in (0, 1)]


@pytest.mark.slow
def test_two_processes_adapt_a_model_by_lora_as_one_does(
    settings_file: Path, train_together: TrainTogether, trained: Path, tmp_path: Path
) -> None:
    text = settings_file.read_text("utf-8").replace('preset = "tiny"\n', "")
    kept = [line for line in text.split("\n") if not line.startswith(("tokenizer.", "model.d", "model.num"))]
    adapting = tmp_path / "settings.toml"
    adapting.write_text("\n".join([f'init_from = "{trained.as_posix()}"', *kept]), encoding="utf-8")
    said = {"training.lora_rank": 4, "model.dropout": 0.0, "training.translate_dev": 0, "training.steps": 3}
    train(adapting, out=tmp_path / "alone", settings=said, device="cpu", threads=1)
    options = [f"--set={name}={value}" for name, value in said.items()]
    done = train_together(2, adapting, tmp_path / "together", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    losses_of_one_process = losses(tmp_path / "alone")
    assert losses(tmp_path / "together") == pytest.approx(losses_of_one_process, abs=1e-5)
    assert len(set(losses_of_one_process.values())) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "sharded"), [(2, 1, False), (2, 1, True), (1, 2, True)])
def test_a_run_resumes_with_another_number_of_processes(
    settings_file: Path,
    losses_of_one_process: dict[int, float],
    train_together: TrainTogether,
    tmp_path: Path,
    before: int,
    after: int,
    sharded: bool,
) -> None:
    shard, broken = ("--set", "training.sharded=true") if sharded else (), tmp_path / "broken"
    first = train_together(before, settings_file, broken, "--set", "training.steps=6", *shard)
    assert first.returncode == 0, first.stderr[-3000:]
    second = train_together(after, settings_file, broken, "--resume", "--set", "training.steps=12", *shard)
    assert second.returncode == 0, second.stderr[-3000:]
    assert "Resuming after step 6." in second.stderr
    assert losses(broken) == pytest.approx(losses_of_one_process, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "batch_tokens"),  # of two rows
    [
        ("language-model", 32),
        ("masked-language-model", 40),
        ("classification", 2),
        ("tagging", 2),
        ("denoising", 40),
        ("time-series", 8),
    ],
)
def test_processes_without_a_row_do_not_change_the_run(
    kind: str, batch_tokens: int, train_together: TrainTogether, tmp_path: Path
) -> None:
    words = ["cow", "dog", "hen", "fox"]
    texts = [f"The {words[n % 4]} saw {n % 17} and {n % 13} of the {words[n // 4 % 4]}s." for n in range(240)]
    content = {
        "classification": [json.dumps({"text": text, "label": words[n % 4]}) for n, text in enumerate(texts)],
        "tagging": [line for text in texts for line in [*(f"{word} T{len(word) % 3}" for word in text.split()), ""]],
        "time-series": ["load", *map(str, [n % 7 + n % 3 for n in range(240)])],
    }.get(kind, texts)
    name = {"classification": "text.jsonl", "tagging": "text.conll", "time-series": "text.csv"}.get(kind, "text.txt")
    (tmp_path / name).write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    settings: dict[str, Any] = {
        "task.kind": kind,
        "data.source": [(tmp_path / name).as_posix()],
        "model.dropout": 0.0,
        "model.d_model": 16,
        "model.d_ff": 32,
        "model.num_heads": 2,
        "training.steps": 5,
        "training.schedule": "constant",
        "training.learning_rate": 0.002,
        "training.batch_tokens": batch_tokens,
        "training.report_every": 1,
        "training.validate_every": 100,
        "training.precision": "fp32",
        "training.translate_dev": 0,
    }
    if kind == "time-series":
        settings |= {"task.series.horizon": 4, "task.series.past": 8}
    elif kind in ("language-model", "masked-language-model"):
        settings |= {"task.context": 16}
    path = tmp_path / "settings.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()), encoding="utf-8")
    for count in (1, 3):
        check_training(train_together(count, path, tmp_path / str(count)), tmp_path / str(count))
    assert losses(tmp_path / "3") == pytest.approx(losses(tmp_path / "1"), abs=1e-5)
    assert len(set(losses(tmp_path / "1").values())) == 5


@pytest.mark.slow
def test_a_mistake_ends_all_processes_with_one_sentence(settings_file: Path, tmp_path: Path) -> None:
    done = start_by_torchrun(2, settings_file, tmp_path / "out", "--set", "data.source=['nowhere.zh']")
    assert done.returncode != 0
    assert done.stderr.count("nowhere.zh does not exist") == 1
    assert "tasks/run/run.py" not in done.stderr  # the traceback is torchrun's own
    assert "SIGKILL" not in done.stderr  # torchrun waits 30 seconds for the other process before
