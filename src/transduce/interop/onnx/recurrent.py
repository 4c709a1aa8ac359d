"""Export recurrent encoder–decoders to two ONNX graphs: the encoder, and one step of the decoder with explicit state.

encoder.onnx maps `source_ids` to the decoder's other inputs and initial state. With attention it returns `memory_mask`
and `memory`, and `memory_key` if keys are projected; it returns `context` if every step uses the context.
decoder.onnx maps these, `target_ids` (one token per row) and the state to `logits` and the new state. The state has
`hidden.N` for each layer N, `cell.N` for an LSTM, `states.N` and `average.N` with attention to the past, and
`attentional` with input feeding. An output NAME of one step is the input past_NAME of the next.
Legend: B batch, S source length, T = 1 step, t past states, D model width, H cells of one direction.
"""

from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from transduce.interop.components import linear_weights
from transduce.interop.onnx.layers import (
    Graph,
    KeysAndValues,
    build_attention,
    build_bias,
    build_embedding,
    build_linear,
    build_output,
    build_output_scale,
    key_mask,
)
from transduce.model.recurrent import PastAttention, Recurrent, RecurrentDecoderLayer, RecurrentEncoderLayer

Cells = nn.LSTM | nn.GRU

# Indices of PyTorch's gates (LSTM: input, forget, cell, output; GRU: reset, update, new) in ONNX's order.
_LSTM_ORDER, _GRU_ORDER = (0, 3, 1, 2), (1, 0, 2)


class _State(NamedTuple):
    """The recurrent state of one decoder layer, as names of values in an ONNX graph of shape (batch, width).

    `cell` is an LSTM's; `states` and `average` exist if the layer attends to its past states.
    """

    hidden: str
    cell: str | None = None
    states: str | None = None
    """The name of all past hidden states, (batch, steps, width); with an LSTM's cells appended, (batch, steps, 2 ×
    width).
    """
    average: str | None = None
    """The name of the weighted average of past hidden states that the last step computed, (batch, width)."""

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield (kind, name in the ONNX graph), with a kind such as `hidden`, for each value of a layer's state."""
        yield from ((name, value) for name, value in self._asdict().items() if value is not None)


# --- the encoder ---


def build_recurrent_encoder(model: Recurrent) -> Graph:
    """Build the ONNX `Graph` of a recurrent encoder, which computes the inputs of the decoder's graph from source ids.

    The graph has these outputs:

    * If the decoder attends to the encoder's states: `memory_mask`, which is true where the source has no padding, and
      `memory`, the states. If the attention projects the states by a linear layer, also `memory_key`, the projection.
    * If every step of the decoder uses the context vector: `context`.
    * The initial state of each decoder layer, whose names begin with `past_`. With input feeding, also
      `past_attentional`, zeros for the previous attentional state.
    """
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
            keys = build_linear(graph, memory, linear_weights(model.memory_attention.key))
            graph.add_output(keys, "memory_key", np.float32, ("batch", "source", config.d_model))
    summary = _build_mean(graph, memory, present) if config.recurrent_context == "mean" else last
    context = summary
    if model.bridge is not None:
        context = graph.apply("Tanh", build_linear(graph, summary, linear_weights(model.bridge)))
    if model.gives_context:
        graph.add_output(context, "context", np.float32, ("batch", config.d_model))
    _add_initial_state(graph, model, context)
    return graph


def _build_encoder_layer(graph: Graph, x: str, lengths: str, layer: RecurrentEncoderLayer) -> tuple[str, str]:
    """Add a recurrent encoder layer, in one or both directions, to an ONNX graph.

    Args:
        graph: the graph to extend.
        x: the layer's input, (S, B, input width).
        lengths: length of each source, (B,).
        layer: the layer to convert.

    Returns:
        The names of its states, (S, B, width), and of its last state, (B, width). Both directions are concatenated.
    """
    directions = [_build_cells(graph, x, layer.ahead, lengths=lengths)]
    if layer.back is not None:
        directions.append(_build_cells(graph, x, layer.back, lengths=lengths, direction="reverse"))
    if len(directions) == 1:
        return directions[0][0], directions[0][1].hidden
    states = graph.apply("Concat", *(states for states, _ in directions), attributes={"axis": -1})
    return states, graph.apply("Concat", *(last.hidden for _, last in directions), attributes={"axis": -1})


def _build_mean(graph: Graph, memory: str, present: str) -> str:
    """Add the mean of the encoder's states over the positions without padding to an ONNX graph: (B, S, D) to (B, D).

    The name of the mean is returned.
    """
    weights = graph.cast(present, np.float32)  # (B, S)
    total = graph.apply("MatMul", graph.unsqueeze(weights, 1), memory)  # (B, 1, D)
    count = graph.apply("ReduceSum", weights, graph.integers(1))  # (B, 1)
    return graph.apply("Div", graph.apply("Squeeze", total, graph.integers(1)), count)


