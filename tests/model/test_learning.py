"""Test that components and kinds of models learn: the loss of copying falls far below that of guessing.

`benchmarks/learnability.py --variants` trains all of them until the copies are exact.
"""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.transformer import Decoder, Encoder

PAD, EOS, SYMBOLS, LENGTH = 0, 1, 6, 4
GUESSING = 1.43  # nats per token: ln 6 for four symbols, and 0 for the end symbol


def copying(changes: dict[str, Any], steps: int) -> float:
    """Return the loss per token on unseen sequences after so many steps of 32 sequences each."""
    shape: dict[str, Any] = {
        "source_vocabulary_size": SYMBOLS + 2,
        "target_vocabulary_size": SYMBOLS + 2,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": 32,
        "d_ff": 32,
        "num_heads": 2,
        "dropout": 0.0,
    }
    model = build_model(ModelConfig(**(shape | changes)))
    assert not isinstance(model, Encoder)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in range(steps):
        symbols = torch.randint(2, SYMBOLS + 2, (32, LENGTH))
        sequence = F.pad(symbols, (0, 1), value=EOS)
        if isinstance(model, Decoder):
            logits = model(torch.cat([sequence, symbols], dim=1))[:, LENGTH:]
        else:
            logits = model(sequence, F.pad(symbols, (1, 0), value=PAD))
        loss = F.cross_entropy(logits.flatten(0, 1), sequence.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    return loss.item()


@pytest.mark.parametrize(
    "changes",
    [
        {
            "positions": "rotary",
            "norm": "rms",
            "activation": "swiglu",
            "num_key_value_heads": 1,
            "bias": False,
            "attention_window": 2,
        },
        {"kind": "decoder", "num_decoder_layers": 2, "positions": "learned"},
        {"kind": "recurrent", "attention_score": "general"},
        {
            "kind": "recurrent",
            "recurrent_cell": "gru",
            "recurrent_attention": "bahdanau",
            "attention_score": "additive",
        },
        {"kind": "recurrent", "recurrent_self_attention": True, "attention_score": "dot"},
        {"kind": "recurrent", "recurrent_attention": "none", "recurrent_context_to": "both"},
    ],
    ids=str,
)
def test_a_small_model_learns_to_copy(changes: dict[str, Any]) -> None:
    assert copying(changes, steps=80) < 0.5 * GUESSING


def test_copying_is_not_learned_in_a_few_steps() -> None:
    """The test above can fail."""
    assert copying({"kind": "recurrent", "attention_score": "general"}, steps=5) > 0.8 * GUESSING
