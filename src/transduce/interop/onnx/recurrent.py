"""Recurrent encoder-decoders as two ONNX graphs: an encoder, and one step of the decoder with its state in and out.

encoder.onnx takes `source_ids` and gives what the decoder needs of them: `memory_mask` and `memory` where there is
attention (`memory_key` too, where states are compared with something else), `context` where every step is given it, and
the state before the first step. decoder.onnx takes all this, `target_ids` (one piece of each row), and the state; it
gives `logits` and the state after the piece, for each layer N `hidden.N`, an LSTM's `cell.N`, and with attention to the
past `states.N` and `average.N`; with input feeding `attentional`. What it gives under a name it takes as past_ with
that name.
Legend: B batch, S source length, T = 1 step, t past states, D model width, H cells of one direction.
"""

from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from transduce.interop.components import linear_of
from transduce.interop.onnx.graph import Graph
from transduce.interop.onnx.layers import (
    KeysAndValues,
    build_attention,
    build_bias,
    build_embedding,
    build_finish,
    build_linear,
    build_output,
    of_keys,
)
from transduce.model.recurrent import Recurrent
from transduce.model.recurrent_layers import PastAttention, RecurrentDecoderLayer, RecurrentEncoderLayer

Cells = nn.LSTM | nn.GRU

# PyTorch orders an LSTM's gates input, forget, cell, output, and a GRU's reset, update, new; ONNX otherwise.
_LSTM_ORDER, _GRU_ORDER = (0, 3, 1, 2), (1, 0, 2)


class _State(NamedTuple):
    """What one layer knows of its past; values of the graph, (B, D) each."""

    hidden: str
    cell: str | None = None
    states: str | None = None
    """All states so far, and an LSTM's cells beside them, (B, t, D or 2 D)."""
    average: str | None = None

    def named(self) -> Iterator[tuple[str, str]]:
        """Those that there are."""
        yield from ((name, value) for name, value in self._asdict().items() if value is not None)


# --- the encoder ------------------------------------------------------------------------------------------------


def build_recurrent_encoder(model: Recurrent) -> Graph:
    """The graph of `encode` and of the state before the first step."""
    graph, config = Graph("encoder"), model.config
    ids = graph.add_input("source_ids", np.int64, ("batch", "source"))
    present = graph.apply("Not", graph.apply("Equal", ids, graph.integer(config.pad_id)))
    lengths = graph.apply("ReduceSum", graph.cast(present, np.int32), graph.integers(1), attributes={"keepdims": 0})
    x = build_embedding(graph, ids, graph.integers(0), model.source_embedding, model.source_weight, config)
    x = graph.transpose(x, 1, 0, 2)  # (S, B, D)
    last = ""
    for layer in model.encoder_layers:
        x, last = _build_encoder_layer(graph, x, lengths, cast(RecurrentEncoderLayer, layer))
    memory = graph.transpose(x, 1, 0, 2)  # (B, S, D)
    if model.memory_attention is not None:
        graph.add_output(present, "memory_mask", np.bool_, ("batch", "source"))
        graph.add_output(memory, "memory", np.float32, ("batch", "source", config.d_model))
        if isinstance(model.memory_attention.key, nn.Linear):
            keys = build_linear(graph, memory, linear_of(model.memory_attention.key))
            graph.add_output(keys, "memory_key", np.float32, ("batch", "source", config.d_model))
    summary = _build_mean(graph, memory, present) if config.recurrent_context == "mean" else last
    context = summary
    if model.bridge is not None:
        context = graph.apply("Tanh", build_linear(graph, summary, linear_of(model.bridge)))
    if model.gives_context:
        graph.add_output(context, "context", np.float32, ("batch", config.d_model))
    _add_first_state(graph, model, context)
    return graph


def _build_encoder_layer(graph: Graph, x: str, lengths: str, layer: RecurrentEncoderLayer) -> tuple[str, str]:
    """States (S, B, D), and the last one that each direction reached, (B, D)."""
    found = [_build_cells(graph, x, layer.ahead, lengths=lengths)]
    if layer.back is not None:
        found.append(_build_cells(graph, x, layer.back, lengths=lengths, direction="reverse"))
    if len(found) == 1:
        return found[0][0], found[0][1].hidden
    states = graph.apply("Concat", *(states for states, _ in found), attributes={"axis": -1})
    return states, graph.apply("Concat", *(last.hidden for _, last in found), attributes={"axis": -1})


def _build_mean(graph: Graph, memory: str, present: str) -> str:
    """Over the positions that are no padding: (B, S, D) to (B, D)."""
    weights = graph.cast(present, np.float32)  # (B, S)
    total = graph.apply("MatMul", graph.unsqueeze(weights, 1), memory)  # (B, 1, D)
    count = graph.apply("ReduceSum", weights, graph.integers(1))  # (B, 1)
    return graph.apply("Div", graph.apply("Squeeze", total, graph.integers(1)), count)


