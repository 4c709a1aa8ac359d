"""Test pretraining, classification from it, and parsing: each trained for a few steps, end to end, and used."""

import io
import json
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import transduce
from transduce.commands.main import main
from transduce.data.masked_language_model import MaskedBatch
from transduce.errors import TransduceError
from transduce.inference.classifier import Classifier, load_classifier
from transduce.inference.embedder import Embedder
from transduce.inference.load import load
from transduce.inference.mask_filler import Filler, load_filler
from transduce.inference.parser import Parser, load_parser
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.model_folder.cards import find_task_card
from transduce.search.scorer import Hypothesis
from transduce.search.settings import SearchSettings
from transduce.tasks.corpus import DevGroups, TaskCorpus
from transduce.tasks.kinds.masked_language_model import MaskedLanguageObjective
from transduce.tasks.kinds.parsing import ParsingKind
from transduce.tasks.run.run import Run, RunRequest, prepare_run, train_run
from transduce.tasks.train import train
from transduce.text.trees import linearize, read_tree, read_trees, unescape_word, write_line

WHO, WHAT = ["cat", "dog", "bird", "cow"], ["sleeps", "sings", "runs", "eats"]
SMALL = {
    "num_encoder_layers": 1,
    "d_model": 32,
    "d_ff": 64,
    "num_heads": 2,
    "dropout": 0.0,
}
TRAINING = {"precision": "fp32", "validate_every": 200, "report_every": 100, "warmup_steps": 20, "average_decay": 0.9}
FROM_SCRATCH = {"model": SMALL, "tokenizer": {"vocabulary_size": 320}}
DATA = ("source", "target", "dev_source", "dev_target")
SIZE: dict[str, Any] = {"d_model": 32, "d_ff": 64, "num_heads": 2}
COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
Capture = pytest.CaptureFixture[str]


def run(out: Path, settings: dict[str, Any], **changed: Any) -> None:
    train_run(RunRequest(settings=settings, out=out, device="cpu", threads=1, **changed))


def books(folder: Path) -> Path:
    """Write a text in which each sentence follows from the one before: the same animal does the next action."""
    chooser = random.Random(1)
    lines = []
    for _ in range(300):
        who, first = chooser.choice(WHO), chooser.randrange(4)
        lines += [f"The {who} {WHAT[(first + n) % 4]}." for n in range(4)]
        lines.append("")
    path = folder / "books.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    settings = {
        "task": {"kind": "masked-language-model", "context": 24},
        "data": {"source": [str(books(folder))]},
        "tokenizer": {"vocabulary_size": 300},
        "model": SMALL,
        "training": TRAINING | {"steps": 200, "batch_tokens": 384, "learning_rate": 0.005},
    }
    run(folder / "run", settings)
    return folder / "run"


def test_hidden_tokens_are_found_after_pretraining(pretrained: Path) -> None:
    score = json.loads((pretrained / "dev_score.json").read_text("utf-8"))
    assert score["perplexity"] < 30
    filler = load_filler(pretrained, precision="fp32", device="cpu", threads=1)
    filling = filler("The [MASK] sings. The cat [MASK]", candidates=6)
    assert [len(mask) for mask in filling.masks] == [6, 6]
    for mask in filling.masks:
        assert [candidate.probability for candidate in mask] == sorted(
            (candidate.probability for candidate in mask), reverse=True
        )
    assert filling.text.startswith("The ")
    assert "[MASK]" not in filling.text


def test_a_masked_language_model_opens_as_a_filler_only(pretrained: Path) -> None:
    opened = load(pretrained, precision="fp32", device="cpu", threads=1)
    assert isinstance(opened, Filler)
    assert transduce.Filler is Filler
    assert find_task_card(pretrained) is not None
    with pytest.raises(TransduceError, match=r"Classifying needs a model that was trained with `--task"):
        load_classifier(pretrained)
    with pytest.raises(TransduceError, match=r"Parsing needs a model .* is for `masked-language-model`"):
        load_parser(pretrained)


def test_fill_mask_command_prints_candidates_as_text_and_json(
    pretrained: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["fill-mask", str(pretrained), "The [MASK] sings.", "--candidates", "2", *COMPUTING]) == 0
    text, candidates = capsys.readouterr().out.strip().split("\n")
    assert text.startswith("The")
    assert len(candidates.split("  ")) >= 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The cow [MASK].\n\n")))
    assert main(["fill-mask", str(pretrained), "--json", "-", *COMPUTING]) == 0
    (filling,) = json.loads(capsys.readouterr().out)["fillings"]
    assert len(filling["masks"][0]) == 5


