"""Check the settings of a run up front (preflight), and resolve those that the user left open, with reasons.

Each setting and its reason go to a choice log, which is shown when training starts.
"""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch

from transduce.acceleration import expected_decoder, why_no_whole_layers
from transduce.errors import TransduceError
from transduce.inference.decoding import check_search
from transduce.interop.word_vectors import vector_width
from transduce.machine import DTYPES, Machine
from transduce.model.build import Model, build_any_model, check_registered
from transduce.model.config import UNUSED_BY_RECURRENT, ModelConfig
from transduce.model.transformer import Decoder, Transformer
from transduce.model_folder.read import ModelFolder
from transduce.search.settings import SearchSettings
from transduce.tasks.corpus import RunCorpus, languages_of
from transduce.tasks.kinds import kind_of
from transduce.tasks.kinds.kind import C, TaskKind
from transduce.tasks.run.initial_weights import check_adaptation, read_base_model
from transduce.tasks.settings.structs import (
    SET_WITHOUT_SETTINGS,
    TASKS_WITH_BATCH_SIZE,
    DataSettings,
    ModelSettings,
    ResolvedSettings,
    Settings,
    TaskSettings,
    VocabularySettings,
    batch_setting,
)
from transduce.text.languages import TWO_LETTER_CODES, base_code
from transduce.text.protected import PLACEHOLDER_TOKENS
from transduce.text.sentencepiece_model import EOS_ID, PAD_ID, TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import (
    CHOSEN_PRESETS,
    PRESETS,
    Choice,
    ChoiceLog,
    CorpusSize,
    choose_accumulate,
    choose_average_decay,
    choose_cuda_graphs,
    choose_dropout,
    choose_kernels,
    choose_label_smoothing,
    choose_patience,
    choose_preset_in_time,
    choose_vocabulary_size,
    choose_warmup_steps,
    choose_weight_decay,
    count_multiplied_weights,
    tokens_in_time,
)
from transduce.training.lora import choose_lora_alpha
from transduce.training.memory import least_memory, refuse_too_large_model
from transduce.training.settings import ResolvedTraining, TrainingSettings

# --- model configuration ---


T = TypeVar("T")
_CHANGEABLE_OF_BASE_MODEL = ("dropout", "attention_dropout", "activation_dropout")


class VocabularyProperties(NamedTuple):
    """The properties of a tokenizer that a model's configuration contains.

    The fields have the names of the configuration's fields.
    """

    source_vocabulary_size: int
    """Number of tokens in the source vocabulary."""
    target_vocabulary_size: int
    """Number of tokens in the target vocabulary."""
    pad_id: int
    """Id of the padding token."""
    eos_id: int
    """Id of the end symbol of sentences."""
    tie_source_target: bool
    """True if both sides share one vocabulary."""


def vocabulary_properties(tokenizer: Tokenizer | None) -> VocabularyProperties | None:
    """Return the properties of a tokenizer that a model needs; None if there is no tokenizer, as for time series."""
    if tokenizer is None:
        return None
    source, target = tokenizer.source, tokenizer.target
    return VocabularyProperties(source.size, target.size, target.pad_id, target.eos_id, tokenizer.joint)


def resolve_model(
    settings: Settings,
    preset: str,
    tokens: VocabularyProperties | None,
    choice_log: ChoiceLog,
    *,
    epochs: float = math.inf,
) -> ModelConfig:
    """Return a model's configuration from the user's settings, a preset and defaults; log settings with reasons.

    Args:
        settings: the user's settings.
        preset: name of the preset of sizes.
        tokens: properties of the tokenizer; None: a model of time series.
        choice_log: receives each chosen setting with its value and the reason.
        epochs: expected number of epochs, which determines dropout.

    Raises:
        TransduceError: the task does not support this kind of model, or settings contradict each other.
    """
    kind = kind_of(settings.task.kind)
    kind.check(settings)
    specified = {name: value for name, value in msgspec.structs.asdict(settings.model).items() if value is not None}
    task_defaults = kind.model_settings(settings.task)
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
    set_so_far = {name: choice.value for name, choice in choices.items()} | specified
    positions = kind.choose_positions(set_so_far)
    if positions is not None and not {"positions", "max_positions"} & specified.keys():
        choices["positions"] = positions
        set_so_far["positions"] = positions.value
    if set_so_far.get("positions", "learned") != "learned":
        choices.pop("max_positions", None)  # without a position table, it has no meaning
    values = {name: choice_log.record(f"model.{name}", specified.get(name), choice) for name, choice in choices.items()}
    _log_specified(specified, choice_log)
    return ModelConfig(**_vocabularies(tokens, model_kind) | specified | values)


