"""Probing: how well a linear classifier reads a label from the states of each layer, beside a control task.

An accurate probe may have learned the task from its own training examples. It is therefore compared with a control
task, in which every word (or text) has a random label (Hewitt and Liang 2019). It is also compared with guessing the
most frequent label.
Legend: N words or texts, D model width, K labels.
"""

import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.argument_checks import as_list, as_texts
from transduce.errors import TransduceError, count_noun, explain_wrong_types
from transduce.inference.forecaster import Forecaster
from transduce.inference.generator import Generator
from transduce.inference.parser import Parser
from transduce.inference.tagger import Tagger
from transduce.inference.translator import Translator
from transduce.inspection.causal import draw_cells, residual_points
from transduce.inspection.plots import Chart, Curves, curve
from transduce.inspection.reading import Reader, Reading, read
from transduce.inspection.recorder import record_activations
from transduce.text.word_spans import overlap, split_words, token_spans
from transduce.ui_language import localized

_MIN_TEXTS = 10
_TEST_SHARE = 0.25
_PENALTY = 1.0
"""Factor of the L2 penalty, half the sum of a probe's squared weights, which is added to the sum of the losses."""
_STEPS = 60


class Probing(msgspec.Struct, frozen=True, kw_only=True):
    """The accuracy of linear probes (classifiers of labels from a layer's states) on held-out words or texts.

    It has one accuracy for each layer of the model, and baselines for comparison.
    """

    of_words: bool
    """True if every word has a label, False if every text has one."""
    labels: tuple[str, ...]
    """All different labels, most frequent first."""
    num_train: int
    """Number of words or texts that the probes were fitted to."""
    num_test: int
    """Number of words or texts in the held-out part."""
    layers: tuple[str, ...]
    """Names of the layers: `embedding`, `layer 1`, …; a recurrent model has no `embedding`."""
    accuracy: tuple[float, ...]
    """For each layer, the share of held-out labels that its probe finds, from 0 to 1."""
    control_accuracy: tuple[float, ...]
    """For each layer, the share of random held-out labels that a probe trained on random labels finds. Only accuracy
    above this share comes from what the states represent.
    """
    majority: float
    """The share of held-out labels that equal the most frequent label in training."""
    word_majority: float
    """The share of held-out labels that equal the word's most frequent label in training; for labels of texts, equal to
    `majority`.
    """

    def draw(self) -> str:
        """Return a table as text: accuracy, control task's accuracy, and their difference, for each layer.

        Baselines are in the line below it.
        """
        unit = "words" if self.of_words else "texts"
        cells = [
            [f"{100 * value:.1f} %" for value in (right, control, right - control)]
            for right, control in zip(self.accuracy, self.control_accuracy, strict=True)
        ]
        columns = [localized(name) for name in ("accuracy", "control task", "selectivity")]
        table = draw_cells(self.layers, columns, cells)
        baselines = f"the most frequent label {100 * self.majority:.1f} %"
        if self.of_words:
            baselines += f", the most frequent label of the word {100 * self.word_majority:.1f} %"
        return (
            f"{len(self.labels)} labels, {self.num_train} {unit} to fit, {self.num_test} held out\n{table}\n"
            f"baselines: {baselines}"
        )

    def chart(self) -> Chart:
        """Return a chart with curves by layer: the probes' accuracy, that of the control task, and the baselines."""
        x = np.arange(len(self.layers)) + (self.layers[0] != "embedding")
        curves = (
            curve("probe", x, self.accuracy, marked=True),
            curve("control task", x, self.control_accuracy, marked=True),
            curve("most frequent label", x, [self.majority] * len(x), marked=True),
            curve("most frequent label of the word", x, [self.word_majority] * len(x), marked=True),
        )
        title = "Accuracy of linear probes on held-out text"
        return Chart((Curves(title, "layer (0: embedding)", "share", curves if self.of_words else curves[:-1]),))


