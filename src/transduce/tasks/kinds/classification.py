"""Train text classifiers: an encoder, pretrained (`--init-from`) or not, on files of texts and labels.

Legend: B texts, C classes.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from transduce.data.batches import Batch, LabeledBatch, LabeledTexts
from transduce.data.prepared import PreparedCorpus
from transduce.errors import TransduceError, count_noun, shown_names
from transduce.evaluation.label_scores import score_labels
from transduce.tasks.corpus import TaskCorpus, TaskText, prepare_corpus
from transduce.tasks.kinds.encoders import (
    DEV_ROWS,
    LabelChoices,
    LabelingObjective,
    as_encoder,
    describe_encoder,
    read_store,
    text_length,
)
from transduce.tasks.kinds.kind import (
    CardTexts,
    Outcome,
    Preparation,
    RunPlacement,
    TextKind,
    Validation,
    model_to_measure,
    validation_event,
)
from transduce.tasks.kinds.texts import pairs_of_files
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, Settings, TaskSettings
from transduce.text.corpus import read_pairs
from transduce.text.filters import PairFilter
from transduce.text.pair_files import location_of
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import SPECIAL_TOKENS, Vocabulary, special_tokens_of
from transduce.training.choices import Choice, ChoiceLog
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss
from transduce.training.prefetch import to_device
from transduce.training.settings import BestBy

_SHOWN_WEIGHTS = 40  # columns
_MIN_TEXTS = 10  # with fewer texts, many labels do not suggest that the files are swapped
_MIN_GAIN = 0.05  # of the texts that the majority class gets wrong; a model that gets less right has learned little
ACCURACY: Final = "accuracy"
MACRO_F1: Final = "macro_f1"


class ClassificationObjective(LabelingObjective):
    """The training objective of a text classifier: the cross-entropy of the classes."""

    def loss(self, batch: Batch) -> Loss:
        """Return the cross-entropy of the classes, summed over the texts of a batch.

        If the texts have weights, the cross-entropy of each text is multiplied by its weight.
        """
        assert isinstance(batch, LabeledBatch)
        logits = self.logits(batch)
        labels = to_device(batch.target, logits.device)[:, 0]  # (B,)
        negative_log_likelihood = F.cross_entropy(logits, labels, reduction="none")
        smoothed = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)
        weight = None
        if batch.weights is not None:
            weights = to_device(batch.weights, logits.device)  # (B,)
            negative_log_likelihood, smoothed, weight = (
                negative_log_likelihood * weights,
                smoothed * weights,
                float(batch.weights.sum()),
            )
        return Loss(smoothed.sum(), negative_log_likelihood.sum().detach(), len(labels), weight)

    def logits(self, batch: Batch) -> Tensor:
        """Return the logits of the classes for a batch of texts, (B, C), float32."""
        return self.model.classify(self.encode(batch)).float()


class LabeledDevSet(Validation[ClassificationObjective]):
    """A dev set of labeled texts that measures a classifier's loss, accuracy and macro F1; all texts count equally."""

    def __init__(self, objective: ClassificationObjective, batches: Sequence[Batch], best_by: BestBy) -> None:
        super().__init__(objective, batches)
        self.best_by = best_by

    @override
    @torch.inference_mode()
    def measure(self, step: int) -> ValidationEvent:
        nats, hits, predicted, right = 0.0, list[float](), list[str](), list[str]()
        for batch in self.batches:
            logits = self.objective.logits(batch).cpu()
            labels = torch.from_numpy(batch.target)[:, 0]
            nats += float(F.cross_entropy(logits, labels, reduction="sum"))
            hits += (100.0 * (logits.argmax(-1) == labels)).tolist()
            predicted += map(str, logits.argmax(-1).tolist())
            right += map(str, labels.tolist())
        scores = {ACCURACY: sum(hits) / max(1, len(hits)), MACRO_F1: score_labels(predicted, right).macro_f1}
        return validation_event(step, nats / max(1, len(hits)), scores, hits if self.best_by == ACCURACY else None)


