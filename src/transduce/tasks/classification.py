"""Classification: texts and their labels, line by line, for an encoder that was pretrained (`--from`) or not.

Legend: B texts, C classes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.data.batches import Batch
from transduce.data.labelled import LabelledBatch, LabelledPlan, LabelledTexts
from transduce.data.prepared import PreparedCorpus
from transduce.errors import TransduceError
from transduce.model.build import AnyModel
from transduce.model.config import ModelConfig
from transduce.model.encoder import Encoder
from transduce.runtime.task_card import TASK_CARD, TaskCard, find_task_card
from transduce.tasks.card import front_matter, opened_by
from transduce.tasks.corpus import TaskCorpus, TaskText
from transduce.tasks.encoders import (
    BERT,
    USUAL_CONTEXT,
    build_encoder,
    encoder_of,
    encoder_sizes,
    linear_schedule,
    read_store,
    text_length,
)
from transduce.tasks.kind import Fresh, Outcome, Place, Preparation, Share, model_dtype, pairs_of_files
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.settings import DataSettings, Settings, TaskSettings
from transduce.tasks.text_kind import TextKind
from transduce.text.corpus import read_pairs
from transduce.text.counted import counted
from transduce.text.filters import PairFilter
from transduce.text.marks import MARKS, marks_of
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary
from transduce.training.ahead import to_device
from transduce.training.choices import Choice, Preset
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss
from transduce.training.schedule import ScheduleName
from transduce.training.settings import BestBy, OptimizerName

_DEV_ROWS = 64
_ROWS = 32
_EPOCHS = 20
# What is said of logits of pieces, which this has none of, and what else a settings file has there.
_OF_PROJECTION = {"tie_output": True, "output_bias": False, "output_scale": 1.0}
ACCURACY: Final = "accuracy"


class ClassificationTask:
    """The loss of a batch of labelled texts under a model."""

    def __init__(self, model: Encoder, *, label_smoothing: float) -> None:
        self.model = model
        self.label_smoothing = label_smoothing

    def loss(self, batch: Batch) -> Loss:
        """Cross-entropy of the classes, summed over the texts."""
        assert isinstance(batch, LabelledBatch)
        logits = self.logits(batch)
        labels = to_device(batch.target, logits.device)[:, 0]  # (B,)
        own = logits[: len(labels)]
        likelihood = F.cross_entropy(own, labels, reduction="sum")
        smoothed = F.cross_entropy(own, labels, reduction="sum", label_smoothing=self.label_smoothing)
        # A process without texts of its own has one that counts nothing, but takes part in the gradient.
        return Loss(smoothed + 0.0 * logits.sum(), likelihood.detach(), len(labels))

    def logits(self, batch: Batch) -> Tensor:
        """Of the classes, (B, C), float32."""
        ids = to_device(batch.source, self.model.source_weight.device)
        states, _ = self.model.encode(ids)
        return self.model.classify(states).float()


class LabelledDevSet:
    """Labelled texts that training does not see: the loss of their classes, and how many are told."""

    def __init__(self, config: ModelConfig, batches: Sequence[Batch], *, dtype: torch.dtype, device: str) -> None:
        self.model = build_encoder(config).to(device=device, dtype=dtype).eval()
        self.task = ClassificationTask(self.model, label_smoothing=0.0)
        self.batches = batches

    @torch.inference_mode()
    def validate(self, weights: Mapping[str, Tensor], step: int) -> ValidationEvent:
        """The texts under these weights."""
        started_at = time.monotonic()
        self.model.load_state_dict(weights)
        nats, told, texts = 0.0, 0, 0
        for batch in self.batches:
            logits = self.task.logits(batch).cpu()
            labels = torch.from_numpy(batch.target)[:, 0]
            nats += float(F.cross_entropy(logits, labels, reduction="sum"))
            told += int((logits.argmax(-1) == labels).sum())
            texts += len(labels)
        loss = nats / max(1, texts)
        return ValidationEvent(
            step=step,
            loss=loss,
            perplexity=float(torch.tensor(min(loss, 100.0)).exp()),
            scores={ACCURACY: 100.0 * told / max(1, texts)},
            validation_seconds=time.monotonic() - started_at,
        )


class Classification(TextKind):
    """Texts and labels."""

    name = "classification"
    model_kinds = ("encoder",)
    measures = ("loss", ACCURACY)
    label_smoothing = 0.0
    own_settings = ("context",)
    instead_of_search = "leave it out"
    idle_filters = ("max_pieces", "max_length_ratio", "drop_identical")

    def check(self, settings: Settings) -> None:
        """Refuses a vocabulary of labels, and a projection to pieces, too.

        Raises:
            TransduceError: settings mean nothing here.
        """
        super().check(settings)
        if not settings.tokenizer.joint:
            raise TransduceError(
                "`tokenizer.joint` = false is for a vocabulary on either side, but here is one text with labels: leave "
                "it out."
            )
        for name, usual in _OF_PROJECTION.items():
            # A model that training begins with may have its own, which does nothing then.
            if settings.start_from is None and getattr(settings.model, name) not in (None, usual):
                raise TransduceError(f"`model.{name}` means nothing where `task.kind` is {self.name}: leave it out.")

    def marks(self, task: TaskSettings) -> tuple[str, ...]:  # noqa: ARG002
        """[CLS], [SEP] and [MASK]: a model that is pretrained later can have the same vocabulary."""
        return MARKS

    def text(self, data: DataSettings) -> TaskText:
        """Texts and labels; texts of any length, for the end of long ones is not read."""
        filters = msgspec.structs.replace(
            data.filters, max_pieces=2**31 - 1, max_length_ratio=float(2**31), drop_identical=False
        )
        return msgspec.structs.replace(pairs_of_files(data), filters=filters, writes_text=False)

    def prepare(self, asked: Preparation) -> TaskCorpus:
        """As every text; the vocabulary must be able to spell the labels."""
        text = self.text(asked.settings.data)
        if asked.tokenizer is not None:
            _check_labels(text, asked.tokenizer.target, f"that of {asked.settings.start_from}")
        corpus = super().prepare(asked)
        if asked.tokenizer is None:
            _check_labels(text, corpus.tokenizer.target, "the one that was learnt")
        return corpus

    def sizes(self, preset: Preset, model_kind: str) -> dict[str, object]:  # noqa: ARG002
        """The preset's, as BERT has them."""
        return encoder_sizes(preset)

    def model_settings(self, task: TaskSettings) -> dict[str, object]:
        """BERT's, for a model that was not pretrained."""
        return BERT | {"output_bias": False, "max_positions": USUAL_CONTEXT if task.context is None else task.context}

    def adapt_model(self, config: ModelConfig, corpus: TaskCorpus, task: TaskSettings) -> ModelConfig:  # noqa: ARG002
        """As many classes as there are labels, and no head for hidden pieces."""
        return msgspec.structs.replace(
            config, num_labels=len(labels_of(corpus)), masked_language_head=False, pooler=True
        )

    def fresh(self, corpus: TaskCorpus) -> Fresh:
        """The classifier, and the layer below it where the model has none."""
        return Fresh(("classifier.", "pooler."), lambda folder: _other_classes(folder, labels_of(corpus)))

    def choose_batch_tokens(self, epoch_tokens: int, device: str) -> Choice[int]:  # noqa: ARG002
        """A label is a text's only target token."""
        return Choice(_ROWS, "texts; each has one label")

    def choose_steps(self, pairs: int, epoch_tokens: int, batch_tokens: int) -> Choice[int]:  # noqa: ARG002
        """Twenty epochs."""
        return Choice(max(300, _EPOCHS * -(-pairs // batch_tokens)), f"{_EPOCHS} epochs of {pairs:,} texts")

    def choose_schedule(self, norm_order: str) -> Choice[ScheduleName]:  # noqa: ARG002
        """Linear."""
        return linear_schedule()

    def choose_learning_rate(
        self,
        settings: Settings,
        d_model: int,
        schedule: ScheduleName,  # noqa: ARG002
        warmup_steps: int,  # noqa: ARG002
        batch_tokens: int,  # noqa: ARG002
        optimizer: OptimizerName,  # noqa: ARG002
    ) -> Choice[float]:
        """6.5e-5 at BERT's width for a pretrained model, where its makers took 2e-5 to 5e-5; several times as much for
        one that is not, and ten times for updates of LoRA.
        """
        factor = 0.5 if settings.training.lora_rank else 0.25 if settings.start_from is None else 0.05
        return Choice(factor / d_model, f"{factor} / d_model ({d_model})")

    def choose_best_by(self, corpus: TaskCorpus, translated: int) -> Choice[BestBy]:  # noqa: ARG002
        """Accuracy, which goes on rising after the loss has turned."""
        return Choice(ACCURACY, "of the dev texts")

    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> Callable[[Batch], Loss]:
        """Of the classes."""
        return ClassificationTask(encoder_of(model), label_smoothing=resolved.training.label_smoothing).loss

    def plan(self, corpus: TaskCorpus, resolved: ResolvedSettings, share: Share = (0, 1)) -> LabelledPlan:
        """Labelled texts; `training.batch_tokens` counts them."""
        return LabelledPlan(
            _texts(corpus.prepared, corpus, resolved),
            rows=resolved.micro_batch_tokens,
            seed=resolved.training.seed,
            pad_id=resolved.model.pad_id,
            share=share,
        )

    def largest(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> list[Batch]:
        """The longest texts."""
        return [self.plan(corpus, resolved).largest()]

    def validation(self, corpus: TaskCorpus, resolved: ResolvedSettings, place: Place) -> LabelledDevSet:
        """All dev texts."""
        assert corpus.dev is not None
        batches = _texts(corpus.dev, corpus, resolved).in_order(_DEV_ROWS, resolved.model.pad_id)
        return LabelledDevSet(resolved.model, batches, dtype=model_dtype(resolved), device=place.device)

    def describe_size(self, corpus: TaskCorpus) -> str:
        """In texts and classes; of some there may be no text to learn from."""
        classes, learnt = labels_of(corpus), set(_labels(corpus.prepared, corpus.tokenizer))
        unseen = ", ".join(f"“{label}”" for label in classes if label not in learnt)
        alone = f" (of the dev set alone: {unseen})" if unseen else ""
        return f"{counted(corpus.pairs, 'text')} of {len(classes):,} classes{alone}"

    def describe_batch(self, corpus: TaskCorpus, batch: LabelledBatch) -> dict[str, Any]:
        """A label is the number of a class, not a piece."""
        classes: list[int] = batch.target[:, 0].tolist()
        labels = labels_of(corpus)
        return corpus.describe(batch) | {"target": [labels[number] for number in classes], "target_ids": classes}

    def documents(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> Mapping[str, str]:
        """The classes."""
        length = _length(resolved)
        return {TASK_CARD: TaskCard(kind="classification", labels=labels_of(corpus), length=length).text()}

    def card(self, corpus: TaskCorpus, resolved: ResolvedSettings, step: int | None) -> str:
        """Data and shape."""
        return self._card(corpus, resolved, step, "")

    def finish(self, corpus: TaskCorpus, resolved: ResolvedSettings, place: Place, step: int | None) -> Outcome:
        """How many dev texts the model that was kept tells."""
        from transduce.runtime.classifier import load_classifier

        classifier = load_classifier(
            place.folder, precision=resolved.training.precision, device=place.device, threads=place.threads
        )
        event = self.validation(corpus, resolved, place).validate(classifier.model.state_dict(), step or 0)
        texts = 0 if corpus.dev is None else corpus.dev.pairs
        said = f"Dev set: accuracy {event.scores[ACCURACY]:.2f} % of {texts:,} texts, {event.loss:.3f} nats a text"
        return Outcome(
            measured=f"{said}.",
            hint=f"Try: transduce classify {place.folder}",
            files={
                "README.md": self._card(corpus, resolved, step, f"{said}.\n\n").encode(),
                "dev_score.json": msgspec.json.format(msgspec.json.encode(event)),
            },
        )

    def _card(self, corpus: TaskCorpus, resolved: ResolvedSettings, step: int | None, score: str) -> str:
        model = resolved.model
        return (
            f"{front_matter(corpus.languages, 'text-classification')}\n# A classifier\n\n"
            f"An encoder of {model.num_encoder_layers} layers × {model.d_model}, trained by transduce on "
            f"{self.describe_size(corpus)}{f', weights of step {step:,}' if step else ''}.\n\n"
            f"    transduce classify THIS_FOLDER < texts.txt\n\n{opened_by(model, corpus.tokenizer)}\n\n"
            f"{score}All settings stand in `settings.toml`.\n"
        )


def _check_labels(text: TaskText, vocabulary: Vocabulary, which: str) -> None:
    """Refuses labels that pieces do not spell as they are written: two of them could become one.

    Args:
        text: training and dev set.
        vocabulary: of the labels.
        which: names it.

    Raises:
        TransduceError: a label is spelt otherwise.
    """
    kept, checked = PairFilter(text.filters), set[str]()
    for files in filter(None, (text.files, text.dev)):
        targets = dict(zip(files.source, files.target, strict=False))  # none where files hold both
        for pair in read_pairs(files):
            label = pair.target
            if label in checked or kept.text_reason(pair.source, label) is not None:
                continue
            checked.add(label)
            spelt, lower = vocabulary.decode(vocabulary.encode(label)), label.lower()
            if spelt != label:
                stays = lower == vocabulary.decode(vocabulary.encode(lower))
                raise TransduceError(
                    f"{targets.get(pair.path, pair.path)}:{pair.line}: A vocabulary must spell labels as they are "
                    f"written, but {which} spells the label “{label}” as “{spelt}”: rename it to something that stays "
                    f"as it is, such as {f'“{lower}” or ' if stays else ''}a number."
                )


def _other_classes(folder: Path, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The classifier, unless it tells these labels: as many others, such as whether a stretch follows, fit it too."""
    card = find_task_card(folder)
    known = card.labels if card is not None and card.kind == "classification" else ()
    return () if known == labels else ("classifier.",)


def _length(resolved: ResolvedSettings) -> int:
    """Pieces of a text that are read."""
    return text_length(resolved.model, resolved.task.context)


def labels_of(corpus: TaskCorpus) -> tuple[str, ...]:
    """All classes of training and dev set, sorted.

    Raises:
        TransduceError: there is only one.
    """
    found = set(_labels(corpus.prepared, corpus.tokenizer))
    if corpus.dev is not None:
        found |= set(_labels(corpus.dev, corpus.tokenizer))
    if len(found) < 2:
        raise TransduceError(
            f'Classification needs two labels at least, but all texts have the label "{found.pop()}": give more texts.'
        )
    return tuple(sorted(found))


@lru_cache(maxsize=4)  # all of the corpus is read, and asked for at every validation
def _labels(corpus: PreparedCorpus, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The label of each text, as its pieces spell it."""
    store = read_store(corpus, tokenizer, "target")
    spelt: dict[bytes, str] = {}
    labels = []
    for number in range(corpus.pairs):
        ids = store.read(number, number + 1)
        if ids.tobytes() not in spelt:
            spelt[ids.tobytes()] = tokenizer.target.decode(ids.tolist())
        labels.append(spelt[ids.tobytes()])
    return tuple(labels)


def _texts(prepared: PreparedCorpus, corpus: TaskCorpus, resolved: ResolvedSettings) -> LabelledTexts:
    numbers = {label: number for number, label in enumerate(labels_of(corpus))}
    store = read_store(prepared, corpus.tokenizer, "source")
    return LabelledTexts(
        [store.read(number, number + 1).tolist() for number in range(prepared.pairs)],
        [numbers[label] for label in _labels(prepared, corpus.tokenizer)],
        marks_of(corpus.tokenizer.source),
        _length(resolved),
    )
