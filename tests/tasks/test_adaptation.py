"""Test runs from trained weights: LoRA on a trained model, and embeddings from word vectors."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.model_folder.read import read_any_model_folder
from transduce.tasks.kinds.kind import continues_training
from transduce.tasks.settings.reading import make_settings
from transduce.tasks.train import train
from transduce.training.checkpoint import load_checkpoint

WriteLines = Callable[[str, Iterable[str]], Path]
COMPUTING: dict[str, Any] = {"device": "cpu", "threads": 1}


@pytest.fixture
def swapped_corpus(toy_corpus: Path, write_lines: WriteLines) -> dict[str, Any]:
    """Return the toy corpus with the words of its English sentences in reverse order."""
    files: dict[str, Any] = {}
    for part in ("train", "dev"):
        lines = (toy_corpus / f"{part}.en").read_text("utf-8").split("\n")[:-1]
        target = write_lines(f"{part}.en", [" ".join(line.rstrip(".").split()[::-1]) + "." for line in lines])
        prefix = "" if part == "train" else "dev_"
        files |= {f"data.{prefix}source": [str(toy_corpus / f"{part}.zh")], f"data.{prefix}target": [str(target)]}
    return files


@pytest.fixture
def lora_settings(swapped_corpus: dict[str, Any], trained: Path) -> dict[str, Any]:
    return swapped_corpus | {
        "init_from": str(trained),
        "model.dropout": 0.1,
        "training.lora_rank": 4,
        "training.steps": 80,
        "training.batch_tokens": 512,
        "training.learning_rate": 0.02,
        "training.precision": "fp32",
        "training.validate_every": 40,
        "training.save_every": 20,
        "training.keep_checkpoints": 9,
        "training.translate_dev": 0,
    }


def test_a_vocabulary_that_lacks_a_script_is_reported(
    swapped_corpus: dict[str, Any],
    trained: Path,
    write_lines: WriteLines,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = swapped_corpus | {"init_from": str(trained)}
    few = {"data.source": [str(write_lines("ru.txt", [f"мы едим рыбу {number}" for number in range(1000)]))]}
    for changes, told in (({}, False), (few, True)):
        train(out=tmp_path / "run", settings=settings | changes, dry_run=True, **COMPUTING)
        said = " ".join(capsys.readouterr().err.split())
        notice = f"of the source's tokens are bytes or unknown, because the vocabulary of {trained}"
        assert (notice in said) == told
        assert "of the target's pieces" not in said


def loss_per_token(folder: Path, files: dict[str, Any]) -> float:
    """Return a model's loss on the dev set, in nats per token."""
    translator = open_translator(folder, precision="fp32", **COMPUTING)
    sides = [
        Path(files[name][0]).read_text("utf-8").split("\n")[:-1] for name in ("data.dev_source", "data.dev_target")
    ]
    scores = translator.score(*sides)
    return -sum(score.log_probability for score in scores) / sum(len(score.tokens) + 1 for score in scores)


def weights(folder: Path) -> dict[str, Tensor]:
    return read_any_model_folder(folder).model.state_dict()


def checkpoint(folder: Path, step: int) -> dict[str, dict[str, Tensor]]:
    return load_checkpoint(folder / "checkpoints" / f"step-{step:09d}").tensors


def forget_after(folder: Path, step: int) -> None:
    """Delete the checkpoints after a step, as if the run had been killed then."""
    for path in (folder / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)


# --- LoRA ---