class ClassificationKind(LabelChoices, TextKind):
    """The task of text classification: an encoder predicts one class for each text.

    Its methods give a training run its texts, model settings, batches, loss and scores.
    """

    name = "classification"
    muon_factor = 0.5
    measures = ("loss", ACCURACY, MACRO_F1)
    uses = ("task.context", "task.class_weights", "data.weight_column", "data.strict_format")
    example, counted = "text", "texts"
    batch_note = "this task counts texts, not tokens"
    batch_reason = "texts; each has one label"
    epochs = 20
    objective = ClassificationObjective
    labels_tokens = False
    unused_filters = ("max_tokens", "max_length_ratio", "drop_identical")

    def check(self, settings: Settings) -> None:
        """Raise an error for settings that classification does not use, including those of the vocabulary projection.

        Raises:
            TransduceError: a setting has no meaning for classification.
        """
        super().check(settings)
        if not settings.tokenizer.joint:
            raise TransduceError(
                "`tokenizer.joint` = false is for separate vocabularies, but classification has one text with labels: "
                "leave it out."
            )
        self.check_projection(settings)

    def special_tokens(self, task: TaskSettings) -> tuple[str, ...]:  # noqa: ARG002
        """Return the special tokens [CLS], [SEP] and [MASK] for the vocabulary.

        Classification uses only [CLS] and [SEP]. [MASK] allows a masked language model to share the vocabulary.
        """
        return SPECIAL_TOKENS

    def text(self, data: DataSettings) -> TaskText:
        """Return the files of texts and labels with filters (`TaskText`); long texts are truncated when read."""
        filters = msgspec.structs.replace(
            data.filters, max_tokens=2**31 - 1, max_length_ratio=float(2**31), drop_identical=False
        )
        return msgspec.structs.replace(pairs_of_files(data), filters=filters, writes_text=False, noun=self.example)

    def prepare(self, request: Preparation) -> TaskCorpus:
        """Prepare and return the corpus of a new run, with texts and labels.

        If there are more than half as many labels as texts, a message asks whether the two are swapped.

        Raises:
            TransduceError: a file is missing or invalid, or the vocabulary cannot spell a label.
        """
        text = self.read_text(request.settings, request.folder, overwrite=True)
        if request.tokenizer is not None:
            _check_labels(text, request.tokenizer.target, f"that of {request.settings.init_from}")
        corpus = prepare_corpus(
            request.settings,
            text,
            request.folder,
            request.choose_tokenizer,
            request.display,
            tokenizer=request.tokenizer,
        )
        if request.tokenizer is None:
            _check_labels(text, corpus.tokenizer.target, "the one that was learned")
        if corpus.pairs >= _MIN_TEXTS and len(set(_labels(corpus.prepared, corpus.tokenizer))) > corpus.pairs / 2:
            request.display.say(
                "There are nearly as many labels as texts: are they swapped? --source names the texts, and --target "
                "their labels."
            )
        return corpus

    @override
    def labels(self, corpus: TaskCorpus) -> tuple[str, ...]:
        return class_names(corpus)

    def choose_best_by(self, corpus: TaskCorpus, translated: int) -> Choice[BestBy]:  # noqa: ARG002
        """Return the measure that selects the best model: accuracy, with a reason (`Choice`).

        Accuracy may still rise when the loss has started to increase.
        """
        return Choice(ACCURACY, "of the dev texts")

    def log_corpus_problems(self, corpus: TaskCorpus, resolved: ResolvedSettings, choice_log: ChoiceLog) -> None:
        """Log how well the base model predicts masked tokens, if known, and the weights of the classes, if set.

        Raises:
            TransduceError: `task.class_weights` names a label that no text has.
        """
        super().log_corpus_problems(corpus, resolved, choice_log)
        if resolved.task.class_weights is None:
            return
        weights = class_weights(corpus, resolved)
        shown = ", ".join(f"{label} {weight:.3g}" for label, weight in weights.items())
        is_range = len(shown) > _SHOWN_WEIGHTS
        if is_range:
            shown = f"{min(weights.values()):.3g} to {max(weights.values()):.3g}"
        choice_log.record(
            "task.class_weights", None, Choice(shown, "the loss of each class, set by you"), is_message=is_range
        )

    @override
    def training_texts(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> LabeledTexts:
        texts = _texts(corpus.prepared, corpus, resolved)
        texts.weights = _weights(corpus, resolved, texts.labels)
        return texts

    def validation(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> LabeledDevSet:
        """Return a dev set of all dev texts, sorted by length, which measures loss, accuracy and macro F1."""
        assert corpus.dev is not None
        batches = _texts(corpus.dev, corpus, resolved).in_order(DEV_ROWS, resolved.model.pad_id)
        objective = ClassificationObjective(as_encoder(model_to_measure(resolved, placement)))
        return LabeledDevSet(objective, batches, resolved.training.best_by)

    def describe_size(self, corpus: TaskCorpus) -> str:
        """Return a phrase with the numbers of texts and classes.

        Classes that only the dev set has are named.
        """
        classes, training_labels = class_names(corpus), set(_labels(corpus.prepared, corpus.tokenizer))
        unseen = [f"“{label}”" for label in classes if label not in training_labels]
        alone = f" (of the dev set alone: {shown_names(unseen)})" if unseen else ""
        return f"{count_noun(corpus.pairs, 'text')} of {len(classes):,} classes{alone}"

    def describe_batch(self, corpus: TaskCorpus, batch: LabeledBatch) -> dict[str, Any]:
        """Return a dict that describes a batch and can be written as JSON.

        The dict has the class names of the texts (`target`) and the numbers of these classes (`target_ids`).
        """
        classes: list[int] = batch.target[:, 0].tolist()
        labels = class_names(corpus)
        return corpus.describe(batch) | {"target": [labels[number] for number in classes], "target_ids": classes}

    def card_texts(self, corpus: TaskCorpus, resolved: ResolvedSettings, folder: str) -> CardTexts:
        """Return the parts of the model card that are specific to classifiers, such as title and usage."""
        return CardTexts(
            "A classifier",
            "text-classification",
            describe_encoder(resolved, self.describe_size(corpus)),
            f"transduce classify {folder}",
            " < texts.txt",
        )

    def finish(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> Outcome:
        """Measure the best model on the dev set; return an `Outcome` with its accuracy.

        A model that hardly beats the most frequent class is reported as weak.
        """
        from transduce.inference.classifier import load_classifier

        classifier = load_classifier(placement.folder, **placement.load_options(resolved))
        event = self.validation(corpus, resolved, placement).validate(
            classifier.model.state_dict(), placement.best_step
        )
        texts = 0 if corpus.dev is None else corpus.dev.pairs
        accuracy, majority = event.scores[ACCURACY], majority_accuracy(corpus)
        summary = (
            f"Dev set: accuracy {accuracy:.2f} % of {count_noun(texts, 'text')} (majority class {majority:.2f} %), "
            f"macro F1 {event.scores[MACRO_F1]:.2f} %, {event.loss:.3f} nats a text."
        )
        return Outcome(
            measured=summary,
            report=summary,
            scores=event,
            weakness=None
            if accuracy - majority > _MIN_GAIN * (100.0 - majority) or accuracy == 100.0
            else f"The model is hardly better than answering always with the most frequent class: its accuracy is "
            f"{accuracy:.2f} %, and that class has {majority:.2f} % of the dev texts.",
        )


def majority_accuracy(corpus: TaskCorpus) -> float:
    """Return the share of the dev texts, in percent, that have the most frequent class of the training texts."""
    assert corpus.dev is not None
    ((majority, _),) = Counter(_labels(corpus.prepared, corpus.tokenizer)).most_common(1)
    labels = _labels(corpus.dev, corpus.tokenizer)
    return 100.0 * labels.count(majority) / max(1, len(labels))


def class_weights(corpus: TaskCorpus, resolved: ResolvedSettings) -> dict[str, float]:
    """Return a dict from each class's label to its weight in the loss, by `task.class_weights`.

    "balanced" gives each class of the training texts the same total weight. A class that the setting does not name has
    the weight 1.

    Raises:
        TransduceError: the settings name a label that no text has.
    """
    names, setting = class_names(corpus), resolved.task.class_weights
    if setting == "balanced":
        counts = Counter(_labels(corpus.prepared, corpus.tokenizer))
        return {name: counts.total() / (len(counts) * counts[name]) if counts[name] else 1.0 for name in names}
    weights = setting or {}
    for label in weights:
        if label not in names:
            raise TransduceError(
                f'`task.class_weights` names the label "{label}", but the labels are {shown_names(names)}: correct it.'
            )
    return {name: weights.get(name, 1.0) for name in names}


def _weights(corpus: TaskCorpus, resolved: ResolvedSettings, labels: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Return the weight of each training text in the loss, (N,); None: all are 1.

    A weight is the text's own weight in the corpus, times the weight of its class. `labels`, (N,), has the number of
    each text's class.

    Raises:
        TransduceError: `task.class_weights` names a label that no text has.
    """
    of_texts = corpus.prepared.read_range_weights([(0, corpus.prepared.pairs)])
    if resolved.task.class_weights is None:
        return of_texts
    of_classes = np.array(list(class_weights(corpus, resolved).values()), np.float32)[labels]
    return of_classes if of_texts is None else of_texts * of_classes


def _check_labels(text: TaskText, vocabulary: Vocabulary, which: str) -> None:
    """Check that labels stay as they are when encoded and decoded; otherwise two labels could become equal.

    Args:
        text: training and dev set.
        vocabulary: the vocabulary of the labels.
        which: name of the vocabulary, for the error message.

    Raises:
        TransduceError: a label is spelled differently.
    """
    pair_filter, checked = PairFilter(text.filters), set[str]()
    for files in filter(None, (text.files, text.dev)):
        targets = dict(zip(files.source, files.target, strict=False))  # empty for files that hold both sides
        for pair in read_pairs(files):
            label, path = pair.target, targets.get(pair.path, pair.path)
            if label in checked or pair_filter.text_reason(pair.source, label) is not None:
                continue
            checked.add(label)
            spelled, lower = vocabulary.decode(vocabulary.encode(label)), label.lower()
            if spelled != label:
                stays = lower == vocabulary.decode(vocabulary.encode(lower))
                raise TransduceError(
                    f"{location_of(path, pair.line)}: A vocabulary must spell labels exactly, but "
                    f"{which} spells the label “{label}” as “{spelled}”: rename it to something that stays as it is, "
                    f"such as {f'“{lower}” or ' if stays else ''}a number."
                )


def class_names(corpus: TaskCorpus) -> tuple[str, ...]:
    """Return a sorted tuple of the class names that occur in training texts or dev set.

    Raises:
        TransduceError: all texts have the same class.
    """
    classes = set(_labels(corpus.prepared, corpus.tokenizer))
    if corpus.dev is not None:
        classes |= set(_labels(corpus.dev, corpus.tokenizer))
    if len(classes) < 2:
        raise TransduceError(
            f'Classification needs at least two labels, but all texts have the label "{classes.pop()}": add more texts.'
        )
    return tuple(sorted(classes))


@lru_cache(maxsize=4)  # reading the whole corpus is slow, and every validation asks for it
def _labels(corpus: PreparedCorpus, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return a tuple of the label of each text of a prepared corpus, decoded from its target's token ids.

    The last results are cached, because reading a whole corpus is slow.
    """
    store = read_store(corpus, tokenizer, "target")
    decoded: dict[bytes, str] = {}
    labels = []
    for number in range(corpus.pairs):
        ids = store.read(number, number + 1)
        if ids.tobytes() not in decoded:
            decoded[ids.tobytes()] = tokenizer.target.decode(ids.tolist())
        labels.append(decoded[ids.tobytes()])
    return tuple(labels)


def _texts(prepared: PreparedCorpus, corpus: TaskCorpus, resolved: ResolvedSettings) -> LabeledTexts:
    numbers = {label: number for number, label in enumerate(class_names(corpus))}
    store = read_store(prepared, corpus.tokenizer, "source")
    return LabeledTexts(
        [store.read(number, number + 1).tolist() for number in range(prepared.pairs)],
        [numbers[label] for label in _labels(prepared, corpus.tokenizer)],
        special_tokens_of(corpus.tokenizer.source),
        text_length(resolved.model, resolved.task.context),
    )