def test_embed_command_writes_the_vectors_of_the_embedder(
    pretrained: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["The cow sings.", "", "The dog " * 30, "“é”"]
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    options = ["--pooling", "max", "--normalize", "--precision", "fp32", "--threads", "1"]
    expected = transduce.load(pretrained, task="embedding", precision="fp32", threads=1)
    expected = Embedder(expected.model, expected.tokenizer, length=expected.length, pooling="max", normalizes=True)
    vectors = expected(texts)
    for name in ("v.npy", "v.jsonl"):
        assert (
            main(["embed", str(pretrained), str(tmp_path / "texts"), "--output", str(tmp_path / name), *options]) == 0
        )
        assert "texts of which the model reads only the first 24 tokens: 1\n" in capsys.readouterr().err
    assert np.array_equal(np.load(tmp_path / "v.npy"), vectors.numpy())
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text("utf-8").splitlines()]
    assert [line["text"] for line in lines] == texts
    assert torch.equal(torch.tensor([line["vector"] for line in lines]), vectors)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["embed", str(pretrained), "--output", str(tmp_path / "none.npy"), *options]) == 0
    assert np.load(tmp_path / "none.npy").shape == (0, vectors.shape[1])
    assert main(["embed", str(pretrained), "--output", str(tmp_path / "v.txt"), *options]) == 2
    assert "must end in .npy or .jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no mask here"], r'There is nothing to fill in "no mask here": put \[MASK\]'),
        (["[MASK] " * 40], r"A text to fill may have 22 tokens at most, but this one has 40"),
        ([""], r'There is nothing to fill in "": put \[MASK\]'),
        (["[MASK]", "--candidates", "0"], "`--candidates` must be at least 1, but is 0"),
    ],
)
def test_texts_without_a_mask_or_too_long_are_refused(
    pretrained: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    assert main(["fill-mask", str(pretrained), *arguments, *COMPUTING]) == 2
    captured = capsys.readouterr().err
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(captured)


def labelled(folder: Path) -> dict[str, list[str]]:
    """Write texts about an animal, which is their label, and return the settings of their files."""
    chooser = random.Random(2)
    files: dict[str, list[str]] = {}
    for name, count in (("source", 200), ("dev_source", 40)):
        animals = [chooser.choice(WHO) for _ in range(count)]
        texts = [f"Who {chooser.choice(WHAT)}? The {who} {chooser.choice(WHAT)}, {n}" for n, who in enumerate(animals)]
        for side, lines in ((name, texts), (name.replace("source", "target"), [f"a {who}" for who in animals])):
            path = folder / f"{side}.txt"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            files[side] = [str(path)]
    return files


def classify_settings(files: dict[str, list[str]], **more: Any) -> dict[str, Any]:
    training = TRAINING | {"steps": 100, "validate_every": 100, "learning_rate": 0.005}
    return {"task": {"kind": "classification"}, "data": files, "training": training} | more


@pytest.fixture(scope="module")
def classifier_folder(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    settings = classify_settings(labelled(folder), init_from=str(pretrained))
    del settings["training"]["learning_rate"]
    run(folder / "run", settings)
    return folder / "run"


def test_a_pretrained_model_learns_to_classify(classifier_folder: Path, pretrained: Path) -> None:
    score = json.loads((classifier_folder / "dev_score.json").read_text("utf-8"))
    assert score["scores"]["accuracy"] >= 90.0
    classifier = load(classifier_folder, precision="fp32", device="cpu", threads=1)
    assert isinstance(classifier, Classifier)
    assert classifier.labels == ("a bird", "a cat", "a cow", "a dog")
    assert classifier.tokenizer.fingerprint == load_filler(pretrained).tokenizer.fingerprint
    found = classifier(["Who sings? The cow eats, 7", "", "Who runs? The dog runs, 3"])
    assert [each.label for each in found][::2] == ["a cow", "a dog"]
    for each in found:
        assert sum(each.probabilities.values()) == pytest.approx(1.0, abs=1e-5)
        assert each.probability == max(each.probabilities.values())
    assert classifier("Who sings? The cow eats, 7").probabilities == pytest.approx(found[0].probabilities, abs=1e-5)


def test_a_classification_run_reports_no_target_text_and_no_decoder(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report of a run mentions neither target text nor a decoder."""
    files = labelled(tmp_path)
    for side in ("target", "dev_target"):
        path = Path(files[side][0])
        path.write_text(path.read_text("utf-8").replace("a ", "Ж" * 9), "utf-8")  # spelt in bytes
    request = RunRequest(
        settings=classify_settings(files, init_from=str(pretrained)), out=tmp_path / "run", dry_run=True, threads=1
    )
    train_run(request)
    said = capsys.readouterr().err
    assert f"as in {pretrained}" in said
    share = json.loads((pretrained / "dev_score.json").read_text("utf-8"))["scores"]["masked_accuracy"]
    assert f"{share:.1f} % of its masked dev tokens" in said
    assert ("compare with a run without this base model" in said) == (share < 30.0)
    assert "of the target's tokens are" not in said
    assert "num_decoder_layers" not in said


def test_weights_come_from_the_pretrained_model_and_go_on_after_a_stop(pretrained: Path, tmp_path: Path) -> None:
    files = labelled(tmp_path)
    settings = classify_settings(files, init_from=str(pretrained))
    settings["training"] = settings["training"] | {"steps": 1, "learning_rate": 1e-9, "average_decay": 0.0}
    run(tmp_path / "one", settings)
    begun, from_text = (load_classifier(tmp_path / "one").model, load_filler(pretrained).model)
    assert torch.allclose(begun.source_weight, from_text.source_weight, atol=1e-2)
    assert begun.config.num_labels == 4
    run(tmp_path / "one", {"training": {"steps": 2}}, resume=True)
    assert json.loads((tmp_path / "one" / "metrics.jsonl").read_text("utf-8").split("\n")[-2])["step"] == 2


def test_the_classifier_comes_from_a_model_of_the_same_labels_alone(pretrained: Path, tmp_path: Path) -> None:
    """A next-sentence head also has two classes, but must not initialize a classifier of two labels."""
    training = TRAINING | {"steps": 1, "learning_rate": 1e-9, "average_decay": 0.0}
    seeds = {"first": 1, "same": 2, "others": 2}
    heads = [load_filler(pretrained, precision="fp32").model.classifier]
    for name, begun_from, labels in (
        ("first", pretrained, ("bad", "good")),
        ("same", tmp_path / "first", ("bad", "good")),
        ("others", tmp_path / "first", ("warm", "cold")),
    ):
        texts, classes = tmp_path / f"{name}.txt", tmp_path / f"{name}.labels"
        texts.write_text("".join(f"The {who} {what} {n}\n" for n in range(4) for who in WHO for what in WHAT), "utf-8")
        classes.write_text(f"{labels[0]}\n{labels[1]}\n" * 32, "utf-8")
        files = {"source": [str(texts)], "target": [str(classes)]}
        settings = {"task": {"kind": "classification"}, "data": files, "init_from": str(begun_from)}
        run(tmp_path / name, settings | {"training": training | {"seed": seeds[name]}})
        heads.append(load_classifier(tmp_path / name, precision="fp32").model.classifier)
    following, first, same, others = (head.weight for head in heads if head is not None)
    assert not torch.allclose(first, following, atol=1e-2)
    assert torch.allclose(same, first, atol=1e-5)
    assert not torch.allclose(others, first, atol=1e-2)


def test_lora_trains_the_whole_head_and_keeps_the_embeddings(pretrained: Path, tmp_path: Path) -> None:
    settings = classify_settings(labelled(tmp_path), init_from=str(pretrained))
    settings["training"] = settings["training"] | {"lora_rank": 4}
    run(tmp_path / "run", settings)
    classifier = load_classifier(tmp_path / "run", precision="fp32", device="cpu", threads=1)
    from_text = load_filler(pretrained, precision="fp32", device="cpu", threads=1)
    assert torch.equal(classifier.model.source_weight, from_text.model.source_weight)
    score = json.loads((tmp_path / "run" / "dev_score.json").read_text("utf-8"))
    assert score["scores"]["accuracy"] >= 60.0  # one in four by chance; a frozen head would stay there


def test_a_classifier_trains_from_scratch_and_accepts_long_texts(tmp_path: Path) -> None:
    settings = classify_settings(labelled(tmp_path), **FROM_SCRATCH)
    run(tmp_path / "run", settings)
    classifier = load_classifier(tmp_path / "run")
    assert classifier.model.config.num_labels == 4
    long = classifier("The cat sings " * 500)
    assert long.label in classifier.labels


def test_classify_command_prints_labels_and_accuracy(
    classifier_folder: Path, capsys: Capture, tmp_path: Path, monkeypatch: Any
) -> None:
    files = {name: paths[0] for name, paths in labelled(tmp_path).items()}
    model = str(classifier_folder)
    assert main(["classify", model, files["dev_source"], *COMPUTING]) == 0
    labels = capsys.readouterr().out.split("\n")[:-1]
    right = Path(files["dev_target"]).read_text("utf-8").split("\n")[:-1]
    assert sum(map(str.__eq__, labels, right)) >= 36
    arguments = ["--labels", files["dev_target"], "--json", "-", "--output", str(tmp_path / "out.txt")]
    assert main(["classify", model, files["dev_source"], *arguments, *COMPUTING]) == 0
    assert json.loads(capsys.readouterr().out)["right"] == sum(map(str.__eq__, labels, right))
    assert (tmp_path / "out.txt").read_text("utf-8").split("\n")[:-1] == labels
    mistaken = ["--labels", files["dev_source"], "--output", str(tmp_path / "none.txt")]
    assert main(["classify", model, files["dev_source"], *mistaken, *COMPUTING]) == 2
    assert "is no label of this model, nor is any other line: its labels are" in capsys.readouterr().err
    assert not (tmp_path / "none.txt").exists()
    unseen = ["--labels", files["dev_target"], "--probabilities"]
    assert main(["classify", model, files["dev_source"], *unseen, *COMPUTING]) == 2
    assert "`--probabilities` are printed after labels, but `--labels` prints none" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Who sings? The cow eats, 7\n")))
    assert main(["classify", model, "--probabilities", "2", *COMPUTING]) == 0
    columns = capsys.readouterr().out.strip().split("\t")
    assert columns[0] == "a cow"
    assert float(columns[1]) > float(columns[3])
    for wrong in (files["dev_source"], "0", "-1"):
        with pytest.raises(SystemExit, match="2"):
            main(["classify", model, f"--probabilities={wrong}"])
        message = rf"'{re.escape(wrong)}' is not a number of labels \(1 or more\); put a file before the option"
        assert re.search(message, capsys.readouterr().err)


def test_the_number_of_rows_per_batch_follows_from_the_task_context(pretrained: Path, tmp_path: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "run")
    begun = Run(RunRequest(settings={}, out=tmp_path / "run", resume=True, device="cpu", threads=1))
    resolved, corpus = begun.resume()
    model = msgspec.structs.replace(resolved.model, max_positions=4 * resolved.model.max_positions)
    longer = msgspec.structs.replace(resolved, model=model)
    assert len(begun.kind.plan(corpus, longer)) == len(begun.kind.plan(corpus, resolved))
    without = msgspec.structs.replace(resolved.task, next_sentence=False)
    with pytest.raises(TransduceError, match=r"`task\.next_sentence` is False, but the base model has 2"):
        begun.kind.check_base_model(resolved.model, without, "models/base")
    for labels, head in (
        (4, True),
        (2, False),
    ):  # a model without a masked language head was not trained on next sentences
        classes = msgspec.structs.replace(resolved.model, num_labels=labels, masked_language_head=head)
        with pytest.raises(TransduceError, match=f"the base model distinguishes {labels} classes of texts"):
            begun.kind.check_base_model(classes, resolved.task, "models/base")


def test_the_pretraining_loss_is_the_same_for_any_division_among_processes(pretrained: Path, tmp_path: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "run")
    begun = Run(RunRequest(settings={}, out=tmp_path / "run", resume=True, device="cpu", threads=1))
    resolved, corpus = begun.resume()
    loss_of = begun.kind.loss(build_model(resolved.model).eval(), resolved)
    unequal = 0
    for position in range(8):
        whole = loss_of(begun.kind.plan(corpus, resolved).batch(0, position))
        parts = [loss_of(begun.kind.plan(corpus, resolved, (rank, 3)).batch(0, position)) for rank in range(3)]
        assert sum(part.tokens for part in parts) == whole.tokens
        assert sum(float(part.total.detach()) for part in parts) == pytest.approx(float(whole.total.detach()), rel=1e-5)
        unequal += len({part.tokens for part in parts}) > 1
    assert unequal > 0  # in some batches, processes have different numbers of masked tokens


def test_pretraining_without_next_sentence_leaves_the_pooler_to_classification(tmp_path: Path) -> None:
    text = books(tmp_path)
    settings = {
        "task": {"kind": "masked-language-model", "context": 16, "next_sentence": False, "masking": {"share": 0.3}},
        "data": {"source": [str(text)], "dev_source": [str(text)]},
        "tokenizer": {"vocabulary_size": 300},
        "model": SMALL,
        "training": TRAINING | {"steps": 2, "batch_tokens": 160},
    }
    run(tmp_path / "one", settings)
    model = load_filler(tmp_path / "one").model
    assert (model.pooler, model.classifier) == (None, None)
    assert set(json.loads((tmp_path / "one" / "dev_score.json").read_text("utf-8"))["scores"]) == {"masked_accuracy"}
    taught = classify_settings(labelled(tmp_path), init_from=str(tmp_path / "one"))
    taught["training"] = TRAINING | {"steps": 2}
    run(tmp_path / "two", taught)
    assert load_classifier(tmp_path / "two").model.pooler is not None


def test_classification_from_a_translation_model_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"is transformer, but `task.kind` = classification takes encoder"):
        run(tmp_path / "run", classify_settings(labelled(tmp_path), init_from=str(trained)))


def test_a_single_label_is_no_classification(tmp_path: Path) -> None:
    files = labelled(tmp_path)
    for side in ("target", "dev_target"):
        path = Path(files[side][0])
        path.write_text("same\n" * len(path.read_text("utf-8").split("\n")[:-1]), encoding="utf-8")
    with pytest.raises(TransduceError, match=r'at least two labels, but all texts have the label "same"'):
        run(tmp_path / "run", classify_settings(files, model=SMALL, tokenizer={"vocabulary_size": 320}))


def test_swapped_texts_and_labels_are_noticed(tmp_path: Path, capsys: Capture) -> None:
    files = labelled(tmp_path)
    swapped = {
        side: files[other] for side, other in zip(files, ("target", "source", "dev_target", "dev_source"), strict=True)
    }
    settings = classify_settings(swapped, model=SMALL, tokenizer={"vocabulary_size": 320})
    settings["training"] |= {"steps": 1, "validate_every": 1}
    run(tmp_path / "run", settings)
    assert "There are nearly as many labels as texts: are they swapped?" in capsys.readouterr().err


def treebank(path: Path, count: int, seed: int) -> Path:
    """Write random trees of a small grammar, and return the file."""
    chooser = random.Random(seed)

    def noun_phrase() -> str:
        plain = f"(NP (DT the) (NN {chooser.choice(WHO)}))"
        return f"(NP-SBJ {plain} (PP (IN and/or) {plain}))" if chooser.random() < 0.4 else plain

    trees = [f"( (S {noun_phrase()} (VP (VBZ {chooser.choice(WHAT)})) (. .)) )" for _ in range(count)]
    path.write_text("".join(f"{tree}\n" for tree in trees), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def parser_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parser")
    settings = {
        "task": {"kind": "parsing"},
        "data": {
            "source": [str(treebank(folder / "train.trees", 300, 1))],
            "dev_source": [str(treebank(folder / "dev.trees", 20, 2))],
        },
        "tokenizer": {"vocabulary_size": 310},
        "model": SMALL | {"num_decoder_layers": 1},
        "training": TRAINING | {"steps": 150, "batch_tokens": 512, "learning_rate": 0.01, "translate_dev": 10},
        "search": {"beam_size": 2},
    }
    run(folder / "run", settings)
    return folder / "run"


def test_messages_of_a_run_count_the_units_of_its_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trees = str(treebank(tmp_path / "train.trees", 300, 1))
    texts, labels = tmp_path / "texts.csv", ["yes", "no"]
    rows = [f'"{number}  is it {"true" if number % 2 else "false"}",{labels[number % 2]}' for number in range(200)]
    texts.write_text("text,label\n" + "".join(f"{row}\n" for row in rows), "utf-8")
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"Line {number} is a sentence here.\n\n" for number in range(200)), "utf-8")
    cases = {
        "parsing": ([trees], {}, ["300 trees read, "]),
        "classification": (
            [str(texts)],
            {"columns": ["text", "label"]},
            ["200 texts read, ", "outer or repeated spaces: the vocabulary collapses them, so the model reads single"],
        ),
        "denoising": ([str(lines)], {}, ["dropped: empty (first", "loss  the measure of `task.kind` denoising"]),
        "masked-language-model": ([str(lines)], {}, [" sentences read, "]),
    }
    for kind, (source, data, expected) in cases.items():
        task = {"kind": kind} | ({"next_sentence": False} if kind == "masked-language-model" else {})
        settings = {"task": task, "data": {"source": source} | data, "training": {"steps": 1}}
        prepare_run(RunRequest(settings=settings, out=tmp_path / kind, device="cpu", threads=1))
        said = capsys.readouterr().err
        for part in expected:
            assert part in said, (kind, part)
        assert "pair" not in said, kind
        assert "translat" not in said
        assert "data.languages" not in said


def test_models_that_are_no_better_than_a_baseline_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chooser = random.Random(3)
    lines, labels = tmp_path / "lines.txt", tmp_path / "labels.txt"
    lines.write_text("".join(f"The {chooser.choice(WHO)} {chooser.choice(WHAT)}.\n" for _ in range(400)), "utf-8")
    labels.write_text("".join(f"{'rare' if chooser.random() < 0.2 else 'usual'}\n" for _ in range(400)), "utf-8")
    tagged, series = tmp_path / "tagged.conll", tmp_path / "series.csv"
    tagged.write_text("".join(f"{chooser.choice(WHO)} N\n{chooser.choice(WHAT)} V\n\n" for _ in range(100)), "utf-8")
    series.write_text("load\n" + "".join(f"{number % 6}\n" for number in range(200)), "utf-8")
    frequencies = ("token frequencies alone", "has learned little more than how frequent tokens are: its perplexity")
    usual = labels.read_text("utf-8").count("usual") / 4
    cases: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "language-model": ({"source": [str(lines)]}, frequencies),
        "denoising": ({"source": [str(lines)]}, frequencies),
        "masked-language-model": ({"source": [str(lines)]}, frequencies),
        "classification": (
            {k: [str(path)] for k, path in zip(DATA, (lines, labels, lines, labels), strict=True)},
            (f"(majority class {usual:.2f} %)", "hardly better than answering always with the most frequent class"),
        ),
        "tagging": (
            {"source": [str(tagged)]},
            ("Each word's most frequent tag alone: accuracy 100.00 %", "than giving each word its most frequent tag"),
        ),
        "time-series": (
            {"source": [str(series)]},
            ("The forecasts are not better than repeating the last season or the last value.",),
        ),
        "parsing": ({"source": [str(treebank(tmp_path / "x.trees", 60, 1))]}, ("into one constituent: their F1 is",)),
    }
    for kind, (data, expected) in cases.items():
        task: dict[str, Any] = {"kind": kind} | ({"next_sentence": False} if kind.startswith("masked") else {})
        task |= {"context": 16} if kind == "language-model" else {}
        settings = {"task": task, "data": data, "training": TRAINING | {"steps": 1}, "model": SIZE}
        if kind != "time-series":
            settings["tokenizer"] = {"vocabulary_size": 310}
        run(tmp_path / kind, settings)
        said = capsys.readouterr().err
        for part in (*expected, "The run has taken 1 step ("):
            assert part in said, (kind, part)
        events = map(json.loads, (tmp_path / kind / "metrics.jsonl").read_text("utf-8").splitlines())
        epochs = [event["epoch"] for event in events if "epoch" in event]
        assert f"The run has taken 1 step ({epochs[-1]:,.2f} epochs): train longer" in said, kind


def test_a_time_limit_keeps_a_parser_time_for_one_search_of_the_dev_set() -> None:
    sources = ["the cat sleeps ."] * 200
    corpus = SimpleNamespace(
        dev_sources=sources, dev_targets=sources, dev_groups=DevGroups(), languages=(None, None), pairs=300
    )
    training, model = SimpleNamespace(translate_dev=200), SimpleNamespace(kind="transformer")
    resolved: Any = SimpleNamespace(search=SearchSettings(), model=model, training=training)
    assert ParsingKind().end_validations(cast("TaskCorpus", corpus), resolved) == pytest.approx(1.1)


def test_a_parser_learns_a_small_grammar(parser_folder: Path) -> None:
    report = json.loads((parser_folder / "dev_score.json").read_text("utf-8"))
    assert report["all"]["invalid"] == 0
    assert report["all"]["matched"] >= 0.9 * report["all"]["reference"]
    events = [json.loads(line) for line in (parser_folder / "metrics.jsonl").read_text("utf-8").split("\n")[:-1]]
    assert events[-1]["scores"]["f1"] >= 90.0
    parser = load(parser_folder, precision="fp32", device="cpu", threads=1)
    assert isinstance(parser, Parser)
    parse = parser("the cat sleeps .")
    assert str(parse) == "(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)) (. .))"
    assert parse.draw().startswith("S\n  NP  the/DT  cat/NN")


@pytest.mark.parametrize("beam_size", [1, 3])
def test_any_sentence_gets_a_valid_tree_over_exactly_its_words(parser_folder: Path, beam_size: int) -> None:
    parser = load_parser(parser_folder, precision="fp32", device="cpu", threads=1)
    sentences = ["( ) ( )", "zebra", "", "Ünïcödé ，。 -LRB- (NP", "the " * 60, "a/b /NN [MASK] ) the cat"]
    parser = Parser(parser.model, parser.tokenizer, search=SearchSettings(beam_size=beam_size))
    for sentence, parse in zip(sentences, parser(sentences), strict=True):
        words = [unescape_word(word) for word in sentence.split()]
        if not words:
            assert parse.tree is None
            assert str(parse) == ""
            continue
        assert parse.tree is not None
        assert parse.tree.words() == words
        assert len(read_tree(str(parse)).words()) == len(words)


def test_a_parser_with_learned_positions_cuts_trees_and_refuses_longer_sentences(parser_folder: Path) -> None:
    tokenizer = load_parser(parser_folder, precision="fp32", device="cpu", threads=1).tokenizer
    config = ModelConfig(
        **SIZE,
        source_vocabulary_size=tokenizer.source.size,
        target_vocabulary_size=tokenizer.target.size,
        num_encoder_layers=1,
        num_decoder_layers=1,
        pad_id=tokenizer.target.pad_id,
        eos_id=tokenizer.target.eos_id,
        positions="learned",
        max_positions=40,
    )
    torch.manual_seed(1)
    parser = Parser(Transformer(config).eval(), tokenizer, search=SearchSettings(beam_size=2))
    words = ("the", "cat", "sleeps", "and", "the", "dog", "sleeps", ".")
    (parse,) = parser.parse([words])
    assert parse.tree is not None
    assert tuple(parse.tree.words()) == words
    with pytest.raises(TransduceError, match=r"at most 40 tokens \(`model.max_positions`\), but sentence 2 has"):
        parser.parse([words, ["cat"] * 60])


def test_the_parser_restores_words_that_look_like_brackets_and_labels(
    parser_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands in a word, what a model writes is read as it was written."""
    tree = read_tree("(S (NP (DT -RRB-) (NN S-LRB-)) (VP (VBZ x/)) (. ⟩))")
    parser = load_parser(parser_folder, precision="fp32", device="cpu", threads=1)
    line = write_line(tree.words(), linearize(tree), frozenset())
    written = Hypothesis(tuple(parser.tokenizer.target.encode(line)), (), 0.0, ended=True)
    monkeypatch.setattr(parser, "_search", lambda batch: [[written] for _ in batch])
    assert parser(" ".join(tree.words())).tree == tree


def test_parser_training_starts_from_a_parser_that_knows_the_labels(
    parser_folder: Path, trained: Path, tmp_path: Path
) -> None:
    """Its runs of symbols are kept, although other ones are the most frequent now."""
    few = treebank(tmp_path / "few.trees", 40, 5)
    training = TRAINING | {"steps": 2, "batch_tokens": 256, "translate_dev": 0}
    settings = {"task": {"kind": "parsing"}, "data": {"source": [str(few)]}, "training": training}
    run(tmp_path / "on", settings | {"init_from": str(parser_folder)})
    assert (tmp_path / "on" / "symbols.txt").read_text("utf-8").split()[0].startswith("⟩")
    for other, start in ((few, trained), (tmp_path / "other.trees", parser_folder)):
        (tmp_path / "other.trees").write_text("(IP (PN I) (VV go))\n" * 60, encoding="utf-8")
        with pytest.raises(TransduceError, match=r"lacks the token ⟩.*, which `task.kind` parsing needs for this text"):
            run(tmp_path / "off", settings | {"data": {"source": [str(other)]}, "init_from": str(start)})


def test_a_label_that_no_symbol_can_have_is_named_with_its_tree_and_file(tmp_path: Path) -> None:
    (tmp_path / "odd.trees").write_text("(S (NN a)) (S (N▁N b))\n", encoding="utf-8")
    settings = {"task": {"kind": "parsing"}, "data": {"source": [str(tmp_path / "odd.trees")]}}
    with pytest.raises(TransduceError, match=r'odd.trees: A label must .* but one is "N▁N" in \(N▁N b\): rename it'):
        run(tmp_path / "run", settings)


def test_a_line_without_a_mask_is_reported_with_its_number(
    pretrained: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The cow [MASK].\n\nno mask\n")))
    assert main(["fill-mask", str(pretrained), *COMPUTING]) == 2
    captured = capsys.readouterr()
    assert "transduce: Standard input, line 3: There is nothing to fill in" in captured.err
    assert captured.out == ""


def test_a_text_file_without_sentences_is_refused_by_name(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    settings = {"task.kind": "masked-language-model"}
    with pytest.raises(TransduceError, match=rf"^There is no sentence in {re.escape(str(empty))}: name files"):
        train(out=tmp_path / "run", source=empty, settings=settings, device="cpu", threads=1)
    assert not (tmp_path / "run").exists()


def test_labels_of_the_dev_set_alone_are_reported(tmp_path: Path, capsys: Capture) -> None:
    files = labelled(tmp_path)
    dev = Path(files["dev_target"][0])
    dev.write_text("\n".join(["unheard", *dev.read_text("utf-8").split("\n")[1:]]), encoding="utf-8")
    run(tmp_path / "run", classify_settings(files, **FROM_SCRATCH))
    assert "classes (of the dev set alone: “unheard”)" in capsys.readouterr().err


@pytest.mark.parametrize("side", ["target", "dev_target"])
@pytest.mark.parametrize("kept", [True, False])
def test_labels_that_the_vocabulary_alters_are_refused(pretrained: Path, tmp_path: Path, side: str, kept: bool) -> None:
    files = labelled(tmp_path)
    path = Path(files[side][0])
    lines = path.read_text("utf-8").split("\n")
    path.write_text("\n".join([lines[0], "a  cat", *lines[2:]]), encoding="utf-8")
    message = rf"^{re.escape(str(path))}:2: .* spells the label “a  cat” as “a cat”: rename it .*, such as a number\.$"
    with pytest.raises(TransduceError, match=message):
        run(tmp_path / "run", classify_settings(files, **({"init_from": str(pretrained)} if kept else FROM_SCRATCH)))
    assert not (tmp_path / "run").exists()


def test_labels_that_differ_in_spaces_are_learnt_and_scored_apart_by_characters(
    tmp_path: Path, capsys: Capture
) -> None:
    """A vocabulary of characters keeps all spaces. A label of a line that is left out does not matter."""
    labels = {"sings": "a cat", "runs": " a  cat"}
    texts = [chosen for n in range(100) for chosen in (f"it sings {n}", f"it runs {n}")]
    for name, lines in (("source", ["", *texts]), ("target", ["\x00", *(labels[text.split()[1]] for text in texts)])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {side: [str(tmp_path / side)] for side in ("source", "target")}
    settings = classify_settings(files, model=SMALL, tokenizer={"kind": "character"})
    settings["training"].pop("learning_rate")
    run(tmp_path / "run", settings)
    assert load_classifier(tmp_path / "run").labels == (" a  cat", "a cat")
    arguments = ["classify", str(tmp_path / "run"), *files["source"], "--labels", *files["target"], "--json", "-"]
    assert main([*arguments, *COMPUTING]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 99.0


def test_a_batch_of_texts_is_described_by_its_labels(classifier_folder: Path) -> None:
    request = RunRequest(settings={}, out=classifier_folder, resume=True, device="cpu", threads=1)
    going_on = Run(request)
    resolved, corpus = going_on.resume()
    described = going_on.kind.describe_batch(corpus, going_on.kind.plan(corpus, resolved).batch(0, 0))
    labels = ("a bird", "a cat", "a cow", "a dog")
    assert set(described["target"]) <= set(labels)
    assert described["target"] == [labels[number] for number in described["target_ids"]]


@pytest.mark.parametrize("kind", ["language-model", "denoising"])
def test_separate_vocabularies_for_tasks_on_one_text_are_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "text.en").write_text("The dog runs.\n" * 50, encoding="utf-8")
    settings = {"task": {"kind": kind}, "data": {"source": [str(tmp_path / "text.en")]}, "tokenizer": {"joint": False}}
    with pytest.raises(TransduceError, match=r"`tokenizer\.joint` = false is for separate vocabularies"):
        run(tmp_path / "run", settings)


def test_brackets_may_be_written_as_the_treebank_has_them(parser_folder: Path, capsys: Capture, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the -LRB- dog -RRB- .\nthe ( dog ) .\n", encoding="utf-8")
    assert main(["parse", str(parser_folder), str(text), *COMPUTING]) == 0
    first, second, _ = capsys.readouterr().out.split("\n")
    assert first == second
    assert "-LRB-" in first
    parser = load_parser(parser_folder, precision="fp32", device="cpu", threads=1)
    assert str(parser("the -LRB- dog -RRB- .")) == str(parser("the ( dog ) .")) == first


def test_parse_refuses_strings_and_words_with_spaces(parser_folder: Path) -> None:
    parser = load_parser(parser_folder, precision="fp32", device="cpu", threads=1)
    with pytest.raises(TransduceError, match="`the dog` is a text, whose words would be its characters"):
        parser.parse(["the dog"])
    for word in ("New York", ""):
        with pytest.raises(TransduceError, match=f"has a character and no space, but one is '{word}'"):
            parser.parse([["the", word]])


def test_the_translate_command_refuses_a_parser(parser_folder: Path, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the dog .\n", encoding="utf-8")
    assert main(["translate", str(parser_folder), str(tmp_path / "text.txt"), *COMPUTING]) == 2
    assert "holds a parser: `transduce parse` uses it" in capsys.readouterr().err


def test_parse_command_prints_trees_and_scores(
    parser_folder: Path, capsys: Capture, tmp_path: Path, monkeypatch: Any
) -> None:
    dev = treebank(tmp_path / "dev.trees", 20, 3)
    arguments = ["--reference", str(dev), "--output", str(tmp_path / "out.trees"), "--json", "-", "--beam-size", "1"]
    assert main(["parse", str(parser_folder), *arguments, *COMPUTING]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["valid"], report["cut"], report["beam_size"]) == (100.0, 0, 1)
    assert report["f1"] >= 90.0
    assert len(list(read_trees(tmp_path / "out.trees"))) == 20
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the dog sings .\n\nthe cow .\n")))
    assert main(["parse", str(parser_folder), *COMPUTING]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].startswith("(S ")
    assert (lines[1], len(lines)) == ("", 4)
    text = tmp_path / "text.txt"
    text.write_text("the dog sings .\n", encoding="utf-8")
    assert main(["parse", str(parser_folder), str(text), "--pretty", *COMPUTING]) == 0
    assert "  NP  the/DT  dog/NN" in capsys.readouterr().out
    assert main(["parse", str(parser_folder), str(text), "--reference", str(dev), *COMPUTING]) == 2
    assert "--reference has its own sentences" in capsys.readouterr().err


def test_without_tags_words_are_placeholders(tmp_path: Path) -> None:
    settings = {
        "task": {"kind": "parsing", "tags": False},
        "data": {"source": [str(treebank(tmp_path / "train.trees", 200, 1))]},
        "tokenizer": {"vocabulary_size": 310},
        "model": SMALL | {"num_decoder_layers": 1},
        "training": TRAINING | {"steps": 2, "translate_dev": 0, "batch_tokens": 256},
    }
    run(tmp_path / "run", settings)
    parser = load_parser(tmp_path / "run")
    tree = parser("the cat sleeps .").tree
    assert tree is not None
    assert {leaf.label for leaf in tree.leaves()} == {"XX"}


def test_the_pretraining_loss_adds_the_means_of_masking_and_next_sentence(pretrained: Path) -> None:
    model = load_filler(pretrained, precision="fp32", device="cpu", threads=1).model
    ids = torch.tensor([[3, 20, 21, 4, 22, 4], [3, 23, 4, 24, 4, 0], [3, 25, 4, 26, 4, 0]]).numpy()
    labels, types = np.zeros_like(ids), np.zeros_like(ids)
    labels[:, 1] = 20, 23, 25
    labels[0, 2] = 21
    follows = np.array([1, 0, 0])
    batch = MaskedBatch(ids, labels, np.arange(3), 16, 4, types, follows, 4 / 3)
    with torch.no_grad():
        loss = MaskedLanguageObjective(model).loss(batch)
        told = F.cross_entropy(model.classify(model.encode(torch.tensor(ids))[0]), torch.tensor(follows))
    assert float(loss.total) / loss.tokens == pytest.approx(float(loss.negative_log_likelihood) / 4 + float(told))


def records_of(folder: Path, counts: list[int]) -> dict[str, Any]:
    """Return settings of pretraining on documents with these numbers of sentences."""
    texts = [" ".join(f"The cat slept {number}." for number in range(count)) for count in counts]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return {
        "task": {"kind": "masked-language-model"},
        "data": {"source": [str(folder / "texts.jsonl")]},
        "tokenizer": {"vocabulary_size": 280},
        "model": SMALL,
        "training": TRAINING | {"steps": 1},
    }


def test_next_sentence_prediction_on_documents_of_one_segment_is_refused(tmp_path: Path) -> None:
    settings = records_of(tmp_path, [1] * 60)
    with pytest.raises(TransduceError, match=r"each document of this text is a single segment: .*next_sentence=false"):
        run(tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()
    run(tmp_path / "run", settings | {"task": settings["task"] | {"next_sentence": False}})


def test_the_choice_log_reports_that_few_segments_have_a_next_one(tmp_path: Path, capsys: Capture) -> None:
    run(tmp_path / "run", records_of(tmp_path, [2] * 2 + [1] * 60), dry_run=True)
    assert re.search(r"task.next_sentence +True +but 3% of segments have another after them", capsys.readouterr().err)
    run(tmp_path / "run", records_of(tmp_path, [3] * 60), dry_run=True)
    assert "task.next_sentence" not in capsys.readouterr().err


def test_the_choice_log_of_pretraining_counts_the_tokens_that_are_read(tmp_path: Path) -> None:
    settings = records_of(tmp_path, [1] * 2_000)
    asked = RunRequest(
        settings=settings | {"task": settings["task"] | {"next_sentence": False}},
        out=tmp_path / "run",
        device="cpu",
        threads=1,
    )
    resolved, corpus = (new := Run(asked)).start(tmp_path / "run")
    batches = new.kind.plan(corpus, resolved)
    read = sum(batches.batch(0, position).source_tokens for position in range(len(batches)))
    assert read == pytest.approx(len(batches) * resolved.training.batch_tokens, rel=0.05)


def test_a_text_of_too_few_sentences_is_refused_with_their_number(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("One.\nTwo.\nThree.\nFour.\nFive.\n", encoding="utf-8")
    settings = {
        "task": {"kind": "masked-language-model"},
        "data": {"source": [str(tmp_path / "text")]},
        "tokenizer": {"vocabulary_size": 300},
        "model": SMALL,
    }
    with pytest.raises(TransduceError, match=r"at least 8 sentences, .*, but this one has 5: .* \(`data.dev_source`\)"):
        run(tmp_path / "run", settings)


def test_files_left_by_a_failed_run_are_not_used_as_its_text(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (tmp_path / "bad.trees").write_text("(S (NN a)) (S\n", encoding="utf-8")
    (tmp_path / "good.trees").write_text("(S (NN a)) (S (NN b))\n" * 60, encoding="utf-8")
    (out / "trees.txt").write_text("stale\n", encoding="utf-8")
    (out / "words.txt").write_text("stale\n", encoding="utf-8")
    settings: dict[str, Any] = {"task": {"kind": "parsing"}, "model": SMALL | {"num_decoder_layers": 1}}
    settings |= {"tokenizer": {"vocabulary_size": 266}, "training": TRAINING | {"steps": 1, "batch_tokens": 64}}
    with pytest.raises(TransduceError, match=r"bad.trees:1: this tree is never closed"):
        run(out, settings | {"data": {"source": [str(tmp_path / "bad.trees")]}})
    run(out, settings | {"data": {"source": [str(tmp_path / "good.trees")]}})
    assert (out / "words.txt").read_text("utf-8") == "a\nb\n" * 60


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": {"kind": "parsing"}}, r"Parsing learns from trees: name a treebank"),
        ({"task": {"kind": "parsing"}, "search": {"beam_size": 2}}, r"Parsing learns from trees: name a treebank"),
        ({"task": {"kind": "parsing"}, "search": {"n_best": 2}}, r"`search.n_best` does nothing where .* is parsing"),
        (
            {"task": {"kind": "parsing"}, "search": {"max_length": 9}},
            r"`search.max_length` does nothing where `task.kind` is parsing: leave it out",
        ),
        ({"task": {"kind": "parsing"}, "data": {"source": ["a"], "target": ["b"]}}, r"both sides, but `data.target`"),
        (
            {"task": {"kind": "parsing"}, "data": {"source": ["a"], "format": "tsv"}},
            r"`data.format` is tsv",
        ),
        ({"task": {"kind": "masked-language-model", "context": 4}}, r"`task.context` must be at least 5 here"),
        ({"task": {"kind": "parsing", "context": 9}}, r"`task.context` means nothing where `task.kind` is parsing"),
        ({"task": {"kind": "parsing"}, "data": {"context_before": 2}}, r"`data.context_before` means nothing where"),
        ({"task": {"kind": "parsing"}, "data": {"weight_column": "w"}}, r"`data.weight_column` means nothing where"),
        ({"task": {"kind": "parsing"}, "data": {"noise": {"typos": 0.5}}}, r"`data.noise` means nothing where"),
        (
            {"task": {"kind": "parsing"}, "data": {"corpora": [{"source": ["a.mrg"]}]}},
            r"`data.corpora` means nothing where `task.kind` is parsing",
        ),
        (
            {"task": {"kind": "masked-language-model"}},
            r"masked language model learns from text: name it by `data.source`",
        ),
        ({"task": {"kind": "classification", "tags": False}}, r"`task.tags` means nothing"),
        ({"task": {"kind": "classification"}, "model": {"kind": "decoder"}}, r"takes encoder"),
        ({"task": {"kind": "classification"}, "model": {"tie_output": False}}, r"`model.tie_output` means nothing"),
        ({"task": {"kind": "classification"}, "model": {"output_bias": True}}, r"`model.output_bias` means nothing"),
        ({"task": {"kind": "classification"}, "model": {"output_scale": 2.0}}, r"`model.output_scale` means nothing"),
    ],
)
def test_settings_that_parsing_and_encoders_cannot_use_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        run(tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()


def test_a_pretrained_model_learns_to_tag(pretrained: Path, tmp_path: Path) -> None:
    sentences = [[("The", "DT"), (who, "NN"), (what, "VBZ"), (".", ".")] for who in WHO for what in WHAT]
    columns = tmp_path / "train.conll"
    columns.write_text("\n".join("".join(f"{word}\t{tag}\n" for word, tag in each) for each in sentences), "utf-8")
    settings = {"training.steps": 40, "training.learning_rate": 0.005, "training.warmup_steps": 5}
    train(
        task="tagging",
        source=columns,
        dev_source=columns,
        init_from=pretrained,
        out=tmp_path / "run",
        settings=settings,
        precision="fp32",
        device="cpu",
        threads=1,
    )
    tagger = load(tmp_path / "run", task="tagging", precision="fp32", device="cpu", threads=1)
    assert tagger("The cow sings .").tags == ("DT", "NN", "VBZ", ".")
    assert tagger.tokenizer.fingerprint == load_filler(pretrained).tokenizer.fingerprint
    assert not tagger.model.config.masked_language_head
