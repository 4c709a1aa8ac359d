"""What trains: a run, or what comes before it too."""

from transduce.errors import TransduceError
from transduce.tasks.distillation import TAUGHT, train_with_teacher
from transduce.tasks.monolingual import REVERSE, train_with_monolingual
from transduce.tasks.new_run import SETTINGS_FILE
from transduce.tasks.run import RunRequest, train_run
from transduce.tasks.settings_reading import make_settings
from transduce.training.loop import TrainResult

# What a run that is not begun yet left behind, and what was said for it.
_STAGES = {REVERSE: "--monolingual", TAUGHT: "--teacher"}


def train_in_stages(request: RunRequest) -> TrainResult | None:
    """Trains, once text that has to be translated before is translated.

    Returns:
        How the run ended; None for a dry run.

    Raises:
        TransduceError: as `train_run`, `train_with_monolingual` and `train_with_teacher` say.
    """
    data = make_settings(request.settings).data
    if data.monolingual and data.teacher:
        raise TransduceError(
            "`data.monolingual` and `data.teacher` are for a run each: train with the first, and let that model teach "
            "the second."
        )
    if data.monolingual:
        return train_with_monolingual(request)
    if data.teacher:
        return train_with_teacher(request)
    _refuse_to_forget(request)
    return train_run(request)


def _refuse_to_forget(request: RunRequest) -> None:
    """A run that stopped before its text was translated does not go on without it."""
    for name, option in _STAGES.items():
        if request.resume and (request.out / name).is_dir() and not (request.out / SETTINGS_FILE).exists():
            raise TransduceError(
                f"The run in {request.out} stopped before its own training: say `{option}` as before, or delete "
                f"{request.out / name}."
            )
