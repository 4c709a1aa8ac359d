"""Test runs on several corpora of one direction: text of earlier runs, tags, changing shares; and noise in text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transduce
from transduce.commands.main import main
from transduce.data.batches import Batch
from transduce.data.text_noise import NoisyPlan, TextNoiseSettings, noise_pair
from transduce.errors import TransduceError
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.model_folder.read import SETTINGS_FILE
from transduce.tasks.run.run import RunRequest
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.settings.reading import make_settings
from transduce.tasks.train import with_runs
from transduce.text.corpus import Pair
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

WORDS = ("sun", "moon", "star", "rain", "wind", "snow", "tree", "leaf", "bird", "fish")
SETTINGS: dict[str, Any] = {
    "preset": "tiny",
    "model.d_model": 48,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.dropout": 0.0,
    "training.batch_tokens": 512,
    "training.validate_every": 2,
    "training.schedule": "constant",
    "training.warmup_steps": 2,
    "training.weight_decay": 0.01,
    "training.average_decay": 0.5,
    "training.learning_rate": 0.003,
    "tokenizer.vocabulary_size": 320,
    "data.filters.drop_identical": False,
}


def write(folder: Path, name: str, count: int, *, reverse: bool = False, first: int = 0) -> tuple[str, str]:
    """Write sentences of three words and their translations, in capitals or reversed."""
    numbers = [number * 387 % 1_000 for number in range(first, first + count)]
    sources = [" ".join(WORDS[number // base % 10] for base in (100, 10, 1)) for number in numbers]
    targets = [" ".join(source.split()[::-1]) if reverse else source.upper() for source in sources]
    paths = folder / f"{name}.en", folder / f"{name}.xx"
    for path, lines in zip(paths, (sources, targets), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(paths[0]), str(paths[1])


def losses(out: Path) -> list[float]:
    events = map(json.loads, (out / "metrics.jsonl").read_text("utf-8").splitlines())
    return [event["loss"] for event in events if event["event"] == "validation"]


def train(out: Path, **options: Any) -> list[float]:
    settings = SETTINGS | options.pop("settings", {})
    transduce.train(out=out, threads=1, precision="fp32", settings=settings, **options)
    return losses(out)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    folder = tmp_path_factory.mktemp("text")
    return {
        "old": write(folder, "old", 300),
        "new": write(folder, "new", 200, reverse=True, first=300),
        "dev": write(folder, "dev", 40, reverse=True, first=900),
    }


def test_an_earlier_run_is_mixed_into_new_text(text: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    train(tmp_path / "old", source=text["old"][0], target=text["old"][1], languages=("en", "xx"), steps=2)
    options: dict[str, Any] = {
        "source": text["new"][0],
        "target": text["new"][1],
        "dev_source": text["dev"][0],
        "dev_target": text["dev"][1],
        "languages": ("en", "xx"),
        "init_from": tmp_path / "old",
        "mix": {str(tmp_path / "old"): 0.3},
        "settings": {name: value for name, value in SETTINGS.items() if name[:5] == "train"},
    }

    def run(out: Path, steps: int, **more: Any) -> list[float]:
        transduce.train(out=out, steps=steps, threads=1, precision="fp32", **(options | more))
        return losses(out)

    whole = run(tmp_path / "whole", 4)
    data = read_stored(tmp_path / "whole" / SETTINGS_FILE).data
    assert [corpus.share for corpus in data.corpora] == [None, 0.3]
    assert data.source == (text["new"][0], text["old"][0])
    assert not data.directions
    run(tmp_path / "parts", 2)
    transduce.train(out=tmp_path / "parts", steps=4, resume=True, threads=1, precision="fp32")
    assert losses(tmp_path / "parts") == whole
    without = run(tmp_path / "without", 4, mix=None)
    assert without != whole


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({"nowhere": 0.3}, "nowhere holds no run of `transduce train`"),
        ({"nowhere": 1.5}, "a share above 0 and below 1, such as models/old:0.3, but was given nowhere:1.5"),
    ],
)
def test_mixing_with_unknown_runs_or_shares_out_of_range_is_refused(
    text: dict[str, tuple[str, str]], mix: dict[str, float], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match=message):
        transduce.train(source=text["new"][0], target=text["new"][1], mix=mix, out=tmp_path / "m")


def old_run(folder: Path, source: str, target: str, digest: str | None = None) -> Path:
    """Write what `--mix` reads of a run that stored no absolute paths."""
    folder.mkdir()
    (folder / SETTINGS_FILE).write_text(f'[data]\nsource = ["{source}"]\ntarget = ["{target}"]\n', "utf-8")
    if digest is not None:
        state = {"path": source, "size": 1, "modified_at": 1, "sha256": digest}
        (folder / "text_files.json").write_text(json.dumps([state]), "utf-8")
    return folder


def test_mix_names_the_option_and_the_remedy_where_text_is_missing(
    text: dict[str, tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = old_run(tmp_path / "old", "gone.en", "gone.xx")
    new = ["--source", text["new"][0], "--target", text["new"][1], "--out", str(tmp_path / "m")]
    assert main(["train", *new, "--mix", f"{old}:0.3"]) == 2
    said = capsys.readouterr().err
    assert f"The run in {old} was trained on gone.en, which does not exist (the current folder is " in said
    assert "by `--corpus NEW_SOURCE NEW_TARGET --corpus OLD_SOURCE OLD_TARGET share=SHARE` instead" in said
    assert main(["train", *new, "--mix", str(old)]) == 2
    assert "`--mix` takes the folder of a run and a share" in capsys.readouterr().err
    assert main(["train", "--out", str(tmp_path / "m"), "--mix", f"{old}:0.3"]) == 2
    assert "`--mix` adds text of earlier runs to new text" in capsys.readouterr().err
    with pytest.raises(TransduceError, match=r"by `source` and `target` in its table, in place of `run`\."):
        transduce.train(corpora=[{"source": [text["new"][0]], "target": [text["new"][1]]}, {"run": str(old)}], out="m")


def test_a_table_takes_the_text_of_an_earlier_run(text: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    old = old_run(tmp_path / "old", *text["old"])
    tables = [{"source": [text["new"][0]], "target": [text["new"][1]]}, {"run": str(old), "share": 0.5}]
    request = with_runs(RunRequest(settings={"data": {"corpora": tables}}, out=tmp_path / "m"))
    data = make_settings(request.settings).data
    assert (data.source, data.target) == tuple(zip(text["new"], text["old"], strict=True))
    assert [corpus.share for corpus in data.corpora] == [None, 0.5]


def test_mix_refuses_text_that_the_run_did_not_read(text: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    (source, target), new = text["old"], text["new"]
    old = old_run(tmp_path / "old", source, target, digest="0" * 64)
    with pytest.raises(TransduceError, match=r"but the text in .* is another one now: name all text by `--corpus"):
        transduce.train(source=new[0], target=new[1], mix={str(old): 0.3}, out=tmp_path / "m")


def test_a_source_tag_selects_the_translation_of_its_domain(
    text: dict[str, tuple[str, str]], tmp_path: Path, capsys: Any
) -> None:
    """One source has two translations, which only the tag tells apart."""
    arguments = ["--corpus", *text["old"], "--corpus", *text["new"], "tag=reversed", "share=0.5"]
    settings = SETTINGS | {
        "training.validate_every": 150,
        "training.schedule": "linear",
        "training.learning_rate": 0.005,
    }
    more = [each for name, value in settings.items() for each in ("--set", f"{name}={str(value).lower()}")]
    computing = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
    out = tmp_path / "m"
    assert main(["train", *arguments, *more, *computing, "--steps", "300", "--out", str(out)]) == 0
    assert "new.en" not in (out / "settings.toml").read_text("utf-8").split("[data]")[0]
    translator = transduce.load(out, task="translation", precision="fp32")
    tagged = transduce.load(out, task="translation", tag="reversed", precision="fp32")
    sources = ["sun moon star", "bird tree rain", "wind snow fish"]
    assert sum(one.text == source.upper() for one, source in zip(translator(sources), sources, strict=True)) >= 2
    backwards = [" ".join(source.split()[::-1]) for source in sources]
    assert sum(one.text == right for one, right in zip(tagged(sources), backwards, strict=True)) >= 2
    with pytest.raises(TransduceError, match="trained with the tags reversed, but not with news"):
        translator.for_tag("news")
    reports = json.loads((out / "dev_score.json").read_text("utf-8"))
    assert list(reports) == ["en → xx", "en → xx, reversed"]
    capsys.readouterr()
    (tmp_path / "in.txt").write_text("sun moon star\n", "utf-8")
    assert main(["translate", str(out), str(tmp_path / "in.txt"), "--tag", "reversed", *computing]) == 0
    assert capsys.readouterr().out == tagged("sun moon star").text + "\n"


# --- noise ---


def noised(kind: str, source: str, target: str, number: float = 0.0) -> tuple[str, str]:
    return noise_pair(source, target, TextNoiseSettings(**{kind: 1.0}), lambda: number)


def test_each_kind_of_text_noise_equals_hand_made_examples() -> None:
    assert noised("uppercase", "a dog.", "ein hund.") == ("A DOG.", "EIN HUND.")
    assert noised("uppercase", "一只狗。", "a dog.") == ("一只狗。", "a dog.")
    assert noised("lowercase", "The Dog.", "Der Hund.") == ("the dog.", "Der Hund.")
    assert noised("missing_punctuation", "A dog!", "Ein Hund!") == ("A dog", "Ein Hund")
    assert noised("missing_punctuation", "A dog", "Ein Hund.") == ("A dog", "Ein Hund.")
    assert noised("typos", "green dog", "x") == ("geren dog", "x")
    assert noised("typos", "(green!) 2000 B2B", "x") == ("(geren!) 2000 B2B", "x")


def test_noise_depends_on_the_pair_and_the_epoch_alone() -> None:
    lines = [Pair("The green dog runs.", "Der grüne Hund rennt.", 1), Pair("A Bird sings!", "Ein Vogel singt!", 2)] * 40
    tokenizer = Tokenizer.train(
        lambda: lines, TokenizerSettings(vocabulary_size=330, user_symbols=(">>de<<", "<placeholder-1>")), adjust=True
    )
    vocabulary = tokenizer.for_target("de").source
    rows = [
        vocabulary.with_special_tokens(vocabulary.encode(text))
        for text in ("The green dog runs.", "<placeholder-1> sings!")
    ]
    targets = [
        tokenizer.target.with_special_tokens(tokenizer.target.encode(text)) for text in ("Der Hund.", "Ein Vogel!")
    ]

    def padded(ids: list[list[int]]) -> Any:
        width = max(map(len, ids))
        return np.array([[*row, *[vocabulary.pad_id] * (width - len(row))] for row in ids])

    class One:
        def __len__(self) -> int:
            return 1

        def batch(self, epoch: int, position: int) -> Batch:  # noqa: ARG002
            return Batch(padded(rows), padded(targets), np.array([4, 9]), sum(map(len, rows)), sum(map(len, targets)))

    plan = NoisyPlan(One(), TextNoiseSettings(uppercase=1.0), (vocabulary, tokenizer.target), seed=1)
    batch = plan.batch(0, 0)
    # The token of the language stays, and so does a pair with a placeholder.
    assert batch.source[:, 0].tolist() == [tokenizer.source.id(">>de<<")] * 2
    assert [vocabulary.decode(row[1:]) for row in batch.source.tolist()] == [
        "THE GREEN DOG RUNS.",
        "<placeholder-1> sings!",
    ]
    assert [vocabulary.decode(row) for row in batch.target.tolist()] == ["DER HUND.", "Ein Vogel!"]
    assert batch.source_tokens == int((batch.source != vocabulary.pad_id).sum())
    half = NoisyPlan(One(), TextNoiseSettings(typos=1.0), (vocabulary, tokenizer.target), seed=1)
    epochs = [half.batch(epoch, 0).source for epoch in range(40)]
    assert all(np.array_equal(half.batch(epoch, 0).source, found) for epoch, found in enumerate(epochs))
    assert len({found.tobytes() for found in epochs}) > 1


def test_noise_trains_and_resumes_exactly(text: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "source": text["new"][0],
        "target": text["new"][1],
        "dev_source": text["dev"][0],
        "dev_target": text["dev"][1],
        "settings": {"data.noise.typos": 0.5, "data.noise.uppercase": 0.2},
    }
    whole = train(tmp_path / "whole", steps=4, **options)
    train(tmp_path / "parts", steps=2, **options)
    # The vocabulary has tokens for capitals, which are in no line of the text.
    assert "S" in load_tokenizer(tmp_path / "whole").source.tokens(range(320))
    transduce.train(out=tmp_path / "parts", steps=4, resume=True, threads=1, precision="fp32")
    assert losses(tmp_path / "parts") == whole
    assert whole != train(tmp_path / "without", steps=4, **(options | {"settings": {}}))
