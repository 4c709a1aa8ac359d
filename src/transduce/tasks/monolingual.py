"""Training with text of the target language alone: a model of the other direction translates it back first.

Back-translation (Sennrich et al. 2016, "Improving Neural Machine Translation Models with Monolingual Data"). The model
that is asked for then learns from both, what people wrote on the target side always; the sources that a machine wrote
begin with a tag.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from transduce.durable import file_sha256, write_file
from transduce.errors import TransduceError
from transduce.runtime.bulk import lines_at_once, portions, skip_lines
from transduce.runtime.folder import WEIGHTS
from transduce.runtime.opening import load
from transduce.runtime.resumable import ResumableFile
from transduce.runtime.second_look import review
from transduce.runtime.translator import Translator
from transduce.tasks.account import Account
from transduce.tasks.foreseen import foresee
from transduce.tasks.new_run import SETTINGS_FILE, refuse_to_overwrite
from transduce.tasks.run import Run, RunRequest, train_run
from transduce.tasks.settings import DataSettings, Settings, make_settings, put_setting
from transduce.text.files import read_lines
from transduce.text.languages import language_of
from transduce.training.events import ProgressDisplay, format_duration
from transduce.training.loop import TrainResult

REVERSE = "reverse"
"""The folder, inside the run's, of the model of the other direction and of what it wrote."""
# Of `training.minutes`, what the model of the other direction gets; where steps are said, it takes half as many.
_SHARE_OF_REVERSE = 1 / 3
# What holds for both models.
_COMMON = ("training.seed", "training.precision", "training.kernels")
_SECONDS_BETWEEN_REPORTS = 10.0


def train_with_monolingual(request: RunRequest) -> TrainResult | None:
    """As `train_run`; text that `data.monolingual` names is translated back first.

    Each of the three stages, training the other direction, translating, and training, goes on where it stopped.

    Raises:
        TransduceError: also where the text cannot be translated back.
    """
    settings = make_settings(request.settings)
    if not settings.data.monolingual:
        _refuse_to_forget(request)
        return train_run(request)
    _check(settings, request)
    display, own = ProgressDisplay(), msgspec.structs.replace(request, settings=_with_translations(request, settings))
    if not (request.resume and (request.out / SETTINGS_FILE).exists()):
        refuse_to_overwrite(request.out, resume=request.resume)
        run = Run(own)
        foresee(run.kind, run.settings, run.machine, Account())
        display.say(
            "First a model of the other direction, which is to translate the text in one language back. It has a third "
            "of the minutes, or half as many steps, if you said any."
        )
        reverse = train_run(_reverse_request(request, settings))
        if request.dry_run:
            display.say("Then the text would be translated back, and a model be trained on all.")
            return None
        if reverse is None or reverse.reason.startswith("SIG"):
            return reverse
        _translate_all(request, settings, display)
    return train_run(own)


def _refuse_to_forget(request: RunRequest) -> None:
    """A run that stopped before its text was translated back does not go on without it."""
    if request.resume and (request.out / REVERSE).is_dir() and not (request.out / SETTINGS_FILE).exists():
        raise TransduceError(
            f"The run in {request.out} began with text in one language, and stopped before its own training: say "
            f"`--monolingual` as before, or delete {request.out / REVERSE}."
        )


