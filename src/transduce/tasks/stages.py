"""Train a run together with the stages before it: back-translation or distillation."""

from transduce.errors import TransduceError
from transduce.tasks.distillation import TAUGHT, train_with_teacher
from transduce.tasks.monolingual import REVERSE, train_with_monolingual
from transduce.tasks.new_run import SETTINGS_FILE
from transduce.tasks.run import RunRequest, train_run
from transduce.tasks.settings_reading import make_settings
from transduce.training.loop import TrainResult

# Folders that an unfinished earlier stage leaves behind, and the option that started the stage.
_STAGES = {REVERSE: "--monolingual", TAUGHT: "--teacher"}


def train_in_stages(request: RunRequest) -> TrainResult | None:
    """Train a run; text for back-translation or distillation is translated first.

    Returns:
        How the run ended; None for a dry run.

    Raises:
        TransduceError: settings or files are invalid, the text cannot be translated, or training fails.
    """
    data = make_settings(request.settings).data
    if data.monolingual and data.teacher:
        raise TransduceError(
            "`data.monolingual` and `data.teacher` each need a run: train with the first, and use that model as the "
            "teacher of the second."
        )
    if data.monolingual:
        return train_with_monolingual(request)
    if data.teacher:
        return train_with_teacher(request)
    _refuse_to_skip_stage(request)
    return train_run(request)


def _refuse_to_skip_stage(request: RunRequest) -> None:
    """Refuse to resume a run without its unfinished earlier stage."""
    for name, option in _STAGES.items():
        if request.resume and (request.out / name).is_dir() and not (request.out / SETTINGS_FILE).exists():
            raise TransduceError(
                f"The run in {request.out} stopped before its own training: pass `{option}` as before, or delete "
                f"{request.out / name}."
            )
