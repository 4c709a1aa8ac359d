"""What the vocabulary makes of the lines: too many pieces, unequal numbers of them, characters without a piece."""

import math
from collections.abc import Sequence

import msgspec

from transduce.inspection.corpus_doctor.report import Finding, severity_of
from transduce.inspection.corpus_doctor.text import CorpusText, Side, line_finding
from transduce.text.corpus import Pair
from transduce.text.files import is_decodable
from transduce.text.filters import RATIO, FilterSettings, PairFilter
from transduce.text.languages import unspaced_characters
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary, ids_without_text
from transduce.training.choices import CorpusSize, choose_vocabulary_size

_LEARNT_FROM = 20_000  # pairs, when there is no model
_FEWEST_PAIRS = 50
_ODD_SHARE = 0.2  # of a line's pieces that are bytes or unknown


def piece_findings(text: CorpusText, tokenizer: Tokenizer | None, filters: FilterSettings) -> list[Finding]:
    """With the model's tokenizer, or one that is learnt from a part of the corpus."""
    learnt = tokenizer is None
    tokenizer = tokenizer or _learn(text)
    if tokenizer is None:
        return []
    sides = [
        _Pieces(side, vocabulary)
        for side, vocabulary in zip(text.sides, (tokenizer.source, tokenizer.target), strict=True)
    ]
    long = [[n for n, count in enumerate(side.counts) if count > filters.max_pieces] for side in sides]
    message = f"{{count}} of more than {filters.max_pieces} pieces; training leaves such pairs out, so cut them"
    return [
        line_finding(text, "long lines", (long[0], long[1]), message, 0.01),
        _ratios(text, sides[0].counts, sides[1].counts, filters),
        _unknown(text, sides, learnt=learnt),
    ]


class _Pieces:
    """How many pieces each line of a side has, and how many of them spell a character in bytes or are unknown."""

    def __init__(self, side: Side, vocabulary: Vocabulary) -> None:
        odd = ids_without_text(vocabulary)
        self.counts: list[int] = []
        self.odd: list[int] = []
        for start in range(0, len(side.lines), 10_000):
            for ids in vocabulary.encode_batch(side.lines[start : start + 10_000]):
                self.counts.append(len(ids))
                self.odd.append(sum(id in odd for id in ids))


def _learn(text: CorpusText) -> Tokenizer | None:
    """As training would choose it for this corpus, from a part of it."""
    step = max(1, text.pairs // _LEARNT_FROM)
    lines = zip(text.source.lines[::step], text.target.lines[::step], strict=False)
    pairs = [Pair(a, b, 0) for a, b in lines if is_decodable(a) and is_decodable(b) and a.strip() and b.strip()]
    if len(pairs) < _FEWEST_PAIRS:
        return None
    characters = {c for pair in pairs for c in unspaced_characters(pair.source + pair.target)}
    size = choose_vocabulary_size(CorpusSize(pairs=text.pairs, unspaced_characters=len(characters)))
    return Tokenizer.train(lambda: pairs, TokenizerSettings(vocabulary_size=size.value), adjust=True)


def _ratios(text: CorpusText, source: Sequence[int], target: Sequence[int], filters: FilterSettings) -> Finding:
    rule = PairFilter(msgspec.structs.replace(filters, max_pieces=2**31 - 1))  # the ratio alone
    unequal = [
        number
        for number, (a, b) in enumerate(zip(source, target, strict=False))
        if a and b and rule.length_reason(a, b) == RATIO
    ]
    most = filters.max_length_ratio
    message = f"{{count}} with more than {most:g} times the pieces of the other side; training leaves such pairs out"
    return line_finding(text, "unequal lengths", (unequal, []), message, 0.01)


def _unknown(text: CorpusText, sides: Sequence[_Pieces], *, learnt: bool) -> Finding:
    """Nothing to mend in the files where training would learn the same vocabulary."""
    by = "a vocabulary learnt from the corpus" if learnt else "the model's vocabulary"
    pieces, odd = (
        sum(sum(numbers) for numbers in each) for each in ([s.counts for s in sides], [s.odd for s in sides])
    )
    share = odd / max(1, pieces)
    lines = [[n for n, (a, b) in enumerate(zip(s.odd, s.counts, strict=True)) if a > _ODD_SHARE * b] for s in sides]
    listed = line_finding(text, "unknown pieces", (lines[0], lines[1]), "{count}")
    return Finding(
        name="unknown pieces",
        severity=severity_of(odd, pieces, math.inf if learnt else 0.01),
        count=odd,
        share=share,
        message=f"{share:.2%} of the pieces spell a character in bytes or are unknown (by {by})",
        examples=listed.examples,
    )
