"""Export a model to another format; the export is run and compared with the model before it gets its final name."""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from transduce.argument_checks import as_path
from transduce.atomic_io import lock_output, name_path_in_errors, sync_file, sync_folder
from transduce.errors import TransduceError, explain_wrong_types, warn
from transduce.evaluation.scores import ScoreReport, check_line_counts, score
from transduce.exchange.comparison import (
    Agreement,
    EncoderAgreement,
    EncoderComparison,
    ExportComparison,
    Original,
    OriginalEncoder,
    OriginalModel,
    TrialTexts,
    choose_trial,
    compare_encoders,
    compare_models,
    translate_greedily,
)
from transduce.exchange.exporters import FORMATS, Exporter, HuggingFaceExporter, exporter_for
from transduce.interop.components import ExportedEncoder, ExportedModel
from transduce.interop.hugging_face.export import class_for, count_rounded
from transduce.machine import detect_machine
from transduce.model.build import Model
from transduce.model_folder.load import load_model_at, with_languages
from transduce.model_folder.read import ModelFolder, read_any_model_folder

__all__ = ["FORMATS", "ExportReport", "export"]


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report about an export: what was written, and how closely it agrees with the original model."""

    format: str
    """The export format: "ctranslate2", "onnx" or "huggingface"."""
    quantization: str
    """Storage type of the weights, such as "float32" or "int8"."""
    out: str
    """The path of the folder with the export."""
    bytes: int
    """Total size of the files in bytes."""
    compared_on: str
    """Description of the sentences that the models were compared on."""
    float32: Agreement | EncoderAgreement
    """Agreement with the original of the export whose weights are not quantized."""
    quantized: Agreement | EncoderAgreement | None = None
    """Agreement with the original of the quantized export; None if the weights are not quantized."""
    model_scores: ScoreReport | None = None
    """Scores of the original model's greedy translations; None without references."""
    export_scores: ScoreReport | None = None
    """Scores of the export's greedy translations; None without references."""

    def __str__(self) -> str:
        lines = [f"{self.format}, {self.quantization}, {self.bytes / 1e6:,.1f} MB: {self.out}", self.measured()]
        return "\n".join(lines)

    def measured(self) -> str:
        """Return a text of several lines on how the export compares with its original, without format and folder."""
        lines = [f"compared on {self.compared_on}", *self.float32.lines("float32")]
        if self.quantized is not None:
            lines += self.quantized.lines(self.quantization)
        if self.model_scores is not None and self.export_scores is not None:
            ours, theirs = self.model_scores.bleu, self.export_scores.bleu
            lines.append(
                f"greedy BLEU {theirs.value:.2f}, the model's own {ours.value:.2f}, "
                f"difference {theirs.value - ours.value:+.2f}  {theirs.signature}"
            )
        return "\n".join(lines)


@explain_wrong_types
def export(
    folder: str | Path,
    out: str | Path,
    *,
    to: str,
    quantization: str | None = None,
    sources: Sequence[str] | None = None,
    references: Sequence[str] | None = None,
    target_language: str | None = None,
    threads: int | None = None,
) -> ExportReport:
    """Export a model to another format, compare it with the original, and return a report with the agreement.

    The new folder gets its name only if the comparison succeeds.

    Args:
        folder: a model folder.
        out: the folder to create, with its parents; it must not exist.
        to: "ctranslate2", "onnx" or "huggingface".
        quantization: storage type of the weights, for CTranslate2: None (float32), "int8", "float16", …
        sources: texts to compare on; None: the run's dev set or training text, or random tokens.
        references: human translations of `sources`; with them, both models are scored.
        target_language: the language that the export translates to, for a model of several target languages; None:
            all of them, which only Hugging Face's tokenizer can choose between, by a token such as `>>cs<<`.
        threads: number of compute threads; None: $OMP_NUM_THREADS, or all usable cores.

    Returns:
        The agreement of the export with the original, and the scores.

    Raises:
        TransduceError: `out` exists, a package is missing, the target format does not support the model, or the export
            computes something else. Then nothing is left behind.
    """
    folder, out = as_path(folder, "The model's folder"), as_path(out, "The folder to make")
    quantization = quantization or "float32"
    if references is not None:
        check_line_counts({"sources": sources or [], "references": references})
    if out.exists() or out.is_symlink():
        raise TransduceError(f"An export makes a new folder, but {out} exists: name another, or remove it.")
    threads = detect_machine("cpu", threads).threads
    content = load_model_at(read_any_model_folder, folder, precision="fp32", device="cpu", threads=threads)
    content = _select_directions(content, folder, to, target_language)
    original = Original(content, folder, threads)
    if references is not None and original.translator is None:
        raise TransduceError(
            f"References are translations, but the model in {folder} is of the kind `{original.config.kind}` and "
            "translates nothing: leave them out."
        )
    if references is not None and len(original.source_vocabularies) > 1:
        raise TransduceError("References are in one language: name it by `target_language` (--target-language).")
    exporter = exporter_for(to, original)
    if quantization not in exporter.quantizations:
        raise TransduceError(
            f"An export to {to} stores weights as {', '.join(exporter.quantizations)}, but not as `{quantization}`."
        )
    with _temporary_folder(out) as temporary:
        report = _export(exporter, temporary, quantization, sources, references)
        report = msgspec.structs.replace(report, out=str(out))
        exporter.describe(temporary, report.measured())
        _rename_complete(temporary, out)
    if to == HuggingFaceExporter.name and (rounded := count_rounded(original.model.state_dict(), original.config)):
        warn(
            f"{class_for(original.config)} stores the weights of norms less 1, which rounds {rounded:,} of them below "
            f"0.5 to 24 binary places: keep {folder} to have them exactly."
        )
    return report


