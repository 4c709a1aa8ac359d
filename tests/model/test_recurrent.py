"""Test recurrent models against PyTorch's cells, attention by hand, and their own step-by-step decoding."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model.attention import AttentionTrace
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.masks import AttentionMask
from transduce.model.recurrent import Recurrent, RecurrentDecoderLayer, RecurrentEncoderLayer, reversal_permutation

PAD, EOS, V, D = 0, 1, 17, 12
SOURCES = torch.tensor([[5, 6, 7, 8, EOS], [9, 3, EOS, PAD, PAD]])
PRESENT = SOURCES != PAD
TARGETS = torch.tensor([[PAD, 4, 9, 2], [PAD, 3, 6, 6]])


def build(**changes: Any) -> Recurrent:
    shape: dict[str, Any] = {
        "kind": "recurrent",
        "source_vocabulary_size": V,
        "target_vocabulary_size": V,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": D,
        "dropout": 0.0,
    }
    model = build_model(ModelConfig(**(shape | changes))).eval()
    assert isinstance(model, Recurrent)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def decoder_layer(model: Recurrent) -> RecurrentDecoderLayer:
    layer = model.decoder_layers[0]
    assert isinstance(layer, RecurrentDecoderLayer)
    return layer


# --- the encoder ---


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_encoder_equals_pytorchs_packed_cells(cell: str, bidirectional: bool) -> None:
    model = build(recurrent_cell=cell, bidirectional=bidirectional, num_encoder_layers=2)
    kind = nn.LSTM if cell == "lstm" else nn.GRU
    theirs = kind(D, D // 2 if bidirectional else D, 2, batch_first=True, bidirectional=bidirectional)
    weights = {}
    for number, layer in enumerate(model.encoder_layers):
        assert isinstance(layer, RecurrentEncoderLayer)
        for name, tensor in layer.ahead.state_dict().items():
            weights[name.replace("l0", f"l{number}")] = tensor
        for name, tensor in {} if layer.back is None else layer.back.state_dict().items():
            weights[name.replace("l0", f"l{number}_reverse")] = tensor
    theirs.load_state_dict(weights)
    embedded = model.source_embedding(SOURCES, model.source_weight)
    packed = nn.utils.rnn.pack_padded_sequence(embedded, PRESENT.sum(1), batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    memory, mask = model.encode(SOURCES)
    close(memory[PRESENT], expected[PRESENT])
    assert torch.equal(mask.allowed[:, 0, 0], PRESENT)


def test_reversing_a_sentence_leaves_its_padding_in_place() -> None:
    assert reversal_permutation(PRESENT).tolist() == [[4, 3, 2, 1, 0], [2, 1, 0, 3, 4]]


# --- the decoder's initial state ---


@pytest.mark.parametrize("context", ["last", "linear", "mean"])
@pytest.mark.parametrize("to", ["initial", "steps", "both"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_context_vector_equals_its_formula(context: str, to: str, cell: str) -> None:
    model = build(recurrent_attention="none", recurrent_context=context, recurrent_context_to=to, recurrent_cell=cell)
    memory, mask = model.encode(SOURCES)
    half, rows = D // 2, []
    for sentence, present in zip(memory, PRESENT, strict=True):
        states = sentence[present]
        last = torch.cat([states[-1, :half], states[0, half:]])
        summary = states.mean(0) if context == "mean" else last
        rows.append(summary if model.bridge is None else torch.tanh(model.bridge(summary)))
    vector = torch.stack(rows)
    start = (torch.zeros_like(vector) if to == "steps" else vector)[None]
    x = model.target_embedding(TARGETS, model.target_weight)
    if to != "initial":
        x = torch.cat([x, vector[:, None].expand(-1, 4, -1)], dim=-1)
    cells = decoder_layer(model).cells
    expected = cells(x, (start, start))[0] if isinstance(cells, nn.LSTM) else cells(x, start)[0]
    close(model.decode(TARGETS, memory, mask), expected)
    assert (model.bridge is None) == (context == "last")


def test_a_source_that_is_padding_alone_stays_finite() -> None:
    for context in ("mean", "last"):
        model = build(recurrent_context=context)
        assert model(torch.full((1, 3), PAD), TARGETS[:1]).isfinite().all()


# --- attention to the memory ---


def weights_by_hand(model: Recurrent, state: Tensor, memory: Tensor) -> Tensor:
    """Return the attention weights of one state (D,) over one sentence's memory (S, D)."""
    attention, score = model.memory_attention, model.config.attention_score
    assert attention is not None
    if score == "additive":
        assert attention.score is not None
        assert attention.score.vector is not None
        assert isinstance(attention.query, nn.Linear)
        assert isinstance(attention.key, nn.Linear)
        inner = attention.query.weight @ state + memory @ attention.key.weight.T + attention.key.bias
        return (torch.tanh(inner) @ attention.score.vector[0]).softmax(0)
    if score == "general":
        assert attention.score is not None
        assert attention.score.matrix is not None
        return (memory @ (state @ attention.score.matrix[0])).softmax(0)
    return (memory @ state / (D**0.5 if score == "scaled" else 1.0)).softmax(0)


