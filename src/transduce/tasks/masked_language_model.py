"""A masked language model: running text, hidden pieces to be found, and whether one stretch follows another.

BERT's pretraining (Devlin et al. 2019). Its weights are what classification begins with.
Legend: B rows, L pieces of a row, N hidden pieces, D model width.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.data.batches import Batch
from transduce.data.masking import MaskingSettings
from transduce.data.sentence_pairs import PairSettings, SentencePairBatch, SentencePairPlan, SentenceStore
from transduce.errors import TransduceError
from transduce.model.build import AnyModel
from transduce.model.config import ModelConfig
from transduce.model.encoder import Encoder
from transduce.runtime.filler import load_filler
from transduce.runtime.task_card import TASK_CARD, TaskCard
from transduce.tasks.account import Account
from transduce.tasks.card import front_matter, opened_by
from transduce.tasks.corpus import TaskCorpus, TaskText
from transduce.tasks.encoders import (
    BERT,
    USUAL_CONTEXT,
    build_encoder,
    encoder_of,
    encoder_sizes,
    linear_schedule,
    text_length,
)
from transduce.tasks.kind import DEV_BATCH_TOKENS, Outcome, Place, Share, model_dtype, text_alone
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.running_text import split_text, write_sentences
from transduce.tasks.settings import DataSettings, Settings, TaskSettings
from transduce.tasks.text_kind import TextKind
from transduce.text.filters import FilterSettings
from transduce.text.marks import MARKS, marks_of, ordinary_pieces
from transduce.training.ahead import to_device
from transduce.training.choices import (
    Choice,
    Preset,
    choose_language_model_batch_tokens,
    choose_language_model_preset,
    choose_language_model_steps,
)
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.schedule import ScheduleName
from transduce.training.settings import OptimizerName

# The text with a sentence a line, and an empty line after each document.
_SENTENCES, _DEV_SENTENCES = "sentences.txt", "dev-sentences.txt"
# Where fewer of the rows have one, whether a stretch follows is hardly learnt.
_FEW_FOLLOWERS = 0.1
MASKED_ACCURACY, NEXT_ACCURACY = "masked_accuracy", "next_sentence_accuracy"


class MaskedLanguageTask:
    """The loss of a batch of rows under a model.

    It is a sum over rows, so that they may be shared out among processes and micro-batches: where stretches are told
    too, a row counts for as many hidden pieces as its batch has for each. The loss per hidden piece is then BERT's: the
    mean over hidden pieces and the mean over rows, added.
    """

    def __init__(self, model: Encoder, *, label_smoothing: float = 0.0) -> None:
        self.model = model
        self.label_smoothing = label_smoothing

    def loss(self, batch: Batch) -> Loss:
        """Of hidden pieces and rows; the likelihood that is reported is that of the hidden pieces alone."""
        assert isinstance(batch, SentencePairBatch)
        states, labels = self.encode(batch)
        present = labels != self.model.config.pad_id
        hidden = self.model.hidden(states[present][None])  # (1, N, D)
        pieces = projected_cross_entropy(
            *self.model.logit_factors(hidden),
            labels[present][None],
            pad_id=self.model.config.pad_id,
            frozen_row=self.model.config.frozen_row,
            label_smoothing=self.label_smoothing,
        )
        if self.model.classifier is None:
            return pieces
        follows = to_device(batch.follows, states.device)
        logits = self.model.classify(states).float()  # (B, 2)
        # A process without rows of its own has one that counts nothing, but takes part in the gradient.
        rows = F.cross_entropy(logits[: len(follows)], follows, reduction="sum") + 0.0 * logits.sum()
        return pieces._replace(total=pieces.total + batch.hidden_of_row * rows)

    def encode(self, batch: SentencePairBatch) -> tuple[Tensor, Tensor]:
        """States (B, L, D), and labels (B, L), the padding id where nothing is hidden."""
        device, config = self.model.source_weight.device, self.model.config
        ids, labels, types = (to_device(array, device) for array in (batch.source, batch.target, batch.token_types))
        # RoBERTa has one segment.
        states, _ = self.model.encode(
            ids, token_types=types.clamp(max=config.token_types - 1) if config.token_types else None
        )
        return states, labels


class MaskedDevSet:
    """Text that training does not see: how well hidden pieces are found, and following stretches told."""

    def __init__(self, config: ModelConfig, batches: Sequence[Batch], *, dtype: torch.dtype, device: str) -> None:
        self.model = build_encoder(config).to(device=device, dtype=dtype).eval()
        self.task = MaskedLanguageTask(self.model)
        self.batches = batches

    @torch.inference_mode()
    def validate(self, weights: Mapping[str, Tensor], step: int) -> ValidationEvent:
        """The text under these weights."""
        started_at = time.monotonic()
        self.model.load_state_dict(weights)
        sums = np.sum([self._measure(batch) for batch in self.batches], axis=0)
        nats, hidden, found, rows, told = sums.tolist()
        loss = nats / max(1, hidden)
        scores = {MASKED_ACCURACY: 100.0 * found / max(1, hidden)}
        if rows:
            scores[NEXT_ACCURACY] = 100.0 * told / rows
        return ValidationEvent(
            step=step,
            loss=loss,
            perplexity=math.exp(min(loss, 100.0)),
            scores=scores,
            validation_seconds=time.monotonic() - started_at,
        )

    def _measure(self, batch: Batch) -> tuple[float, int, int, int, int]:
        """Nats and number of hidden pieces, those found; rows with two stretches, and those told rightly."""
        assert isinstance(batch, SentencePairBatch)
        states, labels = self.task.encode(batch)
        present = labels != self.model.config.pad_id
        wanted = labels[present]
        logits = self.model.project(self.model.hidden(states[present])).float()  # (N, V)
        nats = float(F.cross_entropy(logits, wanted, reduction="sum"))
        found = int((logits.argmax(-1) == wanted).sum())
        if self.model.classifier is None:
            return nats, len(wanted), found, 0, 0
        told = self.model.classify(states).argmax(-1).cpu().numpy() == batch.follows
        return nats, len(wanted), found, len(told), int(told.sum())


class MaskedLanguageModel(TextKind):
    """Running text, of which pieces are hidden."""

    name = "masked-language-model"
    may_be_prepared = True
    model_kinds = ("encoder",)
    label_smoothing = 0.0
    own_settings = ("context", "masking", "next_sentence")
    instead_of_search = "leave it out"
    idle_filters = FilterSettings.__struct_fields__

    def marks(self, task: TaskSettings) -> tuple[str, ...]:  # noqa: ARG002
        """[CLS], [SEP] and [MASK]."""
        return MARKS

    def rewrite(self, settings: Settings, folder: Path, *, anew: bool) -> DataSettings:
        """Hard-wrapped lines are joined and sentences split, into a file with a sentence a line."""
        text_alone(settings.data, "masked language model")
        data = settings.data
        source, dev = data.source, data.dev_source
        if data.prepared is None:
            source = (write_sentences(source, data.format, folder / _SENTENCES, anew=anew),)
        if dev:
            dev = (write_sentences(dev, data.format, folder / _DEV_SENTENCES, anew=anew),)
        return msgspec.structs.replace(data, source=source, dev_source=dev, format="lines")

    def text(self, data: DataSettings) -> TaskText:
        """All sentences, and the empty lines between documents."""
        files, dev = text_alone(data, "masked language model")
        everything = FilterSettings(max_pieces=2**31 - 1, drop_empty=False, drop_identical=False)
        return TaskText(files=files, dev=dev, filters=everything, hold_out=None)

    def check(self, settings: Settings) -> None:
        """As every task; and a row must have room for text between its marks.

        Raises:
            TransduceError: a setting that means nothing, or a context too short.
        """
        super().check(settings)
        least = 5 if _has_next_sentence(settings.task) else 3
        if settings.task.context is not None and settings.task.context < least:
            raise TransduceError(
                f"`task.context` must be at least {least} here, marks included, but is {settings.task.context}."
            )

    def sizes(self, preset: Preset, model_kind: str) -> dict[str, object]:  # noqa: ARG002
        """The preset's, as BERT has them."""
        return encoder_sizes(preset)

    def model_settings(self, task: TaskSettings) -> dict[str, object]:
        """BERT's, with a classifier for whether a stretch follows."""
        own = {"max_positions": _context(task), "num_labels": 2 if _has_next_sentence(task) else 0}
        return BERT | own | ({} if _has_next_sentence(task) else {"pooler": False})

    def follow(self, task: TaskSettings, kept: ModelConfig) -> TaskSettings:
        """The settings as they are.

        Raises:
            TransduceError: the model has no head for hidden pieces, as Hugging Face's `BertModel` has none.
        """
        if not (kept.masked_language_head or kept.num_labels):  # classes are told of by `adapt_model`
            raise TransduceError(
                "A masked language model finds hidden pieces by a head of its own, but the model to begin with has "
                "none, only states: begin with one that has it, such as a BertForMaskedLM."
            )
        return task

    def adapt_model(self, config: ModelConfig, corpus: TaskCorpus, task: TaskSettings) -> ModelConfig:  # noqa: ARG002
        """The model as it is.

        Raises:
            TransduceError: it has learnt to tell something else apart than whether a stretch follows.
        """
        # A classifier may have two classes as well, but has no head for hidden pieces.
        if config.num_labels and (config.num_labels != 2 or not config.masked_language_head):
            raise TransduceError(
                f"A masked language model tells whether one stretch of text follows another, but the model to begin "
                f"with tells {config.num_labels} classes of texts apart: begin with another."
            )
        if task.next_sentence not in (None, config.num_labels == 2):
            raise TransduceError(
                f"`task.next_sentence` is {task.next_sentence}, but the model to begin with has {config.num_labels} "
                "classes of stretches, and is kept: leave it out."
            )
        return config

    def choose_preset(self, pairs: int, tokens: int) -> Choice[str]:  # noqa: ARG002
        """By the number of pieces."""
        return choose_language_model_preset(tokens)

    def choose_batch_tokens(self, epoch_tokens: int, device: str) -> Choice[int]:
        """Larger steps than for pairs."""
        return choose_language_model_batch_tokens(epoch_tokens, device)

    def choose_steps(self, pairs: int, epoch_tokens: int, batch_tokens: int) -> Choice[int]:  # noqa: ARG002
        """By the number of pieces; a sixth of them is learnt from at a time, so as often again as a language model."""
        chosen = choose_language_model_steps(epoch_tokens, batch_tokens)
        return Choice(2 * chosen.value, f"twice {chosen.reason}")

    def choose_schedule(self, norm_order: str) -> Choice[ScheduleName]:  # noqa: ARG002
        """Linear."""
        return linear_schedule()

    def choose_learning_rate(
        self,
        settings: Settings,  # noqa: ARG002
        d_model: int,
        schedule: ScheduleName,  # noqa: ARG002
        warmup_steps: int,  # noqa: ARG002
        batch_tokens: int,  # noqa: ARG002
        optimizer: OptimizerName,  # noqa: ARG002
    ) -> Choice[float]:
        """Half of what pre-norm models take."""
        return Choice(0.25 / d_model, f"0.25 / d_model ({d_model})")

    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> Callable[[Batch], Loss]:
        """Of the hidden pieces, and of whether stretches follow."""
        return MaskedLanguageTask(encoder_of(model), label_smoothing=resolved.training.label_smoothing).loss

    def epoch_tokens(self, corpus: TaskCorpus, model: ModelConfig, task: TaskSettings) -> int:
        """The pieces of its rows, special ones and stretches from elsewhere included."""
        training, _ = split_text(corpus)
        return _plan(corpus, training, model, task, tokens=DEV_BATCH_TOKENS, seed=0).pieces

    def explain(self, corpus: TaskCorpus, resolved: ResolvedSettings, account: Account) -> None:
        """Tells of a text of which hardly any stretch has one that follows it.

        Raises:
            TransduceError: none has, and the model is not there yet.
        """
        if resolved.model.num_labels == 0 or (share := self.plan(corpus, resolved).has_next) >= _FEW_FOLLOWERS:
            return
        if share == 0.0 and resolved.start_from is None:
            raise TransduceError(
                "`task.next_sentence` is to tell whether one stretch of text follows another, but each document of "
                "this text is a single one: leave it out by --set task.next_sentence=false, or give longer documents."
            )
        said = f"{share:.0%} of stretches have another after them in their document: say false, or give longer ones"
        account.take("task.next_sentence", None, Choice(value=True, reason=f"but {said}"))

    def plan(self, corpus: TaskCorpus, resolved: ResolvedSettings, share: Share = (0, 1)) -> SentencePairPlan:
        """Rows of the training text; `training.batch_tokens` counts the pieces that are read."""
        training, _ = split_text(corpus)
        tokens, seed = resolved.micro_batch_tokens, resolved.training.seed
        return _plan(corpus, training, resolved.model, resolved.task, tokens=tokens, seed=seed, share=share)

    def largest(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> list[Batch]:
        """As the rows of the first epoch have them."""
        return [*self.plan(corpus, resolved).largest()]

    def validation(self, corpus: TaskCorpus, resolved: ResolvedSettings, place: Place) -> MaskedDevSet:
        """The dev text once, always with the same pieces hidden."""
        _, dev = split_text(corpus)
        plan = _plan(corpus, dev, resolved.model, resolved.task, tokens=DEV_BATCH_TOKENS, seed=0)
        batches = [plan.batch(0, position) for position in range(len(plan))]
        return MaskedDevSet(resolved.model, batches, dtype=model_dtype(resolved), device=place.device)

    def describe_size(self, corpus: TaskCorpus) -> str:
        """In sentences and pieces."""
        training, _ = split_text(corpus)
        return f"{int((training.lengths > 0).sum()):,} sentences of {int(training.lengths.sum()):,} pieces"

    def documents(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> Mapping[str, str]:  # noqa: ARG002
        """What the model is for."""
        context = None if resolved.model.positions == "learned" else resolved.task.context
        length = text_length(resolved.model, context)
        return {TASK_CARD: TaskCard(kind="masked-language-model", length=length).text()}

    def card(self, corpus: TaskCorpus, resolved: ResolvedSettings, step: int | None) -> str:
        """Data and shape."""
        return self._card(corpus, resolved, step, "")

    def finish(self, corpus: TaskCorpus, resolved: ResolvedSettings, place: Place, step: int | None) -> Outcome:
        """How well the model that was kept finds what is hidden in the dev text."""
        filler = load_filler(
            place.folder, precision=resolved.training.precision, device=place.device, threads=place.threads
        )
        event = self.validation(corpus, resolved, place).validate(filler.model.state_dict(), step or 0)
        said = (
            f"Dev text: perplexity {event.perplexity:.2f}, {event.scores[MASKED_ACCURACY]:.1f} % of hidden pieces found"
        )
        if NEXT_ACCURACY in event.scores:
            said += f", {event.scores[NEXT_ACCURACY]:.1f} % of following stretches told"
        return Outcome(
            measured=f"{said}.",
            hint=f'Try: transduce fill {place.folder} "a text with a [MASK] in it"',
            files={
                "README.md": self._card(corpus, resolved, step, f"{said}.\n\n").encode(),
                "dev_score.json": msgspec.json.format(msgspec.json.encode(event)),
            },
        )

    def _card(self, corpus: TaskCorpus, resolved: ResolvedSettings, step: int | None, score: str) -> str:
        model = resolved.model
        return (
            f"{front_matter(corpus.languages, 'fill-mask')}\n# A masked language model\n\n"
            f"An encoder of {model.num_encoder_layers} layers × {model.d_model}, trained by transduce on "
            f"{self.describe_size(corpus)}{f', weights of step {step:,}' if step else ''}.\n\n"
            f'    transduce fill THIS_FOLDER "a text with a [MASK] in it"\n\n'
            f"{opened_by(model, corpus.tokenizer)}\n\n{score}"
            "All settings stand in `settings.toml`.\n"
        )


def _context(task: TaskSettings) -> int:
    return USUAL_CONTEXT if task.context is None else task.context


def _has_next_sentence(task: TaskSettings) -> bool:
    return task.next_sentence is not False


def _plan(
    corpus: TaskCorpus,
    text: SentenceStore,
    model: ModelConfig,
    task: TaskSettings,
    *,
    tokens: int,
    seed: int,
    share: Share = (0, 1),
) -> SentencePairPlan:
    vocabulary = corpus.tokenizer.target
    settings = PairSettings(
        length=text_length(model, _context(task)),
        batch_tokens=tokens,
        seed=seed,
        next_sentence=model.num_labels > 0,
        masking=task.masking or MaskingSettings(),
        pad_id=vocabulary.pad_id,
    )
    return SentencePairPlan(text, marks_of(vocabulary), settings, np.array(ordinary_pieces(vocabulary)), share)
