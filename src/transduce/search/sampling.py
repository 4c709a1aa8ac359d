"""Sampling: tokens are drawn from the model's distribution, with temperature, top-k and top-p.

Each sentence has a random generator of its own, so its samples depend only on the seed and its index in the input,
not on the rest of the batch.
Legend: N sentences, B of them still in the batch, W hypotheses of each, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.search.settings import SamplingSettings

_INITIAL_COUNT = 32  # tokens that are sorted at first; few draws need more
_GROWTH = 16  # factor by which their number grows, up to all


class Draw:
    """A sampler of tokens; the log-probabilities that it reports are before temperature, top-k and top-p."""

    def __init__(self, sampling: SamplingSettings, indices: Sequence[int], *, samples: int) -> None:
        """Create each sentence's random generator.

        Args:
            sampling: the sampling options with the seed.
            indices: each sentence's index in the whole input, which determines its random numbers, (N,).
            samples: hypotheses drawn for each sentence.
        """
        self.sampling = sampling
        self.samples = samples
        self.generators = [torch.Generator().manual_seed(_seed(sampling.seed, place)) for place in indices]

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Draw the next tokens (B, W) from logits (B, W, V), with the sentences' indices in the batch, (B,)."""
        drawn = [torch.rand(self.samples, generator=self.generators[row]) for row in rows.tolist()]
        uniform = torch.stack(drawn).to(logits.device)
        sampling = self.sampling
        return draw(logits / sampling.temperature, uniform, top_k=sampling.top_k, top_p=sampling.top_p)


def _seed(seed: int, index: int) -> int:
    """Return the random seed of one sentence; PyTorch's generator uses 32 bits."""
    return (seed * 0x9E3779B1 + index * 0x85EBCA6B) % 2**32


def draw(logits: Tensor, uniform: Tensor, *, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Return the token where the cumulative probability, in descending order, exceeds a uniform random number.

    Args:
        logits: (B, W, V).
        uniform: random numbers in [0, 1), (B, W).
        top_k: the number of most likely tokens that may be drawn; 0: all.
        top_p: only the most likely tokens that together have at least this probability may be drawn.

    Returns:
        Tokens, (B, W).
    """
    probabilities = logits.softmax(dim=-1).flatten(0, 1)  # (B × W, V)
    bounds, size = uniform.flatten(), probabilities.shape[1]
    count = min(top_k or _INITIAL_COUNT, size)
    tokens, is_certain = _draw_among(probabilities, bounds, count, top_p, is_all=count in (top_k, size))
    while not bool(is_certain.all()):  # a row's draw must not depend on other rows
        left, count = (~is_certain).nonzero().flatten(), min(_GROWTH * count, size)
        tokens[left], is_certain[left] = _draw_among(
            probabilities[left], bounds[left], count, top_p, is_all=count == size
        )
    return tokens.view(uniform.shape)


def _draw_among(
    probabilities: Tensor, uniform: Tensor, count: int, top_p: float, *, is_all: bool
) -> tuple[Tensor, Tensor]:
    """Draw from the `count` most likely tokens of each row (N, V).

    Returns:
        The tokens, (N,), and whether each draw is certain, that is, independent of the less likely tokens, (N,).
    """
    values, tokens = probabilities.topk(count, dim=-1)  # sorted
    cumulated = values.cumsum(dim=-1)
    is_certain = torch.ones_like(uniform, dtype=torch.bool)
    if top_p < 1.0:
        if not is_all:
            is_certain = cumulated[:, -1] >= top_p
        # A token stays if those before it have not reached top_p; the first always stays.
        stays = cumulated - values < top_p
        stays[:, 0] = True  # a tiny top_p is 0 in float32
        cumulated = (values * stays).cumsum(dim=-1)
        total = cumulated[:, -1]
    elif is_all:
        total = cumulated[:, -1]
    else:
        total = probabilities.sum(dim=-1)
        is_certain = uniform * total < cumulated[:, -1]
    index = torch.searchsorted(cumulated, (uniform * total)[:, None], right=True).clamp_max(count - 1)
    return tokens.gather(1, index)[:, 0], is_certain
