"""What a kind of task tells the run: the text it needs, its model, batches, loss and measure, and its last words.

Each kind is a class in a file of its own; `kinds.py` knows them by name. A kind keeps nothing between its methods: what
it works on is handed to it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from transduce.data.holdout import HoldOutSettings
from transduce.errors import TransduceError
from transduce.model.build import AnyModel
from transduce.model.config import ModelConfig
from transduce.model.precision import DTYPES, Precision
from transduce.tasks.account import Account
from transduce.tasks.corpus import RunCorpus, TaskText
from transduce.tasks.earlier_training import goes_on_learning
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.settings import DataSettings, Settings, TaskSettings
from transduce.text.corpus import CorpusFiles
from transduce.text.counted import counted
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.ahead import Batches
from transduce.training.choices import (
    PRESETS,
    Choice,
    CorpusSize,
    Preset,
    choose_batch_tokens,
    choose_best_by,
    choose_fine_tuning_rate,
    choose_learning_rate,
    choose_preset,
    choose_schedule,
    choose_steps,
)
from transduce.training.events import ProgressDisplay, ValidationEvent
from transduce.training.loss import Loss
from transduce.training.schedule import ScheduleName
from transduce.training.settings import BestBy, OptimizerName

DEV_BATCH_TOKENS = 4_096
# What the settings of a run that goes on say of layers that its model has none of.
_UNUSED_LAYERS = 6

# The share of each process: (its number, how many there are).
Share = tuple[int, int]


class Validation(Protocol):
    """The dev set of a task."""

    def validate(self, weights: Mapping[str, Tensor], step: int) -> ValidationEvent:
        """The dev set under these weights."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run computes, and its folder."""

    folder: Path
    device: str
    threads: int


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """What a corpus is made with, when a run begins."""

    settings: Settings
    folder: Path
    """Of the run."""
    display: ProgressDisplay
    """Is told what is read and left out."""
    choose_tokenizer: Callable[[CorpusSize], TokenizerSettings]
    """Settles the vocabulary when the corpus' size is known."""
    tokenizer: Tokenizer | None
    """One that is there already, in place of learning one."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a finished run beside its weights."""

    measured: str
    """How good it is."""
    hint: str
    """What to do with it."""
    files: Mapping[str, bytes]
    """Files of the model folder by name; README.md is its card."""


class Fresh(NamedTuple):
    """Of a model that begins with the weights of another (`--from`), what does not come from there.

    Names are what the names of parameters begin with.
    """

    lacking: tuple[str, ...] = ()
    """What the other model may lack. It may then have others besides."""
    anew: Callable[[Path], tuple[str, ...]] | None = None
    """By the other model's folder, what of it is not taken although it is there; None: all is taken."""


C = TypeVar("C", bound=RunCorpus)