def test_lora_adaptation_starts_from_the_trained_weights(
    lora_settings: dict[str, Any], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = loss_per_token(trained, lora_settings)
    train(out=tmp_path / "run", settings=lora_settings, **COMPUTING)
    said = capsys.readouterr().err
    assert loss_per_token(tmp_path / "run", lora_settings) < 0.5 * before

    was, now = weights(trained), weights(tmp_path / "run")
    assert was.keys() == now.keys()  # an ordinary folder
    changed = {name.split(".", 2)[-1] for name in was if not torch.equal(was[name], now[name])}
    projections = {
        f"{kind}_attention.{place}.weight" for kind in ("self", "memory") for place in ("projection", "output")
    }
    assert changed == projections | {"feed_forward.inner.weight", "feed_forward.outer.weight"}
    for name in was:
        if name.endswith("self_attention.projection.weight"):
            assert int(torch.linalg.matrix_rank(now[name] - was[name], rtol=1e-4)) <= 4

    learning = sum(tensor.numel() for tensor in checkpoint(tmp_path / "run", 80)["weights"].values())
    whole = sum(tensor.numel() for tensor in was.values())
    assert f"{learning:,} parameters are trained, {learning / whole:.2%} of the model's {whole:,}" in said
    assert f"Training {learning:,} parameters of a model of {whole:,} on" in said
    assert learning < 0.5 * whole
    assert "twice the rank (4)" in said


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resumed_run_is_the_uninterrupted_one_without_the_first_model(
    lora_settings: dict[str, Any], trained: Path, tmp_path: Path, precision: str
) -> None:
    first = tmp_path / "first"
    shutil.copytree(trained, first, ignore=shutil.ignore_patterns("checkpoints"))
    few = {"init_from": str(first), "training.steps": 8, "training.save_every": 3, "training.validate_every": 4}
    settings = lora_settings | few | {"training.precision": precision}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(out=whole, settings=settings, **COMPUTING)
    shutil.copytree(whole, stopped)
    forget_after(stopped, 3)
    shutil.rmtree(first)
    train(out=stopped, resume=True, **COMPUTING)
    expected, found = checkpoint(whole, 8), checkpoint(stopped, 8)
    assert found.keys() == expected.keys()
    for kind, tensors in expected.items():
        assert all(torch.equal(found[kind][name], tensor) for name, tensor in tensors.items()), kind
    assert (stopped / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()

    # With bfloat16, frozen parameters stay bit-identical too.
    assert torch.equal(weights(stopped)["source_weight"], weights(trained)["source_weight"])


def test_a_run_that_saved_no_step_begins_again_without_the_first_model(
    lora_settings: dict[str, Any], trained: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    shutil.copytree(trained, first, ignore=shutil.ignore_patterns("checkpoints"))
    settings = lora_settings | {"init_from": str(first), "training.steps": 3, "training.validate_every": 3}
    train(out=tmp_path / "whole", settings=settings, **COMPUTING)
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    shutil.rmtree(tmp_path / "stopped" / "checkpoints")
    (tmp_path / "stopped" / "model.safetensors").unlink()
    shutil.rmtree(first)
    train(out=tmp_path / "stopped", resume=True, **COMPUTING)
    both = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert both[0] == both[1]
    with pytest.raises(TransduceError, match=r"`training.lora_rank` was 4 when this run started, and cannot become 8"):
        train(out=tmp_path / "stopped", resume=True, settings={"training.lora_rank": 8}, **COMPUTING)
    with pytest.raises(TransduceError, match=r"`training.sharded` distributes the optimizer state"):
        train(out=tmp_path / "stopped", resume=True, settings={"training.sharded": True}, **COMPUTING)
    stored = tmp_path / "stopped" / "beginning.safetensors"
    stored.write_bytes(stored.read_bytes()[:-1])
    with pytest.raises(TransduceError, match=r"beginning.safetensors is not what the run stored"):
        train(out=tmp_path / "stopped", resume=True, **COMPUTING)
    stored.unlink()
    with pytest.raises(TransduceError, match=r"beginning.safetensors is not what the run stored"):
        train(out=tmp_path / "stopped", resume=True, **COMPUTING)


def test_a_dry_run_reports_how_much_would_learn(
    lora_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = lora_settings | {"training.lora_projections": ["attention-output"], "training.lora_alpha": 1.0}
    train(out=tmp_path / "run", settings=settings, dry_run=True, **COMPUTING)
    assert "1,536 parameters are trained" in capsys.readouterr().err  # 6 attentions × 4 × (32 + 32)
    assert not (tmp_path / "run").exists()


def test_training_from_a_base_model_uses_a_lower_learning_rate(
    lora_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del lora_settings["training.learning_rate"]
    whole = lora_settings | {"training.lora_rank": 0}
    expected = [
        (whole, "0.05 / d_model (32): training continues the weights of a base model\n"),
        (lora_settings, "0.5 / d_model (32) × √("),
    ]
    for settings, reason in expected:
        train(out=tmp_path / "run", settings=settings, dry_run=True, **COMPUTING)
        assert f"  {reason}" in capsys.readouterr().err
    begun = make_settings({"init_from": str(tmp_path)})
    assert continues_training(begun, "translation")  # a folder of another toolkit
    (tmp_path / "settings.toml").write_text('[task]\nkind = "denoising"\n', "utf-8")
    assert not continues_training(begun, "translation")
    assert continues_training(begun, "denoising")
    assert not continues_training(make_settings({}), "translation")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init_from": None}, "`training.lora_rank` is 4, which keeps a model's weights fixed, but they would"),
        (
            {"tokenizer.character_coverage": 0.99},
            "`tokenizer.character_coverage` means nothing where the vocabulary in .* is kept: leave it out",
        ),
        ({"training.lora_rank": -1}, "`training.lora_rank` must not be negative, but is -1"),
        ({"training.lora_alpha": 0.0}, "`training.lora_alpha` must be greater than 0, but is 0"),
        ({"training.lora_rank": 0, "training.lora_alpha": 4.0}, r"`training.lora_alpha` \(4\) means nothing where"),
        ({"training.lora_projections": []}, "`training.lora_projections` must name some of queries-keys-values"),
        ({"training.lora_projections": ["gates"]}, "must name some of .*, feed-forward-outer, but names gates"),
        ({"training.sharded": True}, r"but `training.lora_rank` \(4\) makes it negligible: leave one of them out"),
    ],
)
def test_settings_that_contradict_lora_are_refused(
    lora_settings: dict[str, Any], tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "run", settings=lora_settings | settings, **COMPUTING)
    assert not (tmp_path / "run").exists()


# --- word vectors ---


@pytest.fixture
def glove(trained: Path, tmp_path: Path) -> Path:
    """Write vectors of 32 numbers for every second token of the toy vocabulary."""
    vocabulary = read_any_model_folder(trained).tokenizer.target
    words = sorted({vocabulary.token(row).removeprefix("▁") for row in range(3, vocabulary.size)} - {""})[::2]
    vectors = torch.randn(len(words), 32)
    path = tmp_path / "glove.txt"
    rows = (f"{word} {' '.join(map(str, vector.tolist()))}" for word, vector in zip(words, vectors, strict=True))
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


@pytest.fixture
def vector_settings(toy_settings: dict[str, Any], glove: Path) -> dict[str, Any]:
    few = {"training.steps": 6, "training.save_every": 2, "training.validate_every": 6, "training.keep_checkpoints": 9}
    return toy_settings | few | {"word_vectors.source": str(glove), "training.translate_dev": 0}


def read_vectors(glove: Path) -> dict[str, list[float]]:
    lines = [line.split(" ") for line in glove.read_text("utf-8").split("\n")[:-1]]
    return {word: [float(number) for number in numbers] for word, *numbers in lines}


def test_frozen_word_vectors_stay_and_other_embeddings_are_trained(
    vector_settings: dict[str, Any], glove: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    settings = vector_settings | {"word_vectors.frozen": True, "word_vectors.rescale": False}
    train(out=out, settings=settings, **COMPUTING)
    said = capsys.readouterr().err
    content, known = read_any_model_folder(out), read_vectors(glove)
    vocabulary, weight = content.tokenizer.source, content.model.source_weight
    begun = load_file(out / "beginning.safetensors")["source_weight"]
    learnt = 0
    for row in range(3, vocabulary.size):
        piece = vocabulary.token(row)
        vector = known.get(piece.removeprefix("▁"))
        is_inside_words = piece.isascii() and piece.isalnum()  # ▁ is no letter
        if vector is not None and not is_inside_words:
            assert weight[row].tolist() == pytest.approx(vector)
            assert torch.equal(weight[row], begun[row])
        learnt += not torch.equal(weight[row], begun[row])
    card = json.loads((out / "beginning.json").read_text("utf-8"))["word_vectors"]["source"]
    assert learnt == vocabulary.size - 3 - card["found"] > 0
    assert card["words_in_file"] == len(known)
    assert f"glove.txt  {card['found']:,} of {card['tokens']:,} tokens" in said


def test_vectors_that_learn_go_on_without_their_file(
    vector_settings: dict[str, Any], glove: Path, tmp_path: Path
) -> None:
    train(out=tmp_path / "whole", settings=vector_settings, **COMPUTING)
    for name, step in (("stopped", 2), ("hardly-begun", 0)):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        forget_after(tmp_path / name, step)
    (tmp_path / "hardly-begun" / "model.safetensors").unlink()
    glove.unlink()
    expected = (tmp_path / "whole" / "model.safetensors").read_bytes()
    for name in ("stopped", "hardly-begun"):
        train(out=tmp_path / name, resume=True, **COMPUTING)
        assert (tmp_path / name / "model.safetensors").read_bytes() == expected
    begun = load_file(tmp_path / "whole" / "beginning.safetensors")
    assert not torch.equal(begun["source_weight"], weights(tmp_path / "whole")["source_weight"])


def test_the_model_is_as_wide_as_the_vectors_where_nothing_is_set(
    vector_settings: dict[str, Any], write_lines: WriteLines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines("vectors.txt", ["I " + "0.5 " * 30, "tea " + "0.1 " * 30])
    settings = vector_settings | {"word_vectors.source": str(path), "model.d_model": None}
    train(out=tmp_path / "run", settings=settings, dry_run=True, **COMPUTING)
    said = capsys.readouterr().err
    assert f"30  as the vectors in {path}" in said
    assert "3  divides 30, the vectors' width" in said
    assert "have one of the 2 vectors of 30 numbers" in said


def test_each_side_has_its_own_vectors(
    vector_settings: dict[str, Any], write_lines: WriteLines, tmp_path: Path
) -> None:
    chinese, english = write_lines("zh.txt", ["茶 " + "2 " * 32]), write_lines("en.txt", ["tea " + "3 " * 32])
    own = {"tokenizer.joint": False, "word_vectors.source": str(chinese), "word_vectors.target": str(english)}
    own |= {"word_vectors.frozen": True, "word_vectors.rescale": False, "tokenizer.vocabulary_size": None}
    train(out=tmp_path / "run", settings=vector_settings | own, **COMPUTING)
    content = read_any_model_folder(tmp_path / "run")
    source, target = content.tokenizer.source, content.tokenizer.target
    rows = {row for row in range(source.size) if content.model.source_weight[row].tolist() == [2.0] * 32}
    assert rows == {row for row in range(source.size) if source.token(row).removeprefix("▁") == "茶"} != set()
    rows = {row for row in range(target.size) if content.model.target_weight[row].tolist() == [3.0] * 32}
    assert rows == {row for row in range(target.size) if target.token(row).removeprefix("▁") == "tea"} != set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"word_vectors.source": None, "word_vectors.frozen": True},
            "`word_vectors` needs a file of vectors: name one",
        ),
        ({"word_vectors.source": "nowhere.txt"}, r"nowhere.txt cannot be read"),
        ({"model.d_model": 64}, r"must be as wide as the embeddings, 64 \(`model.d_model`, .*, but have 32 numbers"),
        ({"init_from": "somewhere"}, "`word_vectors` fill random embeddings, but those of the model in some"),
        ({"word_vectors.frozen": True, "training.weight_decay": 0.1}, "which `training.weight_decay` would not: leave"),
        ({"word_vectors.frozen": True, "training.sharded": True}, "which `training.sharded` would not: leave one"),
    ],
)
def test_settings_that_contradict_word_vectors_are_refused(
    vector_settings: dict[str, Any], tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "run", settings=vector_settings | settings, **COMPUTING)
    assert not (tmp_path / "run").exists()


def test_a_task_of_one_text_has_no_target_vectors(toy_corpus: Path, glove: Path, tmp_path: Path) -> None:
    settings = {
        "task.kind": "language-model",
        "data.source": [str(toy_corpus / "train.en")],
        "tokenizer.vocabulary_size": 100,
        "tokenizer.byte_fallback": False,
        "word_vectors.target": str(glove),
        "task.context": 16,
    }
    with pytest.raises(TransduceError, match=r"`task.kind` = language-model has one text and one embedding matrix"):
        train(out=tmp_path / "run", settings=settings, dry_run=True, **COMPUTING)


def test_a_run_with_only_damaged_checkpoints_does_not_resume_with_random_weights(
    lora_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = lora_settings | {"training.lora_rank": 0, "training.steps": 1}
    for folder, more in (("whole", {}), ("stored", {"training.lora_rank": 4})):
        train(out=tmp_path / folder, settings=settings | more, **COMPUTING)
        for path in (tmp_path / folder / "checkpoints").rglob("*.safetensors"):
            path.write_bytes(path.read_bytes()[:-1] + b"\0")
    going_on: dict[str, Any] = {"settings": {"training.steps": 2}, "resume": True, **COMPUTING}
    with pytest.raises(TransduceError, match=r"Every checkpoint in .*whole is damaged: start again with --init-from"):
        train(out=tmp_path / "whole", **going_on)
    with pytest.raises(TransduceError, match=r"stored holds a trained model, but no intact checkpoint"):
        train(out=tmp_path / "stored", **going_on)
    (tmp_path / "stored" / "model.safetensors").unlink()
    capsys.readouterr()
    train(out=tmp_path / "stored", **going_on)  # its initial weights are stored in the run folder
    assert f"No intact checkpoint in {tmp_path / 'stored'}: starting from step 0." in capsys.readouterr().err
