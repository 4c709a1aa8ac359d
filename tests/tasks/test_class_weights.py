"""Test weights of classes, the best model by macro F1, and the confusion table of a classifier."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import transduce
from transduce.commands.main import main
from transduce.data.batches import LabeledBatch
from transduce.errors import TransduceError
from transduce.evaluation.label_scores import score_labels
from transduce.inference.classifier import Classifier
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model_folder.write import to_toml
from transduce.tasks.kinds.classification import ClassificationObjective
from transduce.tasks.kinds.encoders import as_encoder
from transduce.tasks.settings.reading import make_settings, put_setting

COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
SETTINGS: dict[str, Any] = {
    "model.num_encoder_layers": 1,
    "model.d_model": 32,
    "model.d_ff": 64,
    "model.num_heads": 2,
    "model.dropout": 0.0,
    "tokenizer.vocabulary_size": 300,
    "training.validate_every": 20,
    "training.best_by": "macro_f1",
}


def write_texts(folder: Path, name: str, count: int) -> tuple[str, str]:
    """Write texts of which a tenth ask something, and their labels."""
    rows = [("is it", "a.question") if number % 10 == 0 else ("it is", "no question") for number in range(count)]
    texts = "".join(f"{words} {number} times\n" for number, (words, _) in enumerate(rows))
    (folder / f"{name}.text").write_text(texts, "utf-8")
    (folder / f"{name}.label").write_text("".join(f"{label}\n" for _, label in rows), "utf-8")
    return str(folder / f"{name}.text"), str(folder / f"{name}.label")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    (source, target), (dev_source, dev_target) = write_texts(folder, "train", 300), write_texts(folder, "dev", 40)
    transduce.train(
        task="classification",
        source=source,
        target=target,
        dev_source=dev_source,
        dev_target=dev_target,
        out=folder / "run",
        steps=60,
        threads=1,
        precision="fp32",
        settings=SETTINGS | {"task.class_weights": {"a.question": 5}},
    )
    return folder


def test_the_loss_of_a_text_has_the_weight_of_its_class() -> None:
    config = ModelConfig(
        kind="encoder",
        source_vocabulary_size=20,
        target_vocabulary_size=20,
        num_encoder_layers=1,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_labels=2,
        pooler=True,
        dropout=0.0,
    )
    torch.manual_seed(1)
    objective = ClassificationObjective(as_encoder(build_model(config)), label_smoothing=0.1)
    ids, labels = np.array([[5, 6], [7, 8], [9, 3]]), np.array([[0], [1], [1]])
    weights = np.array([2.0, 1.0, 0.0], np.float32)
    weighted = objective.loss(LabeledBatch(ids, labels, np.arange(3), 6, 3, weights=weights))
    rows = [0, 0, 1]
    repeated = objective.loss(LabeledBatch(ids[rows], labels[rows], np.arange(3), 6, 3))
    torch.testing.assert_close(weighted.total, repeated.total)
    assert weighted.divisor == repeated.divisor == 3


def test_a_run_stores_class_weights_and_scores_every_label(trained: Path) -> None:
    events = map(json.loads, (trained / "run" / "metrics.jsonl").read_text("utf-8").splitlines())
    validations = [event for event in events if event["event"] == "validation"]
    assert all(0.0 <= event["scores"]["macro_f1"] <= event["scores"]["accuracy"] for event in validations)
    assert '[task.class_weights]\n"a.question" = 5.0\n' in (trained / "run" / "settings.toml").read_text("utf-8")
    classifier = transduce.load(trained / "run", task="classification")
    texts, labels = ((trained / f"dev.{end}").read_text("utf-8").splitlines() for end in ("text", "label"))
    report = transduce.evaluate(classifier, texts, labels)
    assert [each.label for each in report.labels] == ["a.question", "no question"]
    assert sum(map(sum, report.confusion)) == 40
    assert sum(report.confusion[0]) == report.labels[0].texts == 4


def test_evaluate_prints_a_confusion_table(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--source", str(trained / "dev.text"), "--reference", str(trained / "dev.label")]
    assert main(["evaluate", str(trained / "run"), *files, *COMPUTING]) == 0
    shown = capsys.readouterr().out
    assert "macro F1" in shown.splitlines()[0]
    assert "right label (rows) and predicted label (columns)" in shown
    for unused in (["--lowercase"], ["--beam-size", "2"], ["--length-penalty", "0"], ["--target-language", "de"]):
        assert main(["evaluate", str(trained / "run"), *files, *unused, *COMPUTING]) == 2
        assert f"`{unused[0]}` is for translations, but" in capsys.readouterr().err


def test_balanced_weights_give_every_class_the_same_share(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = str(trained / "train.text"), str(trained / "train.label")
    arguments = ["train", "--task", "classification", "--source", source, "--target", target, "--dry-run"]
    balanced = ["--set", "task.class_weights=balanced", "--out", str(trained / "other")]
    assert main([*arguments, *balanced, "--set", "training.batch_tokens=24"]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "training.batch_size 24 set by you; this task counts texts, not tokens" in shown
    rare, common = (
        float(shown.split(f"{label} ")[1].split(",")[0].split()[0]) for label in ("a.question", "no question")
    )
    assert rare / common == pytest.approx(9, rel=0.2)


def test_weights_of_many_classes_are_shown_as_a_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = [f"a rather long label with the number {number % 9 + 1}" for number in range(180)]
    source, target = tmp_path / "train.text", tmp_path / "train.label"
    source.write_text("".join(f"the text {number % 40} is here\n" for number in range(180)), "utf-8")
    target.write_text("".join(f"{label}\n" for label in labels), "utf-8")
    command = ["train", "--task", "classification", "--source", str(source), "--target", str(target), "--dry-run"]
    assert main([*command, "--set", "task.class_weights=balanced", "--out", str(tmp_path / "m"), *COMPUTING]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  ")]
    (weights,) = (line for line in lines if "task.class_weights" in line)
    assert re.search(r"  [\d.]+ to [\d.]+  the loss of each class", weights)
    reasons = {line.index(text) for line in lines for text in ("preset ", "the loss of each class") if text in line}
    assert max(reasons) < 80


def test_scores_of_labels_by_hand() -> None:
    report = score_labels(["a", "a", "b", "a", "d"], ["a", "a", "b", "c", "a"])
    assert report.confusion == ((2, 0, 0, 1), (0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0))
    precision, recall = 100 * 2 / 3, 100 * 2 / 3
    assert (report.labels[0].precision, report.labels[0].recall) == pytest.approx((precision, recall))
    assert math.isclose(report.macro_f1, sum(each.f1 for each in report.labels) / 4)
    assert report.table().splitlines()[1].split() == ["a", "3", "66.67", "66.67", "66.67"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"kind": "classification", "class_weights": {"a": 0}}, 'above 0 .* that of "a" is 0'),
        ({"kind": "classification", "class_weights": "even"}, "`task.class_weights` must be"),
        ({"kind": "classification", "class_weights": {"a": "b"}}, "`task.class_weights"),
    ],
)
def test_other_weights_of_classes_are_refused(task: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        make_settings({"task": task})


def test_a_label_that_no_text_has_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r'names the label "answer", but the labels are a\.question, no question'):
        transduce.train(
            task="classification",
            source=trained / "train.text",
            target=trained / "train.label",
            out=tmp_path / "m",
            settings=SETTINGS | {"task.class_weights": {"answer": 2.0}},
        )


def test_labels_may_have_dots_and_spaces_in_settings() -> None:
    content: dict[str, Any] = {}
    put_setting(content, "task.class_weights", {"a.b": 2, "c d": 0.5})
    settings = make_settings(content)
    assert settings.task.class_weights == {"a.b": 2.0, "c d": 0.5}
    assert '"a.b" = 2.0' in to_toml(settings)


def test_evaluating_a_classifier_refuses_options_of_translation(trained: Path) -> None:
    classifier = transduce.load(trained / "run", task="classification")
    assert isinstance(classifier, Classifier)
    with pytest.raises(TransduceError, match="are for translations, but the model is a classifier"):
        transduce.evaluate(classifier, ["a"], ["b"], lowercase=True)  # type: ignore[call-overload]
