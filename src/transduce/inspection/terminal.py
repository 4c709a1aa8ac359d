"""Attention drawn with characters: a row a target word, a column a source word, darker where more is looked at."""

from rich.cells import cell_len

from transduce.inspection.attention import WordAttention

_SHADES = " ░▒▓█"


def draw_attention(attention: WordAttention) -> str:
    """A table of shades with words at its edges; Chinese words take two columns a character."""
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
