"""Test `--distill-from`: a model translates the sources, and a new model is trained on the result, in one command."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.inference.translator import Translator
from transduce.model_folder.write import save
from transduce.tasks import synthetic_data
from transduce.tasks.preparing import PrepareRequest, prepare_corpus_folder
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.synthetic_data import OLD_TEACHER_FOLDER, TEACHER_FOLDER
from transduce.tasks.train import train
from transduce.text.files import read_lines

writing: Any = synthetic_data  # of which tests replace what it imports
MADE = Path(TEACHER_FOLDER) / "teacher-translation-1.en"


@pytest.fixture
def request_(toy_corpus: Path, trained: Path, tmp_path: Path) -> dict[str, Any]:
    """Return a distillation request with 600 sources of the toy corpus, one of which has no words."""
    lines = [*list(read_lines(toy_corpus / "train.zh"))[:599], "..."]
    (tmp_path / "text.zh").write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return {
        "source": tmp_path / "text.zh",
        "distill_from": trained,
        "out": tmp_path / "run",
        "preset": "tiny",
        "steps": 3,
        "device": "cpu",
        "threads": 1,
        "settings": {"model.d_model": 32},
    }


@pytest.fixture(autouse=True)
def without_quality_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable quality warnings, which would drop the translations of a teacher with so few steps."""
    monkeypatch.setattr(writing, "estimate_quality", lambda _, translations: [()] * len(translations))


def test_the_student_learns_what_the_teacher_writes(request_: dict[str, Any], trained: Path) -> None:
    result = train(**request_)
    assert result is not None
    assert result.step == 3
    out: Path = request_["out"]
    student = open_translator(out, device="cpu", threads=1)
    assert (student.source_language, student.target_language) == ("zh", "en")
    assert student.model.config.d_model == 32
    data = read_stored(out / "settings.toml").data
    assert (data.source, data.target) == ((str(request_["source"]),), (str(out / MADE),))
    teacher = open_translator(trained, device="cpu", threads=1)
    sources, written = list(read_lines(request_["source"])), list(read_lines(out / MADE))
    assert len(written) == len(sources) == 600
    assert written[:20] == [each.text for each in teacher(sources[:20])]


def test_several_teachers_translate_as_an_ensemble(request_: dict[str, Any], trained: Path, tmp_path: Path) -> None:
    other, first = tmp_path / "other", open_translator(trained, precision="fp32", device="cpu", threads=1)
    changed = copy.deepcopy(first.model)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.5)
    save(changed, other, tokenizer=first.tokenizer, languages=("zh", "en"))
    train(**(request_ | {"distill_from": [trained, other]}))
    both = open_translator([trained, other], device="cpu", threads=1)
    sources, written = list(read_lines(request_["source"])), list(read_lines(request_["out"] / MADE))
    assert written[:20] == [each.text for each in both(sources[:20])]
    assert written[:20] != [each.text for each in open_translator(trained, device="cpu", threads=1)(sources[:20])]


