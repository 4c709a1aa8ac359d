"""Test tagging: column files, training from random and pretrained weights, scores, the command, and bad input."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import transduce
from transduce.commands.main import main
from transduce.data.batches import NO_LABEL, TaggedTexts
from transduce.errors import TransduceError
from transduce.evaluation.label_scores import score_tags
from transduce.inference.classifier import load_classifier
from transduce.inference.tagger import Tagger, encode_words, load_tagger
from transduce.model.config import ModelConfig
from transduce.tasks.kinds.classification import ClassificationKind
from transduce.tasks.kinds.encoders import LabelChoices
from transduce.tasks.kinds.masked_language_model import MaskedLanguageModelKind
from transduce.tasks.kinds.tagging import TaggingKind, _contributions, _read_parts
from transduce.tasks.run.resolving import VocabularyProperties, resolve_model
from transduce.tasks.settings.reading import make_settings
from transduce.tasks.settings.structs import DataSettings, Settings
from transduce.text.tagged import TaggedSentence, TaggedSpan, read_tagged, spans_of
from transduce.training.choices import ChoiceLog
from transduce.training.settings import OptimizerName

NAMES, PLACES = ["Ann", "Robert", "Katherine", "Jo"], ["York", "Hamburg", "Rio", "Lisbon"]
SMALL = {"model.num_encoder_layers": 1, "model.d_model": 32, "model.d_ff": 64, "model.num_heads": 2}
SETTINGS: dict[str, Any] = SMALL | {
    "tokenizer.vocabulary_size": 300,
    "model.dropout": 0.0,
    "training.learning_rate": 0.03,
    "training.warmup_steps": 20,
    "training.validate_every": 75,
    "training.average_decay": 0.9,
}
COMPUTING: dict[str, Any] = {"precision": "fp32", "device": "cpu", "threads": 1}
OPTIONS = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
Capture = pytest.CaptureFixture[str]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def sentence(chooser: random.Random) -> list[tuple[str, str]]:
    """Return a tagged sentence in which names are persons before "sees" and places after "in", of one or two words."""
    person, place = (chooser.choices(NAMES + PLACES, k=chooser.choice([1, 2])) for _ in range(2))
    tagged = [(word, f"{'I' if number else 'B'}-PER") for number, word in enumerate(person)]
    tagged += [("sees", "O"), (chooser.choice(["tea", "fish"]), "O"), ("in", "O")]
    return [*tagged, *((word, f"{'I' if number else 'B'}-LOC") for number, word in enumerate(place)), (".", "O")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, chooser = tmp_path_factory.mktemp("columns"), random.Random(1)
    paths = {}
    for name, count in (("train", 200), ("dev", 40)):
        rows = ("".join(f"{word} x {tag}\n" for word, tag in sentence(chooser)) for _ in range(count))
        paths[name] = written(folder / f"{name}.conll", "# made up\n" + "\n".join(rows))
    return paths


@pytest.fixture(scope="module")
def folder(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tagger") / "run"
    settings = SETTINGS | {"training.steps": 150}
    transduce.train(
        task="tagging", source=files["train"], dev_source=files["dev"], out=out, settings=settings, **COMPUTING
    )
    return out


def test_a_tagger_learns_spans_from_context(folder: Path) -> None:
    report = json.loads((folder / "dev_score.json").read_text("utf-8"))
    assert report["accuracy"] >= 98
    assert report["f1"] >= 95
    assert sorted(report["f1_of_kinds"]) == ["LOC", "PER"]
    tagger = transduce.load(folder, task="tagging", **COMPUTING)
    assert isinstance(tagger, Tagger)
    assert tagger.tags == ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
    first, second = tagger(["York Jo sees tea in Katherine .", ""])
    assert first.tags == ("B-PER", "I-PER", "O", "O", "O", "B-LOC", "O")
    assert first.spans == [TaggedSpan("PER", 0, 2), TaggedSpan("LOC", 5, 6)]
    assert all(0.5 < probability <= 1.0 for probability in first.probabilities)
    assert second.words == second.tags == ()
    assert tagger("York Jo sees tea in Katherine .").tags == first.tags
    with pytest.raises(TransduceError, match="lists of words, but one is a text"):
        tagger.tag(["York"])


def test_a_line_without_spaces_is_warned_of(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(tmp_path / "text.txt", "刘 强 住 在 西 安 。\n刘强住在西安。\n你好\nYork.\n刘强住在西安。\n")
    assert main(["tag", str(folder), str(text), "--device", "cpu"]) == 0
    assert capsys.readouterr().err == (
        "Lines without spaces are read as one word, here 2 (the first is line 2): put spaces between words, or between "
        "characters, as in the training text.\n"
    )


def test_a_run_resumes_to_the_same_weights(folder: Path, files: dict[str, Path], tmp_path: Path) -> None:
    moved = written(tmp_path / "moved.conll", files["train"].read_text("utf-8"))
    common: dict[str, Any] = {"task": "tagging", "dev_source": files["dev"], "out": tmp_path / "run"} | COMPUTING

    class Stop(transduce.Callback):
        def on_validation(self, _: transduce.ValidationEvent) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transduce.train(
            source=files["train"],
            settings=SETTINGS | {"training.steps": 150, "training.save_every": 50},
            callbacks=[Stop()],
            **common,
        )
    transduce.train(source=moved, resume=True, **common)
    one, other = (load_tagger(each, **COMPUTING).model.state_dict() for each in (folder, tmp_path / "run"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_tagger_starts_from_another_and_keeps_its_layer_for_the_same_tags_only(
    folder: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    settings = {"training.steps": 1, "training.learning_rate": 1e-9, "training.warmup_steps": 1}
    renamed = written(tmp_path / "renamed.conll", files["train"].read_text("utf-8").replace("-PER", "-WHO"))
    before = load_tagger(folder, **COMPUTING).model.state_dict()
    for name, source in (("same", files["train"]), ("other", renamed)):
        transduce.train(
            task="tagging", source=source, out=tmp_path / name, init_from=folder, settings=settings, **COMPUTING
        )
        after = load_tagger(tmp_path / name, **COMPUTING).model.state_dict()
        kept = torch.allclose(after["classifier.weight"], before["classifier.weight"], atol=1e-6)
        assert kept == (name == "same")
        assert torch.allclose(after["source_weight"], before["source_weight"], atol=1e-6)


def test_a_classifier_starts_from_a_tagger(folder: Path, tmp_path: Path) -> None:
    texts = written(tmp_path / "texts.txt", "Ann sees tea .\nJo in York .\n" * 10)
    labels = written(tmp_path / "labels.txt", "tea\nyork\n" * 10)
    settings = {"training.steps": 1, "training.learning_rate": 1e-9, "training.warmup_steps": 1}
    out = tmp_path / "run"
    transduce.train(
        task="classification", source=texts, target=labels, out=out, init_from=folder, settings=settings, **COMPUTING
    )
    classifier = load_classifier(out, **COMPUTING)
    assert not classifier.model.config.token_labels
    before = load_tagger(folder, **COMPUTING).model.state_dict()
    assert torch.allclose(classifier.model.state_dict()["source_weight"], before["source_weight"], atol=1e-6)
    assert classifier("Ann sees tea .").label in ("tea", "york")


@pytest.mark.parametrize(
    ("model", "positions"),
    [
        ({}, "rotary"),
        ({"norm_order": "post"}, "learned"),  # as BERT, so that Hugging Face reads the folder
        ({"positions": "relative"}, "relative"),
        ({"max_positions": 64}, "learned"),
        ({"attention_score": "additive"}, "learned"),
        ({"d_model": 50, "num_heads": 2}, "learned"),  # a rotation needs an even width of each head
    ],
)
@pytest.mark.parametrize("kind", ["tagging", "classification"])
def test_positions_are_rotary_where_the_model_allows_them(kind: str, model: dict[str, Any], positions: str) -> None:
    target = {"target": ["y"]} if kind == "classification" else {}
    content = {"task": {"kind": kind, "context": 64}, "data": {"source": ["x"], **target}, "model": model}
    settings = make_settings(content)
    vocabulary = VocabularyProperties(300, 300, 0, 1, tie_source_target=True)
    config = resolve_model(settings, "tiny", vocabulary, ChoiceLog())
    assert config.positions == positions
    if positions == "learned":
        assert config.max_positions == 64


@pytest.mark.parametrize(("kind", "factor"), [(TaggingKind(), 1.0), (ClassificationKind(), 0.5)])
def test_muon_fine_tunes_small_masked_language_models_of_our_own(
    kind: LabelChoices, factor: float, tmp_path: Path
) -> None:
    def base(name: str, task: str, begun: Path | None = None) -> Path:
        (tmp_path / name).mkdir()
        start = "" if begun is None else f"init_from = {json.dumps(str(begun))}\n"
        written(tmp_path / name / "settings.toml", f'{start}[task]\nkind = "{task}"\n')
        return tmp_path / name

    def narrow_or_wide(width: int, settings: Settings) -> ModelConfig:
        model = resolve_model(
            settings, "tiny", VocabularyProperties(300, 300, 0, 1, tie_source_target=True), ChoiceLog()
        )
        return msgspec.structs.replace(model, d_model=width, norm_order="pre")

    def choose(
        init_from: Path | None, width: int, rank: int = 0, optimizer: OptimizerName | None = None
    ) -> tuple[str, float]:
        content = {"task": {"kind": kind.name}, "data": {"source": ["x"]}, "training": {"lora_rank": rank}}
        settings = make_settings(content | {"init_from": None if init_from is None else str(init_from)})
        model = msgspec.structs.replace(narrow_or_wide(width, settings), norm_order="post")
        chosen = optimizer or kind.choose_optimizer(settings, model).value
        training = msgspec.structs.replace(settings.training, optimizer=chosen)
        rate = kind.choose_learning_rate(msgspec.structs.replace(settings, training=training), width)
        return chosen, round(rate.value * width, 9)

    pretrained, imported = base("pretrained", "masked-language-model"), tmp_path / "imported"
    adapted = base("adapted", "masked-language-model", pretrained)
    for folder in (pretrained, adapted):
        for width in (64, 256):
            assert choose(folder, width) == ("muon", factor)
    assert choose(pretrained, 64, optimizer="adam") == ("adam", 0.25)
    assert choose(pretrained, 64, rank=4) == ("adam", 0.5)
    lower = ("adam", 0.05)
    assert choose(pretrained, 512) == lower
    adapted_import = base("adapted-import", "masked-language-model", imported)
    for folder in (imported, adapted_import, base("classifier", "classification", pretrained)):
        assert choose(folder, 64) == choose(folder, 768) == lower
        assert choose(folder, 64, optimizer="muon")[1] == 0.05
    of_masks = MaskedLanguageModelKind()
    optimizers: list[tuple[str | None, OptimizerName, float]] = [(None, "muon", 1.0), (None, "adam", 0.25)]
    for start, optimizer, expected in [*optimizers, (str(pretrained), "muon", 0.25)]:
        content = {"task": {"kind": of_masks.name}, "data": {"source": ["x"]}, "init_from": start}
        settings = make_settings(content | {"training": {"optimizer": optimizer}})
        rate = of_masks.choose_learning_rate(settings, 64).value
        settings = make_settings(content)
        assert rate * 64 == expected
        chosen = [of_masks.choose_optimizer(settings, narrow_or_wide(width, settings)).value for width in (64, 128)]
        assert chosen == (["adam", "muon"] if start is None else ["adam", "adam"])
    itself = base("itself", "masked-language-model", tmp_path / "itself")
    assert choose(itself, 64) == lower


def test_tag_command_writes_tags_and_scores(
    folder: Path, files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    assert main(["tag", str(folder), str(files["dev"]), "--score", "--json", "-", *OPTIONS]) == 0
    report = json.loads(capsys.readouterr().out)
    dev = json.loads((folder / "dev_score.json").read_text("utf-8"))
    assert (report["right"], report["f1"]) == (dev["right"], pytest.approx(dev["f1"]))
    plain = written(tmp_path / "plain", "Ann sees tea in Rio .\n")
    assert main(["tag", str(folder), str(plain), *OPTIONS]) == 0
    assert capsys.readouterr().out == "Ann\tB-PER\nsees\tO\ntea\tO\nin\tO\nRio\tB-LOC\n.\tO\n\n"
    empty = written(tmp_path / "empty", "Ann\n\nRio\n\n")
    assert main(["tag", str(folder), str(empty), *OPTIONS]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [line.split("\t")[0] for line in lines] == ["Ann", "", "", "Rio", "", "", ""]  # an empty one after each
    assert main(["tag", str(folder), str(files["dev"]), "--output", str(tmp_path / "tags.conll"), *OPTIONS]) == 0
    assert [each.words for each in read_tagged(tmp_path / "tags.conll")] == [
        each.words for each in read_tagged(files["dev"])
    ]
    assert main(["tag", str(folder), str(files["dev"]), "--score", "--columns", "1", "2", *OPTIONS]) == 2
    assert 'has tags such as "x", none of which the model knows' in capsys.readouterr().err
    for other in ("evaluate", "translate"):
        more = ["--source", str(plain), "--reference", str(plain)] if other == "evaluate" else []
        assert main([other, str(folder), *more, *OPTIONS]) == 2
        assert "transduce tag" in capsys.readouterr().err


def test_a_long_sentence_is_read_in_parts_that_cover_every_word(folder: Path) -> None:
    tagger = load_tagger(folder, **COMPUTING)
    words = ["Ann", "sees", "Katherine"] * 200
    rows = encode_words(tagger.tokenizer.source, [words], 16)
    assert all(len(row.ids) <= 16 for row in rows)
    assert [row.first_word for row in rows] == np.cumsum([0, *(len(row.positions) for row in rows[:-1])]).tolist()
    assert sum(len(row.positions) for row in rows) == len(words)
    assert all(tagger.tag([words])[0].tags)
    # A word without tokens, and one that is longer than a row, have a tag too.
    odd = ["\u200b" * 3, "x" * 5_000, ""]
    assert len(tagger.tag([odd])[0].tags) == 3


def test_labels_stand_at_the_first_token_of_each_word(folder: Path) -> None:
    vocabulary = load_tagger(folder, **COMPUTING).tokenizer.source
    rows = encode_words(vocabulary, [["Katherinezz", "sees"], ["in"]], 40)
    batch = TaggedTexts(rows, [[3, 1], [2]]).batch(np.array([0, 1]), vocabulary.pad_id)
    assert batch.target_tokens == 3
    for row, words in zip(batch.target.tolist(), ([3, 1], [2]), strict=True):
        assert [label for label in row if label != NO_LABEL] == words
    tokens = vocabulary.tokens(batch.source[0].tolist())
    assert [tokens[i][0] for i, label in enumerate(batch.target[0].tolist()) if label != NO_LABEL] == ["▁", "▁"]
    assert batch.target[0, 0] == batch.target[0, 2] == NO_LABEL  # [CLS], and the second token of a word


# --- scores ---


def test_tag_scores_equal_hand_computed_ones() -> None:
    right = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC"]]
    found = [["B-PER", "O", "O", "B-LOC"], ["B-PER", "B-LOC"]]
    report = score_tags(found, right)
    assert report.accuracy == pytest.approx(100 * 4 / 6)
    # 4 predicted spans, 3 right ones, 2 in common.
    assert report.precision == 50.0
    assert report.recall == pytest.approx(200 / 3)
    assert report.f1 == pytest.approx(100 * 4 / 7)
    assert report.f1_of_kinds == {"LOC": 100.0, "PER": 0.0}
    assert score_tags([["NN", "VB"]], [["NN", "NN"]]).f1 is None
    mean = np.mean(_contributions([(2, 4), (2, 3)]))
    assert mean == pytest.approx(100 * 4 / 7)


@pytest.mark.parametrize(
    ("marks", "f1", "precision", "accuracy"),
    [
        ("BIO", 0.1911111111111111, 0.18832116788321168, 0.23416666666666666),
        ("BIESO", 0.32781267846944606, 0.3272519954389966, 0.13916666666666666),
    ],
)
def test_scores_of_random_tags_equal_those_of_seqeval(marks: str, f1: float, precision: float, accuracy: float) -> None:
    """Compare with the figures of seqeval 1.2.2, whose package can no longer be built on a fresh machine."""
    chooser = random.Random(2)

    def tags() -> list[str]:
        """Return random tags of six words, consistent or not."""
        return [mark if mark == "O" else f"{mark}-{chooser.choice('AB')}" for mark in chooser.choices(marks, k=6)]

    right, found = ([tags() for _ in range(200)] for _ in range(2))
    report = score_tags(found, right)
    assert report.f1 == pytest.approx(100 * f1)
    assert report.precision == pytest.approx(100 * precision)
    assert report.accuracy == pytest.approx(100 * accuracy)


def test_bilou_and_bioes_tags_give_the_same_spans() -> None:
    assert spans_of(["U-A", "B-B", "I-B", "L-B", "O"]) == spans_of(["S-A", "B-B", "I-B", "E-B", "O"])


# --- files ---


UD = (
    "# sent_id = 1\n1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_\n1\tvamos\tir\tVERB\tV\t_\t0\troot\t_\t_\n"
    "2\tnos\tnos\tPRON\tP\t_\t1\tobj\t_\t_\n2.1\te\t_\tAUX\t_\t_\t_\t_\t_\t_\n3\t10 000\t_\tNUM\tN\t_\t1\tobj\t_\t_\n"
)


@pytest.mark.parametrize(
    ("name", "text", "columns", "sentences"),
    [
        ("a.conll", "-DOCSTART- -X- O\n\nEU NNP B-ORG\n. . O\n\n", None, [(("EU", "."), ("B-ORG", "O"))]),
        ("a.conll", "EU NNP B-ORG\n. . O", ("1", "2"), [(("EU", "."), ("NNP", "."))]),
        ("a.txt", "# a comment\n# NN\n5 NN\n\n# 7 8\n5 CD\n", None, [(("#", "5"), ("NN", "NN")), (("5",), ("CD",))]),
        ("a.tsv", "New York\tB\r\n is\tO\r\n", None, [(("New York", " is"), ("B", "O"))]),
        ("a.conllu", UD, None, [(("vamos", "nos", "10 000"), ("VERB", "PRON", "NUM"))]),
        ("a.conllu", UD, ("FORM", "DEPREL"), [(("vamos", "nos", "10 000"), ("root", "obj", "obj"))]),
        ("a.jsonl", '{"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]}\n', None, [(("a", "b"), ("O", "B-X"))]),
        ("a.conll", "a B-X\nb o\n\nc O\n", None, [(("a", "b"), ("B-X", "O")), (("c",), ("O",))]),
        ("a.conll", "a x\nb o\n", None, [(("a", "b"), ("x", "o"))]),
    ],
)
def test_column_files_are_read_into_words_and_tags(
    tmp_path: Path, name: str, text: str, columns: Any, sentences: list[Any]
) -> None:
    found = read_tagged(written(tmp_path / name, text), columns)
    assert found == [TaggedSentence(*each) for each in sentences]


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a", "a X\nb X Y\n", None, r"a:2: All lines must have as many columns as line 1 \(2\), but this one has 3"),
        ("a", "a\nb\n", None, "a:1: Each line needs a word and its tag, but this one has one column"),
        ("a", "a\tX\n\tY\n", None, "a:2: Column 1 is empty"),
        ("a", "a X\n", ("1", "3"), "Column 3 was asked for, but this line has 2"),
        ("a", "a X\n", ("word", "tag"), "has no column `word`: its columns are numbers from 1 to 2"),
        ("a", "\n\n", None, "a has no sentence|one column"),
        ("a.jsonl", '{"tokens": ["a"], "ner_tags": [3]}\n', None, "needs lists of texts `tags`, but has ner_tags"),
        ("a.jsonl", '{"words": ["a", "b"], "tags": ["O"]}\n', None, "a.jsonl:1: Each word needs one tag"),
    ],
)
def test_malformed_column_files_are_refused_with_their_line(
    tmp_path: Path, name: str, text: str, columns: Any, message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        read_tagged(written(tmp_path / name, text), columns)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data.target": ["x"]}, "holds words and tags, but `data.target` names x"),
        ({"data.filters.max_tokens": 9}, "`data.filters` means nothing"),
        ({"search.beam_size": 9}, "`search.beam_size` does nothing"),
        ({"data.columns": ["1", "2"]}, "all words have the tag x"),
    ],
)
def test_bad_settings_leave_no_run(
    files: dict[str, Path], tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        transduce.train(
            task="tagging",
            source=files["train"],
            out=tmp_path / "run",
            settings={"training.steps": 1} | settings,
            **COMPUTING,
        )
    assert not (tmp_path / "run").exists()


def test_held_out_sentences_are_not_among_those_to_learn_from(files: dict[str, Path]) -> None:
    parts = _read_parts(DataSettings(source=(str(files["train"]),)))
    assert 15 <= len(parts["dev"]) <= 60
    assert len(parts["dev"]) + len(parts["training"]) == 200
    assert not {each.words for each in parts["dev"]} & {each.words for each in parts["training"]}