@pytest.mark.parametrize("score", ["scaled", "dot", "general", "additive"])
@pytest.mark.parametrize("wiring", ["luong", "bahdanau", "feeding"])
def test_attention_of_each_decoding_step_equals_its_formula(score: str, wiring: str) -> None:
    model = build(
        attention_score=score,
        recurrent_attention="bahdanau" if wiring == "bahdanau" else "luong",
        input_feeding=wiring == "feeding",
        recurrent_cell="gru",
    )
    memory, mask = model.encode(SOURCES)
    trace = AttentionTrace()
    ours = model.decode(TARGETS, memory, mask, trace=trace)
    assert [weights.shape for weights in trace.memory] == [(2, 1, 4, 5)]
    assert model.attentional is not None
    embedded = model.target_embedding(TARGETS, model.target_weight)
    for row, present in enumerate(PRESENT):
        states = memory[row][present]
        half = D // 2
        assert model.bridge is not None
        state = torch.tanh(model.bridge(torch.cat([states[-1, :half], states[0, half:]])))
        fed = torch.zeros(D)
        for step in range(4):
            parts = [embedded[row, step]]
            weights = weights_by_hand(model, state, states)
            if wiring == "bahdanau":
                parts.append(weights @ states)
            elif wiring == "feeding":
                parts.append(fed)
            state = decoder_layer(model).cells(torch.cat(parts)[None, None], state[None, None])[0][0, 0]
            if wiring != "bahdanau":
                weights = weights_by_hand(model, state, states)
            found = weights @ states
            fed = torch.tanh(model.attentional(torch.cat([found, state])))
            close(ours[row, step], fed)
            close(trace.memory[0][row, 0, step, present], weights.detach())
            assert not trace.memory[0][row, 0, step, ~present].any()


# --- attention to the decoder's own past ---


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_attention_to_the_past_by_hand(cell: str) -> None:
    """A step continues an average of all past states and of their cells, equations 4 to 8 of Cheng et al. 2016."""
    model = build(
        recurrent_self_attention=True, attention_score="additive", recurrent_attention="none", recurrent_cell=cell
    )
    layer = decoder_layer(model)
    attention, cells = layer.past_attention, layer.cells
    assert attention is not None
    assert attention.score is not None
    assert attention.score.vector is not None
    start, x = torch.randn(1, D), torch.randn(1, 4, D)
    trace: list[Tensor] = []
    outputs, _ = layer(x, layer.begin(start), trace)
    hidden, cell_states, average = [start], [start], torch.zeros(1, D)
    for step in range(4):
        asked = attention.from_input(x[:, step]) + attention.from_average(average)
        scores = torch.stack([(torch.tanh(asked + attention.key(h)) * attention.score.vector[0]).sum() for h in hidden])
        weights = scores.softmax(0)
        average = sum((w * h for w, h in zip(weights, hidden, strict=True)), torch.zeros(1, D))
        if isinstance(cells, nn.LSTM):
            kept = sum((w * c for w, c in zip(weights, cell_states, strict=True)), torch.zeros(1, D))
            _, (last, new_cell) = cells(x[:, step : step + 1], (average[None], kept[None]))
            cell_states.append(new_cell[0])
        else:
            _, last = cells(x[:, step : step + 1], average[None])
        hidden.append(last[0])
        close(outputs[:, step], hidden[-1])
        close(trace[0][0, 0, step, : step + 1], weights.detach())
    assert trace[0].shape == (1, 1, 4, 4)
    assert not trace[0].triu(1).any()


def test_a_step_of_several_hypotheses_may_be_traced() -> None:
    model = build(recurrent_self_attention=True, num_decoder_layers=2)
    state = model.start(SOURCES)
    state.step(TARGETS[:, :1])
    state.reorder(torch.tensor([[0, 0, 0]] * 2))
    trace = AttentionTrace()
    state.step(torch.tensor([[3, 4, 5]] * 2), trace=trace)
    assert [weights.shape for weights in trace.decoder] == [(2, 1, 3, 2)] * 2
    assert [weights.shape for weights in trace.memory] == [(2, 1, 3, 5)]
    for weights in (*trace.decoder, *trace.memory):
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 3))


