"""Test `--monolingual`: a reverse model translates text back, and a model is trained on all of it, in one command."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from transduce.data.prepared import PreparedCorpus
from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.inference.translator import Translator
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.tasks import synthetic_data
from transduce.tasks.preparing import PrepareRequest, prepare_corpus_folder
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.synthetic_data import REVERSE_FOLDER
from transduce.tasks.train import train
from transduce.text.files import read_lines
from transduce.text.vocabulary import BACK_TRANSLATED

module: Any = synthetic_data  # of which tests replace what it imports
writing: Any = synthetic_data
MADE = Path(REVERSE_FOLDER) / "back-translated-1.zh"


@pytest.fixture
def request_(toy_corpus: Path, tmp_path: Path) -> dict[str, Any]:
    """Return a request with 300 pairs of the toy corpus and 600 lines of its target side, two without words."""
    zh, en = (list(read_lines(toy_corpus / f"train.{language}")) for language in ("zh", "en"))
    texts = {"pairs.zh": zh[:300], "pairs.en": en[:300], "alone.en": [*en[300:898], "", "..."]}
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return {
        "source": tmp_path / "pairs.zh",
        "target": tmp_path / "pairs.en",
        "monolingual": tmp_path / "alone.en",
        "out": tmp_path / "run",
        "preset": "tiny",
        "steps": 3,
        "device": "cpu",
        "threads": 1,
        "settings": {"model.d_model": 32, "training.seed": 4},
    }


@pytest.fixture
def short_reverse_translations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the reverse model generate short texts without quality warnings after its few steps."""
    original_load = module.open_translator

    def load_writing(*arguments: Any, **options: Any) -> Translator:
        translator: Translator = original_load(*arguments, **options)
        translator.search = msgspec.structs.replace(translator.search, min_length=3, max_length=6)
        return translator

    monkeypatch.setattr(module, "open_translator", load_writing)
    monkeypatch.setattr(writing, "estimate_quality", lambda _, translations: [()] * len(translations))


@pytest.mark.usefixtures("short_reverse_translations")
def test_one_command_trains_on_pairs_and_back_translations(request_: dict[str, Any]) -> None:
    result = train(**request_)
    assert result is not None
    assert result.step == 3
    out: Path = request_["out"]
    other, own = (
        open_translator(out / REVERSE_FOLDER, device="cpu", threads=1),
        open_translator(out, device="cpu", threads=1),
    )
    assert (other.source_language, other.target_language) == ("en", "zh")
    assert (own.source_language, own.target_language) == ("zh", "en")
    assert len(list(read_lines(out / MADE))) == 600
    data = read_stored(out / "settings.toml").data
    assert data.source == (str(request_["source"]), str(out / MADE))
    assert data.target == (str(request_["target"]), str(request_["monolingual"]))
    assert data.back_translated == (str(out / MADE),)
    assert "sentence pairs, back-translated ones among them" in (out / "README.md").read_text("utf-8")
    reverse = read_stored(out / REVERSE_FOLDER / "settings.toml").training
    assert (reverse.seed, reverse.steps) == (4, 2)
    tokenizer = load_tokenizer(out)
    corpus = PreparedCorpus.open(out / "corpus", tokenizer)
    sources, _ = corpus.read(0, corpus.pairs)
    tagged = (sources.ids[sources.offsets[:-1]] == tokenizer.source.id(BACK_TRANSLATED)).sum()
    written = [bool(line.strip()) for line in read_lines(out / MADE)]
    assert 0 < tagged <= sum(written)


