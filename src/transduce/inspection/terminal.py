"""What a terminal can show of a translation: shades for attention, bars for probabilities."""

from rich.cells import cell_len

from transduce.inspection.attention import WordAttention
from transduce.inspection.payload import Inspection, Step

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