def _add_initial_state(graph: Graph, model: Recurrent, context: str) -> None:
    """Add the initial state of each decoder layer to the outputs of the encoder's graph.

    The initial state is the context vector, or zeros if `recurrent_context_to` is `steps`. Each output has the name of
    the decoder graph's input for it. With input feeding, zeros are added for the previous attentional state.

    Args:
        graph: the encoder's graph.
        model: the model.
        context: the context vector, (B, D).
    """
    config = model.config
    zeros = graph.apply("Sub", context, context)
    start = zeros if config.recurrent_context_to == "steps" else context
    for number, layer in enumerate(_decoder_layers(model)):
        state = _State(start, cell := start if isinstance(layer.cells, nn.LSTM) else None)
        if layer.past_attention is not None:
            state = state._replace(states=_past_entry(graph, start, cell), average=zeros)
        for name, value in state.named():
            graph.add_output(value, f"past_{name}.{number}", np.float32, _shape(name, config.d_model, cell, "one"))
    if config.input_feeding:
        graph.add_output(zeros, "past_attentional", np.float32, ("batch", config.d_model))


# --- the decoder ---


def build_recurrent_decoder(model: Recurrent) -> Graph:
    """Build the ONNX `Graph` of one step of a recurrent decoder, which computes the logits of the next token.

    The graph's inputs are the newest token, the outputs of the encoder's graph and the state. Its outputs are the
    logits and the new state.
    """
    graph, config = Graph("decoder"), model.config
    width = config.d_model
    ids = graph.add_input("target_ids", np.int64, ("batch", 1))
    attention = _CrossAttention(graph, model) if model.memory_attention is not None else None
    context = graph.add_input("context", np.float32, ("batch", width)) if model.gives_context else None
    states = [_add_state(graph, layer, number, width) for number, layer in enumerate(_decoder_layers(model))]
    x = build_embedding(graph, ids, graph.integers(0), model.target_embedding, model.target_weight, config)
    parts = [graph.apply("Squeeze", x, graph.integers(1))]  # (B, D) each
    if context is not None:
        parts.append(context)
    if attention is not None and model.attends_first:
        parts.append(attention.build(states[-1].hidden))
    if config.input_feeding:
        parts.append(graph.add_input("past_attentional", np.float32, ("batch", width)))
    y = graph.apply("Concat", *parts, attributes={"axis": -1})
    new_states = []
    for layer, state in zip(_decoder_layers(model), states, strict=True):
        y, new_state = _build_step(graph, y, layer, state)
        new_states.append(new_state)
    if model.attentional is not None and attention is not None:
        attended = parts[-1] if model.attends_first else attention.build(y)
        joined = graph.apply("Concat", attended, y, attributes={"axis": -1})
        y = graph.apply("Tanh", build_linear(graph, joined, linear_weights(model.attentional)))
    hidden = graph.unsqueeze(build_output_scale(graph, y, config), 1)  # (B, 1, D)
    graph.add_output(
        build_output(graph, hidden, model), "logits", np.float32, ("batch", 1, config.target_vocabulary_size)
    )
    for number, new_state in enumerate(new_states):
        for name, value in new_state.named():
            graph.add_output(value, f"{name}.{number}", np.float32, _shape(name, width, new_state.cell, "total"))
    if config.input_feeding:
        graph.add_output(y, "attentional", np.float32, ("batch", width))
    return graph


class _CrossAttention:
    """A recurrent decoder's attention to the encoder output, as operators and inputs of an ONNX graph."""

    def __init__(self, graph: Graph, model: Recurrent) -> None:
        assert model.memory_attention is not None
        self.graph, self.attention, self.width = graph, model.memory_attention, model.config.d_model
        shape = ("batch", "source", self.width)
        self.bias = build_bias(graph, key_mask(graph, graph.add_input("memory_mask", np.bool_, ("batch", "source"))))
        memory = keys = graph.add_input("memory", np.float32, shape)
        if isinstance(self.attention.key, nn.Linear):
            keys = graph.add_input("memory_key", np.float32, shape)
        self.known = KeysAndValues(graph.unsqueeze(keys, 1), graph.unsqueeze(memory, 1))  # (B, 1, S, D) each

    def build(self, state: str) -> str:
        """Add the attention of a decoder's state (B, D) to the encoder output to the graph; return the result's name.

        The result has the shape (B, D), too.
        """
        query = self.attention.query
        query_state = build_linear(self.graph, state, linear_weights(query)) if isinstance(query, nn.Linear) else state
        query_state = self.graph.unsqueeze(query_state, 1, 2)  # (B, 1, 1, D)
        attended = build_attention(self.graph, query_state, self.known, self.attention.score, self.width, self.bias)
        return self.graph.apply("Squeeze", attended, self.graph.integers(1, 2))


def _add_state(graph: Graph, layer: RecurrentDecoderLayer, number: int, width: int) -> _State:
    """Add a recurrent decoder layer's past state to the inputs of an ONNX graph, and return their names as `_State`.

    Args:
        graph: the graph to extend.
        layer: the layer, which determines the parts of its state.
        number: the number of the layer, which ends the names.
        width: width of the state.
    """
    cell = "cell" if isinstance(layer.cells, nn.LSTM) else None
    names = ["hidden", cell, *(("states", "average") if layer.past_attention is not None else ())]
    return _State(
        **{
            name: graph.add_input(f"past_{name}.{number}", np.float32, _shape(name, width, cell, "past"))
            for name in names
            if name is not None
        }
    )