@explain_wrong_types
def probe(
    reader: Reader, texts: Sequence[str], labels: Sequence[str] | Sequence[Sequence[str]], *, seed: int = 1
) -> Probing:
    """Fit a linear probe to the states of each layer, and return its accuracy on held-out texts as a `Probing`.

    The states are those of the encoder, or of the decoder in a language model. A word's state is the mean over its
    tokens, weighted by their characters, or in a tagger the state of its first token. A text's state is the mean over
    its words. Words are what spaces separate, and characters in scripts without spaces. A quarter of the texts is held
    out, at random.

    Args:
        reader: a loaded model that reads texts, as `transduce.load` returns it; in fp32, because
            bfloat16 changes the third digit of the results.
        texts: at least ten texts.
        labels: a label for each text, or for each text a list with a label for each word.
        seed: random seed of the division of the texts and of the control task.

    Raises:
        TransduceError: the numbers of texts, words or labels differ, there are too few, or the model reads numbers.
    """
    if isinstance(reader, Forecaster):
        raise TransduceError("Probing reads labels of words and texts, but a forecaster reads numbers.")
    texts, labels = as_texts(texts), as_list(labels, "labels")
    if len(texts) != len(labels) or len(texts) < _MIN_TEXTS:
        raise TransduceError(
            f"Probing needs at least {_MIN_TEXTS} texts with labels, but there are {len(texts)} texts and "
            f"{len(labels)} labels."
        )
    of_words = not isinstance(labels[0], str)
    words, targets, states, names = list[list[str]](), list[list[str]](), list[Tensor](), tuple[str, ...]()
    for number, (text, given) in enumerate(zip(texts, labels, strict=True), 1):
        if not split_words(text):
            raise TransduceError(f"A text to probe has words, but text {number} is empty: leave it out with its label.")
        words_of, states_of, names = _word_states(reader, text)  # (layers, words, D)
        if of_words and len(given) != len(words_of):
            raise TransduceError(
                f"Every word needs a label, but text {number} has {count_noun(len(words_of), 'word')} "
                f"and {count_noun(len(given), 'label')}."
            )
        words.append(words_of if of_words else [text])
        targets.append(list(given) if of_words else [str(given)])
        states.append(states_of if of_words else states_of.mean(dim=1, keepdim=True))
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    test = set(order[: max(1, round(_TEST_SHARE * len(order)))])
    parts = [[number for number in range(len(texts)) if (number in test) == held_out] for held_out in (False, True)]
    train_states, test_states = (torch.cat([states[n] for n in part], dim=1).double() for part in parts)
    train_words, test_words = ([word for n in part for word in words[n]] for part in parts)
    train_labels, test_labels = ([label for n in part for label in targets[n]] for part in parts)
    kinds = tuple(label for label, _ in Counter(train_labels + test_labels).most_common())
    if len(kinds) < 2:
        raise TransduceError(f"A probe tells labels apart, but all are `{kinds[0]}`: pass texts with different labels.")
    control = _random_labels([*train_words, *test_words], train_labels, seed)
    fitted = [
        (
            _accuracy(train, test_of, train_labels, test_labels),
            _accuracy(train, test_of, control[: len(train_words)], control[len(train_words) :]),
        )
        for train, test_of in zip(train_states, test_states, strict=True)
    ]
    return Probing(
        of_words=of_words,
        labels=kinds,
        num_train=len(train_labels),
        num_test=len(test_labels),
        layers=names,
        accuracy=tuple(own for own, _ in fitted),
        control_accuracy=tuple(random_labels for _, random_labels in fitted),
        majority=_share([Counter(train_labels).most_common(1)[0][0]] * len(test_labels), test_labels),
        word_majority=_word_majority(train_words, train_labels, test_words, test_labels),
    )


