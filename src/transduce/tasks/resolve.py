"""Resolve a run's settings: choose what the user left open, with reasons."""

from typing import Any

import msgspec
import torch

from transduce.errors import TransduceError
from transduce.model.build import build_any_model
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder
from transduce.model.fast import forecast_decoder
from transduce.model.transformer import Transformer
from transduce.runtime.machine import Machine
from transduce.tasks.account import Account
from transduce.tasks.corpus import RunCorpus
from transduce.tasks.kinds import kind_of
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.settings import ModelSettings, Settings, VocabularySettings
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.training.choices import (
    Choice,
    CorpusSize,
    choose_accumulate,
    choose_average_decay,
    choose_kernels,
    choose_label_smoothing,
    choose_optimizer,
    choose_patience,
    choose_record,
    choose_vocabulary_size,
    choose_warmup_steps,
    choose_weight_decay,
)
from transduce.training.lora import usual_alpha
from transduce.training.settings import Kernels, OptimizerName, ResolvedTraining, TrainingSettings

MOST_CHARACTERS = 40_000
# Training settings that are copied unchanged.
_COPIED = (
    "seed",
    "minutes",
    "momentum",
    "beta1",
    "beta2",
    "epsilon",
    "clip_norm",
    "sharded",
    "report_every",
    "validate_every",
    "save_every",
    "keep_checkpoints",
    "lora_rank",
    "lora_projections",
)


def resolve_tokenizer(settings: Settings, size: CorpusSize, account: Account) -> TokenizerSettings:
    """Choose the tokenizer's settings by the size of the corpus."""
    given_settings, by_character = settings.tokenizer, settings.tokenizer.kind == "character"
    choice = Choice(MOST_CHARACTERS, "at most; every character") if by_character else choose_vocabulary_size(size)
    return TokenizerSettings(
        kind=given_settings.kind,
        vocabulary_size=account.take("tokenizer.vocabulary_size", given_settings.vocabulary_size, choice),
        joint=given_settings.joint,
        byte_fallback=not by_character if given_settings.byte_fallback is None else given_settings.byte_fallback,
        character_coverage=given_settings.character_coverage,
        nfc=given_settings.nfc,
        keep_spaces=kind_of(settings.task.kind).keeps_spaces,
    )


def explain_languages(settings: Settings, found: tuple[str | None, str | None], account: Account) -> None:
    """Log the languages of translations, by which BLEU tokenizes.

    Args:
        settings: the user's settings.
        found: language codes of source and target.
        account: the choice log.
    """
    names = " ".join(language or "?" for language in found)
    reason = (
        "the files' suffixes" if all(found) else "unknown from the files' suffixes: pass `--languages`, for BLEU too"
    )
    account.take("data.languages", names if settings.data.languages else None, Choice(names, reason))


def check_training(settings: Settings, model: ModelConfig, machine: Machine) -> None:
    """Refuse training settings that do not suit the task, the model or the machine.

    Raises:
        TransduceError: a setting is unsuitable.
    """
    kind, training = kind_of(settings.task.kind), settings.training
    if training.best_by is not None and training.best_by not in kind.measures:
        raise TransduceError(
            f"`training.best_by` is {training.best_by}, but `task.kind` = {kind.name} is measured by "
            f"{' or '.join(kind.measures)}: choose one of these."
        )
    if training.optimizer == "muon" and model.kind == "recurrent":
        raise TransduceError(
            "`training.optimizer` is muon, which updates the matrices of attention and feed-forward layers, but "
            "`model.kind` is recurrent, which has none: leave it out, or choose adam."
        )
    optimizer = training.optimizer or _choose_optimizer(settings, model).value
    if optimizer == "adam" and training.momentum != TrainingSettings().momentum:
        raise TransduceError(
            f"`training.momentum` ({training.momentum:g}) is Muon's, but `training.optimizer` is adam: leave it out, "
            "or set `training.beta1`."
        )
    if training.kernels == "native" and (choice := choose_kernels(machine.device, machine.threads)).value != "native":
        raise TransduceError(
            f"`training.kernels` is native, but {choice.reason}: change that, or use --set training.kernels=torch."
        )
    if training.record and not (record_choice := _choose_record(settings, model, machine, processes=1)).value:
        raise TransduceError(f"`training.record` is true, but {record_choice.reason}: leave it out.")


