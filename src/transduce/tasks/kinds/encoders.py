"""Share defaults and base classes among tasks of a BERT encoder: masked language modeling, classification, tagging."""

import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from torch import Tensor
from typing_extensions import override

from transduce.data.batches import Batch, LabeledPlan, LabeledTexts
from transduce.data.masked_language_model import SentenceStore
from transduce.data.prepared import PreparedCorpus
from transduce.errors import count_noun
from transduce.model.build import AnyModel
from transduce.model.config import ModelConfig
from transduce.model.transformer import Encoder
from transduce.model_folder.cards import TASK_CARD, TaskCard, find_task_card
from transduce.model_folder.read import read_run_setting
from transduce.tasks.kinds.kind import DEV_SCORES, RankAndCount, Reinitialized, base_task, refuse_unused
from transduce.tasks.settings.structs import ResolvedSettings, Settings, TaskSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import MIN_STEPS, Choice, ChoiceLog, Preset, at_least, choose_optimizer
from transduce.training.loss import Objective
from transduce.training.prefetch import to_device
from transduce.training.schedule import ScheduleName
from transduce.training.settings import OptimizerName

# Default maximum number of tokens in a text, including special tokens.
DEFAULT_CONTEXT = 128

# The largest width of a small base model: that of the preset `small`, for less than 50 million tokens of text.
_SMALL_WIDTH = 256

# The number of texts or sentences in a batch of the dev set, and in a training batch by default.
DEV_ROWS, _ROWS = 64, 32

# The percentage of masked tokens below which a base model has learned little.
_FEW_PREDICTED = 30.0

# Settings of BERT's encoder that differ from the defaults.
BERT: dict[str, object] = {
    "kind": "encoder",
    "positions": "learned",
    "activation": "gelu",
    "norm_order": "post",
    "norm_epsilon": 1e-12,
    "embedding_norm": True,
    "token_types": 2,
    "scale_embeddings": False,
    "output_bias": True,
    "pooler": True,
}

# Settings of the vocabulary projection, which these models lack, with values that settings files may contain.
PROJECTION_SETTINGS = {"tie_output": True, "output_bias": False, "output_scale": 1.0}


def text_length(model: ModelConfig, context: int | None) -> int:
    """Return the maximum number of tokens that an encoder reads from a text, including special tokens.

    The maximum is `context`, but never more than the number of learned positions. If `context` is None, it is the
    number of learned positions. A model without learned positions then reads 128 tokens.
    """
    if model.positions != "learned":
        return DEFAULT_CONTEXT if context is None else context
    return model.max_positions if context is None else min(context, model.max_positions)


def as_encoder(model: AnyModel) -> Encoder:
    """Return the model with the type `Encoder`; the task's settings guarantee that it is one."""
    assert isinstance(model, Encoder)
    return model


def read_store(corpus: PreparedCorpus, tokenizer: Tokenizer, side: Literal["source", "target"]) -> SentenceStore:
    """Return one side of a prepared corpus as a `SentenceStore`: sentences of token ids, mapped from disk."""
    vocabulary = tokenizer.source if side == "source" else tokenizer.target
    card = corpus.card.source if side == "source" else corpus.card.target
    ids = np.memmap(corpus.folder / f"{side}.ids", dtype=np.dtype(card.dtype), mode="r")
    offsets = np.memmap(corpus.folder / f"{side}.offsets", dtype=np.dtype("<i8"), mode="r")
    return SentenceStore(ids, offsets, len(vocabulary.before), len(vocabulary.after))


def describe_encoder(resolved: ResolvedSettings, size: str) -> str:
    """Return a phrase that describes a trained encoder for its model card; `size` describes the corpus."""
    model = resolved.model
    layers = count_noun(model.num_encoder_layers, "layer")
    return f"An encoder of {layers} × {model.d_model}, trained by transduce on {size}"


def is_small_base(settings: Settings, d_model: int) -> bool:
    """Return whether training starts from a small masked language model that transduce trained from random weights.

    Small means a width of at most 256. Such a model has read little text, so that a low learning rate to preserve its
    weights does not pay. The model may have been pretrained in several runs, if the first run began with random
    weights.
    """
    folder, seen = settings.init_from, set[str]()
    while folder is not None and folder not in seen and d_model <= _SMALL_WIDTH:
        seen.add(folder)
        if base_task(Path(folder)) != "masked-language-model":
            return False
        folder = read_run_setting(Path(folder), "init_from", str)
    return folder is None and bool(seen)


def _masked_accuracy(folder: Path) -> float | None:
    """Return the percentage of masked dev tokens that the base model in a folder predicts right.

    The result is None if the folder has no such score.
    """
    if base_task(folder) != "masked-language-model":
        return None
    try:
        score = json.loads((folder / DEV_SCORES).read_text(encoding="utf-8"))["scores"]["masked_accuracy"]
        return msgspec.convert(score, float)
    except (OSError, ValueError, KeyError, TypeError):
        return None


