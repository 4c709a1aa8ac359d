"""BLEU under other evaluation settings (tokenizer, case, hyphens) and other search settings.

Published scores of one model and test set differ by some points for such reasons alone. sacreBLEU's signature records
how BLEU was counted, and the decoding settings how translations were searched; only scores that agree in both are
comparable.
"""

import re
from collections.abc import Sequence

import msgspec

from transduce.evaluation.scores import (
    SPACE_TOKENIZERS,
    Score,
    ScoreReport,
    aligned_lines,
    choose_tokenizer,
    make_metrics,
)
from transduce.ui_language import column, columns_of, localized

_HYPHEN = re.compile(r"(\S)-(\S)")
_OTHER_TOKENIZERS = ("13a", "intl", "char", "none")


class Variant(msgspec.Struct, frozen=True):
    """The BLEU score of a model under one other metric or search setting."""

    way: str
    bleu: Score


class Variants(msgspec.Struct, frozen=True, kw_only=True):
    """A BLEU score, with the scores under other metric settings and other search settings."""

    scored: ScoreReport
    counted: tuple[Variant, ...]
    """The same translations counted in other ways."""
    searched: tuple[Variant, ...]
    """Translations of the same model with other search settings, counted like the score."""

    def __str__(self) -> str:
        lines = [str(self.scored)]
        for title, ways in (("counted otherwise", self.counted), ("searched otherwise", self.searched)):
            width = max((columns_of(localized(each.way)) for each in ways), default=0)
            lines += [f"{localized(title)}:"] if ways else []
            lines += [f"  {column(each.way, width)}{self._compared(each.bleu)}" for each in ways]
        return "\n".join(lines)

    def _compared(self, bleu: Score) -> str:
        return f"  {bleu.value:6.2f}  {bleu.value - self.scored.bleu.value:+6.2f}  {bleu.signature}"


def count_variants(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str | None,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> tuple[Variant, ...]:
    """Compute BLEU with other tokenizers, with case ignored or respected instead, and with hyphens as separate words.

    The paper's own English-German scores split hyphens this way (`##AT##-##AT##` in GNMT and Tensor2Tensor).

    Args:
        hypotheses: translations.
        references: one reference per hypothesis.
        target_language: the language of both, as in `score`.
        tokenize: the tokenizer of the main score, which is excluded here.
        lowercase: whether the main score ignores case.

    Raises:
        TransduceError: `score` would refuse an argument.
    """
    lines = aligned_lines({"hypotheses": hypotheses, "references": references})
    usual = choose_tokenizer(target_language, tokenize).name
    case = "with regard to case" if lowercase else "without regard to case"
    variants = [_count(case, usual, lines, lowercase=not lowercase)]
    other_tokenizers = [name for name in _OTHER_TOKENIZERS if name != usual]
    variants += [_count(f"tokenizer {name}", name, lines, lowercase=lowercase) for name in other_tokenizers]
    if usual in SPACE_TOKENIZERS:
        words, _ = make_metrics(usual, lowercase=lowercase)
        split = [[_HYPHEN.sub(r"\1 ##AT##-##AT## \2", words.tokenizer(line)) for line in side] for side in lines]
        plain = _count("hyphens as words of their own", "none", split, lowercase=lowercase)
        signature = plain.bleu.signature.replace("tok:none", f"tok:{usual}+hyphens")
        variants.append(Variant(plain.way, Score("BLEU", plain.bleu.value, signature)))
    return tuple(variants)


def _count(way: str, tokenizer: str, lines: Sequence[Sequence[str]], *, lowercase: bool) -> Variant:
    """Compute the BLEU score of hypotheses and references with one setting of the metric."""
    hypotheses, references = lines
    bleu, _ = make_metrics(tokenizer, lowercase=lowercase)
    value = bleu.corpus_score(hypotheses, [references]).score
    return Variant(way, Score("BLEU", value, str(bleu.get_signature())))
