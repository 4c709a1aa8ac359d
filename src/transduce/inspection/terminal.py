"""Draw attention weights and probabilities of a translation as text for a terminal."""

from rich.cells import cell_len

from transduce.inspection.attention import WordAttention
from transduce.inspection.payload import Inspection, Step

_SHADES = " ░▒▓█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 20
_MAX_ALTERNATIVES = 3


def draw_attention(attention: WordAttention) -> str:
    """Return a table of shades, with a row per target word and a column per source word; darker means more attention.

    Chinese characters are two columns wide.
    """
    label_width = max((cell_len(word) for word in attention.target_words), default=0)
    widths = [max(2, cell_len(word)) for word in attention.source_words]
    header = " ".join(_fit(word, width) for word, width in zip(attention.source_words, widths, strict=True))
    lines = [" " * label_width + "  " + header]
    for word, row in zip(attention.target_words, attention.weights, strict=True):
        maximum = float(row.max(initial=0.0)) or 1.0
        shades = (_SHADES[min(4, int(float(weight) / maximum * 4.999))] for weight in row)
        cells = " ".join(_fit(shade * 2, width) for shade, width in zip(shades, widths, strict=True))
        lines.append(" " * (label_width - cell_len(word)) + word + "  " + cells)
    return "\n".join(line.rstrip() for line in lines)


def _fit(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def draw_inspection(inspection: Inspection, attention: WordAttention) -> str:
    """Return the translation, each token's probability beside its alternatives, and the word-level attention table."""
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
    """Return a line per token: its probability as a number and a bar, and the likeliest alternatives."""
    width = max((cell_len(step.piece) for step in steps), default=0)
    lines = []
    for step in steps:
        alternatives = [candidate for candidate in step.candidates if candidate.piece != step.piece][:_MAX_ALTERNATIVES]
        alternatives_text = "  ".join(
            f"{candidate.piece} {100 * candidate.probability:.1f}" for candidate in alternatives
        )
        bar = draw_bar(step.probability, _BAR_CELLS)
        lines.append(
            f"{_fit(step.piece, width)}  {100 * step.probability:5.1f} %  {_fit(bar, _BAR_CELLS)}  {alternatives_text}"
        )
    return "\n".join(line.rstrip() for line in lines)


def draw_bar(share: float, cells: int) -> str:
    """Return a bar whose length is `share` (0 to 1) of `cells` columns, to an eighth of a column."""
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
