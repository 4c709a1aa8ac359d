"""Train language models: text as one stream of tokens, with the next token as target (Radford et al. 2019).

The default model is GPT-2's: decoder-only, pre-norm, with learned positions and the tanh approximation of GELU.

Legend: B windows, T tokens of a window.
"""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from typing_extensions import override

from transduce.data.batches import Batch
from transduce.errors import TransduceError, count_noun
from transduce.inference.generator import load_generator
from transduce.inference.translation import decode_with_line_feeds
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.model.build import AnyModel
from transduce.model.config import ModelConfig
from transduce.model.transformer import Decoder
from transduce.tasks.corpus import TaskCorpus, TaskText
from transduce.tasks.kinds.kind import (
    DEV_BATCH_TOKENS,
    CardTexts,
    Outcome,
    Preparation,
    RankAndCount,
    RunPlacement,
    Validation,
    model_to_measure,
    validation_event,
)
from transduce.tasks.kinds.texts import (
    Ids,
    TextOnlyKind,
    WindowPlan,
    consecutive_batches,
    frequency_perplexity,
    read_stream,
    text_only,
    text_outcome,
)
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, TaskSettings
from transduce.text.vocabulary import Vocabulary
from transduce.training.choices import (
    Choice,
    Preset,
    choose_language_model_steps,
)
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss, Objective, projected_cross_entropy
from transduce.training.prefetch import to_device

DEFAULT_CONTEXT = 256
# Without a dev set, the end of the text is held out: this share of its tokens, up to a maximum.
_DEV_SHARE = 0.1
_MAX_DEV_TOKENS = 1_000_000
BITS_PER_CHARACTER = "bits_per_character"


class LanguageModelObjective(Objective[Decoder]):
    """The training objective of a language model: the cross-entropy of every next token."""

    def loss(self, batch: Batch) -> Loss:
        """Return the cross-entropy of every next token, summed over a batch of windows.

        The inputs and the labels of the batch are (B, T).
        """
        device = self.model.source_weight.device
        inputs = to_device(batch.source, device)
        labels = to_device(batch.target, device)
        hidden, config = self.model.hidden(inputs), self.model.config
        # Windows have no padding. If the line end has the padding's id (GPT-2), it must be learned.
        pad_id = None if config.pad_id == config.eos_id else config.pad_id
        frozen_row = None if pad_id is None else config.frozen_row
        return projected_cross_entropy(
            hidden,
            self.model.output_weight,
            labels,
            pad_id=pad_id,
            bias=self.model.output_bias,
            frozen_row=frozen_row,
            label_smoothing=self.label_smoothing,
        )


class LanguageModelDevSet(Validation[LanguageModelObjective]):
    """A dev text of a language model, which measures the loss per token and the bits per character."""

    def __init__(self, objective: LanguageModelObjective, batches: Sequence[Batch], vocabulary: Vocabulary) -> None:
        super().__init__(objective, batches)
        # Decoded at once, because a row alone would lose the space before its first word.
        tokens = np.concatenate([batch.target.ravel() for batch in batches])
        self.characters = len(decode_with_line_feeds(tokens.tolist(), vocabulary)) - _surplus(tokens, vocabulary)

    @override
    def measure(self, step: int) -> ValidationEvent:
        nats, tokens = self.summed_loss()
        return validation_event(
            step, nats / max(1, tokens), {BITS_PER_CHARACTER: nats / math.log(2.0) / max(1, self.characters)}
        )


def _surplus(tokens: Ids, vocabulary: Vocabulary) -> int:
    """Return how many characters longer the decoded tokens are than the text.

    sentencepiece decodes an unknown token, which stands for one character of the text, as " ⁇ ".
    """
    if vocabulary.unk_id == vocabulary.eos_id:
        return 0  # in GPT-2, the line end
    return int((tokens == vocabulary.unk_id).sum()) * (len(vocabulary.decode([vocabulary.unk_id])) - 1)


