"""Decode on a CPU with as few PyTorch operations as possible: encoder, decoder steps and KV cache.

`EAGER` lists the models. `EagerState` computes the same function as `MemoryState`, but writes out the work of a decoder
layer, B × W rows at a time, without what only training or other components need.

Legend: B sentences, W hypotheses of each, S source length, L cached positions, D model width, H heads, K width of a
head's keys and of its values.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.kernels.prepacked import CachedAttention, PrepackedCrossAttention
from transduce.model.attention import AttentionTrace, MultiHeadAttention
from transduce.model.layer_graph import description_of, table
from transduce.model.layers import DecoderLayer, EncoderLayer, each_layer
from transduce.model.masks import AttentionMask, padding_mask
from transduce.model.transformer import Ancestry, Transformer

# --- KV cache with slots ---
# Each layer has one tensor, from which finished sentences are removed without copying the others.
# Legend: B sentences, W hypotheses of each, H heads, L cached positions, K width of a head's keys and of its values.


_FIRST_CAPACITY = 32  # positions


class Slots:
    """A map from the rows of a batch to cache slots (rows of the cache tensors), compacted when batch rows are removed.

    The last rows move into the slots of removed rows.
    """

    def __init__(self, rows: int) -> None:
        self.count = rows
        self._slot_of_row: Tensor | None = None  # (B,); None: each row in its own slot
        self._row_of_slot: Tensor | None = None  # (B,)

    def to_slots(self, values: Tensor) -> Tensor:
        """Reorder the first axis of a tensor from batch rows to cache slots."""
        return values if self._row_of_slot is None else values.index_select(0, self._row_of_slot)

    def to_rows(self, values: Tensor) -> Tensor:
        """Reorder the first axis of a tensor from cache slots to batch rows."""
        return values if self._slot_of_row is None else values.index_select(0, self._slot_of_row)

    def remove_other_rows(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Keep only these rows of the batch, in this order.

        Returns:
            The slots to fill and the slots to copy from, or None if rows are repeated: then `select` returns each new
            row's slot.
        """
        slots = rows if self._slot_of_row is None else self._slot_of_row.index_select(0, rows)
        count, kept = len(slots), slots.tolist()
        self.count = count
        if len(set(kept)) < count:  # copies of a row
            return None
        holes = sorted(set(range(count)).difference(kept))
        moved = [slot for slot in kept if slot >= count]
        new_slot = dict(zip(moved, holes, strict=True))
        new = [new_slot.get(slot, slot) for slot in kept]
        self._record_slots(new, rows.device)
        return _indices(holes, rows.device), _indices(moved, rows.device)

    def select(self, rows: Tensor) -> Tensor:
        """Return the current slot of each new row, for use if `remove_other_rows` returned None.

        Afterwards each row is in its own slot.
        """
        slots = rows if self._slot_of_row is None else self._slot_of_row.index_select(0, rows)
        self._slot_of_row = self._row_of_slot = None
        return slots

    def _record_slots(self, slot_of_row: list[int], device: torch.device) -> None:
        """Store the cache slot of each row of the batch, or None if row n is in slot n for every n."""
        if slot_of_row == list(range(len(slot_of_row))):
            self._slot_of_row = self._row_of_slot = None
            return
        self._slot_of_row = _indices(slot_of_row, device)
        self._row_of_slot = self._slot_of_row.argsort()


def _indices(values: list[int], device: torch.device) -> Tensor:
    """Return a list of indices as an int64 tensor on a device."""
    return torch.tensor(values, dtype=torch.int64, device=device)


class SlotCache:
    """The cached keys and values of one attention module, with one slot (row) for each sentence."""

    def __init__(self, keys_values: Tensor) -> None:
        """Create a cache that contains keys and values (2, B, H, L, K); L may be 0."""
        self.length = keys_values.shape[3]
        self._set_buffer(keys_values.contiguous(), keys_values.shape[1])

    def append(self, keys_values: Tensor) -> None:
        """Append keys and values of new positions, (2, B, H, n, K), to the cache."""
        count = keys_values.shape[3]
        if self.length + count > self._buffer.shape[3]:
            self._enlarge(max(_FIRST_CAPACITY, 2 * (self.length + count)))
        self._live.narrow(3, self.length, count).copy_(keys_values)
        self.length += count

    def content(self) -> tuple[Tensor, Tensor]:
        """Return the cached keys and values, (B × H, L, K) each."""
        return self._keys.narrow(1, 0, self.length), self._values.narrow(1, 0, self.length)

    def move(self, holes: Tensor, moved: Tensor, rows: int) -> None:
        """Copy the cache slots `moved` to the slots `holes`, and drop all slots from `rows` on."""
        if len(moved):
            used = self._buffer.narrow(3, 0, self.length)
            used.index_copy_(1, holes, used.index_select(1, moved))
        self._set_buffer(self._buffer, rows)

    def select(self, slots: Tensor) -> None:
        """Keep only the rows of the cache at these slots, in this order; they become slots 0, 1 and so on."""
        self._set_buffer(self._buffer.narrow(3, 0, self.length).index_select(1, slots), len(slots))

    def _set_buffer(self, buffer: Tensor, rows: int) -> None:
        """Make a tensor the cache's buffer, and create views of its first `rows` slots (rows)."""
        self.rows = rows
        self._buffer = buffer  # (2, at least B, H, capacity, K)
        self._live = buffer.narrow(1, 0, rows)  # (2, B, H, capacity, K)
        self._keys, self._values = self._live.flatten(1, 2).unbind(0)  # (B × H, capacity, K) each

    def _enlarge(self, positions: int) -> None:
        """Enlarge the cache's buffer to a capacity of `positions` positions."""
        two, _, heads, _, width = self._buffer.shape
        enlarged = self._buffer.new_empty(two, self.rows, heads, positions, width)
        enlarged[:, :, :, : self.length] = self._live[:, :, :, : self.length]
        self._set_buffer(enlarged, self.rows)


