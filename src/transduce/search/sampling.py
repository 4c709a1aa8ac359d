"""Sampling: pieces are drawn from the model's distribution, sharpened or cut off where asked.

Each sentence has random numbers of its own, so that what is drawn for it depends on the seed and its place in the
input, and on nothing else in the batch.
Legend: N sentences, B of them still in the batch, W hypotheses of each, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.search.greedy import Walk
from transduce.search.rules import Rule
from transduce.search.scorer import Hypothesis, Scorer
from transduce.search.settings import SamplingSettings


def sample(
    scorer: Scorer,
    *,
    start_id: int,
    eos_id: int,
    longest: Tensor,
    samples: int,
    sampling: SamplingSettings,
    places: Sequence[int],
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    """Hypotheses drawn for each sentence; their log-probabilities are the model's own, before temperature and cuts.

    Args:
        scorer: the model, at the start of a batch of N sentences.
        start_id: what the decoder is given first.
        eos_id: the end symbol.
        longest: the greatest number of pieces of each sentence, end symbol included, int64 (N,).
        samples: hypotheses drawn for each sentence.
        sampling: what may be drawn, and the seed.
        places: each sentence's place in the whole input, which chooses its random numbers, (N,).
        rules: applied to the logits in turn.

    Returns:
        N lists of `samples` hypotheses, in the order of drawing.
    """
    generators = [torch.Generator().manual_seed(_seed(sampling.seed, place)) for place in places]

    def choose(logits: Tensor, rows: Tensor) -> Tensor:
        drawn = [torch.rand(samples, generator=generators[row]) for row in rows.tolist()]
        uniform = torch.stack(drawn).to(logits.device)
        return draw(logits / sampling.temperature, uniform, top_k=sampling.top_k, top_p=sampling.top_p)

    walk = Walk(longest=longest, width=samples, start_id=start_id, eos_id=eos_id, alpha=0.0)
    return walk.run(scorer, choose, rules)


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
