"""Embeddings (section 3.4): a row per piece, times the square root of the model width, plus the position."""

import math

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.config import ModelConfig
from transduce.model.dropout import Dropout
from transduce.model.positions import NoPositions, SinusoidalPositions


class Embedding(nn.Module):
    """Piece ids (B, T) to vectors (B, T, D), with positions and dropout. The matrix is the model's own.

    The row of the padding id is zero and stays zero. It is also the start symbol's, whose vector is then its position.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pad_id = config.pad_id
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        sinusoidal = config.positions == "sinusoidal"
        self.positions = SinusoidalPositions(config.d_model) if sinusoidal else NoPositions()
        self.dropout = Dropout(config.dropout)

    def forward(self, ids: Tensor, weight: Tensor, positions: Tensor | None = None) -> Tensor:
        """Rows of the matrix `weight` (V, D), at positions 0 … T-1 or at `positions` (T,)."""
        x = F.embedding(ids, weight, padding_idx=self.pad_id) * self.scale
        return self.dropout(self.positions(x, positions))  # type: ignore[no-any-return]
