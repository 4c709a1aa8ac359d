"""Test pretraining by denoising, fine-tuning on translation, and the same with a recurrent model."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transduce.data.batches import Batch
from transduce.data.text_noise import NoiseSettings
from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.model_folder.read import read_encoder_decoder_folder
from transduce.tasks.kinds.denoising import NoiseGenerator
from transduce.tasks.train import train


@pytest.fixture(scope="module")
def small_settings(toy_settings: dict[str, Any]) -> dict[str, Any]:
    files = {name: value for name, value in toy_settings.items() if not name.startswith("data.")}
    return files | {"training.steps": 6, "training.validate_every": 6, "training.translate_dev": 4}


@pytest.fixture(scope="module")
def pretrained(toy_corpus: Path, small_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pretrained"
    settings = small_settings | {"tokenizer.text": [str(toy_corpus / "train.zh")], "training.save_every": 3}
    train(out=folder, task="denoising", source=toy_corpus / "train.en", settings=settings, device="cpu", threads=1)
    return folder


def test_denoising_pretraining_stores_its_loss_and_a_mask_token(pretrained: Path) -> None:
    score = json.loads((pretrained / "dev_score.json").read_bytes())
    assert 0.0 < score["loss"] < 6.0
    content = read_encoder_decoder_folder(pretrained)
    assert content.tokenizer.target.token(content.tokenizer.target.id("<mask>")) == "<mask>"
    # The vocabulary knows the other language too.
    assert content.tokenizer.source.unk_id not in content.tokenizer.source.encode("我喜欢苹果。")
    assert "transduce train --init-from THIS_FOLDER" in (pretrained / "README.md").read_text("utf-8")


def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(pretrained: Path, tmp_path: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000000006")
    train(out=tmp_path / "run", resume=True, device="cpu", threads=1)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (pretrained / "model.safetensors").read_bytes()


def rows(batch: Batch) -> list[list[int]]:
    return [[piece for piece in row if piece] for row in batch.source.tolist()]


def test_noise_follows_from_seed_epoch_and_number_alone(pretrained: Path) -> None:
    tokenizer = read_encoder_decoder_folder(pretrained).tokenizer
    vocabulary = tokenizer.source
    ids = np.array([[*range(10, 30), vocabulary.eos_id]] * 4)
    batch = Batch(ids, ids, np.array([5, 6, 7, 8]), ids.size, ids.size)
    noise_generator = NoiseGenerator(NoiseSettings(), tokenizer, 1)
    found = rows(noise_generator.corrupt(batch, 3))
    assert found == rows(NoiseGenerator(NoiseSettings(), tokenizer, 1).corrupt(batch, 3))
    assert found != rows(noise_generator.corrupt(batch, 4))
    assert found != rows(NoiseGenerator(NoiseSettings(), tokenizer, 2).corrupt(batch, 3))
    assert len({tuple(row) for row in found}) == 4
    part = Batch(ids[1:3], ids[1:3], np.array([6, 7]), 0, 0)
    assert rows(noise_generator.corrupt(part, 3)) == found[1:3]
    assert all(row[-1] == vocabulary.eos_id for row in found)
    corrupted = noise_generator.corrupt(batch, 3)
    assert (corrupted.target == ids).all()
    assert corrupted.source_tokens == sum(map(len, found))


@pytest.mark.parametrize("kind", ["infilling", "masking", "deletion"])
def test_special_tokens_around_a_text_are_not_noised(pretrained: Path, kind: Any) -> None:
    """Special tokens such as BART's start symbol and the languages of mBART and NLLB are not noised."""
    tokenizer = read_encoder_decoder_folder(pretrained).tokenizer
    vocabulary = tokenizer.source
    vocabulary.before, vocabulary.after = (90, 91), (vocabulary.eos_id, 92)
    ids = np.array(
        [
            vocabulary.with_special_tokens(list(range(10, 30))),
            [*vocabulary.with_special_tokens([10, 11]), *[vocabulary.pad_id] * 18],
        ]
    )
    corrupted = NoiseGenerator(NoiseSettings(kind=kind, share=0.5), tokenizer, 1).corrupt(
        Batch(ids, ids, np.arange(2), 0, 0), 0
    )
    assert (corrupted.target == ids).all()
    for row in rows(corrupted):
        assert row[:2] == [90, 91]
        assert row[-2:] == [vocabulary.eos_id, 92]
        assert not {90, 91, 92, vocabulary.eos_id} & set(row[2:-2])
    assert len(rows(corrupted)[0]) < 24 or kind == "masking"