# --- encoder without padding ---
# Only attention looks at several positions. The rest leaves padding out, and takes a few hundred positions at a time,
# so that results between two GEMMs stay in the processor's cache.
# Legend: B sentences, S source length, N tokens that are not padding, D model width, H heads, K width of a head.


_ROWS_PER_CHUNK = 128


def encode_without_padding(model: Transformer, source_ids: Tensor) -> tuple[Tensor, AttentionMask]:
    """Return the encoder output (B, S, D), zero at padding, and the mask that hides padding.

    Args:
        model: a model that `supports` accepts.
        source_ids: padded at the right, (B, S).
    """
    mask = padding_mask(source_ids, model.config.pad_id)
    batch, length = source_ids.shape
    present = mask.allowed.flatten().nonzero()[:, 0]  # (N,)
    embedded = model.source_embedding(source_ids, model.source_weight).flatten(0, 1)  # (B × S, D)
    x = embedded.index_select(0, present)  # (N, D)
    bias = None
    if len(present) < batch * length:
        bias = mask.bias(x.dtype).expand(-1, model.config.num_heads, -1, -1).flatten(0, 1)  # (B × H, 1, S)
    positions = _Positions(present, batch, length, bias)
    for layer in each_layer(model.encoder_layers, model.config.num_encoder_layers):
        assert isinstance(layer, EncoderLayer)
        x = _feed_forward(layer, _attention(layer, x, positions))
    memory = embedded.new_zeros(batch * length, x.shape[1])
    memory.index_copy_(0, present, model.encoder_norm(x))
    return memory.unflatten(0, (batch, length)), mask


class _Positions:
    """The indices of non-padding tokens, and the attention bias (B × H, 1, S) that masks padding."""

    def __init__(self, present: Tensor, batch: int, length: int, bias: Tensor | None) -> None:
        self.present = present
        self.batch = batch
        self.length = length
        self.bias = bias


def _attention(layer: EncoderLayer, x: Tensor, positions: _Positions) -> Tensor:
    """Compute self-attention with its residual connection, (N, D) to (N, D)."""
    attention, residual = layer.self_attention, layer.self_attention_residual
    heads, width = attention.num_heads, attention.d_k
    padded = x.new_zeros(positions.batch * positions.length, 3 * heads * width)
    for rows, at in zip(_split_rows(x), _split_rows(positions.present), strict=True):
        padded.index_copy_(0, at, attention.projection(residual.norm_before(rows)))
    by_head = padded.view(positions.batch, positions.length, 3, heads, width).permute(2, 0, 3, 1, 4)
    query, key, value = by_head.reshape(3, positions.batch * heads, positions.length, width).unbind(0)
    bias, beta = (x.new_zeros(1), 0.0) if positions.bias is None else (positions.bias, 1.0)
    scores = torch.baddbmm(bias, query, key.transpose(1, 2), beta=beta, alpha=1.0 / math.sqrt(width))  # (B × H, S, S)
    heads_out = torch.bmm(scores.softmax(dim=-1), value)  # (B × H, S, K)
    joined = heads_out.view(positions.batch, heads, positions.length, width).transpose(1, 2).reshape(len(padded), -1)
    joined = joined.index_select(0, positions.present)  # (N, H × K)
    parts = zip(_split_rows(x), _split_rows(joined), strict=True)
    return torch.cat([residual.norm_after(rows + attention.output(each)) for rows, each in parts])