class TaskKind(ABC, Generic[C]):
    """A kind of task that learns from a corpus of a type. What most have in common is done here; the rest is abstract.

    Those that learn from text derive from `text_kind.py:TextKind`.
    """

    name: ClassVar[str]
    model_kinds: ClassVar[tuple[str, ...]]
    """The kinds of model that can do it; the first is the usual one."""
    measures: ClassVar[tuple[str, ...]] = ("loss",)
    """What the best model may be chosen by, `training.best_by`."""
    may_be_recorded: ClassVar[bool] = False
    """Whether its steps take part in `training.record`."""
    label_smoothing: ClassVar[float] = 0.1
    own_settings: ClassVar[tuple[str, ...]] = ()
    """The settings of `task.*` that are this kind's."""
    rate_follows_batch: ClassVar[bool] = True
    """Whether small steps have a lower learning rate."""
    keeps_spaces: ClassVar[bool] = False
    """Whether a vocabulary that is learnt for it keeps all spaces of a text."""
    writes_translations: ClassVar[bool] = False
    """Whether dev sentences are translated at each validation, and `training.translate_dev` says how many."""
    takes_back_translations: ClassVar[bool] = False
    """Whether sources may be a machine's, `data.back_translated`."""
    instead_of_search: ClassVar[str | None] = None
    """What to do in place of saying `search.*`, where it would do nothing."""
    own_search: ClassVar[tuple[str, ...]] = ()
    """The settings of `search.*` that it goes by where it does not go by the others."""

    # --- before the corpus is there ---

    def check(self, settings: Settings) -> None:
        """Refuses settings that mean nothing here.

        Raises:
            TransduceError: one of another kind, or of a model that cannot do this.
        """
        usual = TaskSettings()
        for name in TaskSettings.__struct_fields__:
            value = getattr(settings.task, name)
            if name != "kind" and name not in self.own_settings and value != getattr(usual, name):
                raise TransduceError(f"`task.{name}` means nothing where `task.kind` is {self.name}: leave it out.")
        if settings.data.back_translated and not self.takes_back_translations:
            raise TransduceError(
                f"`data.back_translated` means nothing where `task.kind` is {self.name}: leave it out."
            )
        for name, first in (("monolingual", "has it translated back"), ("teacher", "has it translate")):
            if getattr(settings.data, name):
                raise TransduceError(
                    f"`data.{name}` is for `transduce train` of a translation, which {first} first: leave it out."
                )
        if settings.model.kind is not None:
            self.check_model(settings.model.kind)
        used = self.sizes(PRESETS["tiny"], settings.model.kind or self.model_kinds[0])
        for name, said in (
            ("num_encoder_layers", settings.model.num_encoder_layers),
            ("num_decoder_layers", settings.model.num_decoder_layers),
        ):
            if name not in used and said not in (None, _UNUSED_LAYERS):
                raise TransduceError(f"`model.{name}` means nothing where `task.kind` is {self.name}: leave it out.")

    def check_model(self, kind: str, where: str = "`model.kind`") -> None:
        """Refuses a kind of model that cannot do this.

        Raises:
            TransduceError: it is one.
        """
        if kind not in self.model_kinds:
            raise TransduceError(
                f"{where} is {kind}, but `task.kind` = {self.name} takes {' or '.join(self.model_kinds)}: change one "
                "of them."
            )

    def follow(self, task: TaskSettings, kept: ModelConfig) -> TaskSettings:  # noqa: ARG002
        """The settings of the task, where a model that training begins with decides what nobody said."""
        return task

    # --- the corpus ---

    @abstractmethod
    def prepare(self, asked: Preparation) -> C:
        """Makes the corpus of a run that begins.

        Raises:
            TransduceError: files are missing, or not what the task reads.
        """

    @abstractmethod
    def reopen(self, settings: Settings, folder: Path) -> C:
        """What `prepare` made in a run's folder; its settings leave nothing open.

        Raises:
            TransduceError: it is damaged, or no longer what the run began with.
        """

    def as_prepared(self, data: DataSettings, corpus: C) -> DataSettings:  # noqa: ARG002
        """What the settings say of the data, with what a corpus that was prepared ahead says in their place."""
        return data

    # --- choices ---

    def sizes(self, preset: Preset, model_kind: str) -> dict[str, object]:  # noqa: ARG002
        """What a preset says of the model, by the names of `model.*`."""
        return msgspec.structs.asdict(preset)

    def model_settings(self, task: TaskSettings) -> dict[str, object]:  # noqa: ARG002
        """Settings of the model that are not the usual ones, where nothing is said."""
        return {}

    def choose_preset(self, pairs: int, tokens: int) -> Choice[str]:  # noqa: ARG002
        """The size of the model, by the corpus: its pairs, and the target tokens of an epoch."""
        return choose_preset(pairs)

    def epoch_tokens(self, corpus: C, model: ModelConfig, task: TaskSettings) -> int:  # noqa: ARG002
        """How many tokens an epoch has, as `training.batch_tokens` counts them."""
        return corpus.target_tokens

    def choose_steps(self, pairs: int, epoch_tokens: int, batch_tokens: int) -> Choice[int]:
        """How long to train."""
        return choose_steps(pairs, epoch_tokens, batch_tokens)

    def choose_batch_tokens(self, epoch_tokens: int, device: str) -> Choice[int]:
        """The target tokens of a step."""
        return choose_batch_tokens(epoch_tokens, device)

    def choose_schedule(self, norm_order: str) -> Choice[ScheduleName]:
        """The shape of the learning rate."""
        return choose_schedule(norm_order)

    def choose_learning_rate(
        self,
        settings: Settings,
        d_model: int,
        schedule: ScheduleName,
        warmup_steps: int,
        batch_tokens: int,
        optimizer: OptimizerName,
    ) -> Choice[float]:
        """The highest learning rate; less for a model that is to learn more of what it knows."""
        if goes_on_learning(settings, self.name):
            return choose_fine_tuning_rate(d_model)
        if not self.rate_follows_batch:
            return choose_learning_rate(d_model, schedule, warmup_steps, optimizer=optimizer)
        return choose_learning_rate(d_model, schedule, warmup_steps, batch_tokens, optimizer)

    def choose_best_by(self, corpus: C, translated: int) -> Choice[BestBy]:  # noqa: ARG002
        """What the best model is chosen by; `translated` is how many dev sentences are translated at most."""
        return choose_best_by(translated)

    def choose_precision(self, usual: Choice[Precision]) -> Choice[Precision]:
        """What the model computes in; `usual` is what the machine does fastest."""
        return usual

    def adapt_model(self, config: ModelConfig, corpus: C, task: TaskSettings) -> ModelConfig:  # noqa: ARG002
        """The model, once the corpus has told what it must be able to tell apart.

        Raises:
            TransduceError: the model, which training may begin with, cannot do what the settings of the task ask for.
        """
        return config

    def fresh(self, corpus: C) -> Fresh:  # noqa: ARG002
        """Which weights are not those of the model of `--from`: none."""
        return Fresh()

    def explain(self, corpus: C, resolved: ResolvedSettings, account: Account) -> None:  # noqa: ARG002
        """Enters in the account what of a corpus does not suit the settings of a run that begins.

        Raises:
            TransduceError: a setting could come to nothing.
        """
        return

    # --- training ---

    @abstractmethod
    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> Callable[[Any], Loss]:
        """The loss of a batch under a model."""

    @abstractmethod
    def plan(self, corpus: C, resolved: ResolvedSettings, share: Share = (0, 1)) -> Batches:
        """The training batches of one of several processes."""

    @abstractmethod
    def largest(self, corpus: C, resolved: ResolvedSettings) -> list[Any]:
        """The batches that need most memory, to be tried before the first step."""

    @abstractmethod
    def validation(self, corpus: C, resolved: ResolvedSettings, place: Place) -> Validation:
        """The dev set."""

    def describe_batch(self, corpus: C, batch: Any) -> dict[str, Any]:
        """A batch as JSON that a person can read."""
        return corpus.describe(batch)

    def describe_size(self, corpus: C) -> str:
        """How much is trained on, in words."""
        return counted(corpus.pairs, "pair")

    # --- the model folder ---

    def documents(self, corpus: C, resolved: ResolvedSettings) -> Mapping[str, str]:  # noqa: ARG002
        """Text files that the folder needs to be used, by name, beside those that all folders have."""
        return {}

    @abstractmethod
    def card(self, corpus: C, resolved: ResolvedSettings, step: int | None) -> str:
        """README.md of the folder while training goes on."""

    @abstractmethod
    def finish(self, corpus: C, resolved: ResolvedSettings, place: Place, step: int | None) -> Outcome:
        """The last words, and files to keep, once the best model is in its folder.

        Args:
            corpus: of the run.
            resolved: its settings.
            place: where it computed.
            step: of the weights that were kept.
        """


