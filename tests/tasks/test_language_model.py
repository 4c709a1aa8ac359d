"""Test language models, from training on a text file to generating with the model folder."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import transduce
from transduce.data.prepared import PreparedCorpus
from transduce.errors import TransduceError
from transduce.inference.generator import Generator, load_generator
from transduce.inference.load import open_translator as load_translator
from transduce.inference.translation import decode_with_line_feeds
from transduce.model_folder.read import read_decoder_folder, read_model_folder
from transduce.search.settings import SearchSettings
from transduce.tasks.kinds.texts import read_stream
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.train import train
from transduce.training.checkpoint import load_newest

WriteLines = Callable[[str, Iterable[str]], Path]
LINES = ["the cat sat on the mat", "", "  a dog  ran", "the dog sat", "a cat ran on the mat"]
SETTINGS: dict[str, Any] = {
    "task.kind": "language-model",
    "task.context": 16,
    "tokenizer.kind": "character",
    "model.num_decoder_layers": 1,
    "model.d_model": 32,
    "model.dropout": 0.0,
    "training.batch_tokens": 256,
    "training.steps": 60,
    "training.learning_rate": 0.01,
    "training.precision": "fp32",
    "training.report_every": 10,
    "training.validate_every": 30,
    "training.save_every": 20,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.en"
    path.write_text("".join(f"{line}\n" for line in LINES * 30), "utf-8", newline="\n")
    return path


@pytest.fixture(scope="module")
def model(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "model"
    train(out=folder, source=text, settings=SETTINGS, device="cpu", threads=1)
    return folder


@pytest.fixture(scope="module")
def generator(model: Path) -> Generator:
    return load_generator(model, precision="fp32", device="cpu", threads=1)


def test_validations_report_perplexity_and_bits_per_character(model: Path) -> None:
    events = [json.loads(line) for line in (model / "metrics.jsonl").read_text("utf-8").split("\n")[:-1]]
    first, last = (event for event in events if event["event"] == "validation")
    assert last["loss"] < first["loss"] < math.log(20)
    assert last["perplexity"] == pytest.approx(math.exp(last["loss"]))
    # Every character is a token.
    assert last["scores"]["bits_per_character"] == pytest.approx(last["loss"] / math.log(2))
    kept = json.loads((model / "dev_score.json").read_bytes())
    assert kept["loss"] == pytest.approx(last["loss"], rel=1e-4)


def test_an_unknown_token_counts_as_one_character(text: Path, write_lines: WriteLines, tmp_path: Path) -> None:
    dev = write_lines("dev.en", ["the ~ sat #n the mat"] * 8)
    settings = SETTINGS | {"training.steps": 2}
    train(out=tmp_path / "run", source=text, dev_source=dev, settings=settings, device="cpu", threads=1)
    score = json.loads((tmp_path / "run" / "dev_score.json").read_bytes())
    assert score["scores"]["bits_per_character"] == pytest.approx(score["loss"] / math.log(2))


def test_the_folder_is_a_generators_for_transduce_load_and_refused_where_a_translator_is_needed(model: Path) -> None:
    assert isinstance(transduce.load(model, device="cpu", threads=1), Generator)
    with pytest.raises(TransduceError, match=r"A datastore is for translation, .* for `language-model`: leave it"):
        transduce.load(model, datastore="some.examples")
    for read in (load_translator, read_model_folder):
        message = r"is of the kind `decoder`, but .* is needed here: `transduce generate`"
        with pytest.raises(TransduceError, match=message):
            read(model)
    assert 'transduce generate THIS_FOLDER "the beginning"' in (model / "README.md").read_text("utf-8")


def test_the_default_architecture_is_that_of_gpt2(model: Path) -> None:
    config = read_decoder_folder(model).model.config
    assert (config.positions, config.max_positions, config.activation) == ("learned", 16, "gelu-tanh")
    assert (config.d_ff, config.norm_order, config.scale_embeddings, config.tie_output) == (128, "pre", False, True)
    assert config.start_id == config.eos_id


def test_the_token_stream_decodes_to_the_exact_text(model: Path, generator: Generator, text: Path) -> None:
    stream = read_stream(PreparedCorpus.open(model / "corpus"))
    assert decode_with_line_feeds(stream.tolist(), generator.vocabulary) == text.read_text("utf-8")


def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(model: Path, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(out=folder, source=text, settings=SETTINGS | {"training.steps": 60}, device="cpu", threads=1, dry_run=True)
    assert not folder.exists()
    shutil.copytree(model, folder)
    shutil.rmtree(folder / "checkpoints" / "step-000000060")
    train(out=folder, resume=True, device="cpu", threads=1)
    assert (folder / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    ours, theirs = (load_newest(each / "checkpoints")[0] for each in (folder, model))
    assert ours is not None
    assert theirs is not None
    assert ours.state.step == theirs.state.step == 60
    assert read_stored(folder / "settings.toml").task.context == 16


def test_a_run_with_bpe_and_a_dev_text_reports_scores_per_character(
    text: Path, write_lines: WriteLines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = write_lines("dev.en", LINES * 3)
    few = {"training.steps": 2, "training.validate_every": 2, "tokenizer.kind": "bpe"}
    settings = {name: value for name, value in (SETTINGS | few).items() if name != "task.context"}
    train(
        out=tmp_path / "run",
        source=text,
        dev_source=dev,
        settings=settings | {"tokenizer.byte_fallback": False, "task.context": 8},
        device="cpu",
        threads=1,
    )
    assert re.search(r"^[\d,]+ lines read, [\d,]+ kept$", capsys.readouterr().err, re.MULTILINE)
    score = json.loads((tmp_path / "run" / "dev_score.json").read_bytes())
    assert score["scores"]["bits_per_character"] < score["loss"] / math.log(2)
    found = load_generator(tmp_path / "run", precision="fp32", device="cpu", threads=1)
    assert found.score("the cat sat on the mat").characters == 22


CODE = ["def f(x):", "    y = [a  for a in x]", "    if y:", "        return y  ", "", "    return None"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_indentation_is_learnt_and_written(kind: str, write_lines: WriteLines, tmp_path: Path) -> None:
    source = write_lines("code.py.txt", CODE * 60)
    settings = {name: value for name, value in SETTINGS.items() if name != "tokenizer.byte_fallback"}
    settings |= {"tokenizer.kind": kind, "task.context": 64, "training.steps": 120}
    train(out=tmp_path / "run", source=source, settings=settings, device="cpu", threads=1)
    stream = read_stream(PreparedCorpus.open(tmp_path / "run" / "corpus"))
    generator = load_generator(tmp_path / "run", precision="fp32", device="cpu", threads=1)
    assert decode_with_line_feeds(stream.tolist(), generator.vocabulary) == source.read_text("utf-8")
    greedy = SearchSettings(beam_size=1)
    written = generator("def f(x):\n", search=greedy, max_length=200).text
    assert any(re.match(r" {4}\w", line) for line in written.split("\n"))
    streamed = "".join(generator.stream("def f(x):\n", search=msgspec.structs.replace(greedy, max_length=200)))
    assert "def f(x):\n" + streamed == written


def test_the_context_defaults_to_that_of_the_base_model(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"task.kind": "language-model", "training.steps": 1, "training.precision": "fp32"}
    train(out=tmp_path / "on", source=text, settings=settings | {"init_from": str(model)}, device="cpu", threads=1)
    assert re.search(rf"task\.context +16  as in {re.escape(str(model))}\n", capsys.readouterr().err)
    assert read_stored(tmp_path / "on" / "settings.toml").task.context == 16
    assert load_generator(tmp_path / "on", device="cpu", threads=1).context == 16
    train(out=tmp_path / "on", settings={"training.steps": 2}, resume=True, device="cpu", threads=1)
    longer = settings | {"init_from": str(model), "task.context": 17}
    with pytest.raises(TransduceError, match=r"`task\.context` is 17, but the model has 16 positions"):
        train(out=tmp_path / "longer", source=text, settings=longer, device="cpu", threads=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data.source": []}, "A language model learns from text: name it by `data.source`"),
        ({"data.target": ["b.en"]}, r"learns from text only, but `data\.target` names b\.en: leave it out"),
        ({"task.noise.share": 0.2}, r"`task\.noise` means nothing where `task\.kind` is language-model"),
        ({"model.kind": "recurrent"}, r"`model\.kind` is recurrent, but `task\.kind` = language-model takes decoder"),
        ({"training.best_by": "bleu"}, r"`training\.best_by` is bleu, but .* is measured by loss"),
        ({"task.context": 4000}, r"more tokens than `task\.context` \(4,000\), but has "),
        (
            {"data.filters.max_tokens": 9},
            r"`data\.filters\.max_tokens` means nothing where .* is language-model: leave",
        ),
        ({"data.format": "tsv"}, r"learns from text only, but `data\.format` is tsv, for pairs"),
        ({"model.num_encoder_layers": 2}, r"`model\.num_encoder_layers` means nothing where .* is language-model"),
        ({"model.max_positions": 8}, r"`task\.context` is 16, but the model has 8 positions"),
    ],
)
def test_settings_that_language_models_cannot_use_are_refused(
    text: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "m", settings=SETTINGS | {"data.source": [str(text)]} | settings, device="cpu", threads=1)


def begin(text: Path, out: Path, **changed: Any) -> None:
    few = {"training.steps": 2, "training.validate_every": 2}
    train(out=out, source=text, settings=SETTINGS | few | changed, device="cpu", threads=1)


def test_a_run_that_fails_before_its_first_step_can_be_begun_again_in_its_folder(text: Path, tmp_path: Path) -> None:
    """A too short text is detected only after the corpus was read; the folder does not contain a run then."""
    new, there = tmp_path / "new", tmp_path / "there"
    there.mkdir()
    (there / "notes.txt").write_text("mine", "utf-8")
    for folder in (new, there):
        with pytest.raises(TransduceError, match=r"more tokens than `task\.context` \(4,000\)"):
            begin(text, folder, **{"task.context": 4000})
    assert not new.exists()
    for folder in (new, there):
        begin(text, folder)
        assert load_generator(folder, device="cpu", threads=1).model.config.max_positions == 16
    assert (there / "notes.txt").read_text("utf-8") == "mine"


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RuntimeError("a fault of ours"), TransduceError("No room: make some.")], ids=repr
)
def test_interruptions_and_internal_errors_leave_a_run_that_can_be_resumed(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: Any) -> None:
        raise error from (OSError("full") if isinstance(error, TransduceError) else None)

    with monkeypatch.context() as patch:
        patch.setattr("transduce.tasks.kinds.language_model.WindowPlan.largest_batches", fail)
        with pytest.raises(type(error)):
            begin(text, tmp_path / "m")
    result = train(out=tmp_path / "m", resume=True, device="cpu", threads=1)
    assert result is not None
    assert result.step == 2


def test_an_error_after_the_first_step_keeps_the_run_folder(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise TransduceError("The loss rises: lower the rate.")

    monkeypatch.setattr("transduce.training.loop.Trainer._stop_if_diverged", fail)
    with pytest.raises(TransduceError, match="The loss rises"):
        begin(text, tmp_path / "m")
    assert read_stored(tmp_path / "m" / "settings.toml").task.context == 16