class EncoderChoices:
    """A mixin with the default settings that all tasks of a BERT encoder share: sizes, schedule and learning rate."""

    name: ClassVar[Any]

    def sizes(self, preset: Preset, model_kind: str) -> dict[str, object]:  # noqa: ARG002
        """Return a dict of a preset's model settings for an encoder, with BERT's feed-forward width and dropout."""
        sizes = msgspec.structs.asdict(preset) | {"d_ff": 4 * preset.d_model, "dropout": 0.1}
        del sizes["num_decoder_layers"], sizes["norm_order"]
        return sizes

    def choose_schedule(self, norm_order: str) -> Choice[ScheduleName]:  # noqa: ARG002
        """Return the default learning-rate schedule, BERT's linear decay to zero, with a reason (`Choice`)."""
        return Choice("linear", "a linear decay to zero, as in BERT")

    def choose_learning_rate(self, settings: Settings, d_model: int) -> Choice[float]:
        """Return the default peak learning rate, proportional to 1 / d_model, with a reason (`Choice`).

        Fine-tuning has 0.05 / d_model. That is 6.5e-5 at BERT's width, where BERT's authors used 2e-5 to 5e-5. Random
        weights and small base models (`is_small_base`) have 0.25 / d_model, and LoRA has 0.5 / d_model.
        """
        is_new = settings.init_from is None or is_small_base(settings, d_model)
        factor = 0.5 if settings.training.lora_rank else 0.25 if is_new else 0.05
        return Choice(factor / d_model, f"{factor} / d_model ({d_model})")

    def check_projection(self, settings: Settings) -> None:
        """Raise an error for settings of the vocabulary projection, which a classifier or tagger lacks.

        With `init_from` the settings are allowed, because a base model may have the projection.

        Raises:
            TransduceError: a setting of the projection differs from its default.
        """
        for name, default in PROJECTION_SETTINGS.items():
            is_set = settings.init_from is None and getattr(settings.model, name) not in (None, default)
            refuse_unused(self.name, {f"model.{name}": is_set})


class LabelingObjective(Objective[Encoder]):
    """A base class of the training objectives of classification and tagging, which run an encoder on a batch."""

    def encode(self, batch: Batch) -> Tensor:
        """Return the encoder's output for a batch of texts, (B, S, D)."""
        return self.model.encode(to_device(batch.source, self.model.source_weight.device))[0]