def model_dtype(resolved: ResolvedSettings) -> torch.dtype:
    """What the model computes in."""
    return DTYPES[resolved.training.precision]


def text_alone(data: DataSettings, name: str) -> tuple[CorpusFiles, CorpusFiles | None]:
    """Training and dev text of a task that learns from text alone: both sides of a pair are the same line.

    Raises:
        TransduceError: there is a target, or no source.
    """
    if not data.source:
        raise TransduceError(f"A {name} learns from text: give --source, or `data.source` in the settings.")
    if data.format == "tsv":
        raise TransduceError(
            f"A {name} learns from text alone, but `data.format` is tsv, for pairs: write the text out, and leave the "
            "format out."
        )
    for setting, files in (("target", data.target), ("dev_target", data.dev_target)):
        if files:
            raise TransduceError(
                f"A {name} learns from text alone, but `data.{setting}` names {files[0]}: leave it out, or name all "
                f"files in `data.{setting.replace('target', 'source')}`."
            )
    return _both_sides(data.source), _both_sides(data.dev_source) if data.dev_source else None


def _both_sides(files: tuple[str, ...]) -> CorpusFiles:
    return CorpusFiles(source=files, target=files, format="lines")


def pairs_of_files(data: DataSettings) -> TaskText:
    """Training and dev text of a task that learns from pairs; some are held out where there is no dev set.

    Raises:
        TransduceError: nothing is said of it.
    """
    if not data.source:
        raise TransduceError(
            "There is no text to learn from: give --source and --target, or `data.source` in the settings."
        )

    def files(source: tuple[str, ...], target: tuple[str, ...]) -> CorpusFiles:
        return CorpusFiles(source=source, target=target, format=data.format, languages=data.languages)

    training = files(data.source, data.target)
    return TaskText(
        files=msgspec.structs.replace(training, back_translated=data.back_translated),
        dev=files(data.dev_source, data.dev_target) if data.dev_source else None,
        filters=data.filters,
        hold_out=None if data.dev_source else HoldOutSettings(),
    )
