"""Test `transduce serve` with a real model: the same translations as offline, and invalid options."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from transduce.commands.main import build_parser, main
from transduce.commands.serve import load_models, serving_settings
from transduce.errors import TransduceError
from transduce.inference.datastore import build_datastore
from transduce.inference.load import open_translator
from transduce.inference.translator import Translator
from transduce.serving.models import ServedModel
from transduce.serving.server import open_socket
from transduce.serving.settings import ServingSettings

SOURCES = Path(__file__).resolve().parents[2] / "src"


def dev_lines(toy_corpus: Path) -> list[str]:
    return (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:-1]


def test_answers_equal_the_offline_translations(serve: Any, translator: Translator, toy_corpus: Path) -> None:
    lines = [*dev_lines(toy_corpus)[:40], "。", "茶", "我喜欢苹果。" * 120]
    search = translator.search
    offline = [found.text for found in translator.translate(lines, search)]
    model = ServedModel(translator, languages=("zh", "en"))
    with serve(model, gather_milliseconds=3.0) as live, ThreadPoolExecutor(16) as clients:
        replies = list(clients.map(lambda line: live.translate(line, source="zh"), lines))
        assert [reply.json["translatedText"] for reply in replies] == offline
        together = live.translate(lines, source="zh").json["translatedText"]
        assert together == offline
        assert live.service.metrics.value("transduce_batch_sentences_bucket", le="1.0") < len(lines)


def test_alternatives_and_streams_end_with_the_same_translation(
    serve: Any, translator: Translator, toy_corpus: Path
) -> None:
    line = dev_lines(toy_corpus)[0]
    best = translator.translate([line], translator.search)[0].text
    with serve(ServedModel(translator, languages=("zh", "en"))) as live:
        found = live.translate(line, source="zh", alternatives=3).json
        assert found["translatedText"] == best
        assert len(set(found["alternatives"]) - {best}) == len(found["alternatives"]) <= 3
        events = live.translate(line, source="zh", stream=True).body.decode().split("\n\n")[:-1]
    assert json.loads(events[-1].partition("data: ")[2])["translatedText"] == best
    certain = [json.loads(event.partition("data: ")[2])["text"] for event in events[:-1]]
    assert certain
    assert all(best.startswith(text.rstrip()) for text in certain)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM that a process can take")
def test_the_command_serves_until_it_is_stopped(trained: Path, translator: Translator, toy_corpus: Path) -> None:
    line = dev_lines(toy_corpus)[0]
    command = [sys.executable, "-m", "transduce", "serve", f"zh:en={trained}", "--port", "0", "--precision", "fp32"]
    with subprocess.Popen(
        [*command, "--threads", "1", "--device", "cpu"],
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": str(SOURCES), "PYTHONUTF8": "1"},
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith("Serving zh → en on http://127.0.0.1:")
        url = said.split()[5]
        body = json.dumps({"q": line, "source": "zh", "target": "en"}).encode()
        request = urllib.request.Request(f"{url}/translate", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert json.loads(reply.read())["translatedText"] == translator.translate([line], translator.search)[0].text
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == ""


def test_command_line_options_become_serving_settings(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n", "utf-8")
    arguments = ["model", "--port", "7000", "--api-keys", str(keys), "--max-running", "3", "--queue-seconds", "1.5"]
    options = build_parser("serve").parse([*arguments, "--trusted-proxies", "10.0.0.1"])
    assert serving_settings(options) == ServingSettings(
        port=7000, api_keys=("secret",), max_running=3, queue_seconds=1.5, trusted_proxies=("10.0.0.1",)
    )
    assert serving_settings(build_parser("serve").parse(["model"])) == ServingSettings()


def test_by_default_only_this_machine_can_ask_and_other_machines_are_counted() -> None:
    assert ServingSettings().host == "127.0.0.1"
    assert ServingSettings().client_rate == 0
    assert ServingSettings(host="0.0.0.0").client_rate == 300
    assert ServingSettings(host="localhost").client_rate == 0
    assert ServingSettings(host="0.0.0.0", requests_per_minute=0).client_rate == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"port": 70_000}, r"`port` must be between 0 and 65535, but is 70000\."),
        ({"max_running": 0}, r"`max_running` must be greater than 0, but is 0\."),
        ({"workers": 100_000}, r"`workers` must be at most 256, but is 100,000\."),
        ({"max_waiting": -1}, r"`max_waiting` must not be negative, but is -1\."),
        ({"deadline_seconds": float("nan")}, r"`deadline_seconds` must be greater than 0, but is nan\."),
        ({"requests_per_minute": -1}, r"`requests_per_minute` must not be negative, but is -1\."),
        ({"gather_milliseconds": -1}, r"`gather_milliseconds` must not be negative, but is -1\."),
        ({"api_keys": ("a", " ")}, r"`api_keys` must not hold an empty key"),
    ],
)
def test_a_setting_out_of_its_range_is_reported(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TransduceError, match=sentence):
        ServingSettings(**settings)


def test_a_server_with_a_datastore_answers_as_offline(
    serve: Any, trained: Path, translator: Translator, toy_corpus: Path, tmp_path: Path
) -> None:
    sources, targets = ((toy_corpus / f"train.{side}").read_text("utf-8").split("\n")[:-1] for side in ("zh", "en"))
    memory = build_datastore(translator, sources, [target.replace("tea", "beer") for target in targets])
    memory.write(tmp_path / "beer")
    by_examples = open_translator(trained, precision="fp32", threads=1, datastore=tmp_path / "beer")
    lines = [line for line in dev_lines(toy_corpus) if "茶" in line]
    offline = [found.text for found in by_examples.translate(lines, by_examples.search)]
    with serve(ServedModel(by_examples, languages=("zh", "en"))) as live:
        assert live.translate(lines, source="zh").json["translatedText"] == offline
    assert any("beer" in text for text in offline)


def test_examples_of_several_models_or_of_strict_results_are_refused(
    capsys: pytest.CaptureFixture[str], trained: Path
) -> None:
    said = refused(capsys, f"zh:en={trained}", f"en:zh={trained}", "--datastore", "some.examples")
    assert "--datastore belongs to one model, but 2 are served" in said
    assert "--batch-invariant cannot be combined with --datastore" in refused(
        capsys, str(trained), "--batch-invariant", "--datastore", "some.examples"
    )


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", *arguments]) == 2
    return capsys.readouterr().err


def test_a_port_that_is_taken_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(capsys, "model", "--port", str(port))
    assert said.startswith(f"transduce: Port {port} of 127.0.0.1 cannot be used (")
    assert said.endswith("choose another with --port.\n")


def test_a_host_that_is_elsewhere_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`--host` must be an address of" in refused(capsys, "m", "--port", "0", "--host", "no such host")
    said = refused(capsys, "m", "--port", "0", "--host", "192.0.2.1")
    assert "`--host` must be an address of this machine, but `192.0.2.1` is not (" in said


def test_a_host_that_is_no_name_is_reported() -> None:
    with pytest.raises(TransduceError, match=r"`host` must be an address of this machine, but `foo\.\.bar` is not"):
        open_socket("foo..bar", 0)


def test_a_folder_without_a_model_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "A model folder holds a config.json" in refused(capsys, str(tmp_path), "--port", "0")


def test_a_glossary_of_no_served_model_is_reported(
    capsys: pytest.CaptureFixture[str], trained: Path, tmp_path: Path
) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("poisson\tfish\n", encoding="utf-8")
    said = refused(capsys, f"zh:en={trained}", "--port", "0", "--threads", "1", "--glossary", f"fr:en={path}")
    assert (
        "A glossary must belong to a served model, but none translates fr → en: set the languages of one that is"
        in said
    )


def test_a_glossary_belongs_to_a_model_whose_languages_are_spelt_otherwise(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("鱼\tfish\n", encoding="utf-8")
    options = build_parser("serve").parse([f"zh:en={trained}", "--glossary", f"zh-CN:EN={path}", "--threads", "1"])
    ((model,), ()) = load_models(options)
    assert model.glossary is not None


def test_a_model_without_languages_is_reported(translator: Translator) -> None:
    nameless = Translator(translator.model, translator.tokenizer)
    with pytest.raises(TransduceError, match=r"write them before the folder, as in zh:en=models/mine"):
        ServedModel(nameless)


def test_missing_packages_are_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert refused(capsys, "model") == (
        "transduce: `transduce serve` needs the package uvicorn, which is not installed: "
        "pip install 'transduce[serve]'.\n"
    )
