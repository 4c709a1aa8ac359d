"""The model of a run, from what the user said, the corpus and the task."""

import math
from typing import Any, NamedTuple

import msgspec

from transduce.errors import TransduceError
from transduce.interop.word_vectors import vector_width
from transduce.model.config import ModelConfig
from transduce.runtime.machine import Machine
from transduce.tasks.account import Account
from transduce.tasks.kinds import kind_of
from transduce.tasks.settings import Settings, TaskSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import (
    PRESETS,
    Choice,
    choose_dropout,
    choose_preset_in_time,
    count_multiplied_weights,
    pieces_in_time,
)

_MAY_CHANGE = ("dropout", "attention_dropout", "activation_dropout")


class Pieces(NamedTuple):
    """What a model is told of its vocabularies."""

    source_size: int
    target_size: int
    pad_id: int
    eos_id: int
    joint: bool


def pieces_of(tokenizer: Tokenizer | None) -> Pieces | None:
    """What a tokenizer knows of them."""
    if tokenizer is None:
        return None
    source, target = tokenizer.source, tokenizer.target
    return Pieces(source.size, target.size, target.pad_id, target.eos_id, tokenizer.joint)


def resolve_model(
    settings: Settings, preset: str, pieces: Pieces | None, account: Account, *, epochs: float = math.inf
) -> ModelConfig:
    """The model, from the task, the preset, the epochs that training will last, and what the user said; without
    pieces it is one of numbers.

    Raises:
        TransduceError: the task takes no model of this kind, or the settings contradict each other.
    """
    kind = kind_of(settings.task.kind)
    kind.check(settings)
    said = {name: value for name, value in msgspec.structs.asdict(settings.model).items() if value is not None}
    usual = kind.model_settings(settings.task)
    if said.get("positions", "learned") != "learned":
        usual = {name: value for name, value in usual.items() if name != "max_positions"}  # there is no table
    model_kind = said.get("kind", usual.get("kind", kind.model_kinds[0]))
    chosen: dict[str, Choice[Any]] = {
        name: Choice(value, f"usual for `task.kind` {kind.name}") for name, value in usual.items()
    }
    fitting = _fit_vectors(settings, PRESETS[preset].num_heads)
    sizes = msgspec.structs.replace(
        PRESETS[preset],
        **{name: choice.value for name, choice in fitting.items()},
        **{name: said[name] for name in ("d_model",) if name in said},
    )
    for name, value in kind.sizes(sizes, model_kind).items():
        chosen[name] = Choice(value, fitting[name].reason if name in fitting else f"preset {preset}")
    if chosen["dropout"].value == PRESETS[preset].dropout:  # the task has none of its own
        chosen["dropout"] = choose_dropout(preset, epochs)
    values = {name: account.take(f"model.{name}", said.get(name), choice) for name, choice in chosen.items()}
    _tell_said(said, account)
    return ModelConfig(**_vocabularies(pieces, model_kind) | said | values)


def _tell_said(said: dict[str, Any], account: Account) -> None:
    """Enters what was said of the model besides what is chosen; what does nothing in it stands there already."""
    told = {line.name for line in account.lines}
    for name, value in said.items():
        if f"model.{name}" not in told:
            account.take(f"model.{name}", value, None)


def _vocabularies(pieces: Pieces | None, model_kind: str) -> dict[str, Any]:
    if pieces is None:
        # How many series there are, `TaskKind.adapt_model` says.
        return {"source_vocabulary_size": 0, "target_vocabulary_size": 0, "num_series": 1}
    return {
        "source_vocabulary_size": pieces.source_size,
        "target_vocabulary_size": pieces.target_size,
        "tie_source_target": pieces.joint,
        "pad_id": pieces.pad_id,
        "eos_id": pieces.eos_id,
        "start_id": pieces.pad_id if model_kind in ("transformer", "recurrent") else pieces.eos_id,
    }


def _fit_vectors(settings: Settings, num_heads: int) -> dict[str, Choice[int]]:
    """What word vectors decide of the model's sizes, where these are not said."""
    said = settings.word_vectors
    if said is None or settings.model.d_model is not None:
        return {}
    path = said.source or str(said.target)
    width = vector_width(path)
    heads = max(number for number in range(1, num_heads + 1) if width % number == 0)
    return {
        "d_model": Choice(width, f"as the vectors in {path}"),
        "num_heads": Choice(heads, f"divides {width}, the vectors' width"),
    }


def keep_model(settings: Settings, config: ModelConfig, folder: str, account: Account) -> ModelConfig:
    """The model of a folder that training begins with; its dropout alone may change.

    Raises:
        TransduceError: the settings say otherwise.
    """
    said = {name: value for name, value in msgspec.structs.asdict(settings.model).items() if value is not None}
    for name, value in said.items():
        if value != getattr(config, name) and name not in _MAY_CHANGE:
            raise TransduceError(
                f"`model.{name}` is {value}, but the model in {folder} has {getattr(config, name)}, and its weights "
                "are kept: leave it out."
            )
    used = kind_of(settings.task.kind).sizes(PRESETS["tiny"], config.kind)
    for name in ("kind", "num_encoder_layers", "num_decoder_layers", "d_model", "dropout"):
        if name in used or name == "kind":
            account.take(f"model.{name}", said.get(name), Choice(getattr(config, name), f"as in {folder}"))
    _tell_said(said, account)
    return msgspec.structs.replace(config, **{name: said[name] for name in _MAY_CHANGE if name in said})


def follow_model(settings: Settings, config: ModelConfig, account: Account) -> Settings:
    """The settings with what the model that training begins with decides of the task, where nobody said it."""
    task = kind_of(settings.task.kind).follow(settings.task, config)
    for name in TaskSettings.__struct_fields__:
        if getattr(task, name) != getattr(settings.task, name):
            account.take(f"task.{name}", None, Choice(getattr(task, name), f"as in {settings.start_from}"))
    return msgspec.structs.replace(settings, task=task)


def foresee_epochs(
    settings: Settings, machine: Machine, preset: str, *, pairs: int, epoch_tokens: int, vocabulary_size: int | None
) -> float:
    """How often the text will be read: by the steps, or by what a machine of this kind does in the minutes."""
    kind, said = kind_of(settings.task.kind), settings.training
    if said.minutes is not None:
        parameters = count_multiplied_weights(PRESETS[preset], vocabulary_size or 0)
        speed = machine.operations_per_second
        return pieces_in_time(parameters, minutes=said.minutes, operations_per_second=speed) / max(1, epoch_tokens)
    batch_tokens = said.batch_tokens or kind.choose_batch_tokens(epoch_tokens, machine.device).value
    steps = said.steps or kind.choose_steps(pairs, epoch_tokens, batch_tokens).value
    return steps * batch_tokens / max(1, epoch_tokens)


def resolve_preset(
    settings: Settings,
    machine: Machine,
    account: Account,
    *,
    pairs: int,
    tokens: int = 0,
    vocabulary_size: int | None = None,
) -> str:
    """The size of the model, from the number of pairs, or of target tokens, and the time there is."""
    chosen = kind_of(settings.task.kind).choose_preset(pairs, tokens)
    if settings.training.minutes is not None and vocabulary_size is not None:
        chosen = choose_preset_in_time(
            chosen,
            minutes=settings.training.minutes,
            operations_per_second=machine.operations_per_second,
            vocabulary_size=vocabulary_size,
        )
    name: str = account.take("preset", settings.preset, chosen)
    return name
