"""Train on synthetic data: the translations of a teacher model (distillation), or back-translated text."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from transduce.atomic_io import file_sha256, write_file
from transduce.errors import TransduceError, count_noun
from transduce.inference.batching import Documents
from transduce.inference.bulk_files import Portion, ReportClock, ResumableFile, portion_size, portions, skip_lines
from transduce.inference.load import open_translator
from transduce.inference.redecoding import estimate_quality
from transduce.inference.translator import Translator
from transduce.model_folder.read import SETTINGS_FILE
from transduce.process_environment import launched_ranks
from transduce.tasks.kinds.kind import refuse_unused
from transduce.tasks.run.resolving import preflight
from transduce.tasks.run.run import Run, RunRequest, train_run
from transduce.tasks.run.run_folder import refuse_to_overwrite
from transduce.tasks.settings.presets import setting_value
from transduce.tasks.settings.reading import make_settings, put_setting
from transduce.tasks.settings.structs import DataSettings, Settings
from transduce.text.corpus import format_of
from transduce.text.files import read_lines
from transduce.text.languages import language_of
from transduce.training.choices import ChoiceLog
from transduce.training.display import ProgressDisplay, format_duration
from transduce.training.loop import TrainResult

# --- translation of whole files ---
# An interrupted translation resumes.


class TranslatedFile(msgspec.Struct, frozen=True):
    """A text file, and the path of the file to which its translation is written line by line."""

    text: str
    """Path of the text."""
    path: Path
    """Path of the translation."""


def check_translated(settings: Settings, name: str, by_hand: str) -> None:
    """Raise an error for a run whose text cannot be translated before training, by a teacher or a reverse model.

    Args:
        settings: the run's settings.
        name: the setting of `data.*` that asks for the translation.
        by_hand: advice for runs with several processes, for the error message.

    Raises:
        TransduceError: the task is not translation, or there are several processes.
    """
    refuse_unused(settings.task.kind, {f"data.{name}": settings.task.kind != "translation"})
    if launched_ranks().world_size > 1:
        raise TransduceError(f"`data.{name}` is for one process: {by_hand}.")


def preflight_run(request: RunRequest) -> None:
    """Check a run's settings, as far as they do not depend on its text, before anything is translated for it.

    Raises:
        TransduceError: the settings are invalid, whatever the text.
    """
    run = Run(request)
    preflight(run.kind, run.settings, run.machine, ChoiceLog())


def translate_files(
    files: Sequence[TranslatedFile],
    translator: Translator,
    models: Sequence[Path],
    display: ProgressDisplay,
) -> None:
    """Translate each file whose translation is not finished.

    A line whose translation has quality warnings becomes an empty line, which training leaves out.

    Args:
        files: the files to translate.
        translator: the translator, with its default search settings.
        models: folders of the translator's models. Digests of their weights are recorded with each translation, so that
            translations by other models are recognized later.
        display: shows the progress.

    Raises:
        TransduceError: an existing translation, finished or not, is of another text or by another model.
    """
    weights = [file_sha256(path) for model in models for path in sorted(model.glob("*.safetensors"))]
    for each in files:
        with ResumableFile(each.path, options=msgspec.json.encode([each.text, *weights]), resume=True) as file:
            made_from = [file_sha256(Path(each.text)), *weights]
            note = each.path.with_name(f"{each.path.name}.text_sha256")
            if file.is_finished:
                _refuse_stale(each, note, made_from)
                continue
            write_file(note, "\n".join(made_from).encode())
            _translate(translator, models[0], each.text, file, display)


def _refuse_stale(file: TranslatedFile, note: Path, made_from: Sequence[str]) -> None:
    """Raise an error if a finished translation is of another text or by other models.

    Args:
        file: the text and its finished translation.
        note: a file with the digests at the time of the translation. It may lack those of the models, or not exist;
            then they are not compared.
        made_from: the present digests of the text and of the models' weights.

    Raises:
        TransduceError: a digest differs.
    """
    if not note.is_file():
        return
    text, *weights = note.read_text("ascii").split("\n")
    if text != made_from[0]:
        raise TransduceError(
            f"{file.path} was translated from another text than {file.text} holds now: restore the text, or "
            f"delete {file.path} to translate it again."
        )
    if weights and weights != made_from[1:]:
        raise TransduceError(
            f"{file.path} was translated by another model than the one that is named now: name that model again, or "
            f"delete {file.path} to translate it again."
        )


def _translate(translator: Translator, model: Path, text: str, file: ResumableFile, display: ProgressDisplay) -> None:
    # Translations of earlier lines are no context: a resumed run would have to read them again.
    context = (
        0
        if translator.document_context is None or translator.document_context.on_target
        else translator.document_context.before
    )
    remaining = portions(
        read_lines(text, keep_undecodable=True), size=portion_size(str(translator.device)), context=context
    )
    if file.progress.lines:
        finished, remaining = skip_lines(remaining, file.progress.lines)
        file.skip(finished)
    file.open()
    display.say(f"Translating {text}, from line {file.progress.lines + 1:,} on.")
    clock, lines, left_out = ReportClock(), 0, 0
    for portion in remaining:
        written = list(_texts(translator, portion))
        lines, left_out = lines + len(written), left_out + written.count("")
        file.append(portion.lines, "".join(f"{line}\n" for line in written))
        if clock.is_due():
            display.say(f"{count_noun(file.progress.lines, 'line')}, {format_duration(clock.elapsed_seconds)}")
    file.finish()
    display.say(
        f"{count_noun(lines, 'line')} translated in {format_duration(clock.elapsed_seconds)}. Left out as empty or "
        f"with quality warnings: {left_out:,}."
    )
    if 2 * left_out > lines:
        display.say(f"warning: These are most of them: the model in {model} is not suited to such text.")


def _texts(translator: Translator, portion: Portion) -> Iterator[str]:
    documents = Documents.of_lines(portion.lines, portion.before)
    translations = translator.translate(portion.lines, translator.search, documents=documents)
    for translation, warnings in zip(translations, estimate_quality(translator, translations), strict=True):
        yield "" if warnings else translation.text


# --- back-translation ---
# A reverse model translates monolingual target text (Sennrich et al. 2016, "Improving Neural Machine Translation
# Models with Monolingual Data"). The final model learns from the original and the back-translated pairs. Target sides
# are always human text; machine-translated sources start with a tag.


REVERSE_FOLDER = "reverse"
"""The name of the folder in a run's folder that holds the reverse model and the back-translations."""
# The reverse model's share of `training.minutes`; if steps are specified, it takes half as many.
_SHARE_OF_REVERSE = 1 / 3
# Settings of the final model that the reverse model shares.
_SHARED_SETTINGS = ("training.seed", "training.precision", "training.kernels")


