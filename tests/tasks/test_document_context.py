"""Test context sentences from the same document: training, decoding, and refused settings."""

import asyncio
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch

import transduce
from transduce.commands.evaluation import _with_scores
from transduce.commands.inspect import format_links
from transduce.commands.main import main
from transduce.data.prepared import ContextCorpus, ContextSettings, PreparedCorpus, RepeatedCorpus, prepare
from transduce.documents.formats import read_document
from transduce.documents.limits import Limits
from transduce.documents.translate import ModelTexts, translate_content, translate_units
from transduce.documents.units import DocumentSettings, Unit
from transduce.errors import TransduceError
from transduce.exchange.comparison import Original
from transduce.exchange.exporters import exporter_for
from transduce.inference import decoding
from transduce.inference.batching import Documents, History, TextPart
from transduce.inference.compiled_search import CompiledSearch
from transduce.inference.datastore import build_datastore
from transduce.inference.decoding import SentenceBatch, start_search, tokenize_phrase
from transduce.inference.retrieval import decoder_states, read_datastore
from transduce.inference.scoring import target_states, token_log_probabilities
from transduce.inference.translator import Translator
from transduce.inspection.alignment import _tokenize, word_maps, word_pair
from transduce.model.attention import AttentionTrace
from transduce.model_folder.read import read_any_model_folder
from transduce.search.beam import AttentionCoverage
from transduce.search.rules import GenerateSettings
from transduce.search.scorer import Hypothesis, Scorer, Search, run_search
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.serving.batching import Batcher
from transduce.serving.jobs import JobSentence, TranslationJob
from transduce.serving.messages import UploadedFile
from transduce.serving.models import ServedModel
from transduce.serving.service import ModelCatalog, Service
from transduce.serving.settings import ServingSettings
from transduce.serving.uploads import DocumentOrder, DocumentStore
from transduce.tasks.synthetic_data import TranslatedFile, translate_files
from transduce.text import CorpusFiles, FilterSettings, Tokenizer
from transduce.text.corpus import read_pairs
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.training.display import ProgressDisplay

NOUNS = {"tree": "er", "dog": "er", "lamp": "sie", "cat": "sie", "house": "es", "book": "es"}
ADJECTIVES = ("old", "new", "big", "red")
SETTINGS: dict[str, Any] = {
    "preset": "tiny",
    "model.d_model": 64,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.dropout": 0.0,
    "training.batch_tokens": 512,
    "training.validate_every": 100,
    "tokenizer.vocabulary_size": 320,
    "data.filters.max_length_ratio": 20.0,
}


def documents(count: int, seed: int) -> list[list[tuple[str, str]]]:
    """Return documents of two sentences, of which the second has a pronoun for the noun of the first."""
    chooser = random.Random(seed)
    found = []
    for _ in range(count):
        noun, first, second = chooser.choice(list(NOUNS)), chooser.choice(ADJECTIVES), chooser.choice(ADJECTIVES)
        found.append(
            [(f"{noun} is {first}", f"{noun.upper()} {first}"), (f"it is {second}", f"{NOUNS[noun]} {second}")]
        )
    return found


def write_documents(folder: Path, name: str, texts: Sequence[Sequence[tuple[str, str]]]) -> tuple[str, str]:
    paths = folder / f"{name}.en", folder / f"{name}.de"
    for side, path in enumerate(paths):
        path.write_text("\n".join("".join(f"{pair[side]}\n" for pair in each) for each in texts), "utf-8")
    return str(paths[0]), str(paths[1])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("documents")
    source, target = write_documents(folder, "train", documents(300, 1))
    dev_source, dev_target = write_documents(folder, "dev", documents(20, 2))
    return {"source": source, "target": target, "dev_source": dev_source, "dev_target": dev_target}


def train(files: dict[str, Any], out: Path, sides: str, **more: Any) -> Path:
    options: dict[str, Any] = {"steps": 250, "threads": 1, "precision": "fp32", "context_before": 1} | more
    transduce.train(out=out, settings=SETTINGS | {"data.context_sides": sides}, **files, **options)
    return out


