"""What else a score could have been: the same translations counted in other ways, the same model searched in others.

Scores that are reported for one model and test set differ by some points for no other reason. sacreBLEU's signature
tells how was counted, and the settings of the search how was searched; only what agrees in both can be compared.
"""

import re
from collections.abc import Sequence

import msgspec

from transduce.evaluation.scores import Score, ScoreReport, corresponding_lines, make_metrics
from transduce.evaluation.tokenizers import SPACE_TOKENIZERS, choose_tokenizer

_HYPHEN = re.compile(r"(\S)-(\S)")
_OTHER_TOKENIZERS = ("13a", "intl", "char", "none")


class Variant(msgspec.Struct, frozen=True):
    """Another way, and the BLEU that it gives."""

    way: str
    bleu: Score


class Variants(msgspec.Struct, frozen=True, kw_only=True):
    """A score, and what it would be otherwise."""

    scored: ScoreReport
    counted: tuple[Variant, ...]
    """The same translations."""
    searched: tuple[Variant, ...]
    """Other translations of the same model, counted as those scored."""

    def __str__(self) -> str:
        lines = [str(self.scored)]
        for title, ways in (("counted otherwise", self.counted), ("searched otherwise", self.searched)):
            width = max((len(each.way) for each in ways), default=0)
            lines += [f"{title}:"] if ways else []
            lines += [f"  {each.way:{width}}{self._compared(each.bleu)}" for each in ways]
        return "\n".join(lines)

    def _compared(self, bleu: Score) -> str:
        return f"  {bleu.value:6.2f}  {bleu.value - self.scored.bleu.value:+6.2f}  {bleu.signature}"


def count_otherwise(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str | None,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> tuple[Variant, ...]:
    """BLEU by other tokenizers, with or without regard to case, and with hyphens as words of their own.

    The last is what the paper's own scores of English to German did (`##AT##-##AT##` in GNMT and Tensor2Tensor).

    Args:
        hypotheses: translations.
        references: as many.
        target_language: theirs, as in `score`.
        tokenize: of the score that these are beside, which is left out here.
        lowercase: of that score.

    Raises:
        TransduceError: as `score`.
    """
    lines = corresponding_lines({"hypotheses": hypotheses, "references": references})
    usual = choose_tokenizer(target_language, tokenize).name
    case = "with regard to case" if lowercase else "without regard to case"
    found = [_count(case, usual, lines, lowercase=not lowercase)]
    others = [name for name in _OTHER_TOKENIZERS if name != usual]
    found += [_count(f"tokenizer {name}", name, lines, lowercase=lowercase) for name in others]
    if usual in SPACE_TOKENIZERS:
        words, _ = make_metrics(usual, lowercase=lowercase)
        split = [[_HYPHEN.sub(r"\1 ##AT##-##AT## \2", words.tokenizer(line)) for line in side] for side in lines]
        plain = _count("hyphens as words of their own", "none", split, lowercase=lowercase)
        signature = plain.bleu.signature.replace("tok:none", f"tok:{usual}+hyphens")
        found.append(Variant(plain.way, Score("BLEU", plain.bleu.value, signature)))
    return tuple(found)


def _count(way: str, tokenizer: str, lines: Sequence[Sequence[str]], *, lowercase: bool) -> Variant:
    """Of hypotheses and references."""
    hypotheses, references = lines
    bleu, _ = make_metrics(tokenizer, lowercase=lowercase)
    value = bleu.corpus_score(hypotheses, [references]).score
    return Variant(way, Score("BLEU", value, str(bleu.get_signature())))
