"""Test kNN retrieval: probabilities by hand, pairs that a model uses without training, and refused input."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

import transduce
from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.inference.datastore import Datastore, build_datastore
from transduce.inference.decoding import SentenceBatch, start_search
from transduce.inference.load import open_translator
from transduce.inference.retrieval import (
    DatastoreCard,
    NeighborIndex,
    RetrievalCandidates,
    Retriever,
    decoder_states,
    read_datastore,
)
from transduce.inference.translator import Translator
from transduce.search.settings import SamplingSettings, SearchSettings

COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
Pairs = tuple[list[str], list[str]]


@pytest.fixture(scope="module")
def pairs(toy_corpus: Path) -> Pairs:
    """Return the toy corpus with "beer" for "tea" in the targets, which the model was not trained on."""
    sources, targets = ((toy_corpus / f"train.{side}").read_text("utf-8").split("\n")[:-1] for side in ("zh", "en"))
    return sources, [target.replace("tea", "beer") for target in targets]


@pytest.fixture(scope="module")
def datastore(translator: Translator, pairs: Pairs) -> Datastore:
    return build_datastore(translator, *pairs)


@pytest.fixture(scope="module")
def datastore_file(datastore: Datastore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("examples") / "beer.examples"
    datastore.write(path)
    return path


@pytest.fixture(scope="module")
def translator_with_datastore(trained: Path, datastore_file: Path) -> Translator:
    return open_translator(trained, precision="fp32", threads=1, datastore=datastore_file)


@pytest.fixture(scope="module")
def sentences_about_tea(toy_corpus: Path) -> list[str]:
    return [line for line in (toy_corpus / "dev.zh").read_text("utf-8").split("\n") if "茶" in line]


def test_probabilities_of_neighbors_equal_hand_computed_ones() -> None:
    states = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])  # (M, D)
    card = DatastoreCard(pairs=3, weight=0.25, temperature=0.5)
    neighbours = Retriever([RetrievalCandidates(states, states.square().sum(-1), torch.tensor([4, 2, 4]))], card)
    query = torch.tensor([[[1.0, 1.0]]])  # of squared distances 2, 1 and 2
    model = torch.tensor([-torch.inf, 0.1, 0.2, 0.3, 0.4]).log().view(1, 1, 5)
    model[..., 0] = -torch.inf
    weights = [math.exp(-distance / 0.5) for distance in (2.0, 1.0, 2.0)]
    total = sum(weights)
    expected = [0.0, 0.075, 0.15 + 0.25 * weights[1] / total, 0.225, 0.3 + 0.25 * (weights[0] + weights[2]) / total]
    torch.testing.assert_close(neighbours.interpolate(query, model).exp()[0, 0], torch.tensor(expected))


def test_a_datastore_translates_words_unknown_to_the_model(
    translator: Translator, translator_with_datastore: Translator, sentences_about_tea: list[str]
) -> None:
    plain, by_examples = (
        [found.text for found in each(sentences_about_tea)] for each in (translator, translator_with_datastore)
    )
    assert len(sentences_about_tea) > 3
    assert not any("beer" in text for text in plain)
    assert sum("beer" in text for text in by_examples) > 0.8 * len(sentences_about_tea)


def test_retrieval_in_a_batch_equals_each_sentence_alone(
    translator_with_datastore: Translator, toy_corpus: Path
) -> None:
    sentences = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:20]
    for beam_size in (1, 4):
        together = translator_with_datastore(sentences, beam_size=beam_size, n_best=beam_size)
        for sentence, found in zip(sentences, together, strict=True):
            alone = translator_with_datastore(sentence, beam_size=beam_size, n_best=beam_size)
            assert found.text == alone.text
            assert found.score == pytest.approx(alone.score, abs=1e-4)


def test_scores_are_those_of_the_mixture(translator_with_datastore: Translator, sentences_about_tea: list[str]) -> None:
    """Step by step, by the whole model and all states of the nearest pairs at once."""
    found, examples, model = (
        translator_with_datastore(sentences_about_tea[0], beam_size=1),
        translator_with_datastore.datastore,
        translator_with_datastore.model,
    )
    assert examples is not None
    source = translator_with_datastore.tokenizer.source.with_special_tokens(
        translator_with_datastore.tokenizer.source.encode(sentences_about_tea[0])
    )
    text = translator_with_datastore.tokenizer.target
    ids = text.with_special_tokens(text.encode(found.text))
    states = decoder_states(model, [source], [ids])
    with torch.inference_mode():
        log_probabilities = model.project(states)
        log_probabilities[:, model.config.pad_id] = -torch.inf
        neighbours = examples.retriever_for(model, [source])
        mixed = neighbours.interpolate(states[None], log_probabilities.log_softmax(-1)[None])[0]
    expected = mixed.gather(-1, torch.tensor(ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.alternatives[0].token_log_probabilities), expected, atol=2e-3, rtol=0)


def test_the_weight_is_chosen_by_what_examples_help(translator: Translator, pairs: Pairs, datastore: Datastore) -> None:
    assert datastore.after < datastore.before - 0.02
    assert datastore.left_out == 0
    sources, targets = pairs
    by_dev = build_datastore(translator, sources[:100], targets[:100], dev=(sources[100:120], targets[100:120]))
    assert by_dev.after < by_dev.before
    shuffled = build_datastore(translator, sources[:100], targets[50:100] + targets[:50], dev=(sources[100:120], [
        translation.text for translation in translator(sources[100:120])
    ]))  # fmt: skip
    assert shuffled.neighbors.card.weight == 0.1  # of no use


def test_a_dev_pair_does_not_retrieve_itself(translator: Translator, pairs: Pairs) -> None:
    """Pairs that are in the datastore, too, say nothing about other text: here all targets are wrong ones."""
    sources, targets = pairs[0][:100], pairs[1][50:100] + pairs[1][:50]
    found = build_datastore(translator, sources, targets, dev=(sources[:20], targets[:20]))
    others = build_datastore(translator, sources[20:], targets[20:], dev=(sources[:20], targets[:20]))
    assert found.after == pytest.approx(others.after, abs=0.05)
    with pytest.raises(TransduceError, match="find only themselves or pairs of the same source"):
        build_datastore(translator, sources[:1], targets[:1], dev=(sources[:1], targets[:1]))


def test_a_datastore_that_does_not_help_has_a_warning(
    capsys: pytest.CaptureFixture[str], trained: Path, translator: Translator, pairs: Pairs, tmp_path: Path
) -> None:
    sources, dev = pairs[0][:100], pairs[0][100:120]
    sides = sources, pairs[1][50:100] + pairs[1][:50], dev, [each.text for each in translator(dev)]
    files = [str(tmp_path / name) for name in ("a.zh", "a.en", "dev.zh", "dev.en")]
    for file, lines in zip(files, sides, strict=True):
        Path(file).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    named = ["--source", files[0], "--target", files[1], "--dev-source", files[2], "--dev-target", files[3]]
    assert main(["build-datastore", str(trained), *named, "--output", str(tmp_path / "out"), *COMPUTING]) == 0
    assert "warning: With retrieval the loss is not lower" in capsys.readouterr().err


def test_pairs_without_text_are_left_out(translator: Translator, pairs: Pairs) -> None:
    sources, targets = (side[:20] for side in pairs)
    found = build_datastore(translator, ["", *sources, "我" * 4000], ["nothing", *targets, "long"])
    assert found.left_out == 2
    assert found.neighbors.card.pairs == 20
    with pytest.raises(TransduceError, match="No pair is left"):
        build_datastore(translator, [""], [""])
    with pytest.raises(TransduceError, match="20 sources and 19 targets"):
        build_datastore(translator, sources, targets[:19])
    with pytest.raises(TransduceError, match="No dev pair is left for tuning: both sides need text of at most 256"):
        build_datastore(translator, sources, targets, dev=([""], ["x"]))
    several = Translator(translator.model, translator.tokenizer, ensemble=[translator.model])
    with pytest.raises(TransduceError, match="belongs to one model, but the translator has several: name one"):
        build_datastore(several, sources, targets)
    with pytest.raises(TransduceError, match="same source"):
        build_datastore(translator, sources[:1] * 5, targets[:5])


def test_a_datastore_works_with_sampling_phrases_and_streams(
    translator_with_datastore: Translator, sentences_about_tea: list[str]
) -> None:
    drawn = SearchSettings(sampling=SamplingSettings(seed=3), n_best=2)
    first, again = (translator_with_datastore.translate(sentences_about_tea[:3], drawn) for _ in range(2))
    assert [each.text for each in first] == [each.text for each in again]
    assert all("beer" in each.text for each in translator_with_datastore(sentences_about_tea[:3], phrases=["beer"]))
    (streamed,) = ["".join(translator_with_datastore.stream(sentences_about_tea[0], SearchSettings(beam_size=1)))]
    assert streamed == translator_with_datastore(sentences_about_tea[0], beam_size=1).text


def test_no_kind_of_search_ignores_a_datastore(
    translator_with_datastore: Translator, sentences_about_tea: list[str]
) -> None:
    translator, invariant = translator_with_datastore, SearchSettings(batch_invariant=True)
    sentence, source = sentences_about_tea[0], translator.tokenizer.source
    ids = [source.with_special_tokens(source.encode(sentence))]
    for search_text in (
        lambda: translator.translate([sentence], invariant),
        lambda: list(translator.stream(sentence, invariant)),
        lambda: translator.search_ids(ids, invariant),
    ):
        with pytest.raises(TransduceError, match="cannot be combined with a datastore"):
            search_text()
    batch = SentenceBatch(ids, [[]], [()], [0])
    with pytest.raises(TransduceError, match="belongs to one model, but there are 2"):
        start_search(
            [translator.model] * 2,
            translator.tokenizer.target,
            batch,
            SearchSettings(),
            datastore=translator.datastore,
        )


def test_files_that_are_no_datastore_of_the_model_are_refused(
    trained: Path, datastore_file: Path, tmp_path: Path, toy_settings: Any
) -> None:
    with pytest.raises(TransduceError, match=r"is not a datastore .* `transduce build-datastore`"):
        open_translator(trained, datastore=trained / "config.json")
    with pytest.raises(TransduceError, match="is not a datastore"):
        open_translator(trained, datastore=trained / "model.safetensors")
    with pytest.raises(TransduceError, match="is not a datastore"):
        open_translator(trained, datastore=tmp_path / "nothing")
    other = transduce.train(out=tmp_path / "other", settings=toy_settings | {"training.steps": 1, "training.seed": 9})
    assert other is not None
    with pytest.raises(TransduceError, match="of another model: build it again"):
        open_translator(tmp_path / "other", datastore=datastore_file)
    with pytest.raises(TransduceError, match="belongs to one model, but there are 2"):
        open_translator([trained, trained], datastore=datastore_file)
    remembered = read_datastore(datastore_file, open_translator(trained, precision="fp32").model).tensors
    card = msgspec.json.encode({"format_version": 1, "pairs": 3, "weights": 1.0}).decode()
    save_file(remembered._asdict(), tmp_path / "damaged", metadata={"transduce.examples": card})
    with pytest.raises(TransduceError, match="is not a datastore"):
        open_translator(trained, datastore=tmp_path / "damaged")


def test_a_datastore_of_other_languages_is_refused(translator: Translator, pairs: Pairs) -> None:
    chinese = Translator(translator.model, translator.tokenizer, source_language="zh", target_language="en")
    datastore = build_datastore(chinese, pairs[0][:2], pairs[1][:2]).neighbors
    assert (datastore.card.source_language, datastore.card.target_language) == ("zh", "en")
    given: Any = {"model": translator.model, "tokenizer": translator.tokenizer, "datastore": datastore}
    with pytest.raises(TransduceError, match="this one is for zh → en and the translator for zh → cs: build another"):
        Translator(**given, source_language="zh", target_language="cs")
    with pytest.raises(TransduceError, match="for zh → en and the translator for de → en"):
        Translator(**given, source_language="de", target_language="en")
    for source, target in ((None, None), ("zh", "en"), ("zh-CN", "EN")):
        assert Translator(**given, source_language=source, target_language=target).datastore is datastore
    # Earlier versions stored no languages.
    old = NeighborIndex(datastore.tensors, msgspec.structs.replace(datastore.card, target_language=None))
    assert Translator(**given | {"datastore": old}, target_language="cs").datastore is old


def test_a_datastore_serves_translators_of_other_precisions(
    trained: Path, datastore_file: Path, translator_with_datastore: Translator, sentences_about_tea: list[str]
) -> None:
    expected = [found.text for found in translator_with_datastore(sentences_about_tea)]
    for precision in ("bf16", "int8"):
        found = [
            each.text
            for each in open_translator(trained, precision=precision, threads=1, datastore=datastore_file)(
                sentences_about_tea
            )
        ]
        assert sum(one == other for one, other in zip(found, expected, strict=True)) >= 0.8 * len(expected)


def test_a_datastore_of_few_pairs_translates_unrelated_sentences(translator: Translator, pairs: Pairs) -> None:
    found = build_datastore(translator, pairs[0][:2], pairs[1][:2])
    few = NeighborIndex(found.neighbors.tensors, msgspec.structs.replace(found.neighbors.card, weight=0.3))
    by_few = Translator(translator.model, translator.tokenizer, datastore=few)
    assert [each.text != "" for each in by_few(["我", "qwz", ""])] == [True, True, False]


def test_commands_build_and_use_a_datastore(
    capsys: pytest.CaptureFixture[str], trained: Path, toy_corpus: Path, pairs: Pairs, tmp_path: Path
) -> None:
    for name, lines in zip(("zh", "en"), pairs, strict=True):
        (tmp_path / f"beer.{name}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    files = ["--source", str(tmp_path / "beer.zh"), "--target", str(tmp_path / "beer.en")]
    out = str(tmp_path / "beer.examples")
    assert main(["build-datastore", str(trained), *files, "--output", out, "--json", "-", *COMPUTING]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["pairs"] == len(pairs[0])
    assert report["loss_with"] < report["loss_without"]
    assert f"transduce translate {trained} --datastore {out}" in captured.err
    text = str(toy_corpus / "dev.zh")
    translate = ["translate", str(trained), text, "--datastore", out, *COMPUTING, "--output"]
    assert main([*translate, str(tmp_path / "one")]) == 0
    assert main([*translate, str(tmp_path / "two"), "--workers", "2"]) == 0
    assert (tmp_path / "one").read_text("utf-8") == (tmp_path / "two").read_text("utf-8")
    assert "beer" in (tmp_path / "one").read_text("utf-8")
    capsys.readouterr()
    reference = ["--source", text, "--reference", str(toy_corpus / "dev.en"), "--json", "-"]
    assert main(["evaluate", str(trained), *reference, "--datastore", out, *COMPUTING]) == 0
    assert json.loads(capsys.readouterr().out)["decoding"]["datastore"] == out
    assert main([*translate[:3], "--datastore", out, "--batch-invariant", *COMPUTING]) == 2
    assert "--batch-invariant cannot be combined with --datastore" in capsys.readouterr().err
    assert main(["build-datastore", str(trained), *files, "--output", out, "--dev-source", text, *COMPUTING]) == 2
    assert "pass both --dev-source and --dev-target" in capsys.readouterr().err
