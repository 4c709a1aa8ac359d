"""Measure whether a translation model uses the sentences of a document before each sentence, on a generated corpus.

    python benchmarks/document_context.py            # five trainings, about ten minutes on one core
    python benchmarks/document_context.py --quick    # two of them

Each document describes things in English: "The lamp is old . It is red . But it is very clean , too ." The German
pronoun for *it* has the gender of the thing: er, sie or es. The second sentence needs one sentence of context. The
third one needs two, or the translation of one, whose pronoun shows the gender. Training has 1,500 documents, the test
has 200.

Bars: without context at most half of the pronouns are right, with two sentences at least 95 %.
"""

import random
import sys
import tempfile
from pathlib import Path

from report import Row, machine, parser, report

import transduce
from transduce.inference.batching import Documents

NOUNS = {
    "er": "table=tisch tree=baum dog=hund letter=brief apple=apfel chair=stuhl key=schlüssel moon=mond car=wagen",
    "sie": "lamp=lampe flower=blume cat=katze newspaper=zeitung pear=birne door=tür clock=uhr sun=sonne street=straße",
    "es": "house=haus book=buch horse=pferd window=fenster egg=ei bed=bett picture=bild boat=boot glass=glas",
}
ARTICLES = {"er": "der", "sie": "die", "es": "das"}
ADJECTIVES = "old=alt new=neu big=groß small=klein red=rot white=weiß heavy=schwer cheap=billig clean=sauber"
ADVERBS = "very=sehr quite=ziemlich rather=eher really=wirklich"
VARIANTS = ((0, "source"), (1, "source"), (2, "source"), (1, "both"), (2, "both"))
SETTINGS = {
    "preset": "tiny",
    "model.d_model": 64,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 1,
    "training.batch_tokens": 1_024,
    "training.validate_every": 250,
    "tokenizer.vocabulary_size": 400,
}
Lines = list[tuple[str, str]]


def words(text: str) -> list[tuple[str, str]]:
    """Return the pairs of English and German words of a list."""
    return [(pair.split("=")[0], pair.split("=")[1]) for pair in text.split()]


def document(chooser: random.Random) -> Lines:
    """Return a document that describes one to three things in two or three sentences each."""
    lines: Lines = []
    for _ in range(chooser.randint(1, 3)):
        pronoun = chooser.choice(list(NOUNS))
        noun = chooser.choice(words(NOUNS[pronoun]))
        adjectives = [chooser.choice(words(ADJECTIVES)) for _ in range(3)]
        adverbs = [chooser.choice(words(ADVERBS)) for _ in range(2)]
        first = (" ".join(word[side] for word in (adverbs[0], adjectives[0])) for side in (0, 1))
        english, german = first
        lines.append((f"The {noun[0]} is {english} .", f"{ARTICLES[pronoun]} {noun[1]} ist {german} ."))
        lines.append((f"It is {adjectives[1][0]} .", f"{pronoun} ist {adjectives[1][1]} ."))
        if chooser.random() < 0.5:
            english, german = (" ".join((adverbs[1][side], adjectives[2][side])) for side in (0, 1))
            lines.append((f"But it is {english} , too .", f"Aber {pronoun} ist auch {german} ."))
    return lines


def corpus(documents: int, seed: int) -> Lines:
    """Return the lines of documents, which empty lines separate."""
    chooser, lines = random.Random(seed), Lines()
    for _ in range(documents):
        lines += [*document(chooser), ("", "")]
    return lines[:-1]


def write(lines: Lines, folder: Path, name: str) -> list[str]:
    """Write both sides of a corpus, and return their paths."""
    paths = [folder / f"{name}.en", folder / f"{name}.de"]
    for side, path in enumerate(paths):
        path.write_text("".join(f"{line[side]}\n" for line in lines), "utf-8")
    return list(map(str, paths))


def right_pronouns(translator: transduce.Translator, lines: Lines) -> tuple[int, int]:
    """Return how many pronouns of a test set are right, and how many there are."""
    sources = [source for source, _ in lines]
    translations = translator.translate(sources, translator.search, documents=Documents.of_lines(sources))
    right = total = 0
    for (_, reference), translation in zip(lines, translations, strict=True):
        expected, found = ([word for word in text.split() if word in NOUNS] for text in (reference, translation.text))
        total += bool(expected)
        right += bool(expected) and found[:1] == expected[:1]
    return right, total


def main() -> int:
    """Train a model for each amount of context, and report its share of right pronouns."""
    options = parser(__doc__).parse_args()
    sys.stderr.write(f"{machine()}\n")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, dev = (
            write(corpus(count, seed), folder, part) for part, count, seed in (("train", 1_500, 1), ("dev", 80, 2))
        )
        test = corpus(200, 3)
        for before, sides in VARIANTS[0:3:2] if options.quick else VARIANTS:
            out = folder / f"{before}-{sides}"
            transduce.train(
                source=train[0],
                target=train[1],
                dev_source=dev[0],
                dev_target=dev[1],
                out=out,
                steps=500,
                context_before=before,
                threads=1,
                settings=SETTINGS | {"data.context_sides": sides},
            )
            right, total = right_pronouns(transduce.load(out, task="translation", threads=1), test)
            share = 100.0 * right / total
            bar, holds = ("≤ 50", share <= 50) if not before else ("≥ 95", share >= 95) if before > 1 else (None, None)
            name = f"context {before}, {sides}: right pronouns of {total}"
            rows.append(Row(name, share, "%", bar=bar, holds=holds))
    return report(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())
