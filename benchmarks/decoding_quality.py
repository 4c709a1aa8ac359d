"""What the fast paths of decoding change against float32, for decoding_speed.py."""

from pathlib import Path

import sacrebleu
from report import Row

from transduce.runtime.translator import Translator, load
from transduce.search.settings import SearchSettings


def quality_rows(size: str, folder: Path, sources: list[str], references: list[str], threads: int) -> list[Row]:
    """The fast paths against float32: BLEU, greedy near-ties, the beam's mean score."""
    exact = load(folder, precision="fp32", device="cpu", threads=threads)
    searches = {beam_size: SearchSettings(beam_size=beam_size) for beam_size in (1, 4)}
    expected = {beam: [each.text for each in exact.translate(sources, search)] for beam, search in searches.items()}
    rows = []
    for precision in ("auto", "int8"):
        fast = load(folder, precision=precision, device="cpu", threads=threads)
        for beam_size, search in searches.items():
            texts = [[each.text for each in fast.translate(sources, search)], expected[beam_size]]
            name = f"{size}, {precision} ({fast.precision}) against fp32, beam {beam_size}"
            bleu, exact_bleu = (sacrebleu.corpus_bleu(found, [references]).score for found in texts)
            near = abs(bleu - exact_bleu) <= 0.1
            rows.append(Row(f"{name}, BLEU", bleu, "BLEU", "fp32", exact_bleu, None, "within 0.1", near))
            different = [n for n, (one, other) in enumerate(zip(*texts, strict=True)) if one != other]
            rows.append(Row(f"{name}, translations that differ", len(different), f"of {len(sources):,}"))
            rows.append(_score_row(name, exact, sources, texts))
            if beam_size == 1:
                gap = max((_gap(exact, sources[n], texts[0][n], texts[1][n]) for n in different), default=0.0)
                row = Row(f"{name}, greatest gap at the first difference", gap, "nats", bar="< 0.05", holds=gap < 0.05)
                rows.append(row)
    return rows


def _score_row(name: str, exact: Translator, sources: list[str], texts: list[list[str]]) -> Row:
    """The mean log-probability of a piece, by the exact model."""
    means = []
    for found in texts:
        scores = exact.score(sources, found)
        total = sum(len(score.piece_log_probabilities) for score in scores)
        means.append(sum(score.log_probability for score in scores) / total)
    holds = means[0] >= means[1] - 0.01
    return Row(f"{name}, mean score", means[0], "nats a piece", "fp32", means[1], None, "not lower by 0.01", holds)


def _gap(exact: Translator, source: str, found: str, expected: str) -> float:
    """By how much the exact model prefers its own piece where two translations part."""
    scores = exact.score([source, source], [found, expected])
    pieces = [[*score.pieces, None] for score in scores]
    first = next(n for n, (one, other) in enumerate(zip(*pieces, strict=False)) if one != other)
    values = [score.piece_log_probabilities[first] for score in scores]
    return values[1] - values[0]
