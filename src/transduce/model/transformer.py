"""The Transformer (sections 3.1 to 3.5): encoder, decoder, and the state of decoding step by step.

Legend: B batch, S source length, T target length, D model width, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from typing_extensions import override

from transduce.errors import TransduceError
from transduce.model.attention import AttentionTrace, DecoderCache
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding, VocabularyModel
from transduce.model.initialization import initialize
from transduce.model.layers import DecoderLayer, EncoderLayer, StackPositions, build_layers, each_layer
from transduce.model.masks import AttentionMask, ancestry_mask, padding_mask
from transduce.model.norms import build_final_norm, normalize

# --- encoder and decoder (section 3.1) ---


class EncoderDecoderLayers(nn.Module):
    """A base class with the encoder's and decoder's layers; subclasses add embeddings and an output projection."""

    config: ModelConfig

    def add_layers(self, config: ModelConfig) -> None:
        """Create the encoder and decoder layers; a subclass calls this once in its constructor."""
        self.encoder_positions = StackPositions(config, causal=False)
        self.decoder_positions = StackPositions(config, causal=True)
        self.encoder_layers = build_layers(EncoderLayer, config, config.num_encoder_layers)
        self.decoder_layers = build_layers(DecoderLayer, config, config.num_decoder_layers)
        self.encoder_norm = build_final_norm(config)
        self.decoder_norm = build_final_norm(config)

    def encode_embedded(
        self,
        x: Tensor,
        mask: AttentionMask | None,
        *,
        present: Tensor | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Return the encoder's output for embedded inputs, (B, S, D) to (B, S, D); `mask` hides padding."""
        self_mask, position_effect = self.encoder_positions(x, mask)
        weights_out = None if trace is None else trace.encoder
        for layer in each_layer(self.encoder_layers, self.config.num_encoder_layers):
            x = layer(x, self_mask, position_effect=position_effect, present=present, weights_out=weights_out)
        return normalize(self.encoder_norm, x, present)

    def decode_embedded(
        self,
        x: Tensor,
        memory: Tensor,
        memory_mask: AttentionMask | None,
        *,
        mask: AttentionMask | None = None,
        positions: Tensor | None = None,
        cache: DecoderCache | None = None,
        present: Tensor | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Return the output of the decoder's last layer for embedded inputs x, (B, T, D) to (B, T, D).

        Without a `mask`, self-attention has the look-ahead mask.
        """
        self_mask, position_effect = self.decoder_positions(x, mask, positions, cache)
        for number, layer in enumerate(each_layer(self.decoder_layers, self.config.num_decoder_layers)):
            layer_cache = None if cache is None else cache.layers[number]
            x = layer(
                x,
                memory,
                mask=self_mask,
                memory_mask=memory_mask,
                position_effect=position_effect,
                present=present,
                cache=layer_cache,
                trace=trace,
            )
        return normalize(self.decoder_norm, x, present)

    def new_cache(self) -> DecoderCache:
        """Return an empty KV cache for the method `decode_embedded`."""
        return DecoderCache(self.config.num_decoder_layers)


# --- decoding step by step ---
# A model's `start` returns a state for a batch of inputs, and a search calls the state's methods. The hypotheses of a
# sentence are decoded as further positions of one row: they share the cache and the projected memory, and a mask shows
# each hypothesis its own past. Reordering hypotheses therefore moves a small boolean array and no keys or values.
# Legend: B sentences, W hypotheses of each, L cached positions, D model width.


class DecodingState(Protocol):
    """The state of a batch of sentences between two decoding steps."""

    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """Return the last layer's output for the newest token of W hypotheses per sentence: (B, W) to (B, W, D).

        At the first step there is one hypothesis for each sentence, and its token is the start symbol.
        """

    def reorder(self, parents: Tensor) -> None:
        """Let hypothesis w of sentence b continue from the state of its hypothesis parents[b, w], (B, W)."""

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the states of the sentences at these batch indices, in this order."""


class Ancestry:
    """A record of the cached positions that belong to the past of each beam hypothesis."""

    def __init__(self, present: Tensor) -> None:
        """Record one hypothesis per sentence; `present`, (B, L), is True at the cached positions that exist."""
        self.ancestors = present[:, None]  # (B, W, L)
        self.sees_all = present.shape[1] == 0  # True while every hypothesis descends from all cached positions

    def extend(self, width: int) -> AttentionMask | None:
        """Append one cached position for each of W hypotheses, and return the attention mask; None: all is visible."""
        batch, _, length = self.ancestors.shape
        self.sees_all = self.sees_all and width == 1
        itself = torch.eye(width, dtype=torch.bool, device=self.ancestors.device)
        if self.sees_all:
            self.ancestors = itself.expand(batch, 1, length + 1)
            return None
        self.ancestors = torch.cat([self.ancestors, itself.expand(batch, width, width)], dim=2)
        return ancestry_mask(self.ancestors)

    def reorder(self, parents: Tensor) -> None:
        """Let hypothesis w of sentence b continue from the past of its hypothesis parents[b, w], (B, W)."""
        self.ancestors = self.ancestors.gather(1, parents[..., None].expand(-1, -1, self.ancestors.shape[2]))

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the records of the sentences at these batch indices, in this order."""
        self.ancestors = self.ancestors.index_select(0, rows)


class MemoryDecoder(Protocol):
    """An interface with the methods of `Transformer` that `MemoryState` uses."""

    def encode(self, source_ids: Tensor) -> tuple[Tensor, AttentionMask]:
        """Return the encoder's output (B, S, D) and the mask that hides its padding, for token ids (B, S)."""

    def decode(
        self,
        target_input_ids: Tensor,
        memory: Tensor,
        memory_mask: AttentionMask,
        *,
        mask: AttentionMask | None = None,
        positions: Tensor | None = None,
        end: int | None = None,
        cache: DecoderCache | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Return the output of the decoder's last layer, (B, T, D), for token ids (B, T)."""

    def new_cache(self) -> DecoderCache:
        """Return an empty KV cache."""


class MemoryState(DecodingState):
    """The decoding state of an encoder-decoder Transformer: the encoder's output, the KV cache and the hypotheses."""

    def __init__(self, model: MemoryDecoder, source_ids: Tensor) -> None:
        """Create a decoding state: encode the source token ids (B, S) with `model`."""
        self.model = model
        self.memory, self.memory_mask = model.encode(source_ids)
        self.cache = model.new_cache()
        self.position = 0
        self.ancestry = Ancestry(torch.zeros(len(source_ids), 0, dtype=torch.bool, device=source_ids.device))

    @override
    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        width = tokens.shape[1]
        hidden = self.model.decode(
            tokens,
            self.memory,
            self.memory_mask,
            mask=self.ancestry.extend(width),
            positions=torch.full((width,), self.position, device=tokens.device),
            end=self.position + 1,
            cache=self.cache,
            trace=trace,
        )
        self.position += 1
        return hidden

    @override
    def reorder(self, parents: Tensor) -> None:
        self.ancestry.reorder(parents)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        self.memory = self.memory.index_select(0, rows)
        self.memory_mask = AttentionMask(self.memory_mask.allowed.index_select(0, rows))
        self.ancestry.keep_sentences(rows)
        self.cache.keep_sentences(rows)


# --- the model ---


class Transformer(VocabularyModel, EncoderDecoderLayers):
    """An encoder-decoder Transformer: the methods `encode`, `decode` and `project` on tensors of token ids."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.kind != "transformer":
            raise TransduceError(
                f"A Transformer has an encoder and a decoder, but `model.kind` is {config.kind}: build it by "
                "`model/build.py:build_any_model`."
            )
        self.source_embedding = Embedding(config)
        self.target_embedding = Embedding(config)
        self.add_layers(config)
        initialize(self)

    def forward(self, source_ids: Tensor, target_input_ids: Tensor) -> Tensor:
        """Return the logits of each next token by teacher forcing, with the look-ahead mask.

        Args:
            source_ids: token ids with the end symbol, padded at the right, (B, S).
            target_input_ids: the start symbol, then the target's token ids, padded at the right, (B, T).

        Returns:
            (B, T, V).

        Raises:
            TransduceError: an id is not in the vocabulary, or there are more rows of one kind than of the other.
        """
        with checked_ids(self.config, source_ids, target_input_ids):
            return self.project(self.hidden(source_ids, target_input_ids))

    def hidden(self, source_ids: Tensor, target_input_ids: Tensor) -> Tensor:
        """Return the output of the decoder's last layer by teacher forcing, (B, T, D), before the output projection."""
        memory, memory_mask = self.encode(source_ids)
        return self.decode(target_input_ids, memory, memory_mask)

    def encode(self, source_ids: Tensor, *, trace: AttentionTrace | None = None) -> tuple[Tensor, AttentionMask]:
        """Return the encoder's output (B, S, D) and the mask that hides its padding, for token ids (B, S)."""
        mask = padding_mask(source_ids, self.config.pad_id)
        present = self.batch_norm_positions(source_ids)
        x = self.source_embedding(source_ids, self.source_weight, present=present)
        return self.encode_embedded(x, mask, present=present, trace=trace), mask

    def decode(
        self,
        target_input_ids: Tensor,
        memory: Tensor,
        memory_mask: AttentionMask,
        *,
        mask: AttentionMask | None = None,
        positions: Tensor | None = None,
        end: int | None = None,
        cache: DecoderCache | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Return the output of the decoder's last layer for these inputs, (B, T, D).

        Without a mask, the inputs are a sequence in which each position attends to its past. Padding at the right needs
        no mask, because no other position attends to it. With a cache, the inputs are the positions after the cached
        ones and are appended to it.

        Args:
            target_input_ids: (B, T).
            memory: the encoder's output, (B, S, D).
            memory_mask: hides the memory's padding.
            mask: a mask over cached positions and inputs, for several hypotheses in one row.
            positions: the positions of the inputs, (T,) or (B, T); None: those after the cached ones.
            end: an upper bound that all positions are below, if it is known.
            cache: the keys and values of past positions.
            trace: receives the attention weights.
        """
        present = self.batch_norm_positions(target_input_ids)
        if positions is None and cache is not None and cache.length:
            positions = cache.next_positions(target_input_ids)
        x = self.target_embedding(target_input_ids, self.target_weight, positions, present=present, end=end)
        hidden = self.decode_embedded(
            x, memory, memory_mask, mask=mask, positions=positions, cache=cache, present=present, trace=trace
        )
        return self.finish(hidden)

    def start(self, source_ids: Tensor) -> DecodingState:
        """Encode sentences (B, S), and return a decoding state that translates them step by step."""
        return MemoryState(self, source_ids)


@contextmanager
def checked_ids(config: ModelConfig, source_ids: Tensor, target_input_ids: Tensor) -> Iterator[None]:
    """Check the token ids of a model's `forward`, in the body of a `with` statement that computes it.

    Types and shapes are checked at once; ids outside the vocabulary are reported if an embedding lookup fails.

    Raises:
        TransduceError: an id is not in the vocabulary, or there are more rows of one kind than of the other.
    """
    for name, ids in (("source_ids", source_ids), ("target_input_ids", target_input_ids)):
        if not isinstance(ids, Tensor) or ids.dim() != 2:
            actual = f"of the shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else repr(ids)
            raise TransduceError(f"`{name}` must be a tensor of token ids, one row for each sentence, but is {actual}.")
    if len(source_ids) != len(target_input_ids):
        raise TransduceError(
            f"Each source has one target, but there are {len(source_ids)} rows of `source_ids` and "
            f"{len(target_input_ids)} of `target_input_ids`."
        )
    try:
        yield
    except IndexError:
        _check_range(source_ids, config.source_vocabulary_size, "source_ids")
        _check_range(target_input_ids, config.target_vocabulary_size, "target_input_ids")
        raise


def _check_range(ids: Tensor, size: int, name: str) -> None:
    for id in (int(ids.min()), int(ids.max())):
        if not 0 <= id < size:
            raise TransduceError(
                f"`{name}` must hold ids from 0 to {size - 1}, the model's vocabulary, but one is {id}: use the "
                "tokenizer that the model was trained with."
            )