# --- training ---


def test_free_running_is_teacher_forcing_with_its_own_tokens() -> None:
    model = build(recurrent_self_attention=True)
    hidden = model.free_running(SOURCES, 6)
    own = model.project(hidden).argmax(-1)
    inputs = torch.cat([torch.full((2, 1), PAD), own[:, :-1]], dim=1)
    close(hidden, model.hidden(SOURCES, inputs))
    hidden.sum().backward()
    assert model.source_weight.grad is not None
    assert model.source_weight.grad[5].any()


def test_a_model_without_feedback_runs_its_cells_once_for_the_whole_target() -> None:
    calls: list[int] = []

    def count(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001
        calls.append(inputs[0].shape[1])

    for changes, expected in (({}, [4]), ({"input_feeding": True}, [1, 1, 1, 1])):
        model = build(**changes)
        calls.clear()
        handle = decoder_layer(model).cells.register_forward_hook(count)
        model(SOURCES, TARGETS)
        handle.remove()
        assert calls == expected


def test_lstm_forget_biases_start_at_one_and_recurrent_matrices_orthogonal() -> None:
    model = build_model(
        ModelConfig(
            kind="recurrent", source_vocabulary_size=V, target_vocabulary_size=V, d_model=8, num_encoder_layers=1
        )
    )
    assert isinstance(model, Recurrent)
    cells = decoder_layer(model).cells
    state = cells.state_dict()
    assert state["bias_ih_l0"].tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
    assert not state["bias_hh_l0"].any()
    for gate in state["weight_hh_l0"].split(8):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8))


def test_dropout_acts_in_training_alone() -> None:
    model = build(dropout=0.3, num_encoder_layers=2, num_decoder_layers=2)
    assert torch.equal(model(SOURCES, TARGETS), model(SOURCES, TARGETS))
    model.train()
    assert not torch.equal(model(SOURCES, TARGETS), model(SOURCES, TARGETS))


@pytest.mark.parametrize("attention", [{"recurrent_attention": "none"}, {"attention_score": "additive"}])
def test_attention_to_the_past_drops_weights_in_training_alone(attention: dict[str, Any]) -> None:
    model = build(recurrent_self_attention=True, attention_dropout=0.5, **attention)
    past = decoder_layer(model).past_attention
    assert past is not None
    torch.manual_seed(1)
    x, average, states = torch.randn(2, D), torch.randn(2, D), torch.randn(2, 40, D)
    kept = past(x, average, states, states)
    close(past(x, average, states, states), kept)
    past.train()
    assert not torch.allclose(past(x, average, states, states), past(x, average, states, states))
    mean = torch.stack([past(x, average, states, states) for _ in range(2_000)]).mean(dim=0)
    torch.testing.assert_close(mean, kept, atol=0.05, rtol=0.1)
    model.eval()
    cache, (memory, mask) = model.new_cache(), model.encode(SOURCES)
    steps = [model.decode(piece, memory, mask, cache=cache) for piece in TARGETS.split(1, dim=1)]
    close(torch.cat(steps, dim=1), model.hidden(SOURCES, TARGETS))


def test_the_memory_is_compared_through_keys_that_are_made_once() -> None:
    model = build(attention_score="additive")
    memory, mask = model.encode(SOURCES)
    cache = model.new_cache()
    model.decode(TARGETS[:, :1], memory, mask, cache=cache)
    kept = cache.keys
    model.decode(TARGETS[:, 1:2], memory, mask, cache=cache)
    assert cache.keys is kept


def test_a_mask_hides_words_of_the_source() -> None:
    model = build(recurrent_context="last", bidirectional=False)
    memory, mask = model.encode(SOURCES)
    other = memory.clone()
    other[0, 1] = 9.0
    hidden = AttentionMask(mask.allowed & (torch.arange(5) != 1))
    cache_free = model.decode(TARGETS, memory, hidden)
    close(model.decode(TARGETS, other, hidden), cache_free)


def test_a_configuration_of_another_kind_is_refused() -> None:
    with pytest.raises(TransduceError, match=r"has the kind recurrent, but `kind` of its configuration is transformer"):
        Recurrent(ModelConfig(source_vocabulary_size=9, target_vocabulary_size=9))
