"""Sampling: pieces are drawn from the model's distribution, sharpened or cut off where asked.

Each sentence has random numbers of its own, so that what is drawn for it depends on the seed and its place in the
input, and on nothing else in the batch.
Legend: N sentences, B of them still in the batch, W hypotheses of each, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.search.settings import SamplingSettings


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
    width = logits.shape[-1] if top_k == 0 else min(top_k, logits.shape[-1])
    probabilities, pieces = logits.softmax(dim=-1).topk(width, dim=-1)  # (B, W, top_k), sorted
    cumulated = probabilities.cumsum(dim=-1)
    # A piece stays while those before it have not reached top_p: the first always does.
    probabilities = probabilities * (cumulated - probabilities < top_p)
    cumulated = probabilities.cumsum(dim=-1)
    passed = cumulated > (uniform * cumulated[..., -1])[..., None]
    return pieces.gather(-1, passed.to(torch.int8).argmax(dim=-1, keepdim=True))[..., 0]
