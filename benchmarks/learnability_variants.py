"""Components and kinds of models that `learnability.py --variants` trains, and a scorer for searching with any
of them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from transduce.model.build import Model
from transduce.model.transformer import Encoder


class Variant(NamedTuple):
    """Model settings that differ from the defaults."""

    name: str
    settings: dict[str, Any]
    has_bar: bool = True
    in_quick: bool = False


VARIANTS = [
    # Attention scores.
    Variant("dot", {"attention_score": "dot"}, in_quick=True),
    Variant("general", {"attention_score": "general"}),
    Variant("additive", {"attention_score": "additive"}, in_quick=True),
    Variant("hard", {"attention_kind": "hard"}, in_quick=True),
    Variant("hard dot", {"attention_kind": "hard", "attention_score": "dot"}),
    Variant("window 3", {"attention_window": 3}),
    Variant("one key and value head", {"num_key_value_heads": 1}),
    # Positions. Without them, the encoder sees an unordered set of symbols.
    Variant("learned positions", {"positions": "learned", "max_positions": 64}),
    Variant("rotary", {"positions": "rotary"}, in_quick=True),
    Variant("rotary, interleaved", {"positions": "rotary-interleaved"}),
    Variant("bias by distance", {"positions": "relative"}),
    Variant("no positions", {"positions": "none"}, has_bar=False),
    # Norms.
    Variant("rms norm", {"norm": "rms"}),
    Variant("batch norm", {"norm": "batch"}, has_bar=False),
    Variant("post-norm", {"norm_order": "post"}),
    Variant("sandwich norm", {"norm_order": "sandwich"}),
    # Layers.
    Variant("shared layers", {"share_layers": True}),
    Variant("swiglu, no bias", {"activation": "swiglu", "bias": False}),
    Variant("geglu, tanh", {"activation": "geglu-tanh"}),
    # Other kinds of model. States of recurrent cells are between -1 and 1, so scores divided by √d are too similar
    # for sharp attention: the scaled score has no bar.
    Variant("decoder alone", {"kind": "decoder", "num_decoder_layers": 3}, in_quick=True),
    Variant("lstm", {"kind": "recurrent", "attention_score": "general"}, in_quick=True),
    Variant("lstm, scaled", {"kind": "recurrent"}, has_bar=False),
    Variant("gru", {"kind": "recurrent", "recurrent_cell": "gru", "attention_score": "general"}),
    Variant(
        "gru, bahdanau",
        {
            "kind": "recurrent",
            "recurrent_cell": "gru",
            "recurrent_attention": "bahdanau",
            "attention_score": "additive",
        },
    ),
    Variant("lstm, dot, input feeding", {"kind": "recurrent", "attention_score": "dot", "input_feeding": True}),
    Variant(
        "lstm, attention to its past",
        {"kind": "recurrent", "recurrent_self_attention": True, "attention_score": "additive"},
    ),
    Variant("lstm without attention", {"kind": "recurrent", "recurrent_attention": "none"}, has_bar=False),
    Variant(
        "lstm without attention, context at every step",
        {"kind": "recurrent", "recurrent_attention": "none", "recurrent_context_to": "both"},
        has_bar=False,
    ),
]


class StateScorer:
    """A scorer that lets greedy search use any model; it never generates padding."""

    def __init__(self, model: Model, source_ids: Tensor, pad_id: int) -> None:
        """Encode `source_ids` (B, S), and start decoding."""
        if isinstance(model, Encoder):
            raise TypeError("an encoder alone writes no answers")
        self.model = model
        self.state = model.start(source_ids)
        self.forbidden = torch.tensor([pad_id])

    def step(self, pieces: Tensor) -> Tensor:
        """Return logits of the next token (B, W, V) after each hypothesis's newest token (B, W)."""
        return self.model.project(self.state.step(pieces)).index_fill(-1, self.forbidden, float("-inf"))

    def reorder(self, parents: Tensor) -> None:
        """Make hypothesis w of sentence b continue hypothesis parents[b, w]."""
        self.state.reorder(parents)

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the sentences with these row indices in the batch."""
        self.state.keep_sentences(rows)
