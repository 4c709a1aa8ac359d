"""What no corpus could make right is refused before one is read, which may take minutes."""

import msgspec

from transduce.errors import TransduceError
from transduce.model.build import Model
from transduce.model.config import ModelConfig
from transduce.model.config_rules import IDLE_OF_RECURRENT
from transduce.runtime.decoding import check_search
from transduce.runtime.folder import ModelFolder
from transduce.runtime.machine import Machine
from transduce.search.settings import SearchSettings
from transduce.tasks.account import Account
from transduce.tasks.beginning import read_beginning
from transduce.tasks.kind import C, TaskKind
from transduce.tasks.kinds import kind_of
from transduce.tasks.resolve import check_training
from transduce.tasks.resolve_model import Pieces, follow_model, keep_model, resolve_model
from transduce.tasks.settings import Settings
from transduce.tasks.stored_beginning import check_adaptation
from transduce.tasks.text_kind import TextKind
from transduce.text.sentencepiece_model import EOS_ID, PAD_ID
from transduce.training.choices import PRESETS, Choice

_OF_ATTENTION = ("attention_score", "attention_kind", "attention_scale", "attention_dropout")
_SIZE = 1 << 15  # of vocabularies, for the time being


def foresee(
    kind: TaskKind[C], settings: Settings, machine: Machine, account: Account
) -> tuple[Settings, ModelFolder[Model] | None]:
    """The settings, with what a model that training begins with decides, and that model.

    Raises:
        TransduceError: settings that cannot be met, whatever the text; none of it was read.
    """
    kind.check(settings)
    _refuse_idle_search(kind, settings)
    _tell_idle(settings, account)
    check_adaptation(settings)
    beginning = read_beginning(settings)
    kept = None if beginning is None else beginning.model.config
    if kept is not None:
        kind.check_model(kept.kind, f"The model in {settings.start_from}")
        settings = follow_model(settings, kept, account)
    check_choices(settings, kept, machine)
    return settings, beginning


def _refuse_idle_search(kind: TaskKind[C], settings: Settings) -> None:
    """A run that goes on may have what was accepted once.

    Raises:
        TransduceError: a search is said, but none goes by it.
    """
    if kind.instead_of_search is None:
        return
    usual = SearchSettings()
    for name in SearchSettings.__struct_fields__:
        if name not in kind.own_search and getattr(settings.search, name) != getattr(usual, name):
            raise TransduceError(
                f"`search.{name}` does nothing where `task.kind` is {kind.name}: {kind.instead_of_search}."
            )


def _tell_idle(settings: Settings, account: Account) -> None:
    """Enters what does nothing in a recurrent model, such as sizes that a file has for several kinds of model."""
    model = settings.model
    if model.kind != "recurrent":
        return
    usual = {field.name: field.default for field in msgspec.structs.fields(ModelConfig)}
    idle = dict.fromkeys(IDLE_OF_RECURRENT, "does nothing: a recurrent model has none")
    if not model.embedding_norm:
        idle["norm_epsilon"] = "does nothing: a recurrent model has no norms but that of `model.embedding_norm`"
    if model.recurrent_attention == "none" and not model.recurrent_self_attention:
        idle |= dict.fromkeys(_OF_ATTENTION, "does nothing: this model has no attention")
    for name, reason in idle.items():
        said = getattr(model, name)
        if said not in (None, usual[name]):
            account.take(f"model.{name}", None, Choice(said, reason))


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
    if kind_of(settings.task.kind).writes_translations:
        search = msgspec.structs.replace(settings.search, generate=None)  # whose pieces are not known yet
        check_search(search, [model], width=search.beam_size)


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
