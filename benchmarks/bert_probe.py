"""Probe the models of `bert_clinc.py` with linear classifiers, to show how much pretraining helps to recognize intents.

    python benchmarks/bert_probe.py            # after bert_clinc.py, with the same --out and --minutes
    python benchmarks/bert_probe.py --quick    # after bert_clinc.py --quick

Logistic regression on ten examples of each intent (seed 1), accuracy on the 3,000 validation utterances, the best of
five penalties. Features are tf-idf of tokens, means of their embeddings or of the encoder's states (pretrained and
random), and tf-idf with pretrained embeddings. If the last is no better than tf-idf, pretraining offers fine-tuning
little. A further row reports how many words of the utterances are rare in the novels. There is no bar.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from bert_clinc import PRETRAINED, SCRATCH, few_of_each, read_intents, read_options
from report import Row, machine, report
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.inference.mask_filler import Filler, load_filler

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2)
STEPS, RATE, BATCH = 150, 0.03, 64
# Norms of feature rows: each kind alone is fitted about equally fast; combined, tf-idf dominates.
PIECES_LENGTH, STATES_LENGTH, ADDED_LENGTH = 5.0, 14.0, 1.5
RARE = 50  # occurrences in all novels

Features = tuple[Tensor, Tensor]
Labels = tuple[Tensor, Tensor]


def accuracy(features: Features, labels: Labels) -> float:
    """Return the percentage of validation utterances that a linear classifier labels correctly, with the best
    penalty.
    """
    torch.manual_seed(1)
    found = []
    for penalty in PENALTIES:
        classifier = nn.Linear(features[0].shape[1], 150)
        adam = torch.optim.Adam(classifier.parameters(), lr=RATE)
        for _ in range(STEPS):
            loss = F.cross_entropy(classifier(features[0]), labels[0])
            adam.zero_grad()
            (loss + penalty / 2 * classifier.weight.square().sum()).backward()
            adam.step()
        right = classifier(features[1]).argmax(dim=1) == labels[1]
        found.append(100.0 * float(right.float().mean()))
    return max(found)


def scaled(features: Features, length: float) -> Features:
    """Normalize every row of features to this length."""
    train, dev = (F.normalize(each, dim=1) * length for each in features)
    return train, dev


def counts(texts: list[str], filler: Filler) -> Tensor:
    """Return how often each text contains each token, (N, V)."""
    found = torch.zeros(len(texts), filler.tokenizer.target.size)
    for row, ids in zip(found, filler.tokenizer.target.encode_batch(texts), strict=True):
        row.index_add_(0, torch.tensor(ids), torch.ones(len(ids)))
    return found


@torch.inference_mode()
def mean_states(texts: list[str], filler: Filler) -> Tensor:
    """Return the mean of the last layer's states over each text's tokens without special tokens, (N, D)."""
    vocabulary, pad_id = filler.tokenizer.target, filler.model.config.pad_id
    first, last = vocabulary.id("[CLS]"), vocabulary.id("[SEP]")
    found = []
    for start in range(0, len(texts), BATCH):
        rows = [[first, *ids, last] for ids in vocabulary.encode_batch(texts[start : start + BATCH])]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [pad_id] * (longest - len(row)) for row in rows])
        own = ((ids != pad_id) & (ids != first) & (ids != last)).float()[..., None]
        states, _ = filler.model.encode(ids)
        found.append((states * own).sum(dim=1) / own.sum(dim=1))
    return torch.cat(found)


def rows_of(folder: Path, train: list[str], dev: list[str], labels: Labels) -> list[Row]:
    """Return rows with the accuracy of a linear classifier on each kind of features."""
    fillers = {name: load_filler(folder / name, precision="fp32", device="cpu") for name in (PRETRAINED, SCRATCH)}

    def both(make: Callable[[list[str]], Tensor]) -> Features:
        return make(train), make(dev)

    pieces = both(partial(counts, filler=fillers[PRETRAINED]))
    weights = torch.log((1 + len(train)) / (1 + (pieces[0] > 0).sum(dim=0))) + 1.0
    tf_idf = pieces[0] * weights, pieces[1] * weights
    found = {"tokens": scaled(tf_idf, PIECES_LENGTH)}
    for name, filler in fillers.items():
        weight = filler.model.source_weight.detach()
        table = F.normalize(weight - weight.mean(dim=0), dim=1)
        found[f"{name} embeddings"] = scaled((tf_idf[0] @ table, tf_idf[1] @ table), STATES_LENGTH)
        states = both(partial(mean_states, filler=filler))
        centre, spread = states[0].mean(dim=0), states[0].std(dim=0) + 1e-6
        found[f"{name} states"] = (states[0] - centre) / spread, (states[1] - centre) / spread
    added = scaled(found[f"{PRETRAINED} embeddings"], ADDED_LENGTH)
    train_rows, dev_rows = (torch.cat(pair, dim=1) for pair in zip(found["tokens"], added, strict=True))
    found[f"tokens and {PRETRAINED} embeddings"] = train_rows, dev_rows
    return [
        Row(f"linear classifier on {name}", accuracy(features, labels), "% of 3,000 validation utterances")
        for name, features in found.items()
    ]


def rarity(folder: Path, texts: list[str]) -> Row:
    """Return the percentage of the utterances' words that are rare in the novels."""
    known: Counter[str] = Counter()
    for novel in sorted((folder / "novels").iterdir()):
        known.update(re.findall(r"[a-z']+", novel.read_text(encoding="utf-8")))
    words = sorted({word for text in texts for word in re.findall(r"[a-z']+", text)})
    rare = sum(known[word] < RARE for word in words)
    name = f"different words of the utterances that the novels have less than {RARE} times"
    return Row(name, 100.0 * rare / len(words), "%")


def main() -> int:
    """Run all probes and report."""
    args, folder = read_options(__doc__)
    sys.stderr.write(f"{machine()}\n")
    parts = read_intents()
    few, dev = few_of_each(parts["train"], 1), parts["val"]
    numbers = {intent: number for number, intent in enumerate(sorted({intent for _, intent in few}))}
    labels = tuple(torch.tensor([numbers[intent] for _, intent in pairs]) for pairs in (few, dev))
    texts = [[text for text, _ in pairs] for pairs in (few, dev)]
    rows = rows_of(folder, texts[0], texts[1], (labels[0], labels[1]))
    return report([*rows, rarity(folder, [text for text, _ in parts["train"]])], args.json)


if __name__ == "__main__":
    sys.exit(main())
