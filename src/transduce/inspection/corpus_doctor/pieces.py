"""Check how a vocabulary tokenizes the lines: too many tokens, unequal lengths, characters without a token."""

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

_TRAINING_PAIRS = 20_000  # for a vocabulary, if there is no model
_MIN_PAIRS = 50
_ODD_SHARE = 0.2  # share of byte and unknown tokens from which a line is an example


def piece_findings(text: CorpusText, tokenizer: Tokenizer | None, filters: FilterSettings) -> list[Finding]:
    """Report on the tokens of a model's tokenizer or, without one, of a tokenizer trained on part of the corpus."""
    is_trained_here = tokenizer is None
    tokenizer = tokenizer or _train_tokenizer(text)
    if tokenizer is None:
        return []
    sides = [
        _TokenCounts(side, vocabulary)
        for side, vocabulary in zip(text.sides, (tokenizer.source, tokenizer.target), strict=True)
    ]
    long = [[n for n, count in enumerate(side.counts) if count > filters.max_pieces] for side in sides]
    message = f"{{count}} of more than {filters.max_pieces} tokens; training leaves such pairs out, so split them"
    return [
        line_finding(text, "long lines", (long[0], long[1]), message, 0.01),
        _unequal_lengths(text, sides[0].counts, sides[1].counts, filters),
        _unknown_tokens(text, sides, is_trained_here=is_trained_here),
    ]


class _TokenCounts:
    """The number of tokens of each line of a side, and how many of them are byte or unknown tokens."""

    def __init__(self, side: Side, vocabulary: Vocabulary) -> None:
        odd = ids_without_text(vocabulary)
        self.counts: list[int] = []
        self.odd: list[int] = []
        for start in range(0, len(side.lines), 10_000):
            for ids in vocabulary.encode_batch(side.lines[start : start + 10_000]):
                self.counts.append(len(ids))
                self.odd.append(sum(id in odd for id in ids))


def _train_tokenizer(text: CorpusText) -> Tokenizer | None:
    """Train a tokenizer on part of the corpus, with the vocabulary size that training would choose for all of it."""
    step = max(1, text.pairs // _TRAINING_PAIRS)
    lines = zip(text.source.lines[::step], text.target.lines[::step], strict=False)
    pairs = [Pair(a, b, 0) for a, b in lines if is_decodable(a) and is_decodable(b) and a.strip() and b.strip()]
    if len(pairs) < _MIN_PAIRS:
        return None
    characters = {c for pair in pairs for c in unspaced_characters(pair.source + pair.target)}
    size = choose_vocabulary_size(CorpusSize(pairs=text.pairs, unspaced_characters=len(characters)))
    return Tokenizer.train(lambda: pairs, TokenizerSettings(vocabulary_size=size.value), adjust=True)


def _unequal_lengths(
    text: CorpusText, source: Sequence[int], target: Sequence[int], filters: FilterSettings
) -> Finding:
    rule = PairFilter(msgspec.structs.replace(filters, max_pieces=2**31 - 1))  # checks the ratio only
    unequal = [
        number
        for number, (a, b) in enumerate(zip(source, target, strict=False))
        if a and b and rule.length_reason(a, b) == RATIO
    ]
    max_ratio = filters.max_length_ratio
    message = (
        f"{{count}} with more than {max_ratio:g} times the tokens of the other side; training leaves such pairs out"
    )
    return line_finding(text, "unequal lengths", (unequal, []), message, 0.01)


def _unknown_tokens(text: CorpusText, sides: Sequence[_TokenCounts], *, is_trained_here: bool) -> Finding:
    """Report byte and unknown tokens; never as a problem if training would learn the same vocabulary."""
    source = "a vocabulary trained on the corpus" if is_trained_here else "the model's vocabulary"
    tokens, odd = (
        sum(sum(numbers) for numbers in each) for each in ([s.counts for s in sides], [s.odd for s in sides])
    )
    share = odd / max(1, tokens)
    lines = [[n for n, (a, b) in enumerate(zip(s.odd, s.counts, strict=True)) if a > _ODD_SHARE * b] for s in sides]
    line_examples = line_finding(text, "unknown pieces", (lines[0], lines[1]), "{count}")
    return Finding(
        name="unknown pieces",
        severity=severity_of(odd, tokens, math.inf if is_trained_here else 0.01),
        count=odd,
        share=share,
        message=f"{share:.2%} of the tokens are bytes of characters or unknown (by {source})",
        examples=line_examples.examples,
    )
