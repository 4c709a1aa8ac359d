"""Fixtures that run decoding states through the same steps, to compare their results."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transduce.model.transformer import DecodingState

Walk = Callable[[DecodingState, int], list[Tensor]]
Everywhere = Callable[[Callable[[Tensor], DecodingState], Tensor], list[Tensor]]

# Rows to keep after certain steps: sentences leave from the front, the middle and the end, and one is duplicated.
STAYING = {2: [0, 2, 3, 4], 5: [1, 2, 3], 6: [0, 1, 2], 9: [2, 0], 12: [1], 20: [0, 0, 0]}


@pytest.fixture
def walk() -> Walk:
    """Return a function that runs a decoding state of five sentences for 40 random steps, with W hypotheses each.

    The function returns the last layer's output at each step. The KV cache becomes full and grows several times.
    """
    return _walk


def _walk(state: DecodingState, width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows, pieces, found = 5, torch.zeros(5, 1, dtype=torch.int64), []
    for step in range(40):
        found.append(state.step(pieces))
        parents = torch.randint(pieces.shape[1], (rows, width), generator=generator)
        pieces = torch.randint(3, 50, (rows, width), generator=generator)
        state.reorder(parents)
        if step in STAYING:
            kept = torch.tensor(STAYING[step])
            state.keep_sentences(kept)
            rows, pieces = len(kept), pieces[kept]
    return found


@pytest.fixture
def first_sentence_everywhere() -> Everywhere:
    """Return a function that decodes the first sentence in batches of several sizes, with one and two threads.

    The batches are all sources, the first alone, and the first 40 times. For each batch, the function returns the first
    sentence's outputs at four steps, (4, 1, D).
    """
    return _first_sentence_everywhere


def _first_sentence_everywhere(start: Callable[[Tensor], DecodingState], sources: Tensor) -> list[Tensor]:
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for own in (sources, sources[:1], sources[:1].repeat(40, 1)):
            state = start(own)
            steps = [state.step(torch.full((len(own), 1), piece)) for piece in (0, 7, 9, 4)]
            found.append(torch.stack(steps)[:, 0])
    torch.set_num_threads(before)
    return found