class LabelChoices(EncoderChoices):
    """A mixin with the parts that classification and tagging share: default settings, labels, objective and batches."""

    model_kinds: ClassVar[tuple[str, ...]] = ("encoder",)
    label_smoothing: ClassVar[float] = 0.0
    search_advice: ClassVar[str | None] = "leave it out"
    example: ClassVar[str]
    objective: ClassVar[type[LabelingObjective]]
    """The class of the training objective."""
    labels_tokens: ClassVar[bool]
    """True if each token gets a label; False if the text gets one, from a pooler."""
    muon_factor: ClassVar[float]
    """The default peak learning rate of the optimizer Muon is this number divided by `d_model`."""
    epochs: ClassVar[int]
    """The default number of epochs."""
    batch_reason: ClassVar[str]
    """The reason in the choice log for the default of `training.batch_size`."""

    @abstractmethod
    def labels(self, corpus: Any) -> tuple[str, ...]:
        """Return the distinct labels of training texts and dev set, sorted; the model numbers them in this order.

        Raises:
            TransduceError: all texts or words have the same label.
        """

    def adapt_model(self, config: ModelConfig, corpus: Any, task: TaskSettings) -> ModelConfig:  # noqa: ARG002
        """Return the model's configuration with a classifier of the corpus's labels, and no masked-language-model head.

        A model that labels whole texts has a pooler.

        Raises:
            TransduceError: all texts or words have the same label.
        """
        return msgspec.structs.replace(
            config,
            num_labels=len(self.labels(corpus)),
            token_labels=self.labels_tokens,
            masked_language_head=False,
            pooler=not self.labels_tokens,
        )

    def reinitialized(self, corpus: Any) -> Reinitialized:
        """Return which parameters may start at random in a run from a base model (`Reinitialized`).

        These are the classifier's and, for classification of texts, the pooler's; the base model may lack both. The
        classifier starts at random unless the base model has the same task and labels, because a classifier of other
        labels may have the same shape.
        """
        labels = self.labels(corpus)

        def other_labels(folder: Path) -> tuple[str, ...]:
            card = find_task_card(folder)
            return () if card is not None and (card.kind, card.labels) == (self.name, labels) else ("classifier.",)

        return Reinitialized(("classifier.",) if self.labels_tokens else ("classifier.", "pooler."), other_labels)

    def choose_batch_tokens(self, epoch_tokens: int, device: str) -> Choice[int]:  # noqa: ARG002
        """Return the default batch size, 32, with a reason (`Choice`).

        `training.batch_size` counts texts in classification, and sentences in tagging.
        """
        return Choice(_ROWS, self.batch_reason)

    def choose_steps(self, pairs: int, epoch_tokens: int, batch_tokens: int) -> Choice[int]:  # noqa: ARG002
        """Return the default number of steps with a reason (`Choice`): a number of epochs, but at least 300 steps.

        `pairs` and `batch_tokens` count texts or sentences in these tasks.
        """
        steps = self.epochs * -(-pairs // batch_tokens)
        return at_least(MIN_STEPS, steps, f"{self.epochs} epochs of {count_noun(pairs, self.example)}")

    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> LabelingObjective:
        """Return the training objective, a function from a batch to its `Loss`: cross-entropy of the labels."""
        return self.objective(as_encoder(model), label_smoothing=resolved.training.label_smoothing)

    def documents(self, corpus: Any, resolved: ResolvedSettings) -> Mapping[str, str]:
        """Return a dict {file name: content} with the task card, which has the labels and the maximum length."""
        length = text_length(resolved.model, resolved.task.context)
        return {TASK_CARD: TaskCard(kind=self.name, labels=self.labels(corpus), length=length).text()}

    def model_settings(self, task: TaskSettings) -> dict[str, object]:
        """Return a dict of model settings for random weights: those of BERT, but pre-norm.

        Pre-norm models can be trained with Muon, in fewer steps.
        """
        length = DEFAULT_CONTEXT if task.context is None else task.context
        return BERT | {"norm_order": "pre", "output_bias": False, "max_positions": length}

    def choose_positions(self, model: Mapping[str, Any]) -> Choice[str] | None:
        """Return rotary positions as the default, with a reason (`Choice`), or None for the general default.

        The result is None for post-norm models, for heads of odd width, and for attention scores that do not support
        rotary positions. `model` is a dict of model settings.
        """
        width = model.get("d_k") or model["d_model"] // model["num_heads"]
        score = model.get("attention_score", "scaled")
        if model["norm_order"] == "post" or width % 2 or score not in ("scaled", "dot"):
            return None
        return Choice("rotary", "a label depends on neighboring words, which learned positions find later")

    def choose_optimizer(self, settings: Settings, model: ModelConfig) -> Choice[OptimizerName]:
        """Return the default optimizer with a reason (`Choice`): Muon or Adam.

        Muon is chosen for pre-norm models that start from random weights. It is also chosen for a small base model
        (`is_small_base`) without LoRA. Otherwise Adam is chosen.
        """
        if is_small_base(settings, model.d_model) and not settings.training.lora_rank:
            return Choice("muon", f"needs far fewer steps than Adam to fine-tune a base model of width {model.d_model}")
        return choose_optimizer(model.kind, model.norm_order, init_from=settings.init_from)

    @override
    def choose_learning_rate(self, settings: Settings, d_model: int) -> Choice[float]:
        is_muon = settings.training.optimizer == "muon"
        if is_muon and (settings.init_from is None or is_small_base(settings, d_model)):
            return Choice(self.muon_factor / d_model, f"{self.muon_factor:g} / d_model ({d_model}), for Muon")
        return super().choose_learning_rate(settings, d_model)

    def log_corpus_problems(self, corpus: Any, resolved: ResolvedSettings, choice_log: ChoiceLog) -> None:  # noqa: ARG002
        """Log what share of masked tokens the base model predicts, if its folder has that score; warn if it is low."""
        if resolved.init_from is None or (share := _masked_accuracy(Path(resolved.init_from))) is None:
            return
        reason = f"predicts {share:.1f} % of its masked dev tokens"
        if share < _FEW_PREDICTED:
            reason = f"predicts only {share:.1f} % of its masked dev tokens: compare with a run without this base model"
        choice_log.record("init_from", None, Choice(resolved.init_from, reason))

    @abstractmethod
    def training_texts(self, corpus: Any, resolved: ResolvedSettings) -> LabeledTexts:
        """Return the training texts with their labels (one for each text, or one for each word), to make batches of."""

    def plan(self, corpus: Any, resolved: ResolvedSettings, rank_and_count: RankAndCount = (0, 1)) -> LabeledPlan:
        """Return the plan of a process's training batches; `training.batch_size` is a number of texts.

        `rank_and_count` are the process's rank and the number of processes.
        """
        return LabeledPlan(
            self.training_texts(corpus, resolved),
            rows=resolved.micro_batch_tokens,
            seed=resolved.training.seed,
            pad_id=resolved.model.pad_id,
            rank_and_count=rank_and_count,
        )

    def largest_batches(self, corpus: Any, resolved: ResolvedSettings) -> list[Batch]:
        """Return a list with the batch of the longest texts, which needs the most memory, to try before training."""
        return [*self.plan(corpus, resolved).largest_batches()]
