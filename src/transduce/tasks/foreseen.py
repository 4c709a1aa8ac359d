"""Check a run's settings up front (preflight), before reading a corpus, which may take minutes."""

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

_ATTENTION_SETTINGS = ("attention_score", "attention_kind", "attention_scale", "attention_dropout")
_PLACEHOLDER_SIZE = 1 << 15  # placeholder vocabulary size


def foresee(
    kind: TaskKind[C], settings: Settings, machine: Machine, account: Account
) -> tuple[Settings, ModelFolder[Model] | None]:
    """Check settings that no corpus could make valid, and complete them from the base model.

    Args:
        kind: the task.
        settings: the user's settings.
        machine: the machine that trains.
        account: the choice log.

    Returns:
        The settings, with values that the base model determines, and the base model, if there is one.

    Raises:
        TransduceError: settings are invalid for any text. No text has been read.
    """
    kind.check(settings)
    _refuse_idle_search(kind, settings)
    _log_unused(settings, account)
    check_adaptation(settings)
    base_model = read_beginning(settings)
    base_config = None if base_model is None else base_model.model.config
    if base_config is not None:
        kind.check_model(base_config.kind, f"The model in {settings.start_from}")
        settings = follow_model(settings, base_config, account)
    check_choices(settings, base_config, machine)
    return settings, base_model


def _refuse_idle_search(kind: TaskKind[C], settings: Settings) -> None:
    """Refuse search settings that the task does not use.

    Raises:
        TransduceError: such a setting has another value than its default.
    """
    if kind.instead_of_search is None:
        return
    defaults = SearchSettings()
    for name in SearchSettings.__struct_fields__:
        if name not in kind.own_search and getattr(settings.search, name) != getattr(defaults, name):
            raise TransduceError(
                f"`search.{name}` does nothing where `task.kind` is {kind.name}: {kind.instead_of_search}."
            )


def _log_unused(settings: Settings, account: Account) -> None:
    """Log settings that a recurrent model does not use; settings files may have them for several kinds of model."""
    model = settings.model
    if model.kind != "recurrent":
        return
    defaults = {field.name: field.default for field in msgspec.structs.fields(ModelConfig)}
    unused = dict.fromkeys(IDLE_OF_RECURRENT, "has no effect: a recurrent model has none")
    if not model.embedding_norm:
        unused["norm_epsilon"] = "has no effect: a recurrent model has no norms but that of `model.embedding_norm`"
    if model.recurrent_attention == "none" and not model.recurrent_self_attention:
        unused |= dict.fromkeys(_ATTENTION_SETTINGS, "has no effect: this model has no attention")
    for name, reason in unused.items():
        value = getattr(model, name)
        if value not in (None, defaults[name]):
            account.take(f"model.{name}", None, Choice(value, reason))


def check_choices(settings: Settings, kept: ModelConfig | None, machine: Machine) -> None:
    """Refuse contradictory settings of model and training, whatever the corpus.

    Args:
        settings: the user's settings.
        kept: the configuration of the base model, if there is one.
        machine: the machine that trains.

    Raises:
        TransduceError: settings of the model or of training contradict each other.
    """
    model = _trial_model(settings) if kept is None else keep_model(settings, kept, str(settings.start_from), Account())
    check_training(settings, model, machine)
    if kind_of(settings.task.kind).writes_translations:
        search = msgspec.structs.replace(settings.search, generate=None)  # its token ids are not known yet
        check_search(search, [model], width=search.beam_size)


def _trial_model(settings: Settings) -> ModelConfig:
    """Return the model's configuration for the chosen preset, or for the first preset it can be built with.

    Raises:
        TransduceError: no preset is possible.
    """
    reads_text = isinstance(kind_of(settings.task.kind), TextKind)
    properties = Pieces(_PLACEHOLDER_SIZE, _PLACEHOLDER_SIZE, PAD_ID, EOS_ID, joint=True) if reads_text else None
    refusals = []
    for preset in PRESETS if settings.preset is None else (settings.preset,):
        try:
            return resolve_model(settings, preset, properties, Account())
        except TransduceError as refusal:
            refusals.append(refusal)
    raise refusals[0]