class LanguageModelKind(TextOnlyKind):
    """The task of language modeling: a decoder predicts every next token of a text.

    Its methods give a training run its text, model settings, batches, loss and scores.
    """

    scales_rate_with_batch = False
    name = "language-model"
    learns_from_all_tokens = True
    model_noun = "language model"
    model_kinds = ("decoder",)
    label_smoothing = 0.0
    keeps_spaces = True  # indentation matters in code
    uses = ("task.context",)
    example = "line"
    search_advice = "pass it to `transduce generate` each time"
    unused_filters = ("max_tokens", "max_length_ratio", "drop_empty", "drop_identical", "drop_duplicates")

    def text(self, data: DataSettings) -> TaskText:
        """Return the text files to read (`TaskText`), with filters that keep all lines, even empty ones."""
        return text_only(data, self.model_noun)

    def prepare(self, request: Preparation) -> TaskCorpus:
        """Prepare and return the corpus of a new run.

        The tokenizer of an imported base model is changed to end each line with the end symbol.
        """
        tokenizer = request.tokenizer
        if isinstance(tokenizer, ImportedTokenizer):
            request = msgspec.structs.replace(request, tokenizer=tokenizer.line_by_line())
        return super().prepare(request)

    def sizes(self, preset: Preset, model_kind: str) -> dict[str, object]:  # noqa: ARG002
        """Return a dict of the preset's sizes for a decoder, with `d_ff` = 4 × `d_model` as in GPT-2, and dropout 0.1.

        Little dropout suffices, because the text is read only a few times.
        """
        sizes = msgspec.structs.asdict(preset) | {"d_ff": 4 * preset.d_model, "dropout": 0.1}
        del sizes["num_encoder_layers"]
        return sizes

    def model_settings(self, task: TaskSettings) -> dict[str, object]:
        """Return a dict of the model settings of GPT-2's decoder that differ from the general defaults."""
        return {
            "kind": "decoder",
            "positions": "learned",
            "max_positions": self.context(task),
            "activation": "gelu-tanh",
            "scale_embeddings": False,
        }

    def choose_steps(self, pairs: int, epoch_tokens: int, batch_tokens: int) -> Choice[int]:  # noqa: ARG002
        """Return the default number of steps with a reason (`Choice`): 1 to 40 epochs, but at least 300 steps.

        The number of epochs is higher for smaller texts.
        """
        return choose_language_model_steps(epoch_tokens, batch_tokens)

    def complete_settings(self, task: TaskSettings, base_config: ModelConfig) -> TaskSettings:
        """Return the task's settings with the number of the base model's learned positions as the context.

        The settings stay unchanged if a context is set, or if the base model has other positions.
        """
        if task.context is not None or base_config.positions != "learned":
            return task
        return msgspec.structs.replace(task, context=base_config.max_positions)

    def context(self, task: TaskSettings) -> int:
        """Return the number of tokens in a window of text: the setting `task.context`, or by default 256."""
        return DEFAULT_CONTEXT if task.context is None else task.context

    def check_corpus(self, corpus: TaskCorpus, config: ModelConfig, task: TaskSettings) -> None:
        """Raise an error if the context is longer than the model's learned positions.

        Raises:
            TransduceError: the model has fewer positions than the context.
        """
        super().check_corpus(corpus, config, task)
        context = self.context(task)
        if config.positions == "learned" and context > config.max_positions:
            raise TransduceError(
                f"`task.context` is {context}, but the model has {config.max_positions} positions "
                "(`model.max_positions`): make the context smaller."
            )

    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> Callable[[Batch], Loss]:
        """Return the training objective, a function from a batch to its `Loss`: cross-entropy of every next token."""
        assert isinstance(model, Decoder)
        return LanguageModelObjective(model, label_smoothing=resolved.training.label_smoothing)

    def plan(self, corpus: TaskCorpus, resolved: ResolvedSettings, rank_and_count: RankAndCount = (0, 1)) -> WindowPlan:
        """Return the plan of a process's training batches of windows, spans of the text as long as the context.

        A batch has at least one window. `rank_and_count` are the process's rank and the number of processes.
        """
        context = self.context(resolved.task)
        training, _ = split_stream(corpus)
        return WindowPlan(
            training,
            context=context,
            rows=max(1, resolved.micro_batch_tokens // context),
            seed=resolved.training.seed,
            pad_id=corpus.tokenizer.target.pad_id,
            rank_and_count=rank_and_count,
        )

    def largest_batches(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> list[Batch]:
        """Return a list with one batch to try before training, because all batches have the same size."""
        return self.plan(corpus, resolved).largest_batches()

    def validation(
        self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement
    ) -> LanguageModelDevSet:
        """Return a dev set of consecutive windows of the dev text, which measures the loss and bits per character."""
        context = self.context(resolved.task)
        _, dev = split_stream(corpus)
        batches = consecutive_batches(dev, context=context, rows=max(1, DEV_BATCH_TOKENS // context))
        model = model_to_measure(resolved, placement)
        assert isinstance(model, Decoder)
        return LanguageModelDevSet(LanguageModelObjective(model), batches, corpus.tokenizer.target)

    def describe_size(self, corpus: TaskCorpus) -> str:
        """Return the size of the training text in tokens, as text such as "1,000 tokens"."""
        return f"{len(split_stream(corpus)[0]):,} tokens"

    def card_texts(self, corpus: TaskCorpus, resolved: ResolvedSettings, folder: str) -> CardTexts:
        """Return the parts of the model card that are specific to language models, such as title and usage."""
        model = resolved.model
        return CardTexts(
            "A language model",
            "text-generation",
            f"A decoder of {count_noun(model.num_decoder_layers, 'layer')} × {model.d_model}, trained by transduce on "
            f"{corpus.target_tokens:,} tokens of text",
            f'transduce generate {folder} "the beginning"',
        )

    def finish(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> Outcome:
        """Measure the best model on the dev text; return an `Outcome` with the scores."""
        generator = load_generator(placement.folder, **placement.load_options(resolved))
        dev = self.validation(corpus, resolved, placement)
        event = dev.validate(generator.model.state_dict(), placement.best_step)
        size = corpus.tokenizer.target.size
        frequencies = frequency_perplexity(self.plan(corpus, resolved), dev.batches, size=size, ignored=None)
        summary = (
            f"Dev text: {event.loss:.3f} nats a token (perplexity {event.perplexity:.2f}; of token frequencies alone "
            f"{frequencies:.2f}), {event.scores[BITS_PER_CHARACTER]:.3f} bits a character."
        )
        return text_outcome(summary, event, frequencies)


def split_stream(corpus: TaskCorpus) -> tuple[Ids, Ids]:
    """Return the token streams, arrays of ids (N,), of the training text and the dev text.

    Without dev files, the dev text is the last tenth of the tokens, at most 1,000,000.
    """
    stream = read_stream(corpus.prepared)
    if corpus.dev is not None:
        return stream, read_stream(corpus.dev)
    split = max(len(stream) - _MAX_DEV_TOKENS, int(len(stream) * (1.0 - _DEV_SHARE)))
    return stream[:split], stream[split:]