def _add_first_state(graph: Graph, model: Recurrent, context: str) -> None:
    """As each decoder layer's `begin` makes it, under the names that the decoder takes."""
    config = model.config
    zeros = graph.apply("Sub", context, context)
    start = zeros if config.recurrent_context_to == "steps" else context
    for number, layer in enumerate(_decoder_layers(model)):
        cell = start if isinstance(layer.cells, nn.LSTM) else None
        state = _State(start, cell)
        if layer.past_attention is not None:
            state = _State(start, cell, _remembered(graph, start, cell), zeros)
        for name, value in state.named():
            graph.add_output(value, f"past_{name}.{number}", np.float32, _shape(name, config.d_model, cell, "one"))
    if config.input_feeding:
        graph.add_output(zeros, "past_attentional", np.float32, ("batch", config.d_model))


# --- the decoder ------------------------------------------------------------------------------------------------


def build_recurrent_decoder(model: Recurrent) -> Graph:
    """The graph of one step of `decode`, and of `project`."""
    graph, config = Graph("decoder"), model.config
    width = config.d_model
    ids = graph.add_input("target_ids", np.int64, ("batch", 1))
    look = _Look(graph, model) if model.memory_attention is not None else None
    context = graph.add_input("context", np.float32, ("batch", width)) if model.gives_context else None
    states = [_add_state(graph, layer, number, width) for number, layer in enumerate(_decoder_layers(model))]
    x = build_embedding(graph, ids, graph.integers(0), model.target_embedding, model.target_weight, config)
    parts = [graph.apply("Squeeze", x, graph.integers(1))]  # (B, D) each
    if context is not None:
        parts.append(context)
    if look is not None and model.attends_first:
        parts.append(look.build(states[-1].hidden))
    if config.input_feeding:
        parts.append(graph.add_input("past_attentional", np.float32, ("batch", width)))
    y = graph.apply("Concat", *parts, attributes={"axis": -1})
    after = []
    for layer, state in zip(_decoder_layers(model), states, strict=True):
        y, new = _build_step(graph, y, layer, state)
        after.append(new)
    if model.attentional is not None and look is not None:
        found = parts[-1] if model.attends_first else look.build(y)
        joined = graph.apply("Concat", found, y, attributes={"axis": -1})
        y = graph.apply("Tanh", build_linear(graph, joined, linear_of(model.attentional)))
    hidden = graph.unsqueeze(build_finish(graph, y, config), 1)  # (B, 1, D)
    graph.add_output(
        build_output(graph, hidden, model), "logits", np.float32, ("batch", 1, config.target_vocabulary_size)
    )
    for number, new in enumerate(after):
        for name, value in new.named():
            graph.add_output(value, f"{name}.{number}", np.float32, _shape(name, width, new.cell, "total"))
    if config.input_feeding:
        graph.add_output(y, "attentional", np.float32, ("batch", width))
    return graph


class _Look:
    """What states find in the memory."""

    def __init__(self, graph: Graph, model: Recurrent) -> None:
        assert model.memory_attention is not None
        self.graph, self.attention, self.width = graph, model.memory_attention, model.config.d_model
        shape = ("batch", "source", self.width)
        self.bias = build_bias(graph, of_keys(graph, graph.add_input("memory_mask", np.bool_, ("batch", "source"))))
        memory = keys = graph.add_input("memory", np.float32, shape)
        if isinstance(self.attention.key, nn.Linear):
            keys = graph.add_input("memory_key", np.float32, shape)
        self.known = KeysAndValues(graph.unsqueeze(keys, 1), graph.unsqueeze(memory, 1))  # (B, 1, S, D) each

    def build(self, state: str) -> str:
        """(B, D) to (B, D)."""
        query = self.attention.query
        asked = build_linear(self.graph, state, linear_of(query)) if isinstance(query, nn.Linear) else state
        asked = self.graph.unsqueeze(asked, 1, 2)  # (B, 1, 1, D)
        found = build_attention(self.graph, asked, self.known, self.attention.score, self.width, self.bias)
        return self.graph.apply("Squeeze", found, self.graph.integers(1, 2))


def _add_state(graph: Graph, layer: RecurrentDecoderLayer, number: int, width: int) -> _State:
    """The state of a layer as it is given."""
    names = ["hidden", *(["cell"] if isinstance(layer.cells, nn.LSTM) else [])]
    names += ["states", "average"] if layer.past_attention is not None else []
    cell = "cell" if "cell" in names else None
    return _State(
        **{
            name: graph.add_input(f"past_{name}.{number}", np.float32, _shape(name, width, cell, "past"))
            for name in names
        }
    )


