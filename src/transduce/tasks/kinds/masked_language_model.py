"""Pretrain BERT (Devlin et al. 2019): predict masked tokens, and whether one segment of text follows another.

The trained encoder is a base model for classification and tagging.

Legend: B rows, L tokens of a row, N masked tokens, D model width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from transduce.atomic_io import write_file
from transduce.data.batches import Batch
from transduce.data.masked_language_model import (
    MaskedBatch,
    MaskedPlan,
    MaskedPlanSettings,
    MaskingSettings,
    SentenceStore,
)
from transduce.errors import TransduceError
from transduce.inference.mask_filler import load_filler
from transduce.model.build import AnyModel
from transduce.model.config import ModelConfig
from transduce.model.transformer import Encoder
from transduce.model_folder.cards import TASK_CARD, TaskCard
from transduce.tasks.corpus import TaskCorpus, TaskText
from transduce.tasks.kinds.encoders import (
    BERT,
    DEFAULT_CONTEXT,
    EncoderChoices,
    as_encoder,
    describe_encoder,
    read_store,
    text_length,
)
from transduce.tasks.kinds.kind import (
    DEV_BATCH_TOKENS,
    CardTexts,
    Outcome,
    RankAndCount,
    RunPlacement,
    Validation,
    model_to_measure,
    validation_event,
)
from transduce.tasks.kinds.texts import (
    TextOnlyKind,
    frequency_perplexity,
    holds_texts,
    text_only,
    text_outcome,
)
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, Settings, TaskSettings
from transduce.text.corpus import Format, read_texts
from transduce.text.filters import FilterSettings
from transduce.text.sentences import read_documents, sentences_of
from transduce.text.vocabulary import SPECIAL_TOKENS, special_tokens_of, text_token_ids
from transduce.training.choices import (
    Choice,
    ChoiceLog,
    choose_language_model_steps,
)
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss, Objective, projected_cross_entropy
from transduce.training.prefetch import to_device
from transduce.training.settings import OptimizerName

# --- running text ---
# One sentence per line, with the end held out as a dev set.


# Without a dev set, the end of the text is held out: this share of its sentences, up to a maximum.
_DEV_SHARE = 0.02
_MAX_DEV_SENTENCES = 2_000
_MIN_SENTENCES = 4


def write_sentences(files: Sequence[str], chosen: Format, path: Path, *, overwrite: bool) -> str:
    """Write the sentences of texts to a file, with an empty line after each document; return the file's path.

    Args:
        files: files of text.
        chosen: format of the files; "auto": by their suffixes.
        path: the file to write, one sentence per line. Its folder is created if it is missing.
        overwrite: write the file even if it exists; otherwise, an existing file stays as it is.

    Raises:
        TransduceError: a text cannot be read, or no text has a sentence.
    """
    if overwrite or not path.exists():
        documents = (document for file in files for document in _documents(file, chosen))
        content = "".join("\n".join([*document, "", ""]) for document in documents)
        if not content:
            raise TransduceError(f"There is no sentence in {', '.join(files)}: name files with text.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content.encode())
    return str(path)


def _documents(file: str, chosen: Format) -> Iterator[list[str]]:
    """Yield each document of a file of text as a list of sentences.

    Each text of a JSON-lines file is a document; in a file of lines, empty lines separate documents.
    """
    if holds_texts(file, chosen):
        return filter(None, map(sentences_of, read_texts(file)))
    return read_documents(file)


def split_text(corpus: TaskCorpus) -> tuple[SentenceStore, SentenceStore]:
    """Return the sentences of the training text and those of the dev text, each as a `SentenceStore`.

    Without dev files, the dev text is the last fiftieth of the sentences, at least 4 and at most 2,000.

    Raises:
        TransduceError: there are no dev files, and the text has fewer than 8 sentences.
    """
    text = read_store(corpus.prepared, corpus.tokenizer, "target")
    if corpus.dev is not None:
        return text, read_store(corpus.dev, corpus.tokenizer, "target")
    filled = np.flatnonzero(text.lengths > 0)  # the other lines are empty and end documents
    if len(filled) < 2 * _MIN_SENTENCES:
        raise TransduceError(
            f"Pretraining needs running text of at least {2 * _MIN_SENTENCES} sentences, half of them for "
            f"validation, but this one has {len(filled)}: add more text, or name a dev text (`data.dev_source`)."
        )
    dev = min(_MAX_DEV_SENTENCES, max(_MIN_SENTENCES, int(len(filled) * _DEV_SHARE)))
    cut = int(filled[-dev])
    return text.part(0, cut), text.part(cut, len(text.offsets) - 1)


# Files with one sentence per line, and an empty line after each document.
_SENTENCES, _DEV_SENTENCES = "sentences.txt", "dev-sentences.txt"
# If fewer rows have a following segment, next-sentence prediction is hardly learned.
_FEW_FOLLOWERS = 0.1
MASKED_ACCURACY, NEXT_ACCURACY = "masked_accuracy", "next_sentence_accuracy"


class MaskedLanguageObjective(Objective[Encoder]):
    """The training objective of BERT: masked tokens and, if the model has a classifier, next-sentence prediction.

    The loss is a sum over rows (token sequences), so that rows can be distributed over processes and micro-batches. For
    next-sentence prediction, each row is weighted by the batch's masked tokens per row. Divided by the masked tokens,
    the loss is then BERT's: the mean over masked tokens plus the mean over rows.
    """

    def loss(self, batch: Batch) -> Loss:
        """Return the loss of a batch: the loss of masked tokens plus the loss of next-sentence prediction.

        A model without next-sentence prediction has only the first. `negative_log_likelihood` and the token count of
        the result cover masked tokens only.
        """
        assert isinstance(batch, MaskedBatch)
        states, labels = self.encode(batch)
        present = labels != self.model.config.pad_id
        hidden = self.model.head_states(states[present][None])  # (1, N, D)
        masked_loss = projected_cross_entropy(
            hidden,
            self.model.output_weight,
            labels[present][None],
            bias=self.model.output_bias,
            pad_id=self.model.config.pad_id,
            frozen_row=self.model.config.frozen_row,
            label_smoothing=self.label_smoothing,
        )
        if self.model.classifier is None:
            return masked_loss
        follows = to_device(batch.follows, states.device)
        logits = self.model.classify(states).float()  # (B, 2)
        # Rows of one segment have nothing to classify, but the classifier takes part in the gradient.
        rows = F.cross_entropy(logits[: len(follows)], follows, reduction="sum") + 0.0 * logits.sum()
        return masked_loss._replace(total=masked_loss.total + batch.masked_per_row * rows)

    def encode(self, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Return the encoder's output, (B, L, D), and the labels, (B, L).

        The label of a masked token is its true id. All other labels are the padding id.
        """
        device, config = self.model.source_weight.device, self.model.config
        ids, labels, types = (to_device(array, device) for array in (batch.source, batch.target, batch.token_types))
        # RoBERTa has one segment only.
        states, _ = self.model.encode(
            ids, token_types=types.clamp(max=config.token_types - 1) if config.token_types else None
        )
        return states, labels


