"""What does translating by examples bring, without training, and beside training?

    python benchmarks/examples.py                   # trains both models first, and a third one beside: over an hour
    python benchmarks/examples.py --german DIR --chinese DIR      # with models of Tatoeba de-en and zh-en
    python benchmarks/examples.py --quick

Another domain: a model of Tatoeba's German remembers the captions of Multi30k, of which it has learnt nothing, and
translates others; beside it, the same model trained on these captions for some minutes. Its own text: a model of
Tatoeba's Chinese remembers what it was trained on. The votes' weight is chosen on dev, BLEU is of test, beam 4.
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
    """A corpus, and what is remembered and translated of it."""

    name: str
    train: Pairs
    dev: Pairs
    test: Pairs


def read(folder: Path, names: Sequence[str], languages: tuple[str, str], name: str, most: int | None) -> Text:
    """Its parts: of each the two sides."""
    parts = [tuple(list(read_lines(str(folder / f"{part}.{side}.gz")))[:most] for side in languages) for part in names]
    return Text(name, *parts)  # type: ignore[arg-type]


def options_of(corpus: Path, languages: tuple[str, str], minutes: float, dev: str = "dev") -> list[str]:
    """What `transduce train` is told."""
    options = ["--minutes", str(minutes)]
    for side, language in zip(("source", "target"), languages, strict=True):
        options += [f"--{side}", str(corpus / f"train.{language}.gz")]
        options += [f"--dev-{side}", str(corpus / f"{dev}.{language}.gz")]
    return options


def train_on(corpus: Path, languages: tuple[str, str], minutes: float) -> Path:
    """A model of these many minutes; the same folder serves a second time."""
    return train_once(FOLDER / f"{corpus.name}-{minutes:g}min", options_of(corpus, languages, minutes), {})


def rows_of(model: Path, text: Text) -> list[Row]:
    """A model by itself and by examples."""
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
        Row(f"{what}, by examples", found, "BLEU", "the model alone", alone, found / alone),
        Row(f"{what}, weight of the votes", memory.neighbors.card.weight, "of 1"),
        Row(f"{what}, loss on dev", memory.after, "nats a piece", "the model alone", memory.before),
        Row(f"{what}, remembering", seconds, "s"),
        Row(f"{what}, the file", path.stat().st_size / 2**20, "MiB"),
        Row(
            f"{what}, translating", found_seconds, "s", "the model alone", alone_seconds, found_seconds / alone_seconds
        ),
    ]


def bleu(translator: Translator, pairs: Pairs) -> tuple[float, float]:
    """Of translations with beam 4, and the seconds that they took."""
    translator(pairs[0][:8], beam_size=4)
    started_at = time.monotonic()
    found = [each.text for each in translator(pairs[0], beam_size=4)]
    seconds = time.monotonic() - started_at
    return score(found, pairs[1], target_language=translator.target_language).bleu.value, seconds


def trained_row(model: Path, corpus: Path, text: Text, minutes: float) -> Row:
    """The same model, trained on the text for some minutes."""
    options = ["--init-from", str(model), *options_of(corpus, ("de", "en"), minutes, "val")]
    folder = train_once(FOLDER / f"{text.name}-trained-{minutes:g}min", options, {})
    found, _ = bleu(load(folder, task="translation"), text.test)
    return Row(f"{text.name}, trained on the pairs for {minutes:g} minutes", found, "BLEU")


def main() -> int:
    """Measures and reports."""
    options = parser(__doc__)
    options.add_argument("--german", type=Path, help="a model of Tatoeba de-en")
    options.add_argument("--chinese", type=Path, help="a model of Tatoeba zh-en")
    options.add_argument("--minutes", type=float, default=30.0, help="of training, where a model is not given")
    options.add_argument("--trained", type=float, default=10.0, help="minutes of training on the captions; 0: none")
    said = options.parse_args()
    print(machine())
    minutes, trained, most = (1.0, 0.5, 300) if said.quick else (said.minutes, said.trained, None)
    data, captions = data_folder(), data_folder() / "multi30k-en-de" / "raw"
    german = said.german or train_on(data / "tatoeba-de-en", ("de", "en"), minutes)
    chinese = said.chinese or train_on(data / "tatoeba-zh-en", ("zh", "en"), minutes)
    text = read(captions, ("train", "val", "test_2016_flickr"), ("de", "en"), "captions", most)
    rows = rows_of(german, text)
    if trained:
        rows.append(trained_row(german, captions, text, trained))
    own = read(data / "tatoeba-zh-en", ("train", "dev", "test"), ("zh", "en"), "its own text", most)
    return report([*rows, *rows_of(chinese, own)], said.json)


if __name__ == "__main__":
    raise SystemExit(main())
