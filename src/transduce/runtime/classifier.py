"""Texts to classes with a trained encoder.

Legend: B texts, C classes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import overload

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.given import as_path, as_texts
from transduce.model.encoder import Encoder
from transduce.model.precision import Precision
from transduce.runtime.like_lengths import of_like_lengths, pad
from transduce.runtime.placement import place_encoder
from transduce.runtime.summary import summary
from transduce.runtime.task_card import read_task_card
from transduce.text.marks import marks_of
from transduce.text.tokenizer import Tokenizer

_BATCH_PIECES = 8_192


class Classification(msgspec.Struct, frozen=True):
    """The class of a text."""

    text: str
    label: str
    """The likeliest class."""
    probability: float
    probabilities: Mapping[str, float]
    """Of all classes, the likeliest first."""


class Classifier:
    """A model with the names of its classes. Call it with a text or a list of texts."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, labels: Sequence[str], *, length: int) -> None:
        """
        Args:
            model: with as many classes as there are labels.
            tokenizer: its own.
            labels: the classes, in the order of the model's.
            length: pieces that are read of a text, marks included; the rest of a longer one is left out.

        Raises:
            TransduceError: there are more or fewer labels than classes, or the vocabulary has no marks.
        """
        if len(labels) != model.config.num_labels:
            raise TransduceError(
                f"A model with {model.config.num_labels} classes needs as many labels, but has {len(labels)}: the "
                "folder is not whole."
            )
        self.model = model
        self.tokenizer = tokenizer
        self.labels = tuple(labels)
        self.length = length
        self._marks = marks_of(tokenizer.source)

    def __repr__(self) -> str:
        return summary("Classifier", self.model, f"{len(self.labels)} classes")

    @overload
    def __call__(self, text: str) -> Classification: ...
    @overload
    def __call__(self, text: list[str] | tuple[str, ...]) -> list[Classification]: ...
    def __call__(self, text: str | list[str] | tuple[str, ...]) -> Classification | list[Classification]:
        """The class of a text, or of each of several; the order is kept."""
        texts = as_texts(text)
        probabilities = self.probabilities(texts)
        found = [self._classification(one, row) for one, row in zip(texts, probabilities, strict=True)]
        return found[0] if isinstance(text, str) else found

    @torch.inference_mode()
    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """Of each class for each text, (B, C), float32 on the CPU."""
        texts = as_texts(texts)
        rows = self.encode(texts)
        found = torch.empty(len(texts), len(self.labels))
        for places in of_like_lengths([len(row) for row in rows], _BATCH_PIECES):
            found[places] = self._logits([rows[place] for place in places]).softmax(dim=-1).cpu()
        return found

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The pieces that the model reads of each text."""
        return [self._marks.frame(ids, self.length) for ids in self.tokenizer.source.encode_batch(as_texts(texts))]

    def _logits(self, rows: Sequence[Sequence[int]]) -> Tensor:
        config = self.model.config
        states, _ = self.model.encode(pad(rows, config.pad_id, self.model.source_weight.device))
        return self.model.classify(states).float()

    def _classification(self, text: str, probabilities: Tensor) -> Classification:
        order = probabilities.argsort(descending=True, stable=True).tolist()
        ranked = {self.labels[number]: float(probabilities[number]) for number in order}
        label = self.labels[order[0]]
        return Classification(text, label, ranked[label], ranked)


def load_classifier(
    folder: str | Path, *, precision: Precision | str = "auto", device: str = "auto", threads: int | None = None
) -> Classifier:
    """Opens the folder of a classifier: trained with `--task classification`, or BERT's or RoBERTa's.

    Args:
        folder: of the model.
        precision: "fp32", "bf16", or "auto".
        device: "cpu", "cuda", or "auto".
        threads: to compute with; None: as OMP_NUM_THREADS says, or all usable cores.

    Raises:
        TransduceError: the folder or an option is not what it should be.
    """
    folder = as_path(folder, "A model's folder")
    card = read_task_card(folder, "classification", use="Classifying")
    model, tokenizer = place_encoder(folder, precision=precision, device=device, threads=threads)
    return Classifier(model, tokenizer, card.labels, length=card.length)