class MaskedDevSet(Validation[MaskedLanguageObjective]):
    """A dev text that measures a model's loss and its accuracy on masked tokens.

    If the model predicts next sentences, the accuracy of these predictions is measured, too.
    """

    @override
    @torch.inference_mode()
    def measure(self, step: int) -> ValidationEvent:
        sums = np.sum([self._measure(batch) for batch in self.batches], axis=0)
        nats, hidden, correct, rows, next_correct = sums.tolist()
        loss = nats / max(1, hidden)
        scores = {MASKED_ACCURACY: 100.0 * correct / max(1, hidden)}
        if rows:
            scores[NEXT_ACCURACY] = 100.0 * next_correct / rows
        return validation_event(step, loss, scores)

    def _measure(self, batch: Batch) -> tuple[float, int, int, int, int]:
        """Return five sums of a batch: loss, masked tokens, those predicted right, rows, and rows classified right.

        The loss is in nats, summed over masked tokens. Rows are classified by whether one segment follows the other.
        Without this next-sentence prediction, the last two numbers are 0.
        """
        assert isinstance(batch, MaskedBatch)
        states, labels = self.objective.encode(batch)
        present = labels != self.model.config.pad_id
        targets = labels[present]
        logits = self.model.project(self.model.head_states(states[present])).float()  # (N, V)
        nats = float(F.cross_entropy(logits, targets, reduction="sum"))
        correct = int((logits.argmax(-1) == targets).sum())
        if self.model.classifier is None:
            return nats, len(targets), correct, 0, 0
        next_correct = self.model.classify(states).argmax(-1).cpu().numpy() == batch.follows
        return nats, len(targets), correct, len(next_correct), int(next_correct.sum())