def _word_states(reader: Reader, text: str) -> tuple[list[str], Tensor, tuple[str, ...]]:
    """Return a text's words, the words' states after each layer, (layers, words, D), and the layers' names."""
    reading = read(reader, text, "") if isinstance(reader, Translator) else read(reader, text)
    stack = "encoder" if reading.source_tokens else "decoder"
    names = residual_points(reading, stack)
    with torch.inference_mode(), record_activations(reading.model, names) as recording:
        reading.forward()
    states = torch.stack([recording[name][0].float().cpu() for name in names])  # (layers, T, D)
    words, weights = _words_of_tokens(reader, reading, text)
    first = int(names[0].endswith(".residual"))
    shown = tuple(f"layer {number}" if number else "embedding" for number in range(first, first + len(names)))
    return words, torch.einsum("wt,ltd->lwd", weights, states), shown


def _words_of_tokens(reader: Reader, reading: Reading, text: str) -> tuple[list[str], Tensor]:
    """Return a text's words, and a matrix that turns the states of tokens into states of words.

    The matrix, (words, T) for T tokens, averages the states of a word's tokens. In a tagger, it selects the state of
    the word's first token.

    Raises:
        TransduceError: the text has no word.
    """
    count = len(reading.source_tokens or reading.decoder_tokens)
    if isinstance(reader, Tagger):
        return list(reading.outputs), F.one_hot(torch.tensor(reading.positions), count).float()
    vocabulary = reader.vocabulary if isinstance(reader, Generator) else reader.tokenizer.source  # type: ignore[union-attr]
    text = vocabulary.normalize(text)
    ids, spans = vocabulary.encode(text), split_words(text)
    shared = torch.from_numpy(overlap(spans, token_spans(vocabulary.token_texts(ids), text))).float()  # (words, tokens)
    first = len(vocabulary.before) if isinstance(reader, Translator | Parser) else 1
    if isinstance(reader, Generator):
        first = count - len(ids)
    weights = F.pad(shared, (first, count - first - len(ids)))
    return [text[span.start : span.end] for span in spans], weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-9)


def _random_labels(words: Sequence[str], labels: Sequence[str], seed: int) -> list[str]:
    """Return a list with a random label for each word, equal for equal words, for the control task of probing.

    Labels are drawn from `labels` with their frequencies.
    """
    chance = random.Random(seed)
    chosen = {word: chance.choice(labels) for word in sorted(set(words))}
    return [chosen[word] for word in words]


def _accuracy(train: Tensor, test: Tensor, train_labels: Sequence[str], test_labels: Sequence[str]) -> float:
    """Fit multinomial logistic regression to train states, (N, D), and return its accuracy on the test states.

    The accuracy is the share of test labels that the regression finds, from 0 to 1.
    """
    kinds = sorted(set(train_labels))
    columns = {label: number for number, label in enumerate(kinds)}
    mean, deviation = train.mean(dim=0), train.std(dim=0).clamp_min(1e-6)
    train, test = (train - mean) / deviation, (test - mean) / deviation
    targets = torch.tensor([columns[label] for label in train_labels])
    weight = torch.zeros(len(kinds), train.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(kinds), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(train, weight, bias), targets, reduction="sum")
        loss = (loss + _PENALTY / 2 * weight.square().sum()) / len(targets)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    best = F.linear(test, weight.detach(), bias.detach()).argmax(dim=-1).tolist()
    return _share([kinds[number] for number in best], test_labels)


def _share(found: Sequence[str], labels: Sequence[str]) -> float:
    return round(sum(one == other for one, other in zip(found, labels, strict=True)) / len(labels), 6)


def _word_majority(
    train_words: Sequence[str], train_labels: Sequence[str], test_words: Sequence[str], test_labels: Sequence[str]
) -> float:
    """Return the share of test labels found by answering each word's most frequent train label, as a baseline.

    For a word that training lacks, the answer is the most frequent label of all.
    """
    by_word: dict[str, Counter[str]] = {}
    for word, label in zip(train_words, train_labels, strict=True):
        by_word.setdefault(word, Counter())[label] += 1
    overall = Counter(train_labels)
    return _share([by_word.get(word, overall).most_common(1)[0][0] for word in test_words], test_labels)