def _choose_record(settings: Settings, model: ModelConfig, machine: Machine, processes: int) -> Choice[bool]:
    training, kind = settings.training, kind_of(settings.task.kind)
    if not kind.may_be_recorded:
        return Choice(value=False, reason=f"`task.kind` = {kind.name} does not support recorded steps")
    if not model.can_be_packed:
        return Choice(value=False, reason="batches of such a model are padded")
    if training.sharded and machine.processes > 1:
        return Choice(value=False, reason="with `training.sharded`, parameters move in memory")
    kernels = training.kernels or choose_kernels(machine.device, machine.threads, compiled=training.compile).value
    return choose_record(machine.device, kernels, processes)


def resolve_training(
    settings: Settings,
    model: ModelConfig,
    machine: Machine,
    *,
    corpus: RunCorpus,
    account: Account,
) -> ResolvedTraining:
    """Choose the settings of training by the corpus and the machine."""
    kind, training, take = kind_of(settings.task.kind), settings.training, account.take
    check_training(settings, model, machine)
    pairs, epoch_tokens = corpus.pairs, kind.epoch_tokens(corpus, model, settings.task)
    translated = training.translate_dev if kind.writes_translations else 0
    batch_tokens = take(
        "training.batch_tokens", training.batch_tokens, kind.choose_batch_tokens(epoch_tokens, machine.device)
    )
    if training.minutes is not None:
        take("training.minutes", training.minutes, None)
        steps = None
    else:
        steps = take("training.steps", training.steps, kind.choose_steps(pairs, epoch_tokens, batch_tokens))
    # The paper's schedule is for post-norm models that start from random weights.
    order = model.norm_order if settings.start_from is None and model.kind != "recurrent" else "pre"
    schedule = take("training.schedule", training.schedule, kind.choose_schedule(order))
    warmup = take("training.warmup_steps", training.warmup_steps, choose_warmup_steps(steps))
    if steps is not None and schedule in ("linear", "cosine") and warmup > (most := max(1, steps // 2)):
        account.correct("training.warmup_steps", most, "half of the steps, as the rate falls in the rest; you set {}")
    optimizer = take("training.optimizer", training.optimizer, _choose_optimizer(settings, model))
    rate = take(
        "training.learning_rate",
        training.learning_rate,
        kind.choose_learning_rate(settings, model.d_model, schedule, warmup, batch_tokens, optimizer),
    )
    precision = take(
        "training.precision",
        training.precision,
        kind.choose_precision(Choice(machine.precision, machine.precision_reason)),
    )
    # Accumulate at most the batches of one epoch.
    parts = choose_accumulate(min(batch_tokens, epoch_tokens), model.d_model, precision, machine.device)
    return ResolvedTraining(
        steps=steps,
        batch_tokens=batch_tokens,
        accumulate=_resolve_accumulate(training.accumulate, parts, account, batch_tokens),
        optimizer=optimizer,
        learning_rate=rate,
        schedule=schedule,
        warmup_steps=warmup,
        weight_decay=_resolve_weight_decay(
            settings, choose_weight_decay(optimizer, schedule, rate, warmup, steps), account
        ),
        label_smoothing=take(
            "training.label_smoothing",
            training.label_smoothing,
            choose_label_smoothing(kind.name, kind.label_smoothing),
        ),
        precision=precision,
        compile=training.compile,
        kernels=_resolve_kernels(training, machine, account),
        record=_resolve_record(training.record, _choose_record(settings, model, machine, machine.processes), account),
        average_decay=take("training.average_decay", training.average_decay, choose_average_decay(steps)),
        adapt_dropout=_adapts_dropout(settings),
        best_by=take("training.best_by", training.best_by, kind.choose_best_by(corpus, translated)),
        patience=take("training.patience", training.patience, choose_patience()),
        translate_dev=translated,
        lora_alpha=take("training.lora_alpha", training.lora_alpha, usual_alpha(training.lora_rank))
        if training.lora_rank
        else None,
        **{name: getattr(training, name) for name in _COPIED},
    )


def _choose_optimizer(settings: Settings, model: ModelConfig) -> Choice[OptimizerName]:
    return choose_optimizer(model.kind, model.norm_order, start_from=settings.start_from)


def _resolve_accumulate(specified: int | None, choice: Choice[int], account: Account, batch_tokens: int) -> int:
    if specified is not None and specified > batch_tokens:
        raise TransduceError(
            f"`training.accumulate` must be at most `training.batch_tokens` ({batch_tokens:,}), one token each, but is "
            f"{specified:,}."
        )
    if specified is None and choice.value == 1:
        return 1  # not worth a log entry
    parts: int = account.take("training.accumulate", specified, choice)
    return parts


def _resolve_weight_decay(settings: Settings, choice: Choice[float | None], account: Account) -> float | None:
    specified, frozen = (
        settings.training.weight_decay,
        settings.word_vectors is not None and settings.word_vectors.frozen,
    )
    if specified is not None:
        account.take("training.weight_decay", specified, None)
        return specified
    if choice.value == 0.0 or frozen:
        return 0.0  # not worth a log entry; frozen embedding rows must not decay
    shown = Choice("later" if choice.value is None else choice.value, choice.reason)
    account.take("training.weight_decay", None, shown)
    return choice.value


def _adapts_dropout(settings: Settings) -> bool:
    specified, model = settings.training.adapt_dropout, settings.model
    return (
        {model.dropout, model.attention_dropout, model.activation_dropout} == {None} if specified is None else specified
    )


def _resolve_kernels(training: TrainingSettings, machine: Machine, account: Account) -> Kernels:
    if training.kernels == "torch":
        return account.take("training.kernels", training.kernels, Choice(training.kernels, ""))  # type: ignore[no-any-return]
    choice = choose_kernels(machine.device, machine.threads, compiled=training.compile)
    kernels: Kernels = account.take("training.kernels", training.kernels, choice)
    return kernels


def explain_decoding(config: ModelConfig, device: str, account: Account) -> None:
    """Enter what will decode the model in the choice log, and why no faster backend does."""
    if config.kind not in ("transformer", "decoder"):
        return
    with torch.device("meta"):
        model = build_any_model(config)
    assert isinstance(model, Transformer | Decoder)
    backend, refused = forecast_decoder(model.eval(), device)
    reasons = [f"not {name}, because {reason}" for name, reason in refused.items()]
    account.take("decoding kernels", None, Choice(backend, reasons[0] if reasons else "the fastest that there is"))


def _resolve_record(specified: bool | None, choice: Choice[bool], account: Account) -> bool:
    if specified is None and not choice.value:
        return False  # not worth a log entry
    return account.take("training.record", specified, choice)  # type: ignore[no-any-return]


def as_settings(resolved: ResolvedSettings) -> Settings:
    """Return settings that leave nothing open, to resume the run or to repeat it."""
    tokenizer, model = msgspec.to_builtins(resolved.tokenizer), msgspec.to_builtins(resolved.model)
    return Settings(
        preset=resolved.preset,
        start_from=resolved.start_from,
        task=resolved.task,
        data=resolved.data,
        tokenizer=VocabularySettings()
        if tokenizer is None
        else VocabularySettings(**_common(tokenizer, VocabularySettings), text=resolved.tokenizer_text),
        word_vectors=resolved.word_vectors,
        model=ModelSettings(**_common(model, ModelSettings)),
        training=TrainingSettings(**msgspec.to_builtins(resolved.training)),
        search=resolved.search,
    )


def _common(values: dict[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in struct.__struct_fields__}
