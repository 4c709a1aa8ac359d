"""From what the user said to a run with nothing left to choose, and the reasons."""

import math
from typing import Any

import msgspec

from transduce.errors import TransduceError
from transduce.interop.word_vectors import vector_width
from transduce.model.config import ModelConfig
from transduce.runtime.machine import Machine
from transduce.tasks.corpus import RunCorpus
from transduce.tasks.kinds import kind_of
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.settings import ModelSettings, Settings, TaskSettings, VocabularySettings
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import (
    PRESETS,
    Choice,
    CorpusSize,
    choose_accumulate,
    choose_average_decay,
    choose_compile,
    choose_dropout,
    choose_kernels,
    choose_label_smoothing,
    choose_optimizer,
    choose_patience,
    choose_preset_in_time,
    choose_vocabulary_size,
    choose_warmup_steps,
    choose_weight_decay,
    count_multiplied_weights,
    pieces_in_time,
)
from transduce.training.lora import usual_alpha
from transduce.training.settings import Kernels, OptimizerName, ResolvedTraining, TrainingSettings

_MAY_CHANGE = ("dropout", "attention_dropout", "activation_dropout")
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

    def correct(self, name: str, value: Any, reason: str) -> None:
        """What became of a value that was noted, where it is another now; the reason has `{}` for the former."""
        for place, line in enumerate(self.lines):
            if line.name == name and line.value != _shown(value):
                self.lines[place] = Explained(name, _shown(value), reason.format(line.value))


def _shown(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


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


def resolve_model(
    settings: Settings, preset: str, tokenizer: Tokenizer | None, account: Account, *, epochs: float = math.inf
) -> ModelConfig:
    """The model, from the task, the preset, the epochs that training will last, and what the user said; without a
    tokenizer it is one of numbers.

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
    return ModelConfig(**_vocabularies(tokenizer, model_kind) | said | values)


def _vocabularies(tokenizer: Tokenizer | None, model_kind: str) -> dict[str, Any]:
    """What a model is told of its pieces."""
    if tokenizer is None:
        # How many series there are, `TaskKind.adapt_model` says.
        return {"source_vocabulary_size": 0, "target_vocabulary_size": 0, "num_series": 1}
    target = tokenizer.target
    return {
        "source_vocabulary_size": tokenizer.source.size,
        "target_vocabulary_size": target.size,
        "tie_source_target": tokenizer.joint,
        "pad_id": target.pad_id,
        "eos_id": target.eos_id,
        "start_id": target.pad_id if model_kind in ("transformer", "recurrent") else target.eos_id,
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
    for name in ("kind", "num_encoder_layers", "num_decoder_layers", "d_model", "dropout"):
        account.take(f"model.{name}", said.get(name), Choice(getattr(config, name), f"as in {folder}"))
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
    pairs, epoch_tokens = corpus.pairs, corpus.target_tokens
    translated = said.translate_dev if kind.writes_translations else 0
    batch_tokens = take(
        "training.batch_tokens", said.batch_tokens, kind.choose_batch_tokens(epoch_tokens, machine.device)
    )
    if said.minutes is not None:
        take("training.minutes", said.minutes, None)
        steps = None
    else:
        steps = take("training.steps", said.steps, kind.choose_steps(pairs, epoch_tokens, batch_tokens))
    if said.best_by is not None and said.best_by not in kind.measures:
        raise TransduceError(
            f"`training.best_by` is {said.best_by}, but `task.kind` = {kind.name} is measured by "
            f"{' or '.join(kind.measures)}: choose one of these."
        )
    # The paper's schedule is for post-norm models with random weights.
    order = model.norm_order if settings.start_from is None else "pre"
    schedule = take("training.schedule", said.schedule, kind.choose_schedule(order))
    warmup = take("training.warmup_steps", said.warmup_steps, choose_warmup_steps(steps))
    optimizer = _resolve_optimizer(settings, model, account)
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
    return ResolvedTraining(
        steps=steps,
        batch_tokens=batch_tokens,
        accumulate=_resolve_accumulate(
            said.accumulate, choose_accumulate(batch_tokens, model.d_model, precision, machine.device), account
        ),
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
        compile=_resolve_compile(said, machine.device, account),
        kernels=_resolve_kernels(said.kernels, machine, account),
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


def _resolve_optimizer(settings: Settings, model: ModelConfig, account: Account) -> OptimizerName:
    said = settings.training
    if said.optimizer == "muon" and model.kind == "recurrent":
        raise TransduceError(
            "`training.optimizer` is muon, which takes the matrices of attention and feed-forward layers, but "
            "`model.kind` is recurrent, which has none: leave it out, or choose adam."
        )
    choice = choose_optimizer(model.kind, model.norm_order, start_from=settings.start_from)
    optimizer: OptimizerName = account.take("training.optimizer", said.optimizer, choice)
    return optimizer


def _resolve_accumulate(said: int | None, choice: Choice[int], account: Account) -> int:
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


def _resolve_compile(said: TrainingSettings, device: str, account: Account) -> bool:
    if said.compile is None and device == "cpu":
        return False  # the rule, which is not worth a line of everybody's account
    compiled: bool = account.take("training.compile", said.compile, choose_compile(device, sharded=said.sharded))
    return compiled


def _resolve_kernels(said: Kernels | None, machine: Machine, account: Account) -> Kernels:
    if said is None and machine.device != "cpu":
        return "torch"  # the rule, which is not worth a line of everybody's account
    if said == "torch":
        return account.take("training.kernels", said, Choice(said, ""))  # type: ignore[no-any-return]
    choice = choose_kernels(machine.device, machine.threads)
    if said == "native" and choice.value != "native":
        raise TransduceError(
            f"`training.kernels` is native, but {choice.reason}: change that, or use --set training.kernels=torch."
        )
    kernels: Kernels = account.take("training.kernels", said, choice)
    return kernels


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
