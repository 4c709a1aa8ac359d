"""Share defaults and base classes among tasks of a BERT encoder: masked language modeling, classification, tagging."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor
from typing_extensions import override

from transduce.data.batches import Batch, LabeledPlan, LabeledTexts
from transduce.data.prepared import PreparedCorpus
from transduce.data.sentence_pairs import SentenceStore
from transduce.model.build import AnyModel, build_model
from transduce.model.config import ModelConfig
from transduce.model.transformer import Encoder
from transduce.tasks.kinds.kind import RankAndCount, refuse_unused
from transduce.tasks.settings.structs import ResolvedSettings, Settings, TaskSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import Choice, Preset
from transduce.training.loss import Objective
from transduce.training.prefetch import to_device
from transduce.training.schedule import ScheduleName
from transduce.training.settings import OptimizerName

# Default maximum number of tokens in a text, including special tokens.
DEFAULT_CONTEXT = 128

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
    """Return the maximum number of tokens read from a text, including special tokens.

    This is the context, limited to the number of learned positions.
    """
    if model.positions != "learned":
        return DEFAULT_CONTEXT if context is None else context
    return model.max_positions if context is None else min(context, model.max_positions)


def as_encoder(model: AnyModel) -> Encoder:
    """Return the model with the type `Encoder`; the task's settings guarantee that it is one."""
    assert isinstance(model, Encoder)
    return model


def build_encoder(config: ModelConfig) -> Encoder:
    """Build an encoder with random initial weights."""
    return as_encoder(build_model(config))


def read_store(corpus: PreparedCorpus, tokenizer: Tokenizer, side: Literal["source", "target"]) -> SentenceStore:
    """Open one side of a prepared corpus as sentences of token ids that are mapped from disk."""
    vocabulary = tokenizer.source if side == "source" else tokenizer.target
    card = corpus.card.source if side == "source" else corpus.card.target
    ids = np.memmap(corpus.folder / f"{side}.ids", dtype=np.dtype(card.dtype), mode="r")
    offsets = np.memmap(corpus.folder / f"{side}.offsets", dtype=np.dtype("<i8"), mode="r")
    return SentenceStore(ids, offsets, len(vocabulary.before), len(vocabulary.after))


def describe_encoder(resolved: ResolvedSettings, size: str) -> str:
    """Return the description of a trained encoder for its model card; `size` describes the corpus."""
    model = resolved.model
    return f"An encoder of {model.num_encoder_layers} layers × {model.d_model}, trained by transduce on {size}"


class EncoderChoices:
    """A mixin with the default settings that all tasks of a BERT encoder share: sizes, schedule and learning rate."""

    name: ClassVar[str]

    def sizes(self, preset: Preset, model_kind: str) -> dict[str, object]:  # noqa: ARG002
        """Return a preset's encoder sizes, with BERT's feed-forward width and dropout."""
        return {
            "num_encoder_layers": preset.num_encoder_layers,
            "d_model": preset.d_model,
            "d_ff": 4 * preset.d_model,
            "num_heads": preset.num_heads,
            "dropout": 0.1,
        }

    def choose_schedule(self, norm_order: str) -> Choice[ScheduleName]:  # noqa: ARG002
        """Choose BERT's learning-rate schedule, a linear decay to zero."""
        return Choice("linear", "a linear decay to zero, as in BERT")

    def choose_learning_rate(
        self,
        settings: Settings,
        d_model: int,
        schedule: ScheduleName,  # noqa: ARG002
        warmup_steps: int,  # noqa: ARG002
        batch_tokens: int,  # noqa: ARG002
        optimizer: OptimizerName,  # noqa: ARG002
    ) -> Choice[float]:
        """Choose the peak learning rate, which is proportional to 1 / d_model.

        For fine-tuning it is 6.5e-5 at BERT's width, where BERT's authors used 2e-5 to 5e-5. Training from random
        weights has five times this rate, and LoRA ten times.
        """
        factor = 0.5 if settings.training.lora_rank else 0.25 if settings.init_from is None else 0.05
        return Choice(factor / d_model, f"{factor} / d_model ({d_model})")

    def check_projection(self, settings: Settings) -> None:
        """Refuse settings of the vocabulary projection, which a classifier or tagger lacks.

        They are allowed if `init_from` is set, because a base model may have the projection.

        Raises:
            TransduceError: such a setting differs from its default.
        """
        for name, default in PROJECTION_SETTINGS.items():
            is_set = settings.init_from is None and getattr(settings.model, name) not in (None, default)
            refuse_unused(self.name, {f"model.{name}": is_set})


class LabelChoices(EncoderChoices):
    """A mixin with the defaults that classification and tagging share, most of them for training from random values."""

    muon_factor: ClassVar[float]
    """The number that, divided by `d_model`, is the default peak learning rate of the optimizer Muon."""

    def model_settings(self, task: TaskSettings) -> dict[str, object]:
        """Return BERT's settings for a model from random weights, but pre-norm, which Muon trains in fewer steps."""
        length = DEFAULT_CONTEXT if task.context is None else task.context
        return BERT | {"norm_order": "pre", "output_bias": False, "max_positions": length}

    def choose_positions(self, model: Mapping[str, Any]) -> Choice[str] | None:
        """Choose rotary positions; None, the default, for a BERT (post-norm) or attention that doesn't support them."""
        width = model.get("d_k") or model["d_model"] // model["num_heads"]
        score = model.get("attention_score", "scaled")
        if model["norm_order"] == "post" or width % 2 or score not in ("scaled", "dot"):
            return None
        return Choice("rotary", "a label depends on neighboring words, which learned positions find later")

    @override
    def choose_learning_rate(
        self,
        settings: Settings,
        d_model: int,
        schedule: ScheduleName,
        warmup_steps: int,
        batch_tokens: int,
        optimizer: OptimizerName,
    ) -> Choice[float]:
        if optimizer == "muon" and settings.init_from is None:
            return Choice(self.muon_factor / d_model, f"{self.muon_factor:g} / d_model ({d_model}), for Muon")
        return super().choose_learning_rate(settings, d_model, schedule, warmup_steps, batch_tokens, optimizer)

    @abstractmethod
    def training_texts(self, corpus: Any, resolved: ResolvedSettings) -> LabeledTexts:
        """Return the training texts with their labels, of the text or of its words, as batches are made of them."""

    def plan(self, corpus: Any, resolved: ResolvedSettings, rank_and_count: RankAndCount = (0, 1)) -> LabeledPlan:
        """Return the plan of this process's training batches; `training.batch_tokens` is a number of texts here."""
        return LabeledPlan(
            self.training_texts(corpus, resolved),
            rows=resolved.micro_batch_tokens,
            seed=resolved.training.seed,
            pad_id=resolved.model.pad_id,
            rank_and_count=rank_and_count,
        )

    def largest_batches(self, corpus: Any, resolved: ResolvedSettings) -> list[Batch]:
        """Return the batch of the longest texts, which needs the most memory, in a list."""
        return [self.plan(corpus, resolved).largest_batches()]


class LabelingObjective(Objective[Encoder]):
    """A base class of the training objectives of classification and tagging, which start from an encoder's output."""

    def encode(self, batch: Batch) -> Tensor:
        """Return the encoder's output for a batch of texts, (B, S, D)."""
        return self.model.encode(to_device(batch.source, self.model.source_weight.device))[0]
