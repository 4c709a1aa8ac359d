"""Classify texts with a trained encoder.

Legend: B texts, C classes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import overload

import msgspec
import torch
from torch import Tensor
from typing_extensions import Unpack

from transduce.argument_checks import as_texts
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import TextEncoder
from transduce.model.transformer import Encoder
from transduce.model_folder.load import LoadOptions, load_task_model, summary
from transduce.model_folder.read import read_encoder_folder
from transduce.text.tokenizer import Tokenizer


class Classification(msgspec.Struct, frozen=True):
    """The predicted class of a text, with the probabilities of all classes."""

    text: str
    """The classified text."""
    label: str
    """The name of the most probable class."""
    probability: float
    """The probability of the class `label`, from 0 to 1."""
    probabilities: Mapping[str, float]
    """The probability of each class by its name, most probable first; they sum to 1."""


@explain_wrong_types
class Classifier(TextEncoder):
    """An encoder that predicts the class of a text, with the names of the classes. Call it with a text or a list."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, labels: Sequence[str], *, length: int) -> None:
        """Create a classifier.

        Args:
            model: an encoder with as many classes as there are labels.
            tokenizer: the tokenizer that the model was trained with.
            labels: names of the classes, in the model's order.
            length: maximum number of tokens read from a text, including special tokens; longer texts are truncated.

        Raises:
            TransduceError: the numbers of labels and classes differ, or the vocabulary lacks the special tokens.
        """
        super().__init__(model, tokenizer, length=length)
        if len(labels) != model.config.num_labels:
            raise TransduceError(
                f"A model with {model.config.num_labels} classes needs as many labels, but has {len(labels)}: the "
                "folder's files are of different models."
            )
        self.labels = tuple(labels)

    def __repr__(self) -> str:
        return summary("Classifier", self.model, f"{len(self.labels)} classes")

    @overload
    def __call__(self, text: str) -> Classification: ...
    @overload
    def __call__(self, text: list[str] | tuple[str, ...]) -> list[Classification]: ...
    def __call__(self, text: str | list[str] | tuple[str, ...]) -> Classification | list[Classification]:
        """Return the `Classification` of a text, or a list of those of several texts: class and probabilities."""
        texts = as_texts(text)
        probabilities = self.probabilities(texts)
        classifications = [self._classification(one, row) for one, row in zip(texts, probabilities, strict=True)]
        return classifications[0] if isinstance(text, str) else classifications

    @torch.inference_mode()
    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """Return class probabilities in the order of `labels`, (texts, classes), float32 on the CPU."""
        texts = as_texts(texts)
        probabilities = torch.empty(len(texts), len(self.labels))
        for batch, _, states in self._encode_by_length(self.encode(texts)):
            probabilities[batch] = self.model.classify(states).float().softmax(dim=-1).cpu()
        return probabilities

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts; return a list of token ids for each, with special tokens, cut to at most `length` tokens."""
        vocabulary = self.tokenizer.source
        return self.frame(vocabulary.encode_batch(list(map(vocabulary.readable, as_texts(texts)))))

    def _classification(self, text: str, probabilities: Tensor) -> Classification:
        order = probabilities.argsort(descending=True, stable=True).tolist()
        ranked = {self.labels[number]: float(probabilities[number]) for number in order}
        label = self.labels[order[0]]
        return Classification(text, label, ranked[label], ranked)


def load_classifier(folder: str | Path, **options: Unpack[LoadOptions]) -> Classifier:
    """Load a model folder as a `Classifier`: trained with `--task classification`, or a BERT or RoBERTa classifier.

    The options are those of `load`.

    Raises:
        TransduceError: the folder holds no classifier, or an option is invalid.
    """
    card, content = load_task_model(read_encoder_folder, folder, "classification", use="Classifying", **options)
    return Classifier(content.model, content.tokenizer, card.labels, length=card.length)
