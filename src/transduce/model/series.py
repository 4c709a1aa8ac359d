"""A Transformer over numbers in place of pieces: time series in, their next values out.

A linear map stands where the embedding was, and a linear head where the vocabulary was. The layers, their attention,
positions and cache are those of `transformer.py`.
Legend: B series, S points of the past, T points to come, C numbers of a point, D model width.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transduce.model.cache import DecoderCache
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.encoder_decoder import EncoderDecoderLayers
from transduce.model.initialization import initialize_layers

# The logarithm of a deviation stays between these, in units of normalised numbers.
_LOG_DEVIATIONS = (-7.0, 7.0)


class Foretold(NamedTuple):
    """The next value of each number."""

    means: Tensor
    """(B, T, C)."""
    log_deviations: Tensor | None
    """(B, T, C), logarithms of standard deviations, where the model foretells them."""


class ValueEmbedding(Embedding):
    """Numbers (B, T, C) to vectors (B, T, D): a linear map, then what an embedding adds."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.values = nn.Linear(config.num_series, config.d_model)

    def embed(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """(B, T, C) to (B, T, D); `positions` is (T,), or None for 0 … T-1."""
        return self.complete(self.values(values), positions)


class SeriesTransformer(EncoderDecoderLayers):
    """Encoder over the past, decoder over what follows. Position S of the decoder follows S-1 of the encoder.

    Numbers are normalised by whoever calls it. The decoder's first input is the last number of the past; each further
    one is the number before the one that it foretells.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = ValueEmbedding(config)
        self.target_embedding = ValueEmbedding(config)
        self.add_layers(config)
        self.head = nn.Linear(config.d_model, config.num_series * (2 if config.foretells_deviations else 1))
        self._initialize()

    def _initialize(self) -> None:
        """Numbers of variance 1 become vectors of variance 1; the first forecasts are nearly 0, with deviation 1."""
        if self.head.weight.is_meta:
            return
        initialize_layers(self)
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.values.weight, std=1.0 / math.sqrt(self.config.num_series))
        nn.init.normal_(self.head.weight, std=0.1 / math.sqrt(self.config.d_model))

    def forward(self, past: Tensor, target_input: Tensor) -> Foretold:
        """Every next value at once: training's view, with the look-ahead mask.

        Args:
            past: (B, S, C).
            target_input: the last point of the past, then the points to come but for the last, (B, T, C).

        Returns:
            Of each, the value of the point after it.
        """
        return self.decode(target_input, self.encode(past), first_position=past.shape[1])

    def encode(self, past: Tensor) -> Tensor:
        """The memory, (B, S, C) to (B, S, D)."""
        return self.encode_embedded(self.source_embedding.embed(past), None)

    def decode(
        self, target_input: Tensor, memory: Tensor, *, first_position: int, cache: DecoderCache | None = None
    ) -> Foretold:
        """The values after these.

        Args:
            target_input: (B, T, C); with a cache, those after the ones that are cached.
            memory: (B, S, D).
            first_position: of the first of them on the axis of time, on which the past begins at 0.
            cache: of what was decoded before; it grows.
        """
        last = first_position + target_input.shape[1]
        positions = torch.arange(first_position, last, device=target_input.device)
        x = self.target_embedding.embed(target_input, positions)
        return self._foretell(self.decode_embedded(x, memory, None, positions=positions, cache=cache))

    def _foretell(self, hidden: Tensor) -> Foretold:
        found = self.head(hidden)
        if not self.config.foretells_deviations:
            return Foretold(found, None)
        means, log_deviations = found.chunk(2, dim=-1)
        return Foretold(means, log_deviations.clamp(*_LOG_DEVIATIONS))

    def roll_out(self, past: Tensor, steps: int, *, generator: torch.Generator | None = None) -> Foretold:
        """What follows, each value from those foretold before it.

        Args:
            past: (B, S, C).
            steps: T.
            generator: draws each value from its distribution, where the model foretells deviations; None: each value
                is its mean.
        """
        memory, cache = self.encode(past), self.new_cache()
        newest, found = past[:, -1:], []
        for step in range(steps):
            foretold = self.decode(newest, memory, first_position=past.shape[1] + step, cache=cache)
            newest = foretold.means
            if generator is not None and foretold.log_deviations is not None:
                noise = torch.randn(newest.shape, generator=generator, dtype=newest.dtype, device=newest.device)
                newest = newest + foretold.log_deviations.exp() * noise
            found.append(Foretold(newest, foretold.log_deviations))
        deviations = [each.log_deviations for each in found if each.log_deviations is not None]
        return Foretold(
            torch.cat([each.means for each in found], dim=1), torch.cat(deviations, dim=1) if deviations else None
        )
