"""Test training on back-translated pairs together with human translations."""

from pathlib import Path
from typing import Any

import pytest

from transduce.commands.main import main
from transduce.data.prepared import PreparedCorpus
from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.settings.reading import make_settings
from transduce.tasks.train import train
from transduce.text.files import read_lines
from transduce.text.vocabulary import BACK_TRANSLATED

SHORT: dict[str, Any] = {"device": "cpu", "threads": 1, "preset": "tiny", "steps": 2}


@pytest.fixture
def files(toy_corpus: Path, tmp_path: Path) -> dict[str, Any]:
    """Return the toy corpus in two halves, the second of which is declared as back-translated."""
    named: dict[str, Any] = {"source": [], "target": []}
    for side, language in (("source", "zh"), ("target", "en")):
        lines = list(read_lines(toy_corpus / f"train.{language}"))
        for name, part in (("human", lines[:500]), ("machine", lines[500:])):
            path = tmp_path / f"{name}.{language}"
            path.write_text("".join(f"{line}\n" for line in part), "utf-8", newline="\n")
            named[side].append(str(path))
    return named


def tagged(folder: Path) -> int:
    """Return how many training sources begin with the tag."""
    tokenizer = load_tokenizer(folder)
    assert tokenizer.source.has_special_token(BACK_TRANSLATED)
    corpus = PreparedCorpus.open(folder / "corpus", tokenizer)
    sources, _ = corpus.read(0, corpus.pairs)
    return int((sources.ids[sources.offsets[:-1]] == tokenizer.source.id(BACK_TRANSLATED)).sum())


def test_a_run_trains_on_tagged_pairs_resumes_and_translates_untagged_text(
    files: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    machine = files["source"][1]
    train(out=out, **files, back_translated=machine, **SHORT)
    assert 400 < tagged(out) <= 500
    assert read_stored(out / "settings.toml").data.back_translated == (machine,)
    result = train(out=out, resume=True, steps=3, device="cpu", threads=1)
    assert result is not None
    assert result.step == 3
    with pytest.raises(TransduceError, match=r"`data.back_translated` was .* cannot become"):
        train(out=out, resume=True, settings={"data.back_translated": []}, device="cpu", threads=1)
    translator = open_translator(out, device="cpu", threads=1)
    assert BACK_TRANSLATED not in translator.tokenizer.source.tokens(translator.tokenizer.source.encode("我爱你"))


def test_a_corpus_prepared_ahead_has_the_tags(files: dict[str, Any], tmp_path: Path) -> None:
    ahead = tmp_path / "ahead"
    machine = files["source"][1]
    command = ["prepare", "--source", *files["source"], "--target", *files["target"], "--back-translated", machine]
    assert main([*command, "--out", str(ahead)]) == 0
    assert 400 < tagged(ahead) <= 500
    result = train(out=tmp_path / "run", settings={"data.prepared": str(ahead)}, **SHORT)
    assert result is not None
    assert result.step == 2


def test_a_model_that_knows_no_tag_is_fine_tuned_without(files: dict[str, Any], trained: Path, tmp_path: Path) -> None:
    options = {**SHORT, "preset": None}
    out = tmp_path / "run"
    train(out=out, **files, back_translated=files["source"][1], init_from=trained, **options)
    assert not load_tokenizer(out).source.has_special_token(BACK_TRANSLATED)
    assert read_stored(out / "settings.toml").data.back_translated == (files["source"][1],)
    result = train(out=out, resume=True, steps=3, device="cpu", threads=1)
    assert result is not None
    assert result.step == 3


def test_a_file_that_is_not_among_the_sources_is_reported() -> None:
    data = {"source": ["a.zh"], "target": ["a.en"], "back_translated": ["b.zh"]}
    with pytest.raises(TransduceError, match=r"`data.back_translated` names some of .* but b.zh is none of them"):
        make_settings({"data": data})


@pytest.mark.parametrize("task", ["language-model", "denoising", "classification", "parsing"])
def test_tasks_other_than_translation_refuse_back_translated_pairs(
    task: str, files: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match=f"`data.back_translated` means nothing where `task.kind` is {task}"):
        train(
            source=files["source"],
            back_translated=files["source"][1],
            task=task,
            out=tmp_path / "run",
            device="cpu",
            threads=1,
        )
    assert not (tmp_path / "run").exists()
