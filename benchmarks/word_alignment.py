"""Measure word alignment from attention: the alignment error rate on held-out sentences of the demonstration's grammar.

    python benchmarks/word_alignment.py             # heads chosen by 500 known alignments, 1,000 held-out sentences
    python benchmarks/word_alignment.py --quick     # 250 and 300

The model is that of `make demo`, which is trained if it is missing. Heads are chosen on the dev part. Peers are the
best single head, and all heads with equal weight. Bars: an error of at most 5 %, and of at most 8 % by word statistics
of 3,000 training pairs, without known alignments.
"""

from pathlib import Path

from report import REPOSITORY, Row, machine, parser, report

from transduce import load
from transduce.demonstration.grammar import AlignedPair, generate
from transduce.demonstration.run import demo
from transduce.inference.translator import Translator
from transduce.inspection.alignment import (
    HeadWeights,
    ReferenceAlignment,
    WordStatistics,
    align_pairs,
    alignment_error,
    choose_heads,
    head_errors,
    learn_word_statistics,
    word_maps,
    word_pair,
)

BAR_PERCENT = 5.0
UNSUPERVISED_BAR_PERCENT = 8.0


def main() -> int:
    """Choose heads, align and report."""
    options = parser(__doc__)
    options.add_argument("--model", type=Path, default=REPOSITORY / "models" / "demo")
    args = options.parse_args()
    print(machine())
    if not (args.model / "manifest.json").exists():
        demo(args.model)
    translator = load(args.model, task="translation", precision="fp32", device="cpu")
    corpus = generate()
    known = [known_alignment(pair) for pair in corpus.dev[: 250 if args.quick else 500]]
    test = [known_alignment(pair) for pair in corpus.test[: 300 if args.quick else 1000]]
    alike = error_percent(translator, test, None)
    statistics = learn_word_statistics(translator, [known_alignment(pair).pair for pair in corpus.train[:3000]])
    unsupervised = error_percent(translator, test, statistics)
    single = head_errors(word_maps(translator, [each.pair for each in test]), test)
    rows = [
        Row("best single head", 100.0 * float(single.min()), "% alignment error"),
        Row("all heads alike", alike, "% alignment error"),
        Row(
            "word statistics of 3,000 training pairs, no known alignment",
            unsupervised,
            "% alignment error",
            "all heads alike",
            alike,
            unsupervised / alike,
            f"<= {UNSUPERVISED_BAR_PERCENT:g}",
            unsupervised <= UNSUPERVISED_BAR_PERCENT,
        ),
    ]
    for count in (20, 100, len(known)):
        error = error_percent(translator, test, choose_heads(translator, known[:count]))
        is_last = count == len(known)
        rows.append(
            Row(
                f"heads chosen by {count} known alignments",
                error,
                "% alignment error",
                "all heads alike",
                alike,
                error / alike,
                f"<= {BAR_PERCENT:g}" if is_last else None,
                error <= BAR_PERCENT if is_last else None,
            )
        )
    return report(rows, args.json)


def known_alignment(pair: AlignedPair) -> ReferenceAlignment:
    """Convert a pair of the grammar to a known alignment."""
    words = word_pair(pair.source, pair.target, pair.source_words, pair.target_words)
    return ReferenceAlignment(words, frozenset(pair.alignment))


def error_percent(
    translator: Translator, test: list[ReferenceAlignment], heads: HeadWeights | WordStatistics | None
) -> float:
    """Return the alignment error rate on the test sentences, in percent."""
    found = align_pairs(translator, [each.pair for each in test], heads)
    return 100.0 * alignment_error(found, [each.links for each in test])


if __name__ == "__main__":
    raise SystemExit(main())
