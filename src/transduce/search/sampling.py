"""Sampling: pieces are drawn from the model's distribution, sharpened or cut off where asked.

Each sentence has random numbers of its own, so that what is drawn for it depends on the seed and its place in the
input, and on nothing else in the batch.
Legend: N sentences, B of them still in the batch, W hypotheses of each, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.search.settings import SamplingSettings

_LIKELY = 32  # pieces that are put in order at first; few drawings need more
_GROWTH = 16  # and those so many times as many, then all


class Draw:
    """Chooses pieces at random. Log-probabilities stay the model's own, before temperature and cuts."""

    def __init__(self, sampling: SamplingSettings, places: Sequence[int], *, samples: int) -> None:
        """Prepares each sentence's random numbers.

        Args:
            sampling: what may be drawn, and the seed.
            places: each sentence's place in the whole input, which chooses its random numbers, (N,).
            samples: hypotheses drawn for each sentence.
        """
        self.sampling = sampling
        self.samples = samples
        self.generators = [torch.Generator().manual_seed(_seed(sampling.seed, place)) for place in places]

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Logits (B, W, V) and the sentences' places in the batch (B,) to the next pieces, (B, W)."""
        drawn = [torch.rand(self.samples, generator=self.generators[row]) for row in rows.tolist()]
        uniform = torch.stack(drawn).to(logits.device)
        sampling = self.sampling
        return draw(logits / sampling.temperature, uniform, top_k=sampling.top_k, top_p=sampling.top_p)


def _seed(seed: int, place: int) -> int:
    """A generator's seed for one sentence; PyTorch's generator takes 32 bits."""
    return (seed * 0x9E3779B1 + place * 0x85EBCA6B) % 2**32


def draw(logits: Tensor, uniform: Tensor, *, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """The piece at which the cumulated probability of the pieces, likeliest first, passes a uniform number.

    Args:
        logits: (B, W, V).
        uniform: in [0, 1), (B, W).
        top_k: pieces that may be drawn; 0: all.
        top_p: the probability that they have together at least.

    Returns:
        Pieces, (B, W).
    """
    probabilities = logits.softmax(dim=-1).flatten(0, 1)  # (B × W, V)
    bounds, most = uniform.flatten(), probabilities.shape[1]
    count = min(top_k or _LIKELY, most)
    pieces, is_certain = _draw_among(probabilities, bounds, count, top_p, is_all=count in (top_k, most))
    while not bool(is_certain.all()):  # what a row draws must not depend on the others
        left, count = (~is_certain).nonzero().flatten(), min(_GROWTH * count, most)
        pieces[left], is_certain[left] = _draw_among(
            probabilities[left], bounds[left], count, top_p, is_all=count == most
        )
    return pieces.view(uniform.shape)


def _draw_among(
    probabilities: Tensor, uniform: Tensor, count: int, top_p: float, *, is_all: bool
) -> tuple[Tensor, Tensor]:
    """The piece of each row (N, V) among the likeliest, and whether it is drawn whatever the others are; (N,) both."""
    values, pieces = probabilities.topk(count, dim=-1)  # sorted
    cumulated = values.cumsum(dim=-1)
    is_certain = torch.ones_like(uniform, dtype=torch.bool)
    if top_p < 1.0:
        if not is_all:
            is_certain = cumulated[:, -1] >= top_p
        # A piece stays while those before it have not reached top_p: the first always does.
        stays = cumulated - values < top_p
        stays[:, 0] = True  # a tiny top_p is 0 in float32
        cumulated = (values * stays).cumsum(dim=-1)
        total = cumulated[:, -1]
    elif is_all:
        total = cumulated[:, -1]
    else:
        total = probabilities.sum(dim=-1)
        is_certain = uniform * total < cumulated[:, -1]
    place = torch.searchsorted(cumulated, (uniform * total)[:, None], right=True).clamp_max(count - 1)
    return pieces.gather(1, place)[:, 0], is_certain