def _build_step(graph: Graph, x: str, layer: RecurrentDecoderLayer, state: _State) -> tuple[str, _State]:
    """Add one step of a recurrent decoder layer to an ONNX graph.

    If the layer attends to its past states, a weighted average of them replaces the previous state.

    Args:
        graph: the graph to extend.
        x: the step's input, (B, input width).
        layer: the layer to convert.
        state: its state after the previous step.

    Returns:
        The name of the output, (B, D), and the new state as `_State`.
    """
    if layer.past_attention is None or state.states is None or state.average is None:
        _, new_state = _build_cells(graph, graph.unsqueeze(x, 0), layer.cells, state=state)
        return new_state.hidden, new_state
    width = layer.cells.hidden_size
    attended = _build_average(graph, x, layer.past_attention, state)  # (B, D or 2 D)
    past = _State(attended) if state.cell is None else _State(*graph.split(attended, [width, width]))
    _, new_state = _build_cells(graph, graph.unsqueeze(x, 0), layer.cells, state=past)
    newest = _past_entry(graph, new_state.hidden, new_state.cell)
    states = graph.apply("Concat", state.states, newest, attributes={"axis": 1})
    return new_state.hidden, new_state._replace(states=states, average=past.hidden)


def _build_average(graph: Graph, x: str, attention: PastAttention, state: _State) -> str:
    """Add a recurrent layer's attention to its past states to an ONNX graph.

    Args:
        graph: the graph to extend.
        x: the step's input, (B, input width). The input and the previous average determine the weights.
        attention: the module to convert.
        state: the layer's state with all past states.

    Returns:
        The name of the weighted average of the past states, (B, D), or (B, 2 D) if they include an LSTM's cells.
    """
    assert state.states is not None
    assert state.average is not None
    query = graph.apply(
        "Add",
        build_linear(graph, x, linear_weights(attention.from_input)),
        build_linear(graph, state.average, linear_weights(attention.from_average)),
    )
    width = attention.key.in_features
    hidden = state.states if state.cell is None else graph.split(state.states, [width, width])[0]
    keys = build_linear(graph, hidden, linear_weights(attention.key))
    cache = KeysAndValues(graph.unsqueeze(keys, 1), graph.unsqueeze(state.states, 1))
    average = build_attention(graph, graph.unsqueeze(query, 1, 2), cache, attention.score, width, None)
    return graph.apply("Squeeze", average, graph.integers(1, 2))


# --- cells ---


def _build_cells(
    graph: Graph,
    x: str,
    cells: Cells,
    *,
    lengths: str = "",
    direction: str = "forward",
    state: _State | None = None,
) -> tuple[str, _State]:
    """Add a recurrent layer in one direction, or one step of it, to an ONNX graph.

    Args:
        graph: the graph to extend.
        x: inputs, (length, batch, input width).
        cells: PyTorch's LSTM or GRU.
        lengths: lengths of the sentences, (batch,), int32; empty: no sentence is padded.
        direction: "forward", or "reverse" to run from each sentence's end.
        state: the initial state; None: zero.

    Returns:
        The names of all hidden states, (length, batch, hidden size), and the last state.
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
        results = graph.results("LSTM", values, 3, attributes)
    else:
        # PyTorch applies the reset gate after the linear layer.
        results = graph.results("GRU", values, 2, attributes | {"linear_before_reset": 1})
    states = graph.apply("Squeeze", results[0], graph.integers(1))  # (S, 1, B, H) -> (S, B, H)
    last = [graph.apply("Squeeze", each, graph.integers(0)) for each in results[1:]]  # (1, B, H) -> (B, H)
    return states, _State(last[0], last[1] if has_cell else None)


def _reordered(rows: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return the rows of an LSTM's or GRU's weight or bias as a tensor with the gates in another order.

    Args:
        rows: PyTorch's weight, in which each gate has an equal number of consecutive rows.
        order: PyTorch's index of each gate, in ONNX's order.
    """
    gates = rows.chunk(len(order))
    return torch.cat([gates[gate] for gate in order])


def _past_entry(graph: Graph, hidden: str, cell: str | None) -> str:
    """Convert a recurrent layer's state to an entry of its past states in an ONNX graph; return the entry's name.

    The entry is (B, 1, width). With an LSTM's cell it is (B, 1, 2 × width).
    """
    joined = hidden if cell is None else graph.apply("Concat", hidden, cell, attributes={"axis": -1})
    return graph.unsqueeze(joined, 1)


def _shape(name: str, width: int, cell: str | None, length: str) -> tuple[int | str, ...]:
    if name != "states":
        return ("batch", width)
    return ("batch", 1 if length == "one" else length, width if cell is None else 2 * width)


def _decoder_layers(model: Recurrent) -> list[RecurrentDecoderLayer]:
    return [cast(RecurrentDecoderLayer, layer) for layer in model.decoder_layers]
