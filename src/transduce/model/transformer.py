"""The Transformer (sections 3.1 to 3.5): an encoder, a decoder, and one matrix of embeddings around them.

Legend: B batch, S source length, T target length, D model width, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.attention import AttentionTrace, MultiHeadAttention
from transduce.model.cache import DecoderCache
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import GatedFeedForward
from transduce.model.layers import DecoderLayer, EncoderLayer, build_norm
from transduce.model.masks import AttentionMask, look_ahead_mask, padding_mask


class Transformer(nn.Module):
    """Parameters, `encode`, `decode` and `project`; it knows neither text nor training."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.source_weight = nn.Parameter(torch.empty(config.source_vocabulary_size, config.d_model))
        target_shape = (config.target_vocabulary_size, config.d_model)
        own_target = None if config.tie_source_target else nn.Parameter(torch.empty(target_shape))
        own_output = None if config.tie_output else nn.Parameter(torch.empty(target_shape))
        self.own_target_weight = own_target
        self.own_output_weight = own_output
        self.source_embedding = Embedding(config)
        self.target_embedding = Embedding(config)
        self.encoder_layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.decoder_layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        pre = config.norm_order == "pre"
        self.encoder_norm = build_norm(config) if pre else nn.Identity()
        self.decoder_norm = build_norm(config) if pre else nn.Identity()
        if not self.source_weight.is_meta:
            initialize(self)

    @property
    def target_weight(self) -> nn.Parameter:
        """The target's embeddings (V, D): the source's, unless untied."""
        return self.source_weight if self.own_target_weight is None else self.own_target_weight

    @property
    def output_weight(self) -> nn.Parameter:
        """The projection to the vocabulary (V, D): the target's embeddings, unless untied."""
        return self.target_weight if self.own_output_weight is None else self.own_output_weight

    def forward(self, source_ids: Tensor, target_input_ids: Tensor) -> Tensor:
        """Logits of every next piece at once: training's view, with the look-ahead mask.

        Args:
            source_ids: pieces with the end symbol, padded at the right, (B, S).
            target_input_ids: the start symbol, then the target's pieces, padded at the right, (B, T).

        Returns:
            (B, T, V).
        """
        return self.project(self.hidden(source_ids, target_input_ids))

    def hidden(self, source_ids: Tensor, target_input_ids: Tensor) -> Tensor:
        """The decoder's last layer, (B, T, D), before the projection to the vocabulary."""
        memory, memory_mask = self.encode(source_ids)
        return self.decode(target_input_ids, memory, memory_mask)

    def encode(self, source_ids: Tensor, *, trace: AttentionTrace | None = None) -> tuple[Tensor, AttentionMask]:
        """The memory (B, S, D) and the mask that hides its padding."""
        mask = padding_mask(source_ids, self.config.pad_id)
        x = self.source_embedding(source_ids, self.source_weight)
        for layer in self.encoder_layers:
            x = layer(x, mask, trace=trace)
        return self.encoder_norm(x), mask

    def decode(
        self,
        target_input_ids: Tensor,
        memory: Tensor,
        memory_mask: AttentionMask,
        *,
        mask: AttentionMask | None = None,
        positions: Tensor | None = None,
        cache: DecoderCache | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """The decoder's last layer for these inputs, (B, T, D).

        Without a mask the inputs are a sequence and attend to their past. Padding at the right needs no mask of its
        own: it is nobody's past. With a cache the inputs are the positions after those cached, and are appended to it;
        where several stand side by side (hypotheses), `positions` and a mask over cache and inputs say how.
        """
        length = target_input_ids.shape[1]
        cached = 0 if cache is None else cache.length
        if mask is None and length > 1:
            mask = look_ahead_mask(length, target_input_ids.device, cached=cached)
        if positions is None and cached:
            positions = torch.arange(cached, cached + length, device=target_input_ids.device)
        x = self.target_embedding(target_input_ids, self.target_weight, positions)
        for number, layer in enumerate(self.decoder_layers):
            layer_cache = None if cache is None else cache.layers[number]
            x = layer(x, memory, mask=mask, memory_mask=memory_mask, cache=layer_cache, trace=trace)
        return self.decoder_norm(x)  # type: ignore[no-any-return]

    def project(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary: (…, D) to (…, V)."""
        return F.linear(hidden, self.output_weight)

    def new_cache(self) -> DecoderCache:
        """An empty cache for `decode`."""
        return DecoderCache(len(self.decoder_layers))


def initialize(model: Transformer) -> None:
    """Initial weights from PyTorch's generator.

    Embeddings have variance 1 / d_model, so that they have variance 1 once scaled, and logits of a tied output have
    variance 1: the first loss is near ln V. Every projection is Xavier-uniform by its own shape; those that stand in
    one matrix (queries, keys and values; the two halves of a gated layer) are drawn one by one. Biases are zero.
    """
    config = model.config
    weights = {id(w): w for w in (model.source_weight, model.target_weight, model.output_weight)}
    for weight in weights.values():
        nn.init.normal_(weight, std=1.0 / math.sqrt(config.d_model))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            for part in module.projection.weight.detach().split(module.widths):
                nn.init.xavier_uniform_(part)
        elif isinstance(module, GatedFeedForward):
            for part in module.inner.weight.detach().chunk(2):
                nn.init.xavier_uniform_(part)
    with torch.no_grad():
        for weight in weights.values():
            weight[config.pad_id].zero_()
