"""The beam's tree: every hypothesis that the search kept, with its score, and where it ended.

Legend: W hypotheses, t pieces so far, T pieces of the longest one, V vocabulary.
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
_MOST_LOGITS = 2**24  # held at once


class BeamObserver:
    """Remembers the hypotheses of one sentence at every step. Implements `search.scorer.Observer`."""

    def __init__(self, beam_size: int, eos_id: int, then: Observer | None = None) -> None:
        """`then` sees every step too, and may have the sentence given up."""
        self.eos_id = eos_id
        self.then = then
        # The last row of a beam is the best one that has ended; greedy search shows nothing but what it has.
        self.is_beam = beam_size > 1
        self.kept: list[Path] = []

    def after_step(self, rows: Tensor, tokens: Tensor) -> Collection[int]:
        """Adds the live hypotheses."""
        live = tokens[0, :-1] if self.is_beam else tokens[0]
        self.kept.extend(tuple(path) for path in live.tolist() if self.eos_id not in path)
        return () if self.then is None else self.then.after_step(rows, tokens)


def build_tree(
    kept: Iterable[Path],
    finished: Sequence[Hypothesis],
    vocabulary: Vocabulary,
    log_probabilities: dict[Path, float],
) -> tuple[TreeNode, ...]:
    """The tree of hypotheses, parents before children.

    Args:
        kept: live hypotheses of all steps, each without start and end symbols.
        finished: what search found, the translation first.
        vocabulary: spells the pieces.
        log_probabilities: of every hypothesis and of all its beginnings, see `path_log_probabilities`.
    """
    closed = {closed_path(each, vocabulary.eos_id): each for each in finished}
    best = closed_path(finished[0], vocabulary.eos_id) if finished else ()
    numbers: dict[Path, int] = {(): 0}
    nodes = [TreeNode(parent=-1, piece="", log_probability=0.0, best=True)]
    for path in beginnings([*kept, *closed]):
        if path in numbers:
            continue
        hypothesis = closed.get(path)
        numbers[path] = len(nodes)
        nodes.append(
            TreeNode(
                parent=numbers[path[:-1]],
                piece=vocabulary.piece(path[-1]),
                log_probability=round(log_probabilities[path], 4),
                ended=hypothesis is not None and hypothesis.ended,
                score=None if hypothesis is None else round(hypothesis.score, 4),
                best=path == best[: len(path)],
            )
        )
    return tuple(nodes)


def closed_path(hypothesis: Hypothesis, eos_id: int) -> Path:
    """A finished hypothesis with its end symbol, where it has one."""
    return (*hypothesis.ids, eos_id) if hypothesis.ended else hypothesis.ids


def beginnings(paths: Iterable[Path]) -> list[Path]:
    """All paths and what they begin with, each once, shorter ones first, else in the order in which they came."""
    found = {path[:length]: None for path in paths for length in range(1, len(path) + 1)}
    return sorted(found, key=len)


def path_log_probabilities(
    model: Transformer, memory: Tensor, mask: AttentionMask, paths: Sequence[Path]
) -> dict[Path, float]:
    """The log-probability of each path and of all its beginnings, in nats, by reading the longest paths once.

    Args:
        model: gives each piece its probability.
        memory: of the one source sentence, (1, S, D).
        mask: of the memory.
        paths: target pieces, possibly with the end symbol.
    """
    every = beginnings(paths)
    inner = {path[:-1] for path in every}
    leaves = [path for path in every if path not in inner]
    at_once = max(1, _MOST_LOGITS // (max(map(len, leaves), default=1) * model.config.target_vocabulary_size))
    found: dict[Path, float] = {}
    for first in range(0, len(leaves), at_once):
        portion = leaves[first : first + at_once]
        for leaf, sums in zip(portion, _cumulative(model, memory, mask, portion), strict=True):
            found |= {leaf[: number + 1]: value for number, value in enumerate(sums[: len(leaf)])}
    return found


def _cumulative(model: Transformer, memory: Tensor, mask: AttentionMask, leaves: Sequence[Path]) -> list[list[float]]:
    """Sums of log-probabilities from the first piece to each, (W, T)."""
    config = model.config
    with torch.inference_mode():
        inputs = pad([[config.start_id, *leaf[:-1]] for leaf in leaves], config.pad_id, memory.device)
        logits = writable_logits(model, model.decode(inputs, memory.expand(len(leaves), -1, -1), mask))  # (W, T, V)
        wanted = pad([list(leaf) for leaf in leaves], config.pad_id, memory.device)[..., None]  # (W, T, 1)
        values = logits.gather(-1, wanted)[..., 0] - logits.logsumexp(dim=-1)  # (W, T)
    sums: list[list[float]] = values.cumsum(dim=1).tolist()
    return sums


def writable_logits(model: Transformer, hidden: Tensor) -> Tensor:
    """Logits as search sees them, float32 (W, T, V): the padding piece and the start symbol are never written."""
    never = torch.tensor(model.config.forbidden_tokens, dtype=torch.int64, device=hidden.device)
    return model.project(hidden).float().index_fill(-1, never, float("-inf"))
