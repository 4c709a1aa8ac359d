"""Share what all tasks on text have in common: reading, tokenizing and batching text."""

from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec

from transduce.data.batches import Batch, BatchPlan, largest_batches
from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.tasks.corpus import (
    TaskCorpus,
    TaskText,
    open_corpus,
    prepare_corpus,
    reopen_prepared_corpus,
    use_prepared_corpus,
)
from transduce.tasks.kinds.kind import Preparation, Share, TaskKind
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, Settings, TaskSettings
from transduce.text.filters import FilterSettings
from transduce.training.prefetch import Batches


class TextKind(TaskKind[TaskCorpus]):
    """A task on text that is tokenized by a vocabulary."""

    may_be_prepared: ClassVar[bool] = False
    """True if `transduce prepare` can prepare the task's corpus."""
    unused_filters: ClassVar[tuple[str, ...]] = ()
    """The settings of `data.filters.*` that the task does not use."""

    def check(self, settings: Settings) -> None:
        """Refuse settings that the task does not use.

        Raises:
            TransduceError: a setting has no meaning for the task, or a prepared corpus is combined with a base model.
        """
        super().check(settings)
        filters, defaults = (msgspec.structs.asdict(each) for each in (settings.data.filters, FilterSettings()))
        for name in self.unused_filters:
            if filters[name] != defaults[name]:
                raise TransduceError(
                    f"`data.filters.{name}` means nothing where `task.kind` is {self.name}: leave it out."
                )
        if settings.data.prepared is None:
            return
        if not self.may_be_prepared:
            raise TransduceError(
                f"`data.prepared` is text or pairs of texts, but `task.kind` = {self.name} makes another corpus of its "
                "files: name them with --source."
            )
        if settings.init_from is not None:
            raise TransduceError(
                "`data.prepared` holds text tokenized by its own vocabulary, which `init_from` cannot use: name the "
                "text with --source."
            )

    # --- the text ---

    def rewrite(self, settings: Settings, folder: Path, *, overwrite: bool) -> DataSettings:  # noqa: ARG002
        """Convert the text to files of lines, and return the settings that name them; by default, nothing is converted.

        Args:
            settings: the run's settings. Training text of a prepared corpus (`data.prepared`) is not converted again.
            folder: the folder of the run or of the prepared corpus.
            overwrite: True for a new run; a resumed run uses the existing files.

        Raises:
            TransduceError: a file is missing, or is not what the task reads.
        """
        return settings.data

    @abstractmethod
    def text(self, data: DataSettings) -> TaskText:
        """Return the text to read, and how it is filtered and held out.

        Raises:
            TransduceError: a file that the task needs is missing, or a file is given that it does not use.
        """

    def special_tokens(self, task: TaskSettings) -> tuple[str, ...]:  # noqa: ARG002
        """Return special tokens that the task needs and that no text contains."""
        return ()

    def read_text(self, settings: Settings, folder: Path, *, overwrite: bool) -> TaskText:
        """Return the text to prepare, with all special tokens; the arguments are those of `rewrite`.

        Raises:
            TransduceError: a file is missing, or is not what the task reads.
        """
        text = self.text(self.rewrite(settings, folder, overwrite=overwrite))
        return msgspec.structs.replace(text, marks=(*self.special_tokens(settings.task), *text.marks))

    # --- the corpus ---

    def prepare(self, request: Preparation) -> TaskCorpus:
        """Learn the vocabulary and tokenize the text, or use what `transduce prepare` wrote."""
        settings, folder = request.settings, request.folder
        if settings.data.prepared is not None:
            return use_prepared_corpus(settings, partial(self.read_text, overwrite=True), folder, request.display)
        text = self.read_text(settings, folder, overwrite=True)
        return prepare_corpus(
            settings, text, folder, request.choose_tokenizer, request.display, tokenizer=request.tokenizer
        )

    def reopen(self, settings: Settings, folder: Path) -> TaskCorpus:
        """Open the corpus in the run's folder, or the prepared corpus."""
        if settings.data.prepared is not None:
            return reopen_prepared_corpus(settings, partial(self.read_text, overwrite=False), folder)
        return open_corpus(folder, settings, self.read_text(settings, folder, overwrite=False))

    def as_prepared(self, data: DataSettings, corpus: TaskCorpus) -> DataSettings:
        """Return the data settings with the prepared corpus's filters.

        Filters that the task does not use keep their defaults.
        """
        if data.prepared is None:
            return data
        defaults = FilterSettings()
        unused = {name: getattr(defaults, name) for name in self.unused_filters}
        return msgspec.structs.replace(data, filters=msgspec.structs.replace(corpus.filters, **unused))

    def adapt_model(self, config: ModelConfig, corpus: TaskCorpus, task: TaskSettings) -> ModelConfig:  # noqa: ARG002
        """Return the configuration unchanged, and check that it fits the vocabularies and the corpus.

        Raises:
            TransduceError: one embedding matrix is to be shared by two vocabularies, or texts exceed the learned
                positions.
        """
        tokenizer = corpus.tokenizer
        ids = range(0 if tokenizer.joint else tokenizer.source.size)
        if config.tie_source_target and any(tokenizer.source.piece(id) != tokenizer.target.piece(id) for id in ids):
            raise TransduceError(
                "`model.tie_source_target` gives a token the same vector on both sides, but source and target have "
                "separate vocabularies (`tokenizer.joint` = false): leave one of the two out."
            )
        if config.kind == "transformer" and config.positions == "learned":
            _check_lengths(corpus, config.max_positions)
        return config

    # --- batches ---

    def plan(self, corpus: TaskCorpus, resolved: ResolvedSettings, share: Share = (0, 1)) -> Batches:
        """Return the training batches of one training process."""
        return BatchPlan(
            corpus.prepared, batch_tokens=resolved.micro_batch_tokens, seed=resolved.training.seed, share=share
        )

    def largest_batches(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> list[Batch]:
        """Return the batches that need the most memory, to be tried before the first step."""
        return largest_batches(corpus.prepared, batch_tokens=resolved.micro_batch_tokens, seed=resolved.training.seed)


def _check_lengths(corpus: TaskCorpus, most: int) -> None:
    """Refuse dev texts that exceed the learned positions, before any training step."""
    for name, prepared in (("training text", corpus.prepared), ("dev set", corpus.dev)):
        if prepared is None:
            continue
        statistics = prepared.statistics
        longest = max(statistics.source_percentiles[-1], statistics.target_percentiles[-1])
        if longest > most:
            raise TransduceError(
                f"`model.max_positions` must be at least {longest:,}, as many tokens as a text of the {name} has, but "
                f"is {most:,}: raise it, or leave longer pairs out by `data.filters.max_pieces` = {most - 1:,}."
            )
