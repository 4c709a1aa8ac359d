"""Define the recurrent encoder–decoder that the Transformer replaced: LSTM or GRU, with or without attention.

Sutskever et al. 2014 and Cho et al. 2014 pass the source as one vector. Bahdanau et al. 2015 and Luong et al. 2015
attend to all its states. Cheng et al. 2016 also attend to the decoder's past.
Legend: B batch, S source length, T target length, W hypotheses of each sentence, N rows (B × W), D model width, V
vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from transduce.model.attention import AttentionFunction, AttentionTrace, attend, build_score
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import Dropout
from transduce.model.initialization import initialize
from transduce.model.masks import AttentionMask, padding_mask
from transduce.model.transformer import DecodingState, SequenceToSequence

# --- attention with one head ---


class MemoryAttention(nn.Module):
    """Attention of decoder states to the encoder's output (Bahdanau et al. 2015, Luong et al. 2015).

    The score of a decoder state s and an encoder state h is s · h (`dot`), s · h times a factor (`scaled`), s W h
    (`general`) or v · tanh(W s + U h) (`additive`). The result is a weighted average of the encoder states, without a
    projection.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model
        additive = config.attention_score == "additive"
        self.query = nn.Linear(width, width, bias=False) if additive else nn.Identity()
        self.key = nn.Linear(width, width) if additive else nn.Identity()
        self.score = build_score(config, num_heads=1, d_k=width)
        self.dropout = Dropout(config.attention_dropout)

    def keys(self, memory: Tensor) -> Tensor:
        """Return the attention keys of the encoder's output, equal at every step: (B, S, D) to (B, S, D)."""
        return self.key(memory)  # type: ignore[no-any-return]

    def forward(
        self,
        states: Tensor,
        keys: Tensor,
        memory: Tensor,
        mask: AttentionMask,
        weights_out: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the result of attention from decoder states to the encoder's output.

        Args:
            states: Q decoder states of each sentence, (B, Q, D).
            keys: the result of the method `keys`, (B, S, D).
            memory: the encoder's output, (B, S, D).
            mask: hides the padding of the memory.
            weights_out: a list that receives the attention weights, (B, 1, Q, S).

        Returns:
            (B, Q, D).
        """
        compute: AttentionFunction = attend if self.score is None else self.score
        query = self.query(states)[:, None]  # (B, 1, Q, D)
        inputs = query, keys[:, None], memory[:, None], mask
        return compute(*inputs, dropout=self.dropout, weights_out=weights_out)[:, 0]


class PastAttention(nn.Module):
    """Attention of a recurrent cell to all its past states (Cheng et al. 2016, equation 4).

    The query is W_x x + W_h̃ h̃, from the input x and the average h̃ of the step before; the key of a past state h is
    W_h h.
    """

    def __init__(self, config: ModelConfig, input_width: int) -> None:
        super().__init__()
        width = config.d_model
        self.from_input = nn.Linear(input_width, width)
        self.from_average = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.score = build_score(config, num_heads=1, d_k=width)
        self.dropout = Dropout(config.attention_dropout)

    def forward(
        self, x: Tensor, average: Tensor, states: Tensor, values: Tensor, weights_out: list[Tensor] | None = None
    ) -> Tensor:
        """Return the average of past states from which the next step of the cell starts.

        Args:
            x: the step's input, (N, input width).
            average: the average that the step before started from, (N, D).
            states: all past states, (N, t, D).
            values: what is averaged: states and, with an LSTM, cells, (N, t, D or 2 D).
            weights_out: a list that receives the weights, (N, 1, 1, t).

        Returns:
            (N, D or 2 D).
        """
        compute: AttentionFunction = attend if self.score is None else self.score
        query = (self.from_input(x) + self.from_average(average))[:, None, None]  # (N, 1, 1, D)
        keys, values = self.key(states)[:, None], values[:, None]  # (N, 1, t, D or 2 D)
        return compute(query, keys, values, dropout=self.dropout, weights_out=weights_out)[:, 0, 0]


def join_step_weights(steps: list[Tensor]) -> Tensor:
    """Concatenate attention weights of decoding steps along the queries to (B, 1, T, keys), padded with zeros.

    The weights of each step are (B, 1, queries, keys); the number of keys may grow from step to step.
    """
    max_width = max(step.shape[-1] for step in steps)
    return torch.cat([nn.functional.pad(step, (0, max_width - step.shape[-1])) for step in steps], dim=2)


# --- layers ---


class CellState(NamedTuple):
    """The states of one layer of recurrent cells for N hypotheses; `hidden` is the hidden state, (N, D)."""

    hidden: Tensor
    cell: Tensor | None
    """The cell state of an LSTM, (N, D); None for a GRU."""
    past: Tensor | None = None
    """All hidden states so far, joined with an LSTM's cell states, (N, t, D or 2 D); None without attention to the
    past.
    """
    average: Tensor | None = None
    """The average of past states from which the last step started, (N, D); None without attention to the past."""

    def select(self, rows: Tensor) -> "CellState":
        """Return the state of the hypotheses at these row indices, in this order; rows may repeat."""
        cell, past, average = (None if part is None else part.index_select(0, rows) for part in self[1:])
        return CellState(self.hidden.index_select(0, rows), cell, past, average)


def build_cells(config: ModelConfig, input_width: int, width: int) -> nn.LSTM | nn.GRU:
    """Build a layer of LSTM or GRU cells, as configured, that reads vectors in one direction.

    `input_width` is the width of these vectors, and `width` that of the cells' state.
    """
    kind = nn.LSTM if config.recurrent_cell == "lstm" else nn.GRU
    return kind(input_width, width, batch_first=True)


class RecurrentEncoderLayer(nn.Module):
    """A recurrent encoder layer; if it is bidirectional, half of its cells read the source backward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model // 2 if config.bidirectional else config.d_model
        self.ahead = build_cells(config, config.d_model, width)
        self.back = build_cells(config, config.d_model, width) if config.bidirectional else None

    def forward(self, x: Tensor, reversal: Tensor) -> Tensor:
        """Compute the states of both directions, [forward; backward]: (B, S, D) to (B, S, D).

        Args:
            x: inputs, padded at the right.
            reversal: the indices of the positions in reversed order, (B, S), as `reversal_permutation` returns them.
                Padding keeps its index.
        """
        ahead: Tensor = self.ahead(x)[0]
        if self.back is None:
            return ahead
        back: Tensor = self.back(_reordered(x, reversal))[0]
        return torch.cat([ahead, _reordered(back, reversal)], dim=-1)


def _reordered(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order[..., None].expand(-1, -1, x.shape[-1]))


def reversal_permutation(present: Tensor) -> Tensor:
    """Return the permutation of positions, (B, S), that reverses each sentence and keeps its padding at the right.

    Args:
        present: True at positions that are not padding, (B, S).
    """
    index = torch.arange(present.shape[1], device=present.device)
    last = present.sum(dim=1, keepdim=True) - 1
    return torch.where(index <= last, last - index, index)


class RecurrentDecoderLayer(nn.Module):
    """A recurrent decoder layer, which computes single steps, or under teacher forcing all steps in one call."""

    def __init__(self, config: ModelConfig, input_width: int) -> None:
        super().__init__()
        self.cells = build_cells(config, input_width, config.d_model)
        self.past_attention = PastAttention(config, input_width) if config.recurrent_self_attention else None

    def begin(self, start: Tensor) -> CellState:
        """Return the `CellState` before the first step, made from one vector for each of N hypotheses, (N, D).

        The vector becomes the hidden state, and an LSTM's cell state too.
        """
        cell = start if isinstance(self.cells, nn.LSTM) else None
        if self.past_attention is None:
            return CellState(start, cell)
        return CellState(start, cell, _entry_of_past(start, cell), torch.zeros_like(start))

    def forward(self, x: Tensor, state: CellState, weights_out: list[Tensor] | None = None) -> tuple[Tensor, CellState]:
        """Compute T steps of N hypotheses: inputs (N, T, input width) to outputs (N, T, D) and the final state.

        `weights_out` receives the weights of attention to the past, if the layer has it.
        """
        if self.past_attention is None:
            return self._run(x, state)
        outputs, weights = [], None if weights_out is None else list[Tensor]()
        for step in x.split(1, dim=1):
            output, state = self._step_with_past(self.past_attention, step, state, weights)
            outputs.append(output)
        if weights_out is not None and weights:
            weights_out.append(join_step_weights(weights))
        return torch.cat(outputs, dim=1), state

    def _run(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        hidden = state.hidden[None].contiguous()  # (1, N, D)
        if state.cell is None:
            output, last = self.cells(x, hidden)
            return output, state._replace(hidden=last[0])
        output, (last, cell) = self.cells(x, (hidden, state.cell[None].contiguous()))
        return output, state._replace(hidden=last[0], cell=cell[0])

    def _step_with_past(
        self, attention: PastAttention, x: Tensor, state: CellState, weights_out: list[Tensor] | None
    ) -> tuple[Tensor, CellState]:
        """Compute one step of N hypotheses, (N, 1, input width), from an average of their past states.

        Returned are the output, (N, 1, D), and the new state.
        """
        if state.past is None or state.average is None:
            raise ValueError("the state was not made by this layer's `begin`")
        width = state.hidden.shape[-1]
        found = attention(x[:, 0], state.average, state.past[..., :width], state.past, weights_out)
        average = found[:, :width]
        cell = None if state.cell is None else found[:, width:]
        output, after = self._run(x, CellState(average, cell))
        past = torch.cat([state.past, _entry_of_past(after.hidden, after.cell)], dim=1)
        return output, CellState(after.hidden, after.cell, past, average)


def _entry_of_past(hidden: Tensor, cell: Tensor | None) -> Tensor:
    """Return the record of a past step, (N, 1, D or 2 D), from hidden states and, for an LSTM, cell states, (N, D)."""
    return (hidden if cell is None else torch.cat([hidden, cell], dim=-1))[:, None]


class RecurrentCache:
    """The state of a recurrent decoder between decoding steps, for B sentences with W hypotheses each.

    Tensors have one row for each hypothesis, sentence by sentence; in training a sentence has one hypothesis.
    """

    def __init__(self) -> None:
        self.layers: list[CellState] = []
        self.attentional: Tensor | None = None  # (N, 1, D), for input feeding
        self.context: Tensor | None = None  # (B, D), the summary of the source
        self.keys: Tensor | None = None  # (B, S, D), the projected memory
        self.width = 1
        self.length = 0

    def reorder(self, parents: Tensor) -> None:
        """Let hypothesis w of sentence b continue from the state of its hypothesis parents[b, w], (B, W)."""
        first = torch.arange(len(parents), device=parents.device)[:, None] * self.width
        self._select_rows((first + parents).flatten())
        self.width = parents.shape[1]

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the states of the sentences at these batch indices, in this order."""
        hypotheses = torch.arange(self.width, device=rows.device)
        self._select_rows((rows[:, None] * self.width + hypotheses).flatten())
        self.context = None if self.context is None else self.context.index_select(0, rows)
        self.keys = None if self.keys is None else self.keys.index_select(0, rows)

    def _select_rows(self, rows: Tensor) -> None:
        self.layers = [layer.select(rows) for layer in self.layers]
        if self.attentional is not None:
            self.attentional = self.attentional.index_select(0, rows)


class Recurrent(SequenceToSequence):
    """A recurrent encoder and decoder with the methods `encode`, `decode` and `project`, as `Transformer` has them."""

    _kind = "recurrent"

    def __init__(self, config: ModelConfig) -> None:
        """Build the model with random initial weights, float32.

        Args:
            config: its sizes and components, with `kind` = "recurrent".

        Raises:
            TransduceError: the configuration describes another kind of model.
        """
        super().__init__(config)
        width = config.d_model
        self.source_embedding = Embedding(config)
        self.target_embedding = Embedding(config)
        self.encoder_layers = nn.ModuleList(RecurrentEncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.bridge = None if config.recurrent_context == "last" else nn.Linear(width, width)
        self.gives_context = config.recurrent_context_to != "initial"
        self.attends_first = config.recurrent_attention == "bahdanau"
        inputs = 1 + self.gives_context + self.attends_first + config.input_feeding
        self.decoder_layers = nn.ModuleList(
            RecurrentDecoderLayer(config, width * (1 if number else inputs))
            for number in range(config.num_decoder_layers)
        )
        has_attention = config.recurrent_attention != "none"
        self.memory_attention = MemoryAttention(config) if has_attention else None
        # Luong et al. 2015, equation 5: the attentional vector is tanh(W [context; state]).
        self.attentional = nn.Linear(2 * width, width, bias=False) if has_attention else None
        self.dropout = Dropout(config.dropout)
        initialize(self)

    def free_running(self, source_ids: Tensor, length: int) -> Tensor:
        """Return the outputs (B, length, D), before the output projection, of a decoder that reads its own best tokens.

        Decoding starts with the start symbol, takes `length` steps, and continues after an end symbol.
        """
        memory, memory_mask = self.encode(source_ids)
        cache, outputs = self.new_cache(), list[Tensor]()
        tokens = torch.full_like(source_ids[:, :1], self.config.start_id)
        for _ in range(length):
            outputs.append(self.decode(tokens, memory, memory_mask, cache=cache))
            tokens = self.project(outputs[-1].detach()).argmax(dim=-1)
        return torch.cat(outputs, dim=1)

    def encode(self, source_ids: Tensor, *, trace: AttentionTrace | None = None) -> tuple[Tensor, AttentionMask]:  # noqa: ARG002
        """Return the encoder's output (B, S, D) and the mask that hides its padding, for source token ids (B, S).

        `trace` is ignored, because the encoder has no attention.
        """
        mask = padding_mask(source_ids, self.config.pad_id)
        reversal = reversal_permutation(mask.allowed[:, 0, 0])
        x = self.source_embedding(source_ids, self.source_weight)
        for number, layer in enumerate(self.encoder_layers):
            x = layer(self.dropout(x) if number else x, reversal)
        return x, mask

    def decode(
        self,
        target_input_ids: Tensor,
        memory: Tensor,
        memory_mask: AttentionMask,
        *,
        cache: RecurrentCache | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Return the decoder's outputs before the output projection, (B, T, D), for input ids (B, T).

        `memory` and `memory_mask` are what `encode` returns. With a cache, which is updated, the inputs follow the
        cached ones. `trace` receives the attention weights.
        """
        cache = self._started(self.new_cache() if cache is None else cache, memory, memory_mask)
        x = self.target_embedding(target_input_ids, self.target_weight)
        return self._run(x, memory, memory_mask, cache, trace)

    def new_cache(self) -> RecurrentCache:
        """Return an empty cache of recurrent states for the method `decode`."""
        return RecurrentCache()

    def start(self, source_ids: Tensor) -> DecodingState:
        """Encode sentences (B, S), and return a decoding state that translates them step by step."""
        return RecurrentState(self, source_ids)

    def step(
        self,
        tokens: Tensor,
        memory: Tensor,
        memory_mask: AttentionMask,
        cache: RecurrentCache,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Compute one decoding step for W hypotheses of each sentence: newest tokens (B, W) to outputs (B, W, D).

        `memory` and `memory_mask` are what `encode` returns, and the cache, which is updated, holds the earlier steps.
        `trace` receives the attention weights.
        """
        cache = self._started(cache, memory, memory_mask)
        x = self.target_embedding(tokens, self.target_weight).flatten(0, 1)[:, None]  # (N, 1, D)
        return self._run(x, memory, memory_mask, cache, trace).view(*tokens.shape, -1)

    def _started(self, cache: RecurrentCache, memory: Tensor, mask: AttentionMask) -> RecurrentCache:
        """Return the cache, after it is filled with the decoder's initial state if it was empty.

        The initial state is made from the encoder's output.
        """
        if cache.layers:
            return cache
        summary = self._summary(memory, mask)
        context = summary if self.bridge is None else torch.tanh(self.bridge(summary))
        start = torch.zeros_like(context) if self.config.recurrent_context_to == "steps" else context
        cache.layers = [layer.begin(start) for layer in self._layers()]
        cache.context = context if self.gives_context else None
        cache.keys = None if self.memory_attention is None else self.memory_attention.keys(memory)
        cache.attentional = torch.zeros_like(context)[:, None] if self.config.input_feeding else None
        return cache

    def _summary(self, memory: Tensor, mask: AttentionMask) -> Tensor:
        """Return one vector for each source, (B, D), as the setting `recurrent_context` asks.

        It is the mean of the encoder's states (`mean`) or else the last state. The last state of cells that read
        backward is that of the first token.
        """
        present = mask.allowed[:, 0, 0]  # (B, S)
        count = present.sum(dim=1)
        if self.config.recurrent_context == "mean":
            return (memory * present[..., None]).sum(dim=1) / count.clamp_min(1)[:, None]
        last = (count - 1).clamp_min(0)[:, None, None].expand(-1, 1, memory.shape[-1])
        ahead = memory.gather(1, last)[:, 0]  # (B, D)
        if not self.config.bidirectional:
            return ahead
        half = memory.shape[-1] // 2
        return torch.cat([ahead[:, :half], memory[:, 0, half:]], dim=-1)

    def _layers(self) -> list[RecurrentDecoderLayer]:
        return [layer for layer in self.decoder_layers if isinstance(layer, RecurrentDecoderLayer)]

    def _run(
        self, x: Tensor, memory: Tensor, mask: AttentionMask, cache: RecurrentCache, trace: AttentionTrace | None
    ) -> Tensor:
        """Compute outputs of N hypotheses from their embedded inputs, (N, T, D) to (N, T, D).

        All T steps are one call, unless a step's input depends on the output of the step before.
        """
        feeds_back = self.attends_first or self.config.input_feeding
        steps = x.split(1, dim=1) if feeds_back else (x,)
        weights = AttentionTrace()
        outputs = [self._advance(step, memory, mask, cache, None if trace is None else weights) for step in steps]
        cache.length += x.shape[1]
        if trace is not None:
            _join(weights, trace, calls=len(steps), width=cache.width)
        return torch.cat(outputs, dim=1)

    def _advance(
        self, x: Tensor, memory: Tensor, mask: AttentionMask, cache: RecurrentCache, trace: AttentionTrace | None
    ) -> Tensor:
        """Run all decoder layers and the attention on embedded inputs of N hypotheses, (N, T, D) to (N, T, D).

        If a step's input depends on the output of the step before, the caller passes one step at a time (T = 1).
        """
        parts = [x]
        if cache.context is not None:
            context = cache.context.repeat_interleave(cache.width, dim=0)
            parts.append(context[:, None].expand(-1, x.shape[1], -1))
        if self.attends_first:
            parts.append(self._attend_to_memory(cache.layers[-1].hidden[:, None], memory, mask, cache, trace))
        if cache.attentional is not None:
            parts.append(cache.attentional)
        y = torch.cat(parts, dim=-1)
        for number, layer in enumerate(self._layers()):
            weights_out = None if trace is None else trace.decoder
            y, cache.layers[number] = layer(self.dropout(y) if number else y, cache.layers[number], weights_out)
        if self.attentional is not None:
            attended = parts[-1] if self.attends_first else self._attend_to_memory(y, memory, mask, cache, trace)
            y = torch.tanh(self.attentional(torch.cat([attended, y], dim=-1)))
        if cache.attentional is not None:
            cache.attentional = y
        return self.scale_output(self.dropout(y))

    def _attend_to_memory(
        self, states: Tensor, memory: Tensor, mask: AttentionMask, cache: RecurrentCache, trace: AttentionTrace | None
    ) -> Tensor:
        """Return the result of attention from N hypotheses' states to the encoder's output: (N, T, D) to (N, T, D)."""
        if self.memory_attention is None or cache.keys is None:
            raise ValueError("there is no attention to the memory")
        rows = states.unflatten(0, (-1, cache.width)).flatten(1, 2)  # (B, W × T, D)
        weights_out = None if trace is None else trace.memory
        attended = self.memory_attention(rows, cache.keys, memory, mask, weights_out)
        return attended.reshape(states.shape)  # type: ignore[no-any-return]


def _join(steps: AttentionTrace, trace: AttentionTrace, *, calls: int, width: int) -> None:
    """Join the attention weights of several decoder calls, and append the result to a trace.

    The trace is then equal to that of a single call.

    Args:
        steps: the weights of all calls, one call after another. Each call appended one tensor for each layer.
        trace: receives the joined weights.
        calls: the number of calls.
        width: the number of hypotheses of each sentence.
    """
    for of_calls, whole in ((steps.decoder, trace.decoder), (steps.memory, trace.memory)):
        layers = len(of_calls) // calls
        joined = [join_step_weights(of_calls[layer::layers]) for layer in range(layers)]
        if of_calls is steps.decoder and width > 1:  # (B × W, 1, T, t) to (B, 1, W × T, t)
            joined = [rows.unflatten(0, (-1, width)).transpose(1, 2).flatten(2, 3) for rows in joined]
        whole.extend(joined)


class RecurrentState(DecodingState):
    """A decoding state of a recurrent model."""

    def __init__(self, model: Recurrent, source_ids: Tensor) -> None:
        """Create a decoding state: encode the source token ids (B, S) with `model`."""
        self.model = model
        self.memory, self.memory_mask = model.encode(source_ids)
        self.cache = model.new_cache()

    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """Return the decoder's outputs for the newest token of W hypotheses per sentence: (B, W) to (B, W, D).

        `trace` receives the attention weights.
        """
        return self.model.step(tokens, self.memory, self.memory_mask, self.cache, trace)

    @override
    def reorder(self, parents: Tensor) -> None:
        self.cache.reorder(parents)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        self.memory = self.memory.index_select(0, rows)
        self.memory_mask = AttentionMask(self.memory_mask.allowed.index_select(0, rows))
        self.cache.keep_sentences(rows)