def _log_specified(specified: dict[str, Any], choice_log: ChoiceLog) -> None:
    """Log the model settings of the user that the choice log does not contain yet.

    The names in `specified` lack the prefix `model.`.
    """
    logged = {line.name for line in choice_log.lines}
    for name, value in specified.items():
        if f"model.{name}" not in logged:
            choice_log.record(f"model.{name}", value, None)


def _vocabularies(properties: VocabularyProperties | None, model_kind: str) -> dict[str, Any]:
    if properties is None:
        # `TaskKind.adapt_model` sets the number of series.
        return {"source_vocabulary_size": 0, "target_vocabulary_size": 0, "num_series": 1}
    start_id = properties.pad_id if model_kind in ("transformer", "recurrent") else properties.eos_id
    return properties._asdict() | {"start_id": start_id}


def _fit_vectors(settings: Settings, num_heads: int) -> dict[str, Choice[int]]:
    """Choose `d_model` and `num_heads` by the width of the word vectors, and return both in a dict.

    `d_model` is the width. The number of heads is the largest that divides the width and is not above `num_heads`. The
    dict is empty without word vectors, or if the user set `d_model` or `embedding_size`.
    """
    vector_settings = settings.word_vectors
    if vector_settings is None or settings.model.embedding_size is not None or settings.model.d_model is not None:
        return {}
    path = vector_settings.source or str(vector_settings.target)
    width = vector_width(path)
    heads = max(number for number in range(1, num_heads + 1) if width % number == 0)
    return {
        "d_model": Choice(width, f"as the vectors in {path}"),
        "num_heads": Choice(heads, f"divides {width}, the vectors' width"),
    }


def keep_base_config(settings: Settings, config: ModelConfig, folder: str, choice_log: ChoiceLog) -> ModelConfig:
    """Return the base model's configuration with the user's dropout probabilities, and log its sizes.

    Raises:
        TransduceError: another setting of the user differs from the base model's.
    """
    specified = {name: value for name, value in msgspec.structs.asdict(settings.model).items() if value is not None}
    for name, value in specified.items():
        if value != getattr(config, name) and name not in _CHANGEABLE_OF_BASE_MODEL:
            raise TransduceError(
                f"`model.{name}` is {value}, but the model in {folder} has {getattr(config, name)}, and its weights "
                "are kept: leave it out."
            )
    used = kind_of(settings.task.kind).sizes(PRESETS["tiny"], config.kind)
    for name in ("kind", "num_encoder_layers", "num_decoder_layers", "d_model", "dropout"):
        if name in used or name == "kind":
            choice_log.record(f"model.{name}", specified.get(name), Choice(getattr(config, name), f"as in {folder}"))
    _log_specified(specified, choice_log)
    return msgspec.structs.replace(
        config, **{name: specified[name] for name in _CHANGEABLE_OF_BASE_MODEL if name in specified}
    )


def with_vocabulary_sizes(config: ModelConfig, tokenizer: Tokenizer | None) -> ModelConfig:
    """Return a base model's configuration with vocabulary sizes that suffice for the tokenizer.

    A tokenizer with symbols of the user may have more tokens than the base model. A size of the configuration never
    shrinks. Without a tokenizer, nothing is changed.
    """
    if tokenizer is None:
        return config
    return msgspec.structs.replace(
        config,
        source_vocabulary_size=max(config.source_vocabulary_size, tokenizer.source.size),
        target_vocabulary_size=max(config.target_vocabulary_size, tokenizer.target.size),
    )


