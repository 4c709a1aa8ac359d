"""Show which word "it" attends to in trained models: the animal or the street.

    python benchmarks/coreference.py models/en-de                 # English source: the encoder's attention
    python benchmarks/coreference.py models/de-en models/zh-en    # English target: the decoder's self-attention
    python benchmarks/coreference.py models/novels                # a language model, causal or masked
    python benchmarks/coreference.py models/de-en --quick         # only the first pair

Nothing is trained. "The animal didn't cross the street because it was too tired / too wide": the sentences differ in
their last word, and in what "it" refers to. A head that resolves the pronoun attends to the animal in one sentence and
to the street in the other. A quarter of heads that choose at random do so; heads that ignore the last word never do.
Several pairs show whether a head succeeded by chance. There is no bar, and failures are reported too.
"""

import sys
from pathlib import Path
from typing import NamedTuple

from report import Row, machine, mean, parser, report

from transduce.inference.load import load
from transduce.inference.translator import Translator
from transduce.inspection.coreference import pronoun_attention
from transduce.inspection.sentence_view import PronounPair


class Side(NamedTuple):
    """One sentence of a pair, with translations."""

    english: str
    antecedent: str
    translations: dict[str, str]
    """The sentence in other source languages, by code."""


class Example(NamedTuple):
    """Two sentences whose last word determines what the pronoun refers to."""

    pronoun: str
    among: tuple[str, str]
    """The candidate antecedents, in English."""
    one: Side
    other: Side


EXAMPLES = (
    Example(
        "it",
        ("animal", "street"),
        Side(
            "The animal didn't cross the street because it was too tired.",
            "animal",
            {
                "de": "Das Tier überquerte die Straße nicht, weil es zu müde war.",
                "zh": "这只动物没有过马路，因为它太累了。",
            },
        ),
        Side(
            "The animal didn't cross the street because it was too wide.",
            "street",
            {
                "de": "Das Tier überquerte die Straße nicht, weil sie zu breit war.",
                "zh": "这只动物没有过马路，因为它太宽了。",
            },
        ),
    ),
    Example(
        "it",
        ("book", "bag"),
        Side(
            "The book didn't fit into the bag because it was too big.",
            "book",
            {
                "de": "Das Buch passte nicht in die Tasche, weil es zu groß war.",
                "zh": "这本书放不进包里，因为它太大了。",
            },
        ),
        Side(
            "The book didn't fit into the bag because it was too small.",
            "bag",
            {
                "de": "Das Buch passte nicht in die Tasche, weil sie zu klein war.",
                "zh": "这本书放不进包里，因为它太小了。",
            },
        ),
    ),
    Example(
        "she",
        ("mother", "daughter"),
        Side(
            "The mother called her daughter because she needed help.",
            "mother",
            {
                "de": "Die Mutter rief ihre Tochter an, weil sie Hilfe brauchte.",
                "zh": "母亲给女儿打电话，因为她需要帮助。",
            },
        ),
        Side(
            "The mother helped her daughter because she needed help.",
            "daughter",
            {"de": "Die Mutter half ihrer Tochter, weil sie Hilfe brauchte.", "zh": "母亲帮助女儿，因为她需要帮助。"},
        ),
    ),
)


def ask(reader: object, example: Example) -> PronounPair:
    """Return the pronoun's attention in both sentences of an example, on the side where the model has English."""
    found = []
    for side in (example.one, example.other):
        source = None
        if isinstance(reader, Translator) and reader.source_language != "en":
            source = side.translations.get(reader.source_language or "")
            if source is None:
                raise SystemExit(
                    f"English is translated from {' or '.join(side.translations)}, but this model reads "
                    f"{reader.source_language}: name another folder."
                )
        found.append(
            pronoun_attention(
                reader,
                side.english,
                example.pronoun,
                antecedent=side.antecedent,
                among=example.among,
                translation_of=source,
            )
        )
    return PronounPair(*found)


def rows_of(folder: Path, examples: tuple[Example, ...]) -> list[Row]:
    """Print the attention tables of a model, and return its figures."""
    reader = load(folder, precision="fp32", device="cpu")
    pairs = [ask(reader, example) for example in examples]
    rows = []
    for example, pair in zip(examples, pairs, strict=True):
        sys.stderr.write(f"\n{folder}\n{pair.draw()}\n")
        heads = len(pair.one.pointers)
        name = f"{folder.name}, {' / '.join(example.among)}: heads that point to the right word in both"
        rows.append(Row(name, len(pair.resolving), f"of {heads}", "by chance", pair.chance * heads))
    always = set(pairs[0].resolving).intersection(*(pair.resolving for pair in pairs))
    if len(pairs) > 1:
        expected = len(pairs[0].one.pointers) * pairs[0].chance ** len(pairs)
        rows.append(
            Row(
                f"{folder.name}: heads that do so in all {len(pairs)} pairs",
                len(always),
                "heads",
                "by chance",
                expected,
            )
        )
        share = mean([len(pair.resolving) / len(pair.one.pointers) for pair in pairs])
        rows.append(Row(f"{folder.name}: mean share of such heads", 100.0 * share, "%", "by chance", 25.0))
    return rows


def main() -> int:
    """Analyze every model and report."""
    options = parser(__doc__)
    options.add_argument("models", nargs="+", type=Path, help="model folders")
    args = options.parse_args()
    sys.stderr.write(machine() + "\n")
    examples = EXAMPLES[:1] if args.quick else EXAMPLES
    return report([row for folder in args.models for row in rows_of(folder, examples)], args.json)


if __name__ == "__main__":
    sys.exit(main())
