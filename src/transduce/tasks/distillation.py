"""Distill a translation model: train on the translations that a teacher model makes first.

Sequence-level distillation (Kim and Rush 2016, "Sequence-Level Knowledge Distillation"): the teacher's translations are
more regular than human ones, and so easier to learn for a much smaller model. The teacher may have any size, model
family and vocabulary. Several teachers translate as an ensemble.
"""

from pathlib import Path
from typing import Any

import msgspec

from transduce.errors import TransduceError
from transduce.runtime.opening import load
from transduce.tasks.new_run import SETTINGS_FILE, refuse_to_overwrite
from transduce.tasks.run import RunRequest, train_run
from transduce.tasks.settings import DataSettings, Settings
from transduce.tasks.settings_reading import make_settings, put_setting
from transduce.tasks.translated_files import TranslatedFile, check_translated, foresee_run, translate_files
from transduce.text.corpus import format_of
from transduce.training.events import ProgressDisplay
from transduce.training.loop import TrainResult

TAUGHT = "taught"
"""The folder inside the run's folder that holds the teacher's translations."""


def train_with_teacher(request: RunRequest) -> TrainResult | None:
    """Translate the sources with the teacher of `data.teacher`, then train a model on the translations.

    Both stages can be resumed.

    Raises:
        TransduceError: the teacher cannot translate the text, or training fails as in `train_run`.
    """
    settings = make_settings(request.settings)
    _check(settings, request)
    if request.resume and (request.out / SETTINGS_FILE).exists():
        return train_run(_training_request(request, None))
    return train_run(_have_translated(request, settings.data))


def _have_translated(request: RunRequest, data: DataSettings) -> RunRequest:
    """Translate with the teacher, and return the request of the training run on the translations."""
    refuse_to_overwrite(request.out, resume=request.resume)
    _refuse_to_restart(request)
    translator = load(data.teacher, device=request.device, threads=request.threads)
    files = _files(request, data, translator.target_language)
    training_request = _training_request(request, [str(file.path) for file in files])
    foresee_run(training_request)
    (request.out / TAUGHT).mkdir(parents=True, exist_ok=True)
    translate_files(files, translator, [Path(folder) for folder in data.teacher], ProgressDisplay())
    return training_request


def _check(settings: Settings, request: RunRequest) -> None:
    """Refuse settings with which no teacher can translate."""
    data = settings.data
    by_hand = "translate first, and train on the translations (docs/distillation.md)"
    check_translated(settings, "teacher", by_hand)
    if not data.source or any(format_of(path, data.format) != "lines" for path in data.source):
        raise TransduceError(
            "`data.teacher` translates files of sentences, a sentence a line: name them with --source, which neither "
            "files of pairs nor a prepared corpus can be."
        )
    if data.target:
        raise TransduceError(
            "`data.teacher` writes the targets, in place of `data.target`: leave one of them out "
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


def _files(request: RunRequest, data: DataSettings, written: str | None) -> list[TranslatedFile]:
    """Return the file for the translation of each text, named after the target language."""
    language = data.languages[1] if data.languages else written or "target"
    return [
        TranslatedFile(text, request.out / TAUGHT / f"taught-{number}.{language}")
        for number, text in enumerate(data.source, 1)
    ]


def _refuse_to_restart(request: RunRequest) -> None:
    if (request.out / TAUGHT).is_dir() and not request.resume:
        raise TransduceError(
            f"{request.out} holds a run already, which stopped before its own training: continue with --resume, or "
            "name another folder with --out."
        )


def _training_request(request: RunRequest, taught: list[str] | None) -> RunRequest:
    """Return the request of the training run: without the teacher, and with the translated files if there are any."""
    content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(request.settings)))
    del content["data"]["teacher"]
    if taught is not None:
        put_setting(content, "data.target", taught)
    return msgspec.structs.replace(request, settings=content)
