"""Define what a preset sets besides the sizes of a model, each setting with its source.

`training/choices.py:PRESETS` has the sizes. The presets of the paper also set how it trained (sections 5 and 6.1), and
those of published models also set their components, vocabulary sizes and lengths.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from transduce.errors import TransduceError
from transduce.tasks.settings.structs import Settings

Setting = tuple[Any, str]
"""A pair: the value of a setting, and the reason for it that the choice log prints."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a preset (besides its sizes), and the tasks that the settings are for."""

    tasks: tuple[str, ...]
    """The values of `task.kind` that the settings are for; the first is the default."""
    settings: Mapping[str, Setting]
    """Dict: dotted name of a setting → (value, reason)."""
    sizes_suit_all: bool = False
    """True if other tasks may take the preset's sizes without its settings; otherwise they cannot use the preset."""


def _paper(*, steps: int, average: int, save_every: int, step_seconds: str) -> Recipe:
    """Return a `Recipe` with the settings by which the paper trained its translation models, base or big.

    Args:
        steps: number of training steps.
        average: number of last checkpoints whose weights are averaged.
        save_every: steps between checkpoints.
        step_seconds: seconds of a step in the paper, for the reason of `save_every`.
    """
    settings: dict[str, Setting] = {
        "tokenizer.kind": ("bpe", "section 5.1: byte-pair encoding"),
        "tokenizer.vocabulary_size": (37_000, "section 5.1: about 37,000 tokens, shared"),
        "tokenizer.joint": (True, "section 5.1: a shared source-target vocabulary"),
        "tokenizer.placeholders": (0, "the paper has no placeholder tokens"),
        "model.positions": ("sinusoidal", "section 3.5"),
        "model.activation": ("relu", "section 3.3"),
        "model.norm": ("layer", "section 3.1"),
        "model.attention_dropout": (0.0, "section 5.4: dropout on sub-layer outputs and embedding sums only"),
        "model.activation_dropout": (0.0, "section 5.4: dropout on sub-layer outputs and embedding sums only"),
        "model.tie_output": (True, "section 3.4: one matrix for both embeddings and the output"),
        "model.scale_embeddings": (True, "section 3.4: embeddings times √d_model"),
        "training.batch_tokens": (25_000, "section 5.1: about 25,000 source and 25,000 target tokens"),
        "training.steps": (steps, "section 5.2"),
        "training.optimizer": ("adam", "section 5.3"),
        "training.beta1": (0.9, "section 5.3"),
        "training.beta2": (0.98, "section 5.3"),
        "training.epsilon": (1e-9, "section 5.3"),
        "training.schedule": ("inverse-sqrt", "section 5.3, equation (3)"),
        "training.weight_decay": (0.0, "section 5.4 has none"),
        "training.clip_norm": (0.0, "section 5 clips no gradients"),
        "training.label_smoothing": (0.1, "section 5.4"),
        "training.precision": ("fp32", "the paper does not say; its software computed in float32"),
        "training.adapt_dropout": (False, "section 5.4: dropout stays on"),
        "training.average_checkpoints": (average, "section 6.1"),
        "training.save_every": (
            save_every,
            f"section 6.1: every 10 minutes, of {step_seconds} s a step (section 5.2)",
        ),
        "training.best_by": ("last", "section 6.1: the end of training, not the best dev score"),
        "training.patience": (0, "section 5.2: a fixed number of steps"),
        "search.beam_size": (4, "section 6.1"),
        "search.length_penalty": (0.6, "section 6.1"),
        "search.max_length_factor": (1.0, "section 6.1: input length + 50"),
        "search.max_length_extra": (50, "section 6.1: input length + 50"),
    }
    return Recipe(tasks=("translation",), settings=settings, sizes_suit_all=True)