def follow_base_model(settings: Settings, config: ModelConfig, choice_log: ChoiceLog) -> Settings:
    """Return settings with the base model's values of `task.*` wherever the user set none.

    The choice log receives each of these values.
    """
    task = kind_of(settings.task.kind).complete_settings(settings.task, config)
    for name in TaskSettings.__struct_fields__:
        if getattr(task, name) != getattr(settings.task, name):
            choice_log.record(f"task.{name}", None, Choice(getattr(task, name), f"as in {settings.init_from}"))
    return msgspec.structs.replace(settings, task=task)


def predict_epochs(
    settings: Settings, machine: Machine, preset: str, *, pairs: int, epoch_tokens: int, vocabulary_size: int | None
) -> float:
    """Predict how many epochs a run takes, as a fraction, as if every batch were full.

    In a small corpus, batches are seldom full, so that the run takes fewer epochs. With a time budget
    (`training.minutes`), the number follows from the machine's speed. Otherwise it follows from the number of steps.

    Args:
        settings: the user's settings. If these leave steps or batch size open, the task's choices are assumed.
        machine: the machine that trains.
        preset: name of the preset of sizes.
        pairs: number of training pairs.
        epoch_tokens: number of target tokens in an epoch.
        vocabulary_size: size of the target vocabulary; None: no tokenizer.
    """
    kind, training = kind_of(settings.task.kind), settings.training
    if training.minutes is not None:
        parameters = count_multiplied_weights(PRESETS[preset], vocabulary_size or 0)
        speed = machine.operations_per_second
        return tokens_in_time(parameters, minutes=training.minutes, operations_per_second=speed) / max(1, epoch_tokens)
    batch_tokens = training.batch_tokens or kind.choose_batch_tokens(epoch_tokens, machine.device).value
    steps = training.steps or kind.choose_steps(pairs, epoch_tokens, batch_tokens).value
    return steps * batch_tokens / max(1, epoch_tokens)


def resolve_preset(
    settings: Settings,
    machine: Machine,
    choice_log: ChoiceLog,
    *,
    pairs: int,
    tokens: int = 0,
    vocabulary_size: int | None = None,
) -> str:
    """Return the user's preset, or choose a preset by corpus size and time budget; log it.

    Args:
        settings: the user's settings.
        machine: the machine that trains. Its speed counts only with a time budget (`training.minutes`).
        choice_log: receives the preset with the reason.
        pairs: number of training pairs.
        tokens: number of target tokens in an epoch, which some tasks use instead of pairs.
        vocabulary_size: size of the target vocabulary; None: the time budget has no effect.
    """
    choice = kind_of(settings.task.kind).choose_preset(pairs, tokens)
    if settings.training.minutes is not None and vocabulary_size is not None:
        choice = choose_preset_in_time(
            choice,
            minutes=settings.training.minutes,
            operations_per_second=machine.operations_per_second,
            vocabulary_size=vocabulary_size,
        )
    return choice_log.record("preset", settings.preset, choice)


# --- settings ---


MAX_CHARACTERS = 40_000
MAX_WORDS = 30_000
# Smaller corpora and vocabularies get no placeholder tokens by default.
_MIN_PAIRS, _MIN_VOCABULARY = 5_000, 500


def resolve_tokenizer(settings: Settings, size: CorpusSize, choice_log: ChoiceLog) -> TokenizerSettings:
    """Return the settings to learn a tokenizer with, completed by choices for the corpus size.

    Raises:
        TransduceError: the user asks for placeholders, but the task cannot use them.
    """
    specified, by_character = settings.tokenizer, settings.tokenizer.kind == "character"
    by_word, byte_fallback = specified.kind == "word", specified.byte_fallback
    if by_character:
        choice = Choice(MAX_CHARACTERS, "at most; every character")
    elif by_word:
        choice = Choice(MAX_WORDS, "at most; every word that occurs twice")
    else:
        choice = choose_vocabulary_size(size)
    return TokenizerSettings(
        kind=specified.kind,
        vocabulary_size=choice_log.record("tokenizer.vocabulary_size", specified.vocabulary_size, choice),
        joint=specified.joint,
        byte_fallback=not (by_character or by_word) if byte_fallback is None else byte_fallback,
        character_coverage=specified.character_coverage,
        nfc=specified.nfc,
        keep_spaces=kind_of(settings.task.kind).keeps_spaces,
        line_feeds=specified.line_feeds,
        placeholders=_resolve_placeholders(settings, size, choice_log),
    )


