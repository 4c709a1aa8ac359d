"""Draw the pictures of docs/questions.md as SVG, with English and with Chinese labels, from the model's own components.

    python docs/draw_pictures.py

Pictures have dark lines on a transparent background, and invert themselves on a dark page. Equal code gives equal
files.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from transduce.model.attention import attend
from transduce.model.masks import AttentionMask, look_ahead_mask
from transduce.model.positions import RotaryPositions, sinusoids
from transduce.training.schedule import learning_rate, paper_peak

FOLDER = Path(__file__).parent / "pictures" / "questions"
LANGUAGES = ("en", "zh")
COLORS = ("#1f6f9f", "#b85c00", "#2f7d32", "#7a3e9d")
INK, PALE = "#333333", "#dddddd"
DARK_STYLE = "@media (prefers-color-scheme: dark) { svg { filter: invert(1) hue-rotate(180deg) } }"
"""The style of a picture that is inverted, hues kept, where the page around it is dark."""


class Drawing:
    """A picture under construction: shapes with coordinates in pixels, from the upper left corner."""

    def __init__(self, width: int, height: int) -> None:
        self.size = (width, height)
        self.shapes: list[str] = []

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str = "none", line: str = INK) -> None:
        """Add a rectangle."""
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" stroke="{line}"/>'
        )

    def line(self, points: Sequence[tuple[float, float]], color: str = INK, *, arrow: bool = False) -> None:
        """Add a line through points; with `arrow`, it ends in an arrowhead."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self.shapes.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"{end}/>')

    def text(self, x: float, y: float, text: str, anchor: str = "middle", color: str = INK) -> None:
        """Add a line of text with its anchor at x and its baseline at y."""
        self.shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{text}</text>')

    def matrix(self, x: float, y: float, rows: Sequence[Sequence[float]], cell: float, color: str = COLORS[0]) -> None:
        """Add a matrix of cells whose numbers, 0 to 1, set the opacity of a color."""
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                self.shapes.append(
                    f'<rect x="{x + j * cell:.1f}" y="{y + i * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}" '
                    f'fill="{color}" fill-opacity="{value:.2f}" stroke="{PALE}" stroke-width="0.5"/>'
                )

    def curves(
        self,
        box: tuple[float, float, float, float],
        curves: dict[str, list[tuple[float, float]]],
        *,
        labels_at: Callable[[int], tuple[float, float]],
    ) -> None:
        """Add curves of numbers between 0 and 1 in a box (x, y, width, height), each with a name in its color."""
        x, y, width, height = box
        self.line([(x, y), (x, y + height), (x + width, y + height)])
        for number, (name, points) in enumerate(curves.items()):
            self.line([(x + width * u, y + height * (1 - v)) for u, v in points], COLORS[number])
            u, v = labels_at(number)
            self.text(x + width * u, y + height * (1 - v), name, "start", COLORS[number])

    def svg(self) -> str:
        """Return the picture as an SVG document."""
        width, height = self.size
        marker = (
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 8 4 0 8z" fill="{INK}"/></marker><style>{DARK_STYLE}</style></defs>'
        )
        shapes = "\n".join(self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="13">\n{marker}\n{shapes}\n</svg>\n'
        )


# --- attention ---


def projections(label: Callable[[str, str], str]) -> Drawing:
    """Draw the matrices of attention with their shapes, from X to the output."""
    drawing = Drawing(640, 250)

    def block(box: tuple[float, float, float, float], name: str, shape: str, color: str) -> None:
        x, y, width, height = box
        drawing.rectangle(x, y, width, height, color)
        drawing.text(x + width / 2, y + height / 2 + 5, name)
        drawing.text(x + width / 2, y + height + 16, shape)

    block((10, 80, 70, 60), "X", "T × D", "#eeeeee")
    for number, (name, width) in enumerate((("Q", "d_k"), ("K", "d_k"), ("V", "d_v"))):
        y = 5 + 83 * number
        drawing.line([(80, 110), (160, y + 30)], arrow=True)
        drawing.text(104, (64, 104, 168)[number], f"W_{name}")
        block((162, y, 45, 56), name, f"T × {width}", ("#cfe3f0", "#f3dcc4", "#d3e8d4")[number])
    drawing.line([(207, 33), (280, 62)], arrow=True)
    drawing.line([(207, 116), (280, 82)], arrow=True)
    block((282, 42, 60, 60), "Q Kᵀ", "T × T", "#eeeeee")
    drawing.line([(342, 72), (420, 72)], arrow=True)
    drawing.text(381, 62, "softmax")
    drawing.text(381, 90, "/ √d_k")
    block((422, 42, 60, 60), label("weights", "权重"), "T × T", "#e4d7ee")
    drawing.line([(482, 72), (560, 110)], arrow=True)
    drawing.line([(207, 199), (560, 130)], arrow=True)
    block((562, 90, 60, 60), label("output", "输出"), "T × d_v", "#eeeeee")
    return drawing