def train_with_monolingual(request: RunRequest) -> TrainResult | None:
    """Train a model on the pairs and on the monolingual text of `data.monolingual`, which is back-translated first.

    All three stages can be resumed: training the reverse model, translating, and training the final model.

    Returns:
        How the run ended; None for a dry run.

    Raises:
        TransduceError: the text cannot be translated back, or training fails as in `train_run`.
    """
    settings = make_settings(request.settings)
    _check_monolingual(settings, request)
    display = ProgressDisplay()
    training_request = msgspec.structs.replace(request, started_at=None, settings=_with_translations(request, settings))
    if not (request.resume and (request.out / SETTINGS_FILE).exists()):
        refuse_to_overwrite(request.out, resume=request.resume)
        preflight_run(training_request)
        display.say(
            "First, a reverse model is trained, which translates the monolingual text back. It gets a third of the "
            "minutes, or half of the steps, if you specified any."
        )
        reverse = train_run(_reverse_request(request, settings))
        if request.dry_run:
            display.say("Then the text would be translated back, and a model would be trained on all pairs.")
            return None
        if reverse is None or reverse.reason.startswith("SIG"):
            return reverse
        folder = request.out / REVERSE_FOLDER
        translator = open_translator(folder, device=request.device, threads=request.threads)
        translate_files(_back_translation_files(request, settings.data), translator, [folder], display)
        del translator  # frees its memory for training
    return train_run(training_request)