def _resolve_placeholders(settings: Settings, size: CorpusSize, choice_log: ChoiceLog) -> int:
    specified, vocabulary_size = settings.tokenizer.placeholders, settings.tokenizer.vocabulary_size
    if "training.placeholder_rate" not in kind_of(settings.task.kind).uses:
        if specified:
            raise TransduceError(
                f"`tokenizer.placeholders` is {specified}, but only `task.kind` = translation learns to copy "
                "placeholders: leave it out."
            )
        return 0
    if settings.data.context_before:
        if specified:
            raise TransduceError(
                f"`tokenizer.placeholders` is {specified}, but with `data.context_before` a placeholder could stand "
                "for a word of another sentence: leave it out."
            )
        return 0
    if settings.tokenizer.kind == "word" and not specified:
        return 0  # not worth a log entry
    is_small = size.pairs < _MIN_PAIRS or (vocabulary_size is not None and vocabulary_size < _MIN_VOCABULARY)
    source, target = (None if code is None else base_code(code) for code in languages_of(settings.data))
    is_of_languages = source != target and {source, target} <= TWO_LETTER_CODES
    if specified is None and (is_small or not is_of_languages):
        return 0  # not worth a log entry
    choice = Choice(len(PLACEHOLDER_TOKENS), "translations copy placeholders, URLs, tags and long numbers")
    return choice_log.record("tokenizer.placeholders", specified, choice)


def explain_languages(settings: Settings, found: tuple[str | None, str | None], choice_log: ChoiceLog) -> None:
    """Log the source and target language, and where they come from.

    Args:
        settings: the user's settings.
        found: language codes of source and target; None: unknown.
        choice_log: receives each chosen setting with its value and the reason.
    """
    if settings.data.directions and settings.data.corpora:
        directions = ", ".join(f"{source} → {target}" for source, target in dict.fromkeys(settings.data.directions))
        choice_log.record(
            "data.corpora", None, Choice(directions, "each corpus's languages; one model learns them all")
        )
        return
    names = " ".join(language or "?" for language in found) if any(found) else "unknown"
    by_names = "the files' suffixes" if found == languages_of(settings.data) else "the names of the columns"
    reason = by_names if all(found) else "not in the files' suffixes: pass `--languages`, for BLEU too"
    choice_log.record(
        "data.languages", names if settings.data.languages else None, Choice(names, reason), is_message=not any(found)
    )


def explain_sampling(pairs: Sequence[int], data: DataSettings, choice_log: ChoiceLog) -> None:
    """Log how often an epoch contains the pairs of each corpus, in a run with several corpora.

    If corpora have a fixed share of the batches, the shares at the start and at the end of the run are logged, too.

    Args:
        pairs: the number of pairs of each file of `data.source`.
        data: the data settings.
        choice_log: receives each line with its reason.
    """
    names = [" → ".join(direction) for direction in data.directions] or [
        corpus.tag or Path(path).name for corpus in data.corpora for path in corpus.source
    ]
    factors = zip(names, pairs, data.repetitions(pairs), strict=True)
    shown = ", ".join(f"{name}: {count:,} × {factor:.3g}" for name, count, factor in factors)
    choice_log.record("data.temperature", None, Choice(data.temperature, f"an epoch has {shown}"))
    if data.has_shares:
        mixture = data.mixture(pairs)
        names = [" → ".join(each.direction) if data.directions else each.tag or each.source[0] for each in data.corpora]
        ends = zip(names, mixture.shares(0.0), mixture.shares(1.0), strict=True)
        shares = ", ".join(
            f"{Path(name).name} {one:.0%}" + (f" → {end:.0%}" if one != end else "") for name, one, end in ends
        )
        choice_log.record("data.corpora", None, Choice("shares", f"of the batches: {shares}"), is_message=True)


