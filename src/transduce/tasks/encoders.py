"""Share BERT's settings and text handling between pretraining and classification."""

from typing import Literal

import numpy as np

from transduce.data.prepared import PreparedCorpus
from transduce.data.sentence_pairs import SentenceStore
from transduce.model.build import AnyModel, build_model
from transduce.model.config import ModelConfig
from transduce.model.encoder import Encoder
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import Choice, Preset
from transduce.training.schedule import ScheduleName

# Default maximum number of tokens in a text, including special tokens.
USUAL_CONTEXT = 128

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


def encoder_sizes(preset: Preset) -> dict[str, object]:
    """Return a preset's encoder sizes, with BERT's feed-forward width and dropout."""
    return {
        "num_encoder_layers": preset.num_encoder_layers,
        "d_model": preset.d_model,
        "d_ff": 4 * preset.d_model,
        "num_heads": preset.num_heads,
        "dropout": 0.1,
    }


def text_length(model: ModelConfig, context: int | None) -> int:
    """Return the maximum number of tokens read from a text, including special tokens.

    This is the context, limited to the number of learned positions.
    """
    if model.positions != "learned":
        return USUAL_CONTEXT if context is None else context
    return model.max_positions if context is None else min(context, model.max_positions)


def encoder_of(model: AnyModel) -> Encoder:
    """Return the model as an encoder, which the task's settings guarantee."""
    assert isinstance(model, Encoder)
    return model


def build_encoder(config: ModelConfig) -> Encoder:
    """Build an encoder with random initial weights."""
    return encoder_of(build_model(config))


def read_store(corpus: PreparedCorpus, tokenizer: Tokenizer, side: Literal["source", "target"]) -> SentenceStore:
    """Open one side of a prepared corpus as memory-mapped sentences."""
    vocabulary = tokenizer.source if side == "source" else tokenizer.target
    card = corpus.card.source if side == "source" else corpus.card.target
    ids = np.memmap(corpus.folder / f"{side}.ids", dtype=np.dtype(card.dtype), mode="r")
    offsets = np.memmap(corpus.folder / f"{side}.offsets", dtype=np.dtype("<i8"), mode="r")
    return SentenceStore(ids, offsets, len(vocabulary.before), len(vocabulary.after))


def linear_schedule() -> Choice[ScheduleName]:
    """Return the choice of BERT's linear schedule."""
    return Choice("linear", "a linear decay to zero, as in BERT")
