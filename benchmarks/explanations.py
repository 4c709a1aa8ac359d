"""Measure how faithful the methods of attribution are, beside occlusion.

    python benchmarks/explanations.py MODEL SOURCE.txt [--sentences 1000] [--json PATH]
    python benchmarks/explanations.py MODEL SOURCE.txt --sentences 100 --peer inseq

For every word of a translation whose log-probability depends on some source word (it drops by at least 1 nat when that
word is removed), each method names one source word. Reported are how often this word is among the two whose removal
hurts most, the mean drop when it is removed, that drop divided by the drop for a random source word, and the processor
time of a sentence. Sentences have at least 6 words; their order is random with seed 1.

With `--peer`, inseq's integrated gradients of the same sentences and translations are measured too, with its default
of 50 steps, in an environment of its own. MODEL must then be a folder that transformers can open, as `transduce export
--format hugging-face` writes it.
"""

import argparse
import json
import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
from environments import peer_python

import transduce
from transduce.inspection.attention import group_words
from transduce.inspection.attribution import Attribution, Method
from transduce.inspection.reading import read

MIN_WORDS, MIN_DROP_NATS = 6, 1.0
PEER_STEPS = 50
PEER_METHODS = {"inseq norm": "norm", "inseq sum": "sum"}
WORKER = Path(__file__).with_name("explanations_inseq.py")


class Tally:
    """Counts of the source words that the methods of attribution named, over all words of all sentences."""

    def __init__(self) -> None:
        self.methods = [method for method in get_args(Method) if method != "occlusion"]
        self.hits: dict[str, list[bool]] = {method: [] for method in self.methods}
        self.drops: dict[str, list[float]] = {method: [] for method in (*self.methods, "random")}
        self.seconds = dict.fromkeys(get_args(Method), 0.0)
        self.sentences = 0
        self.pairs: list[tuple[str, str]] = []
        self.occlusions: list[Attribution] = []

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
        self.pairs.append((line, target))
        self.occlusions.append(found["occlusion"])
        for row, drop in enumerate(found["occlusion"].words):
            if drop.max() < MIN_DROP_NATS:
                continue
            self.drops["random"].append(float(drop[chance.randrange(len(drop))]))
            for method in self.methods:
                self._count(method, drop, int(found[method].words[row].argmax()))

    def _count(self, method: str, drop: np.ndarray[Any, Any], named: int) -> None:
        """Count the source word that a method names, given the drop without each source word."""
        self.hits[method].append(named in np.argsort(-drop)[:2])
        self.drops[method].append(float(drop[named]))

    def add_peer(self, translator: transduce.Translator, folder: Path) -> None:
        """Count what inseq names for the same sentences and translations.

        Raises:
            ValueError: the peer has other tokens or probabilities than transduce.
        """
        for method in PEER_METHODS:
            self.methods.append(method)
            self.hits[method], self.drops[method], self.seconds[method] = [], [], 0.0
        answers = _attribute_by_peer(folder, self.pairs)
        for pair, occlusion, answer in zip(self.pairs, self.occlusions, answers, strict=True):
            reading = read(translator, *pair)
            probabilities = reading.log_probabilities()[0].exp().detach().numpy()
            if not np.allclose(probabilities, answer["probability"], atol=1e-3):
                raise ValueError(f"inseq computes other probabilities for {pair}: check the export.")
            sources, targets = (group_words(each[:-1])[1] for each in (reading.source_tokens, reading.outputs))
            for method, kind in PEER_METHODS.items():
                self.seconds[method] += answer["seconds"]
                tokens = np.array(answer[kind])  # (T, S)
                for group, drop in zip(targets, occlusion.words, strict=True):
                    if drop.max() >= MIN_DROP_NATS:
                        row = tokens[group].sum(axis=0)
                        self._count(method, drop, int(np.argmax([row[each].sum() for each in sources])))

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


def _attribute_by_peer(folder: Path, pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Run explanations_inseq.py, and return its output for each pair of source and translation."""
    python = peer_python("inseq", ["inseq==0.7.1"])
    with tempfile.TemporaryDirectory() as temporary:
        plan = Path(temporary) / "plan.json"
        plan.write_text(json.dumps({"folder": str(folder), "steps": PEER_STEPS, "pairs": pairs}), "utf-8")
        command = [str(python), str(WORKER), str(plan)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def main() -> None:
    """Print a table with a line for each method, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--peer", choices=["inseq"])
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
    if options.peer:
        tally.add_peer(translator, Path(options.model))
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
