"""Attention of recurrent models to the memory and to their own past states, with one head and any configured score.

Legend: B batch, N rows (B sentences, or B × W hypotheses), Q queries, S source length, t past states, D model width.
"""

import torch
from torch import Tensor, nn

from transduce.model.attend import attend
from transduce.model.config import ModelConfig
from transduce.model.dropout import Dropout
from transduce.model.masks import AttentionMask
from transduce.model.scores import Attend, build_score


class MemoryAttention(nn.Module):
    """Attention of decoder states to the memory (Bahdanau et al. 2015, Luong et al. 2015).

    States and memory are compared without projections, as in Luong et al., except by the additive score, which is
    v · tanh(W s + U h). The result is an average of the memory itself.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model
        additive = config.attention_score == "additive"
        self.query = nn.Linear(width, width, bias=False) if additive else nn.Identity()
        self.key = nn.Linear(width, width) if additive else nn.Identity()
        self.score = build_score(config, num_heads=1, d_k=width)
        self.dropout = Dropout(config.attention_dropout)

    def keys(self, memory: Tensor) -> Tensor:
        """Return the keys of a memory, which are the same at every step: (B, S, D) to (B, S, D)."""
        return self.key(memory)  # type: ignore[no-any-return]

    def forward(
        self,
        states: Tensor,
        keys: Tensor,
        memory: Tensor,
        mask: AttentionMask,
        weights_to: list[Tensor] | None = None,
    ) -> Tensor:
        """Attend from states (B, Q, D) to the memory (B, S, D): returns (B, Q, D); the weights are (B, 1, Q, S)."""
        compute: Attend = attend if self.score is None else self.score
        query = self.query(states)[:, None]  # (B, 1, Q, D)
        found = compute(
            query, keys[:, None], memory[:, None], mask, dropout=self.dropout, weights_to=weights_to
        )  # (B, 1, Q, D)
        return found[:, 0]


class PastAttention(nn.Module):
    """Attention of a cell to all its past states (Cheng et al. 2016, "Long Short-Term Memory-Networks", equation 4).

    The query is W_x x + W_h̃ h̃, from the input x and the average h̃ of the step before; the key of a past state h is
    W_h h.
    """

    def __init__(self, config: ModelConfig, input_width: int) -> None:
        super().__init__()
        width = config.d_model
        self.from_input = nn.Linear(input_width, width)
        self.from_average = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.score = build_score(config, num_heads=1, d_k=width)
        self.dropout = Dropout(config.attention_dropout)

    def forward(
        self, x: Tensor, average: Tensor, states: Tensor, values: Tensor, weights_to: list[Tensor] | None = None
    ) -> Tensor:
        """Return the average that a step starts from.

        Args:
            x: the step's input, (N, input width).
            average: the average that the step before started from, (N, D).
            states: all past states, (N, t, D).
            values: what is averaged: states and, with an LSTM, cells, (N, t, D or 2 D).
            weights_to: a list that receives the weights, (N, 1, 1, t).

        Returns:
            (N, D or 2 D).
        """
        compute: Attend = attend if self.score is None else self.score
        query = (self.from_input(x) + self.from_average(average))[:, None, None]  # (N, 1, 1, D)
        keys, values = self.key(states)[:, None], values[:, None]  # (N, 1, t, D or 2 D)
        return compute(query, keys, values, dropout=self.dropout, weights_to=weights_to)[:, 0, 0]


def joined_over_steps(steps: list[Tensor]) -> Tensor:
    """Join the weights of several steps as those of one attention, (B, 1, T, longest).

    The weights of each step are (B, 1, 1, t) or (B, 1, Q, S).
    """
    longest = max(step.shape[-1] for step in steps)
    return torch.cat([nn.functional.pad(step, (0, longest - step.shape[-1])) for step in steps], dim=2)
