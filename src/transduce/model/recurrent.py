"""The recurrent encoder–decoder that the Transformer replaced: LSTM or GRU, with or without attention.

Sutskever et al. 2014 and Cho et al. 2014 pass the source as one vector, Bahdanau et al. 2015 and Luong et al. 2015
attend to all its states, and Cheng et al. 2016 attend to the decoder's own past too.
Legend: B batch, S source length, T target length, W hypotheses of each sentence, N rows (B × W), D model width, V
vocabulary.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from transduce.model.attention import AttentionTrace
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding, VocabularyModel
from transduce.model.feed_forward import Dropout
from transduce.model.initialization import initialize
from transduce.model.masks import AttentionMask, padding_mask
from transduce.model.recurrent_layers import (
    CellState,
    MemoryAttention,
    RecurrentDecoderLayer,
    RecurrentEncoderLayer,
    join_step_weights,
    reversal_permutation,
)
from transduce.model.transformer import DecodingState, checked_ids


class RecurrentCache:
    """The state between decoding steps. Rows are hypotheses, sentence by sentence; W is 1 in training."""

    def __init__(self) -> None:
        self.layers: list[CellState] = []
        self.attentional: Tensor | None = None  # (N, 1, D), for input feeding
        self.context: Tensor | None = None  # (B, D), the summary of the source
        self.keys: Tensor | None = None  # (B, S, D), the projected memory
        self.width = 1
        self.length = 0

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis w of sentence b by hypothesis parents[b, w]; (B, W)."""
        first = torch.arange(len(parents), device=parents.device)[:, None] * self.width
        self._select_rows((first + parents).flatten())
        self.width = parents.shape[1]

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the sentences at these rows, in this order, and remove the others from the batch."""
        hypotheses = torch.arange(self.width, device=rows.device)
        self._select_rows((rows[:, None] * self.width + hypotheses).flatten())
        self.context = None if self.context is None else self.context.index_select(0, rows)
        self.keys = None if self.keys is None else self.keys.index_select(0, rows)

    def _select_rows(self, rows: Tensor) -> None:
        self.layers = [layer.select(rows) for layer in self.layers]
        if self.attentional is not None:
            self.attentional = self.attentional.index_select(0, rows)


class Recurrent(VocabularyModel):
    """A recurrent encoder and decoder with the methods `encode`, `decode` and `project`, as `Transformer` has them."""

    def __init__(self, config: ModelConfig) -> None:
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

    def forward(self, source_ids: Tensor, target_input_ids: Tensor) -> Tensor:
        """Return the logits of each next token by teacher forcing, (B, S) and (B, T) to (B, T, V).

        Raises:
            TransduceError: an id is not in the vocabulary, or there are more rows of one kind than of the other.
        """
        with checked_ids(self.config, source_ids, target_input_ids):
            return self.project(self.hidden(source_ids, target_input_ids))

    def hidden(self, source_ids: Tensor, target_input_ids: Tensor) -> Tensor:
        """Return the input of `project`, (B, T, D), by teacher forcing."""
        memory, memory_mask = self.encode(source_ids)
        return self.decode(target_input_ids, memory, memory_mask)

    def free_running(self, source_ids: Tensor, length: int) -> Tensor:
        """Return the input of `project`, (B, length, D), for a decoder whose inputs are its own best tokens."""
        memory, memory_mask = self.encode(source_ids)
        cache, outputs = self.new_cache(), list[Tensor]()
        tokens = torch.full_like(source_ids[:, :1], self.config.start_id)
        for _ in range(length):
            outputs.append(self.decode(tokens, memory, memory_mask, cache=cache))
            tokens = self.project(outputs[-1].detach()).argmax(dim=-1)
        return torch.cat(outputs, dim=1)

    def encode(self, source_ids: Tensor, *, trace: AttentionTrace | None = None) -> tuple[Tensor, AttentionMask]:  # noqa: ARG002
        """Return the memory (B, S, D) and the mask that hides its padding; there is no attention to trace."""
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
        """Return the input of `project`, (B, T, D), for inputs that follow those in the cache."""
        cache = self._started(self.new_cache() if cache is None else cache, memory, memory_mask)
        x = self.target_embedding(target_input_ids, self.target_weight)
        return self._run(x, memory, memory_mask, cache, trace)

    def new_cache(self) -> RecurrentCache:
        """Return an empty cache for `decode`."""
        return RecurrentCache()

    def start(self, source_ids: Tensor) -> DecodingState:
        """Encode sentences (B, S) and return a state that decodes them step by step."""
        return RecurrentState(self, source_ids)

    def step(
        self,
        tokens: Tensor,
        memory: Tensor,
        memory_mask: AttentionMask,
        cache: RecurrentCache,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Compute one step of W hypotheses of each sentence, (B, W) to (B, W, D)."""
        cache = self._started(cache, memory, memory_mask)
        x = self.target_embedding(tokens, self.target_weight).flatten(0, 1)[:, None]  # (N, 1, D)
        return self._run(x, memory, memory_mask, cache, trace).view(*tokens.shape, -1)

    def _started(self, cache: RecurrentCache, memory: Tensor, mask: AttentionMask) -> RecurrentCache:
        """Return the cache, with the decoder's initial state stored in it if it was empty."""
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
        """Return the source as one vector, (B, D): the mean of all states, or the last state of each direction."""
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
        """Compute outputs (N, T, D) from embedded inputs (N, T, D), in one call if steps are independent."""
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
        """Pass embedded inputs (N, T, D) through all layers; T is 1 if attention comes before the cells."""
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
        return self.finish(self.dropout(y))

    def _attend_to_memory(
        self, states: Tensor, memory: Tensor, mask: AttentionMask, cache: RecurrentCache, trace: AttentionTrace | None
    ) -> Tensor:
        """Return the result of attention from decoder states (N, T, D) to their sentence's memory, (N, T, D)."""
        if self.memory_attention is None or cache.keys is None:
            raise ValueError("there is no attention to the memory")
        rows = states.unflatten(0, (-1, cache.width)).flatten(1, 2)  # (B, W × T, D)
        weights_out = None if trace is None else trace.memory
        attended = self.memory_attention(rows, cache.keys, memory, mask, weights_out)
        return attended.reshape(states.shape)  # type: ignore[no-any-return]


