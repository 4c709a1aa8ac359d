"""Typed data about one inspected translation, which the page, the terminal and notebooks show.

Shapes: N layers, H heads, Q queries, L keys.
"""

import base64

import msgspec
import numpy as np
import numpy.typing as npt

from transduce.inspection.notebook import framed
from transduce.inspection.page import render_page
from transduce.inspection.pronouns import PronounAttention


class Candidate(msgspec.Struct, frozen=True):
    """A possible token at a step, with its probability."""

    piece: str
    probability: float


class Step(msgspec.Struct, frozen=True):
    """A token of the translation, or the final end symbol, with its probability and the alternatives."""

    piece: str
    probability: float
    """The model's probability of the token, given the source and the previous tokens."""
    candidates: tuple[Candidate, ...]
    """The likeliest tokens at this position, likeliest first."""


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A hypothesis that the beam kept at some step: its parent and one more token."""

    parent: int
    """Index in the list of nodes; -1 for the root, which has no token."""
    piece: str
    log_probability: float
    """Log-probability of all tokens up to this one, in nats."""
    ended: bool = False
    """True if the hypothesis was finished here, by the end symbol or the length limit."""
    score: float | None = None
    """Score by which a finished hypothesis is ranked: the log-probability divided by the length penalty."""
    best: bool = False
    """True if the node is part of the translation."""


class AttentionBytes(msgspec.Struct, frozen=True):
    """Attention weights of every layer and head as bytes, where 255 stands for 1."""

    shape: tuple[int, int, int, int]
    """(N, H, Q, L)."""
    weights: str
    """The bytes in base64."""


class WordAlignment(msgspec.Struct, frozen=True):
    """Attention of each target word to each source word."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    """(target words, source words), rounded to three decimals."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """An inspected sentence: its translation, and how the model and the search produced it."""

    model: str
    """Size of the model in one line."""
    source: str
    translation: str
    score: float
    """The translation's log-probability divided by the length penalty."""
    source_language: str | None
    target_language: str | None
    source_pieces: tuple[str, ...]
    """Source tokens with the end symbol."""
    target_pieces: tuple[str, ...]
    """Target tokens, with the end symbol if the search reached it."""
    beam_size: int
    steps: tuple[Step, ...]
    words: WordAlignment
    encoder: AttentionBytes
    """Encoder self-attention: source tokens to source tokens."""
    decoder: AttentionBytes
    """Decoder self-attention: each predicted token to the start symbol and the tokens before it."""
    memory: AttentionBytes
    """Cross-attention: each predicted token to the source tokens."""
    tree: tuple[TreeNode, ...]
    """Nodes of the hypothesis tree, parents before children."""
    coreference: PronounAttention | None = None
    """Attention from a pronoun to earlier words, if one was asked for."""

    def to_html(self) -> str:
        """Return a self-contained HTML page that shows the inspection without further files or network access."""
        return render_page(f"{self.source} → {self.translation}", msgspec.json.encode(self).decode())

    def _repr_html_(self) -> str:
        return framed(self.to_html())


def to_bytes(weights: npt.NDArray[np.float32]) -> AttentionBytes:
    """Return attention weights (N, H, Q, L) as bytes; each weight has an error of at most 1/510."""
    layers, heads, queries, keys = weights.shape
    quantized = np.rint(np.clip(weights, 0.0, 1.0) * 255.0).astype(np.uint8)
    return AttentionBytes((layers, heads, queries, keys), base64.b64encode(quantized.tobytes()).decode("ascii"))


def from_bytes(attention: AttentionBytes) -> npt.NDArray[np.float32]:
    """Return the weights (N, H, Q, L) from their bytes."""
    quantized = np.frombuffer(base64.b64decode(attention.weights), dtype=np.uint8)
    return np.asarray(quantized.reshape(attention.shape) / np.float32(255.0), dtype=np.float32)
