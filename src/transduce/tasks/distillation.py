"""Training on what another model writes: a teacher translates the sources first.

Sequence-level distillation (Kim and Rush 2016, "Sequence-Level Knowledge Distillation"): what a model writes is more
regular than what people write, and so easier to learn for a much smaller one. The teacher may be of any size and
family, and have another vocabulary; several translate together.
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
"""The folder, inside the run's, of what the teacher wrote."""


def train_with_teacher(request: RunRequest) -> TrainResult | None:
    """As `train_run`, on the sources and what `data.teacher` makes of them.

    Both stages, translating and training, go on where they stopped.

    Raises:
        TransduceError: also where the teacher cannot translate the text.
    """
    settings = make_settings(request.settings)
    _check(settings, request)
    if request.resume and (request.out / SETTINGS_FILE).exists():
        return train_run(_own_request(request, None))
    return train_run(_have_translated(request, settings.data))


def _have_translated(request: RunRequest, data: DataSettings) -> RunRequest:
    """The run itself, once the teacher has translated."""
    refuse_to_overwrite(request.out, resume=request.resume)
    _refuse_to_begin_again(request)
    translator = load(data.teacher, device=request.device, threads=request.threads)
    files = _files(request, data, translator.target_language)
    own = _own_request(request, [str(file.path) for file in files])
    foresee_run(own)
    (request.out / TAUGHT).mkdir(parents=True, exist_ok=True)
    translate_files(files, translator, [Path(folder) for folder in data.teacher], ProgressDisplay())
    return own


def _check(settings: Settings, request: RunRequest) -> None:
    """Refuses what no teacher can translate."""
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
            "`data.teacher` writes what is learnt, in place of `data.target`: leave one of them out "
            "(docs/distillation.md tells how to learn from both)."
        )
    for path in data.source:
        if not Path(path).is_file():
            raise TransduceError(f"{path} does not exist: `data.source` names what the teacher is to translate.")
    if request.dry_run:
        raise TransduceError(
            "`--dry-run` tells what follows from the text, which the teacher is yet to write: leave it out, or have it "
            "translated first (docs/distillation.md)."
        )


def _files(request: RunRequest, data: DataSettings, written: str | None) -> list[TranslatedFile]:
    """Where the translation of each text stands: named by the language that it is in."""
    language = data.languages[1] if data.languages else written or "target"
    return [
        TranslatedFile(text, request.out / TAUGHT / f"taught-{number}.{language}")
        for number, text in enumerate(data.source, 1)
    ]


def _refuse_to_begin_again(request: RunRequest) -> None:
    if (request.out / TAUGHT).is_dir() and not request.resume:
        raise TransduceError(
            f"{request.out} holds a run already, which stopped before its own training: go on with --resume, or name "
            "another folder with --out."
        )


def _own_request(request: RunRequest, taught: list[str] | None) -> RunRequest:
    """The run itself, which knows its files alone; one that has begun knows what it was taught, too."""
    content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(request.settings)))
    del content["data"]["teacher"]
    if taught is not None:
        put_setting(content, "data.target", taught)
    return msgspec.structs.replace(request, settings=content)