def scaling(label: Callable[[str, str], str]) -> Drawing:
    """Draw the softmax of ten scores of width 64, without scaling and divided by √64."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(10, 64, generator=generator) @ torch.randn(64, generator=generator)
    drawing = Drawing(520, 150)
    for number, (name, row) in enumerate(((label("q · k", "q · k"), scores), ("q · k / √64", scores / 8))):
        x = 20 + 250 * number
        for j, weight in enumerate(row.softmax(dim=0).tolist()):
            drawing.rectangle(x + 22 * j, 110 - 95 * weight, 16, 95 * weight + 0.5, COLORS[number], COLORS[number])
        drawing.line([(x - 4, 111), (x + 220, 111)])
        drawing.text(x + 108, 138, name)
    return drawing


def mask(label: Callable[[str, str], str]) -> Drawing:
    """Draw the attention weights of three keys, one of them masked, for an additive and a multiplicative mask."""
    query, value = torch.tensor([2.0, 1.0]).view(1, 1, 1, 2), torch.eye(3).view(1, 1, 3, 3)
    key = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 2.0]]).view(1, 1, 3, 2)
    present = torch.tensor([True, True, False])
    scores = (query @ key.transpose(-1, -2) / 2**0.5).flatten()
    added = attend(query, key, value, AttentionMask(present.view(1, 1, 1, 3))).flatten()
    multiplied = (scores * present).softmax(dim=0)
    drawing = Drawing(520, 165)
    for number, (name, weights) in enumerate(
        ((label("added", "相加"), added), (label("multiplied", "相乘"), multiplied))
    ):
        x = 40 + 250 * number
        for j, weight in enumerate(weights.tolist()):
            color = COLORS[1] if j == 2 else COLORS[0]
            drawing.rectangle(x + 60 * j, 115 - 100 * weight, 40, 100 * weight + 0.5, color, color)
            drawing.text(x + 60 * j + 20, 108 - 100 * weight, f"{weight:.2f}")
            drawing.text(x + 60 * j + 20, 131, label("hidden", "遮住") if j == 2 else "k" + "₁₂"[j])
        drawing.line([(x - 10, 116), (x + 175, 116)])
        drawing.text(x + 82, 155, name)
    return drawing


def batch(label: Callable[[str, str], str]) -> Drawing:
    """Draw the scores of two sentences of a batch: a square for each, and nothing between them."""
    drawing = Drawing(330, 190)
    for number, (first, length) in enumerate(((0, 4), (4, 3))):
        x, y = 60 + 30 * first, 25 + 20 * first
        drawing.rectangle(x, y, 30 * length, 20 * length, ("#cfe3f0", "#f3dcc4")[number], COLORS[number])
        drawing.text(x + 15 * length, y + 10 * length + 5, label(f"sentence {number + 1}", f"句子 {number + 1}"))
    drawing.rectangle(60, 25, 210, 140, "none", PALE)
    drawing.text(225, 70, label("no scores", "没有分数"))
    drawing.text(120, 140, label("no scores", "没有分数"))
    drawing.text(165, 17, label("keys", "键"))
    drawing.text(30, 100, label("queries", "查询"))
    return drawing


def complexity(label: Callable[[str, str], str]) -> Drawing:
    """Draw the operations of layers of width 512 by length, both axes logarithmic."""
    width, kernel, radius = 512, 3, 32
    lengths = [2**exponent for exponent in range(4, 14)]
    counts = {
        label("self-attention, n² d", "自注意力 n² d"): lambda n: n * n * width,
        label("recurrent, n d²", "循环 n d²"): lambda n: n * width**2,
        label("convolution, 3 n d²", "卷积 3 n d²"): lambda n: kernel * n * width**2,
        label("32 neighbors, 32 n d", "32 个邻居 32 n d"): lambda n: radius * n * width,
    }
    low, high = math.log(1.2e5), math.log(4e10)

    def height(count: float) -> float:
        return (math.log(count) - low) / (high - low)

    curves = {name: [(i / 9 * 0.72, height(count(n))) for i, n in enumerate(lengths)] for name, count in counts.items()}
    drawing = Drawing(560, 280)
    drawing.curves((40, 20, 500, 220), curves, labels_at=lambda n: (0.735, (0.97, 0.71, 0.82, 0.50)[n]))
    for i, n in enumerate(lengths):
        if i % 3 == 0 or n == 512:
            drawing.text(40 + 500 * 0.72 * i / 9, 258, f"{n:,}")
    drawing.text(470, 258, label("length n", "长度 n"))
    drawing.text(44, 14, label("operations", "运算量"), "start")
    return drawing


# --- positions ---


def periods(label: Callable[[str, str], str]) -> Drawing:
    """Draw four columns of the sinusoids of width 64 over 100 positions."""
    table = sinusoids(100, 64, interleaved=True)
    drawing = Drawing(560, 300)
    for number, pair in enumerate((0, 4, 8, 14)):
        y = 38 + 68 * number
        drawing.line([(90, y), (540, y)], PALE)
        drawing.line([(90 + 4.5 * pos, y - 26 * float(table[pos, 2 * pair])) for pos in range(100)], COLORS[number])
        drawing.text(84, y + 5, label(f"pair {pair}", f"第 {pair} 对"), "end", COLORS[number])
    drawing.text(315, 292, label("position 0 … 99", "位置 0 … 99"))
    return drawing


def rotary(label: Callable[[str, str], str]) -> Drawing:
    """Draw the dot products of one query and one key with rotary embedding, at all pairs of 12 positions."""
    generator = torch.Generator().manual_seed(3)
    rotation = RotaryPositions(8)(torch.arange(12), torch.float32)
    query, key = (torch.randn(1, 1, 1, 8, generator=generator).expand(1, 1, 12, 8) for _ in range(2))
    products = (rotation.apply(query) @ rotation.apply(key).transpose(-1, -2))[0, 0]
    shades = (products - products.min()) / (products.max() - products.min())
    drawing = Drawing(330, 300)
    drawing.matrix(60, 30, shades.tolist(), 20)
    drawing.text(180, 20, label("position n of the key", "键的位置 n"))
    drawing.text(180, 290, label("equal along each diagonal", "沿每条对角线相等"))
    drawing.text(52, 155, label("m", "m"), "end")
    return drawing


# --- layers ---


def norm(label: Callable[[str, str], str]) -> Drawing:
    """Draw which cells of a table of words and dimensions LayerNorm and BatchNorm normalize together."""
    drawing = Drawing(560, 190)
    for number, name in enumerate(("LayerNorm", "BatchNorm")):
        x = 75 + 275 * number
        cells = [[0.75 if (i == 1 if number == 0 else j == 2) else 0.0 for j in range(6)] for i in range(4)]
        drawing.matrix(x, 35, cells, 30, COLORS[number])
        drawing.text(x + 90, 180, name)
        drawing.text(x + 90, 26, label("dimensions of the embedding", "词嵌入的各维"))
        for i, word in enumerate(label("the cat sat down", "这 只 猫 坐下").split()):
            drawing.text(x - 8, 55 + 30 * i, word, "end")
    return drawing


def gradient(label: Callable[[str, str], str]) -> Drawing:
    """Draw the paths of the gradient from the loss through the decoder layers and the encoder output."""
    drawing = Drawing(470, 300)
    for number in range(3):
        y = 200 - 65 * number
        drawing.rectangle(280, y, 150, 38, "#cfe3f0")
        drawing.text(355, y + 24, label(f"decoder layer {number + 1}", f"解码层 {number + 1}"))
        drawing.line([(280, y + 19), (182, 80 - 13 * number)], COLORS[1], arrow=True)
        drawing.line([(355, y - 27), (355, y - 1)], arrow=True)
    drawing.text(355, 38, label("loss", "损失"))
    drawing.line([(355, 238), (355, 262)], arrow=True)
    drawing.text(355, 280, label("target embeddings", "目标词嵌入"))
    drawing.rectangle(70, 48, 110, 38, "#f3dcc4")
    drawing.text(125, 72, label("memory: sum", "memory：求和"))
    drawing.line([(125, 86), (125, 118)], arrow=True)
    drawing.rectangle(50, 120, 150, 100, "#eeeeee")
    drawing.text(125, 175, label("encoder layers", "编码器各层"))
    drawing.line([(125, 220), (125, 262)], arrow=True)
    drawing.text(125, 280, label("source embeddings", "源词嵌入"))
    return drawing


def shifted(label: Callable[[str, str], str]) -> Drawing:
    """Draw the look-ahead mask with the decoder's inputs as columns, and the targets of its rows."""
    inputs, targets = ("&lt;s&gt;", "I", "love", "you"), ("I", "love", "you", "&lt;/s&gt;")
    allowed = look_ahead_mask(4).allowed[0, 0].float().mul(0.7).tolist()
    drawing = Drawing(430, 230)
    drawing.matrix(120, 50, allowed, 40)
    for i in range(4):
        drawing.text(140 + 40 * i, 42, inputs[i])
        drawing.text(292, 75 + 40 * i, f"→ {targets[i]}", "start")
        drawing.text(110, 75 + 40 * i, label(f"position {i}", f"位置 {i}"), "end")
    drawing.text(200, 18, label("input of the decoder", "解码器的输入"))
    drawing.text(365, 42, label("to predict", "要预测的词"))
    return drawing


