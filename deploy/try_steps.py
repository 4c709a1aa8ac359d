"""Run the steps of `deploy/Dockerfile` in an empty folder, where no container engine is at hand.

    python deploy/try_steps.py MODEL --installed

Absolute paths of the image become paths below the folder. The steps are executed in order, the server is started as the
image would start it, its health check must succeed, it must translate, load its models again on SIGHUP and end on
SIGTERM. With `--installed`, packages that the running Python has already are used instead of downloaded. Creating a
user is left out.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
_PATHS = ("/opt/transduce", "/build", "/models", "/data")
_SECONDS = 120.0


class Step(NamedTuple):
    """An instruction of a Dockerfile."""

    name: str
    """Such as `RUN`."""
    text: str
    """What follows the name."""


def read_steps(path: Path) -> list[Step]:
    """Return the instructions of a Dockerfile, without comments; lines that end with a backslash are joined."""
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    lines = (line.strip() for line in text.split("\n"))
    return [Step(*line.split(None, 1)) for line in lines if line and not line.startswith("#")]


class Trial:
    """An empty folder in which the steps of an image are executed."""

    def __init__(self, root: Path, *, installed: bool) -> None:
        """Create a trial; `installed` uses the packages of the running Python instead of downloading them."""
        self.root = root
        self.installed = installed
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.environment["HOME"] = str(root)
        self.entry: list[str] = []
        self.health: list[str] = []

    def place(self, text: str) -> str:
        """Return a text with the image's absolute paths placed below the folder."""
        for path in _PATHS:
            text = re.sub(rf"(?<![\w/.]){path}(?=[/\s\"'\[]|$)", f"{self.root}{path}", text)
        return text

    def execute(self, step: Step) -> None:
        """Execute one step of the image.

        Raises:
            SystemExit: the step fails.
        """
        print(f"{step.name} {step.text}", flush=True)
        if step.name == "RUN":
            self._run(step.text)
        elif step.name == "COPY" and not step.text.startswith("--from="):
            *sources, target = shlex.split(self.place(step.text))
            for source in sources:
                self._copy(REPOSITORY / source, Path(target))
        elif step.name == "ENV":
            values = dict(entry.split("=", 1) for entry in shlex.split(step.text))
            self.environment |= {name: value for name, value in values.items() if name != "HOME"}
        elif step.name == "ENTRYPOINT":
            self.entry = json.loads(self.place(step.text))
        elif step.name == "HEALTHCHECK":
            self.health = json.loads(self.place(step.text.partition("CMD ")[2]))

    def _copy(self, source: Path, target: Path) -> None:
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    def _run(self, command: str) -> None:
        if "useradd" in command:
            (self.root / "data").mkdir()
            return
        command = self.place(command)
        if self.installed and " -m venv " in f" {command}":
            command = f"{shlex.quote(sys.executable)} -m venv {command.rpartition(' ')[2]} && {self._link_packages()}"
        elif self.installed and "pip install" in command:
            if command.endswith(" torch"):
                return
            command = command.replace("pip install", "pip install --no-deps --no-build-isolation")
        if subprocess.run(command, shell=True, env=self.environment, check=False).returncode:
            raise SystemExit(f"This step failed: {command}")

    def _link_packages(self) -> str:
        """Return a command that lets the new environment see the packages of the running Python."""
        paths = "\n".join(path for path in sys.path if path.endswith("site-packages"))
        target = (
            f"{self.root}/opt/transduce/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/outer.pth"
        )
        return f"printf '%s\\n' {shlex.quote(paths)} > {shlex.quote(target)}"


def serve_and_check(trial: Trial, model: str) -> None:
    """Start the server as the image does, and check its health, a translation, reloading and the end.

    Raises:
        SystemExit: a check fails.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*trial.entry, model]
    command[command.index("--port") + 1] = str(port)
    with subprocess.Popen(
        command, cwd=trial.root, env=trial.environment, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            _expect(
                line.startswith("Serving "),
                f"the server starts: {line}{'' if line.startswith('Serving') else server.stderr.read()}",
            )
            health = [argument.replace(":5000/", f":{port}/") for argument in trial.health]
            _expect(subprocess.run(health, env=trial.environment, check=False).returncode == 0, "it is healthy")
            languages = json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/languages", timeout=30).read())
            source = next(each for each in languages if len(each["targets"]) > 1)
            target = next(code for code in source["targets"] if code != source["code"])
            body = json.dumps({"q": "1 2", "source": source["code"], "target": target}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/translate", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                _expect("translatedText" in json.loads(answer.read()), "it translates")
            server.send_signal(signal.SIGHUP)
            _expect("loaded again" in server.stderr.readline(), "it loads its models again")
            started_at = time.monotonic()
            server.send_signal(signal.SIGTERM)
            _expect(server.wait(_SECONDS) == 0, f"it ended after {time.monotonic() - started_at:.1f} s")
        finally:
            server.kill()


def _expect(holds: bool, what: str) -> None:
    print(f"{'ok' if holds else 'FAILED'}: {what}", flush=True)
    if not holds:
        raise SystemExit(1)


def main() -> int:
    """Run the steps and the checks, and return 0 if all succeed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", help="a model folder, or zh:en=FOLDER")
    options.add_argument("--installed", action="store_true", help="use installed packages instead of downloading them")
    args = options.parse_args()
    languages, equals, folder = args.model.rpartition("=")
    with tempfile.TemporaryDirectory(prefix="transduce-image-") as root:
        trial = Trial(Path(root), installed=args.installed)
        for step in read_steps(REPOSITORY / "deploy" / "Dockerfile"):
            trial.execute(step)
        serve_and_check(trial, f"{languages}{equals}{Path(folder).resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