# The width from which Muon learns masked tokens in fewer steps than Adam does.
_MUON_WIDTH = 128


class MaskedLanguageModelKind(EncoderChoices, TextOnlyKind):
    """The task of pretraining a masked language model, which predicts tokens from the text on both sides of them.

    Its methods give a training run its text, model settings, batches, loss and scores.
    """

    name = "masked-language-model"
    learns_from_all_tokens = True
    model_noun = "masked language model"
    batch_note = "this task counts all tokens that are read"
    example = "sentence"
    model_kinds = ("encoder",)
    label_smoothing = 0.0
    uses = ("task.context", "task.masking", "task.next_sentence")
    search_advice = "leave it out"
    unused_filters = FilterSettings.__struct_fields__

    def special_tokens(self, task: TaskSettings) -> tuple[str, ...]:  # noqa: ARG002
        """Return a tuple of the special tokens that the vocabulary must have: [CLS], [SEP] and [MASK]."""
        return SPECIAL_TOKENS

    def rewrite(self, settings: Settings, folder: Path, *, overwrite: bool) -> DataSettings:
        """Convert text to files with one sentence per line, and return data settings that name these files.

        Hard-wrapped lines are joined before the text is split into sentences. The training text of a prepared corpus is
        not written again. `overwrite` is false for a resumed run, which uses the existing files.

        Raises:
            TransduceError: the settings name no text, or name a target file; or a text cannot be read or has no
                sentence.
        """
        text_only(settings.data, self.model_noun)
        data = settings.data
        source, dev = data.source, data.dev_source
        if data.prepared is None:
            source = (write_sentences(source, data.format, folder / _SENTENCES, overwrite=overwrite),)
        if dev:
            dev = (write_sentences(dev, data.format, folder / _DEV_SENTENCES, overwrite=overwrite),)
        return msgspec.structs.replace(data, source=source, dev_source=dev, format="lines")

    def text(self, data: DataSettings) -> TaskText:
        """Return the text files to prepare: all sentences, and the empty lines between documents.

        No dev text is held out of these files, because `split_text` divides the tokenized text later.
        """
        return msgspec.structs.replace(text_only(data, self.model_noun), noun=self.example)

    def check(self, settings: Settings) -> None:
        """Raise an error for settings that the task does not use, or for too short a context.

        The context must hold text and special tokens: at least 3 tokens, or 5 with next-sentence prediction.

        Raises:
            TransduceError: a setting has no meaning for the task, or the context is too short.
        """
        super().check(settings)
        min_context = 5 if _has_next_sentence(settings.task) else 3
        if settings.task.context is not None and settings.task.context < min_context:
            raise TransduceError(
                f"`task.context` must be at least {min_context} here, including special tokens, but is "
                f"{settings.task.context}."
            )

    def model_settings(self, task: TaskSettings) -> dict[str, object]:
        """Return a dict of BERT's model settings, with as many learned positions as the context has tokens.

        If next-sentence prediction is on, the model has a classifier of two classes; otherwise it has no pooler.
        """
        own = {"max_positions": _context(task), "num_labels": 2 if _has_next_sentence(task) else 0}
        return BERT | own | ({} if _has_next_sentence(task) else {"pooler": False})

    @override
    def check_base_model(self, config: ModelConfig, task: TaskSettings, folder: str) -> None:
        super().check_base_model(config, task, folder)
        # A text classifier may also have two classes, but has no head for masked tokens.
        if config.num_labels and (config.num_labels != 2 or not config.masked_language_head):
            raise TransduceError(
                f"A masked language model predicts whether one segment of text follows another, but the base model "
                f"distinguishes {config.num_labels} classes of texts: start from another."
            )
        if not config.masked_language_head:
            raise TransduceError(
                "A masked language model needs a head for masked tokens, but the base model has none, only states: "
                "start from one that has it, such as a BertForMaskedLM."
            )
        if task.next_sentence not in (None, config.num_labels == 2):
            raise TransduceError(
                f"`task.next_sentence` is {task.next_sentence}, but the base model has {config.num_labels} classes of "
                "segments, and is kept: leave it out."
            )

    def choose_steps(self, pairs: int, epoch_tokens: int, batch_tokens: int) -> Choice[int]:  # noqa: ARG002
        """Return the default number of steps, twice that of a language model of this text, thus at least 600.

        A step learns less here, because only about a sixth of the tokens are targets.
        """
        choice = choose_language_model_steps(epoch_tokens, batch_tokens)
        return Choice(2 * choice.value, f"twice those of a language model: {choice.reason}")

    def choose_optimizer(self, settings: Settings, model: ModelConfig) -> Choice[OptimizerName]:
        """Return the default optimizer with a reason: Adam for narrow models, and else that of other tasks.

        Muon teaches models of a width below 128 more slowly to use context.
        """
        choice = super().choose_optimizer(settings, model)
        if choice.value == "muon" and model.d_model < _MUON_WIDTH:
            return Choice("adam", f"learns in fewer steps than Muon if `d_model` is below {_MUON_WIDTH}")
        return choice

    def choose_learning_rate(self, settings: Settings, d_model: int) -> Choice[float]:
        """Return the default peak learning rate with a reason (`Choice`): 0.25 / d_model.

        That is half of the usual rate for Adam with pre-norm models. Muon with random weights has the rate 1 / d_model,
        because short runs with a fourth of that learn only the frequencies of tokens.
        """
        if settings.training.optimizer == "muon" and settings.init_from is None:
            return Choice(1.0 / d_model, f"1 / d_model ({d_model}), for Muon")
        usual = f"0.25 / d_model ({d_model})"
        return Choice(0.25 / d_model, usual if settings.init_from is None else f"{usual}, as for random weights")

    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> Callable[[Batch], Loss]:
        """Return the training objective, a function from a batch to its `Loss`: masked tokens and next sentences.

        Next sentences count only if the model predicts them.
        """
        return MaskedLanguageObjective(as_encoder(model), label_smoothing=resolved.training.label_smoothing)

    def epoch_tokens(self, corpus: TaskCorpus, model: ModelConfig, task: TaskSettings) -> int:
        """Return the number of input tokens in an epoch.

        Special tokens count, and so do the random second segments for next-sentence prediction.
        """
        training, _ = split_text(corpus)
        return _plan(corpus, training, model, task, tokens=DEV_BATCH_TOKENS, seed=0).tokens

    def log_corpus_problems(self, corpus: TaskCorpus, resolved: ResolvedSettings, choice_log: ChoiceLog) -> None:
        """Log a problem if fewer than 10 % of the text's segments are followed by another segment of their document.

        The model then hardly learns next-sentence prediction. Nothing is logged for a model without next-sentence
        prediction.

        Raises:
            TransduceError: no segment is followed by another, and training starts from random weights.
        """
        if resolved.model.num_labels == 0 or (share := self.plan(corpus, resolved).has_next) >= _FEW_FOLLOWERS:
            return
        if share == 0.0 and resolved.init_from is None:
            raise TransduceError(
                "`task.next_sentence` predicts whether one segment of text follows another, but each document of "
                "this text is a single segment: turn it off by --set task.next_sentence=false, or use longer documents."
            )
        problem = f"{share:.0%} of segments have another after them in their document: set false, or use longer ones"
        choice_log.record("task.next_sentence", None, Choice(value=True, reason=f"but {problem}"))

    def plan(self, corpus: TaskCorpus, resolved: ResolvedSettings, rank_and_count: RankAndCount = (0, 1)) -> MaskedPlan:
        """Return the plan of a process's training batches of token sequences.

        The size of a batch counts all input tokens, not only the masked ones. `rank_and_count` are the process's rank
        and the number of processes.
        """
        training, _ = split_text(corpus)
        tokens, seed = resolved.micro_batch_tokens, resolved.training.seed
        return _plan(
            corpus, training, resolved.model, resolved.task, tokens=tokens, seed=seed, rank_and_count=rank_and_count
        )

    def largest_batches(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> list[Batch]:
        """Return a list of artificial batches as large as the largest of the first epoch, to try whether they fit."""
        return [*self.plan(corpus, resolved).largest_batches()]

    def validation(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> MaskedDevSet:
        """Return a dev set with every sentence of the dev text once, and the same masks in all validations."""
        _, dev = split_text(corpus)
        plan = _plan(corpus, dev, resolved.model, resolved.task, tokens=DEV_BATCH_TOKENS, seed=0)
        batches = [plan.batch(0, position) for position in range(len(plan))]
        return MaskedDevSet(MaskedLanguageObjective(as_encoder(model_to_measure(resolved, placement))), batches)

    def describe_size(self, corpus: TaskCorpus) -> str:
        """Return the size of the training text in sentences and tokens, as text for messages."""
        training, _ = split_text(corpus)
        return f"{int((training.lengths > 0).sum()):,} sentences of {int(training.lengths.sum()):,} tokens"

    def documents(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> Mapping[str, str]:  # noqa: ARG002
        """Return a dict {file name: content} with the task card, which has the kind of task and the maximum length."""
        context = None if resolved.model.positions == "learned" else resolved.task.context
        length = text_length(resolved.model, context)
        return {TASK_CARD: TaskCard(kind="masked-language-model", length=length).text()}

    def card_texts(self, corpus: TaskCorpus, resolved: ResolvedSettings, folder: str) -> CardTexts:
        """Return the parts of the model card that are specific to masked language models, such as title and usage."""
        mask = corpus.tokenizer.source.special_token_names[2]
        return CardTexts(
            "A masked language model",
            "fill-mask",
            describe_encoder(resolved, self.describe_size(corpus)),
            f'transduce fill-mask {folder} "a text with a {mask} in it"',
        )

    def finish(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> Outcome:
        """Measure the best model on the dev text; return an `Outcome` with the scores."""
        filler = load_filler(placement.folder, **placement.load_options(resolved))
        dev = self.validation(corpus, resolved, placement)
        event = dev.validate(filler.model.state_dict(), placement.best_step)
        target = corpus.tokenizer.target
        frequencies = frequency_perplexity(
            self.plan(corpus, resolved), dev.batches, size=target.size, ignored=target.pad_id
        )
        perplexity = f"perplexity {event.perplexity:.2f} (of token frequencies alone {frequencies:.2f})"
        masked, following = event.scores[MASKED_ACCURACY], event.scores.get(NEXT_ACCURACY)
        summary = (
            f"Dev text: {perplexity}, {masked:.1f} % of masked tokens found."
            if following is None
            else f"Dev text: {perplexity}, {masked:.1f} % of masked tokens found and "
            f"{following:.1f} % of next sentences predicted."
        )
        return text_outcome(summary, event, frequencies)


def _context(task: TaskSettings) -> int:
    return DEFAULT_CONTEXT if task.context is None else task.context


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
    rank_and_count: RankAndCount = (0, 1),
) -> MaskedPlan:
    vocabulary = corpus.tokenizer.target
    settings = MaskedPlanSettings(
        length=text_length(model, _context(task)),
        batch_tokens=tokens,
        seed=seed,
        next_sentence=model.num_labels > 0,
        masking=task.masking or MaskingSettings(),
        pad_id=vocabulary.pad_id,
    )
    return MaskedPlan(
        text, special_tokens_of(vocabulary), settings, np.array(text_token_ids(vocabulary)), rank_and_count
    )