def check_training(settings: Settings, model: ModelConfig, machine: Machine) -> None:
    """Raise an error for training settings that do not suit the task, the model or the machine.

    Raises:
        TransduceError: a setting is unsuitable.
    """
    kind, training = kind_of(settings.task.kind), settings.training
    if training.best_by is not None and training.best_by not in (*kind.measures, "last"):
        raise TransduceError(
            f"`training.best_by` is {training.best_by}, but `task.kind` = {kind.name} is measured by "
            f"{' or '.join(kind.measures)}: choose one of these."
        )
    if training.optimizer == "muon" and model.kind == "recurrent":
        raise TransduceError(
            "`training.optimizer` is muon, which updates the matrices of attention and feed-forward layers, but "
            "`model.kind` is recurrent, which has none: leave it out, or choose adam."
        )
    optimizer = training.optimizer or kind.choose_optimizer(settings, model).value
    if optimizer == "adam" and training.momentum != TrainingSettings().momentum:
        raise TransduceError(
            f"`training.momentum` ({training.momentum:g}) is Muon's, but `training.optimizer` is adam: leave it out, "
            "or set `training.beta1`."
        )
    if training.kernels == "native" and (choice := choose_kernels(machine.device, machine.threads)).value != "native":
        raise TransduceError(
            f"`training.kernels` is native, but {choice.reason}: change that, or use --set training.kernels=torch."
        )
    if training.cuda_graphs and not (graph_choice := _choose_cuda_graphs(settings, model, machine, processes=1)).value:
        raise TransduceError(f"`training.cuda_graphs` is true, but {graph_choice.reason}: leave it out.")


def _choose_cuda_graphs(settings: Settings, model: ModelConfig, machine: Machine, processes: int) -> Choice[bool]:
    training, kind = settings.training, kind_of(settings.task.kind)
    if not kind.may_be_recorded:
        return Choice(value=False, reason=f"`task.kind` = {kind.name} does not support recorded steps")
    if not model.can_be_packed:
        return Choice(value=False, reason="batches of such a model are padded")
    if training.sharded and machine.processes > 1:
        return Choice(value=False, reason="with `training.sharded`, parameters move in memory")
    kernels = training.kernels or choose_kernels(machine.device, machine.threads, compiled=training.compile).value
    return choose_cuda_graphs(machine.device, kernels, processes)


