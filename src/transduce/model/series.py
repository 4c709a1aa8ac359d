"""Define a Transformer over numbers instead of tokens, which reads time series and predicts their next values.

A linear map replaces the embedding, and a linear head replaces the output projection. Layers, attention, positions and
cache are those of `transformer.py`.
Legend: B series, S points of the past, T points to predict, C numbers of a point, D model width.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transduce.model.attention import DecoderCache
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.initialization import initialize_layers
from transduce.model.transformer import EncoderDecoderLayers

# The limits of the logarithm of a deviation, in units of normalized numbers.
_LOG_DEVIATIONS = (-7.0, 7.0)


class SeriesPrediction(NamedTuple):
    """A predicted normal distribution of each series' next value, at each time step, or only its mean."""

    means: Tensor
    """The means, (B, T, C)."""
    log_deviations: Tensor | None
    """The logarithms of standard deviations, (B, T, C); None if the model predicts means only."""


class ValueEmbedding(Embedding):
    """An embedding of numbers (B, T, C) as vectors (B, T, D): a linear map, then positions and dropout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.values = nn.Linear(config.num_series, config.d_model)

    def embed(self, values: Tensor, positions: Tensor | None = None, end: int | None = None) -> Tensor:
        """Embed C numbers for each point in time, (B, T, C), as vectors, (B, T, D).

        `positions`, (T,), defaults to 0 … T-1. `end`, if it is known, is greater than all positions.
        """
        return self.complete(self.values(values), positions, end=end)


class SeriesTransformer(EncoderDecoderLayers):
    """An encoder-decoder Transformer that reads past values and predicts future values.

    The caller normalizes the values. The decoder's first input is the last past value. Each further input is the value
    before the one to predict. Positions in the decoder start at S, the number of past points.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = ValueEmbedding(config)
        self.target_embedding = ValueEmbedding(config)
        self.add_layers(config)
        self.head = nn.Linear(config.d_model, config.num_series * (2 if config.predicts_deviations else 1))
        self._initialize()

    def _initialize(self) -> None:
        """Draw all weights, so that inputs of variance 1 give vectors of variance 1, and first predictions near 0."""
        if self.head.weight.is_meta:
            return
        initialize_layers(self)
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.values.weight, std=1.0 / math.sqrt(self.config.num_series))
        nn.init.normal_(self.head.weight, std=0.1 / math.sqrt(self.config.d_model))

    def forward(self, past: Tensor, target_input: Tensor) -> SeriesPrediction:
        """Predict all next values by teacher forcing, with the look-ahead mask.

        Args:
            past: (B, S, C).
            target_input: the last point of the past, then the points to predict except the last, (B, T, C).

        Returns:
            A `SeriesPrediction` with the distribution of the point after each input point, (B, T, C).
        """
        return self.decode(target_input, self.encode(past), first_position=past.shape[1])

    def encode(self, past: Tensor) -> Tensor:
        """Return the encoder's output for C numbers at each of S past points: (B, S, C) to (B, S, D)."""
        return self.encode_embedded(self.source_embedding.embed(past), None)

    def decode(
        self, target_input: Tensor, memory: Tensor, *, first_position: int, cache: DecoderCache | None = None
    ) -> SeriesPrediction:
        """Predict the point after each input point by the decoder: a `SeriesPrediction` for T points, (B, T, C).

        Args:
            target_input: (B, T, C); with a cache, those after the cached ones.
            memory: the encoder's output, (B, S, D).
            first_position: the position of the first input on the time axis, on which the past begins at 0.
            cache: the keys and values of earlier inputs; new ones are appended.
        """
        end = first_position + target_input.shape[1]
        positions = torch.arange(first_position, end, device=target_input.device)
        x = self.target_embedding.embed(target_input, positions, end)
        outputs = self.head(self.decode_embedded(x, memory, None, positions=positions, end=end, cache=cache))
        if not self.config.predicts_deviations:
            return SeriesPrediction(outputs, None)
        means, log_deviations = outputs.chunk(2, dim=-1)
        return SeriesPrediction(means, log_deviations.clamp(*_LOG_DEVIATIONS))

    def roll_out(self, past: Tensor, steps: int, *, generator: torch.Generator | None = None) -> SeriesPrediction:
        """Predict T points, each from the predictions before it: a `SeriesPrediction`, (B, T, C).

        Args:
            past: (B, S, C).
            steps: T.
            generator: draws each point from its predicted distribution; the result then has the drawn values as
                `means`. None, or a model without deviations: the point is the mean.
        """
        memory, cache = self.encode(past), self.new_cache()
        newest, predictions = past[:, -1:], []
        for step in range(steps):
            prediction = self.decode(newest, memory, first_position=past.shape[1] + step, cache=cache)
            newest = prediction.means
            if generator is not None and prediction.log_deviations is not None:
                noise = torch.randn(newest.shape, generator=generator, dtype=newest.dtype, device=newest.device)
                newest = newest + prediction.log_deviations.exp() * noise
            predictions.append(SeriesPrediction(newest, prediction.log_deviations))
        deviations = [each.log_deviations for each in predictions if each.log_deviations is not None]
        return SeriesPrediction(
            torch.cat([each.means for each in predictions], dim=1), torch.cat(deviations, dim=1) if deviations else None
        )
