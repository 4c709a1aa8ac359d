"""Compare how sentences are split and languages are detected with libraries: sentencex, pysbd, py3langid and lingua.

    python benchmarks/text_libraries.py
    python benchmarks/text_libraries.py --quick

Splitting: 2 to 4 lines of a dev set that end with punctuation are joined; the line is right if exactly these come back.
Some dev lines have two sentences, so that 100 % cannot be reached.
Detection: dev sentences of at least four words (Chinese: eight characters), among five languages; ours learns from the
training sets, as a training run does. The peers have an environment of their own (`environments.py`).
"""

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from environments import peer_python
from report import Row, data_folder, parser, report

from transduce.text.files import read_lines
from transduce.text.languages import learn_profiles, sentence_separator
from transduce.text.sentences import split_sentences

# The dev set and the training set of each language.
_CORPORA = {
    "zh": ("tatoeba-zh-en/dev.zh.gz", "tatoeba-zh-en/train.zh.gz"),
    "de": ("tatoeba-de-en/dev.de.gz", "tatoeba-de-en/train.de.gz"),
    "en": ("tatoeba-de-en/dev.en.gz", "tatoeba-de-en/train.en.gz"),
    "cs": ("multi30k-en-cs/raw/val.cs.gz", "multi30k-en-cs/raw/train.cs.gz"),
    "es": ("americasnlp-es/es-aym/dev.es.gz", "americasnlp-es/es-aym/train.es.gz"),
}
_SPLIT = ("zh", "de", "en", "es")
_ENDS = tuple(".!?。！？…\"'”’」»)")
_SHORTEST, _LONGEST = 2, 4
_MIN_WORDS, _MIN_CHARACTERS = 4, 8
_PEERS = ("sentencex==1.0.32", "pysbd==0.3.4", "py3langid==0.4.0", "lingua-language-detector==2.1.1")
_WORKER = Path(__file__).with_name("text_libraries_worker.py")


def joined(sentences: Sequence[str]) -> list[list[str]]:
    """Return lists of 2 to 4 sentences in a random order, each of which forms a line."""
    chance, found = random.Random(1), list[list[str]]()
    rest = chance.sample(sentences, len(sentences))
    while len(rest) >= _LONGEST:
        count = chance.randint(_SHORTEST, _LONGEST)
        found.append([rest.pop().strip() for _ in range(count)])
    return found


def measure(
    texts: Sequence[str], job: dict[str, Any], ours: Mapping[str, Callable[[str], Any]], peers: Sequence[str]
) -> Iterator[tuple[str, list[Any], float]]:
    """Yield (name, results, seconds) for our functions, by name, and for libraries, on the same texts."""
    for name, function in ours.items():
        start = time.perf_counter()
        results = [function(text) for text in texts]
        yield name, results, time.perf_counter() - start
    for library in peers:
        command = [str(peer_python("text-libraries", _PEERS)), "-P", str(_WORKER)]
        content = json.dumps({**job, "library": library, "texts": texts})
        answer = json.loads(
            subprocess.run(command, input=content, stdout=subprocess.PIPE, text=True, check=True).stdout
        )
        yield library, answer["results"], answer["seconds"]


def splitting_rows(folder: Path, most: int) -> Iterator[Row]:
    """Yield the share of lines that are split right, and the speed, of each splitter and language."""
    for language in _SPLIT:
        lines = joined([line for line in read_lines(folder / _CORPORA[language][0]) if line.endswith(_ENDS)])[:most]
        texts = [sentence_separator(language).join(line) for line in lines]
        ours: dict[str, Callable[[str], list[str]]] = {
            "split_sentences": partial(split_sentences, language=language),
            "split_sentences, language unknown": split_sentences,
        }
        job = {"task": "split", "language": language}
        for name, found, seconds in measure(texts, job, ours, ("sentencex", "pysbd")):
            right = sum(one == other for one, other in zip(found, lines, strict=True)) / len(lines)
            yield Row(f"lines split right, {language}, {len(lines)} lines, {name}", 100 * right, "%")
            speed = sum(map(len, texts)) / seconds / 1e6
            yield Row(f"speed of splitting, {language}, {name}", speed, "million characters/s")


def detection_rows(folder: Path, most: int) -> Iterator[Row]:
    """Yield the share of dev sentences whose language is detected, and the time, of each detector and language."""
    profiles = learn_profiles({code: read_lines(folder / train) for code, (_, train) in _CORPORA.items()})
    ours = {"learned profiles": lambda text: next(iter(profiles.probabilities(text)))}
    job = {"task": "detect", "languages": list(_CORPORA)}
    for language, (dev, _) in _CORPORA.items():
        long = (
            line
            for line in read_lines(folder / dev)
            if len(line.split()) >= _MIN_WORDS or (language == "zh" and len(line) >= _MIN_CHARACTERS)
        )
        texts = [line for line, _ in zip(long, range(most), strict=False)]
        for name, found, seconds in measure(texts, job, ours, ("py3langid", "lingua")):
            yield Row(f"languages detected, {language}, {name}", 100 * found.count(language) / len(texts), "%")
            yield Row(f"time of detecting, {language}, {name}", 1e6 * seconds / len(texts), "µs")


def main() -> int:
    """Measure, and print all rows."""
    options = parser(__doc__).parse_args()
    folder, most = data_folder(), 100 if options.quick else 1000
    return report([*splitting_rows(folder, most), *detection_rows(folder, most)], options.json)


if __name__ == "__main__":
    raise SystemExit(main())
