"""From attention between words to links: what a pair of words is judged by, and the regression that judges.

Legend: C heads of all layers, T target words, S source words, F features.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[Any]
_LEAST = 1e-3  # in logarithms and quotients, so that nothing is infinite
_PENALTY = 3.0  # on squared weights of standardised features: the prior that keeps few examples from saying too much
_MOST_ITERATIONS = 25
_BESIDE = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
_AROUND = tuple((target, source) for target in (-1, 0, 1) for source in (-1, 0, 1))


class WordMaps(NamedTuple):
    """Attention to the memory between words."""

    heads: Matrix
    """How much each target word looks at each source word, (C, T, S)."""
    nowhere: Matrix
    """How much it looks at the end symbol instead: the sign of a word without a counterpart, (C, T, 1)."""

    def only(self, heads: Matrix) -> "WordMaps":
        """These heads alone, by number."""
        return WordMaps(self.heads[heads], self.nowhere[heads])


def head_features(maps: WordMaps) -> Matrix:
    """What every head says of a pair of words and of the pairs beside it, (F, T, S).

    Each head speaks twice: of the attention that a target word gives, and of its share in what a source word receives.
    The mean of all heads stands beside them, and how far the words' places in their sentences are apart.
    """
    heads = np.concatenate([maps.heads, maps.heads.mean(axis=0, keepdims=True)])
    said = np.concatenate([heads, heads / (heads.sum(axis=1, keepdims=True) + _LEAST)])
    beside = np.concatenate([_shift(said, *place) for place in _BESIDE])
    targets, sources = maps.heads.shape[1:]
    places = (np.arange(targets) + 0.5)[:, None] / max(targets, 1), (np.arange(sources) + 0.5) / max(sources, 1)
    distance = np.abs(places[0] - places[1])
    nowhere = np.broadcast_to(maps.nowhere, maps.heads.shape)
    return np.concatenate([beside, np.log(beside + _LEAST), nowhere, distance[None], np.ones((1, targets, sources))])


def neighbour_features(answer: Matrix) -> Matrix:
    """The probabilities (T, S) of the pairs around each pair, and the strongest rivals in its row and column."""
    given = answer / (answer.sum(axis=1, keepdims=True) + _LEAST)
    received = answer / (answer.sum(axis=0) + _LEAST)
    around = [_shift(each[None], *place) for each in (answer, given, received) for place in _AROUND]
    logarithms = [np.log(_shift(answer[None], *place) + _LEAST) for place in _AROUND]
    rivals = np.stack([_rival(answer, 0), _rival(answer, 1)])
    return np.concatenate([*around, *logarithms, rivals, np.log(rivals + _LEAST)])


def _shift(maps: Matrix, target: int, source: int) -> Matrix:
    """Each pair's neighbour, so many words on; 0 where there is none."""
    shifted = np.zeros_like(maps)
    rows, columns = maps.shape[1:]
    if abs(target) < rows and abs(source) < columns:
        to_rows, from_rows = _overlap(target, rows)
        to_columns, from_columns = _overlap(source, columns)
        shifted[:, to_rows, to_columns] = maps[:, from_rows, from_columns]
    return shifted


def _overlap(step: int, length: int) -> tuple[slice, slice]:
    return slice(max(0, -step), length - max(0, step)), slice(max(0, step), length + min(0, step))


def _rival(answer: Matrix, axis: int) -> Matrix:
    """The greatest of the others in the same row or column."""
    if answer.shape[axis] < 2:
        return np.zeros_like(answer)
    ordered = np.sort(answer, axis=axis)
    best, second = np.take(ordered, [-1], axis=axis), np.take(ordered, [-2], axis=axis)
    return np.where(answer == best, second, best)


def probability(features: Matrix, weights: Matrix) -> Matrix:
    """The logistic function of the weighted sum of features (F, T, S), (T, S)."""
    total = np.einsum("fts,f->ts", features, weights)
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(total, -30.0, 30.0))))


def fit_logistic(features: Sequence[Matrix], links: Sequence[Matrix]) -> Matrix:
    """Logistic regression by Newton's method.

    Args:
        features: of each sentence, (F, T, S).
        links: 1 where two words translate each other and 0 elsewhere, (T, S).

    Returns:
        The weights, (F,).
    """
    x = np.concatenate([each.reshape(len(each), -1) for each in features], axis=1).T  # (words² of all, F)
    y = np.concatenate([each.ravel() for each in links])
    scale = x.std(axis=0) + 1e-6
    x = x / scale
    weights = np.zeros(x.shape[1])
    for _ in range(_MOST_ITERATIONS):
        guess = 1.0 / (1.0 + np.exp(-np.clip(x @ weights, -30.0, 30.0)))
        gradient = x.T @ (y - guess) - _PENALTY * weights
        curvature = (x * (guess * (1.0 - guess))[:, None]).T @ x + _PENALTY * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if np.abs(step).max() < 1e-6:
            break
    return np.asarray(weights / scale)
