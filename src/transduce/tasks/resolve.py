"""From what the user said to a run with nothing left to choose, and the reasons."""

from typing import Any

import msgspec

from transduce.model.config import ModelConfig
from transduce.runtime.machine import Machine
from transduce.search.settings import SearchSettings
from transduce.tasks.settings import (
    DataSettings,
    ModelSettings,
    Settings,
    TaskSettings,
    VocabularySettings,
)
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import (
    PRESETS,
    Choice,
    CorpusSize,
    choose_average_decay,
    choose_batch_tokens,
    choose_best_by,
    choose_learning_rate,
    choose_patience,
    choose_preset,
    choose_schedule,
    choose_steps,
    choose_vocabulary_size,
    choose_warmup_steps,
)
from transduce.training.settings import ResolvedTraining, TrainingSettings


class ResolvedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run, completely, with what follows from its tokenizer."""

    preset: str
    task: TaskSettings
    data: DataSettings
    tokenizer: TokenizerSettings
    model: ModelConfig
    training: ResolvedTraining
    search: SearchSettings


class Explained(msgspec.Struct, frozen=True):
    """One line of the account: a setting, its value, and why."""

    name: str
    value: str
    reason: str


class Account:
    """Collects what was chosen and why, in the order of choosing."""

    def __init__(self, said_reason: str = "as you said") -> None:
        self.lines: list[Explained] = []
        self._said_reason = said_reason

    def take(self, name: str, said: Any, choice: Choice[Any] | None) -> Any:
        """What the user said, or else the choice; noted either way."""
        if said is not None:
            self.lines.append(Explained(name, _shown(said), self._said_reason))
            return said
        assert choice is not None
        self.lines.append(Explained(name, _shown(choice.value), choice.reason))
        return choice.value


def _shown(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def resolve_tokenizer(settings: Settings, size: CorpusSize, account: Account) -> TokenizerSettings:
    """The vocabulary, from the corpus' size."""
    said = settings.tokenizer
    return TokenizerSettings(
        kind=said.kind,
        vocabulary_size=account.take("tokenizer.vocabulary_size", said.vocabulary_size, choose_vocabulary_size(size)),
        joint=said.joint,
        byte_fallback=said.byte_fallback,
        character_coverage=said.character_coverage,
        nfc=said.nfc,
    )


def resolve_model(settings: Settings, preset: str, tokenizer: Tokenizer, account: Account) -> ModelConfig:
    """The model, from the preset and what the user said."""
    said, sizes = settings.model, PRESETS[preset]

    def value(name: str) -> Any:
        own = getattr(said, name)
        return account.take(f"model.{name}", own, Choice(getattr(sizes, name), f"preset {preset}"))

    joint = tokenizer.joint
    return ModelConfig(
        source_vocabulary_size=tokenizer.source.size,
        target_vocabulary_size=tokenizer.target.size,
        num_encoder_layers=value("num_encoder_layers"),
        num_decoder_layers=value("num_decoder_layers"),
        d_model=value("d_model"),
        d_ff=value("d_ff"),
        num_heads=value("num_heads"),
        d_k=said.d_k,
        d_v=said.d_v,
        dropout=value("dropout"),
        attention_dropout=said.attention_dropout,
        activation_dropout=said.activation_dropout,
        activation=said.activation,
        norm=said.norm,
        norm_order=value("norm_order"),
        positions=said.positions,
        attention_score=said.attention_score,
        bias=said.bias,
        tie_source_target=joint if said.tie_source_target is None else said.tie_source_target,
        tie_output=said.tie_output,
        pad_id=tokenizer.target.pad_id,
        eos_id=tokenizer.target.eos_id,
        start_id=tokenizer.target.pad_id,
    )


def resolve_preset(settings: Settings, pairs: int, account: Account) -> str:
    """The size of the model, from the number of pairs."""
    name: str = account.take("preset", settings.preset, choose_preset(pairs))
    return name


def resolve_training(
    settings: Settings,
    model: ModelConfig,
    machine: Machine,
    *,
    pairs: int,
    epoch_tokens: int,
    account: Account,
) -> ResolvedTraining:
    """How to train, from the corpus' size in pieces and the machine."""
    said, take = settings.training, account.take
    batch_tokens = take("training.batch_tokens", said.batch_tokens, choose_batch_tokens(epoch_tokens, machine.device))
    if said.minutes is not None:
        take("training.minutes", said.minutes, None)
        steps = None
    else:
        steps = take("training.steps", said.steps, choose_steps(pairs, epoch_tokens, batch_tokens))
    schedule = take("training.schedule", said.schedule, choose_schedule(model.norm_order))
    warmup = take("training.warmup_steps", said.warmup_steps, choose_warmup_steps(steps))
    return ResolvedTraining(
        seed=said.seed,
        steps=steps,
        minutes=said.minutes,
        batch_tokens=batch_tokens,
        accumulate=1 if said.accumulate is None else said.accumulate,
        learning_rate=take(
            "training.learning_rate",
            said.learning_rate,
            choose_learning_rate(model.d_model, schedule, warmup),
        ),
        schedule=schedule,
        warmup_steps=warmup,
        beta1=said.beta1,
        beta2=said.beta2,
        epsilon=said.epsilon,
        weight_decay=said.weight_decay,
        clip_norm=said.clip_norm,
        label_smoothing=said.label_smoothing,
        precision=take("training.precision", said.precision, Choice(machine.precision, machine.precision_reason)),
        average_decay=take("training.average_decay", said.average_decay, choose_average_decay(steps)),
        report_every=said.report_every,
        validate_every=said.validate_every,
        save_every=said.save_every,
        best_by=take("training.best_by", said.best_by, choose_best_by(said.translate_dev)),
        patience=take("training.patience", said.patience, choose_patience()),
        translate_dev=said.translate_dev,
        keep_checkpoints=said.keep_checkpoints,
    )


def as_settings(resolved: ResolvedSettings) -> Settings:
    """The settings under which all of it would be chosen again: a file that resumes a run, or starts its like."""
    tokenizer, model = msgspec.to_builtins(resolved.tokenizer), msgspec.to_builtins(resolved.model)
    return Settings(
        preset=resolved.preset,
        task=resolved.task,
        data=resolved.data,
        tokenizer=VocabularySettings(**_common(tokenizer, VocabularySettings)),
        model=ModelSettings(**_common(model, ModelSettings)),
        training=TrainingSettings(**msgspec.to_builtins(resolved.training)),
        search=resolved.search,
    )


def _common(values: dict[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in struct.__struct_fields__}
