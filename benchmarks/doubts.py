"""Are doubtful translations worse, and does a second search better them? Tatoeba Chinese to English.

    python benchmarks/doubts.py                     # trains a model first, half an hour
    python benchmarks/doubts.py --model DIR --source F --target F      # another one, of your own
    python benchmarks/doubts.py --quick

A translation is as good as its chrF with the reference, a rough measure of one sentence. For each kind of doubt: how
many sentences have it, and their mean, beside the mean of those without any doubt. How well the model's own probability
ranks translations: the chance that it prefers the better of two, one of the best fifth and one of the worst. How many
translations that belong to other sentences are doubted. What a second search makes of those that are.
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

Doubts = Sequence[tuple[str, ...]]


def with_model(options: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Options that name a model of Tatoeba zh-en, or how long one is trained, and the part that it is tried on."""
    options.add_argument("--model", type=Path, help="a folder")
    options.add_argument("--minutes", type=float, default=30.0, help="of training, where no model is given")
    options.add_argument("--part", choices=("dev", "test"), default="test")
    return options


def main() -> int:
    """Translates, reviews, looks again, reports."""
    options = with_model(parser(__doc__))
    options.add_argument("--source", type=Path)
    options.add_argument("--target", type=Path, help="its references")
    options.add_argument("--beam-size", type=int, default=4)
    said = options.parse_args()
    print(machine())
    folder = data_folder() / "tatoeba-zh-en"
    model = said.model or train_on(folder, 1.0 if said.quick else said.minutes)
    sources = list(read_lines(str(said.source or folder / f"{said.part}.zh.gz")))
    references = list(read_lines(str(said.target or folder / f"{said.part}.en.gz")))
    if said.quick:
        sources, references = sources[:400], references[:400]
    translator = load(model, task="translation")
    found = translator(sources, beam_size=said.beam_size)
    return report(_rows(translator, found, references), said.json)


def train_on(corpus: Path, minutes: float) -> Path:
    """A model of these many minutes; the same folder serves a second time."""
    sides = {"source": "zh", "target": "en"}
    options = ["--minutes", str(minutes)]
    for side, language in sides.items():
        options += [f"--{side}", str(corpus / f"train.{language}.gz")]
        options += [f"--dev-{side}", str(corpus / f"dev.{language}.gz")]
    return train_once(REPOSITORY / "models" / "doubts" / f"{minutes:g}min", options, {})


def _rows(translator: Translator, found: list[Translation], references: list[str]) -> list[Row]:
    quality = _qualities(found, references)
    doubts = [tuple(doubt.kind for doubt in each) for each in estimate_quality(translator, found)]
    sure = mean([value for value, own in zip(quality, doubts, strict=True) if not own])
    rows = [Row("no doubt", sure, "chrF", f"share of {len(found):,}", mean([float(not own) for own in doubts]))]
    for kind in WARNING_KINDS:
        own_quality = [value for value, own in zip(quality, doubts, strict=True) if kind in own]
        if own_quality:
            name, value = f"doubt: {kind}, {len(own_quality)} sentences", mean(own_quality)
            rows.append(Row(name, value, "chrF", "no doubt", sure, value / sure))
    likelihood = [-nats_per_token(each) for each in found]
    rows.append(Row("the better of two is likelier", 100.0 * _ranking(likelihood, quality), "%"))
    rows.append(Row("wrong sentences' translations doubted", 100.0 * _mismatches(translator, found, references), "%"))
    return [*rows, *_second_search(translator, found, references, doubts)]


def _second_search(
    translator: Translator, found: list[Translation], references: list[str], doubts: Doubts
) -> list[Row]:
    again = redecode(translator, found)
    numbers = [n for n, own in enumerate(doubts) if own]
    changed = [n for n in numbers if again[n].text != found[n].text]
    rows = [Row("doubtful translations changed", len(changed), f"of {len(numbers)}")]
    if changed:
        wanted = [references[n] for n in changed]
        was, now = (mean(_qualities([each[n] for n in changed], wanted)) for each in (found, again))
        rows.append(Row("these after a second search", now, "chrF", "before", was, now / was))
    bleu = [
        score([each.text for each in texts], references, target_language=translator.target_language).bleu.value
        for texts in (again, found)
    ]
    return [*rows, Row("all after a second search", bleu[0], "BLEU", "before", bleu[1], bleu[0] / bleu[1])]


def _qualities(found: Sequence[Translation], references: Sequence[str]) -> list[float]:
    metric = CHRF()
    return [metric.sentence_score(f.text, [r]).score for f, r in zip(found, references, strict=True)]


def _ranking(likelihood: list[float], quality: list[float]) -> float:
    """The chance that one of the best fifth is likelier than one of the worst."""
    order = sorted(range(len(quality)), key=lambda n: quality[n])
    fifth = math.ceil(len(order) / 5)
    pairs = [(likelihood[low], likelihood[high]) for low in order[:fifth] for high in order[-fifth:]]
    return mean([1.0 if low < high else 0.5 if low == high else 0.0 for low, high in pairs])


def _mismatches(translator: Translator, found: list[Translation], references: list[str]) -> float:
    """The share that is doubted where each source has the reference of the next one."""
    scores = translator.score([each.source for each in found], references[1:] + references[:1])
    doubts = estimate_quality(translator, [as_translation(each) for each in scores])
    return mean([float(bool(own)) for own in doubts])


if __name__ == "__main__":
    raise SystemExit(main())