def resolve_training(
    settings: Settings, model: ModelConfig, machine: Machine, *, corpus: RunCorpus, choice_log: ChoiceLog
) -> ResolvedTraining:
    """Return the settings of training: the user's, and others chosen by the corpus and the machine; log them.

    With a time budget (`training.minutes`), the number of steps stays open (None).

    Raises:
        TransduceError: a setting is unsuitable for the task, the model or the machine.
    """
    kind, training = kind_of(settings.task.kind), settings.training

    def take(name: str, choice: Choice[T] | None) -> T:
        """Return the user's value of `training.<name>`, or the chosen one, and log it."""
        specified: T | None = getattr(training, name)
        return choice_log.record(f"training.{name}", specified, choice)

    check_training(settings, model, machine)
    pairs, epoch_tokens = corpus.pairs, kind.epoch_tokens(corpus, model, settings.task)
    translated = training.translate_dev if kind.writes_translations else 0
    batch_tokens = choice_log.record(
        batch_setting(settings.task.kind),
        training.batch_tokens,
        kind.choose_batch_tokens(epoch_tokens, machine.device),
        note=kind.batch_note,
    )
    if (minutes := training.minutes) is not None:
        take("minutes", None)
    steps = None if minutes is not None else take("steps", kind.choose_steps(pairs, epoch_tokens, batch_tokens))
    # The paper's schedule is for post-norm models that start from random weights.
    order = model.norm_order if settings.init_from is None and model.kind != "recurrent" else "pre"
    schedule = take("schedule", kind.choose_schedule(order))
    warmup = take("warmup_steps", choose_warmup_steps(steps))
    if steps is not None and schedule in ("linear", "cosine") and warmup > (half := max(1, steps // 2)):
        choice_log.amend("training.warmup_steps", half, "half of the steps, as the rate falls in the rest; you set {}")
    optimizer = take("optimizer", kind.choose_optimizer(settings, model))
    so_far = msgspec.structs.replace(
        training, batch_tokens=batch_tokens, schedule=schedule, warmup_steps=warmup, optimizer=optimizer
    )
    rate_choice = kind.choose_learning_rate(msgspec.structs.replace(settings, training=so_far), model.d_model)
    rate = take("learning_rate", rate_choice)
    fine_tuning_rate = 0.0 if settings.init_from is None else rate_choice.value
    precision = take("precision", kind.choose_precision(Choice(machine.precision, machine.precision_reason)))
    kernels = choose_kernels(machine.device, machine.threads, compiled=training.compile)
    smoothing = choose_label_smoothing(kind.name, kind.label_smoothing)
    # Accumulate at most the batches of one epoch.
    parts = choose_accumulate(min(batch_tokens, epoch_tokens), model.d_model, precision, machine.device)
    chosen: dict[str, Any] = {
        "steps": steps,
        "batch_tokens": batch_tokens,
        "accumulate": _resolve_accumulate(training.accumulate, parts, choice_log, batch_tokens),
        "optimizer": optimizer,
        "learning_rate": rate,
        "schedule": schedule,
        "warmup_steps": warmup,
        "weight_decay": _resolve_weight_decay(
            settings,
            choose_weight_decay(optimizer, schedule, rate, warmup, steps, fine_tuning_rate),
            rate,
            choice_log,
        ),
        "label_smoothing": take("label_smoothing", smoothing),
        "precision": precision,
        "kernels": take("kernels", kernels),
        "cuda_graphs": _resolve_cuda_graphs(
            training.cuda_graphs, _choose_cuda_graphs(settings, model, machine, machine.processes), choice_log
        ),
        "average_decay": take("average_decay", choose_average_decay(steps, training.average_checkpoints)),
        "adapt_dropout": _adapts_dropout(settings),
        "best_by": take("best_by", kind.choose_best_by(corpus, translated)),
        "patience": take("patience", choose_patience()),
        "translate_dev": translated,
        "lora_alpha": take("lora_alpha", choose_lora_alpha(training.lora_rank)) if training.lora_rank else None,
    }
    return ResolvedTraining(**msgspec.structs.asdict(training) | chosen)


def _resolve_accumulate(specified: int | None, choice: Choice[int], choice_log: ChoiceLog, batch_tokens: int) -> int:
    if specified is not None and specified > batch_tokens:
        raise TransduceError(
            f"`training.accumulate` must be at most `training.batch_tokens` ({batch_tokens:,}), but is {specified:,}."
        )
    if specified is None and choice.value == 1:
        return 1  # not worth a log entry
    return choice_log.record("training.accumulate", specified, choice)


def _resolve_weight_decay(
    settings: Settings, choice: Choice[float | None], rate: float, choice_log: ChoiceLog
) -> float | None:
    specified = settings.training.weight_decay
    frozen = settings.word_vectors is not None and settings.word_vectors.frozen
    if specified is not None:
        choice_log.record("training.weight_decay", specified, None)
        return specified
    if choice.value == 0.0 or frozen:
        return 0.0  # not worth a log entry; frozen embedding rows must not decay
    shown: Choice[float | str]
    if choice.value is None:
        shown = Choice("set later", choice.reason)
    else:  # the value alone looks too high in a short run
        shown = Choice(
            choice.value, f"shrinks weights by at most {100.0 * choice.value * rate:.2g}% a step: {choice.reason}"
        )
    choice_log.record("training.weight_decay", None, shown, is_message=choice.value is None)
    return choice.value


def _adapts_dropout(settings: Settings) -> bool:
    specified, model = settings.training.adapt_dropout, settings.model
    return (
        {model.dropout, model.attention_dropout, model.activation_dropout} == {None} if specified is None else specified
    )


def explain_training(config: ModelConfig, training: ResolvedTraining, device: str, choice_log: ChoiceLog) -> None:
    """Log why this package's kernels train a model component by component and not in whole layers.

    Nothing is logged if the kernels train whole layers, if PyTorch's kernels are used, or for a recurrent model.
    """
    if training.kernels != "native" or config.kind == "recurrent":
        return
    with torch.device("meta"):
        model = build_any_model(config)
    reason = why_no_whole_layers(model, config, DTYPES[training.precision], device)
    if reason is not None:
        choice_log.record(
            "training kernels", None, Choice("by component", f"not whole layers, because {reason}"), is_message=True
        )


def explain_decoding(config: ModelConfig, device: str, choice_log: ChoiceLog) -> None:
    """Log which backend (implementation) will decode with the trained model, and why no faster one does.

    Nothing is logged for recurrent models, encoders and forecasters, which no such backend decodes.
    """
    if config.kind not in ("transformer", "decoder"):
        return
    with torch.device("meta"):
        model = build_any_model(config)
    assert isinstance(model, Transformer | Decoder)
    backend, refused = expected_decoder(model.eval(), device)
    reasons = [f"not {name}, because {reason}" for name, reason in refused.items()]
    reason = reasons[0] if reasons else "the fastest backend on this machine"
    choice_log.record("decoding kernels", None, Choice(backend, reason))


def _resolve_cuda_graphs(specified: bool | None, choice: Choice[bool], choice_log: ChoiceLog) -> bool:
    if specified is None and not choice.value:
        return False  # not worth a log entry
    return choice_log.record("training.cuda_graphs", specified, choice)


def as_settings(resolved: ResolvedSettings) -> Settings:
    """Return a run's settings with every choice filled in, for a settings file to resume or to repeat the run."""
    tokenizer, model = msgspec.to_builtins(resolved.built_tokenizer), msgspec.to_builtins(resolved.model)
    return Settings(
        preset=resolved.preset,
        init_from=resolved.init_from,
        task=resolved.task,
        data=resolved.data,
        tokenizer=VocabularySettings()
        if tokenizer is None
        else VocabularySettings(
            **_without(tokenizer, {"keep_spaces"})  # which the task determines
            | {name: getattr(resolved.tokenizer, name) for name in ("text", "vocabulary", "user_symbols")}
        ),
        word_vectors=resolved.word_vectors,
        model=ModelSettings(**_without(model, SET_WITHOUT_SETTINGS)),
        training=TrainingSettings(**msgspec.to_builtins(resolved.training)),
        search=resolved.search,
    )


def _without(values: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


# --- preflight ---
# Checks settings before reading a corpus, which may take minutes.


_ATTENTION_SETTINGS = ("attention_score", "attention_kind", "attention_scale", "attention_dropout")
_PLACEHOLDER_SIZE = 1 << 15  # placeholder vocabulary size


def preflight(
    kind: TaskKind[C], settings: Settings, machine: Machine, choice_log: ChoiceLog
) -> tuple[Settings, ModelFolder[Model] | None]:
    """Check settings up front, as far as that is possible without text, and complete them from the base model.

    Args:
        kind: the task.
        settings: the user's settings.
        machine: the machine that trains.
        choice_log: receives each chosen setting with its value and the reason.

    Returns:
        The settings, with values that the base model determines, and the base model, if there is one.

    Raises:
        TransduceError: settings are invalid, whatever the text.
    """
    kind.check(settings)
    if settings.training.batch_size is not None:  # which the other tasks' settings store as `batch_tokens`
        raise TransduceError(
            f"`training.batch_size` is for {', '.join(TASKS_WITH_BATCH_SIZE)}, but `task.kind` is `{kind.name}`, which "
            "counts tokens: set `training.batch_tokens`."
        )
    _refuse_idle_search(kind, settings)
    _log_unused(kind, settings, choice_log)
    check_adaptation(settings)
    base_model = read_base_model(settings)
    base_config = None if base_model is None else base_model.model.config
    if base_config is not None:
        kind.check_base_model(base_config, settings.task, str(settings.init_from))
        settings = follow_base_model(settings, base_config, choice_log)
    check_consistency(settings, base_config, machine)
    return settings, base_model


def _refuse_idle_search(kind: TaskKind[C], settings: Settings) -> None:
    """Raise an error for search settings that have no effect in the task.

    Raises:
        TransduceError: a search setting that the task does not use has another value than its default.
    """
    if kind.search_advice is None:
        return
    defaults = SearchSettings()
    for name in SearchSettings.__struct_fields__:
        if name not in kind.used_search_settings and getattr(settings.search, name) != getattr(defaults, name):
            raise TransduceError(
                f"`search.{name}` does nothing where `task.kind` is {kind.name}: {kind.search_advice}."
            )


def _log_unused(kind: TaskKind[C], settings: Settings, choice_log: ChoiceLog) -> None:
    """Log settings that have no effect in the task or in a recurrent model.

    They are no error, because a settings file may serve several tasks and kinds of model.
    """
    model, translated = settings.model, settings.training.translate_dev
    if not kind.writes_translations and translated not in (0, TrainingSettings().translate_dev):
        reason = f"has no effect: a run of {kind.name} writes no translations"
        choice_log.record("training.translate_dev", None, Choice(translated, reason))
    if model.kind != "recurrent":
        return
    defaults = {field.name: field.default for field in msgspec.structs.fields(ModelConfig)}
    unused = dict.fromkeys(UNUSED_BY_RECURRENT, "has no effect: a recurrent model has none")
    if not model.embedding_norm:
        unused["norm_epsilon"] = "has no effect: a recurrent model has no norms but that of `model.embedding_norm`"
    if model.recurrent_attention == "none" and not model.recurrent_self_attention:
        unused |= dict.fromkeys(_ATTENTION_SETTINGS, "has no effect: this model has no attention")
    for name, reason in unused.items():
        value = getattr(model, name)
        if value not in (None, defaults[name]):
            choice_log.record(f"model.{name}", None, Choice(value, reason))


def check_consistency(settings: Settings, base_config: ModelConfig | None, machine: Machine) -> None:
    """Raise an error for settings of the model and of training that cannot work, whatever the corpus.

    Args:
        settings: the user's settings.
        base_config: the configuration of the base model; None: training starts from random weights.
        machine: the machine that trains.

    Raises:
        TransduceError: settings contradict each other or do not suit the task or the machine, a registered component
            fails its check, or the model is too large for the memory.
    """
    model = _model_to_check(settings, base_config)
    check_training(settings, model, machine)
    check_registered(model)
    refuse_too_large_model(model, settings.training, machine, knows_vocabulary=base_config is not None)
    if kind_of(settings.task.kind).writes_translations:
        search = msgspec.structs.replace(settings.search, generate=None)  # its token ids are not known yet
        check_search(search, [model], width=search.beam_size)


def least_memory_of(settings: Settings, base_config: ModelConfig | None, machine: Machine) -> int:
    """Return how many bytes the training of a run needs at least, by its settings (`training.memory.least_memory`).

    Args:
        settings: the user's settings.
        base_config: the configuration of the base model; None: training starts from random weights.
        machine: the machine that trains.

    Raises:
        TransduceError: no model fits the settings.
    """
    model = _model_to_check(settings, base_config)
    return least_memory(model, settings.training, machine, knows_vocabulary=base_config is not None)[1]


def _model_to_check(settings: Settings, base_config: ModelConfig | None) -> ModelConfig:
    """Return the configuration of a run's model, to check settings before the text is read.

    With a base model, this is the base model's configuration. Otherwise, the vocabulary size is arbitrary.

    Raises:
        TransduceError: the user's settings fit no preset, or contradict the base model.
    """
    if base_config is None:
        return _trial_model(settings)
    return keep_base_config(settings, base_config, str(settings.init_from), ChoiceLog())


def _trial_model(settings: Settings) -> ModelConfig:
    """Return a model configuration with an arbitrary vocabulary size, to check settings with.

    The sizes are those of the user's preset. Without one, the first preset that fits the settings is used.

    Raises:
        TransduceError: no preset fits the settings.
    """
    properties = None
    if kind_of(settings.task.kind).reads_text:
        properties = VocabularyProperties(_PLACEHOLDER_SIZE, _PLACEHOLDER_SIZE, PAD_ID, EOS_ID, tie_source_target=True)
    refusals = []
    for preset in CHOSEN_PRESETS if settings.preset is None else (settings.preset,):
        try:
            return resolve_model(settings, preset, properties, ChoiceLog())
        except TransduceError as refusal:
            refusals.append(refusal)
    raise refusals[0]