@pytest.mark.usefixtures("short_reverse_translations")
def test_a_run_stopped_while_back_translating_resumes_there(
    request_: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(**request_)
    out: Path = request_["out"]
    shutil.move(out, tmp_path / "whole")
    translate, calls = Translator.translate, []

    def stopping(self: Translator, texts: Any, *args: Any, **options: Any) -> Any:
        if len(texts) in (512, 88):  # portions of the text, not a validation's sentences
            calls.append(len(texts))
            if len(calls) == 2:
                raise KeyboardInterrupt
        return translate(self, texts, *args, **options)

    monkeypatch.setattr(Translator, "translate", stopping)
    with pytest.raises(KeyboardInterrupt):
        train(**request_)
    assert calls == [512, 88]
    assert not (out / "settings.toml").exists()
    with pytest.raises(TransduceError, match="holds a run already: continue with --resume"):
        train(**request_)
    without = {name: value for name, value in request_.items() if name != "monolingual"}
    with pytest.raises(TransduceError, match=r"stopped before its own training: pass `--monolingual` as before"):
        train(**without, resume=True)
    train(**request_, resume=True)
    assert calls == [512, 88, 88]
    for name in (MADE, Path("model.safetensors"), Path("corpus") / "source.ids"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.usefixtures("short_reverse_translations")
def test_back_translations_of_another_text_are_refused_on_resume(
    request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equally many lines in another order would be trained on as translations of each other."""
    with monkeypatch.context() as context:
        context.setattr(module, "train_run", stopping_before(request_["out"], module.train_run))
        with pytest.raises(KeyboardInterrupt):
            train(**request_)
    text: Path = request_["monolingual"]
    before = text.read_bytes()
    text.write_bytes(b"".join(reversed(before.splitlines(keepends=True))))
    with pytest.raises(TransduceError, match=r"-1\.zh was translated from another text than .*alone\.en"):
        train(**request_, resume=True)
    text.write_bytes(before)
    result = train(**request_, resume=True)
    assert result is not None
    assert result.reason == "finished"


def stopping_before(out: Path, train_run: Any) -> Any:
    """Return a function that trains the reverse direction, and stops before the run in this folder."""

    def stop_or_train(request: Any) -> Any:
        if request.out == out:
            raise KeyboardInterrupt
        return train_run(request)

    return stop_or_train


@pytest.mark.usefixtures("short_reverse_translations")
def test_a_run_resumes_with_the_same_arguments_or_none(request_: dict[str, Any]) -> None:
    train(**request_)
    made = (request_["out"] / MADE).read_bytes()
    result = train(**(request_ | {"steps": 4}), resume=True)
    assert result is not None
    assert result.step == 4
    result = train(out=request_["out"], steps=5, resume=True, device="cpu", threads=1)
    assert result is not None
    assert result.step == 5
    assert (request_["out"] / MADE).read_bytes() == made


def test_flagged_translations_are_left_out(request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def review(translator: Translator, translations: Any) -> Any:
        assert translator.target_language == "zh"
        return [("doubt",) if "tea" in each.source else () for each in translations]

    original = module.train_run
    runs = []

    def train_run(request: Any) -> Any:
        runs.append(request.out.name)
        return original(request)

    monkeypatch.setattr(writing, "estimate_quality", review)
    monkeypatch.setattr(module, "train_run", train_run)
    request_["settings"] |= {"training.minutes": 0.05}
    del request_["steps"]
    train(**request_)
    out: Path = request_["out"]
    assert runs == [REVERSE_FOLDER, "run"]
    lines = list(zip(read_lines(request_["monolingual"]), read_lines(out / MADE), strict=True))
    assert any("tea" in text for text, _ in lines)
    assert all(not made for text, made in lines if "tea" in text)
    minutes = [read_stored(folder / "settings.toml").training.minutes for folder in (out / REVERSE_FOLDER, out)]
    assert minutes == pytest.approx([0.05 / 3, 0.1 / 3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "language-model", "target": None}, "`data.monolingual` means nothing where `task.kind` is language"),
        ({"target": None}, "takes a file for each side: set `data.source` and `data.target`"),
        ({"monolingual": "nowhere.en"}, "nowhere.en does not exist: `data.monolingual` names text"),
        ({"settings": {"model.d_model": 33}}, "`model.d_model` must be even"),
        ({"preset": "huge"}, "`preset` must be one of"),
    ],
)
def test_contradictory_monolingual_settings_are_refused_before_training(
    changes: dict[str, Any], message: str, request_: dict[str, Any]
) -> None:
    with pytest.raises(TransduceError, match=message):
        train(**(request_ | changes))
    assert not request_["out"].exists()


@pytest.mark.usefixtures("second_of_two_processes")
def test_several_processes_are_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(TransduceError, match=r"is for one process: .* --back-translated"):
        train(**request_)
    assert not request_["out"].exists()


def test_prepare_and_dry_run_resume_refuse_monolingual_text(request_: dict[str, Any], tmp_path: Path) -> None:
    data = {name: [str(request_[name])] for name in ("source", "target", "monolingual")}
    request = PrepareRequest(settings={"data": data}, out=tmp_path / "ahead")
    with pytest.raises(TransduceError, match=r"`data.monolingual` is for `transduce train` .*: leave it out"):
        prepare_corpus_folder(request)
    with pytest.raises(TransduceError, match="`--dry-run` shows what a new run would do: leave `--resume` out"):
        train(**request_, dry_run=True, resume=True)
    assert not request_["out"].exists()
    assert not (tmp_path / "ahead").exists()


@pytest.mark.usefixtures("short_reverse_translations")
def test_a_run_resumes_after_its_reverse_model_was_deleted(request_: dict[str, Any]) -> None:
    train(**request_)
    shutil.rmtree(request_["out"] / REVERSE_FOLDER)
    result = train(**(request_ | {"steps": 4}), resume=True)
    assert result is not None
    assert result.step == 4


def test_the_folder_of_another_run_is_refused(request_: dict[str, Any], trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "other")
    with pytest.raises(TransduceError, match="holds a run already"):
        train(**(request_ | {"out": tmp_path / "other"}))
    assert not (tmp_path / "other" / REVERSE_FOLDER).exists()


def test_a_dry_run_leaves_nothing(request_: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert train(**request_, dry_run=True) is None
    assert not request_["out"].exists()
    told = capsys.readouterr().err
    assert "First, a reverse model is trained" in told
    assert "data.languages" in told
    assert "translated back" in told


def test_a_dev_set_in_one_file_is_not_that_of_the_reverse_model(
    request_: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Any] = []
    monkeypatch.setattr(module, "train_run", requests.append)
    pairs = tmp_path / "dev.tsv"
    pairs.write_text("".join(f"我看见{n}\tI see {n}\n" for n in range(20)), "utf-8")
    assert train(**request_, dev_source=pairs) is None
    (reverse,) = requests
    assert "dev_source" not in reverse.settings["data"]
    assert "dev_target" not in reverse.settings["data"]
    assert train(**request_, dev_source=request_["source"], dev_target=request_["target"], resume=True) is None
    assert requests[1].settings["data"]["dev_source"] == [str(request_["target"])]
