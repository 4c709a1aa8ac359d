r"""Make a summarization corpus from books: passages, and headlines in the style of a telegram.

    python examples/summaries.py BOOKS corpus/        # a folder of .txt or .txt.gz files
    transduce train --task denoising --source corpus/train.passage --dev-source corpus/dev.passage \
        --set task.noise.share=0.15 --set tokenizer.vocabulary_size=8000 --out models/pretrained
    transduce train --init-from models/pretrained --source corpus/train.passage --target corpus/train.headline \
        --dev-source corpus/dev.passage --dev-target corpus/dev.headline \
        --set data.filters.max_length_ratio=100 --out models/summaries
    transduce translate models/summaries --no-repeated-ngrams 1 --length-penalty 1 < passages.txt

A passage is a run of whole sentences of a paragraph, 6 to 45 words. Its headline has one word per six, two to five, in
their order: those with the highest tf-idf (Spärck Jones 1972), among words that occur in at least ten passages of the
training part. A model does not see frequencies: it must learn which words are informative, select some, and copy them.
Denoising teaches copying from whole texts; learning it from headlines takes many times as long.
"""

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from books import Pair, find_books, read_segments, without_repeats, write_pairs

from transduce.errors import TransduceError
from transduce.text.sentences import split_sentences

SIDES = ("passage", "headline")
_WORDS_FOR_ONE, _FEWEST, _MOST = 6, 2, 5
_FEWEST_PASSAGES = 10
_FEWEST_WORDS, _MAX_WORDS = 6, 45
_WORD = re.compile(r"[^\W\d_]+(?:[’'][^\W\d_]+)?")


def words_of(text: str) -> list[str]:
    """Return the words of a text, without punctuation and numbers."""
    return _WORD.findall(text)


def passages(paragraph: str) -> Iterator[str]:
    """Yield the longest possible runs of a paragraph's sentences; sentences that are too long and short rests are
    skipped.
    """
    run: list[str] = []
    for sentence in [*split_sentences(paragraph), None]:
        if sentence is None or len(words_of(" ".join([*run, sentence]))) > _MAX_WORDS:
            passage = " ".join(run)
            if len(words_of(passage)) >= _FEWEST_WORDS:
                yield passage
            run = []
        if sentence is not None and len(words_of(sentence)) <= _MAX_WORDS:
            run.append(sentence)


def rarity(texts: Iterable[str]) -> dict[str, float]:
    """Return the inverse document frequency of each word in lower case, as a logarithm.

    Words that occur in very few texts are omitted.
    """
    counts: Counter[str] = Counter()
    number = 0
    for text in texts:
        counts.update({word.lower() for word in words_of(text)})
        number += 1
    return {word: math.log(number / count) for word, count in counts.items() if count >= _FEWEST_PASSAGES}


def headline_words(passage: str) -> int:
    """Return the number of words of a passage's headline."""
    return max(_FEWEST, min(_MOST, len(words_of(passage)) // _WORDS_FOR_ONE))


def headline(passage: str, rarities: dict[str, float]) -> str:
    """Return the words with the highest tf-idf in order of first occurrence; among equals, the earlier ones."""
    words = words_of(passage)
    counts = Counter(word.lower() for word in words if word.lower() in rarities)
    first = {word.lower(): position for position, word in reversed(list(enumerate(words)))}
    ranked = sorted(counts, key=lambda word: (-counts[word] * rarities[word], first[word]))
    positions = sorted(first[word] for word in ranked[: headline_words(passage)])
    return " ".join(words[position].lower() for position in positions)


def leading_words(passage: str) -> str:
    """Return the trivial baseline: the first words of the passage, as many as the headline has."""
    return " ".join(word.lower() for word in words_of(passage)[: headline_words(passage)])


def leading_rare_words(passage: str, rarities: dict[str, float]) -> str:
    """Return a baseline that knows word frequencies: the first words that occur in at most one passage in two
    hundred.
    """
    words = dict.fromkeys(word.lower() for word in words_of(passage))
    rare = [word for word in words if rarities.get(word, 0.0) > math.log(200.0)]
    return " ".join(rare[: headline_words(passage)])


def make_pairs(folder: Path) -> tuple[dict[str, list[Pair]], dict[str, float]]:
    """Return passages with headlines by part, and the inverse document frequencies in the training part."""
    texts: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for book in find_books(folder):
        for part, found in read_segments(book):
            texts[part] += [passage for paragraph in found for passage in passages(paragraph)]
    rarities = rarity(texts["train"])
    pairs = {part: [(text, headline(text, rarities)) for text in found] for part, found in texts.items()}
    return without_repeats(pairs), rarities


def main() -> int:
    """Write two files for each part."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    try:
        pairs, _ = make_pairs(Path(sys.argv[1]))
        write_pairs(pairs, Path(sys.argv[2]), SIDES)
    except TransduceError as error:
        raise SystemExit(str(error)) from None
    print(", ".join(f"{len(found):,} pairs in {part}" for part, found in pairs.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
