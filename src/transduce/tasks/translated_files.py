"""Translate whole files before training, for distillation and back-translation; an interrupted translation resumes."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from transduce.durable import file_sha256, write_file
from transduce.errors import TransduceError
from transduce.runtime.bulk import lines_at_once, portions, skip_lines
from transduce.runtime.report_clock import ReportClock
from transduce.runtime.resumable import ResumableFile
from transduce.runtime.second_look import review
from transduce.runtime.translator import Translator
from transduce.tasks.account import Account
from transduce.tasks.foreseen import foresee
from transduce.tasks.run import Run, RunRequest
from transduce.tasks.settings import Settings
from transduce.text.files import read_lines
from transduce.training.events import ProgressDisplay, format_duration


class TranslatedFile(msgspec.Struct, frozen=True):
    """A text file and the file of its translation, line by line."""

    text: str
    """Path of the text."""
    path: Path
    """Path of the translation."""


def check_translated(settings: Settings, name: str, by_hand: str) -> None:
    """Refuse runs for which text cannot be translated first.

    Args:
        settings: the run's settings.
        name: the setting of `data.*` that asks for the translation.
        by_hand: advice for runs with several processes, for the error message.

    Raises:
        TransduceError: the task is not translation, or there are several processes.
    """
    if settings.task.kind != "translation":
        raise TransduceError(f"`data.{name}` means nothing where `task.kind` is {settings.task.kind}: leave it out.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TransduceError(f"`data.{name}` is for one process: {by_hand}.")


def foresee_run(request: RunRequest) -> None:
    """Check a run's settings up front, before anything is translated for it.

    Raises:
        TransduceError: the settings are invalid for any text.
    """
    run = Run(request)
    foresee(run.kind, run.settings, run.machine, Account())


def translate_files(
    files: Sequence[TranslatedFile],
    translator: Translator,
    models: Sequence[Path],
    display: ProgressDisplay,
) -> None:
    """Translate each file that is not finished; translations with quality warnings become empty lines.

    Training leaves out empty lines.

    Args:
        files: the files to translate.
        translator: the translator, with its default search settings.
        models: folders of the translator's models, whose weights identify an unfinished translation.
        display: shows the progress.

    Raises:
        TransduceError: an unfinished translation is of another text or by another model.
    """
    weights = [file_sha256(path) for model in models for path in sorted(model.glob("*.safetensors"))]
    for each in files:
        with ResumableFile(each.path, options=msgspec.json.encode([each.text, *weights]), resume=True) as file:
            text_sha256, note = file_sha256(Path(each.text)), each.path.with_name(f"{each.path.name}.text_sha256")
            if file.is_finished:
                _refuse_another_text(each, note, text_sha256)
                continue
            write_file(note, text_sha256.encode())
            _translate(translator, models[0], each.text, file, display)


def _refuse_another_text(file: TranslatedFile, note: Path, text_sha256: str) -> None:
    """Refuse a finished translation of a text that has changed; older versions did not record the text."""
    if note.is_file() and note.read_text("ascii") != text_sha256:
        raise TransduceError(
            f"{file.path} was translated from another text than {file.text} holds now: restore the text, or "
            f"delete {file.path} to translate it again."
        )


def _translate(translator: Translator, model: Path, text: str, file: ResumableFile, display: ProgressDisplay) -> None:
    remaining = portions(read_lines(text, keep_undecodable=True), size=lines_at_once(str(translator.device)))
    if file.progress.lines:
        finished, remaining = skip_lines(remaining, file.progress.lines)
        file.skip(finished)
    file.open()
    display.say(f"Translating {text}, from line {file.progress.lines + 1:,} on.")
    clock, lines, left_out = ReportClock(), 0, 0
    for portion in remaining:
        written = list(_texts(translator, portion.lines))
        lines, left_out = lines + len(written), left_out + written.count("")
        file.append(portion.lines, "".join(f"{line}\n" for line in written))
        if clock.is_due():
            display.say(f"{file.progress.lines:,} lines, {format_duration(clock.elapsed_seconds)}")
    file.finish()
    display.say(
        f"{lines:,} lines translated in {format_duration(clock.elapsed_seconds)}; {left_out:,} of them "
        "empty or with quality warnings, and left out."
    )
    if 2 * left_out > lines:
        display.say(f"warning: These are most of them: the model in {model} is not suited to such text.")


def _texts(translator: Translator, lines: Sequence[str]) -> Iterator[str]:
    translations = translator.translate(lines, translator.search)
    for translation, doubts in zip(translations, review(translator, translations), strict=True):
        yield "" if doubts else translation.text