@pytest.fixture(scope="module", params=["source", "both"])
def trained(request: pytest.FixtureRequest, files: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(files, tmp_path_factory.mktemp("run") / request.param, request.param)


def pronouns(translator: Translator, texts: Sequence[Sequence[tuple[str, str]]], *, document: bool) -> float:
    """Return the share of right pronouns of documents that are translated as one list of lines, or line by line."""
    lines = [line for each in texts for line in (each[0][0], each[1][0], "")]
    translations = translator(lines, document=document)
    right = [
        translation.text.split()[:1] == [each[1][1].split()[0]]
        for translation, each in zip(translations[1::3], texts, strict=True)
    ]
    return sum(right) / len(right)


def test_pronouns_are_translated_right_only_with_the_previous_sentence(trained: Path) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32")
    texts = documents(30, 3)
    assert pronouns(translator, texts, document=True) > 0.9
    assert pronouns(translator, texts, document=False) < 0.7
    # The sentences of one text are a document, too.
    assert translator("tree is old. it is big").text.split()[-2:] == ["er", "big"]
    assert translator("lamp is old. it is big").text.split()[-2:] == ["sie", "big"]


def test_files_keep_the_context_across_portions_and_workers(trained: Path, tmp_path: Path, monkeypatch: Any) -> None:
    texts = documents(8, 4)
    path, _ = write_documents(tmp_path, "test", texts)
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    lines = Path(path).read_text("utf-8").splitlines()
    expected = [
        each.text for each in translator.translate(lines, translator.search, documents=Documents.of_lines(lines))
    ]
    assert [line.split()[0] for line in expected[1::3]] == [each[1][1].split()[0] for each in texts]
    computing = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
    for size in (512, 4):
        monkeypatch.setattr("transduce.inference.bulk_files.portion_size", lambda _, size=size: size)
        out = tmp_path / f"{size}.de"
        assert main(["translate", str(trained), path, "--output", str(out), *computing]) == 0
        assert out.read_text("utf-8").splitlines() == expected


@pytest.mark.parametrize("stored", [False, True])
def test_several_alternatives_keep_the_context_across_portions(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    folder, options = trained, ["--n-best", "2"]
    if stored:
        folder, options = tmp_path / "model", []
        shutil.copytree(trained, folder)
        settings = folder / "settings.toml"
        text = settings.read_text("utf-8")
        assert "\nn_best = 1\n" in text
        settings.write_text(text.replace("\nn_best = 1\n", "\nn_best = 2\n"), "utf-8")
    texts = documents(8, 4)
    path, _ = write_documents(tmp_path, "test", texts)
    monkeypatch.setattr("transduce.inference.bulk_files.portion_size", lambda _: 4)
    out = tmp_path / "out.de"
    computing = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
    assert main(["translate", str(folder), path, "--output", str(out), *options, *computing]) == 0
    best = {int(fields[0]): fields[1] for fields in _fields_of_alternatives(out)}
    assert [best[3 * number + 1].split()[0] for number in range(8)] == [each[1][1].split()[0] for each in texts]


def _fields_of_alternatives(path: Path) -> list[list[str]]:
    """Return the index, text and score of each alternative in a file, the best one of each line last."""
    return [line.split(" ||| ") for line in reversed(path.read_text("utf-8").splitlines())]


def test_all_commands_translate_a_file_as_documents(
    trained: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    source, reference = write_documents(tmp_path, "test", documents(8, 4))
    computing = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
    translated = tmp_path / "out.de"
    assert main(["translate", str(trained), source, "--output", str(translated), *computing]) == 0
    given = ["--source", source, "--reference", reference]
    assert main(["compare", str(trained), str(translated), *given, *computing]) == 0
    assert "23 sentences, 0 differ" in capsys.readouterr().out
    translate, read = Translator.translate, list[bool]()

    def recording(self: Translator, *args: Any, **options: Any) -> Any:
        read.append(options.get("documents") is not None)
        return translate(self, *args, **options)

    monkeypatch.setattr(Translator, "translate", recording)
    main(["plot", "lengths", str(trained), *given, *computing])
    main(["estimate-quality", str(trained), "--source", source, *computing])
    assert read == [True, True]


def test_a_teacher_reads_the_context_across_portions(trained: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("transduce.tasks.synthetic_data.estimate_quality", lambda _, texts: [()] * len(texts))
    texts = documents(8, 4)
    path, _ = write_documents(tmp_path, "test", texts)
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    on_target = translator.document_context is not None and translator.document_context.on_target
    for size in (512,) if on_target else (512, 4):  # translations before a portion are not read
        monkeypatch.setattr("transduce.tasks.synthetic_data.portion_size", lambda _, size=size: size)
        file = TranslatedFile(path, tmp_path / f"{size}.de")
        translate_files([file], translator, [trained], ProgressDisplay())
        lines = file.path.read_text("utf-8").splitlines()
        assert [line.split()[0] for line in lines[1::3]] == [each[1][1].split()[0] for each in texts]


def test_equal_units_of_a_document_are_translated_by_their_context(trained: Path) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    units = [Unit("lamp is old"), Unit("it is big"), Unit("tree is new"), Unit("it is big")]
    translate = ModelTexts(translator)
    # Equal units have different translations, also if portions separate them from their context.
    expected = ["sie", "er"]
    assert [text.split()[0] for text in translate_units(units, translate)[1::2]] == expected
    translate = ModelTexts(translator)
    parts = [translate_units(part, translate)[0] for part in ([unit] for unit in units)]
    assert [text.split()[0] for text in parts[1::2]] == expected


def test_a_served_text_is_translated_like_a_document(trained: Path) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    lines = ["lamp is old", "it is big", "tree is new and very old", "it is red"]
    expected = translator(lines, document=True)
    served = ServedModel(translator, languages=("en", "de"))
    job = TranslationJob(served, lines, translator.search, seconds=60.0)
    job.keep_together(Documents([False, True, True, True]))
    batcher = Batcher(ServingSettings(max_running=4, max_waiting=4, batch_tokens=8, gather_milliseconds=0.0))
    batcher.submit(job)
    batch = batcher.take()
    assert batch is not None
    found = job.decode(batch.sentences, Silent())
    assert [each.translation.text for each in found] == [each.text for each in expected]
    turns = [(line, each.text) for line, each in zip(lines, expected, strict=True)]
    last = TranslationJob(served, lines[3:], translator.search, seconds=60.0)
    last.keep_together(Documents([True], turns[:3]))
    (answer,) = last.decode([JobSentence(last, 0)], Silent())
    assert answer.translation.text == expected[3].text


@pytest.mark.parametrize("source", ["en", "auto"])
def test_an_uploaded_document_is_translated_like_a_file(trained: Path, source: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("transduce.documents.translate._PORTION_CHARACTERS", 60)
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    nouns = ("lamp", "tree", "book", "dog")
    content = "".join(f"# {noun} is old\n\nit is *big*\n\nthe end\n\n{noun} is new\n\nit is big\n\n" for noun in nouns)
    document = read_document("a.md", content.encode(), DocumentSettings(), Limits())
    expected = translate_content(document, ModelTexts(translator)).decode()
    pronouns = [line.split()[0] for line in expected.split("\n\n")[4::5]]
    assert sum(one == NOUNS[noun] for one, noun in zip(pronouns, nouns, strict=True)) >= 3

    async def upload() -> str:
        model = ServedModel(translator, languages=("en", "de"))
        service = Service(ModelCatalog([model]), ServingSettings(max_texts=2, gather_milliseconds=0.0))
        service.engine.workers.start()
        found = DocumentStore(service).start(DocumentOrder(UploadedFile("a.md", content.encode()), source, "de"))
        await found.finished.wait()
        assert found.error is None
        return found.result.decode()

    assert asyncio.run(upload()) == expected


class Silent:
    """Observes a search without effect."""

    def after_step(self, rows: Any, tokens: Any) -> tuple[int, ...]:  # noqa: ARG002
        return ()


def test_length_limits_do_not_count_the_context(trained: Path) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    lines = ["lamp is old", "it is big", "", "tree is new"]
    free, short = translator(lines, document=True), translator(lines, document=True, max_length=8)
    assert max(len(each.alternatives[0].tokens) for each in free) < 8
    assert [each.text for each in short] == [each.text for each in free]
    (_, cut, *_) = translator(lines, document=True, max_length=2)
    assert cut.text
    longer = translator(lines[:2], document=True, search=SearchSettings(min_length=6, beam_size=1))
    assert min(len(each.alternatives[0].tokens) for each in longer) >= 6


class AfterContext(Scorer):
    """Scores the tokens after a context, which the model has read before the search begins."""

    def __init__(self, scorer: Any, context: Sequence[int]) -> None:
        self.scorer, self.context = scorer, list(context)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.scorer.step(tokens)
        for token in self.context:
            logits = self.scorer.step(torch.full_like(tokens, token))
        self.context = []
        return logits

    def attention(self) -> torch.Tensor:
        attention: torch.Tensor = self.scorer.attention()
        return attention

    def reorder(self, parents: torch.Tensor) -> None:
        self.scorer.reorder(parents)

    def keep_sentences(self, rows: torch.Tensor) -> None:
        self.scorer.keep_sentences(rows)


@pytest.fixture(scope="module")
def reader(files: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """Return a translator that reads translations, trained so little that its hypotheses differ a lot."""
    run = train(files, tmp_path_factory.mktemp("run") / "few", "both", steps=60)
    return transduce.load(run, task="translation", precision="fp32", threads=1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beam_size": 1},
        {"beam_size": 5, "n_best": 5, "length_penalty": 3.0},
        {"min_length": 5, "beam_size": 3, "n_best": 2},
        {"max_length": 4},
        {"max_length": 9, "beam_size": 1},
        {"no_repeated_ngrams": 1, "n_best": 4},
        {"no_repeated_ngrams": 2, "beam_size": 1},
        {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 1.0},
        {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 1.0, "beam_size": 1},
        {"coverage_penalty": 2.0, "n_best": 4},
        {"forbidden": ("old",), "n_best": 4},
        {"diverse_groups": 2, "n_best": 4},
        {"generate": GenerateSettings(), "length_penalty": 1.0, "n_best": 4},
        {"generate": GenerateSettings(), "repetition_penalty": 2.0, "beam_size": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("phrase", [None, "red"])
def test_a_search_begins_after_the_context(
    reader: Translator, settings: dict[str, Any], phrase: str | None, monkeypatch: Any
) -> None:
    search = SearchSettings(**{"max_length_extra": 9} | settings)
    if phrase is not None and (search.beam_size == 1 or search.diverse_groups > 1):
        return
    source, target = reader.tokenizer.source, reader.tokenizer.target
    lines = ["lamp is old", "it is big", "cat is new", "it is red and new"]
    texts = ["", "DOG red", "HOUSE new and old er old", "sie big red"]
    histories = [History((), (*target.encode(text), *reader.forbidden_ids)) if text else History() for text in texts]
    assert len({len(each.target) for each in histories}) == 4
    ids = [[*source.encode(line), source.eos_id] for line in lines]
    required = [[() if phrase is None else (tokenize_phrase(phrase, target),)] for _ in lines]
    prefixes = [[], target.encode("big"), [], []]

    def find(rows: Sequence[int], histories: Sequence[History]) -> Search:
        batch = SentenceBatch(
            [ids[row] for row in rows], [prefixes[row] for row in rows], [required[row][0] for row in rows], rows
        )
        batch = batch._replace(histories=histories, forbidden_ids=reader.forbidden_ids)
        return start_search(reader.models, target, batch, search)

    def same(found: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> None:
        assert [(each.ids, each.ended) for each in found] == [(each.ids, each.ended) for each in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-3)
            assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, abs=1e-3)

    with torch.inference_mode():
        batch = find(range(4), histories)
        together = [] if search.generate is not None else run_search(batch)
        alone = [find([row], [histories[row]]) for row in range(4)]
        if phrase is None and not set(settings) & {"coverage_penalty", "diverse_groups", "forbidden", "generate"}:
            assert {type(each) for each in (batch, *alone)} == {CompiledSearch}
        found = [run_search(each)[0] for each in alone]
        create: Any = decoding._scorers
        for row in range(4):
            context = histories[row].target
            monkeypatch.setattr(
                decoding,
                "_scorers",
                lambda *given, context=context, **more: [
                    AfterContext(each, context) for each in create(*given, **more)
                ],
            )
            (expected,) = run_search(find([row], ()))
            same(found[row], expected)
            if together:
                same(together[row], expected)


def test_a_required_phrase_may_not_be_that_of_the_previous_translation(reader: Translator) -> None:
    found = reader(["dog is old", "dog is big", "it is red"], document=True, phrases=["DOG"])
    assert all("DOG" in each.text for each in found)


def test_samples_after_a_context_are_the_same_in_any_search(reader: Translator, monkeypatch: Any) -> None:
    search = SearchSettings(sampling=SamplingSettings(seed=3), n_best=3)
    lines = ["lamp is old", "it is big", "it is red", "", "cat is new", "it is old"]
    expected = reader.translate(lines, search, documents=Documents.of_lines(lines))
    monkeypatch.setattr(decoding, "find_compiled_search", lambda *_, **__: None)
    found = reader.translate(lines, search, documents=Documents.of_lines(lines))
    assert [[each.text for each in one.alternatives] for one in found] == [
        [each.text for each in one.alternatives] for one in expected
    ]


def test_context_needs_no_coverage() -> None:
    class Fixed:
        def attention(self) -> torch.Tensor:
            return torch.full((2, 1, 3), 0.5)

    coverage = AttentionCoverage(Fixed(), 1.0, [(1, 1), (0, 0)])
    coverage.add_step()
    coverage.add_step()
    assert coverage.penalty(0, 0) == pytest.approx(2 * np.log(0.5), abs=1e-5)  # one token, one step
    assert coverage.penalty(1, 0) == pytest.approx(0.0, abs=1e-5)


def test_sentences_of_an_earlier_text_keep_their_own_translations(trained: Path) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)

    def translate(*before: tuple[str, str]) -> transduce.Translation:
        (found,) = translator.translate(["it is new"], translator.search, documents=Documents([True], before))
        return found

    expected = translate(("tree is old.", "TREE old."), ("it is big.", "ER big."))
    found = translate(("tree is old. it is big.", "TREE old. ER big."))
    assert found.text == expected.text
    assert found.score == pytest.approx(expected.score, abs=1e-5)


def test_an_earlier_text_whose_sentences_cannot_be_paired_counts_as_one(trained: Path) -> None:
    translator = transduce.load(trained, task="translation")
    source, target = translator.tokenizer.source, translator.tokenizer.target
    parts = [TextPart(text, 0, n, source.with_special_tokens(source.encode(text))) for n, text in enumerate(("a", "b"))]
    memory = translator.document_memory()
    assert memory is not None
    memory.append_text(parts, "A B", "de")
    part = memory.add_history(parts[0])
    if trained.name == "both":
        assert list(part.history.source) == [*source.encode("a"), *source.encode("b"), source.id("<sep>")]
        assert list(part.history.target) == [*target.encode("A B"), target.id("<sep>")]
    else:
        assert list(part.history.source) == [*source.encode("b"), source.id("<sep>")]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_no_translation_contains_the_separator(trained: Path, beam_size: int, monkeypatch: Any) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    vocabulary = translator.tokenizer.target
    assert translator.forbidden_ids == ((vocabulary.id("<sep>"),) if trained.name == "both" else ())
    lines = ["tree is old", "it is big"]
    usual = translator(lines, document=True, beam_size=beam_size)
    forbidden = vocabulary.encode(usual[1].text)[0]
    monkeypatch.setattr(Translator, "forbidden_ids", (forbidden,))
    found = translator(lines, document=True, beam_size=beam_size)
    assert found[0].text == usual[0].text
    assert forbidden not in vocabulary.encode(found[1].text)


def test_a_streamed_text_equals_its_translation_with_context(trained: Path) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    text = "cat is old. it is red"
    assert "".join(translator.stream(text)) == translator(text).text


LINES = ["lamp is old", "it is big", "", "cat is new", "it is red", "it is old"]
COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]


class Row(NamedTuple):
    """The token ids that a model reads and writes for a sentence of a document, composed by hand."""

    source: list[int]
    target: list[int]
    source_context: int
    """Number of source tokens of the context."""
    target_context: int


def rows_by_hand(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> list[Row]:
    source, target = translator.tokenizer.source, translator.tokenizer.target
    assert translator.document_context is not None
    rows = []
    for number, pair in enumerate(zip(sources, targets, strict=True)):
        has_context = number > 0 and bool(sources[number - 1] and pair[0])
        before = [*source.encode(sources[number - 1]), source.id("<sep>")] if has_context else []
        written = [*target.encode(targets[number - 1]), target.id("<sep>")] if has_context else []
        written = written if translator.document_context.on_target else []
        own = [*source.encode(pair[0]), source.eos_id], [*target.encode(pair[1]), target.eos_id]
        rows.append(Row([*before, *own[0]], [*written, *own[1]], len(before), len(written)))
    return rows


def write_translated(translator: Translator, folder: Path) -> tuple[list[str], list[str]]:
    """Translate `LINES`, and return the translations and the options of commands that read both files."""
    targets = [each.text for each in translator(LINES, document=True)]
    files = [folder / "a.en", folder / "a.de"]
    for path, lines in zip(files, (LINES, targets), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return targets, ["--source", str(files[0]), "--target", str(files[1]), *COMPUTING]


def test_scores_are_those_of_the_translation_of_the_document(trained: Path, tmp_path: Path, capsys: Any) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    translations = translator(LINES, document=True)
    targets, given = write_translated(translator, tmp_path)
    scores = translator.score(LINES, targets, length_penalty=0.6, document=True)
    model, equal = translator.model, 0
    for score, translation, row in zip(scores, translations, rows_by_hand(translator, LINES, targets), strict=True):
        states = target_states(model, [row.source], [row.target])
        expected = token_log_probabilities(model, states, torch.tensor(row.target), model.config.forbidden_tokens)
        assert score.token_log_probabilities == pytest.approx(expected[row.target_context :].tolist(), abs=1e-4)
        found = translation.alternatives[0]
        if found.tokens == score.tokens and row.source_context:  # search may divide a text into other tokens
            assert score.token_log_probabilities == pytest.approx(found.token_log_probabilities, abs=1e-4)
            assert score.score == pytest.approx(found.score, abs=1e-4)
            equal += 1
    assert equal
    alone = translator.score(LINES, targets)
    assert abs(scores[1].log_probability - alone[1].log_probability) > 0.1
    assert main(["score", str(trained), *given, "--length-penalty", "0.6"]) == 0
    printed = list(map(float, capsys.readouterr().out.split()))
    assert printed == pytest.approx([each.score for each in scores], abs=1e-4)


def test_alignments_use_the_attention_of_translation_with_context(trained: Path, tmp_path: Path, capsys: Any) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    targets, given = write_translated(translator, tmp_path)
    continues, model = Documents.of_lines(LINES).continues, translator.model
    pairs = [
        msgspec.structs.replace(word_pair(source, target), continues=follows)
        for source, target, follows in zip(LINES, targets, continues, strict=True)
    ]
    rows = rows_by_hand(translator, LINES, targets)
    for maps, row, pair in zip(word_maps(translator, pairs), rows, pairs, strict=True):
        trace = AttentionTrace()
        with torch.inference_mode():
            memory, mask = model.encode(torch.tensor([row.source]))
            model.decode(torch.tensor([[model.config.start_id, *row.target[:-1]]]), memory, mask, trace=trace)
        heads = trace.memory[0][0].double().numpy()[:, row.target_context :, row.source_context :]  # (H, T, S)
        source, target = (
            _tokenize(side, text, words, (), cut=False).spelling
            for side, text, words in (
                (translator.tokenizer.source, pair.source, pair.source_words),
                (translator.tokenizer.target, pair.target, pair.target_words),
            )
        )
        expected = target / target.sum(axis=1, keepdims=True) @ heads
        assert np.allclose(maps.heads, expected @ source.T, atol=1e-4)
        assert np.allclose(maps.nowhere, expected[:, :, -1:], atol=1e-4)
    links = transduce.align(translator, LINES, targets, document=True)
    assert main(["align", str(trained), *given]) == 0
    assert capsys.readouterr().out.splitlines() == [format_links(each) for each in links]


def test_a_datastore_has_the_states_of_translation_with_context(trained: Path, tmp_path: Path) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    targets, given = write_translated(translator, tmp_path)
    path = tmp_path / "a.store"
    assert main(["build-datastore", str(trained), *given, "--out", str(path)]) == 0
    tensors = read_datastore(path, translator.model).tensors
    rows = [row for row in rows_by_hand(translator, LINES, targets) if len(row.source) > 1]
    states, labels = [], []
    for row in rows:
        states.append(decoder_states(translator.model, [row.source], [row.target])[row.target_context :])
        labels += row.target[row.target_context :]
    assert tensors.labels.tolist() == labels
    assert torch.allclose(tensors.states.float(), torch.cat(states), atol=0.01)
    with_datastore = transduce.load(trained, task="translation", precision="fp32", threads=1, datastore=path)
    assert [each.text for each in with_datastore(LINES, document=True)] == targets


def test_a_datastore_may_begin_with_a_pair_in_context(trained: Path, tmp_path: Path) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    sources = ["lamp " * 300, "it is big", "", "cat is new"]  # the first one is too long to be stored
    store = build_datastore(translator, sources, ["LAMP", "sie big", "", "CAT new"], document=True)
    assert store.left_out == 2
    store.write(tmp_path / "a.store")
    assert read_datastore(tmp_path / "a.store", translator.model).card == store.neighbors.card


def test_quality_of_given_translations_is_estimated_in_context(trained: Path, tmp_path: Path) -> None:
    translator = transduce.load(trained, task="translation", precision="fp32", threads=1)
    targets, _ = write_translated(translator, tmp_path)
    expected = translator.score(LINES, targets, document=True)
    found = _with_scores(translator, LINES, targets)
    pairs = [(each, score) for each, score in zip(found, expected, strict=True) if not each.protected]
    assert len(pairs) >= 4  # of six; words that are copied are scored as a search would
    for each, score in pairs:
        assert each.alternatives[0].token_log_probabilities == pytest.approx(score.token_log_probabilities, abs=1e-4)


def prepared(files: dict[str, Any], folder: Path, **more: Any) -> tuple[PreparedCorpus, Tokenizer]:
    corpus = CorpusFiles(source=(files["source"],), target=(files["target"],), has_documents=True, **more)
    settings = TokenizerSettings(vocabulary_size=320, user_symbols=("<sep>",))
    tokenizer = Tokenizer.train(lambda: read_pairs(corpus), settings, adjust=True)
    return prepare(corpus, tokenizer, FilterSettings(max_length_ratio=20.0), folder), tokenizer


def test_each_row_holds_the_previous_sentences_of_its_document(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("transduce.text.corpus.BLOCK_LINES", 4)  # documents cross blocks
    texts = [
        [(f"{name} {n}", f"{name.upper()} {n}") for n in range(length)]
        for name, length in (("tree", 5), ("dog", 1), ("cat", 7))
    ]
    source, target = write_documents(tmp_path, "a", [*texts, *documents(30, 1)])
    corpus, tokenizer = prepared({"source": source, "target": target}, tmp_path / "corpus")
    separator, before = tokenizer.source.id("<sep>"), 2
    expected = []
    for document in texts:
        rows = [tokenizer.source.encode(pair[0]) for pair in document]
        for number in range(len(rows)):
            context = [id for row in rows[max(0, number - before) : number] for id in [*row, separator]]
            expected.append([*context, *rows[number], tokenizer.source.eos_id])
    for sides in (None, separator):
        view = ContextCorpus(corpus, ContextSettings(before, separator, sides))
        run, targets = view.read(0, len(expected))
        assert [
            run.ids[start:stop].tolist() for start, stop in zip(run.offsets[:-1], run.offsets[1:], strict=True)
        ] == expected
        assert (separator in targets.ids.tolist()) == (sides is not None)
        # Any division into ranges gives the same rows and lengths.
        ranges = [(3, 5), (5, 6), (0, 3), (9, 13)]
        order = np.concatenate([np.arange(*one) for one in ranges])
        some, _ = view.read_ranges(ranges)
        assert some.lengths.tolist() == [len(expected[number]) for number in order]
        lengths = view.read_range_lengths(ranges)
        assert lengths[0].tolist() == some.lengths.tolist()
        assert lengths[1].tolist() == view.read_ranges(ranges)[1].lengths.tolist()
        repeated = RepeatedCorpus(view, [2.0])
        assert repeated.source_tokens == 2 * view.source_tokens
        assert repeated.sentences is corpus


def test_translations_of_the_context_leave_positions_for_the_next_one(files: dict[str, Any], tmp_path: Path) -> None:
    limits = {"model.positions": "learned", "model.max_positions": 24, "data.filters.max_tokens": 20}
    settings = SETTINGS | limits | {"model.d_model": 32, "data.context_sides": "both", "training.learning_rate": 1e-6}
    more: dict[str, Any] = {"steps": 1, "threads": 1, "precision": "fp32", "context_before": 3}
    transduce.train(out=tmp_path / "m", settings=settings, **files, **more)  # a model that writes long translations
    translator = transduce.load(tmp_path / "m", task="translation", precision="fp32", threads=1)
    lines = ["lamp is old", "it is big", "it is red", "it is new"]
    translations = translator(lines, document=True, beam_size=1)
    assert max(len(each.alternatives[0].tokens) for each in translations) > 12
    assert len(translator.score(lines, ["LAMP LAMP LAMP"] * 4, document=True)) == 4


@pytest.mark.parametrize("drop_empty", [True, False])
def test_lines_between_documents_are_no_pairs(tmp_path: Path, drop_empty: bool) -> None:
    source, target = write_documents(tmp_path, "a", documents(60, 1))
    files = CorpusFiles(source=(source,), target=(target,), has_documents=True)
    settings = TokenizerSettings(vocabulary_size=320, user_symbols=("<sep>",))
    tokenizer = Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)
    filters = FilterSettings(max_length_ratio=20.0, drop_empty=drop_empty)
    corpus = prepare(files, tokenizer, filters, tmp_path / "corpus")
    assert corpus.filters.lines() == ["120 pairs read, 120 kept", "empty lines between documents: 59"]
    assert corpus.pairs == 120


def test_documents_of_a_column_are_those_of_blank_lines(files: dict[str, Any], tmp_path: Path) -> None:
    texts = documents(300, 1)
    path = tmp_path / "a.jsonl"
    rows = [
        {"source": pair[0], "target": pair[1], "doc": number % 7} for number, each in enumerate(texts) for pair in each
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    dev = {name: path for name, path in files.items() if name.startswith("dev")}
    whole = train(files, tmp_path / "lines", "source", steps=2)
    dev_path = tmp_path / "dev.jsonl"
    dev_rows = [
        {"source": pair[0], "target": pair[1], "doc": number}
        for number, each in enumerate(documents(20, 2))
        for pair in each
    ]
    dev_path.write_text("".join(json.dumps(row) + "\n" for row in dev_rows), "utf-8")
    options: dict[str, Any] = {"document_column": "doc", "languages": ("en", "de"), "steps": 2}
    table = train({"source": str(path), "dev_source": str(dev_path)}, tmp_path / "json", "source", **options)
    assert dev  # the dev sets are the same documents
    losses = [
        [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
        for run in (whole, table)
    ]
    assert losses[0] == losses[1]


def test_a_run_with_context_resumes_exactly(files: dict[str, Any], tmp_path: Path) -> None:
    settings = SETTINGS | {
        "training.validate_every": 2,
        "training.schedule": "constant",
        "training.warmup_steps": 2,
        "training.weight_decay": 0.01,
        "training.average_decay": 0.5,
        "training.learning_rate": 0.003,
    }

    def losses(out: Path, steps: int, *, resume: bool = False) -> list[float]:
        more: dict[str, Any] = {"resume": True} if resume else {**files, "context_before": 2, "settings": settings}
        transduce.train(out=out, steps=steps, threads=1, precision="fp32", **more)
        events = map(json.loads, (out / "metrics.jsonl").read_text("utf-8").splitlines())
        return [event["loss"] for event in events if event["event"] == "validation"]

    losses(tmp_path / "parts", 2)
    assert losses(tmp_path / "parts", 4, resume=True) == losses(tmp_path / "whole", 4)


def test_a_prepared_corpus_keeps_documents(files: dict[str, Any], tmp_path: Path) -> None:
    def prepare_in(folder: Path, settings: dict[str, Any]) -> Path:
        transduce.prepare(**files, out=folder, settings=settings | {"tokenizer.vocabulary_size": 320})
        return folder

    filters = {"data.filters.max_length_ratio": 20.0}
    whole = train(files, tmp_path / "whole", "source", steps=1)
    folder = prepare_in(tmp_path / "with", filters | {"data.context_before": 1})
    dev = {name: path for name, path in files.items() if name.startswith("dev")}
    options: dict[str, Any] = {"steps": 1, "settings": SETTINGS | {"data.prepared": str(folder)}, "context_before": 1}
    transduce.train(**dev, out=tmp_path / "prepared", threads=1, precision="fp32", **options)
    losses = [
        [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
        for run in (whole, tmp_path / "prepared")
    ]
    assert losses[0] == losses[1]
    folder = prepare_in(tmp_path / "without", filters)
    options["settings"] = SETTINGS | {"data.prepared": str(folder)}
    with pytest.raises(TransduceError, match=r"lacks the token <sep>|was prepared without"):
        transduce.train(**dev, out=tmp_path / "refused", **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data.context_before": -1}, "`data.context_before` must be from 0 to 20, but is -1"),
        ({"data.document_column": "doc"}, "`data.document_column` is for models that read earlier sentences"),
        ({"data.context_sides": "both"}, "`data.context_sides` is for models that read earlier sentences"),
        ({"data.context_before": 1, "data.monolingual": ["x.de"]}, "has single sentences translated"),
        ({"data.context_before": 1, "tokenizer.placeholders": 2}, "could stand for a word of another sentence"),
        (
            {"data.context_before": 1, "task.kind": "classification"},
            "means nothing where `task.kind` is classification",
        ),
    ],
)
def test_contradictory_context_settings_are_refused(
    files: dict[str, Any], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match=message):
        transduce.train(**files, out=tmp_path / "m", steps=1, settings=SETTINGS | settings)


def test_documents_need_a_dev_set_of_documents(files: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match="needs a dev set of whole documents"):
        transduce.train(
            source=files["source"], target=files["target"], out=tmp_path / "m", context_before=1, settings=SETTINGS
        )


def test_sharding_and_re_decoding_of_context_models_are_refused(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (["--shard", "1/2"], ["--redecode"]):
        assert main(["translate", str(trained), "/dev/null", *options]) == 2
        assert "separates lines of a document from those before them" in capsys.readouterr().err
    translator = transduce.load(trained, task="translation")
    with pytest.raises(TransduceError, match="Re-decoding translates sentences by themselves"):
        transduce.redecode(translator, [translator("tree is old")])
    with pytest.raises(TransduceError, match="must have a value for each of the 2 texts, but has 1"):
        translator.translate(["a", "b"], SearchSettings(), documents=Documents([True]))


@pytest.mark.parametrize("side", ["source", "both"])
def test_the_readme_of_an_export_names_the_context_that_it_leaves_to_the_caller(
    files: dict[str, Any], tmp_path: Path, side: str
) -> None:
    run = train(files, tmp_path / "run", side, steps=1)
    original = Original(read_any_model_folder(run), run, 1)
    for name in ("onnx", "ctranslate2"):
        exporter_for(name, original).describe(tmp_path, "")
        text = " ".join((tmp_path / "README.md").read_text("utf-8").split())
        assert "up to 1 earlier sentences of the document before each sentence, with `<sep>` between them" in text
        assert ("begins the output with their translations" in text) == (side == "both")


def test_empty_lines_of_a_dev_set_are_no_sentences_that_time_did_not_allow(
    files: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transduce.train(out=tmp_path / "m", settings=SETTINGS, steps=1, context_before=1, threads=1, **files)
    sentences = sum(map(bool, Path(files["dev_source"]).read_text("utf-8").splitlines()))
    captured = capsys.readouterr()
    assert f"Dev set, {sentences} sentences, beam 4:" in captured.out + captured.err


def test_empty_lines_between_documents_are_not_scored(
    trained: Path, files: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Path(files["dev_source"]).read_text("utf-8").splitlines()
    command = ["evaluate", str(trained), "--source", str(files["dev_source"]), "--reference", str(files["dev_target"])]
    assert main([*command, "--beam-size", "1"]) == 0
    captured = capsys.readouterr()
    sentences = sum(bool(line) for line in lines)
    assert sentences < len(lines)
    assert f"{sentences} sentences, " in captured.out
    assert captured.err.startswith(f"{sentences} sentences in ")
    assert "Empty lines" not in captured.out