def test_translations_with_quality_warnings_are_left_out(
    request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second one, say."""
    monkeypatch.setattr(
        writing, "estimate_quality", lambda _, translations: [(), ("doubt",)] * (len(translations) // 2)
    )
    train(**request_)
    assert not any(list(read_lines(request_["out"] / MADE))[1::2])


def test_a_run_stopped_while_the_teacher_translates_resumes_there(
    request_: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(**request_)
    out: Path = request_["out"]
    shutil.move(out, tmp_path / "whole")
    review, calls = writing.estimate_quality, []

    def stopping(translator: Translator, translations: Any) -> Any:
        calls.append(len(translations))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return review(translator, translations)

    monkeypatch.setattr(writing, "estimate_quality", stopping)
    with pytest.raises(KeyboardInterrupt):
        train(**request_)
    assert calls == [512, 88]
    with pytest.raises(TransduceError, match="holds a run already, which stopped before its own training: continue"):
        train(**request_)
    without = {name: value for name, value in request_.items() if name != "distill_from"}
    with pytest.raises(TransduceError, match="stopped before its own training: pass `--distill-from` as before"):
        train(**without, resume=True)
    train(**request_, resume=True)
    assert calls == [512, 88, 88]
    for name in (MADE, Path("model.safetensors"), Path("corpus") / "source.ids"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_translations_of_another_teacher_are_refused(
    request_: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out: Path = request_["out"]
    with monkeypatch.context() as context:
        context.setattr(writing, "train_run", stopping)
        with pytest.raises(KeyboardInterrupt):
            # Pairs of Python objects are written to the folder, which stays for the next start.
            train(**request_, dev_pairs=[("我", "I")] * 20)
    made = (out / MADE).read_bytes()
    other, first = tmp_path / "other", open_translator(request_["distill_from"], device="cpu", threads=1)
    with torch.no_grad():
        for parameter in first.model.parameters():
            parameter.mul_(1.5)
    save(first.model, other, tokenizer=first.tokenizer, languages=("zh", "en"))
    with pytest.raises(
        TransduceError, match=r"teacher-translation-1\.en was translated by another model than the one that is named"
    ):
        train(**(request_ | {"distill_from": other}), resume=True)
    assert (out / MADE).read_bytes() == made
    old = (out / TEACHER_FOLDER).rename(out / OLD_TEACHER_FOLDER)  # as version 0.1 named the files
    for path in list(old.iterdir()):
        path.rename(old / path.name.replace("teacher-translation-", "taught-"))
    assert train(**request_, resume=True) is not None
    assert (old / "taught-1.en").read_bytes() == made
    assert not (out / TEACHER_FOLDER).exists()


def stopping(_: Any) -> Any:
    """Stop a run before its own training."""
    raise KeyboardInterrupt


def test_a_run_resumes_with_the_same_teacher_or_none_named(request_: dict[str, Any]) -> None:
    teacher = request_["out"].with_name("teacher")
    shutil.copytree(request_["distill_from"], teacher)
    request_["distill_from"] = teacher
    train(**request_)
    shutil.rmtree(teacher)  # it has written all
    result = train(**(request_ | {"steps": 4}), resume=True)
    assert result is not None
    assert result.step == 4
    result = train(out=request_["out"], steps=5, resume=True, device="cpu", threads=1)
    assert result is not None
    assert result.step == 5
    with pytest.raises(TransduceError, match="holds a run already"):
        train(**request_)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "language-model"}, "`data.distill_from` means nothing where `task.kind` is language"),
        ({"source": "pairs.tsv"}, "translates files of sentences, a sentence a line: name them by `data.source`"),
        ({"source": None}, "translates files of sentences, a sentence a line: name them by `data.source`"),
        ({"source": "nowhere.zh"}, r"nowhere.zh does not exist: `data.source` names the text that the teacher"),
        ({"target": "text.en"}, r"writes the targets, in place of `data.target`: leave one of them out"),
        ({"distill_from": "nowhere"}, "nowhere"),
        ({"monolingual": "alone.en"}, "`data.monolingual` and `data.distill_from` each need a run"),
        ({"settings": {"model.d_model": 33}}, "`model.d_model` must be even"),
        (
            {"dry_run": True},
            (
                "`--dry-run` describes a run on a given text, but the teacher has not translated the text yet: "
                "leave `--dry-run` out, or translate first"
            ),
        ),
    ],
)
def test_contradictory_distillation_settings_are_refused_before_translating(
    changes: dict[str, Any], message: str, request_: dict[str, Any]
) -> None:
    with pytest.raises(TransduceError, match=message):
        train(**(request_ | changes))
    assert not request_["out"].exists()


@pytest.mark.usefixtures("second_of_two_processes")
def test_several_processes_are_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(TransduceError, match="is for one process: translate first"):
        train(**request_)
    assert not request_["out"].exists()


def test_preparing_a_corpus_with_a_teacher_is_refused(request_: dict[str, Any], tmp_path: Path) -> None:
    data = {name: [str(request_[name])] for name in ("source", "distill_from")}
    request = PrepareRequest(settings={"data": data}, out=tmp_path / "ahead")
    with pytest.raises(TransduceError, match=r"`data.distill_from` is for `transduce train` .*: leave it out"):
        prepare_corpus_folder(request)
    assert not (tmp_path / "ahead").exists()