def _check_monolingual(settings: Settings, request: RunRequest) -> None:
    """Raise an error if the settings ask for back-translation of monolingual text, but the run cannot do it.

    Raises:
        TransduceError: the task is another, targets or files are missing, or there are several processes.
    """
    data = settings.data
    check_translated(
        settings,
        "monolingual",
        "train the other direction, translate, and name the translations with --back-translated (docs/monolingual.md)",
    )
    if not data.target:
        raise TransduceError(
            "`data.monolingual` is translated back by a model that learns from the same pairs in reverse, which takes "
            "a file for each side: set `data.source` and `data.target`."
        )
    for path in data.monolingual:
        if not Path(path).is_file():
            raise TransduceError(f"{path} does not exist: `data.monolingual` names text in the target's language.")
    if request.dry_run and request.resume:
        raise TransduceError("`--dry-run` shows what a new run would do: leave `--resume` out.")


def _reverse_request(request: RunRequest, settings: Settings) -> RunRequest:
    """Return the training request of the reverse model, which translates targets into sources.

    The sides of the pairs are swapped. The model gets half of the steps, or a third of the time. It has the tokenizer
    settings, filters, seed, precision and kernels of the run; its other settings are default.
    """
    data, steps = settings.data, settings.training.steps
    languages = None if data.languages is None else list(data.languages[::-1])
    tokenizer = dict(request.settings.get("tokenizer", {}))
    if "vocabulary" in tokenizer:  # one for each side
        tokenizer["vocabulary"] = list(tokenizer["vocabulary"])[::-1]
    content: dict[str, Any] = {"tokenizer": tokenizer}
    for name, value in {
        "data.source": list(data.target),
        "data.target": list(data.source),
        # Files with both sides of the dev set cannot be swapped: a part of the pairs is held out instead.
        "data.dev_source": list(data.dev_target),
        "data.dev_target": list(data.dev_source) if data.dev_target else [],
        "data.languages": languages,
        "data.filters": request.settings.get("data", {}).get("filters", {}),
        "training.minutes": _minutes(settings, _SHARE_OF_REVERSE),
        "training.steps": None if steps is None else -(-steps // 2),
        **{name: setting_value(request.settings, name) for name in _SHARED_SETTINGS},
    }.items():
        if value not in (None, [], {}):
            put_setting(content, name, value)
    resume = request.resume and not request.dry_run
    return msgspec.structs.replace(
        request,
        started_at=None,
        callbacks=(),
        settings=content,
        out=request.out / REVERSE_FOLDER,
        resume=resume,
        specified_reason="by your settings",
    )


def _minutes(settings: Settings, share: float) -> float | None:
    minutes = settings.training.minutes
    return None if minutes is None else minutes * share


def _back_translation_files(request: RunRequest, data: DataSettings) -> list[TranslatedFile]:
    """Return a list of the monolingual texts, each with the path of its back-translation (`TranslatedFile`).

    The path's suffix is the source language, or "source" if that is unknown.
    """
    language = (data.languages or (language_of(data.source[0]), None))[0] or "source"
    folder = request.out / REVERSE_FOLDER
    return [
        TranslatedFile(text, folder / f"back-translated-{number}.{language}")
        for number, text in enumerate(data.monolingual, 1)
    ]


def _with_translations(request: RunRequest, settings: Settings) -> dict[str, Any]:
    """Return the final model's settings, nested as in a file: its corpus adds back-translations to the pairs."""
    data, translated = settings.data, [str(file.path) for file in _back_translation_files(request, settings.data)]
    content = msgspec.json.decode(msgspec.json.encode(dict(request.settings)))
    del content["data"]["monolingual"]
    for name, value in {
        "data.source": [*data.source, *translated],
        "data.target": [*data.target, *data.monolingual],
        "data.back_translated": [*data.back_translated, *translated],
        "training.minutes": _minutes(settings, 1 - _SHARE_OF_REVERSE),
    }.items():
        if value is not None:
            put_setting(content, name, value)
    return content  # type: ignore[no-any-return]


# --- distillation ---
# The teacher's translations are more regular than human ones, and so easier to learn for a much smaller model (Kim
# and Rush 2016, "Sequence-Level Knowledge Distillation"). The teacher may have any size, model family and vocabulary.
# Several teachers translate as an ensemble.


TEACHER_FOLDER = "teacher-translations"
"""The name of the folder in a run's folder that holds the teacher's translations."""
OLD_TEACHER_FOLDER = "taught"
"""The name of `TEACHER_FOLDER` in runs that version 0.1 started."""


def train_with_teacher(request: RunRequest) -> TrainResult | None:
    """Translate the sources with the teacher models of `data.distill_from`, then train a model on the translations.

    Both stages can be resumed. Returns how training ended; None for a dry run.

    Raises:
        TransduceError: the teacher cannot translate the text, or training fails as in `train_run`.
    """
    settings = make_settings(request.settings)
    _check_distillation(settings, request)
    if request.resume and (request.out / SETTINGS_FILE).exists():
        return train_run(_training_request(request, None))
    return train_run(_translate_with_teacher(request, settings.data))


def _translate_with_teacher(request: RunRequest, data: DataSettings) -> RunRequest:
    """Translate the sources with the teacher models; return the request of a run that trains on the translations."""
    refuse_to_overwrite(request.out, resume=request.resume)
    _refuse_to_restart(request)
    translator = open_translator(data.distill_from, device=request.device, threads=request.threads)
    files = _teacher_files(request, data, translator.target_language)
    training_request = _training_request(request, [str(file.path) for file in files])
    preflight_run(training_request)
    files[0].path.parent.mkdir(parents=True, exist_ok=True)
    translate_files(files, translator, [Path(folder) for folder in data.distill_from], ProgressDisplay())
    return training_request


def _check_distillation(settings: Settings, request: RunRequest) -> None:
    """Raise an error for a run with a teacher that cannot translate the sources before training.

    Raises:
        TransduceError: the task is not translation; there are several processes; a source file is missing or does not
            have a sentence on each line; targets are named; or a dry run is requested.
    """
    data = settings.data
    by_hand = "translate first, and train on the translations (docs/distillation.md)"
    check_translated(settings, "distill_from", by_hand)
    if not data.source or any(format_of(path, data.format) != "lines" for path in data.source):
        raise TransduceError(
            "`data.distill_from` translates files of sentences, a sentence a line: name them by `data.source`, which "
            "neither files of pairs nor a prepared corpus can be."
        )
    if data.target:
        raise TransduceError(
            "`data.distill_from` writes the targets, in place of `data.target`: leave one of them out "
            "(docs/distillation.md explains how to learn from both)."
        )
    for path in data.source:
        if not Path(path).is_file():
            raise TransduceError(f"{path} does not exist: `data.source` names the text that the teacher translates.")
    if request.dry_run:
        raise TransduceError(
            "`--dry-run` describes a run on a given text, but the teacher has not translated the text yet: leave "
            "`--dry-run` out, or translate first (docs/distillation.md)."
        )


def _teacher_files(request: RunRequest, data: DataSettings, written: str | None) -> list[TranslatedFile]:
    """Return a list of the source files, each with the path of its translation (`TranslatedFile`).

    The path's suffix is the target language. `written` is the language that the teacher writes; it is used if the
    settings name no languages.
    """
    language = data.languages[1] if data.languages else written or "target"
    folder, name = request.out / TEACHER_FOLDER, "teacher-translation"
    if (request.out / OLD_TEACHER_FOLDER).is_dir():
        folder, name = request.out / OLD_TEACHER_FOLDER, "taught"
    return [TranslatedFile(text, folder / f"{name}-{number}.{language}") for number, text in enumerate(data.source, 1)]


def _refuse_to_restart(request: RunRequest) -> None:
    has_started = any((request.out / name).is_dir() for name in (TEACHER_FOLDER, OLD_TEACHER_FOLDER))
    if has_started and not request.resume:
        raise TransduceError(
            f"{request.out} holds a run already, which stopped before its own training: continue with --resume (in "
            "Python: resume=True), or name another folder with --out (out=)."
        )


def _training_request(request: RunRequest, translations: list[str] | None) -> RunRequest:
    """Return a run's request without the teacher.

    Args:
        request: the run's request, with the teacher.
        translations: the files to use as targets; None: the request's targets stay.
    """
    content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(request.settings)))
    del content["data"]["distill_from"]
    if translations is not None:
        put_setting(content, "data.target", translations)
    return msgspec.structs.replace(request, started_at=None, settings=content)
