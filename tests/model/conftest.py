"""How states of decoding are compared: all go the same way."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transduce.model.state import DecodingState

Walk = Callable[[DecodingState, int], list[Tensor]]

# Which of the sentences stay after which steps: they leave from the front, the middle and the end, and come twice.
STAYING = {2: [0, 2, 3, 4], 5: [1, 2, 3], 6: [0, 1, 2], 9: [2, 0], 12: [1], 20: [0, 0, 0]}


@pytest.fixture
def walk() -> Walk:
    """Goes on from a state of five sentences with so many hypotheses each: the last layer at each of 40 random steps,
    in which the pool of keys and values is full several times.
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
