"""Pretrain by denoising: the model restores a corrupted text (BART, Lewis et al. 2020; T5, Raffel et al. 2020).

Denoising needs text only. The trained model is a base model for other tasks (`--init-from`).
"""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.data.batches import Batch, ChangedPlan, RandomPurpose, pad_rows
from transduce.data.holdout import HoldOutSettings
from transduce.data.text_noise import NoiseSettings, add_noise, noise_tokens
from transduce.model.build import AnyModel
from transduce.tasks.corpus import TaskCorpus, TaskText
from transduce.tasks.kinds.kind import CardTexts, Outcome, RankAndCount, RunPlacement, model_to_measure
from transduce.tasks.kinds.texts import TextOnlyKind, frequency_perplexity, text_only, text_outcome
from transduce.tasks.kinds.translation import DevSet, TranslationObjective, dev_batches
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, TaskSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.loss import Loss

# The dev set's noise is the same in every run.
_DEV_SEED = 0


class NoiseGenerator:
    """A generator of noise for batches of text; the seed, the epoch and the text's index determine what is corrupted.

    Special tokens around every text, such as the end symbol, are not corrupted.
    """

    def __init__(self, noise: NoiseSettings, tokenizer: Tokenizer, seed: int) -> None:
        self._noise, self._seed = noise, seed
        self._source, self._target = tokenizer.source, tokenizer.target
        self._sentinels = [tokenizer.source.id(token) for token in noise_tokens(noise)]

    def corrupt(self, batch: Batch, epoch: int) -> Batch:
        """Return a batch with corrupted texts as sources, and what the model must write as targets.

        A target is the whole text. With T5's spans, it is the removed parts only. A batch without texts is returned as
        it is.
        """
        noised = [self._row(row, epoch, number) for row, number in zip(batch.target, batch.indices, strict=False)]
        if not noised:
            return batch
        source, source_tokens = pad_rows([source for source, _ in noised], self._source.pad_id)
        target, target_tokens = pad_rows([target for _, target in noised], self._target.pad_id)
        return Batch(source, target, batch.indices, source_tokens, target_tokens)

    def _row(self, row: NDArray[np.int64], epoch: int, number: int) -> tuple[list[int], list[int]]:
        row_ids, prefix, suffix = row[row != self._target.pad_id], self._target.before, self._target.after
        ids = row_ids[len(prefix) : len(row_ids) - len(suffix)]
        key = np.random.SeedSequence((self._seed, RandomPurpose.DENOISING, epoch, int(number)))
        source, target = add_noise(ids, self._noise, self._sentinels, np.random.Generator(np.random.Philox(key)))
        return self._source.with_special_tokens(source.tolist()), self._target.with_special_tokens(target.tolist())


class DenoisingKind(TextOnlyKind):
    """The task of denoising: a model restores a corrupted text, as pretraining for other tasks.

    Its methods give a training run its texts, batches, loss and scores.
    """

    name = "denoising"
    model_noun = "denoising model"
    example = "line"
    may_be_recorded = True
    model_kinds = ("transformer", "recurrent")
    uses = ("task.noise",)
    unused_filters = ("drop_identical",)
    search_advice = "set it in the run that continues from this model"

    def text(self, data: DataSettings) -> TaskText:
        """Return the files of texts, one per line, with filters (`TaskText`).

        Without dev files, a dev set is held out of the training text.
        """
        text = text_only(data, self.model_noun, msgspec.structs.replace(data.filters, drop_identical=False))
        return text if text.dev else msgspec.structs.replace(text, hold_out=HoldOutSettings())

    def special_tokens(self, task: TaskSettings) -> tuple[str, ...]:
        """Return a tuple of the special tokens that stand for removed tokens in corrupted texts.

        The tuple is empty for noise that deletes tokens without a mark.
        """
        return noise_tokens(_noise(task))

    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> Callable[[Batch], Loss]:
        """Return the training objective, a function from a batch to its `Loss`, the same as for translation.

        The loss is the cross-entropy of the target tokens, given the corrupted text.
        """
        return TranslationObjective.of_run(model, resolved)

    def plan(
        self, corpus: TaskCorpus, resolved: ResolvedSettings, rank_and_count: RankAndCount = (0, 1)
    ) -> ChangedPlan:
        """Return the plan of a process's training batches, whose texts are corrupted differently in each epoch.

        `rank_and_count` are the process's rank and the number of processes.
        """
        noise_generator = NoiseGenerator(_noise(resolved.task), corpus.tokenizer, resolved.training.seed)
        return ChangedPlan(super().plan(corpus, resolved, rank_and_count), noise_generator.corrupt)

    def validation(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> DevSet:
        """Return the dev set, which measures the loss of all its lines, with the same noise in every run."""
        assert corpus.dev is not None
        noise_generator = NoiseGenerator(_noise(resolved.task), corpus.tokenizer, _DEV_SEED)
        batches = [noise_generator.corrupt(batch, 0) for batch in dev_batches(corpus.dev)]
        return DevSet(model=model_to_measure(resolved, placement), directions=(), batches=batches)

    def card_texts(self, corpus: TaskCorpus, resolved: ResolvedSettings, folder: str) -> CardTexts:
        """Return the parts of the model card that are specific to denoising, such as title and usage (`CardTexts`)."""
        model = resolved.model
        return CardTexts(
            "A pretrained model",
            "text2text-generation",
            f"An encoder and a decoder of {model.num_encoder_layers}+{model.num_decoder_layers} layers × "
            f"{model.d_model}, trained by transduce to restore {corpus.pairs:,} lines of text, corrupted by "
            f"{_noise(resolved.task).kind}",
            f"transduce train --init-from {folder} --source … --target … --out DIR",
            names_class=False,
        )

    def finish(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> Outcome:
        """Measure the best model's dev loss; return an `Outcome` with it.

        A model that is hardly better than guessing by token frequencies is reported as weak.
        """
        from transduce.model_folder.read import read_encoder_decoder_folder

        weights = read_encoder_decoder_folder(placement.folder).model.state_dict()
        dev = self.validation(corpus, resolved, placement)
        event = dev.validate(weights, placement.best_step)
        target = corpus.tokenizer.target
        frequencies = frequency_perplexity(
            self.plan(corpus, resolved), dev.batches, size=target.size, ignored=target.pad_id
        )
        summary = (
            f"Dev lines: {event.loss:.3f} nats a token (perplexity {event.perplexity:.2f}; of token frequencies alone "
            f"{frequencies:.2f})."
        )
        return text_outcome(summary, event, frequencies)


def _noise(task: TaskSettings) -> NoiseSettings:
    return NoiseSettings() if task.noise is None else task.noise