def _select_directions(
    content: ModelFolder[Model], folder: Path, to: str, target_language: str | None
) -> ModelFolder[Model]:
    """Choose which of a multilingual model's target languages are exported.

    Args:
        content: the model and its tokenizer.
        folder: the model's folder.
        to: the export format; only "huggingface" can export several target languages.
        target_language: the only target language to export; None: all of them.

    Returns:
        The content with the language pairs of the export. If one target language is exported, the tokenizer is for this
        language. A model that was not trained on several language pairs is returned unchanged.

    Raises:
        TransduceError: the model does not translate to `target_language`. Or `target_language` is None, the model has
            several target languages, and the format can hold only one. Or `target_language` is set for a model that was
            not trained on several language pairs.
    """
    if not content.directions:
        if target_language is not None:
            raise TransduceError(
                f"`target_language` is {target_language}, but the model in {folder} was not trained here on several "
                "language pairs: leave it out."
            )
        return content
    if target_language is None and to == "huggingface" and len({target for _, target in content.directions}) > 1:
        return content
    content = with_languages(content, None, target_language)
    chosen = tuple(pair for pair in content.directions if pair[1] == content.manifest.target_language)
    return msgspec.structs.replace(content, directions=chosen)


def _export(
    exporter: Exporter,
    folder: Path,
    quantization: str,
    sources: Sequence[str] | None,
    references: Sequence[str] | None,
) -> ExportReport:
    """Write an export to an empty folder, compare it with the model, score it, and return the report.

    Weights are quantized only after the float32 export was found correct.

    Raises:
        TransduceError: the format does not support the model, or the export computes something else.
    """
    original = exporter.original
    trial, quantized, scores = choose_trial(original, sources), None, dict[str, ScoreReport]()
    exported, comparison = _write_and_compare(exporter, folder, "float32", trial)
    comparison.check_equal(exporter.title)
    unquantized = comparison.agreement
    if quantization != "float32":
        shutil.rmtree(folder)
        folder.mkdir()
        exported, comparison = _write_and_compare(exporter, folder, quantization, trial)
        assert isinstance(comparison, ExportComparison)  # only models that generate text are quantized
        comparison.check_close(f"{exporter.title} with {quantization}")
        quantized = comparison.agreement
    if references is not None and original.translator is not None:
        assert isinstance(exported, ExportedModel)
        models: dict[str, ExportedModel] = {
            "model_scores": OriginalModel(original.translator),
            "export_scores": exported,
        }
        scores = {
            name: score(
                translate_greedily(model, original.translator, sources or []),
                references,
                target_language=original.translator.target_language,
                decoding={"beam_size": 1},
            )
            for name, model in models.items()
        }
    return ExportReport(
        format=exporter.name,
        quantization=quantization,
        out=str(folder),
        bytes=sum(path.stat().st_size for path in folder.iterdir()),
        compared_on=trial.origin,
        float32=unquantized,
        quantized=quantized,
        **scores,
    )


def _write_and_compare(
    exporter: Exporter, folder: Path, quantization: str, trial: TrialTexts
) -> tuple[ExportedModel | ExportedEncoder, ExportComparison | EncoderComparison]:
    """Write an export to an empty folder; return the export, opened for running, and its comparison with the original.

    Raises:
        TransduceError: the format does not support the model, or its tokenizer splits a text otherwise.
    """
    exporter.write(folder, quantization)
    exported, original = exporter.open(folder, trial.texts), exporter.original.as_exported_model()
    if isinstance(original, OriginalEncoder):
        assert isinstance(exported, ExportedEncoder)
        return exported, compare_encoders(original, exported, trial.rows, trial.token_types)
    assert isinstance(exported, ExportedModel)
    compared = compare_models(original, exported, trial.rows, tokens=trial.tokens, max_tokens=trial.max_tokens)
    return exported, compared


# --- all or nothing ---


@contextlib.contextmanager
def _temporary_folder(out: Path) -> Iterator[Path]:
    """Create a temporary folder next to `out` for a `with` block, and yield its path.

    At the end of the block, the folder is removed unless the block has renamed it. Parent folders that were created for
    it are removed, too, if they are empty. An `OSError` of the block without a file name gets the name `out`.

    Raises:
        TransduceError: the temporary folder cannot be created, or another process writes to `out`.
    """
    temporary = out.with_name(f".partial-{out.name}")
    created = [parent for parent in out.parents if not parent.exists()]  # innermost first
    try:
        with contextlib.ExitStack() as stack:
            try:
                for parent in reversed(created):
                    parent.mkdir(exist_ok=True)
                stack.enter_context(lock_output(out))
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir()
            except OSError as error:
                raise TransduceError(f"{out} cannot be written ({error.strerror}): name another folder.") from error
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            with name_path_in_errors(out):
                yield temporary
    finally:
        with contextlib.suppress(OSError):  # fails if a parent holds the export or other files
            for parent in created:
                parent.rmdir()


def _rename_complete(temporary: Path, out: Path) -> None:
    """Flush the files of a complete export to disk, and rename its folder to the final path."""
    for path in temporary.iterdir():
        sync_file(path)
    sync_folder(temporary)
    temporary.rename(out)
    sync_folder(out.parent)
