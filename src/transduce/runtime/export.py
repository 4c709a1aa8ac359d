"""Models out to other programs: made in a folder aside, run, compared with the model, and only then named."""

import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec

from transduce.data.prepared import PreparedCorpus
from transduce.durable import sync_file, sync_folder
from transduce.errors import TransduceError
from transduce.evaluation.scores import ScoreReport, check_line_counts, score
from transduce.interop.exported import ExportedModel
from transduce.interop.onnx import longest_sequence
from transduce.runtime.comparison import Agreement, Comparison, OwnModel, compare_models
from transduce.runtime.exporters import FORMATS, Exporter, Original, exporter_for
from transduce.runtime.machine import detect_machine
from transduce.runtime.translator import Translator, load
from transduce.text.vocabulary import Vocabulary

__all__ = ["FORMATS", "ExportReport", "export"]

_DEV_CORPUS = "corpus-dev"
_COMPARED_SENTENCES = 64
_RANDOM_SENTENCES = 32
_LONG_SENTENCE = 100  # pieces of one sentence that is made of several
_SENTENCES_AT_ONCE = 32
_MORE_PIECES = 50  # of a translation than of its source


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was exported, and how far it agrees with the model."""

    format: str
    quantization: str
    out: str
    bytes: int
    """Of all files."""
    compared_on: str
    """Where the sentences of the comparison come from."""
    float32: Agreement
    """Of the export with weights as they are."""
    quantized: Agreement | None = None
    """Of the export itself, where its weights are rounded."""
    model_scores: ScoreReport | None = None
    """Of the model's greedy translations, where there are references."""
    export_scores: ScoreReport | None = None
    """Of the export's."""

    def __str__(self) -> str:
        lines = [f"{self.format}, {self.quantization}, {self.bytes / 1e6:,.1f} MB: {self.out}", self.measured()]
        return "\n".join(lines)

    def measured(self) -> str:
        """What the comparison found, a line each."""
        lines = [f"compared on {self.compared_on}", *_lines("float32", self.float32)]
        if self.quantized is not None:
            lines += _lines(self.quantization, self.quantized)
        if self.model_scores is not None and self.export_scores is not None:
            ours, theirs = self.model_scores.bleu, self.export_scores.bleu
            lines.append(
                f"greedy BLEU {theirs.value:.2f}, the model's own {ours.value:.2f}, "
                f"difference {theirs.value - ours.value:+.2f}  {theirs.signature}"
            )
        return "\n".join(lines)


def _lines(name: str, agreement: Agreement) -> list[str]:
    largest, mean = agreement.largest_difference, agreement.mean_difference
    compared = f"{agreement.log_probabilities:,} log-probabilities, largest difference {largest:.2g} nats"
    return [
        f"{name}: {compared}, mean of the model's own translations {mean:.2g}",
        f"{name}: {agreement.same_translations:,} of {agreement.sentences:,} greedy translations are the same",
    ]


def export(
    folder: str | Path,
    out: str | Path,
    *,
    to: str,
    quantization: str | None = None,
    sources: Sequence[str] | None = None,
    references: Sequence[str] | None = None,
    threads: int | None = None,
) -> ExportReport:
    """Writes a model for another program, and compares the two before the new folder gets its name.

    Args:
        folder: a model folder.
        out: a new folder.
        to: ctranslate2, onnx or huggingface.
        quantization: how weights are stored, for CTranslate2: float32 (None), int8, float16, …
        sources: sentences to compare on; where nothing is said, the dev set of the run, or random pieces.
        references: their translations by people; both are scored then.
        threads: to compute with; None: all cores that the process may use.

    Raises:
        TransduceError: `out` exists, a package is missing, the other program cannot compute this model, or what it
            computes is something else. Nothing is left behind then.
    """
    out, quantization = Path(out), quantization or "float32"
    if references is not None:
        check_line_counts({"sources": sources or [], "references": references})
    if out.exists() or out.is_symlink():
        raise TransduceError(f"An export makes a new folder, but {out} exists: name another, or remove it.")
    threads = detect_machine("cpu", threads).threads
    original = Original(load(folder, precision="fp32", device="cpu", threads=threads), Path(folder), threads)
    exporter = exporter_for(to, original)
    if quantization not in exporter.quantizations:
        raise TransduceError(
            f"An export to {to} stores weights as {', '.join(exporter.quantizations)}, but not as `{quantization}`."
        )
    with _folder_aside(out) as aside:
        return _Export(exporter, original, aside, sources, references).make(to, quantization, out)


