"""What `transduce inspect` shows of one translation, as typed data: the page's, the terminal's and the notebook's.

Legend: N layers, H heads, Q queries, L keys.
"""

import base64

import msgspec
import numpy as np
import numpy.typing as npt

from transduce.inspection.notebook import framed
from transduce.inspection.page import render_page
from transduce.inspection.pronouns import PronounAttention


class Candidate(msgspec.Struct, frozen=True):
    """A piece that could have been written at a step."""

    piece: str
    probability: float


class Step(msgspec.Struct, frozen=True):
    """A piece of the translation, or the end symbol that closes it."""

    piece: str
    probability: float
    """By the model, given the source and the pieces before."""
    candidates: tuple[Candidate, ...]
    """The likeliest pieces at this place, likeliest first."""


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A hypothesis that the beam kept at some step: its parent, and one piece more."""

    parent: int
    """Place in the list of nodes; -1 for the root, which has no piece."""
    piece: str
    log_probability: float
    """Of all pieces up to here, in nats."""
    ended: bool = False
    """The search closed it here: by the end symbol, or because it was as long as it may be."""
    score: float | None = None
    """What an ended one is ranked by: the log-probability over the length penalty."""
    best: bool = False
    """Whether it is a part of the translation."""


class AttentionBytes(msgspec.Struct, frozen=True):
    """Attention of every layer and head in bytes: 255 stands for 1."""

    shape: tuple[int, int, int, int]
    """(N, H, Q, L)."""
    weights: str
    """The bytes in base64."""


class WordAlignment(msgspec.Struct, frozen=True):
    """How much each target word looks at each source word."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    """(target words, source words), rounded to thousandths."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence, its translation, and how the model came to it."""

    model: str
    """Its name and size."""
    source: str
    translation: str
    score: float
    """The translation's log-probability over the length penalty."""
    source_language: str | None
    target_language: str | None
    source_pieces: tuple[str, ...]
    """With the end symbol."""
    target_pieces: tuple[str, ...]
    """With the end symbol, also where the search was cut before it."""
    beam_size: int
    steps: tuple[Step, ...]
    words: WordAlignment
    encoder: AttentionBytes
    """Source pieces to source pieces."""
    decoder: AttentionBytes
    """A piece that is about to be written to what was written before: the start symbol, then all but the last piece."""
    memory: AttentionBytes
    """A piece that is about to be written to source pieces."""
    tree: tuple[TreeNode, ...]
    """Parents before their children."""
    coreference: PronounAttention | None = None
    """From a pronoun of the source, or of the translation, to the words before it; None where none was asked about."""

    def to_html(self) -> str:
        """A page that shows all of it and needs no other file and no network."""
        return render_page(f"{self.source} → {self.translation}", msgspec.json.encode(self).decode())

    def _repr_html_(self) -> str:
        return framed(self.to_html())


def to_bytes(weights: npt.NDArray[np.float32]) -> AttentionBytes:
    """Attention (N, H, Q, L) in bytes; each weight is off by at most 1/510."""
    layers, heads, queries, keys = weights.shape
    quantised = np.rint(np.clip(weights, 0.0, 1.0) * 255.0).astype(np.uint8)
    return AttentionBytes((layers, heads, queries, keys), base64.b64encode(quantised.tobytes()).decode("ascii"))


def from_bytes(attention: AttentionBytes) -> npt.NDArray[np.float32]:
    """The weights (N, H, Q, L) as they were stored."""
    quantised = np.frombuffer(base64.b64decode(attention.weights), dtype=np.uint8)
    return np.asarray(quantised.reshape(attention.shape) / np.float32(255.0), dtype=np.float32)
