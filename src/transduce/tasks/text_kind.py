"""What the kinds of task have in common that learn from text: how it is read, cut into pieces, and put into batches."""

from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec

from transduce.data.batches import Batch, BatchPlan
from transduce.data.largest import largest_batches
from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.tasks.corpus import TaskCorpus, TaskText, open_corpus, prepare_corpus, reopen_prepared, use_prepared
from transduce.tasks.kind import Preparation, Share, TaskKind
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.settings import DataSettings, Settings, TaskSettings
from transduce.text.filters import FilterSettings
from transduce.training.ahead import Batches


class TextKind(TaskKind[TaskCorpus]):
    """A kind of task over the pieces of a vocabulary."""

    may_be_prepared: ClassVar[bool] = False
    """Whether `transduce prepare` makes its corpus ahead of training."""
    idle_filters: ClassVar[tuple[str, ...]] = ()
    """The settings of `data.filters.*` that it does not go by."""

    def check(self, settings: Settings) -> None:
        """Refuses settings that mean nothing here.

        Raises:
            TransduceError: also a corpus that was prepared, beside a model that has a vocabulary already.
        """
        super().check(settings)
        filters, usual = (msgspec.structs.asdict(each) for each in (settings.data.filters, FilterSettings()))
        for name in self.idle_filters:
            if filters[name] != usual[name]:
                raise TransduceError(
                    f"`data.filters.{name}` means nothing where `task.kind` is {self.name}: leave it out."
                )
        if settings.data.prepared is None:
            return
        if not self.may_be_prepared:
            raise TransduceError(
                f"`data.prepared` is text or pairs of texts, but `task.kind` = {self.name} makes another corpus of its "
                "files: give --source."
            )
        if settings.start_from is not None:
            raise TransduceError(
                "`data.prepared` holds text cut by a vocabulary of its own, which `start_from` cannot use: give "
                "--source."
            )

    # --- the text ---

    def rewrite(self, settings: Settings, folder: Path, *, anew: bool) -> DataSettings:  # noqa: ARG002
        """Where the text is once it stands line by line. What does not, a kind writes into a folder.

        Args:
            settings: of the run. Training text that was prepared ahead (`data.prepared`) is not written again.
            folder: of the run, or of what is prepared ahead.
            anew: whether it begins; what goes on finds what it wrote.

        Raises:
            TransduceError: a file is missing, or not what the task reads.
        """
        return settings.data

    @abstractmethod
    def text(self, data: DataSettings) -> TaskText:
        """What is read, and what of it is left out or held out.

        Raises:
            TransduceError: a file is missing that the task needs, or there that it does not.
        """

    def marks(self, task: TaskSettings) -> tuple[str, ...]:  # noqa: ARG002
        """Pieces that no text holds, for the task's own use."""
        return ()

    def read_text(self, settings: Settings, folder: Path, *, anew: bool) -> TaskText:
        """The text as it is prepared, with all marks; arguments as in `rewrite`.

        Raises:
            TransduceError: a file is missing, or not what the task reads.
        """
        text = self.text(self.rewrite(settings, folder, anew=anew))
        return msgspec.structs.replace(text, marks=(*self.marks(settings.task), *text.marks))

    # --- the corpus ---

    def prepare(self, asked: Preparation) -> TaskCorpus:
        """Learns the vocabulary and cuts the text, or takes what `transduce prepare` made."""
        settings, folder = asked.settings, asked.folder
        if settings.data.prepared is not None:
            return use_prepared(settings, partial(self.read_text, anew=True), folder, asked.display)
        text = self.read_text(settings, folder, anew=True)
        return prepare_corpus(settings, text, folder, asked.choose_tokenizer, asked.display, tokenizer=asked.tokenizer)

    def reopen(self, settings: Settings, folder: Path) -> TaskCorpus:
        """The corpus in the run's folder, or the one that was prepared ahead."""
        if settings.data.prepared is not None:
            return reopen_prepared(settings, partial(self.read_text, anew=False), folder)
        return open_corpus(folder, settings, self.read_text(settings, folder, anew=False))

    def as_prepared(self, data: DataSettings, corpus: TaskCorpus) -> DataSettings:
        """The filters that the text went through; those that the kind does not go by are never said."""
        if data.prepared is None:
            return data
        usual = FilterSettings()
        idle = {name: getattr(usual, name) for name in self.idle_filters}
        return msgspec.structs.replace(data, filters=msgspec.structs.replace(corpus.filters, **idle))

    def adapt_model(self, config: ModelConfig, corpus: TaskCorpus, task: TaskSettings) -> ModelConfig:  # noqa: ARG002
        """The model as it is.

        Raises:
            TransduceError: one matrix was to embed the pieces of two vocabularies.
        """
        tokenizer = corpus.tokenizer
        ids = range(0 if tokenizer.joint else tokenizer.source.size)
        if config.tie_source_target and any(tokenizer.source.piece(id) != tokenizer.target.piece(id) for id in ids):
            raise TransduceError(
                "`model.tie_source_target` gives a piece the same vector on both sides, but source and target have "
                "vocabularies of their own (`tokenizer.joint` = false): leave one of the two out."
            )
        if config.kind == "transformer" and config.positions == "learned":
            _check_lengths(corpus, config.max_positions)
        return config

    # --- batches ---

    def plan(self, corpus: TaskCorpus, resolved: ResolvedSettings, share: Share = (0, 1)) -> Batches:
        """The training batches of one of several processes."""
        return BatchPlan(
            corpus.prepared, batch_tokens=resolved.micro_batch_tokens, seed=resolved.training.seed, share=share
        )

    def largest(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> list[Batch]:
        """The batches that need most memory, to be tried before the first step."""
        return largest_batches(corpus.prepared, batch_tokens=resolved.micro_batch_tokens, seed=resolved.training.seed)


def _check_lengths(corpus: TaskCorpus, most: int) -> None:
    """Refuses texts that learned positions have no room for: a dev set would be met after many steps only."""
    for name, prepared in (("training text", corpus.prepared), ("dev set", corpus.dev)):
        if prepared is None:
            continue
        statistics = prepared.statistics
        longest = max(statistics.source_percentiles[-1], statistics.target_percentiles[-1])
        if longest > most:
            raise TransduceError(
                f"`model.max_positions` must be at least {longest:,}, as many pieces as a text of the {name} has, but "
                f"is {most:,}: raise it, or leave longer pairs out by `data.filters.max_pieces` = {most - 1:,}."
            )