class _Export:
    """An export on its way."""

    def __init__(
        self,
        exporter: Exporter,
        original: Original,
        aside: Path,
        sources: Sequence[str] | None,
        references: Sequence[str] | None,
    ) -> None:
        self.exporter = exporter
        self.original = original
        self.aside = aside
        self.sources = sources
        self.references = references
        self.sentences, self.origin = _sentences(original, sources)

    def make(self, to: str, quantization: str, out: Path) -> ExportReport:
        """Writes, compares, scores and names it; weights are rounded once the export is right without."""
        model = self._write("float32")
        comparison = self._compare(model)
        comparison.check_equal(self.exporter.title)
        exact, rounded = comparison.agreement, None
        if quantization != "float32":
            shutil.rmtree(self.aside)
            self.aside.mkdir()
            model = self._write(quantization)
            comparison = self._compare(model)
            comparison.check_close(f"{self.exporter.title} with {quantization}")
            rounded = comparison.agreement
        own_scores, scores = self._scores(model)
        report = ExportReport(
            format=to,
            quantization=quantization,
            out=str(out),
            bytes=sum(path.stat().st_size for path in self.aside.iterdir()),
            compared_on=self.origin,
            float32=exact,
            quantized=rounded,
            model_scores=own_scores,
            export_scores=scores,
        )
        self.exporter.describe(self.aside, report.measured())
        _put(self.aside, out)
        return report

    def _write(self, quantization: str) -> ExportedModel:
        self.exporter.write(self.aside, quantization)
        return self.exporter.open(self.aside, self.sentences)

    def _compare(self, model: ExportedModel) -> Comparison:
        translator = self.original.translator
        config = translator.model.config
        longest = longest_sequence(config) - 1
        sources = [ids[:longest] for ids in translator.tokenizer.source.encode_batch(self.sentences)]
        special = {config.pad_id, config.eos_id, config.start_id}
        return compare_models(
            OwnModel(translator),
            model,
            sources,
            pieces=[id for id in range(config.target_vocabulary_size) if id not in special],
            most_pieces=min(longest, max(map(len, sources)) + _MORE_PIECES),
        )

    def _scores(self, model: ExportedModel) -> tuple[ScoreReport | None, ScoreReport | None]:
        """Of the model and of the export, both by greedy search, which has no options that could differ."""
        if self.references is None or self.sources is None:
            return None, None
        return self._score(OwnModel(self.original.translator)), self._score(model)

    def _score(self, model: ExportedModel) -> ScoreReport:
        translator = self.original.translator
        return score(
            _translate(model, translator, self.sources or []),
            self.references or [],
            target_language=translator.target_language,
            decoding={"beam_size": 1},
        )


def _translate(model: ExportedModel, translator: Translator, sentences: Sequence[str]) -> list[str]:
    """Greedy translations, of blank lines blank ones."""
    longest = longest_sequence(translator.model.config) - 1
    sources = [ids[:longest] for ids in translator.tokenizer.source.encode_batch(sentences)]
    by_length = sorted((number for number, ids in enumerate(sources) if ids), key=lambda number: len(sources[number]))
    texts = [""] * len(sentences)
    for first in range(0, len(by_length), _SENTENCES_AT_ONCE):
        numbers = by_length[first : first + _SENTENCES_AT_ONCE]
        most_pieces = min(longest, len(sources[numbers[-1]]) + _MORE_PIECES)
        found = model.translate([sources[number] for number in numbers], most_pieces)
        for number, ids in zip(numbers, found, strict=True):
            texts[number] = translator.tokenizer.target.decode(ids)
    return texts


# --- what is compared on ----------------------------------------------------------------------------------------


def _sentences(original: Original, sources: Sequence[str] | None) -> tuple[list[str], str]:
    """Sentences, a long one among them, and where they come from."""
    vocabulary = original.translator.tokenizer.source
    chosen, origin = _real(sources or []), "the sources given"
    if not chosen:
        chosen, origin = _real(_dev_sentences(original)), "the run's dev set"
    if not chosen:
        chosen, origin = _random_sentences(vocabulary), "random pieces"
    long: list[str] = []
    while len(vocabulary.encode(" ".join(long))) < _LONG_SENTENCE:
        long.append(chosen[len(long) % len(chosen)])
    return [*chosen, " ".join(long)], f"{_count(chosen)} of {origin} and a long one made of them"


def _count(sentences: Sequence[str]) -> str:
    return "1 sentence" if len(sentences) == 1 else f"{len(sentences):,} sentences"


def _real(sentences: Sequence[str]) -> list[str]:
    """The first ones that have something to translate."""
    return [sentence for sentence in sentences if sentence.strip()][:_COMPARED_SENTENCES]


def _dev_sentences(original: Original) -> list[str]:
    """The dev set that lies in the folder of a training run, or nothing."""
    tokenizer = original.translator.tokenizer
    try:
        corpus = PreparedCorpus.open(original.folder / _DEV_CORPUS, tokenizer)
        run, _ = corpus.read(0, min(corpus.pairs, _COMPARED_SENTENCES))
    except (TransduceError, OSError):
        return []
    return [tokenizer.source.decode(run.ids[first:end].tolist()) for first, end in pairwise(run.offsets)]


def _random_sentences(vocabulary: Vocabulary) -> list[str]:
    draw = random.Random(1)
    special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id}
    ids = [id for id in range(vocabulary.size) if id not in special]
    drawn = (vocabulary.decode(draw.choices(ids, k=draw.randint(1, 30))) for _ in range(_RANDOM_SENTENCES))
    return _real(list(drawn)) or ["a"]


# --- all or nothing ---------------------------------------------------------------------------------------------


@contextmanager
def _folder_aside(out: Path) -> Iterator[Path]:
    """An empty folder beside `out`, which is gone afterwards unless it was given another name."""
    if not out.parent.is_dir():
        raise TransduceError(f"{out} cannot be written: there is no folder {out.parent}.")
    aside = out.with_name(f".partial-{out.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _put(aside: Path, out: Path) -> None:
    """Gives a complete folder its name, for good."""
    for path in aside.iterdir():
        sync_file(path)
    sync_folder(aside)
    aside.rename(out)
    sync_folder(out.parent)
