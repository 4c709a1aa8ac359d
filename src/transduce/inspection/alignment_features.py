"""Features of word pairs from attention, and the logistic regression that turns them into link probabilities.

Shapes: C heads of all layers, T target words, S source words, F features.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[Any]
_EPSILON = 1e-3  # added in logarithms and divisors
_PENALTY = 3.0  # L2 regularization of the weights of standardized features
_MAX_ITERATIONS = 25
_BESIDE = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
_AROUND = tuple((target, source) for target in (-1, 0, 1) for source in (-1, 0, 1))


class WordMaps(NamedTuple):
    """Cross-attention between the words of a sentence pair."""

    heads: Matrix
    """Attention of each target word to each source word, (C, T, S)."""
    nowhere: Matrix
    """Attention of each target word to the end symbol, which is high for words without a counterpart, (C, T, 1)."""

    def only(self, heads: Matrix) -> "WordMaps":
        """Return the maps of these heads only, by number."""
        return WordMaps(self.heads[heads], self.nowhere[heads])


def head_features(maps: WordMaps) -> Matrix:
    """Return features of each word pair and its adjacent pairs from every head, (F, T, S).

    Each head contributes the attention that a target word pays, and its share of the attention that a source word
    receives. The mean of all heads and the distance of the words' relative positions are further features.
    """
    heads = np.concatenate([maps.heads, maps.heads.mean(axis=0, keepdims=True)])
    attention = np.concatenate([heads, heads / (heads.sum(axis=1, keepdims=True) + _EPSILON)])
    adjacent = np.concatenate([_shift(attention, *offset) for offset in _BESIDE])
    targets, sources = maps.heads.shape[1:]
    relative_positions = (
        (np.arange(targets) + 0.5)[:, None] / max(targets, 1),
        (np.arange(sources) + 0.5) / max(sources, 1),
    )
    distance = np.abs(relative_positions[0] - relative_positions[1])
    nowhere = np.broadcast_to(maps.nowhere, maps.heads.shape)
    return np.concatenate(
        [adjacent, np.log(adjacent + _EPSILON), nowhere, distance[None], np.ones((1, targets, sources))]
    )


def neighbour_features(answer: Matrix) -> Matrix:
    """Return features from the link probabilities (T, S) around each pair and in its row and column."""
    row_normalized = answer / (answer.sum(axis=1, keepdims=True) + _EPSILON)
    column_normalized = answer / (answer.sum(axis=0) + _EPSILON)
    around = [
        _shift(matrix[None], *offset) for matrix in (answer, row_normalized, column_normalized) for offset in _AROUND
    ]
    logarithms = [np.log(_shift(answer[None], *offset) + _EPSILON) for offset in _AROUND]
    strongest_others = np.stack([_strongest_other(answer, 0), _strongest_other(answer, 1)])
    return np.concatenate([*around, *logarithms, strongest_others, np.log(strongest_others + _EPSILON)])


def _shift(maps: Matrix, target: int, source: int) -> Matrix:
    """Return the maps shifted so that each entry holds the pair this many words later; 0 if there is none."""
    shifted = np.zeros_like(maps)
    rows, columns = maps.shape[1:]
    if abs(target) < rows and abs(source) < columns:
        to_rows, from_rows = _overlap(target, rows)
        to_columns, from_columns = _overlap(source, columns)
        shifted[:, to_rows, to_columns] = maps[:, from_rows, from_columns]
    return shifted


def _overlap(step: int, length: int) -> tuple[slice, slice]:
    return slice(max(0, -step), length - max(0, step)), slice(max(0, step), length + min(0, step))


def _strongest_other(answer: Matrix, axis: int) -> Matrix:
    """Return the greatest other value in the same row or column of each entry."""
    if answer.shape[axis] < 2:
        return np.zeros_like(answer)
    ordered = np.sort(answer, axis=axis)
    best, second = np.take(ordered, [-1], axis=axis), np.take(ordered, [-2], axis=axis)
    return np.where(answer == best, second, best)


def probability(features: Matrix, weights: Matrix) -> Matrix:
    """Return the logistic function of the weighted sum of features (F, T, S), (T, S)."""
    total = np.einsum("fts,f->ts", features, weights)
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(total, -30.0, 30.0))))


def fit_logistic(features: Sequence[Matrix], links: Sequence[Matrix]) -> Matrix:
    """Fit a logistic regression by Newton's method.

    Args:
        features: features of each sentence, (F, T, S).
        links: 1 if two words translate each other, else 0, (T, S).

    Returns:
        The weights, (F,).
    """
    x = np.concatenate([matrix.reshape(len(matrix), -1) for matrix in features], axis=1).T  # (words² of all, F)
    y = np.concatenate([matrix.ravel() for matrix in links])
    scale = x.std(axis=0) + 1e-6
    x = x / scale
    weights = np.zeros(x.shape[1])
    for _ in range(_MAX_ITERATIONS):
        predicted = 1.0 / (1.0 + np.exp(-np.clip(x @ weights, -30.0, 30.0)))
        gradient = x.T @ (y - predicted) - _PENALTY * weights
        curvature = (x * (predicted * (1.0 - predicted))[:, None]).T @ x + _PENALTY * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if np.abs(step).max() < 1e-6:
            break
    return np.asarray(weights / scale)