def _build_step(graph: Graph, x: str, layer: RecurrentDecoderLayer, state: _State) -> tuple[str, _State]:
    """One step of a layer: (B, its width) to (B, D), and the state after it."""
    if layer.past_attention is None or state.states is None or state.average is None:
        _, after = _build_cells(graph, graph.unsqueeze(x, 0), layer.cells, state=state)
        return after.hidden, after
    width = layer.cells.hidden_size
    found = _build_average(graph, x, layer.past_attention, state)  # (B, D or 2 D)
    cell = None
    average = found
    if state.cell is not None:
        average, cell = graph.split(found, [width, width])
    _, after = _build_cells(graph, graph.unsqueeze(x, 0), layer.cells, state=_State(average, cell))
    newest = _remembered(graph, after.hidden, after.cell)
    states = graph.apply("Concat", state.states, newest, attributes={"axis": 1})
    return after.hidden, _State(after.hidden, after.cell, states, average)


def _build_average(graph: Graph, x: str, attention: PastAttention, state: _State) -> str:
    """What `PastAttention` finds among the past states."""
    assert state.states is not None
    assert state.average is not None
    asked = graph.apply(
        "Add",
        build_linear(graph, x, linear_of(attention.from_input)),
        build_linear(graph, state.average, linear_of(attention.from_average)),
    )
    width = attention.key.in_features
    hidden = state.states if state.cell is None else graph.split(state.states, [width, width])[0]
    keys = build_linear(graph, hidden, linear_of(attention.key))
    known = KeysAndValues(graph.unsqueeze(keys, 1), graph.unsqueeze(state.states, 1))
    found = build_attention(graph, graph.unsqueeze(asked, 1, 2), known, attention.score, width, None)
    return graph.apply("Squeeze", found, graph.integers(1, 2))


# --- cells ------------------------------------------------------------------------------------------------------


def _build_cells(
    graph: Graph,
    x: str,
    cells: Cells,
    *,
    lengths: str = "",
    direction: str = "forward",
    state: _State | None = None,
) -> tuple[str, _State]:
    """One layer in one direction.

    Args:
        graph: to build in.
        x: inputs, (S, B, their width).
        cells: PyTorch's.
        lengths: of the sentences, (B,), int32; empty: all are whole.
        direction: forward, or reverse: from each sentence's end.
        state: before the first step; None: zero.

    Returns:
        All states, (S, B, H), and the last one.
    """
    has_cell = isinstance(cells, nn.LSTM)
    order = _LSTM_ORDER if has_cell else _GRU_ORDER
    parameters = {name: _reordered(tensor.detach(), order) for name, tensor in cells.named_parameters()}
    input_weight, weight, input_bias, bias = (
        parameters[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    weights = (input_weight[None], weight[None], torch.cat([input_bias, bias])[None])
    values = [x, *map(graph.weight, weights), lengths]
    if state is not None:
        values.append(graph.unsqueeze(state.hidden, 0))
        if state.cell is not None:
            values.append(graph.unsqueeze(state.cell, 0))
    attributes = {"hidden_size": cells.hidden_size, "direction": direction}
    if has_cell:
        found = graph.results("LSTM", values, 3, attributes)
    else:
        # PyTorch multiplies by the reset gate after the linear map.
        found = graph.results("GRU", values, 2, attributes | {"linear_before_reset": 1})
    states = graph.apply("Squeeze", found[0], graph.integers(1))  # (S, 1, B, H) -> (S, B, H)
    last = [graph.apply("Squeeze", each, graph.integers(0)) for each in found[1:]]  # (1, B, H) -> (B, H)
    return states, _State(last[0], last[1] if has_cell else None)


def _reordered(rows: Tensor, order: tuple[int, ...]) -> Tensor:
    """The rows of each gate, in another order of gates."""
    gates = rows.chunk(len(order))
    return torch.cat([gates[gate] for gate in order])


def _remembered(graph: Graph, hidden: str, cell: str | None) -> str:
    """One entry of the past, (B, 1, D or 2 D)."""
    joined = hidden if cell is None else graph.apply("Concat", hidden, cell, attributes={"axis": -1})
    return graph.unsqueeze(joined, 1)


def _shape(name: str, width: int, cell: str | None, length: str) -> tuple[int | str, ...]:
    if name != "states":
        return ("batch", width)
    return ("batch", 1 if length == "one" else length, width if cell is None else 2 * width)


def _decoder_layers(model: Recurrent) -> list[RecurrentDecoderLayer]:
    return [cast(RecurrentDecoderLayer, layer) for layer in model.decoder_layers]