def _join(steps: AttentionTrace, trace: AttentionTrace, *, calls: int, width: int) -> None:
    """Append the attention weights of several decoder steps to a trace, as those of a single call."""
    for of_calls, whole in ((steps.decoder, trace.decoder), (steps.memory, trace.memory)):
        layers = len(of_calls) // calls
        joined = [join_step_weights(of_calls[layer::layers]) for layer in range(layers)]
        if of_calls is steps.decoder and width > 1:  # (B × W, 1, T, t) to (B, 1, W × T, t)
            joined = [rows.unflatten(0, (-1, width)).transpose(1, 2).flatten(2, 3) for rows in joined]
        whole.extend(joined)


class RecurrentState(DecodingState):
    """A decoding state whose hypotheses are rows of the cells' states, which are copied when hypotheses branch."""

    def __init__(self, model: Recurrent, source_ids: Tensor) -> None:
        """Create a decoding state: encode the source ids (B, S)."""
        self.model = model
        self.memory, self.memory_mask = model.encode(source_ids)
        self.cache = model.new_cache()

    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """Return the input of `project` after each hypothesis' newest token, (B, W) to (B, W, D)."""
        return self.model.step(tokens, self.memory, self.memory_mask, self.cache, trace)

    @override
    def reorder(self, parents: Tensor) -> None:
        self.cache.reorder(parents)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        self.memory = self.memory.index_select(0, rows)
        self.memory_mask = AttentionMask(self.memory_mask.allowed.index_select(0, rows))
        self.cache.keep_sentences(rows)
