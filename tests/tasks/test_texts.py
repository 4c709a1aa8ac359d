"""Test files of JSON lines with a text each, for tasks that learn from text alone."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.tasks.kinds.texts import WindowPlan, consecutive_batches, describe_frequencies, frequency_perplexity
from transduce.tasks.train import train
from transduce.text.files import read_lines

COMPUTING: dict[str, Any] = {"device": "cpu", "threads": 1}
SETTINGS: dict[str, Any] = {
    "model.d_model": 32,
    "training.batch_tokens": 256,
    "training.steps": 2,
    "training.report_every": 1,
    "training.precision": "fp32",
    "tokenizer.kind": "character",
}
OF_KIND: dict[str, dict[str, Any]] = {
    "language-model": {"task.context": 16, "model.num_decoder_layers": 1},
    "denoising": {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1},
    "masked-language-model": {"task.context": 32, "model.num_encoder_layers": 1},
}
LINES_ALONE = ("language-model", "denoising")
TEXTS = [
    f"The cat sat on mat {n}.\n  It slept {n} hours.{end}" for n in range(60) for end in ("", "\n", "\n\nIt woke.")
]


def settings_of(kind: str) -> dict[str, Any]:
    return SETTINGS | OF_KIND[kind] | {"task.kind": kind}


def write(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    content = "".join(f"{json.dumps(record)}\n" for record in records).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return write(tmp_path / "texts.jsonl.gz", ({"id": id, "text": text} for id, text in enumerate(TEXTS)))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(text.removesuffix("\n") + "\n" for text in TEXTS), "utf-8", newline="\n")
    return path


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in read_lines(out / "metrics.jsonl")]


@pytest.mark.parametrize("kind", LINES_ALONE)
def test_training_on_json_lines_equals_training_on_their_texts(
    kind: str, records: Path, lines: Path, tmp_path: Path
) -> None:
    dev = write(tmp_path / "dev.ndjson", ({"text": text} for text in TEXTS[:30]))
    for name, source in (("records", records), ("lines", lines)):
        train(out=tmp_path / name, source=source, dev_source=dev, settings=settings_of(kind), **COMPUTING)
    assert losses(tmp_path / "records") == losses(tmp_path / "lines")
    records.unlink()  # what was read of it is in the run's folder
    train(out=tmp_path / "records", settings={"training.steps": 3}, resume=True, **COMPUTING)


@pytest.mark.parametrize("kind", LINES_ALONE)
def test_preparing_json_lines_equals_preparing_their_texts(
    kind: str, records: Path, lines: Path, tmp_path: Path
) -> None:
    for name, source in (("records", records), ("lines", lines)):
        asked = ["--task", kind, "--source", str(source), "--set", "tokenizer.kind=character"]
        assert main(["prepare", *asked, "--out", str(tmp_path / f"prepared-{name}")]) == 0
        settings = settings_of(kind) | {"data.prepared": str(tmp_path / f"prepared-{name}")}
        train(out=tmp_path / name, settings=settings, **COMPUTING)
    assert losses(tmp_path / "records") == losses(tmp_path / "lines")


def test_to_a_masked_language_model_each_text_is_a_document(records: Path, tmp_path: Path) -> None:
    train(out=tmp_path / "out", source=records, settings=settings_of("masked-language-model"), **COMPUTING)
    found = (tmp_path / "out" / "sentences.txt").read_text("utf-8")
    assert found.startswith(
        "The cat sat on mat 0.\nIt slept 0 hours.\n\n" * 2 + "The cat sat on mat 0.\nIt slept 0 hours.\nIt woke.\n\n"
    )


@pytest.mark.parametrize("kind", OF_KIND)
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"text": "a"}\n\n{"fi": "b"}\n',
            r'a\.jsonl:3: the object needs the key "text" .* keys are "fi": re',
        ),
        ("a.jsonl", '{"text": "a"}\nb\n', r"a\.jsonl:2: the line is not a JSON object"),
        ("a.jsonl", '{"text": 3}\n', r'a\.jsonl:1: the object needs the key "text" with text'),
        ("a.jsonl", "", r"a\.jsonl is empty"),
        ("a.tsv", "a\tb\n", r"a\.tsv has columns, but this task learns from text only: extract one \(cut -f1 "),
    ],
)
def test_malformed_text_records_are_refused_by_name_and_line(
    kind: str, name: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "out", source=tmp_path / name, settings=settings_of(kind), **COMPUTING)
    assert not (tmp_path / "out").exists()


def test_a_suffix_counts_for_less_than_a_format_that_is_set(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text("a\tb\n" * 60, "utf-8", newline="\n")
    settings = settings_of("language-model") | {"data.format": "lines", "tokenizer.byte_fallback": True}
    train(out=tmp_path / "lines", source=path, settings=settings, **COMPUTING)
    write(tmp_path / "texts.txt", ({"text": text} for text in TEXTS))
    settings = settings_of("language-model") | {"data.format": "jsonl"}
    train(out=tmp_path / "jsonl", source=tmp_path / "texts.txt", settings=settings, **COMPUTING)
    assert (tmp_path / "jsonl" / "text-1.txt").read_text("utf-8").startswith("The cat sat on mat 0.\n  It slept")


def test_the_baseline_is_the_perplexity_of_token_frequencies() -> None:
    stream = np.array([0, 1, 0, 2] * 64, np.uint16)
    plan = WindowPlan(stream, context=4, rows=8, seed=1, pad_id=9)
    dev = consecutive_batches(stream, context=4, rows=8)
    expected = 2 ** (0.5 * 1 + 0.25 * 2 + 0.25 * 2)
    assert frequency_perplexity(plan, dev, size=4, ignored=None) == pytest.approx(expected, 0.02)
    assert frequency_perplexity(plan, dev, size=4, ignored=0) == pytest.approx(2.0, 0.02)  # of tokens 1 and 2
    assert describe_frequencies(2.0, expected) is None
    assert "its perplexity of 2.70 is near that of token frequencies alone, 2.83" in str(
        describe_frequencies(2.7, 2.83)
    )