_BERT = Recipe(
    tasks=("masked-language-model", "classification", "tagging"),
    settings={
        "task.context": (512, "BERT reads 512 tokens"),
        "tokenizer.vocabulary_size": (30_522, "BERT has 30,522 tokens"),
        "model.norm_order": ("post", "as BERT"),
        "model.attention_dropout": (0.1, "as BERT"),
    },
)
RECIPES = {
    "paper-base": _paper(steps=100_000, average=5, save_every=1_500, step_seconds="0.4"),
    "paper-big": _paper(steps=300_000, average=20, save_every=600, step_seconds="1.0"),
    "bert-base": _BERT,
    "bert-large": _BERT,
    "gpt2": Recipe(
        tasks=("language-model",),
        settings={
            "task.context": (1_024, "GPT-2 reads 1,024 tokens"),
            "tokenizer.vocabulary_size": (50_257, "GPT-2 has 50,257 tokens"),
            "model.attention_dropout": (0.1, "as GPT-2"),
        },
    ),
    "t5-small": Recipe(
        tasks=("denoising", "translation"),
        settings={
            "tokenizer.vocabulary_size": (32_128, "T5 has 32,128 tokens"),
            "model.attention_dropout": (0.1, "as T5"),
            "model.activation_dropout": (0.1, "as T5"),
            "model.norm": ("rms", "as T5"),
            "model.norm_epsilon": (1e-6, "as T5"),
            "model.bias": (False, "T5 has no biases"),
            "model.positions": ("relative", "as T5"),
            "model.attention_score": ("dot", "T5 does not divide scores by √d_k"),
            "model.scale_embeddings": (False, "as T5"),
            "model.output_scale": (512**-0.5, "T5 multiplies the decoder's output by 1/√d_model"),
        },
    ),
    "bart-base": Recipe(
        tasks=("denoising", "translation"),
        settings={
            "tokenizer.vocabulary_size": (50_265, "BART has 50,265 tokens"),
            "model.activation": ("gelu", "as BART"),
            "model.positions": ("learned", "as BART"),
            "model.max_positions": (1_024, "BART reads 1,024 tokens"),
            "model.position_offset": (2, "BART's table of positions starts with two unused rows"),
            "model.embedding_norm": (True, "as BART"),
            "model.attention_dropout": (0.1, "as BART"),
            "model.scale_embeddings": (False, "as BART"),
        },
    ),
}
# A setting that is left out if the user sets one of these others.
_REPLACED_BY = {
    "tokenizer.vocabulary_size": ("tokenizer.vocabulary", "tokenizer.kind", "data.prepared"),
    "tokenizer.kind": ("tokenizer.vocabulary", "data.prepared"),
    "tokenizer.joint": ("tokenizer.vocabulary", "data.prepared"),
    "tokenizer.placeholders": ("tokenizer.vocabulary", "data.prepared"),
    "training.steps": ("training.minutes",),
    "training.average_checkpoints": ("training.average_decay", "training.lora_rank"),
    "model.max_positions": ("model.positions",),
    "model.position_offset": ("model.positions",),
}
# Tables whose settings a base model or its tokenizer determines.
_BASE_MODEL_TABLES = ("task.", "tokenizer.", "model.")


def preset_settings(content: Mapping[str, Any]) -> dict[str, Setting]:
    """Return the settings that a preset adds to the user's: a dict from dotted name to (value, reason).

    Settings that the user has set are left out. The dict is empty without a preset, or if the preset has only sizes for
    this task. If the user sets another number of steps than the paper, the interval between checkpoints changes in
    proportion.

    Args:
        content: the user's settings, nested as in a settings file.

    Raises:
        TransduceError: the preset is for other tasks.
    """
    preset = content.get("preset")
    recipe = RECIPES.get(preset) if isinstance(preset, str) else None
    if recipe is None:
        return {}
    kind = setting_value(content, "task.kind")
    if kind is not None and kind not in recipe.tasks:
        if recipe.sizes_suit_all:
            return {}
        raise TransduceError(
            f"`preset` is {preset}, a model for `task.kind` = {' or '.join(recipe.tasks)}, but `task.kind` is {kind}: "
            "change one of them."
        )
    return dict(_added(content, recipe, kind))


def _added(content: Mapping[str, Any], recipe: Recipe, kind: Any) -> Iterator[tuple[str, Setting]]:
    has_base_model = _is_set(content, "init_from")
    if kind is None and recipe.tasks[0] != "translation":
        yield "task.kind", (recipe.tasks[0], "the preset's task")
    for name, (value, reason) in recipe.settings.items():
        if _is_set(content, name) or any(_is_set(content, other) for other in _REPLACED_BY.get(name, ())):
            continue
        if has_base_model and name.startswith(_BASE_MODEL_TABLES):
            continue
        steps, usual = setting_value(content, "training.steps"), recipe.settings.get("training.steps")
        width = setting_value(content, "model.d_model")
        if name == "model.output_scale" and isinstance(width, int) and width > 0:
            yield name, (width**-0.5, reason)
        elif name == "training.save_every" and isinstance(steps, int) and usual is not None and steps != usual[0]:
            scaled = max(1, round(value * steps / usual[0]))
            yield name, (scaled, f"{reason}; {value:,} of the paper's {usual[0]:,} steps")
        else:
            yield name, (value, reason)


_NOT_SET = object()


def setting_value(content: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return the value of a setting, by its dotted name, in nested tables (dicts); `default` if it is not set there."""
    value: Any = content
    for key in name.split("."):
        value = value.get(key, _NOT_SET) if isinstance(value, Mapping) else _NOT_SET
    return default if value is _NOT_SET else value


def _is_set(content: Mapping[str, Any], name: str) -> bool:
    return setting_value(content, name, _NOT_SET) is not _NOT_SET


def has_preset_vocabulary_size(settings: Settings) -> bool:
    """Return whether the vocabulary size is the preset's.

    A small text need not reach the preset's size, whereas it must reach a size that the user chose. The result is False
    without a preset, and for a preset without a vocabulary size.
    """
    recipe = RECIPES.get(settings.preset or "")
    value, _ = (None, "") if recipe is None else recipe.settings["tokenizer.vocabulary_size"]
    return value is not None and settings.tokenizer.vocabulary_size == value


def with_preset(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the user's settings, nested as in a settings file, with those of their preset added.

    What the user has set stays. Without a preset, nothing is added.

    Raises:
        TransduceError: the preset is for other tasks.
    """
    completed = dict(content)
    for name, (value, _) in preset_settings(content).items():
        table, _, last = name.partition(".")
        inner = completed.get(table, {})
        if isinstance(inner, Mapping):  # otherwise a wrong value, which is reported later
            completed[table] = {**inner, last: value}
    return completed
