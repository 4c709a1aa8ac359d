"""Test one model for several language pairs: corpora, language tokens, sampling, scores per direction."""

import io
import json
import shutil
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import transduce
from transduce.commands.main import build_parser, main
from transduce.commands.serve import load_models
from transduce.data.prepared import PreparedCorpus, RepeatedCorpus, prepare
from transduce.errors import TransduceError, UntrainedDirectionWarning
from transduce.inference.retrieval import NeighborIndex, read_datastore
from transduce.model_folder.write import to_toml
from transduce.tasks.settings.reading import make_settings
from transduce.text import CorpusFiles, FilterSettings, Tokenizer
from transduce.text.corpus import read_pairs
from transduce.text.sentencepiece_model import TokenizerSettings

WORDS = ("sun", "moon", "star", "rain", "wind", "snow", "tree", "leaf", "bird", "fish")
_GERMAN = ("sonne", "mond", "stern", "regen", "sturm", "schnee", "baum", "blatt", "vogel", "fisch")
_CZECH = ("slunce", "mesic", "hvezda", "dest", "vitr", "snih", "strom", "list", "ptak", "ryba")
IN_GERMAN, IN_CZECH = (dict(zip(WORDS, words, strict=True)) for words in (_GERMAN, _CZECH))


def sentences(count: int, first: int = 0) -> list[str]:
    """Return different sentences of three words, at most 1,000 from the first on."""
    numbers = [number * 387 % 1_000 for number in range(first, first + count)]
    return [" ".join(WORDS[number // base % len(WORDS)] for base in (100, 10, 1)) for number in numbers]


def translate_words(lines: Sequence[str], words: Mapping[str, str]) -> list[str]:
    """Return the lines with each word replaced."""
    return [" ".join(words[word] for word in line.split()) for line in lines]


def write(path: Path, lines: Sequence[str]) -> str:
    """Write lines to a file and return its path."""
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    """Return two corpora, English to German and to Czech, of which the second is much smaller."""
    folder = tmp_path_factory.mktemp("text")
    tables = []
    for language, words, count in (("de", IN_GERMAN, 800), ("cs", IN_CZECH, 300)):
        source, dev = sentences(count), sentences(40, first=900)
        tables.append(
            {
                "source": [write(folder / f"train-{language}.en", source)],
                "target": [write(folder / f"train.{language}", translate_words(source, words))],
                "dev_source": [write(folder / f"dev-{language}.en", dev)],
                "dev_target": [write(folder / f"dev.{language}", translate_words(dev, words))],
                "languages": ["en", language],
            }
        )
    return tables


SETTINGS: dict[str, Any] = {
    "preset": "tiny",
    "model.d_model": 64,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "training.batch_tokens": 512,
    "training.validate_every": 100,
    "tokenizer.vocabulary_size": 320,
    "model.dropout": 0.0,
    "data.filters.max_length_ratio": 20.0,
}


@pytest.fixture(scope="module")
def trained(corpora: list[dict[str, list[str]]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model that was trained on both corpora."""
    out = tmp_path_factory.mktemp("run") / "model"
    transduce.train(corpora=corpora, out=out, steps=300, settings=SETTINGS, threads=1, precision="fp32")
    return out


def test_one_model_translates_into_the_language_that_is_asked_for(trained: Path) -> None:
    lines = sentences(20, first=940)
    for language, words in (("de", IN_GERMAN), ("cs", IN_CZECH)):
        translator = transduce.load(trained, task="translation", target_language=language)
        assert (translator.source_language, translator.target_language) == ("en", language)
        right = [one.text == other for one, other in zip(translator(lines), translate_words(lines, words), strict=True)]
        assert sum(right) >= 16


def test_translators_of_several_directions_share_the_model(trained: Path) -> None:
    german = transduce.load(trained, task="translation", target_language="de")
    czech = german.for_target("cs")
    assert czech.model is german.model
    assert czech.target_language == "cs"
    assert czech("sun").text == transduce.load(trained, task="translation", target_language="cs")("sun").text
    assert german("sun").text != czech("sun").text


def test_each_direction_has_its_own_dev_score(trained: Path) -> None:
    events = [json.loads(line) for line in (trained / "metrics.jsonl").read_text("utf-8").splitlines()]
    last = [event for event in events if event["event"] == "validation"][-1]
    german, czech = (last["scores"][f"bleu en → {language}"] for language in ("de", "cs"))
    assert last["bleu"] == pytest.approx((german + czech) / 2)
    reports = json.loads((trained / "dev_score.json").read_text("utf-8"))
    assert [reports[f"en → {language}"]["sentences"] for language in ("de", "cs")] == [40, 40]
    assert [reports[f"en → {language}"]["target_language"] for language in ("de", "cs")] == ["de", "cs"]


def test_a_model_of_several_directions_needs_the_target_language(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = set[str]()
    with pytest.raises(TransduceError, match="translates to de, cs: choose one by `target_language`"):
        transduce.load(trained)
    with pytest.raises(TransduceError, match="translates to de, cs, but not to fr"):
        transduce.load(trained, target_language="fr")
    with pytest.raises(TransduceError, match="translates from en, but not from de"):
        transduce.load(trained, source_language="de", target_language="cs")
    with pytest.raises(TransduceError, match="`target_language` must be the code of a language, such as de, but is em"):
        transduce.load(trained, target_language="")
    assert main(["translate", str(trained), "--target-language", "cs", "/dev/null"]) == 0
    capsys.readouterr()
    lines = "\n".join(sentences(2))
    for language in ("cs", "CS", "cs-CZ"):  # the server accepts these, too
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        assert main(["translate", str(trained), "--target-language", language]) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1
    translator = transduce.load(trained, task="translation", source_language="en-GB", target_language="CS")
    assert (translator.source_language, translator.target_language) == ("en", "cs")


def with_directions(trained: Path, folder: Path, pairs: list[tuple[str, str]]) -> Path:
    """Copy a model's folder as one of a model that was trained for other pairs of languages."""
    shutil.copytree(trained, folder)
    (folder / "directions.json").write_text(json.dumps({"directions": pairs}), "utf-8")
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    manifest["sha256"].pop("directions.json", None)
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return folder


def test_directions_without_training_are_refused_or_reported(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = with_directions(trained, tmp_path / "m", [("en", "de"), ("de", "cs")])
    with pytest.raises(TransduceError, match=r"must differ, but both are de: .* en → de, de → cs"):
        transduce.load(folder, source_language="de", target_language="DE")
    with pytest.warns(UntrainedDirectionWarning, match="for en → de, de → cs, but not for en → cs"):
        zero_shot = transduce.load(folder, task="translation", source_language="en", target_language="cs")
    assert (zero_shot.source_language, zero_shot.target_language) == ("en", "cs")
    german = zero_shot.for_target("de")
    assert (german.source_language, german.for_target("cs").source_language) == ("en", "de")
    assert main(["translate", str(folder), "--source-language", "en", "--target-language", "cs", "/dev/null"]) == 0
    err = capfd.readouterr().err
    assert "but not for en → cs: expect much worse translations" in err
    assert "Warning" not in err
    (tmp_path / "in.en").write_text("The sun is not there, but the book is with us.\n", "utf-8")
    assert main(["translate", str(folder), "--target-language", "cs", str(tmp_path / "in.en")]) == 0
    assert "looks English, not German" in capfd.readouterr().err
    pair = ["--source-language", "en", "--target-language", "cs", "--workers", "2", "--threads", "2"]
    assert main(["translate", str(folder), *pair, str(tmp_path / "in.en")]) == 0
    err = capfd.readouterr().err
    assert (err.count("but not for en → cs"), err.count("Warning")) == (1, 0)


def test_commands_that_open_a_translator_take_its_target_language(
    trained: Path, corpora: list[dict[str, list[str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, (source,), (target,) = str(trained), corpora[1]["dev_source"], corpora[1]["dev_target"]
    computing = ["--target-language", "cs", "--device", "cpu", "--threads", "1", "--precision", "fp32"]
    for command in (
        ["evaluate", model, "--source", source, "--reference", target, "--beam-size", "1"],
        ["score", model, "--source", source, "--target", target],
        ["align", model, "--source", source, "--target", target],
        ["compare", model, target, "--source", source, "--reference", target, "--beam-size", "1"],
        ["build-datastore", model, "--source", source, "--target", target, "--output", str(tmp_path / "store")],
        ["inspect", model, "sun"],
        ["plot", "attention", model, "sun"],
        ["paper", "table2", "--model", model, "--source", source, "--reference", target],
    ):
        assert main([*command, *computing]) == 0, capsys.readouterr().err
        out, err = capsys.readouterr()
        if command[0] == "evaluate":
            assert float(out.partition("chrF ")[2].split()[0]) > 50
        if command[0] == "build-datastore":
            assert f"--datastore {tmp_path / 'store'} --target-language cs" in err
    store = read_datastore(tmp_path / "store", transduce.load(trained, task="translation", target_language="cs").model)
    with pytest.raises(TransduceError, match="is for en → cs and the translator for en → de"):
        transduce.load(trained, target_language="de", datastore=tmp_path / "store")
    # In a datastore of an earlier version, the token of the target language shows the language.
    old = NeighborIndex(store.tensors, msgspec.structs.replace(store.card, source_language=None, target_language=None))
    czech = transduce.load(trained, task="translation", target_language="cs")
    czech.datastore = old
    assert czech.for_target("cs").datastore is old
    with pytest.raises(TransduceError, match=r"is for \? → cs and the translator for en → de"):
        czech.for_target("de")
    assert main(["evaluate", model, "--source", source, "--reference", target]) == 2
    assert main(["quantize", model, "--prove", source, "--target-language", "cs"]) == 0
    assert main(["quantize", model, "--target-language", "cs"]) == 2
    assert "`--target-language` describes the lines of `--prove`" in capsys.readouterr().err


def test_a_model_of_one_direction_has_no_others(tmp_path: Path, corpora: list[dict[str, list[str]]]) -> None:
    source, target = corpora[0]["source"], corpora[0]["target"]
    out, pair = tmp_path / "m", ("en", "de")
    transduce.train(source=source, target=target, languages=pair, out=out, steps=1, settings=SETTINGS, threads=1)
    translator = transduce.load(out, task="translation")
    with pytest.raises(TransduceError, match="translates to one language, but not to cs"):
        translator.for_target("cs")


FEW_STEPS: dict[str, Any] = {
    "settings": {"training.batch_tokens": 256, "data.filters.max_length_ratio": 20.0},
    "steps": 4,
    "threads": 1,
    "precision": "fp32",
}


def test_fine_tuning_on_one_pair_keeps_the_token_of_its_target_language(trained: Path, tmp_path: Path) -> None:
    lines = sentences(80, first=820)
    czech = translate_words(lines, IN_CZECH)
    files = [write(tmp_path / name, part) for name, part in (("a.en", lines[:60]), ("b.en", lines[60:]))]
    others = [write(tmp_path / name, part) for name, part in (("a.cs", czech[:60]), ("b.cs", czech[60:]))]
    transduce.train(
        init_from=trained,
        out=tmp_path / "run",
        source=files,
        target=others,
        back_translated=files[1:],
        **FEW_STEPS,
    )
    out = tmp_path / "run"
    assert json.loads((out / "directions.json").read_text("utf-8")) == {"directions": [["en", "cs"]]}
    token = transduce.load(trained, task="translation", target_language="cs").tokenizer.source.before
    corpus = PreparedCorpus.open(out / "corpus")
    source, _ = corpus.read(0, corpus.pairs)
    assert {(id,) for id in source.ids[source.offsets[:-1]].tolist()} == {token}
    settings = make_settings(tomllib.loads((out / "settings.toml").read_text("utf-8")))
    assert settings.data.directions == (("en", "cs"),) * 2  # a resumed run has the tokens, too
    found = [one.text for one in transduce.load(out, task="translation")(lines[:10])]
    assert sum(one == other for one, other in zip(found, czech[:10], strict=True)) >= 8
    # Fine-tuned once more, on files whose names show no languages, it keeps those of its base model.
    sides = write(tmp_path / "source.txt", lines), write(tmp_path / "target.txt", czech)
    transduce.train(init_from=out, out=tmp_path / "again", source=sides[0], target=sides[1], **FEW_STEPS)
    assert (tmp_path / "again" / "directions.json").read_bytes() == (out / "directions.json").read_bytes()


def test_fine_tuning_on_a_variety_of_a_language_keeps_the_token_of_the_base(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = sentences(80, first=820)
    czech = translate_words(lines, IN_CZECH)
    source, target = write(tmp_path / "a.en-GB", lines), write(tmp_path / "a.cs-CZ", czech)
    named = FEW_STEPS | {"source": source, "target": target, "languages": ("en-GB", "cs-CZ")}
    transduce.train(init_from=trained, out=tmp_path / "run", **named)
    assert json.loads((tmp_path / "run" / "directions.json").read_text("utf-8")) == {"directions": [["en", "cs"]]}
    transduce.train(init_from=trained, out=tmp_path / "run", resume=True, **named | {"steps": 5})
    capsys.readouterr()
    pairs = write(tmp_path / "pairs.tsv", [f"{one}\t{other}" for one, other in zip(lines, czech, strict=True)])
    of_columns = FEW_STEPS | {"source": pairs, "languages": ("en", "cs-CZ")}
    transduce.train(init_from=trained, out=tmp_path / "columns", **of_columns)
    said = " ".join(capsys.readouterr().err.split())
    assert "has none for cs-CZ, but one for cs: name the language cs, too" in said


def test_fine_tuning_on_a_language_that_the_base_lacks_has_no_tokens(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = sentences(80, first=820)
    source, target = write(tmp_path / "a.en", lines), write(tmp_path / "a.fr", translate_words(lines, IN_GERMAN))
    transduce.train(init_from=trained, out=tmp_path / "run", source=source, target=target, **FEW_STEPS)
    assert "has learned none for fr" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run" / "directions.json").exists()
    pairs = write(tmp_path / "pairs.tsv", [f"{line}\t{line}" for line in lines])
    with pytest.raises(TransduceError, match=r"several pairs of languages \(en → de, en → cs\).*--languages"):
        transduce.train(init_from=trained, out=tmp_path / "unknown", source=pairs, **FEW_STEPS)


def test_a_run_of_several_directions_resumes_exactly(corpora: list[dict[str, list[str]]], tmp_path: Path) -> None:
    settings = SETTINGS | {
        "training.validate_every": 10,
        "training.schedule": "constant",
        # By default these depend on the number of steps.
        "training.warmup_steps": 5,
        "training.weight_decay": 0.01,
        "training.average_decay": 0.5,
        "training.learning_rate": 0.003,
    }

    def losses(out: Path, steps: int, *, resume: bool = False) -> list[float]:
        more: dict[str, Any] = {"resume": True} if resume else {"corpora": corpora, "settings": settings}
        transduce.train(out=out, steps=steps, threads=1, precision="fp32", **more)
        events = map(json.loads, (out / "metrics.jsonl").read_text("utf-8").splitlines())
        return [event["loss"] for event in events if event["event"] == "validation"]

    losses(tmp_path / "parts", 10)
    assert losses(tmp_path / "parts", 20, resume=True) == losses(tmp_path / "whole", 20)


def test_without_dev_sets_each_direction_has_held_out_pairs(
    corpora: list[dict[str, list[str]]], tmp_path: Path
) -> None:
    tables = [{name: table[name] for name in ("source", "target", "languages")} for table in corpora]
    out = tmp_path / "model"
    transduce.train(corpora=tables, out=out, steps=1, settings=SETTINGS, threads=1)
    corpus = PreparedCorpus.open(out / "corpus")
    german, czech = corpus.card.held_out_pairs
    assert german > czech > 0
    assert corpus.card.file_pairs == [800 - german, 300 - czech]
    held_out = corpus.held_out
    assert held_out is not None
    assert held_out.directions == (("en", "de"), ("en", "cs"))
    for path, words in zip(held_out.target, (IN_GERMAN, IN_CZECH), strict=True):
        assert set(Path(path).read_text("utf-8").split()) <= set(words.values())


def test_the_token_of_the_target_language_starts_each_source(
    corpora: list[dict[str, list[str]]], tmp_path: Path
) -> None:
    files = CorpusFiles(
        source=tuple(table["source"][0] for table in corpora),
        target=tuple(table["target"][0] for table in corpora),
        directions=(("en", "de"), ("en", "cs")),
    )
    settings = TokenizerSettings(vocabulary_size=320, user_symbols=(">>de<<", ">>cs<<"))
    tokenizer = Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)
    assert tokenizer.source.target_languages == ("de", "cs")
    corpus = prepare(files, tokenizer, FilterSettings(max_length_ratio=20.0), tmp_path / "corpus")
    source, _ = corpus.read(0, corpus.pairs)
    starts = Counter(tokenizer.source.token(id) for id in source.ids[source.offsets[:-1]].tolist())
    assert starts == {">>de<<": 800, ">>cs<<": 300}
    asked = tokenizer.for_target("cs").source
    first = sentences(1)[0]
    assert (
        asked.with_special_tokens(asked.encode(first)) == source.ids[source.offsets[800] : source.offsets[801]].tolist()
    )


def test_repeated_corpora_contain_each_pair_by_its_factor(corpora: list[dict[str, list[str]]], tmp_path: Path) -> None:
    files = CorpusFiles(
        source=tuple(table["source"][0] for table in corpora),
        target=tuple(table["target"][0] for table in corpora),
        directions=(("en", "de"), ("en", "cs")),
    )
    settings = TokenizerSettings(vocabulary_size=320, user_symbols=(">>de<<", ">>cs<<"))
    tokenizer = Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)
    corpus = prepare(files, tokenizer, FilterSettings(max_length_ratio=20.0), tmp_path / "corpus")
    repeated = RepeatedCorpus(corpus, [1.0, 2.5])
    assert repeated.pairs == 800 + 750
    texts = Counter[tuple[int, ...]]()
    source, target = repeated.read(0, repeated.pairs)
    for number in range(repeated.pairs):
        texts[tuple(source.ids[source.offsets[number] : source.offsets[number + 1]].tolist())] += 1
    assert sorted(texts.values()) == [1] * 800 + [2] * 150 + [3] * 150
    assert repeated.target_tokens == len(target.ids)
    # Any division into runs gives the same pairs.
    lengths = repeated.read_range_lengths([(0, 790), (790, 1_111), (1_111, repeated.pairs)])[0]
    assert lengths.tolist() == source.lengths.tolist()


@pytest.mark.parametrize(
    ("temperature", "weights", "expected"),
    [(1.0, (1.0, 1.0), [1.0, 1.0]), (100.0, (1.0, 1.0), [1.0, 3.9]), (1.0, (1.0, 2.0), [1.0, 2.0])],
)
def test_sampling_follows_temperature_and_weight(
    temperature: float, weights: tuple[float, float], expected: list[float]
) -> None:
    corpora = [
        {"source": ["a.en"], "target": ["a.de"], "sampling_weight": weights[0]},
        {"source": ["b.en"], "target": ["b.cs"], "sampling_weight": weights[1]},
    ]
    data = make_settings({"data": {"corpora": corpora, "temperature": temperature}}).data
    assert data.repetitions([4_000, 1_000]) == pytest.approx(expected, rel=0.02)


def test_corpora_survive_the_settings_file() -> None:
    corpora = [{"source": ["a.en"], "target": ["a.de"]}, {"source": ["b.en"], "target": ["b.cs"], "upsample": 2.0}]
    settings = make_settings({"data": {"corpora": corpora}})
    assert settings.data.source == ("a.en", "b.en")
    assert settings.data.directions == (("en", "de"), ("en", "cs"))
    assert make_settings(tomllib.loads(to_toml(settings))) == settings


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"corpora": [{"target": ["a.de"]}]}, "data.corpora.*source"),
        (
            {
                "corpora": [
                    {"source": ["a.txt"], "target": ["b.txt"]},
                    {"source": ["a.en"], "target": ["a.de"]},
                    {"source": ["a.en"], "target": ["a.cs"]},
                ]
            },
            "needs its two languages",
        ),
        (
            {"corpora": [{"source": ["a.en"], "target": ["a.de"], "wieght": 2}]},
            r"no setting `data\.corpora\[0\]\.wieght`",
        ),
        (
            {"corpora": [{"source": ["a.en"], "target": ["a.de"], "sampling_weight": 0}]},
            "`sampling_weight` must be above 0",
        ),
        ({"corpora": [{"source": ["a.en"], "target": ["a.de"]}], "source": ["c.en"]}, "both name files"),
        ({"corpora": [{"source": ["a.en"], "target": ["a.de"]}], "monolingual": ["c.de"]}, "one pair of languages"),
        ({"temperature": 0.5}, "`data.temperature` must be from 1"),
        ({"source": ["a.en"], "target": ["a.de"], "language_tokens": True}, "needs the two languages"),
        (
            {
                "corpora": [{"source": ["a.en"], "target": ["a.de"]}, {"source": ["a.en"], "target": ["a.cs"]}],
                "language_tokens": False,
            },
            "several pairs of languages",
        ),
    ],
)
def test_contradictory_corpora_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        _ = make_settings({"data": data}).data.directions


def test_corpora_of_the_command_line_find_their_dev_sets(
    corpora: list[dict[str, list[str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [["--corpus", *table["source"], *table["target"]] for table in corpora]
    dev = [["--dev-corpus", *table["dev_source"], *table["dev_target"]] for table in reversed(corpora)]
    arguments = [argument for group in (*pairs, *dev) for argument in group]
    assert main(["train", *arguments, "--out", str(tmp_path / "m"), "--dry-run", "--steps", "5"]) == 0
    assert "en → de: 800 × 1, en → cs: 300 × 1.63" in " ".join(capsys.readouterr().err.split())


def test_each_served_direction_has_its_own_source_language(trained: Path, tmp_path: Path) -> None:
    folder = with_directions(trained, tmp_path / "m", pairs := [("en", "de"), ("cs", "de"), ("cs", "cs")])
    models, _ = load_models(build_parser("serve").parse([str(folder), "--threads", "1"]))
    assert [(each.translator.source_language, each.translator.target_language) for each in models] == pairs


def test_the_server_offers_every_direction_of_a_model(trained: Path) -> None:
    options = build_parser("serve").parse([str(trained), "--threads", "1"])
    models, _ = load_models(options)
    assert [(model.source_language, model.target_language) for model in models] == [("en", "de"), ("en", "cs")]
    assert models[0].translator.model is models[1].translator.model
    assert models[0].access is models[1].access
    (one,), _ = load_models(build_parser("serve").parse([f"en:cs={trained}", "--threads", "1"]))
    assert one.translator("sun").text == models[1].translator("sun").text


@pytest.mark.parametrize("to", ["huggingface", "ctranslate2", "onnx"])
def test_an_export_translates_to_the_language_that_is_named(trained: Path, tmp_path: Path, to: str) -> None:
    pytest.importorskip({"huggingface": "transformers", "ctranslate2": "ctranslate2", "onnx": "onnxruntime"}[to])
    out = tmp_path / "out"
    lines = sentences(20, first=940)
    report = transduce.export(
        trained,
        out,
        to=to,
        target_language="cs",
        sources=lines,
        references=translate_words(lines, IN_CZECH),
        threads=1,
    )
    assert report.export_scores is not None
    assert report.export_scores.chrf.value > 90
    if to == "huggingface":
        original = transduce.load(trained, task="translation", target_language="cs")
        assert transduce.load(out, task="translation")("sun moon star").text == original("sun moon star").text
    else:
        assert ">>cs<<" in (out / "README.md").read_text("utf-8")


def test_a_model_that_transformers_saved_keeps_its_languages(trained: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    transduce.export(trained, tmp_path / "exported", to="huggingface")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported")
    model.save_pretrained(tmp_path / "exported")
    with pytest.raises(TransduceError, match="translates to de, cs, but not to fr"):
        transduce.import_model(tmp_path / "exported", tmp_path / "imported", target_language="fr")
    transduce.import_model(tmp_path / "exported", tmp_path / "imported")
    lines = sentences(10, first=940)
    for language in ("de", "cs"):
        one, other = (
            transduce.load(folder, task="translation", target_language=language, precision="fp32", device="cpu")
            for folder in (trained, tmp_path / "imported")
        )
        assert [each.text for each in one(lines)] == [each.text for each in other(lines)]


def test_hugging_face_chooses_the_language_by_its_token(trained: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "out"
    transduce.export(trained, out, to="huggingface", threads=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out)
    for language in ("de", "cs"):
        translator = transduce.load(out, task="translation", target_language=language, threads=1)
        texts = sentences(5, first=940)
        for text in texts:
            assert tokenizer(f">>{language}<< {text}")["input_ids"] == translator.tokenizer.source.with_special_tokens(
                translator.tokenizer.source.encode(text)
            )
            ids = model.generate(
                **tokenizer(f">>{language}<< {text}", return_tensors="pt"), num_beams=1, do_sample=False
            )
            ours = translator.translate([text], transduce.SearchSettings(beam_size=1))[0].text
            assert tokenizer.decode(ids[0], skip_special_tokens=True) == ours


def test_exports_and_preparation_without_the_target_language_are_refused(
    trained: Path, corpora: list[dict[str, list[str]]], tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match="translates to de, cs: choose one by `target_language`"):
        transduce.export(trained, tmp_path / "out", to="onnx")
    with pytest.raises(TransduceError, match="References are in one language"):
        transduce.export(trained, tmp_path / "out", to="huggingface", sources=["sun"], references=["sonne"])
    with pytest.raises(TransduceError, match="A corpus of several language pairs is prepared when training starts"):
        transduce.prepare(
            source=[table["source"][0] for table in corpora],
            target=[table["target"][0] for table in corpora],
            out=tmp_path / "prepared",
            settings={"data.corpora": corpora},
        )
