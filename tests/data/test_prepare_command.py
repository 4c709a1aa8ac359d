"""Test `transduce prepare` and training from its folder."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from transduce.commands.main import build_parser, main
from transduce.errors import TransduceError
from transduce.tasks.corpus import (
    PreparationBar,
    TaskText,
    choose_workers,
    measure_corpus,
    reopen_prepared_corpus,
    use_prepared_corpus,
)
from transduce.tasks.kinds.translation import TranslationKind
from transduce.tasks.prepared_folder import open_prepared_folder, tokenizer_settings_of
from transduce.tasks.settings.reading import make_settings
from transduce.tasks.settings.structs import Settings
from transduce.text import CorpusFiles, read_pairs
from transduce.text.languages import unspaced_characters
from transduce.training.display import ProgressDisplay

SMALL = ["--set", "tokenizer.vocabulary_size=300", "--set", "tokenizer.byte_fallback=false"]


@pytest.fixture
def sides(toy_corpus: Path) -> list[str]:
    return ["--source", str(toy_corpus / "train.zh"), "--target", str(toy_corpus / "train.en")]


@pytest.fixture
def prepared(sides: list[str], tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    assert main(["prepare", *sides, *SMALL, "--out", str(folder)]) == 0
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["prepare", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_one_go_reports_what_training_reports(
    sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", *sides, *SMALL, "--out", str(tmp_path / "out"), "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert "1,000 pairs read, 900 kept, 100 held out" in printed.err
    report = json.loads(printed.out)
    _, tokenizer, corpus = open_prepared_folder(tmp_path / "out")
    assert (report["pairs"], report["held_out"], report["vocabulary_size"]) == (900, 100, tokenizer.source.size)
    assert report["target_tokens"] == corpus.target_tokens
    assert report["pairs_per_second"] == pytest.approx(1000 / report["elapsed_seconds"])
    corpus.verify()


def test_shards_by_one_tokenizer_merge_to_the_folder_of_one_go(
    sides: list[str], prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = str(tmp_path / "tokenizer")
    assert main(["prepare", *sides, *SMALL, "--tokenizer-only", "--out", tokenizer]) == 0
    shards = [str(tmp_path / f"shard-{number}") for number in (1, 2)]
    for number, shard in enumerate(shards, 1):
        given = ["--tokenizer", tokenizer, "--workers", str(number)]
        assert main(["prepare", *sides, *given, "--shard", f"{number}/2", "--out", shard]) == 0
    assert "shard 1/2, 1,000 pairs" in capsys.readouterr().out
    assert main(["prepare", "--merge", *reversed(shards), "--out", str(tmp_path / "merged")]) == 0
    assert tree(tmp_path / "merged") == tree(prepared)
    said = refused(["--merge", shards[1], "--out", str(tmp_path / "x")], capsys)
    assert "but 1/2 is not among these: 2/2; name the others too" in said
    assert f"Each shard is merged once, but {shards[0]} is named 2 times" in refused(
        ["--merge", shards[0], shards[0], "--out", str(tmp_path / "x")], capsys
    )
    ids = tmp_path / "shard-1" / "parts" / "0" / "source.ids"
    ids.write_bytes(bytes(ids.stat().st_size))
    assert "source.ids is not what was prepared" in refused(["--merge", *shards, "--out", str(tmp_path / "x")], capsys)
    assert not (tmp_path / "x").exists()


def test_preparing_with_an_existing_tokenizer_gives_the_same_folder(
    sides: list[str], prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["--tokenizer", str(prepared), "--out", str(tmp_path / "again")]
    assert main(["prepare", *sides, *again, "--workers", "2"]) == 0
    assert tree(tmp_path / "again") == tree(prepared)
    said = refused([*sides, *again, "--set", "tokenizer.vocabulary_size=444"], capsys)
    assert "`tokenizer.vocabulary_size` is 444, but the tokenizer in" in said


def test_a_dev_set_to_come_leaves_all_pairs_to_train_on(
    sides: list[str], prepared: Path, toy_corpus: Path, tmp_path: Path
) -> None:
    dev = ["--dev-source", str(toy_corpus / "dev.zh"), "--dev-target", str(toy_corpus / "dev.en")]
    for name, options in (("dev", dev), ("all", ["--no-hold-out"])):
        folder = tmp_path / name
        assert main(["prepare", *sides, *options, "--tokenizer", str(prepared), "--out", str(folder)]) == 0
        assert open_prepared_folder(folder)[2].pairs == 1_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "There is no text to learn from: name it by `--source` and `--target`"),
        (["--source", "a", "--shard", "0/4"], "A shard must be I/N with I from 1 to N, such as 1/4, but is 0/4"),
        (["--source", "a", "--shard", "5/4"], "but is 5/4"),
        (["--source", "a", "--shard", "1"], "but is 1"),
        (["--source", "a", "--workers", "0"], "`--workers` must be at least 1, but is 0"),
        (["--source", "a", "--shard", "1/2"], "All shards of a corpus need one tokenizer: make it with"),
        (["--merge", "m", "--source", "a"], "`--merge` cannot be combined with `--source`: leave one of them out"),
        (["settings.toml", "--merge", "m"], "`--merge` cannot be combined with a settings file"),
        (
            ["--source", "a", "--tokenizer-only", "--shard", "1/2"],
            "`--tokenizer-only` cannot be combined with `--shard`",
        ),
        (["--merge", "m"], "m holds no shard of a corpus: name what `transduce prepare --shard` wrote"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text("", "utf-8")
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(refused([*arguments, "--out", "out"], capsys))
    assert [path.name for path in tmp_path.iterdir()] == ["settings.toml"]


def test_sigterm_leaves_nothing_behind(sides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreparationBar, "__call__", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        main(["prepare", *sides, *SMALL, "--out", str(tmp_path / "out")])
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


# --- training from such a folder ---


def read(settings: Settings, folder: Path) -> TaskText:
    return TranslationKind().read_text(settings, folder, overwrite=False)


def with_prepared(prepared: Path, **tables: dict[str, object]) -> Settings:
    return make_settings({**tables, "data": {**tables.get("data", {}), "prepared": str(prepared)}})


def use(prepared: Path, run: Path, **tables: dict[str, object]) -> Settings:
    settings = with_prepared(prepared, **tables)
    use_prepared_corpus(settings, read, run, ProgressDisplay())
    return settings


def test_a_run_takes_the_corpus_from_the_folder(
    prepared: Path, toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(prepared)
    capsys.readouterr()
    found = use_prepared_corpus(with_prepared(prepared), read, tmp_path / "run", ProgressDisplay())
    assert "1,000 pairs read, 900 kept, 100 held out" in capsys.readouterr().err
    assert found.languages == ("zh", "en")
    assert (found.pairs, len(found.dev_sources)) == (900, 100)
    assert found.tokenizer_settings == tokenizer_settings_of(found.tokenizer)
    assert found.tokenizer_settings.vocabulary_size == found.tokenizer.source.size
    assert not found.tokenizer_settings.byte_fallback
    assert tree(prepared) == before
    again = reopen_prepared_corpus(with_prepared(prepared), read, tmp_path / "run")
    assert again.prepared.card == found.prepared.card
    assert again.dev_targets == found.dev_targets
    dev = {"dev_source": [str(toy_corpus / "dev.zh")], "dev_target": [str(toy_corpus / "dev.en")]}
    settings = with_prepared(prepared, data=dict(dev))
    assert len(use_prepared_corpus(settings, read, tmp_path / "other", ProgressDisplay()).dev_sources) == 50


def test_training_settings_that_contradict_the_prepared_corpus_are_refused(
    prepared: Path, toy_corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    files = {side: [str(toy_corpus / f"train.{name}")] for side, name in (("source", "zh"), ("target", "en"))}
    use(prepared, run, data=dict(files), tokenizer={"vocabulary_size": 300})
    with pytest.raises(TransduceError, match=r"`data\.source` is other\.zh, but .*shards was prepared with"):
        use(prepared, run, data={"source": ["other.zh"]})
    with pytest.raises(TransduceError, match=r"`tokenizer\.vocabulary_size` is 555, but .* was prepared with 300"):
        use(prepared, run, tokenizer={"vocabulary_size": 555})
    with pytest.raises(TransduceError, match=r"`data\.filters\.max_tokens` is 9, but .* was prepared with [0-9]+"):
        use(prepared, run, data={"filters": {"max_tokens": 9}})


def test_a_direction_that_contradicts_the_prepared_corpus_is_refused(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    lines = (
        json.dumps({"fi": f"{number} kissaa", "ja": f"猫が{number}匹"}, ensure_ascii=False) for number in range(300)
    )
    pairs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    prepared = tmp_path / "prepared"
    assert main(["prepare", "--source", str(pairs), "--languages", "fi", "ja", "--out", str(prepared)]) == 0
    with pytest.raises(TransduceError, match=r"`data\.languages` is ja fi, but .*prepared was prepared with"):
        use(prepared, tmp_path / "run", data={"languages": ["ja", "fi"]})
    use(prepared, tmp_path / "run", data={"languages": ["fi", "ja"]})


def test_a_run_does_not_go_on_with_another_corpus(prepared: Path, sides: list[str], tmp_path: Path) -> None:
    settings = use(prepared, tmp_path / "run")
    given = ["--tokenizer", str(prepared), "--out", str(prepared)]
    assert main(["prepare", *sides, *given, "--set", "data.filters.max_tokens=4"]) == 0
    with pytest.raises(TransduceError, match=r"shards was prepared again since the run in .*run started"):
        reopen_prepared_corpus(settings, read, tmp_path / "run")


def test_folders_that_are_not_prepared_corpora_are_refused(prepared: Path, sides: list[str], tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"none does not exist: name the folder that .* wrote, where it is now"):
        open_prepared_folder(tmp_path / "none")
    with pytest.raises(
        TransduceError, match=r"prepared\.json does not exist: .* was not written by `transduce prepare`"
    ):
        open_prepared_folder(tmp_path)
    with pytest.raises(TransduceError, match=r"corpus holds a corpus without its tokenizer: name the folder that"):
        open_prepared_folder(prepared / "corpus")
    shard = tmp_path / "shard"
    assert main(["prepare", *sides, "--tokenizer", str(prepared), "--shard", "1/2", "--out", str(shard)]) == 0
    with pytest.raises(TransduceError, match=r"is one shard of a corpus, and cannot be trained on alone: merge all"):
        open_prepared_folder(shard)
    card = prepared / "prepared.json"
    good = card.read_bytes()
    card.write_bytes(good.replace(b'"format_version": 1', b'"format_version": 3'))
    with pytest.raises(TransduceError, match=r"has format 3, but this version reads format 1: prepare again"):
        open_prepared_folder(prepared)
    card.write_bytes(b"[]")
    with pytest.raises(TransduceError, match=r"prepared\.json does not describe a prepared corpus \(.*\): prepare it"):
        open_prepared_folder(prepared)
    shutil.rmtree(prepared)


# --- choices ---


def test_characters_are_counted_as_by_hand(toy_corpus: Path) -> None:
    files = CorpusFiles(source=(str(toy_corpus / "dev.zh"),), target=(str(toy_corpus / "dev.en"),))
    text = "".join(pair.source + pair.target for pair in read_pairs(files))
    expected = {character for character in unspaced_characters(text) if text.count(character) >= 3}
    size = measure_corpus(files)
    assert (size.pairs, size.unspaced_characters) == (50, len(expected))
    assert len(expected) > 10


def test_workers_follow_cores_and_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.tasks.corpus.usable_cores", lambda: 4)
    assert [choose_workers(pairs) for pairs in (1, 99_999, 100_000, 250_000, 10_000_000)] == [1, 1, 1, 2, 4]


def test_the_page_about_it_names_options_that_exist() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "preparing.md").read_text("utf-8")
    lines = [line for line in page.split("\n") if line.startswith("transduce prepare ")]
    assert len(lines) == 6
    for line in lines:
        assert build_parser("prepare").parse(line.split()[2:]).out
