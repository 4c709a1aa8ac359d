"""Embeddings (section 3.4): a learned vector per token, times √d_model, plus the position.

Legend: B batch, T positions, D model width, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.backend import Component
from transduce.model.config import ModelConfig
from transduce.model.dropout import Dropout
from transduce.model.norms import build_norm, normalize
from transduce.model.positions import build_embedding_positions


class Embedding(Component):
    """The step from token ids (B, T) to vectors (B, T, D), with positions and dropout; the model owns the matrix.

    The row of the padding id is zero and stays zero, unless the configuration says otherwise. If the start symbol has
    the same id, its vector is its position alone.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.frozen_row = config.frozen_row
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.positions = build_embedding_positions(config)
        types = config.token_types
        self.token_types = nn.Parameter(torch.empty(types, config.d_model)) if types else None
        self.norm = build_norm(config) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        ids: Tensor,
        weight: Tensor,
        positions: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        present: Tensor | None = None,
        end: int | None = None,
    ) -> Tensor:
        """Look up rows of the matrix and complete them.

        Args:
            ids: token ids, (B, T).
            weight: the matrix, (V, D).
            positions: (T,) or (B, T); None: 0 … T-1.
            token_types: the segment of each position, (B, T), for models that have token types; None: all are 0.
            present: the positions that a BatchNorm counts, (B, T); None: all.
            end: an upper bound that all positions are below, if it is known.

        Returns:
            (B, T, D).
        """
        rows = F.embedding(ids, weight, padding_idx=self.frozen_row) * self.scale  # (B, T, D)
        return self.complete(rows, positions, token_types=token_types, present=present, end=end)

    def complete(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        present: Tensor | None = None,
        end: int | None = None,
    ) -> Tensor:
        """Add positions and token types to vectors (B, T, D), then apply norm and dropout.

        Arguments are those of `forward`.
        """
        x = self.positions(x, positions, end)
        if self.token_types is not None:
            x = x + (self.token_types[0] if token_types is None else self.token_types[token_types])
        if self.norm is not None:
            x = normalize(self.norm, x, present)
        return self.dropout(x)  # type: ignore[no-any-return]
