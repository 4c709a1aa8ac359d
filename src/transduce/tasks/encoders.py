"""What pretraining and classification have in common: the model is BERT's, and texts are read as a whole."""

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

# Pieces of a text, marks included, where nothing is said.
USUAL_CONTEXT = 128

# What makes an encoder BERT's.
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
    """What a preset says of an encoder: its sizes with BERT's inner width, and BERT's dropout."""
    return {
        "num_encoder_layers": preset.num_encoder_layers,
        "d_model": preset.d_model,
        "d_ff": 4 * preset.d_model,
        "num_heads": preset.num_heads,
        "dropout": 0.1,
    }


def text_length(model: ModelConfig, context: int | None) -> int:
    """Pieces of a text that are read at most, marks included: the context, but no more than there are positions."""
    if model.positions != "learned":
        return USUAL_CONTEXT if context is None else context
    return model.max_positions if context is None else min(context, model.max_positions)


def encoder_of(model: AnyModel) -> Encoder:
    """The model, which the task's settings made an encoder."""
    assert isinstance(model, Encoder)
    return model


def build_encoder(config: ModelConfig) -> Encoder:
    """An encoder with initial weights."""
    return encoder_of(build_model(config))


def read_store(corpus: PreparedCorpus, tokenizer: Tokenizer, side: Literal["source", "target"]) -> SentenceStore:
    """One side of a corpus that was prepared with this tokenizer, mapped into memory."""
    vocabulary = tokenizer.source if side == "source" else tokenizer.target
    card = corpus.card.source if side == "source" else corpus.card.target
    ids = np.memmap(corpus.folder / f"{side}.ids", dtype=np.dtype(card.dtype), mode="r")
    offsets = np.memmap(corpus.folder / f"{side}.offsets", dtype=np.dtype("<i8"), mode="r")
    return SentenceStore(ids, offsets, len(vocabulary.before), len(vocabulary.after))


def linear_schedule() -> Choice[ScheduleName]:
    """BERT's."""
    return Choice("linear", "a linear fall to zero, as BERT has it")