def test_translation_training_starts_from_denoising_weights(
    pretrained: Path,
    toy_settings: dict[str, Any],
    small_settings: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {name: value for name, value in toy_settings.items() if name.startswith("data.")}
    settings = {n: v for n, v in small_settings.items() if not n.startswith(("model.", "tokenizer.", "preset"))} | {
        "training.learning_rate": 1e-12,
        "training.average_decay": 0.0,
        "model.dropout": 0.2,
    }
    folder = tmp_path / "run"
    train(out=folder, init_from=pretrained, settings=files | settings, device="cpu", threads=1)
    assert f"as in {pretrained}" in capsys.readouterr().err
    ours, theirs = (read_encoder_decoder_folder(each) for each in (folder, pretrained))
    assert ours.tokenizer.fingerprint == theirs.tokenizer.fingerprint
    assert ours.model.config.dropout == 0.2
    for name, weight in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], weight, atol=1e-6, rtol=1e-6)
    # After the first save, the run can be resumed without the base model's folder.
    stored = (folder / "settings.toml").read_text("utf-8")
    (folder / "settings.toml").write_text(stored.replace(str(pretrained), "/nowhere"), "utf-8")
    again = train(out=folder, resume=True, steps=8, device="cpu", threads=1)
    assert again is not None
    assert again.step == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer.vocabulary_size": 500}, r"`tokenizer\.vocabulary_size` is 500, but the model in .* has"),
        ({"model.d_model": 64}, r"`model\.d_model` is 64, but the model in .* has 32, and its weights are kept"),
        ({"preset": "big"}, r"`preset` is big, which is 1024 wide, but the model in .* has a width of 32, and its"),
        (
            {"tokenizer.kind": "unigram"},
            r"`tokenizer\.kind` is unigram, but the vocabulary in .* has bpe: leave it out",
        ),
        ({"tokenizer.text": ["more.txt"]}, r"`tokenizer\.text` is for a vocabulary that is learned, but that of .* is"),
        ({"init_from": "nowhere"}, "nowhere does not exist: name the folder of a model"),
        ({"task.kind": "language-model", "data.target": [], "data.dev_target": []}, r"The model in .* is transformer"),
    ],
)
def test_settings_that_contradict_the_base_model_are_refused(
    pretrained: Path, toy_settings: dict[str, Any], tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    files = {name: value for name, value in toy_settings.items() if name.startswith("data.")}
    given = {"init_from": str(pretrained), "training.steps": 2} | files | settings
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "m", settings=given, device="cpu", threads=1)
    assert not (tmp_path / "m").exists()


def test_a_target_is_refused_where_text_alone_is_learnt_from(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"A denoising model learns from text only, but `data\.target` names"):
        train(out=tmp_path / "m", task="denoising", settings=toy_settings, device="cpu", threads=1)


def test_a_recurrent_model_trains_and_translates(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    settings = {n: v for n, v in toy_settings.items() if n != "model.num_encoder_layers"}
    settings |= {"model.kind": "recurrent", "model.recurrent_cell": "gru", "training.steps": 40}
    settings |= {"training.validate_every": 20, "model.dropout": 0.0}
    train(out=tmp_path / "m", settings=settings, device="cpu", threads=1)
    events = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text("utf-8").split("\n")[:-1]]
    losses = [event["loss"] for event in events if event["event"] == "validation"]
    assert losses[1] < losses[0] < 5.0
    translator = open_translator(tmp_path / "m", precision="fp32", device="cpu", threads=1)
    assert translator.model.config.kind == "recurrent"
    assert translator("我喜欢苹果。", beam_size=3, n_best=2).alternatives[1].tokens
    assert "A recurrent model of 2+2 layers × 32 (GRU)" in (tmp_path / "m" / "README.md").read_text("utf-8")
