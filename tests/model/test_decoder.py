"""Test decoder-only models: prompts of any lengths are continued as if alone, by the encoder's layers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transduce.model.attention import AttentionTrace
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.masks import look_ahead_mask
from transduce.model.transformer import Decoder

PAD, EOS, V = 0, 1, 17
PROMPTS = torch.tensor(
    [[5, 6, 7, 8], [9, PAD, PAD, PAD], [4, 0, 3, PAD]]
)  # a padding id inside a prompt is an ordinary token
LENGTHS = (4, 1, 3)


def build(**changes: Any) -> Decoder:
    shape: dict[str, Any] = {
        "kind": "decoder",
        "source_vocabulary_size": V,
        "target_vocabulary_size": V,
        "num_decoder_layers": 2,
        "d_model": 16,
        "d_ff": 24,
        "num_heads": 4,
        "dropout": 0.0,
        "zero_padding_row": False,
    }
    model = build_model(ModelConfig(**(shape | changes))).eval()
    assert isinstance(model, Decoder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)


def test_prompts_may_end_with_the_padding_where_their_lengths_are_given() -> None:
    model = build(positions="none", pad_id=EOS, eos_id=EOS)
    prompts, newest = torch.tensor([[5, 6, EOS], [7, EOS, EOS]]), torch.tensor([[3], [4]])
    with torch.inference_mode():
        state = model.start(prompts, torch.tensor([3, 2]))
        found = [state.step(newest), state.step(newest)]
        for row, length in enumerate((3, 2)):
            alone = model.hidden(torch.cat([prompts[row, :length], newest[row]])[None])
            close(found[0][row, 0], alone[0, length - 1])
            close(found[1][row, 0], alone[0, length])


def test_a_decoder_equals_pytorchs_encoder_layers_with_a_look_ahead_mask() -> None:
    model = build(positions="none", activation="gelu")
    x = model.embedding(PROMPTS, model.source_weight)
    for layer in model.layers:
        theirs = nn.TransformerEncoderLayer(
            16, 4, 24, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        ).eval()
        names = {
            "self_attn.in_proj_": "self_attention.projection.",
            "self_attn.out_proj.": "self_attention.output.",
            "linear1.": "feed_forward.inner.",
            "linear2.": "feed_forward.outer.",
            "norm1.": "self_attention_residual.norm_before.",
            "norm2.": "feed_forward_residual.norm_before.",
        }
        own = layer.state_dict()
        theirs.load_state_dict(
            {
                name: own[ours + name.removeprefix(prefix)]
                for name in theirs.state_dict()
                for prefix, ours in names.items()
                if name.startswith(prefix)
            }
        )
        x = theirs(x, src_mask=~look_ahead_mask(4).allowed[0, 0])
    close(model.hidden(PROMPTS), model.norm(x))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "relative"])
def test_prompts_of_different_lengths_are_continued_as_if_each_were_alone(positions: str) -> None:
    model, width = build(positions=positions), 2
    histories = [[prompt[:length].tolist()] * width for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    with torch.inference_mode():
        state = model.start(PROMPTS)
        newest = torch.full((3, 1), EOS)  # ignored
        for step in range(5):
            logits = model.project(state.step(newest))
            for row, of_prompt in enumerate(histories):
                for hypothesis in range(logits.shape[1]):
                    close(logits[row, hypothesis], model(torch.tensor([of_prompt[hypothesis]]))[0, -1])
            newest = torch.randint(V, (3, width))
            state.reorder(torch.tensor([[0, 0]] * 3) if step == 0 else torch.tensor([[1, 0]] * 3))
            for row in range(3):
                before = histories[row] if step == 0 else histories[row][::-1]
                histories[row] = [[*pieces, int(newest[row, w])] for w, pieces in enumerate(before)]


def test_sentences_may_be_removed_before_the_first_step() -> None:
    model = build()
    with torch.inference_mode():
        state = model.start(PROMPTS)
        state.keep_sentences(torch.tensor([2]))
        first = model.project(state.step(torch.tensor([[EOS]])))
        close(first[0, 0], model(PROMPTS[2:, :3])[0, -1])
        state.reorder(torch.tensor([[0]]))
        close(model.project(state.step(torch.tensor([[6]])))[0, 0], model(torch.tensor([[4, 0, 3, 6]]))[0, -1])


def test_the_trace_of_a_decoder_sees_the_past_alone() -> None:
    model, trace = build(), AttentionTrace()
    model.decode(PROMPTS, trace=trace)
    assert [weights.shape for weights in trace.decoder] == [(3, 4, 4, 4)] * 2
    assert not trace.decoder[0].triu(1).any()
    assert trace.encoder == trace.memory == []


def test_a_step_may_be_traced() -> None:
    model, trace = build(), AttentionTrace()
    state = model.start(PROMPTS)
    state.step(torch.full((3, 1), EOS))
    state.step(torch.tensor([[3], [4], [5]]), trace=trace)
    assert trace.decoder[1].shape == (3, 4, 1, 5)
    assert not trace.decoder[1][1, :, 0, 1:4].any()  # the prompt's padding
    torch.testing.assert_close(trace.decoder[1].sum(-1), torch.ones(3, 4, 1))