def _check(settings: Settings, request: RunRequest) -> None:
    """Refuses what cannot be turned round."""
    data = settings.data
    if settings.task.kind != "translation":
        raise TransduceError(
            f"`data.monolingual` means nothing where `task.kind` is {settings.task.kind}: leave it out."
        )
    if not data.target:
        raise TransduceError(
            "`data.monolingual` is translated back by a model that learns from the same pairs the other way round, "
            "which takes a file for each side: give --source and --target."
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TransduceError(
            "`data.monolingual` is for one process: train the other direction, translate, and name the translations "
            "with --back-translated (docs/monolingual.md)."
        )
    for path in data.monolingual:
        if not Path(path).is_file():
            raise TransduceError(f"{path} does not exist: `data.monolingual` names text in the target's language.")
    if request.dry_run and request.resume:
        raise TransduceError("`--dry-run` tells what a run would begin with: leave `--resume` out.")


def _reverse_request(request: RunRequest, settings: Settings) -> RunRequest:
    """The pairs the other way round; but for them, the vocabulary, the seed and the time, all is chosen."""
    data, steps = settings.data, settings.training.steps
    languages = None if data.languages is None else list(data.languages[::-1])
    content: dict[str, Any] = {"tokenizer": request.settings.get("tokenizer", {})}
    for name, value in {
        "data.source": list(data.target),
        "data.target": list(data.source),
        "data.dev_source": list(data.dev_target),
        "data.dev_target": list(data.dev_source),
        "data.languages": languages,
        "data.filters": request.settings.get("data", {}).get("filters", {}),
        "training.minutes": _minutes(settings, _SHARE_OF_REVERSE),
        "training.steps": None if steps is None else -(-steps // 2),
        **{name: _said(request.settings, name) for name in _COMMON},
    }.items():
        if value not in (None, [], {}):
            put_setting(content, name, value)
    resume = request.resume and not request.dry_run
    return msgspec.structs.replace(
        request, settings=content, out=request.out / REVERSE, resume=resume, said_reason="by what you said"
    )


def _said(settings: Mapping[str, Any], name: str) -> Any:
    table, key = name.split(".")
    return settings.get(table, {}).get(key)


def _minutes(settings: Settings, share: float) -> float | None:
    minutes = settings.training.minutes
    return None if minutes is None else minutes * share


def _translated_to(request: RunRequest, data: DataSettings) -> list[Path]:
    """Where the translation of each text stands: named by the language that it is in."""
    language = (data.languages or (language_of(data.source[0]), None))[0] or "source"
    return [request.out / REVERSE / f"back-translated-{n}.{language}" for n in range(1, len(data.monolingual) + 1)]


def _translate_all(request: RunRequest, settings: Settings, display: ProgressDisplay) -> None:
    """Each line translated back; a doubtful translation is an empty line, which training leaves out."""
    folder = request.out / REVERSE
    translator: Translator | None = None
    for path, out in zip(settings.data.monolingual, _translated_to(request, settings.data), strict=True):
        options = msgspec.json.encode([path, file_sha256(folder / WEIGHTS)])
        with ResumableFile(out, options=options, resume=True) as file:
            text_sha256, note = file_sha256(Path(path)), out.with_name(f"{out.name}.text_sha256")
            if file.is_finished:
                _refuse_another_text(out, path, note, text_sha256)
                continue
            write_file(note, text_sha256.encode())
            if translator is None:
                translator = load(folder, device=request.device, threads=request.threads)
            _translate(translator, path, file, display)


def _refuse_another_text(out: Path, path: str, note: Path, text_sha256: str) -> None:
    """Lines that were translated before must be those of the text now; of earlier versions nobody noted the text."""
    if note.is_file() and note.read_text("ascii") != text_sha256:
        raise TransduceError(
            f"{out} was translated from another text than {path} holds now: name the text as it was, or delete {out} "
            "to translate it anew."
        )


def _translate(translator: Translator, path: str, file: ResumableFile, display: ProgressDisplay) -> None:
    waiting = portions(read_lines(path, keep_undecodable=True), size=lines_at_once(str(translator.device)))
    if file.progress.lines:
        done, waiting = skip_lines(waiting, file.progress.lines)
        file.skip(done)
    file.open()
    display.say(f"Translating {path} back, from line {file.progress.lines + 1:,} on.")
    started_at = reported_at = time.monotonic()
    lines = doubtful = 0
    for portion in waiting:
        translations = translator.translate(portion.lines, translator.search)
        texts = [
            "" if doubts else translation.text
            for translation, doubts in zip(translations, review(translator, translations), strict=True)
        ]
        lines, doubtful = lines + len(texts), doubtful + texts.count("")
        file.append(portion.lines, "".join(f"{text}\n" for text in texts))
        if time.monotonic() - reported_at >= _SECONDS_BETWEEN_REPORTS:
            reported_at = time.monotonic()
            display.say(f"{file.progress.lines:,} lines, {format_duration(reported_at - started_at)}")
    file.finish()
    display.say(
        f"{lines:,} lines translated back in {format_duration(time.monotonic() - started_at)}; {doubtful:,} of them "
        "doubtful or empty, and left out."
    )
    if 2 * doubtful > lines:
        display.say("warning: These are most of them: the model of the other direction has learnt too little.")


def _with_translations(request: RunRequest, settings: Settings) -> dict[str, Any]:
    """The settings of the run itself: its pairs, and those that were made."""
    data, made = settings.data, [str(path) for path in _translated_to(request, settings.data)]
    content = msgspec.json.decode(msgspec.json.encode(dict(request.settings)))
    del content["data"]["monolingual"]
    for name, value in {
        "data.source": [*data.source, *made],
        "data.target": [*data.target, *data.monolingual],
        "data.back_translated": [*data.back_translated, *made],
        "training.minutes": _minutes(settings, 1 - _SHARE_OF_REVERSE),
    }.items():
        if value is not None:
            put_setting(content, name, value)
    return content  # type: ignore[no-any-return]
