"""What a terminal can show of a translation: shades for attention, bars for probabilities."""

import base64

import msgspec
import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from transduce.inspection.attention import WordAttention, framed
from transduce.inspection.page import render_page
from transduce.inspection.pronouns import PronounAttention

# --- payload ---
# What `transduce inspect` shows of one translation, as typed data: the page's, the terminal's and the notebook's.
# Legend: N layers, H heads, Q queries, L keys.


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


# --- sentence view ---


_SHADES = " ░▒▓█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 20
_RIVALS = 3


def draw_attention(attention: WordAttention) -> str:
    """A table of shades: a row a target word, a column a source word, darker where more is looked at.

    Chinese words take two columns a character.
    """
    left = max((cell_len(word) for word in attention.target_words), default=0)
    widths = [max(2, cell_len(word)) for word in attention.source_words]
    header = " ".join(_fit(word, width) for word, width in zip(attention.source_words, widths, strict=True))
    lines = [" " * left + "  " + header]
    for word, row in zip(attention.target_words, attention.weights, strict=True):
        most = float(row.max(initial=0.0)) or 1.0
        shades = (_SHADES[min(4, int(float(weight) / most * 4.999))] for weight in row)
        cells = " ".join(_fit(shade * 2, width) for shade, width in zip(shades, widths, strict=True))
        lines.append(" " * (left - cell_len(word)) + word + "  " + cells)
    return "\n".join(line.rstrip() for line in lines)


def _fit(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def draw_inspection(inspection: Inspection, attention: WordAttention) -> str:
    """The translation, each piece's probability beside its rivals, and which words look at which."""
    ended = [node for node in inspection.tree if node.ended]
    return "\n".join(
        [
            f"{inspection.source}  →  {inspection.translation}",
            f"score {inspection.score:.3f}; {len(ended)} of {len(inspection.tree) - 1} kept hypotheses ended",
            "",
            draw_steps(inspection.steps),
            "",
            draw_attention(attention),
        ]
    )


def draw_steps(steps: tuple[Step, ...]) -> str:
    """A line a piece: its probability as a figure and a bar, and the likeliest others."""
    width = max((cell_len(step.piece) for step in steps), default=0)
    lines = []
    for step in steps:
        others = [candidate for candidate in step.candidates if candidate.piece != step.piece][:_RIVALS]
        rivals = "  ".join(f"{candidate.piece} {100 * candidate.probability:.1f}" for candidate in others)
        bar = draw_bar(step.probability, _BAR_CELLS)
        lines.append(f"{_fit(step.piece, width)}  {100 * step.probability:5.1f} %  {_fit(bar, _BAR_CELLS)}  {rivals}")
    return "\n".join(line.rstrip() for line in lines)


def draw_bar(share: float, cells: int) -> str:
    """A bar as long as the share of so many cells, to an eighth of one."""
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
