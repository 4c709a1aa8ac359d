"""Check quality warnings and re-decoding on Tatoeba Chinese to English: whether translations with warnings are worse,
and whether re-decoding improves them.

    python benchmarks/quality_warnings.py                     # trains a model first, half an hour
    python benchmarks/quality_warnings.py --model DIR --source F --target F      # another one, of your own
    python benchmarks/quality_warnings.py --quick

The quality of a translation is its chrF with the reference, a rough measure for one sentence. Rows report: the number
and mean chrF of sentences with each kind of warning, against sentences without any; how often the model's probability
prefers a translation of the best fifth to one of the worst; how many translations of other sentences get a warning; and
the effect of re-decoding. There is no bar.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from decoding_speed import train_once
from report import REPOSITORY, Row, data_folder, machine, mean, parser, report
from sacrebleu.metrics.chrf import CHRF

from transduce import Translation, Translator, estimate_quality, load, redecode, score
from transduce.inference.quality_estimation import WARNING_KINDS, nats_per_token
from transduce.inference.scoring import as_translation
from transduce.text.files import read_lines

QualityWarnings = Sequence[tuple[str, ...]]


def with_model(options: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add options that select a model of Tatoeba zh-en or its training time, and the part of the corpus."""
    options.add_argument("--model", type=Path, help="a model folder")
    options.add_argument("--minutes", type=float, default=30.0, help="training time if no model is named")
    options.add_argument("--part", choices=("dev", "test"), default="test")
    return options


def main() -> int:
    """Translate, review and re-decode the sentences, and report."""
    options = with_model(parser(__doc__))
    options.add_argument("--source", type=Path)
    options.add_argument("--target", type=Path, help="references of the sentences")
    options.add_argument("--beam-size", type=int, default=4)
    args = options.parse_args()
    print(machine())
    folder = data_folder() / "tatoeba-zh-en"
    model = args.model or train_on(folder, 1.0 if args.quick else args.minutes)
    sources = list(read_lines(str(args.source or folder / f"{args.part}.zh.gz")))
    references = list(read_lines(str(args.target or folder / f"{args.part}.en.gz")))
    if args.quick:
        sources, references = sources[:400], references[:400]
    translator = load(model, task="translation")
    found = translator(sources, beam_size=args.beam_size)
    return report(_rows(translator, found, references), args.json)


def train_on(corpus: Path, minutes: float) -> Path:
    """Return the folder of a model trained for this time; an existing one is reused."""
    sides = {"source": "zh", "target": "en"}
    options = ["--minutes", str(minutes)]
    for side, language in sides.items():
        options += [f"--{side}", str(corpus / f"train.{language}.gz")]
        options += [f"--dev-{side}", str(corpus / f"dev.{language}.gz")]
    return train_once(REPOSITORY / "models" / "quality_warnings" / f"{minutes:g}min", options, {})


def _rows(translator: Translator, found: list[Translation], references: list[str]) -> list[Row]:
    quality = _qualities(found, references)
    quality_warnings = [tuple(warning.kind for warning in each) for each in estimate_quality(translator, found)]
    sure = mean([value for value, own in zip(quality, quality_warnings, strict=True) if not own])
    rows = [
        Row("no warning", sure, "chrF", f"share of {len(found):,}", mean([float(not own) for own in quality_warnings]))
    ]
    for kind in WARNING_KINDS:
        own_quality = [value for value, own in zip(quality, quality_warnings, strict=True) if kind in own]
        if own_quality:
            name, value = f"warning: {kind}, {len(own_quality)} sentences", mean(own_quality)
            rows.append(Row(name, value, "chrF", "no warning", sure, value / sure))
    likelihood = [-nats_per_token(each) for each in found]
    rows.append(Row("the better of two is more probable", 100.0 * _ranking(likelihood, quality), "%"))
    rows.append(Row("mismatched translations with warnings", 100.0 * _mismatches(translator, found, references), "%"))
    return [*rows, *_second_search(translator, found, references, quality_warnings)]


def _second_search(
    translator: Translator, found: list[Translation], references: list[str], quality_warnings: QualityWarnings
) -> list[Row]:
    again = redecode(translator, found)
    numbers = [n for n, own in enumerate(quality_warnings) if own]
    changed = [n for n in numbers if again[n].text != found[n].text]
    rows = [Row("translations with warnings changed", len(changed), f"of {len(numbers)}")]
    if changed:
        wanted = [references[n] for n in changed]
        was, now = (mean(_qualities([each[n] for n in changed], wanted)) for each in (found, again))
        rows.append(Row("these after re-decoding", now, "chrF", "before", was, now / was))
    bleu = [
        score([each.text for each in texts], references, target_language=translator.target_language).bleu.value
        for texts in (again, found)
    ]
    return [*rows, Row("all after re-decoding", bleu[0], "BLEU", "before", bleu[1], bleu[0] / bleu[1])]


def _qualities(found: Sequence[Translation], references: Sequence[str]) -> list[float]:
    metric = CHRF()
    return [metric.sentence_score(f.text, [r]).score for f, r in zip(found, references, strict=True)]


def _ranking(likelihood: list[float], quality: list[float]) -> float:
    """Return the probability that a translation of the best fifth has a higher likelihood than one of the
    worst fifth.
    """
    order = sorted(range(len(quality)), key=lambda n: quality[n])
    fifth = math.ceil(len(order) / 5)
    pairs = [(likelihood[low], likelihood[high]) for low in order[:fifth] for high in order[-fifth:]]
    return mean([1.0 if low < high else 0.5 if low == high else 0.0 for low, high in pairs])


def _mismatches(translator: Translator, found: list[Translation], references: list[str]) -> float:
    """Return the fraction of translations that get a warning if each source is paired with the next one's reference."""
    scores = translator.score([each.source for each in found], references[1:] + references[:1])
    quality_warnings = estimate_quality(translator, [as_translation(each) for each in scores])
    return mean([float(bool(own)) for own in quality_warnings])


if __name__ == "__main__":
    raise SystemExit(main())
