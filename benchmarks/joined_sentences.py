"""Measure whether lines of several sentences are translated completely: Tatoeba sentences, joined 2 to 6 in a line.

    python benchmarks/joined_sentences.py                                   # trains a model first, half an hour
    python benchmarks/joined_sentences.py --model DIR --languages de en --part dev
    python benchmarks/joined_sentences.py --quick

The same sentences are translated alone, and their translations joined, as the peer. Bars: within 0.3 BLEU of the peer,
no line with a missing sentence, and at least 0.9 of the throughput of a file with each sentence in a line of its own.
"""

import random
import re
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quality_warnings import train_on, with_model
from report import Row, data_folder, machine, parser, report

from transduce import Translation, Translator, load, score
from transduce.inference.bulk_files import LineOptions, portions, translate_portions
from transduce.text.files import read_lines
from transduce.text.languages import sentence_separator
from transduce.text.text_settings import TextSettings

LINES = 500
SHORTEST, LONGEST = 2, 6
_SEED = 1
_ENDS = re.compile(r"[.!?。！？]$")
_INNER_ENDS = re.compile(r"[.!?。！？…]")
_BLEU_BAR, _SPEED_BAR = 0.3, 0.9
_REPEATS = 3


class JoinedLine(NamedTuple):
    """A line of several sentences, with the reference of each."""

    sources: tuple[str, ...]
    references: tuple[str, ...]


def joined_lines(pairs: Sequence[tuple[str, str]], count: int, seed: int = _SEED) -> list[JoinedLine]:
    """Return lines of 2 to 6 random pairs; only sources that are clearly one complete sentence are used.

    Args:
        pairs: sources with their references.
        count: the number of lines.
        seed: seed of the random choice.
    """
    usable = [pair for pair in pairs if is_one_sentence(pair[0])]
    chance = random.Random(seed)

    def endless() -> Iterator[tuple[str, str]]:
        while True:
            yield from chance.sample(usable, len(usable))

    stream = endless()
    lines = []
    for _ in range(count):
        chosen = [next(stream) for _ in range(chance.randint(SHORTEST, LONGEST))]
        lines.append(JoinedLine(tuple(source for source, _ in chosen), tuple(reference for _, reference in chosen)))
    return lines


def is_one_sentence(source: str) -> bool:
    """Return whether a source has an end mark at its end, and none before it."""
    return _ENDS.search(source) is not None and _INNER_ENDS.search(source[:-1]) is None


def lacks_sentence(translation: Translation, line: JoinedLine) -> bool:
    """Return whether a sentence of a line was merged with another, or has an empty translation."""
    sentences = translation.sentences or (translation,)
    found = [each.source for each in sentences]
    return found != list(line.sources) or not all(each.text.strip() for each in sentences)


def main() -> int:
    """Translate joined lines and single sentences, and report."""
    options = with_model(parser(__doc__))
    options.add_argument("--languages", nargs=2, default=("zh", "en"), metavar=("SOURCE", "TARGET"))
    options.add_argument("--threads", type=int)
    args = options.parse_args()
    print(machine())
    source, target = args.languages
    folder = data_folder() / f"tatoeba-{source}-{target}"
    model = args.model or train_on(folder, 1.0 if args.quick else args.minutes)
    pairs = list(zip(*(read_lines(folder / f"{args.part}.{side}.gz") for side in (source, target)), strict=True))
    lines = joined_lines(pairs, 50 if args.quick else LINES)
    return report(_rows(load(model, task="translation", threads=args.threads), lines, (source, target)), args.json)


def _rows(translator: Translator, lines: Sequence[JoinedLine], languages: tuple[str, str]) -> Iterator[Row]:
    between, between_targets = map(sentence_separator, languages)
    texts = [between.join(line.sources) for line in lines]
    references = [between_targets.join(line.references) for line in lines]
    sentences = [sentence for line in lines for sentence in line.sources]

    def bleu(found: Sequence[str]) -> float:
        return score(found, references, target_language=languages[1]).bleu.value

    alone = iter(translator(sentences, text_settings=TextSettings(split_sentences="never")))
    peer = bleu([between_targets.join(next(alone).text for _ in line.sources) for line in lines])
    found = translator(texts)
    value = bleu([each.text for each in found])
    name = f"{len(lines)} lines of {SHORTEST} to {LONGEST} sentences"
    bar = f"within {_BLEU_BAR}"
    yield Row(name, value, "BLEU", "alone", peer, value / peer, bar, abs(value - peer) <= _BLEU_BAR)
    missing = sum(map(lacks_sentence, found, lines))
    yield Row("lines with a missing sentence", missing, f"of {len(lines)}", bar="0", holds=missing == 0)
    whole = translator(texts, text_settings=TextSettings(split_sentences="never"))
    yield Row("without splitting", bleu([each.text for each in whole]), "BLEU")
    job, seconds = LineOptions(search=translator.search), dict[str, list[float]]()
    for _ in range(_REPEATS):
        for form, content in (("joined", texts), ("alone", sentences)):
            started_at = time.perf_counter()
            for _ in translate_portions(translator, job, portions(content)):
                pass
            seconds.setdefault(form, []).append(time.perf_counter() - started_at)
    joined_speed, alone_speed = (len(sentences) / min(seconds[form]) for form in ("joined", "alone"))
    ratio = joined_speed / alone_speed
    bar = f"≥ {_SPEED_BAR}"
    yield Row("throughput", joined_speed, "sentences/s", "alone", alone_speed, ratio, bar, ratio >= _SPEED_BAR)


if __name__ == "__main__":
    raise SystemExit(main())
