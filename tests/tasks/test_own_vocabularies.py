"""Test runs with a user's vocabularies: word lists, symbols, line feeds, extended base models, sampled tokens."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.model_folder.read import read_any_model_folder
from transduce.tasks.kinds.kind import Reinitialized
from transduce.tasks.run.initial_weights import build_initial_model
from transduce.tasks.run.run import RunRequest, prepare_run
from transduce.tasks.settings.reading import make_settings, put_setting
from transduce.tasks.train import train

COMPUTING: dict[str, Any] = {"device": "cpu", "threads": 1}


@pytest.fixture
def short_settings(toy_settings: dict[str, Any]) -> dict[str, Any]:
    return toy_settings | {
        "training.steps": 6,
        "training.batch_tokens": 512,
        "training.save_every": 2,
        "training.validate_every": 6,
        "training.translate_dev": 5,
        "training.keep_checkpoints": 9,
    }


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_any_model_folder(folder).model.state_dict()


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def stop_after(folder: Path, step: int) -> None:
    """Delete the checkpoints after a step, as if the run had been killed then."""
    for path in (folder / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer.kind": "word", "tokenizer.user_symbols": ["<2x>"]},
        {"training.bpe_dropout": 0.2, "tokenizer.user_symbols": ["<2x>"]},
    ],
)
def test_a_run_with_a_word_vocabulary_or_bpe_dropout_resumes_exactly(
    short_settings: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "train.zh"
    undecodable = "茶".encode()[:2] + " 茶".encode()
    source.write_bytes(Path(short_settings["data.source"][0]).read_bytes().replace("茶".encode(), undecodable, 1))
    settings = short_settings | settings | {"data.source": [str(source)]}
    train(out=tmp_path / "whole", settings=settings, **COMPUTING)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    stop_after(tmp_path / "resumed", 2)
    train(out=tmp_path / "resumed", settings=settings, resume=True, **COMPUTING)
    assert_same_weights(tmp_path / "whole", tmp_path / "resumed")
    if symbols := settings.get("tokenizer.user_symbols"):
        vocabulary = load_tokenizer(tmp_path / "resumed").source
        assert vocabulary.tokens(vocabulary.encode("我<2x>你")).count(symbols[0]) == 1
    assert open_translator(tmp_path / "resumed", **COMPUTING)("我喜欢茶。").text is not None


def test_bpe_dropout_changes_training_and_not_validation(short_settings: dict[str, Any], tmp_path: Path) -> None:
    for name, rate in (("plain", 0.0), ("dropped", 0.5)):
        steps = {"training.steps": 2, "training.validate_every": 2}
        train(out=tmp_path / name, settings=short_settings | steps | {"training.bpe_dropout": rate}, **COMPUTING)
    plain, dropped = (weights(tmp_path / name) for name in ("plain", "dropped"))
    assert any(not torch.equal(plain[name], dropped[name]) for name in plain)
    files = [(tmp_path / name / "corpus-dev" / "source.ids").read_bytes() for name in ("plain", "dropped")]
    assert files[0] == files[1]


def test_a_word_list_and_another_models_vocabulary_are_kept(
    short_settings: dict[str, Any], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["<pad>", "<eos>", "<unk>", "I", "you", "he", "like", "see", "the", "tea", "books", "fish"]
    short_settings = {name: value for name, value in short_settings.items() if name != "tokenizer.vocabulary_size"}
    (tmp_path / "words.txt").write_text("\n".join(words), "utf-8")
    train(out=tmp_path / "words", vocabulary=tmp_path / "words.txt", settings=short_settings, **COMPUTING)
    assert load_tokenizer(tmp_path / "words").source.encode("I like tea") == [3, 6, 9]
    said = " ".join(capsys.readouterr().err.split())
    assert "words.txt has 12 tokens" in said
    assert "100% of the source's tokens are bytes or unknown" in said
    train(out=tmp_path / "as", vocabulary=trained, settings=short_settings, **COMPUTING)
    assert load_tokenizer(tmp_path / "as").fingerprint == load_tokenizer(trained).fingerprint
    train(out=tmp_path / "two", vocabulary=[trained, trained], settings=short_settings, **COMPUTING)
    model = read_any_model_folder(tmp_path / "two").model
    assert not model.config.tie_source_target
    assert "own_target_weight" in model.state_dict()


# --- line feeds ---


def test_line_feeds_are_learned_and_written(toy_corpus: Path, short_settings: dict[str, Any], tmp_path: Path) -> None:
    """Two lines of the toy corpus make a text; the model learns to keep the line feed between them."""
    lines = {code: (toy_corpus / f"train.{code}").read_text("utf-8").split("\n")[:-1] for code in ("zh", "en")}
    for name, start, stop in (("train", 0, 900), ("dev", 900, 940)):
        rows = [
            {code: "\n".join(lines[code][row : row + 2]) if row % 2 else lines[code][row] for code in lines}
            for row in range(start, stop)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text, "utf-8")
    settings = {name: value for name, value in short_settings.items() if not name.startswith("data.")}
    settings |= {"tokenizer.line_feeds": True, "data.languages": ["zh", "en"], "training.steps": 150}
    settings |= {"training.validate_every": 150, "training.save_every": 75}
    train(out=tmp_path / "run", source=tmp_path / "train.jsonl", settings=settings, **COMPUTING)
    held_out = (tmp_path / "run" / "corpus" / "held_out.jsonl").read_text("utf-8")
    assert "\\n" in held_out
    tokenizer = load_tokenizer(tmp_path / "run")
    feed = tokenizer.source.id("\n")
    ids = read_ids(tmp_path / "run")
    assert tokenizer.writes_line_feeds
    assert (ids == feed).any()

    translator = open_translator(tmp_path / "run", precision="fp32", **COMPUTING)
    texts = ["我喜欢茶。\n你看见书。", "我喜欢茶。"]
    found = translator(texts)
    assert found[0].parts == 1
    assert found[0].text.count("\n") == 1
    assert "\n" not in found[1].text
    assert list(translator.stream(texts[0]))
    assert "".join(translator.stream(texts[0])) == translator(texts[0]).text

    shutil.copytree(tmp_path / "run", tmp_path / "resumed")
    stop_after(tmp_path / "resumed", 75)
    train(out=tmp_path / "resumed", resume=True, **COMPUTING)
    assert_same_weights(tmp_path / "run", tmp_path / "resumed")


def read_ids(folder: Path) -> Any:
    from transduce.data.prepared import PreparedCorpus

    corpus = PreparedCorpus.open(folder / "corpus")
    return corpus.read(0, corpus.pairs)[0].ids


# --- extension of a base model ---


def request(settings: dict[str, Any], out: Path) -> RunRequest:
    content: dict[str, Any] = {}
    for name, value in settings.items():
        put_setting(content, name, value)
    return RunRequest(settings=content, out=out, **COMPUTING)


@pytest.mark.parametrize("symbols", [["<2x>", "Elch"], ["tea"]])
def test_an_extended_model_translates_as_before(
    short_settings: dict[str, Any], trained: Path, toy_corpus: Path, symbols: list[str], tmp_path: Path
) -> None:
    settings = short_settings | {"init_from": str(trained), "tokenizer.user_symbols": symbols}
    settings = {name: value for name, value in settings.items() if name not in ("preset", "tokenizer.vocabulary_size")}
    resolved = prepare_run(request(settings, tmp_path / "run"))
    model = build_initial_model(resolved, tmp_path / "run", trained=False, reinitialized=Reinitialized())
    base = read_any_model_folder(trained)
    assert base.tokenizer is not None
    tokenizer, before = load_tokenizer(tmp_path / "run"), base.tokenizer.source
    added = tokenizer.source.size - before.size
    assert added == sum(not before.has_special_token(symbol) for symbol in symbols)
    old, new = base.model.state_dict(), model.state_dict()
    for name, tensor in old.items():
        assert torch.equal(new[name][: len(tensor)] if name == "source_weight" else new[name], tensor)
    for row, symbol in enumerate([each for each in symbols if not before.has_special_token(each)], before.size):
        ids = before.encode(symbol)
        ids = ids[1:] if before.token(ids[0]) == "▁" else ids
        assert torch.allclose(new["source_weight"][row], old["source_weight"][ids].mean(0))

    transduce.save(model, tmp_path / "extended", tokenizer=tokenizer, languages=("zh", "en"))  # type: ignore[arg-type]
    sources = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:-1]
    # A token that one token spelled before has that token's probability, which changes the beam.
    for beam_size in (1, 4) if "Elch" in symbols else (1,):
        found, expected = (
            open_translator(folder, precision="fp32", **COMPUTING)(sources, beam_size=beam_size)
            for folder in (tmp_path / "extended", trained)
        )
        assert [each.text for each in found] == [each.text for each in expected]
    source = torch.tensor([before.with_special_tokens(before.encode(sources[0]))])
    with torch.inference_mode():
        logits, expected_logits = (each.eval()(source, torch.full((1, 4), 5)) for each in (model, base.model))
    assert torch.equal(logits[..., : before.size], expected_logits)


def test_an_extended_run_trains_and_resumes(short_settings: dict[str, Any], trained: Path, tmp_path: Path) -> None:
    settings = short_settings | {
        "init_from": str(trained),
        "tokenizer.user_symbols": ["tea."],
        "tokenizer.line_feeds": True,
    }
    settings = {name: value for name, value in settings.items() if name not in ("preset", "tokenizer.vocabulary_size")}
    train(out=tmp_path / "run", settings=settings, **COMPUTING)
    size = load_tokenizer(trained).source.size
    assert load_tokenizer(tmp_path / "run").source.size == size + 2
    was, now = weights(trained)["source_weight"], weights(tmp_path / "run")["source_weight"]
    assert len(now) == len(was) + 2
    assert not torch.equal(now[: len(was)], was)
    shutil.copytree(tmp_path / "run", tmp_path / "resumed")
    stop_after(tmp_path / "resumed", 2)
    train(out=tmp_path / "resumed", settings=settings, resume=True, **COMPUTING)
    assert_same_weights(tmp_path / "run", tmp_path / "resumed")


# --- settings that do not go together ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer.vocabulary": ["a", "b", "c"]}, "names one vocabulary for both sides or one for each, but 3"),
        ({"tokenizer.user_symbols": ["a b"]}, "must differ and have no space, comma or ▁, but one is"),
        ({"training.bpe_dropout": 1.0}, r"`training.bpe_dropout` must be in \[0, 1\)"),
        ({"training.bpe_dropout": 0.1, "training.unigram_alpha": 0.1}, "set only one of them"),
        ({"training.unigram_alpha": -1.0}, r"`training.unigram_alpha` must be greater than 0"),
    ],
)
def test_vocabulary_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    content: dict[str, Any] = {}
    for name, value in settings.items():
        put_setting(content, name, value)
    with pytest.raises(TransduceError, match=message):
        make_settings(content)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer.kind": "word", "training.bpe_dropout": 0.1}, "but the vocabulary is no BPE"),
        ({"tokenizer.kind": "word", "tokenizer.nfc": True}, r"`tokenizer.nfc` is true, but a word"),
        ({"task.kind": "language-model", "training.bpe_dropout": 0.1}, "means nothing where `task.kind` is language"),
        ({"task.kind": "language-model", "tokenizer.line_feeds": True}, "means nothing where `task.kind` is language"),
        (
            {"init_from": "TRAINED", "tokenizer.vocabulary": ["x"]},
            r"`tokenizer.vocabulary` is x, but the vocabulary in",
        ),
        (
            {"init_from": "TRAINED", "tokenizer.user_symbols": ["x"], "training.lora_rank": 2},
            "which keeps the embeddings as they are",
        ),
    ],
)
def test_vocabulary_settings_that_contradict_the_run_are_refused(
    short_settings: dict[str, Any], trained: Path, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    kept = short_settings if "init_from" not in settings else {
        name: value for name, value in short_settings.items() if name not in ("preset", "tokenizer.vocabulary_size")
    }  # fmt: skip
    if "task.kind" in settings:
        kept = {name: value for name, value in kept.items() if "target" not in name and "translate" not in name}
    filled = {name: str(trained) if value == "TRAINED" else value for name, value in settings.items()}
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "run", settings=kept | filled, **COMPUTING)
    assert not (tmp_path / "run" / "settings.toml").exists()
