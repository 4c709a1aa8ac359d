"""What no corpus could make right is refused before one is read, which may take minutes."""

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.runtime.machine import Machine
from transduce.tasks.account import Account
from transduce.tasks.kinds import kind_of
from transduce.tasks.resolve import check_training
from transduce.tasks.resolve_model import Pieces, keep_model, resolve_model
from transduce.tasks.settings import Settings
from transduce.tasks.text_kind import TextKind
from transduce.text.sentencepiece_model import EOS_ID, PAD_ID
from transduce.training.choices import PRESETS

_SIZE = 1 << 15  # of vocabularies, for the time being


def check_choices(settings: Settings, kept: ModelConfig | None, machine: Machine) -> None:
    """Refuses a model and a training that contradict themselves, whatever the corpus will decide.

    Args:
        settings: as the user gave them.
        kept: the model that training begins with, if there is one.
        machine: where it will train.

    Raises:
        TransduceError: settings of the model, or of training, do not go together.
    """
    model = (
        _foresee_model(settings) if kept is None else keep_model(settings, kept, str(settings.start_from), Account())
    )
    check_training(settings, model, machine)


def _foresee_model(settings: Settings) -> ModelConfig:
    """The model by the preset that was said, or by the first that it can be built with.

    Raises:
        TransduceError: it cannot be built with any.
    """
    reads_text = isinstance(kind_of(settings.task.kind), TextKind)
    pieces = Pieces(_SIZE, _SIZE, PAD_ID, EOS_ID, joint=True) if reads_text else None
    refusals = []
    for preset in PRESETS if settings.preset is None else (settings.preset,):
        try:
            return resolve_model(settings, preset, pieces, Account())
        except TransduceError as refusal:
            refusals.append(refusal)
    raise refusals[0]
