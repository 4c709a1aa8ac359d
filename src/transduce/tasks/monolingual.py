"""Train a translation model with monolingual target text, which a reverse model translates back first.

Back-translation (Sennrich et al. 2016, "Improving Neural Machine Translation Models with Monolingual Data"): the final
model learns from the original and the back-translated pairs. Target sides are always human text; machine-translated
sources start with a tag.
"""

from collections.abc import Mapping
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
from transduce.text.languages import language_of
from transduce.training.events import ProgressDisplay
from transduce.training.loop import TrainResult

REVERSE = "reverse"
"""The folder inside the run's folder that holds the reverse model and the back-translations."""
# The reverse model's share of `training.minutes`; if steps are specified, it takes half as many.
_SHARE_OF_REVERSE = 1 / 3
# Settings of the final model that the reverse model shares.
_COMMON = ("training.seed", "training.precision", "training.kernels")


def train_with_monolingual(request: RunRequest) -> TrainResult | None:
    """Train a model on the pairs and on `data.monolingual`, which is back-translated first.

    All three stages can be resumed: training the reverse model, translating, and training the final model.

    Raises:
        TransduceError: the text cannot be translated back, or training fails as in `train_run`.
    """
    settings = make_settings(request.settings)
    _check(settings, request)
    display, training_request = (
        ProgressDisplay(),
        msgspec.structs.replace(request, settings=_with_translations(request, settings)),
    )
    if not (request.resume and (request.out / SETTINGS_FILE).exists()):
        refuse_to_overwrite(request.out, resume=request.resume)
        foresee_run(training_request)
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
        folder = request.out / REVERSE
        translator = load(folder, device=request.device, threads=request.threads)
        translate_files(_files(request, settings.data), translator, [folder], display)
        del translator  # frees its memory for training
    return train_run(training_request)


def _check(settings: Settings, request: RunRequest) -> None:
    """Refuse settings with which back-translation is not possible."""
    data = settings.data
    check_translated(
        settings,
        "monolingual",
        "train the other direction, translate, and name the translations with --back-translated (docs/monolingual.md)",
    )
    if not data.target:
        raise TransduceError(
            "`data.monolingual` is translated back by a model that learns from the same pairs in reverse, which takes "
            "a file for each side: pass --source and --target."
        )
    for path in data.monolingual:
        if not Path(path).is_file():
            raise TransduceError(f"{path} does not exist: `data.monolingual` names text in the target's language.")
    if request.dry_run and request.resume:
        raise TransduceError("`--dry-run` shows what a new run would do: leave `--resume` out.")


def _reverse_request(request: RunRequest, settings: Settings) -> RunRequest:
    """Return the request of the reverse model: swapped pairs, with the same tokenizer settings and seed.

    It gets a share of the time; all other settings are default.
    """
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
        **{name: _setting(request.settings, name) for name in _COMMON},
    }.items():
        if value not in (None, [], {}):
            put_setting(content, name, value)
    resume = request.resume and not request.dry_run
    return msgspec.structs.replace(
        request, settings=content, out=request.out / REVERSE, resume=resume, said_reason="by what you said"
    )


def _setting(settings: Mapping[str, Any], name: str) -> Any:
    table, key = name.split(".")
    return settings.get(table, {}).get(key)


def _minutes(settings: Settings, share: float) -> float | None:
    minutes = settings.training.minutes
    return None if minutes is None else minutes * share


def _files(request: RunRequest, data: DataSettings) -> list[TranslatedFile]:
    """Return the file for the translation of each text, named after the source language."""
    language = (data.languages or (language_of(data.source[0]), None))[0] or "source"
    folder = request.out / REVERSE
    return [
        TranslatedFile(text, folder / f"back-translated-{number}.{language}")
        for number, text in enumerate(data.monolingual, 1)
    ]


def _with_translations(request: RunRequest, settings: Settings) -> dict[str, Any]:
    """Return the final model's settings: the original pairs and the back-translated ones."""
    data, translated = settings.data, [str(file.path) for file in _files(request, settings.data)]
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
