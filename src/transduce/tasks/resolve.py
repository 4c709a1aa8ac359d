"""From what the user said to a run with nothing left to choose, and the reasons."""

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
# Settings of training that nothing is chosen for.
_AS_SAID = (
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
    """The vocabulary, from the corpus' size."""
    said, by_character = settings.tokenizer, settings.tokenizer.kind == "character"
    chosen = Choice(MOST_CHARACTERS, "at most; every character") if by_character else choose_vocabulary_size(size)
    return TokenizerSettings(
        kind=said.kind,
        vocabulary_size=account.take("tokenizer.vocabulary_size", said.vocabulary_size, chosen),
        joint=said.joint,
        byte_fallback=not by_character if said.byte_fallback is None else said.byte_fallback,
        character_coverage=said.character_coverage,
        nfc=said.nfc,
        keep_spaces=kind_of(settings.task.kind).keeps_spaces,
    )


def explain_languages(settings: Settings, found: tuple[str | None, str | None], account: Account) -> None:
    """Enters the languages of translations in the account: BLEU cuts words by the target's.

    Args:
        settings: as the user gave them.
        found: the languages of source and target.
        account: of the choices.
    """
    names = " ".join(language or "?" for language in found)
    reason = "the files' suffixes" if all(found) else "the files' suffixes do not tell: say `--languages`, for BLEU too"
    account.take("data.languages", names if settings.data.languages else None, Choice(names, reason))


def check_training(settings: Settings, model: ModelConfig, machine: Machine) -> None:
    """Refuses settings of training that do not suit the task, the model or the machine.

    Raises:
        TransduceError: one of them.
    """
    kind, said = kind_of(settings.task.kind), settings.training
    if said.best_by is not None and said.best_by not in kind.measures:
        raise TransduceError(
            f"`training.best_by` is {said.best_by}, but `task.kind` = {kind.name} is measured by "
            f"{' or '.join(kind.measures)}: choose one of these."
        )
    if said.optimizer == "muon" and model.kind == "recurrent":
        raise TransduceError(
            "`training.optimizer` is muon, which takes the matrices of attention and feed-forward layers, but "
            "`model.kind` is recurrent, which has none: leave it out, or choose adam."
        )
    optimizer = said.optimizer or _choose_optimizer(settings, model).value
    if optimizer == "adam" and said.momentum != TrainingSettings().momentum:
        raise TransduceError(
            f"`training.momentum` ({said.momentum:g}) is Muon's, but `training.optimizer` is adam: leave it out, or "
            "set `training.beta1`."
        )
    if said.kernels == "native" and (choice := choose_kernels(machine.device, machine.threads)).value != "native":
        raise TransduceError(
            f"`training.kernels` is native, but {choice.reason}: change that, or use --set training.kernels=torch."
        )
    if said.record and not (may := _choose_record(settings, model, machine, processes=1)).value:
        raise TransduceError(f"`training.record` is true, but {may.reason}: leave it out.")


def _choose_record(settings: Settings, model: ModelConfig, machine: Machine, processes: int) -> Choice[bool]:
    said, kind = settings.training, kind_of(settings.task.kind)
    if not kind.may_be_recorded:
        return Choice(value=False, reason=f"steps of `task.kind` = {kind.name} are not recorded")
    if not model.can_be_packed:
        return Choice(value=False, reason="batches of such a model are padded")
    if said.sharded and machine.processes > 1:
        return Choice(value=False, reason="`training.sharded` has no part of the model stay where it is")
    kernels = said.kernels or choose_kernels(machine.device, machine.threads, compiled=said.compile).value
    return choose_record(machine.device, kernels, processes)


def resolve_training(
    settings: Settings,
    model: ModelConfig,
    machine: Machine,
    *,
    corpus: RunCorpus,
    account: Account,
) -> ResolvedTraining:
    """How to train, from the corpus and the machine."""
    kind, said, take = kind_of(settings.task.kind), settings.training, account.take
    check_training(settings, model, machine)
    pairs, epoch_tokens = corpus.pairs, kind.epoch_tokens(corpus, model, settings.task)
    translated = said.translate_dev if kind.writes_translations else 0
    batch_tokens = take(
        "training.batch_tokens", said.batch_tokens, kind.choose_batch_tokens(epoch_tokens, machine.device)
    )
    if said.minutes is not None:
        take("training.minutes", said.minutes, None)
        steps = None
    else:
        steps = take("training.steps", said.steps, kind.choose_steps(pairs, epoch_tokens, batch_tokens))
    # The paper's schedule is for post-norm models with random weights.
    order = model.norm_order if settings.start_from is None and model.kind != "recurrent" else "pre"
    schedule = take("training.schedule", said.schedule, kind.choose_schedule(order))
    warmup = take("training.warmup_steps", said.warmup_steps, choose_warmup_steps(steps))
    if steps is not None and schedule in ("linear", "cosine") and warmup > (most := max(1, steps // 2)):
        account.correct("training.warmup_steps", most, "half of the steps, as the rate falls in the rest; {} were said")
    optimizer = take("training.optimizer", said.optimizer, _choose_optimizer(settings, model))
    rate = take(
        "training.learning_rate",
        said.learning_rate,
        kind.choose_learning_rate(settings, model.d_model, schedule, warmup, batch_tokens, optimizer),
    )
    precision = take(
        "training.precision",
        said.precision,
        kind.choose_precision(Choice(machine.precision, machine.precision_reason)),
    )
    # No more parts than it takes to read the text once.
    parts = choose_accumulate(min(batch_tokens, epoch_tokens), model.d_model, precision, machine.device)
    return ResolvedTraining(
        steps=steps,
        batch_tokens=batch_tokens,
        accumulate=_resolve_accumulate(said.accumulate, parts, account, batch_tokens),
        optimizer=optimizer,
        learning_rate=rate,
        schedule=schedule,
        warmup_steps=warmup,
        weight_decay=_resolve_weight_decay(
            settings, choose_weight_decay(optimizer, schedule, rate, warmup, steps), account
        ),
        label_smoothing=take(
            "training.label_smoothing", said.label_smoothing, choose_label_smoothing(kind.name, kind.label_smoothing)
        ),
        precision=precision,
        compile=said.compile,
        kernels=_resolve_kernels(said, machine, account),
        record=_resolve_record(said.record, _choose_record(settings, model, machine, machine.processes), account),
        average_decay=take("training.average_decay", said.average_decay, choose_average_decay(steps)),
        adapt_dropout=_adapts_dropout(settings),
        best_by=take("training.best_by", said.best_by, kind.choose_best_by(corpus, translated)),
        patience=take("training.patience", said.patience, choose_patience()),
        translate_dev=translated,
        lora_alpha=take("training.lora_alpha", said.lora_alpha, usual_alpha(said.lora_rank))
        if said.lora_rank
        else None,
        **{name: getattr(said, name) for name in _AS_SAID},
    )


def _choose_optimizer(settings: Settings, model: ModelConfig) -> Choice[OptimizerName]:
    return choose_optimizer(model.kind, model.norm_order, start_from=settings.start_from)


def _resolve_accumulate(said: int | None, choice: Choice[int], account: Account, batch_tokens: int) -> int:
    if said is not None and said > batch_tokens:
        raise TransduceError(
            f"`training.accumulate` must be at most `training.batch_tokens` ({batch_tokens:,}), a token a part, but is "
            f"{said:,}."
        )
    if said is None and choice.value == 1:
        return 1  # not worth a line
    parts: int = account.take("training.accumulate", said, choice)
    return parts


def _resolve_weight_decay(settings: Settings, choice: Choice[float | None], account: Account) -> float | None:
    said, frozen = settings.training.weight_decay, settings.word_vectors is not None and settings.word_vectors.frozen
    if said is not None:
        account.take("training.weight_decay", said, None)
        return said
    if choice.value == 0.0 or frozen:
        return 0.0  # not worth a line; frozen rows of the embeddings must not decay
    shown = Choice("later" if choice.value is None else choice.value, choice.reason)
    account.take("training.weight_decay", None, shown)
    return choice.value


def _adapts_dropout(settings: Settings) -> bool:
    said, model = settings.training.adapt_dropout, settings.model
    return {model.dropout, model.attention_dropout, model.activation_dropout} == {None} if said is None else said


def _resolve_kernels(said: TrainingSettings, machine: Machine, account: Account) -> Kernels:
    if said.kernels == "torch":
        return account.take("training.kernels", said.kernels, Choice(said.kernels, ""))  # type: ignore[no-any-return]
    choice = choose_kernels(machine.device, machine.threads, compiled=said.compile)
    kernels: Kernels = account.take("training.kernels", said.kernels, choice)
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


def _resolve_record(said: bool | None, choice: Choice[bool], account: Account) -> bool:
    if said is None and not choice.value:
        return False  # not worth a line
    return account.take("training.record", said, choice)  # type: ignore[no-any-return]


def as_settings(resolved: ResolvedSettings) -> Settings:
    """The settings under which all of it would be chosen again: a file that resumes a run, or starts its like."""
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