def _feed_forward(layer: EncoderLayer, x: Tensor) -> Tensor:
    """Compute the feed-forward network with its residual connection, (N, D) to (N, D)."""
    residual = layer.feed_forward_residual
    return torch.cat(
        [residual.norm_after(rows + layer.feed_forward(residual.norm_before(rows))) for rows in _split_rows(x)]
    )


def _split_rows(x: Tensor) -> tuple[Tensor, ...]:
    """Split rows into large chunks of equal size, since GEMMs of few rows sum in another order."""
    return x.tensor_split(max(1, len(x) // _ROWS_PER_CHUNK))


# --- decoding state ---


Projection = Callable[[Tensor], Tensor]


EAGER = table(
    "the eager decoder",
    class_="Transformer PrepackedTransformer",
    parametrization="LowRankUpdate",
    linear_layers="Linear NativeLinear Int8Linear",
    output_projection="Linear NativeVocabulary Int8Linear",
    positions="sinusoidal learned none",
    attention_window="none",
    token_types="none",
    norm="layer rms",
    norm_order="pre post",
    activation="relu gelu gelu-tanh silu swiglu geglu geglu-tanh reglu",
    attention_score="scaled",
    attention_kind="soft",
    attention_scale="default",
    key_value_heads="equal",
    value_width="equal",
)
"""The models that `EagerState` computes."""


def why_not_eager(model: nn.Module) -> str | None:
    """Return a clause that says why `EagerState` cannot decode a model as it is now, or None if it can."""
    described = description_of(model)
    if (reason := described.refusal(EAGER)) is not None:
        return reason
    if described.is_training:
        return "the model is in training mode"
    device = next(model.parameters()).device.type
    return None if device == "cpu" else f"the model is on {device}"


def supports(model: nn.Module) -> TypeGuard[Transformer]:
    """Return whether `EagerState` can decode a model as it is now."""
    return why_not_eager(model) is None


class EagerLayer:
    """The linear layers and norms of a decoder layer as plain functions."""

    def __init__(self, layer: DecoderLayer) -> None:
        self_attention, memory = layer.self_attention, layer.memory_attention
        self.project: Projection = self_attention.projection.forward
        self.round_to_cache_dtype: Projection | None = (
            self_attention.round_to_cache_dtype if isinstance(self_attention, CachedAttention) else None
        )
        self.output: Projection = self_attention.output.forward
        self.query, self.key_value = cross_attention_projections(memory)
        self.memory_output: Projection = memory.output.forward
        self.feed_forward: Projection = layer.feed_forward.forward
        residuals = (layer.self_attention_residual, layer.memory_attention_residual, layer.feed_forward_residual)
        self.before = [_norm(residual.norm_before) for residual in residuals]
        self.after = [_norm(residual.norm_after) for residual in residuals]


def cross_attention_projections(attention: MultiHeadAttention) -> tuple[Projection, Projection]:
    """Return the projections to queries, (…, D) to (…, H × K), and to keys and values, (…, D) to (…, 2 × H × K)."""
    if isinstance(attention, PrepackedCrossAttention):
        return attention.query.forward, lambda memory: attention.round_to_cache_dtype(attention.key_value(memory))
    rows = (attention.widths[0], sum(attention.widths[1:]))
    weight, bias = attention.projection.weight, attention.projection.bias
    biases = (None, None) if bias is None else bias.split(rows)
    query, key_value = (
        partial(F.linear, weight=each, bias=part) for each, part in zip(weight.split(rows), biases, strict=True)
    )
    return query, key_value


def _norm(module: nn.Module) -> Projection | None:
    """Return the function that a norm module computes, or None for an identity."""
    return None if isinstance(module, nn.Identity) else module.forward


def _layers(model: Transformer) -> Iterator[DecoderLayer]:
    """Iterate over the decoder layers of a model."""
    for layer in each_layer(model.decoder_layers, model.config.num_decoder_layers):
        assert isinstance(layer, DecoderLayer)
        yield layer


class EagerState:
    """A decoding state of an encoder-decoder model (implements `DecodingState`).

    Attention weights cannot be traced.
    """

    def __init__(self, model: Transformer, source_ids: Tensor) -> None:
        """Create a decoding state: encode the source ids (B, S)."""
        config, rows = model.config, len(source_ids)
        memory, mask = encode_without_padding(model, source_ids)
        self.model = model
        self.heads, self.width = config.num_heads, config.key_width
        self.layers = [EagerLayer(layer) for layer in _layers(model)]
        empty = memory.new_empty(2, rows, self.heads, 0, self.width)
        self.past = [SlotCache(empty) for _ in self.layers]
        self.memory = [SlotCache(self._split(layer.key_value(memory))) for layer in self.layers]
        # The bias that masks padding, (B × H, 1, S); None without padding.
        self.memory_bias = None if bool(mask.allowed.all()) else self._each_head(mask.bias(memory.dtype))
        self.slots = Slots(rows)
        self.position = 0
        self.ancestry = Ancestry(torch.zeros(rows, 0, dtype=torch.bool, device=source_ids.device))
        self.scale = 1.0 / math.sqrt(self.width)
        self.nothing = memory.new_zeros(1)

    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """Return the last layer's output after each hypothesis' newest token, (B, W) to (B, W, D)."""
        if trace is not None:
            raise ValueError("attention weights are not kept here: use the model's own state")
        ids, model = self.slots.to_slots(tokens), self.model
        mask = self.ancestry.extend(ids.shape[1])
        position = torch.full((1,), self.position)
        x = model.target_embedding(ids.flatten()[:, None], model.target_weight, position)[:, 0]  # (B × W, D)
        bias = None if mask is None else self._each_head(mask.bias(x.dtype))
        for layer, past, memory in zip(self.layers, self.past, self.memory, strict=True):
            x = self._layer(layer, x, past, bias, memory)
        if (norm := _norm(model.decoder_norm)) is not None:
            x = norm(x)
        self.position += 1
        return self.slots.to_rows(model.finish(x).view(*ids.shape, -1))

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis w of sentence b by a copy of hypothesis parents[b, w]."""
        self.ancestry.reorder(self.slots.to_slots(parents))

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the sentences at these rows, and remove the others from the batch."""
        moves = self.slots.remove_other_rows(rows)
        if moves is None:
            self._select(self.slots.select(rows))
            return
        holes, moved = moves
        count = self.slots.count
        for cache in (*self.past, *self.memory):
            cache.move(holes, moved, count)
        order = torch.arange(count, device=rows.device)
        order[holes] = moved
        self._select_masks(order)

    def _select(self, slots: Tensor) -> None:
        """Make the sentences in these cache slots (rows of the caches) the rows of all caches, in this order."""
        for cache in (*self.past, *self.memory):
            cache.select(slots)
        self._select_masks(slots)

    def _select_masks(self, slots: Tensor) -> None:
        """Reorder the attention masks by cache slot (row of the caches), as the caches are reordered."""
        self.ancestry.keep_sentences(slots)
        if self.memory_bias is not None:
            by_sentence = self.memory_bias.unflatten(0, (-1, self.heads))  # (B, H, 1, S)
            self.memory_bias = by_sentence.index_select(0, slots).flatten(0, 1)

    def _layer(self, layer: EagerLayer, x: Tensor, past: SlotCache, bias: Tensor | None, memory: SlotCache) -> Tensor:
        """Run one decoder layer on the newest tokens, (B × W, D) to (B × W, D)."""

        def attend_to_past(y: Tensor) -> Tensor:
            projected = layer.project(y)  # (B × W, 3 × H × K)
            inner = self.heads * self.width
            newest = projected[:, inner:]
            if layer.round_to_cache_dtype is not None:
                newest = layer.round_to_cache_dtype(newest)
            past.append(self._split(newest.unflatten(0, (past.rows, -1))))
            return layer.output(self._attend(projected[:, :inner], past, bias))

        def attend_to_memory(y: Tensor) -> Tensor:
            return layer.memory_output(self._attend(layer.query(y), memory, self.memory_bias))

        for number, sublayer in enumerate((attend_to_past, attend_to_memory, layer.feed_forward)):
            before, after = layer.before[number], layer.after[number]
            x = x + sublayer(x if before is None else before(x))
            x = x if after is None else after(x)
        return x

    def _attend(self, query: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Return scaled dot-product attention for queries (B × W, H × K), same shape; `bias` is (B × H, 1 or W, L)."""
        rows, inner = cache.rows, query.shape[1]
        query = query.view(rows, -1, self.heads, self.width).transpose(1, 2).reshape(rows * self.heads, -1, self.width)
        keys, values = cache.content()
        added, beta = (self.nothing, 0.0) if bias is None else (bias, 1.0)
        scores = torch.baddbmm(added, query, keys.transpose(1, 2), beta=beta, alpha=self.scale)  # (B × H, W, L)
        heads = torch.bmm(scores.softmax(dim=-1), values)  # (B × H, W, K)
        return heads.view(rows, self.heads, -1, self.width).transpose(1, 2).reshape(-1, inner)

    def _split(self, projected: Tensor) -> Tensor:
        """Split projected keys and values by head, (B, L, 2 × H × K) to (2, B, H, L, K)."""
        by_head: Tensor = projected.unflatten(2, (2, self.heads, self.width))
        return by_head.permute(2, 0, 3, 1, 4)

    def _each_head(self, bias: Tensor) -> Tensor:
        """Repeat a mask's bias (B, 1, Q, L) for each head, to (B × H, Q, L)."""
        return bias.expand(-1, self.heads, -1, -1).flatten(0, 1)
