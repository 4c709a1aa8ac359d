"""Build the tree of all hypotheses that a beam search kept, with their scores and ends.

Shapes: W hypotheses, t tokens so far, T tokens of the longest one, V vocabulary.
"""

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from transduce.inference.batching import pad
from transduce.inspection.sentence_view import TreeNode
from transduce.model.masks import AttentionMask
from transduce.model.transformer import Transformer
from transduce.search.scorer import Hypothesis, Observer
from transduce.text.vocabulary import Vocabulary

Path = tuple[int, ...]
_MAX_LOGITS = 2**24  # in memory at once


class BeamRecorder:
    """An observer that records the hypotheses of one sentence at every step (`search.scorer.Observer`)."""

    def __init__(self, beam_size: int, eos_id: int, then: Observer | None = None) -> None:
        """Create a recorder; it also calls the observer `then`, if any, at every step, which may stop the search."""
        self.eos_id = eos_id
        self.then = then
        # The last row of a beam search is its best finished hypothesis, which greedy search does not have.
        self.is_beam = beam_size > 1
        self.kept: list[Path] = []

    def after_step(self, rows: Tensor, tokens: Tensor) -> Collection[int]:
        """Record the live hypotheses after a step of the search."""
        live = tokens[0, :-1] if self.is_beam else tokens[0]
        self.kept.extend(tuple(path) for path in live.tolist() if self.eos_id not in path)
        return () if self.then is None else self.then.after_step(rows, tokens)


def build_tree(
    kept: Iterable[Path],
    finished: Sequence[Hypothesis],
    vocabulary: Vocabulary,
    log_probabilities: dict[Path, float],
) -> tuple[TreeNode, ...]:
    """Return the nodes of the hypothesis tree, parents before children.

    Args:
        kept: live hypotheses of all steps, without start and end symbols.
        finished: results of the search, the translation first.
        vocabulary: spells the tokens.
        log_probabilities: log-probability of every hypothesis and all its prefixes, see `path_log_probabilities`.
    """
    closed = {path_with_end(result, vocabulary.eos_id): result for result in finished}
    best = path_with_end(finished[0], vocabulary.eos_id) if finished else ()
    node_numbers: dict[Path, int] = {(): 0}
    nodes = [TreeNode(parent=-1, piece="", log_probability=0.0, best=True)]
    for path in all_prefixes([*kept, *closed]):
        if path in node_numbers:
            continue
        hypothesis = closed.get(path)
        node_numbers[path] = len(nodes)
        nodes.append(
            TreeNode(
                parent=node_numbers[path[:-1]],
                piece=vocabulary.piece(path[-1]),
                log_probability=round(log_probabilities[path], 4),
                ended=hypothesis is not None and hypothesis.ended,
                score=None if hypothesis is None else round(hypothesis.score, 4),
                best=path == best[: len(path)],
            )
        )
    return tuple(nodes)


def path_with_end(hypothesis: Hypothesis, eos_id: int) -> Path:
    """Return a finished hypothesis' tokens, including the end symbol if it ended with one."""
    return (*hypothesis.ids, eos_id) if hypothesis.ended else hypothesis.ids


def all_prefixes(paths: Iterable[Path]) -> list[Path]:
    """Return all non-empty prefixes of the paths, without duplicates, shortest first."""
    prefixes = {path[:length]: None for path in paths for length in range(1, len(path) + 1)}
    return sorted(prefixes, key=len)


def path_log_probabilities(
    model: Transformer, memory: Tensor, mask: AttentionMask, paths: Sequence[Path]
) -> dict[Path, float]:
    """Return the log-probability in nats of each path and all its prefixes, computed from the longest paths only.

    Args:
        model: the model to score with.
        memory: encoder output of the source sentence, (1, S, D).
        mask: mask of the memory.
        paths: target tokens, possibly with the end symbol.
    """
    prefixes = all_prefixes(paths)
    parents = {path[:-1] for path in prefixes}
    leaves = [path for path in prefixes if path not in parents]
    batch_size = max(1, _MAX_LOGITS // (max(map(len, leaves), default=1) * model.config.target_vocabulary_size))
    values_by_path: dict[Path, float] = {}
    for first in range(0, len(leaves), batch_size):
        batch = leaves[first : first + batch_size]
        for leaf, sums in zip(batch, _cumulative(model, memory, mask, batch), strict=True):
            values_by_path |= {leaf[: number + 1]: value for number, value in enumerate(sums[: len(leaf)])}
    return values_by_path


def _cumulative(model: Transformer, memory: Tensor, mask: AttentionMask, leaves: Sequence[Path]) -> list[list[float]]:
    """Return the cumulative log-probabilities of each leaf's tokens, (W, T)."""
    config = model.config
    with torch.inference_mode():
        inputs = pad([[config.start_id, *leaf[:-1]] for leaf in leaves], config.pad_id, memory.device)
        logits = allowed_logits(model, model.decode(inputs, memory.expand(len(leaves), -1, -1), mask))  # (W, T, V)
        next_tokens = pad([list(leaf) for leaf in leaves], config.pad_id, memory.device)[..., None]  # (W, T, 1)
        values = logits.gather(-1, next_tokens)[..., 0] - logits.logsumexp(dim=-1)  # (W, T)
    sums: list[list[float]] = values.cumsum(dim=1).tolist()
    return sums


def allowed_logits(model: Transformer, hidden: Tensor) -> Tensor:
    """Return the logits that the search uses, float32 (W, T, V), with padding and start symbol at minus infinity."""
    forbidden = torch.tensor(model.config.forbidden_tokens, dtype=torch.int64, device=hidden.device)
    return model.project(hidden).float().index_fill(-1, forbidden, float("-inf"))
