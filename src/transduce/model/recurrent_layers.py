"""Layers of LSTM or GRU cells, and the state of a decoder made of them.

Legend: B batch, S source length, N rows (B sentences, or B × W hypotheses), T steps, D model width.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from transduce.model.config import ModelConfig
from transduce.model.recurrent_attention import PastAttention, joined_over_steps


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
        """Return these rows, in this order."""
        cell, past, average = (None if part is None else part.index_select(0, rows) for part in self[1:])
        return CellState(self.hidden.index_select(0, rows), cell, past, average)


def build_cells(config: ModelConfig, input_width: int, width: int) -> nn.LSTM | nn.GRU:
    """Build one recurrent layer in one direction."""
    kind = nn.LSTM if config.recurrent_cell == "lstm" else nn.GRU
    return kind(input_width, width, batch_first=True)


class RecurrentEncoderLayer(nn.Module):
    """A recurrent layer that reads the source; if it is bidirectional, half of its cells read it from the end."""

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


def reversal_of(present: Tensor) -> Tensor:
    """Return the permutation of positions (B, S) that reverses each sentence and keeps its padding."""
    index = torch.arange(present.shape[1], device=present.device)
    last = present.sum(dim=1, keepdim=True) - 1
    return torch.where(index <= last, last - index, index)


class RecurrentDecoderLayer(nn.Module):
    """A recurrent layer that writes the target, step by step or, if no step depends on its output, in one call."""

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

    def forward(self, x: Tensor, state: CellState, weights_to: list[Tensor] | None = None) -> tuple[Tensor, CellState]:
        """Compute outputs (N, T, D) from inputs (N, T, input width), and return them with the last state."""
        if self.past_attention is None:
            return self._run(x, state)
        outputs, weights = [], None if weights_to is None else list[Tensor]()
        for step in x.split(1, dim=1):
            output, state = self._step_with_past(self.past_attention, step, state, weights)
            outputs.append(output)
        if weights_to is not None and weights:
            weights_to.append(joined_over_steps(weights))
        return torch.cat(outputs, dim=1), state

    def _run(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        hidden = state.hidden[None].contiguous()  # (1, N, D)
        if state.cell is None:
            output, last = self.cells(x, hidden)
            return output, state._replace(hidden=last[0])
        output, (last, cell) = self.cells(x, (hidden, state.cell[None].contiguous()))
        return output, state._replace(hidden=last[0], cell=cell[0])

    def _step_with_past(
        self, attention: PastAttention, x: Tensor, state: CellState, weights_to: list[Tensor] | None
    ) -> tuple[Tensor, CellState]:
        """Compute one step, (N, 1, input width), that starts from an average over the past, not from the last state."""
        if state.past is None or state.average is None:
            raise ValueError("the state was not made by this layer's `begin`")
        width = state.hidden.shape[-1]
        found = attention(x[:, 0], state.average, state.past[..., :width], state.past, weights_to)
        average = found[:, :width]
        cell = None if state.cell is None else found[:, width:]
        output, after = self._run(x, CellState(average, cell))
        past = torch.cat([state.past, _entry_of_past(after.hidden, after.cell)], dim=1)
        return output, CellState(after.hidden, after.cell, past, average)


def _entry_of_past(hidden: Tensor, cell: Tensor | None) -> Tensor:
    """Return one entry of the past, (N, 1, D or 2 D)."""
    return (hidden if cell is None else torch.cat([hidden, cell], dim=-1))[:, None]
