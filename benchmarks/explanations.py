"""Measure how faithful the methods of attribution are, beside occlusion.

    python benchmarks/explanations.py MODEL SOURCE.txt [--sentences 1000] [--json PATH]

For every word of a translation whose log-probability depends on some source word (it drops by at least 1 nat when that
word is removed), each method names one source word. Reported are how often this word is among the two whose removal
hurts most, the mean drop when it is removed, that drop divided by the drop for a random source word, and the processor
time of a sentence. Sentences have at least 6 words; their order is random with seed 1.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import get_args

import numpy as np

import transduce
from transduce.inspection.attribution import Method

MIN_WORDS, MIN_DROP_NATS = 6, 1.0


class Tally:
    """What the methods named, over all words of all sentences."""

    def __init__(self) -> None:
        self.methods = [method for method in get_args(Method) if method != "occlusion"]
        self.hits: dict[str, list[bool]] = {method: [] for method in self.methods}
        self.drops: dict[str, list[float]] = {method: [] for method in (*self.methods, "random")}
        self.seconds = dict.fromkeys(get_args(Method), 0.0)
        self.sentences = 0

    def add(self, translator: transduce.Translator, line: str, chance: random.Random) -> None:
        """Count the words of a sentence's translation; a short sentence is left out."""
        target = translator(line).text
        if len(line) < MIN_WORDS or not target.strip():
            return
        found = {}
        for method in get_args(Method):
            started = time.process_time()
            found[method] = transduce.attribute(translator, line, target, method=method)
            if len(found[method].source_words) < MIN_WORDS:
                return
            self.seconds[method] += time.process_time() - started
        self.sentences += 1
        for row, drop in enumerate(found["occlusion"].words):
            if drop.max() < MIN_DROP_NATS:
                continue
            worst = set(np.argsort(-drop)[:2].tolist())
            self.drops["random"].append(float(drop[chance.randrange(len(drop))]))
            for method in self.methods:
                named = int(found[method].words[row].argmax())
                self.hits[method].append(named in worst)
                self.drops[method].append(float(drop[named]))

    def rows(self) -> list[dict[str, float | str]]:
        """Return the measures of each method."""
        at_random = float(np.mean(self.drops["random"]))
        return [
            {
                "method": method,
                "among_two": float(np.mean(self.hits[method])),
                "drop": float(np.mean(self.drops[method])),
                "ratio": float(np.mean(self.drops[method])) / at_random,
                "seconds": self.seconds[method] / self.sentences,
            }
            for method in self.methods
        ]


def main() -> None:
    """Print a table with a line for each method, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    translator = transduce.load(options.model, precision="fp32", device="cpu")
    if not isinstance(translator, transduce.Translator):
        parser.error(f"{options.model} is not a translator")
    lines = options.source.read_text("utf-8").splitlines()
    chance, tally = random.Random(1), Tally()
    chance.shuffle(lines)
    for line in lines:
        if tally.sentences < options.sentences:
            tally.add(translator, line, chance)
    drops = tally.drops["random"]
    print(f"{tally.sentences} sentences, {len(drops)} words, drop of a random word {np.mean(drops):.2f} nats")
    for row in tally.rows():
        print(
            f"{row['method']:15} among the first two {row['among_two']:.1%}, drop {row['drop']:.2f} nats, "
            f"{row['ratio']:.1f} times a random word's, {row['seconds']:.3f} s"
        )
    if options.json:
        options.json.write_text(json.dumps(tally.rows(), indent=1))


if __name__ == "__main__":
    main()
