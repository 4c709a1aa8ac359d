"""A decoder-only model, such as GPT-2 and Llama, which continues a prompt (Radford et al. 2019).

Legend: B batch, T length, P tokens of the longest prompt, W hypotheses of each prompt, D model width, V vocabulary.
"""

import torch
from torch import Tensor
from typing_extensions import override

from transduce.model.attention import AttentionTrace, DecoderCache
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding, VocabularyModel
from transduce.model.initialization import initialize
from transduce.model.layers import EncoderLayer, StackPositions, build_layers, each_layer
from transduce.model.masks import AttentionMask, present_positions
from transduce.model.norms import build_final_norm, normalize
from transduce.model.transformer import Ancestry, DecodingState


class Decoder(VocabularyModel):
    """A decoder-only model: a stack of self-attention layers with the look-ahead mask, which continues a prompt."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = Embedding(config)
        self.positions = StackPositions(config, causal=True)
        self.layers = build_layers(EncoderLayer, config, config.num_decoder_layers)
        self.norm = build_final_norm(config)
        initialize(self)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of each next token: token ids (B, T), padded at the right, to (B, T, V)."""
        return self.project(self.hidden(ids))

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the output of the last layer, (B, T, D), before the projection to the vocabulary."""
        return self.decode(ids)

    def decode(
        self,
        ids: Tensor,
        *,
        mask: AttentionMask | None = None,
        positions: Tensor | None = None,
        cache: DecoderCache | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Return the last layer's output (B, T, D) for token ids (B, T); other arguments as in `Transformer.decode`."""
        present = self.batch_norm_positions(ids)
        if positions is None and cache is not None and cache.length:
            positions = cache.next_positions(ids)
        x = self.embedding(ids, self.source_weight, positions, present=present)
        self_mask, position_effect = self.positions(x, mask, positions, cache)
        weights_out = None if trace is None else trace.decoder
        for number, layer in enumerate(each_layer(self.layers, self.config.num_decoder_layers)):
            layer_cache = None if cache is None else cache.layers[number]
            x = layer(
                x,
                self_mask,
                position_effect=position_effect,
                present=present,
                cache=layer_cache,
                weights_out=weights_out,
            )
        return self.finish(normalize(self.norm, x, present))

    def new_cache(self) -> DecoderCache:
        """Return an empty KV cache for the method `decode`."""
        return DecoderCache(self.config.num_decoder_layers)

    def start(self, source_ids: Tensor, lengths: Tensor | None = None) -> DecodingState:
        """Read prompts (B, P), padded at the right, and return a decoding state that continues them step by step.

        A prompt has at least one token; an empty prompt is the start symbol. In a model whose padding id is the end
        symbol too, `lengths`, (B,), must give the lengths of the prompts.
        """
        return PromptState(self, source_ids, lengths)


class PromptState(DecodingState):
    """A decoding state of a decoder-only model: a cache with prompts of different lengths and their continuations."""

    def __init__(self, model: Decoder, prompt_ids: Tensor, lengths: Tensor | None = None) -> None:
        """Create a decoding state: process the prompts (B, P) of these lengths (B,) in one pass."""
        self.model = model
        self.cache = model.new_cache()
        index = torch.arange(prompt_ids.shape[1], device=prompt_ids.device)
        if lengths is None:
            # A padding id inside a prompt is a token; at its end it is padding.
            present = present_positions(prompt_ids, model.config.pad_id)
            lengths = (present * (index + 1)).amax(dim=1)
        self.next_position = lengths  # (B,)
        self.ancestry = Ancestry(index < self.next_position[:, None])
        hidden = model.decode(prompt_ids, cache=self.cache)  # (B, P, D)
        last = (self.next_position - 1)[:, None, None].expand(-1, 1, hidden.shape[-1])
        self._after_prompt: Tensor | None = hidden.gather(1, last)  # (B, 1, D)

    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """Return the last layer's output for the newest token of W hypotheses per prompt, (B, W) to (B, W, D).

        The first step returns the output after the prompt's last token, and ignores its argument.
        """
        if self._after_prompt is not None:
            hidden, self._after_prompt = self._after_prompt, None
            return hidden
        width = tokens.shape[1]
        hidden = self.model.decode(
            tokens,
            mask=self.ancestry.extend(width),
            positions=self.next_position[:, None].expand(-1, width),
            cache=self.cache,
            trace=trace,
        )
        self.next_position = self.next_position + 1
        return hidden

    @override
    def reorder(self, parents: Tensor) -> None:
        self.ancestry.reorder(parents)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        if self._after_prompt is not None:
            self._after_prompt = self._after_prompt.index_select(0, rows)
        self.next_position = self.next_position.index_select(0, rows)
        self.ancestry.keep_sentences(rows)
        self.cache.keep_sentences(rows)
