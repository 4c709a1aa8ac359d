"""Measure kNN retrieval (translation with a datastore), without training and next to training.

    python benchmarks/datastore.py                   # trains three models first: over an hour
    python benchmarks/datastore.py --german DIR --chinese DIR      # with models of Tatoeba de-en and zh-en
    python benchmarks/datastore.py --quick

New domain: a model of Tatoeba's German retrieves from Multi30k captions that it was not trained on, and translates
others; the peers are the model alone, and the model fine-tuned on these captions. Own domain: a model of Tatoeba's
Chinese retrieves from its training data. The retrieval weight is chosen on dev; BLEU is on test with beam 4. No bar.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from decoding_speed import train_once
from report import REPOSITORY, Row, data_folder, machine, parser, report

from transduce import Translator, build_datastore, load, score
from transduce.text.files import read_lines

FOLDER = REPOSITORY / "models" / "examples"
Pairs = tuple[list[str], list[str]]


class Text(NamedTuple):
    """A corpus whose training part becomes the datastore and whose test part is translated."""

    name: str
    train: Pairs
    dev: Pairs
    test: Pairs


def read(folder: Path, names: Sequence[str], languages: tuple[str, str], name: str, most: int | None) -> Text:
    """Read the parts of a corpus, each with source and target, at most `most` lines."""
    parts = [tuple(list(read_lines(str(folder / f"{part}.{side}.gz")))[:most] for side in languages) for part in names]
    return Text(name, *parts)  # type: ignore[arg-type]


def options_of(corpus: Path, languages: tuple[str, str], minutes: float, dev: str = "dev") -> list[str]:
    """Return the options of `transduce train` for a corpus."""
    options = ["--minutes", str(minutes)]
    for side, language in zip(("source", "target"), languages, strict=True):
        options += [f"--{side}", str(corpus / f"train.{language}.gz")]
        options += [f"--dev-{side}", str(corpus / f"{dev}.{language}.gz")]
    return options


def train_on(corpus: Path, languages: tuple[str, str], minutes: float) -> Path:
    """Return the folder of a model trained for this time; an existing one is reused."""
    return train_once(FOLDER / f"{corpus.name}-{minutes:g}min", options_of(corpus, languages, minutes), {})


def rows_of(model: Path, text: Text) -> list[Row]:
    """Return rows that compare a model with and without retrieval."""
    translator = load(model, task="translation")
    alone, alone_seconds = bleu(translator, text.test)
    started_at = time.monotonic()
    memory = build_datastore(translator, *text.train, dev=text.dev)
    seconds = time.monotonic() - started_at
    path = FOLDER / f"{text.name}.examples"
    path.parent.mkdir(parents=True, exist_ok=True)
    memory.write(path)
    found, found_seconds = bleu(load(model, task="translation", datastore=path), text.test)
    what = f"{text.name}, {len(text.train[0]):,} pairs"
    return [
        Row(f"{what}, with retrieval", found, "BLEU", "the model alone", alone, found / alone),
        Row(f"{what}, retrieval weight", memory.neighbors.card.weight, "of 1"),
        Row(f"{what}, loss on dev", memory.after, "nats per token", "the model alone", memory.before),
        Row(f"{what}, building the datastore", seconds, "s"),
        Row(f"{what}, the file", path.stat().st_size / 2**20, "MiB"),
        Row(
            f"{what}, translating", found_seconds, "s", "the model alone", alone_seconds, found_seconds / alone_seconds
        ),
    ]


def bleu(translator: Translator, pairs: Pairs) -> tuple[float, float]:
    """Return the BLEU of translations with beam 4, and the seconds of translating."""
    translator(pairs[0][:8], beam_size=4)
    started_at = time.monotonic()
    found = [each.text for each in translator(pairs[0], beam_size=4)]
    seconds = time.monotonic() - started_at
    return score(found, pairs[1], target_language=translator.target_language).bleu.value, seconds


def trained_row(model: Path, corpus: Path, text: Text, minutes: float) -> Row:
    """Return a row with the BLEU of the model fine-tuned on the text."""
    options = ["--init-from", str(model), *options_of(corpus, ("de", "en"), minutes, "val")]
    folder = train_once(FOLDER / f"{text.name}-trained-{minutes:g}min", options, {})
    found, _ = bleu(load(folder, task="translation"), text.test)
    return Row(f"{text.name}, trained on the pairs for {minutes:g} minutes", found, "BLEU")


def main() -> int:
    """Run the comparisons and report."""
    options = parser(__doc__)
    options.add_argument("--german", type=Path, help="a model of Tatoeba de-en")
    options.add_argument("--chinese", type=Path, help="a model of Tatoeba zh-en")
    options.add_argument("--minutes", type=float, default=30.0, help="training time of a model that is not named")
    options.add_argument("--trained", type=float, default=10.0, help="minutes of fine-tuning on the captions; 0: none")
    args = options.parse_args()
    print(machine())
    minutes, trained, most = (1.0, 0.5, 300) if args.quick else (args.minutes, args.trained, None)
    data, captions = data_folder(), data_folder() / "multi30k-en-de" / "raw"
    german = args.german or train_on(data / "tatoeba-de-en", ("de", "en"), minutes)
    chinese = args.chinese or train_on(data / "tatoeba-zh-en", ("zh", "en"), minutes)
    text = read(captions, ("train", "val", "test_2016_flickr"), ("de", "en"), "captions", most)
    rows = rows_of(german, text)
    if trained:
        rows.append(trained_row(german, captions, text, trained))
    own = read(data / "tatoeba-zh-en", ("train", "dev", "test"), ("zh", "en"), "its own text", most)
    return report([*rows, *rows_of(chinese, own)], args.json)


if __name__ == "__main__":
    raise SystemExit(main())
