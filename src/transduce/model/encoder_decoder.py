"""The layers of an encoder and a decoder (section 3.1), without embeddings and output.

Legend: B batch, S source length, T target length, D model width.
"""

from torch import Tensor, nn

from transduce.model.attention import AttentionTrace
from transduce.model.cache import DecoderCache
from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.masks import AttentionMask
from transduce.model.norms import build_final_norm, normalize
from transduce.model.stack import StackPositions, build_layers, each_layer


class EncoderDecoderLayers(nn.Module):
    """The two stacks of layers, for a module that adds embeddings and an output."""

    config: ModelConfig

    def add_layers(self, config: ModelConfig) -> None:
        """Create the layers; a subclass calls this once, when it creates its parameters."""
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
        """Return the encoder's last layer, (B, S, D) to (B, S, D); `mask` hides padding, if there is any."""
        own_mask, reach = self.encoder_positions(x, mask)
        weights_to = None if trace is None else trace.encoder
        for layer in each_layer(self.encoder_layers, self.config.num_encoder_layers):
            x = layer(x, own_mask, reach=reach, present=present, weights_to=weights_to)
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
        """Return the decoder's last layer, (B, T, D) to (B, T, D); without a mask each position attends to its past."""
        own_mask, reach = self.decoder_positions(x, mask, positions, cache)
        for number, layer in enumerate(each_layer(self.decoder_layers, self.config.num_decoder_layers)):
            layer_cache = None if cache is None else cache.layers[number]
            x = layer(
                x,
                memory,
                mask=own_mask,
                memory_mask=memory_mask,
                reach=reach,
                present=present,
                cache=layer_cache,
                trace=trace,
            )
        return normalize(self.decoder_norm, x, present)

    def new_cache(self) -> DecoderCache:
        """Return an empty cache for `decode_embedded`."""
        return DecoderCache(self.config.num_decoder_layers)
