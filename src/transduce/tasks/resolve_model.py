"""Resolve a run's model configuration from the user's settings, the corpus and the task."""

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

_CHANGEABLE = ("dropout", "attention_dropout", "activation_dropout")


class Pieces(NamedTuple):
    """The properties of a tokenizer that a model configuration contains."""

    source_size: int
    """Size of the source vocabulary."""
    target_size: int
    """Size of the target vocabulary."""
    pad_id: int
    """Id of the padding token."""
    eos_id: int
    """Id of the end symbol."""
    joint: bool
    """True if both sides share one vocabulary."""


def pieces_of(tokenizer: Tokenizer | None) -> Pieces | None:
    """Return the properties of a tokenizer; None for None."""
    if tokenizer is None:
        return None
    source, target = tokenizer.source, tokenizer.target
    return Pieces(source.size, target.size, target.pad_id, target.eos_id, tokenizer.joint)


def resolve_model(
    settings: Settings, preset: str, pieces: Pieces | None, account: Account, *, epochs: float = math.inf
) -> ModelConfig:
    """Return the model's configuration, and log its settings with reasons.

    Args:
        settings: the user's settings.
        preset: name of the preset of sizes.
        pieces: properties of the tokenizer; None: a model of time series.
        account: the choice log.
        epochs: expected number of epochs, which determines dropout.

    Raises:
        TransduceError: the task does not support this kind of model, or settings contradict each other.
    """
    kind = kind_of(settings.task.kind)
    kind.check(settings)
    specified = {name: value for name, value in msgspec.structs.asdict(settings.model).items() if value is not None}
    task_defaults = kind.model_settings(settings.task)
    if specified.get("positions", "learned") != "learned":
        # without a position table, it has no meaning
        task_defaults = {name: value for name, value in task_defaults.items() if name != "max_positions"}
    model_kind = specified.get("kind", task_defaults.get("kind", kind.model_kinds[0]))
    choices: dict[str, Choice[Any]] = {
        name: Choice(value, f"default for `task.kind` {kind.name}") for name, value in task_defaults.items()
    }
    fitting = _fit_vectors(settings, PRESETS[preset].num_heads)
    sizes = msgspec.structs.replace(
        PRESETS[preset],
        **{name: choice.value for name, choice in fitting.items()},
        **{name: specified[name] for name in ("d_model",) if name in specified},
    )
    for name, value in kind.sizes(sizes, model_kind).items():
        choices[name] = Choice(value, fitting[name].reason if name in fitting else f"preset {preset}")
    if choices["dropout"].value == PRESETS[preset].dropout:  # the task sets no dropout
        choices["dropout"] = choose_dropout(preset, epochs)
    values = {name: account.take(f"model.{name}", specified.get(name), choice) for name, choice in choices.items()}
    _log_specified(specified, account)
    return ModelConfig(**_vocabularies(pieces, model_kind) | specified | values)


def _log_specified(specified: dict[str, Any], account: Account) -> None:
    """Log the user's model settings that are not logged yet."""
    logged = {line.name for line in account.lines}
    for name, value in specified.items():
        if f"model.{name}" not in logged:
            account.take(f"model.{name}", value, None)


def _vocabularies(properties: Pieces | None, model_kind: str) -> dict[str, Any]:
    if properties is None:
        # `TaskKind.adapt_model` sets the number of series.
        return {"source_vocabulary_size": 0, "target_vocabulary_size": 0, "num_series": 1}
    return {
        "source_vocabulary_size": properties.source_size,
        "target_vocabulary_size": properties.target_size,
        "tie_source_target": properties.joint,
        "pad_id": properties.pad_id,
        "eos_id": properties.eos_id,
        "start_id": properties.pad_id if model_kind in ("transformer", "recurrent") else properties.eos_id,
    }


def _fit_vectors(settings: Settings, num_heads: int) -> dict[str, Choice[int]]:
    """Return the model sizes that word vectors determine, unless the user specified them."""
    vector_settings = settings.word_vectors
    if vector_settings is None or settings.model.d_model is not None:
        return {}
    path = vector_settings.source or str(vector_settings.target)
    width = vector_width(path)
    heads = max(number for number in range(1, num_heads + 1) if width % number == 0)
    return {
        "d_model": Choice(width, f"as the vectors in {path}"),
        "num_heads": Choice(heads, f"divides {width}, the vectors' width"),
    }


def keep_model(settings: Settings, config: ModelConfig, folder: str, account: Account) -> ModelConfig:
    """Return the base model's configuration; only dropout may be changed.

    Raises:
        TransduceError: a setting differs from the base model's.
    """
    specified = {name: value for name, value in msgspec.structs.asdict(settings.model).items() if value is not None}
    for name, value in specified.items():
        if value != getattr(config, name) and name not in _CHANGEABLE:
            raise TransduceError(
                f"`model.{name}` is {value}, but the model in {folder} has {getattr(config, name)}, and its weights "
                "are kept: leave it out."
            )
    used = kind_of(settings.task.kind).sizes(PRESETS["tiny"], config.kind)
    for name in ("kind", "num_encoder_layers", "num_decoder_layers", "d_model", "dropout"):
        if name in used or name == "kind":
            account.take(f"model.{name}", specified.get(name), Choice(getattr(config, name), f"as in {folder}"))
    _log_specified(specified, account)
    return msgspec.structs.replace(config, **{name: specified[name] for name in _CHANGEABLE if name in specified})


def follow_model(settings: Settings, config: ModelConfig, account: Account) -> Settings:
    """Complete the task's settings by values of the base model, and log them."""
    task = kind_of(settings.task.kind).follow(settings.task, config)
    for name in TaskSettings.__struct_fields__:
        if getattr(task, name) != getattr(settings.task, name):
            account.take(f"task.{name}", None, Choice(getattr(task, name), f"as in {settings.start_from}"))
    return msgspec.structs.replace(settings, task=task)


def foresee_epochs(
    settings: Settings, machine: Machine, preset: str, *, pairs: int, epoch_tokens: int, vocabulary_size: int | None
) -> float:
    """Predict how often training will read the text, by the steps or by the minutes and the machine's speed."""
    kind, training = kind_of(settings.task.kind), settings.training
    if training.minutes is not None:
        parameters = count_multiplied_weights(PRESETS[preset], vocabulary_size or 0)
        speed = machine.operations_per_second
        return pieces_in_time(parameters, minutes=training.minutes, operations_per_second=speed) / max(1, epoch_tokens)
    batch_tokens = training.batch_tokens or kind.choose_batch_tokens(epoch_tokens, machine.device).value
    steps = training.steps or kind.choose_steps(pairs, epoch_tokens, batch_tokens).value
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
    """Choose the preset by the number of pairs or target tokens, and by the time limit."""
    choice = kind_of(settings.task.kind).choose_preset(pairs, tokens)
    if settings.training.minutes is not None and vocabulary_size is not None:
        choice = choose_preset_in_time(
            choice,
            minutes=settings.training.minutes,
            operations_per_second=machine.operations_per_second,
            vocabulary_size=vocabulary_size,
        )
    name: str = account.take("preset", settings.preset, choice)
    return name