# --- training, and images ---


def warmup(label: Callable[[str, str], str]) -> Drawing:
    """Draw the paper's learning rate over 20,000 steps."""
    peak = paper_peak(512, 4000)
    rates = [
        (step / 20_000, learning_rate(step, schedule="inverse-sqrt", peak=peak, warmup_steps=4000, steps=None) / peak)
        for step in range(0, 20_001, 200)
    ]
    drawing = Drawing(480, 220)
    drawing.curves((60, 20, 400, 160), {"": rates}, labels_at=lambda _: (0.0, 0.0))
    drawing.text(140, 198, "4,000")
    drawing.text(460, 198, "20,000", "end")
    drawing.text(300, 215, label("step", "步数"))
    drawing.text(54, 30, f"{peak:.4f}", "end")
    return drawing


def patches(label: Callable[[str, str], str]) -> Drawing:
    """Draw an image of 4 × 4 patches beside the sequence that it becomes."""
    drawing = Drawing(560, 170)
    for number in range(16):
        i, j = divmod(number, 4)
        shade = f"hsl({200 + 10 * number}, 45%, {80 - 2 * number}%)"
        drawing.rectangle(20 + 26 * j, 25 + 26 * i, 24, 24, shade)
        drawing.rectangle(186 + 22 * number, 65, 18, 24, shade)
    drawing.line([(132, 77), (180, 77)], arrow=True)
    drawing.text(72, 152, label("image", "图像"))
    drawing.text(362, 112, label("sequence of patches = tokens", "小块的序列，相当于词元"))
    return drawing


PICTURES = (projections, scaling, mask, batch, complexity, periods, rotary, norm, gradient, shifted, warmup, patches)


def suffix_of(language: str) -> str:
    """Return what stands before the suffix of the files of pictures in a language."""
    return "" if language == "en" else f".{language}"


def draw(language: str) -> dict[str, str]:
    """Return all pictures with labels in a language, as SVG by file name."""

    def label(english: str, chinese: str) -> str:
        return english if language == "en" else chinese

    return {f"{picture.__name__}{suffix_of(language)}.svg": picture(label).svg() for picture in PICTURES}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        for name, svg in draw(language).items():
            (FOLDER / name).write_text(svg, "utf-8", newline="\n")


if __name__ == "__main__":
    main()
