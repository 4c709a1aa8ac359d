"""Layers of LSTM or GRU cells, their attention, and the state of a decoder made of them.

Legend: B batch, S source length, N rows (B sentences, or B × W hypotheses), T steps, Q queries, t past states,
D model width.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from transduce.model.attention import Attend, attend, build_score
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import Dropout
from transduce.model.masks import AttentionMask

# --- attention with one head ---


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
        weights_out: list[Tensor] | None = None,
    ) -> Tensor:
        """Compute attention of states (B, Q, D) to the memory (B, S, D), (B, Q, D); the weights are (B, 1, Q, S)."""
        compute: Attend = attend if self.score is None else self.score
        query = self.query(states)[:, None]  # (B, 1, Q, D)
        found = compute(
            query, keys[:, None], memory[:, None], mask, dropout=self.dropout, weights_out=weights_out
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
        self, x: Tensor, average: Tensor, states: Tensor, values: Tensor, weights_out: list[Tensor] | None = None
    ) -> Tensor:
        """Return the average of past states from which the next step of the cell starts.

        Args:
            x: the step's input, (N, input width).
            average: the average that the step before started from, (N, D).
            states: all past states, (N, t, D).
            values: what is averaged: states and, with an LSTM, cells, (N, t, D or 2 D).
            weights_out: a list that receives the weights, (N, 1, 1, t).

        Returns:
            (N, D or 2 D).
        """
        compute: Attend = attend if self.score is None else self.score
        query = (self.from_input(x) + self.from_average(average))[:, None, None]  # (N, 1, 1, D)
        keys, values = self.key(states)[:, None], values[:, None]  # (N, 1, t, D or 2 D)
        return compute(query, keys, values, dropout=self.dropout, weights_out=weights_out)[:, 0, 0]


def join_step_weights(steps: list[Tensor]) -> Tensor:
    """Join the attention weights of several steps to those of a single call, (B, 1, T, longest).

    The weights of each step are (B, 1, 1, t) or (B, 1, Q, S).
    """
    longest = max(step.shape[-1] for step in steps)
    return torch.cat([nn.functional.pad(step, (0, longest - step.shape[-1])) for step in steps], dim=2)


# --- layers ---


class CellState(NamedTuple):
    """The state of one layer after some steps, (N, D) each."""

    hidden: Tensor
    cell: Tensor | None
    """The cell of an LSTM; a GRU has none."""
    past: Tensor | None = None
    """With attention to the past: all states so far, and beside them an LSTM's cells, (N, t, D or 2 D)."""
    average: Tensor | None = None
    """The average of past states that the last step started from, (N, D)."""

    def select(self, rows: Tensor) -> "CellState":
        """Return the states at these rows, in this order."""
        cell, past, average = (None if part is None else part.index_select(0, rows) for part in self[1:])
        return CellState(self.hidden.index_select(0, rows), cell, past, average)


def build_cells(config: ModelConfig, input_width: int, width: int) -> nn.LSTM | nn.GRU:
    """Build one layer of LSTM or GRU cells that runs in one direction."""
    kind = nn.LSTM if config.recurrent_cell == "lstm" else nn.GRU
    return kind(input_width, width, batch_first=True)


class RecurrentEncoderLayer(nn.Module):
    """A recurrent encoder layer; if it is bidirectional, half of its cells read the source backward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model // 2 if config.bidirectional else config.d_model
        self.ahead = build_cells(config, config.d_model, width)
        self.back = build_cells(config, config.d_model, width) if config.bidirectional else None

    def forward(self, x: Tensor, reversal: Tensor) -> Tensor:
        """Compute the states of both directions, [forward; backward]: (B, S, D) to (B, S, D).

        Args:
            x: inputs, padded at the right.
            reversal: the index of each position when its sentence is read from the end, (B, S). Padding stays at its
                index, because it follows the sentence in either direction.
        """
        ahead: Tensor = self.ahead(x)[0]
        if self.back is None:
            return ahead
        back: Tensor = self.back(_reordered(x, reversal))[0]
        return torch.cat([ahead, _reordered(back, reversal)], dim=-1)


def _reordered(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order[..., None].expand(-1, -1, x.shape[-1]))


def reversal_permutation(present: Tensor) -> Tensor:
    """Return the permutation of positions (B, S) that reverses each sentence and keeps its padding."""
    index = torch.arange(present.shape[1], device=present.device)
    last = present.sum(dim=1, keepdim=True) - 1
    return torch.where(index <= last, last - index, index)


class RecurrentDecoderLayer(nn.Module):
    """A recurrent decoder layer, which computes one step, or all steps at once under teacher forcing if possible."""

    def __init__(self, config: ModelConfig, input_width: int) -> None:
        super().__init__()
        self.cells = build_cells(config, input_width, config.d_model)
        self.past_attention = PastAttention(config, input_width) if config.recurrent_self_attention else None

    def begin(self, start: Tensor) -> CellState:
        """Return the state before the first step, from a vector (N, D), which also becomes an LSTM's cell."""
        cell = start if isinstance(self.cells, nn.LSTM) else None
        if self.past_attention is None:
            return CellState(start, cell)
        return CellState(start, cell, _entry_of_past(start, cell), torch.zeros_like(start))

    def forward(self, x: Tensor, state: CellState, weights_out: list[Tensor] | None = None) -> tuple[Tensor, CellState]:
        """Compute outputs (N, T, D) from inputs (N, T, input width), and return them with the last state."""
        if self.past_attention is None:
            return self._run(x, state)
        outputs, weights = [], None if weights_out is None else list[Tensor]()
        for step in x.split(1, dim=1):
            output, state = self._step_with_past(self.past_attention, step, state, weights)
            outputs.append(output)
        if weights_out is not None and weights:
            weights_out.append(join_step_weights(weights))
        return torch.cat(outputs, dim=1), state

    def _run(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        hidden = state.hidden[None].contiguous()  # (1, N, D)
        if state.cell is None:
            output, last = self.cells(x, hidden)
            return output, state._replace(hidden=last[0])
        output, (last, cell) = self.cells(x, (hidden, state.cell[None].contiguous()))
        return output, state._replace(hidden=last[0], cell=cell[0])

    def _step_with_past(
        self, attention: PastAttention, x: Tensor, state: CellState, weights_out: list[Tensor] | None
    ) -> tuple[Tensor, CellState]:
        """Compute one step, (N, 1, input width), that starts from an average of all past states."""
        if state.past is None or state.average is None:
            raise ValueError("the state was not made by this layer's `begin`")
        width = state.hidden.shape[-1]
        found = attention(x[:, 0], state.average, state.past[..., :width], state.past, weights_out)
        average = found[:, :width]
        cell = None if state.cell is None else found[:, width:]
        output, after = self._run(x, CellState(average, cell))
        past = torch.cat([state.past, _entry_of_past(after.hidden, after.cell)], dim=1)
        return output, CellState(after.hidden, after.cell, past, average)


def _entry_of_past(hidden: Tensor, cell: Tensor | None) -> Tensor:
    """Return a step's hidden state, joined with its cell state if it has one, as a cache entry (N, 1, D or 2 D)."""
    return (hidden if cell is None else torch.cat([hidden, cell], dim=-1))[:, None]
