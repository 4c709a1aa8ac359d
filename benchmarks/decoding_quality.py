"""Compare the translations of fast decoding paths with float32's, for decoding_speed.py."""

from collections.abc import Sequence
from pathlib import Path

import sacrebleu
import torch
from report import Row

from transduce.inference.load import open_translator
from transduce.inference.translation import Alternative, Translation
from transduce.inference.translator import Translator
from transduce.machine import detect_machine
from transduce.search.settings import SearchSettings


def quality_rows(
    size: str, folder: Path, sources: list[str], references: list[str], place: tuple[str, int]
) -> list[Row]:
    """Compare the fast paths with float32: BLEU, near-ties of greedy search, and the beam's mean score.

    `place` is the device and the number of threads.
    """
    device, threads = place
    exact = open_translator(folder, precision="fp32", device=device, threads=threads)
    searches = {beam_size: SearchSettings(beam_size=beam_size) for beam_size in (1, 4)}
    expected = {beam: _best(exact.translate(sources, search)) for beam, search in searches.items()}
    rows = []
    # On machines where `auto` is not bf16, measure bf16 too.
    others = ("auto",) if detect_machine(device).precision == "bf16" else ("auto", "bf16")
    for precision in (*others, "int8") if device == "cpu" else others:
        fast = open_translator(folder, precision=precision, device=device, threads=threads)
        for beam_size, search in searches.items():
            found = [_best(fast.translate(sources, search)), expected[beam_size]]
            texts = [[each.text for each in side] for side in found]
            name = f"{size}, {precision} ({fast.precision}) against fp32, beam {beam_size}"
            bleu, exact_bleu = (sacrebleu.corpus_bleu(side, [references]).score for side in texts)
            near = abs(bleu - exact_bleu) <= 0.1
            rows.append(Row(f"{name}, BLEU", bleu, "BLEU", "fp32", exact_bleu, None, "within 0.1", near))
            different = [n for n, (one, other) in enumerate(zip(*found, strict=True)) if one.tokens != other.tokens]
            rows.append(Row(f"{name}, translations that differ", len(different), f"of {len(sources):,}"))
            rows.append(_score_row(name, exact, sources, texts))
            if beam_size == 1:
                pairs = ((sources[n], found[0][n].tokens, found[1][n].tokens) for n in different)
                gaps = [_gap(exact, *pair) for pair in pairs]
                gap = max(gaps, default=0.0)
                row = Row(f"{name}, greatest gap at the first difference", gap, "nats", bar="< 0.05", holds=gap < 0.05)
                rows.append(row)
                over = sum(gap >= 0.05 for gap in gaps)
                rows.append(Row(f"{name}, of them by 0.05 nats or more", over, f"of {len(sources):,}"))
    return rows


def _best(translations: Sequence[Translation]) -> list[Alternative]:
    return [each.alternatives[0] for each in translations]


def _score_row(name: str, exact: Translator, sources: list[str], texts: list[list[str]]) -> Row:
    """Return a row with the mean log-probability per token of translations, by the float32 model."""
    means = []
    for found in texts:
        scores = exact.score(sources, found)
        total = sum(len(score.token_log_probabilities) for score in scores)
        means.append(sum(score.log_probability for score in scores) / total)
    holds = means[0] >= means[1] - 0.01
    return Row(f"{name}, mean score", means[0], "nats per token", "fp32", means[1], None, "not lower by 0.01", holds)


def _gap(exact: Translator, source: str, found: Sequence[str], expected: Sequence[str]) -> float:
    """Return by how much the float32 model prefers its own token where two translations first differ, in nats.

    The tokens are those of the search: re-tokenizing the text may give other ones.
    """
    vocabulary, config = exact.tokenizer.target, exact.model.config
    rows = [[*(vocabulary.id(piece) for piece in pieces), config.eos_id] for pieces in (found, expected)]
    first = next(n for n, (one, other) in enumerate(zip(*rows, strict=False)) if one != other)
    source_ids = exact.tokenizer.source.with_special_tokens(exact.tokenizer.source.encode(source))
    target_ids = [config.start_id, *rows[0][:first]]
    with torch.inference_mode(), torch.device(exact.model.source_weight.device):
        logits = exact.model(torch.tensor([source_ids]), torch.tensor([target_ids]))[0, -1]
    return float(logits[rows[1][first]] - logits[rows[0][first]])
