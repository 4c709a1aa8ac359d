"""Define the interface of a task kind: its text, model, batches, loss, metrics and final report.

Each kind is a class in its own file; `__init__.py` lists them by name. A kind has no state: its methods receive all
they work on.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec
import torch
from torch import Tensor

from transduce.data.batches import Batch, BatchPlan, Plan, largest_batches
from transduce.errors import TransduceError, count_noun
from transduce.evaluation.significance import standard_error
from transduce.exchange.exporters import AFTER_EXPORT, NO_CLASS, NO_TOKENIZER, formats_for, opening_sentence
from transduce.interop.hugging_face.export import class_for, has_tokenizer, opens_folder, pipeline_files
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.machine import DTYPES, Precision
from transduce.model.build import AnyModel, build_any_model
from transduce.model.config import ModelConfig
from transduce.model_folder.load import LoadOptions
from transduce.model_folder.read import read_run_setting
from transduce.model_folder.write import has_original_tokenizer
from transduce.search.settings import SearchSettings
from transduce.tasks.corpus import (
    RunCorpus,
    TaskCorpus,
    TaskText,
    open_corpus,
    prepare_corpus,
    reopen_prepared_corpus,
    use_prepared_corpus,
)
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, Settings, TaskSettings
from transduce.tasks.text_files import write_pairs
from transduce.text.filters import FilterSettings
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import (
    PRESETS,
    Choice,
    ChoiceLog,
    CorpusSize,
    Preset,
    choose_batch_tokens,
    choose_best_by,
    choose_fine_tuning_rate,
    choose_language_model_batch_tokens,
    choose_language_model_preset,
    choose_learning_rate,
    choose_optimizer,
    choose_preset,
    choose_schedule,
    choose_steps,
)
from transduce.training.display import ProgressDisplay
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss, Objective
from transduce.training.schedule import ScheduleName
from transduce.training.settings import BestBy, OptimizerName

# --- model card ---
# README.md of a model folder, with the front matter that Hugging Face reads.


class CardTexts(NamedTuple):
    """The parts of a model card (README.md of a model folder) that differ between tasks."""

    title: str
    """The heading of the card."""
    pipeline_tag: str
    """Hugging Face's name for what the model does, such as "translation"."""
    model: str
    """A description of the model and its training data, without a period."""
    usage: str
    """A command that uses the model."""
    files: str = ""
    """The files that the command reads and writes, in the shell's notation, such as " < texts.txt"."""
    example: str = ""
    """A command that prints an example text, for the command to read, and a pipe, such as "echo cat | "."""
    score_heading: str = ""
    """The heading of the report on the dev set; empty: the report is a sentence."""
    names_class: bool = True
    """True if the card names the Hugging Face class that opens the folder, or else the exports."""


def opening_hint(model: ModelConfig, tokenizer: Tokenizer, folder: Path) -> str:
    """Return a sentence for the model card that says what opens the model folder.

    It names a Hugging Face class, if one opens the folder, and otherwise `transduce.load` and the formats for export.
    """
    has_class, is_imported = class_for(model) is not None, isinstance(tokenizer, ImportedTokenizer)
    has_files = has_tokenizer(tokenizer, model) or (is_imported and has_original_tokenizer(folder))
    if has_files and opens_folder(model):
        return opening_sentence(model)
    is_exported = has_class and (has_files or bool(pipeline_files(tokenizer, model)))
    nothing = AFTER_EXPORT if is_exported else NO_TOKENIZER if has_class else NO_CLASS
    exports = [f"`--to {name}`" for name in formats_for(model) if name != "huggingface" or is_exported]
    for_others = f", and `transduce export` writes it for other programs: {' or '.join(exports)}" if exports else ""
    return f"{nothing}; `transduce.load` opens it{for_others}."


def front_matter(languages: Sequence[str | None], pipeline_tag: str) -> str:
    """Return the YAML front matter of a model card for Hugging Face: known languages, pipeline tag and library."""
    codes = [code for code in languages if code]
    lines = "".join(["language:\n", *(f"- {code}\n" for code in codes)]) if codes else ""
    return f"---\n{lines}pipeline_tag: {pipeline_tag}\nlibrary_name: transduce\n---\n"


# --- training of the base model ---
# It determines the learning rate.


def refuse_unused(kind: str, settings: Mapping[str, object]) -> None:
    """Raise an error if a setting is set that has no meaning for a kind of task.

    Args:
        kind: the name of the kind of task.
        settings: by name, a value for each setting that the kind does not use; a true value means that it is set.

    Raises:
        TransduceError: one of the settings is set.
    """
    for name, is_set in settings.items():
        if is_set:
            raise TransduceError(f"`{name}` means nothing where `task.kind` is {kind}: leave it out.")


# Each of these settings is for some kinds of tasks only (`TaskKind.uses`).
OPTIONAL_SETTINGS = (
    *(f"task.{name}" for name in TaskSettings.__struct_fields__ if name != "kind"),
    *("data.corpora", "data.noise", "data.context_before", "data.weight_column", "data.back_translated"),
    *("data.strict_format", "training.placeholder_rate", "training.bpe_dropout", "training.unigram_alpha"),
    *("tokenizer.vocabulary", "tokenizer.line_feeds"),
)


def changed(settings: Settings, names: Iterable[str]) -> dict[str, bool]:
    """Return a dict: dotted name of each setting, or table of settings → whether it differs from its default."""
    return {name: attrgetter(name)(settings) != attrgetter(name)(Settings()) for name in names}


def continues_training(settings: Settings, kind: str) -> bool:
    """Return whether training continues a base model of the task `kind` or of an unknown task.

    The result is False without a base model. It is also False with LoRA, which trains only new adapter weights.
    """
    if settings.init_from is None or settings.training.lora_rank:
        return False
    return base_task(Path(settings.init_from)) in (kind, None)


def base_task(folder: Path) -> str | None:
    """Return the name of the task that the run in a folder was trained for; None if unknown, as for imported models."""
    try:
        return read_run_setting(folder, "task.kind", str)
    except TransduceError:
        return None


# --- interface of a task ---


# The number of tokens in a batch of a dev set.
DEV_BATCH_TOKENS = 4_096
# The default number of layers; settings of a resumed run may have it for layers that its model lacks.
_UNUSED_LAYERS = 6

# The rank of a training process and the number of processes, which choose its rows of a batch.
RankAndCount = tuple[int, int]


ObjectiveT = TypeVar("ObjectiveT", bound=Objective[Any])


class Validation(ABC, Generic[ObjectiveT]):
    """A base class of dev sets, which measure the quality of a model's weights."""

    def __init__(self, objective: ObjectiveT, batches: Sequence[Any]) -> None:
        """Create the dev set from a training objective and the batches of the dev examples.

        Each validation loads the weights to measure into the objective's model.
        """
        self.objective, self.model, self.batches = objective, objective.model, batches

    @torch.inference_mode()
    def summed_loss(self) -> tuple[float, int]:
        """Return the training loss without label smoothing, summed over all batches, and the number of targets."""
        losses = [self.objective.loss(batch) for batch in self.batches]
        return sum(float(loss.negative_log_likelihood) for loss in losses), sum(loss.tokens for loss in losses)

    def validate(self, weights: Mapping[str, Tensor], step: int) -> ValidationEvent:
        """Load weights into the model, measure it on the dev set, and return the metrics and seconds taken as an event.

        `step` is the training step that the weights are of.
        """
        started_at = time.monotonic()
        self.model.load_state_dict(weights)
        event = self.measure(step)
        return msgspec.structs.replace(event, validation_seconds=time.monotonic() - started_at)

    @abstractmethod
    def measure(self, step: int) -> ValidationEvent:
        """Measure the model with the weights that it has now on the dev set, and return the metrics as an event.

        `step` is the training step that the weights are of.
        """


def validation_event(
    step: int, loss: float, scores: dict[str, float], contributions: list[float] | None = None
) -> ValidationEvent:
    """Return the event of a validation: its loss, perplexity, scores and the standard error of the main score.

    Args:
        step: the training step of the weights.
        loss: the mean loss in nats.
        scores: further measures by name.
        contributions: each dev sentence's contribution to the score that selects the best model (the main score), from
            which the standard error is computed; None: unknown.
    """
    return ValidationEvent(
        step=step,
        loss=loss,
        perplexity=math.exp(min(loss, 100.0)),
        scores=scores,
        standard_error=standard_error(contributions or []),
        contributions=contributions or [],
    )


class RunPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of a run, and the device and number of threads with which it computes."""

    folder: Path
    """The run's folder."""
    folder_argument: str
    """The folder in a suggested command, quoted, followed by options that every command for the model needs."""
    device: str
    """PyTorch device, such as "cpu" or "cuda"."""
    threads: int
    """Number of compute threads."""
    evaluation_seconds: float | None = None
    """The seconds allowed for the final evaluation of a run with a time budget; None: unlimited."""
    best_step: int = 0
    """The training step of the run's best weights, once it is finished; 0 if unknown."""

    def load_options(self, resolved: ResolvedSettings) -> LoadOptions:
        """Return the keyword arguments with which functions such as `load_tagger` load the run's model."""
        return {"precision": resolved.training.precision, "device": self.device, "threads": self.threads}


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs from which a task prepares the corpus of a new run."""

    settings: Settings
    """The user's settings."""
    folder: Path
    """The run's folder, to which the task writes the corpus and the tokenizer."""
    display: ProgressDisplay
    """The display on which a task tells the user what it reads and leaves out."""
    choose_tokenizer: Callable[[CorpusSize], TokenizerSettings]
    """A function that chooses the tokenizer's settings from the size of the corpus."""
    tokenizer: Tokenizer | None
    """The base model's tokenizer, to use instead of learning one; None: learn one, or use the user's own vocabulary."""


DEV_SCORES = "dev_score.json"
"""The name of the file in a model folder that holds the dev scores of the run as JSON."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a finished run: quality, further files for the model folder, and search settings."""

    measured: str
    """The measured quality on the dev set, as text for the terminal."""
    report: object
    """The measured quality on the dev set for the model card, which shows the object's `str`."""
    scores: object
    """The dev scores, which the file dev_score.json of the model folder gets as JSON."""
    files: Mapping[str, bytes] = {}
    """Further files for the model folder: name → content."""
    search: SearchSettings | None = None
    """Search settings chosen on the dev set, which replace those of the run; None: the run's settings stay."""
    weakness: str | None = None
    """A sentence saying that the model is no better than a simple baseline on the dev set; None if it is better."""


class Reinitialized(NamedTuple):
    """The parameters that get random values in a run from a base model (`--init-from`), as prefixes of their names."""

    may_lack: tuple[str, ...] = ()
    """Prefixes of parameters that the base model may lack; if there are any, the base model may also have further
    parameters.
    """
    reinitialize: Callable[[Path], tuple[str, ...]] | None = None
    """A function from the base model's folder to prefixes of parameters that it has but that are not to be taken; None:
    all are taken.
    """


C = TypeVar("C", bound=RunCorpus)


class TaskKind(ABC, Generic[C]):
    """An interface of kinds of tasks, such as translation, each of which learns from a corpus of type C.

    The methods have defaults that suit most tasks. Tasks that learn from text derive from `TextKind`.
    """

    name: ClassVar[str]
    """Name of the task, the value of `task.kind`."""
    model_kinds: ClassVar[tuple[str, ...]]
    """The kinds of model (`model.kind`) that can do the task; the first is the default."""
    measures: ClassVar[tuple[str, ...]] = ("loss",)
    """The metrics that `training.best_by` can select the best model by."""
    reads_text: ClassVar[bool] = True
    """True if the task's models read tokens, not numbers."""
    example: ClassVar[str] = "pair"
    """The noun for an example that the task learns from, in the singular, such as "pair"."""
    counted: ClassVar[str] = "tokens"
    """The noun for what the loss and the speed of training count, in the plural, such as "tokens"."""
    batch_note: ClassVar[str] = ""
    """What `training.batch_tokens` counts in this task, as a note in the choice log; empty: target tokens."""
    learns_from_all_tokens: ClassVar[bool] = False
    """True if presets and batches are chosen as for language models, by the number of tokens in the training text."""
    may_be_recorded: ClassVar[bool] = False
    """True if training steps may be recorded as CUDA graphs and replayed (`training.cuda_graphs`)."""
    label_smoothing: ClassVar[float] = 0.1
    """The default of the setting `training.label_smoothing` in this task."""
    scales_rate_with_batch: ClassVar[bool] = True
    """True if small batches get a lower learning rate."""
    keeps_spaces: ClassVar[bool] = False
    """True if a vocabulary learned for the task keeps all spaces of a text."""
    writes_translations: ClassVar[bool] = False
    """True if each validation translates dev sentences, up to `training.translate_dev`."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Names of the settings among `OPTIONAL_SETTINGS` that this task uses; setting another one is an error."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Names of further settings or tables of settings that this task does not use; setting one is an error."""
    search_advice: ClassVar[str | None] = None
    """Advice to users who set `search.*` for a task that does not use these settings; None: the task uses them."""
    used_search_settings: ClassVar[tuple[str, ...]] = ()
    """Names of the settings of `search.*` that the task uses although `search_advice` is set for the others."""

    # --- before the corpus is read ---

    def check(self, settings: Settings) -> None:
        """Raise an error if settings of a run have no meaning for the task, or its model cannot do the task.

        Raises:
            TransduceError: a setting is for another task, or the model's kind cannot do this task.
        """
        data = settings.data
        names = [name for name in OPTIONAL_SETTINGS if name not in self.uses]
        refuse_unused(self.name, changed(settings, (*names, *self.unused)))
        if data.temperature != DataSettings().temperature and not data.corpora:
            raise TransduceError(
                "`data.temperature` sets how often each table of `data.corpora` is sampled, but there are none: leave "
                "it out."
            )
        if settings.tokenizer.kind == "word" and "tokenizer.vocabulary" not in self.uses:
            raise TransduceError(
                f"`tokenizer.kind` = word means nothing where `task.kind` is {self.name}: leave it out."
            )
        for name, first in (("monolingual", "has it translated back"), ("distill_from", "has it translate")):
            if getattr(data, name):
                raise TransduceError(
                    f"`data.{name}` is for `transduce train` of a translation, which {first} first: leave it out."
                )
        if settings.model.kind is not None:
            self.check_model(settings.model.kind)
        used = self.sizes(PRESETS["tiny"], settings.model.kind or self.model_kinds[0])
        unused = [name for name in ("num_encoder_layers", "num_decoder_layers") if name not in used]
        set_layers = {f"model.{name}": getattr(settings.model, name) not in (None, _UNUSED_LAYERS) for name in unused}
        refuse_unused(self.name, set_layers)

    def check_model(self, kind: str, where: str = "`model.kind`") -> None:
        """Raise an error if a kind of model cannot do the task; `where` names the setting or folder in the message.

        Raises:
            TransduceError: the kind of model cannot do the task.
        """
        if kind not in self.model_kinds:
            raise TransduceError(
                f"{where} is {kind}, but `task.kind` = {self.name} takes {' or '.join(self.model_kinds)}: change one "
                "of them."
            )

    def check_base_model(self, config: ModelConfig, task: TaskSettings, folder: str) -> None:  # noqa: ARG002
        """Raise an error if the base model in `folder` cannot do the task; by default, only its kind is checked.

        Raises:
            TransduceError: the model cannot do the task.
        """
        self.check_model(config.kind, f"The model in {folder}")

    def complete_settings(self, task: TaskSettings, base_config: ModelConfig) -> TaskSettings:  # noqa: ARG002
        """Return the settings `task.*` with values from the base model's configuration added; default: unchanged."""
        return task

    # --- the corpus ---

    @abstractmethod
    def prepare(self, request: Preparation) -> C:
        """Prepare and return the corpus of a new run (vocabulary, tokenized text, dev set), stored in the run's folder.

        Raises:
            TransduceError: files are missing, or are not what the task reads.
        """

    @abstractmethod
    def reopen(self, settings: Settings, folder: Path) -> C:
        """Return the corpus that `prepare` wrote to a run's folder, for a run that resumes with complete settings.

        Raises:
            TransduceError: the corpus is damaged, or differs from the one that the run started with.
        """

    def as_prepared(self, data: DataSettings, corpus: C) -> DataSettings:  # noqa: ARG002
        """Return the data settings, with the filters of the prepared corpus if the run uses one; else unchanged."""
        return data

    # --- choices ---

    def sizes(self, preset: Preset, model_kind: str) -> dict[str, object]:  # noqa: ARG002
        """Return a dict of the model settings that a preset such as "small" sets, by the names of `model.*`."""
        return msgspec.structs.asdict(preset)

    def model_settings(self, task: TaskSettings) -> dict[str, object]:  # noqa: ARG002
        """Return a dict of the task's own defaults of model settings, by the names of `model.*`; empty by default."""
        return {}

    def choose_positions(self, model: Mapping[str, Any]) -> Choice[str] | None:  # noqa: ARG002
        """Return a default for `model.positions` that suits the other settings, `model`; None: the general default."""
        return None

    def choose_preset(self, pairs: int, tokens: int) -> Choice[str]:
        """Return the default preset, such as "small", with a reason (`Choice`).

        It depends on the number of training pairs. For tasks such as language modeling (`learns_from_all_tokens`), it
        depends on the number of target tokens (`tokens`) instead.
        """
        return (
            choose_language_model_preset(tokens) if self.learns_from_all_tokens else choose_preset(pairs, self.example)
        )

    def epoch_tokens(self, corpus: C, model: ModelConfig, task: TaskSettings) -> int:  # noqa: ARG002
        """Return the number of tokens in an epoch, in the unit in which `training.batch_tokens` counts them."""
        return corpus.target_tokens

    def choose_steps(self, pairs: int, epoch_tokens: int, batch_tokens: int) -> Choice[int]:
        """Return the default number of training steps with a reason (`Choice`).

        `epoch_tokens` and `batch_tokens` count target tokens, unless the task counts others.
        """
        return choose_steps(pairs, epoch_tokens, batch_tokens, self.example)

    def choose_batch_tokens(self, epoch_tokens: int, device: str) -> Choice[int]:
        """Return a default for `training.batch_tokens`, a number of target tokens unless the task counts others."""
        choose = choose_language_model_batch_tokens if self.learns_from_all_tokens else choose_batch_tokens
        return choose(epoch_tokens, device)

    def choose_schedule(self, norm_order: str) -> Choice[ScheduleName]:
        """Return the default learning-rate schedule with a reason (`Choice`); `norm_order` is the model's, as "pre"."""
        return choose_schedule(norm_order)

    def choose_optimizer(self, settings: Settings, model: ModelConfig) -> Choice[OptimizerName]:
        """Return the default optimizer with a reason: Muon for pre-norm layers with random weights, otherwise Adam."""
        return choose_optimizer(model.kind, model.norm_order, init_from=settings.init_from)

    def choose_learning_rate(self, settings: Settings, d_model: int) -> Choice[float]:
        """Return the default peak learning rate with a reason (`Choice`).

        The rate is lower if training continues a base model of this task or of an unknown task. In `settings`, the
        schedule, the warm-up, the batch size and the optimizer are already chosen.
        """
        if continues_training(settings, self.name):
            return choose_fine_tuning_rate(d_model)
        training = settings.training
        assert training.schedule is not None
        assert training.warmup_steps is not None
        assert training.optimizer is not None
        batch = {"batch_tokens": training.batch_tokens or 0} if self.scales_rate_with_batch else {}
        return choose_learning_rate(
            d_model, training.schedule, training.warmup_steps, optimizer=training.optimizer, **batch
        )

    def choose_best_by(self, corpus: C, translated: int) -> Choice[BestBy]:  # noqa: ARG002
        """Return the default metric that selects the best model, with a reason (`Choice`).

        `translated` is the number of dev sentences that each validation translates.
        """
        if self.writes_translations:
            return choose_best_by(translated)
        return Choice("loss", f"the measure of `task.kind` {self.name}")

    def choose_precision(self, default: Choice[Precision]) -> Choice[Precision]:
        """Return the default precision with a reason; `default` is what the machine computes fastest."""
        return default

    def adapt_model(self, config: ModelConfig, corpus: C, task: TaskSettings) -> ModelConfig:  # noqa: ARG002
        """Return the model's configuration adapted to the corpus, such as to its number of classes; default: unchanged.

        Raises:
            TransduceError: the corpus does not fit any model, such as one with a single class.
        """
        return config

    def check_corpus(self, corpus: C, config: ModelConfig, task: TaskSettings) -> None:
        """Raise an error if the model cannot learn from the corpus, such as from too long texts; default: no check.

        Raises:
            TransduceError: corpus and model do not fit.
        """

    def reinitialized(self, corpus: C) -> Reinitialized:  # noqa: ARG002
        """Return which parameters get random values instead of the base model's (`Reinitialized`); none by default."""
        return Reinitialized()

    def log_corpus_problems(self, corpus: C, resolved: ResolvedSettings, choice_log: ChoiceLog) -> None:  # noqa: ARG002
        """Log the problems that a corpus causes for the settings of a new run in `choice_log`; the default logs none.

        Raises:
            TransduceError: a setting would have no effect.
        """
        return

    # --- training ---

    @abstractmethod
    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> Callable[[Any], Loss]:
        """Return the training objective: a function that computes the `Loss` of a batch by the model."""

    @abstractmethod
    def plan(self, corpus: C, resolved: ResolvedSettings, rank_and_count: RankAndCount = (0, 1)) -> Plan[Any]:
        """Return the plan of the training batches of process r of n, an object that provides each epoch's batches.

        `rank_and_count` is (r, n).
        """

    def largest_batches(self, corpus: C, resolved: ResolvedSettings) -> list[Any]:
        """Return a list of the training batches that need the most memory, to be tried before the first step.

        By default, it is the first batch, for tasks whose batches all have the same size.
        """
        return [self.plan(corpus, resolved).batch(0, 0)]

    @abstractmethod
    def validation(self, corpus: C, resolved: ResolvedSettings, placement: RunPlacement) -> Validation[Any]:
        """Return the dev set as an object that measures a model's weights, which it loads into a model of its own."""

    def end_validations(self, corpus: C, resolved: ResolvedSettings) -> float:  # noqa: ARG002
        """Return how long `finish` takes at the end of a run, as a multiple of the time of one validation."""
        return 1.0

    def validation_tokens(self, corpus: C, resolved: ResolvedSettings) -> float | None:  # noqa: ARG002
        """Return an estimate of how many tokens training reads in the time of one validation, to predict that time.

        None, the default: the task has no estimate.
        """
        return None

    def trained_validation_seconds(self, validation: Validation[Any], seconds: float, expected: float) -> float:  # noqa: ARG002
        """Return how many seconds a validation of a trained model will take; the default is `seconds`.

        Args:
            validation: the dev set, which has measured a model early in training.
            seconds: how long this early validation took.
            expected: how long a validation takes by the estimate of `validation_tokens`; NaN if the task has no
                estimate.
        """
        return seconds

    def describe_batch(self, corpus: C, batch: Any) -> dict[str, Any]:
        """Return a dict that describes a batch and can be written as JSON, for the record of a skipped step."""
        return corpus.describe(batch)

    def describe_size(self, corpus: C) -> str:
        """Return the size of the training data as text for messages, such as "1,000 pairs"."""
        return count_noun(corpus.pairs, self.example)

    # --- the model folder ---

    def documents(self, corpus: C, resolved: ResolvedSettings) -> Mapping[str, str]:  # noqa: ARG002
        """Return a dict {file name: content} of further text files for the model folder, such as the task card."""
        return {}

    @abstractmethod
    def card_texts(self, corpus: C, resolved: ResolvedSettings, folder: str) -> CardTexts:
        """Return the parts of the model card that depend on the task: title, description, usage and others.

        `folder` is the model folder, as an argument of the command that uses the model.
        """

    def card(
        self, corpus: C, resolved: ResolvedSettings, step: int | None, report: object = None, *, folder: Path
    ) -> str:
        """Return the text of the model card, README.md, of the model in `folder`.

        `report` is the final quality on the dev set, or None during training. `step` is the training step of the
        weights.
        """
        texts, tokenizer = self.card_texts(corpus, resolved, "THIS_FOLDER"), corpus.tokenizer
        codes = dict.fromkeys(code for direction in resolved.data.directions for code in direction)
        parts = [
            f"{front_matter(tuple(codes) or corpus.languages, texts.pipeline_tag)}\n# {texts.title}",
            f"{texts.model}{f', weights of step {step:,}' if step else ''}.",
            f"    {texts.usage}{texts.files}",
        ]
        if texts.names_class and tokenizer is not None:
            parts.append(opening_hint(resolved.model, tokenizer, folder))
        if report is not None:
            heading = texts.score_heading
            parts.append(f"## {heading}\n\n```\n{report}\n```" if heading else f"{report}")
        return "\n\n".join([*parts, "All settings are in `settings.toml`.\n"])

    @abstractmethod
    def finish(self, corpus: C, resolved: ResolvedSettings, placement: RunPlacement) -> Outcome:
        """Measure the best model, which is in the run's folder, and return an `Outcome`: quality and scores."""


def model_to_measure(resolved: ResolvedSettings, placement: RunPlacement) -> AnyModel:
    """Build the model of a run, without its weights, for a dev set that loads the weights that it measures."""
    with torch.device(placement.device):
        return build_any_model(resolved.model).to(DTYPES[resolved.training.precision]).eval()


# --- tasks on text ---


class TextKind(TaskKind[TaskCorpus]):
    """A base class of kinds of tasks on text that a vocabulary tokenizes; its corpora are `TaskCorpus`."""

    may_be_prepared: ClassVar[bool] = False
    """True if `transduce prepare` can prepare the task's corpus."""
    unused_filters: ClassVar[tuple[str, ...]] = ()
    """Names of the settings of `data.filters.*` that the task does not use."""

    def check(self, settings: Settings) -> None:
        """Raise an error for settings that the task does not use.

        Raises:
            TransduceError: a setting has no meaning for the task, the task cannot use a prepared corpus, or a prepared
                corpus is combined with a base model.
        """
        super().check(settings)
        refuse_unused(self.name, changed(settings, [f"data.filters.{name}" for name in self.unused_filters]))
        if settings.data.prepared is None:
            return
        if not self.may_be_prepared:
            raise TransduceError(
                f"`data.prepared` is text or pairs of texts, but `task.kind` = {self.name} makes another corpus of its "
                "files: name them by `data.source`."
            )
        if settings.init_from is not None:
            raise TransduceError(
                "`data.prepared` holds text tokenized by its own vocabulary, which `init_from` cannot use: name the "
                "text by `data.source`."
            )

    # --- the text ---

    def rewrite(self, settings: Settings, folder: Path, *, overwrite: bool) -> DataSettings:
        """Convert the task's text to files that are read line by line; return data settings that name these files.

        By default, only tables of pairs are converted.

        Args:
            settings: the run's settings. Training text of a prepared corpus (`data.prepared`) is not converted again.
            folder: the folder of the run or of the prepared corpus, which gets the files.
            overwrite: True for a new run; False for a resumed one, for which existing files stay as they are.

        Raises:
            TransduceError: a file is missing, or is not what the task reads.
        """
        return write_pairs(settings.data, folder, overwrite=overwrite)

    @abstractmethod
    def text(self, data: DataSettings) -> TaskText:
        """Return the text files that the settings name, with filters, and how a dev set is held out (`TaskText`).

        Raises:
            TransduceError: the settings lack a file that the task needs, or name one that it does not use.
        """

    def special_tokens(self, task: TaskSettings) -> tuple[str, ...]:  # noqa: ARG002
        """Return a tuple of special tokens that the task needs and that no text contains; empty by default."""
        return ()

    def read_text(self, settings: Settings, folder: Path, *, overwrite: bool) -> TaskText:
        """Return the text to prepare (`TaskText`), with all special tokens, as files that are read line by line.

        Other formats are converted to such files in `folder`. `overwrite` replaces existing files, for a new run. A
        resumed run uses the existing files.

        Raises:
            TransduceError: a file is missing, is not what the task reads, or is needed but not named.
        """
        text = self.text(self.rewrite(settings, folder, overwrite=overwrite))
        return msgspec.structs.replace(text, special_tokens=(*self.special_tokens(settings.task), *text.special_tokens))

    # --- the corpus ---

    def prepare(self, request: Preparation) -> TaskCorpus:
        """Learn the vocabulary and tokenize the text of a new run, or open what `transduce prepare` wrote.

        Returns the corpus, which is stored in the run's folder unless it was prepared before.
        """
        settings, folder = request.settings, request.folder
        if settings.data.prepared is not None:
            return use_prepared_corpus(settings, partial(self.read_text, overwrite=True), folder, request.display)
        text = self.read_text(settings, folder, overwrite=True)
        return prepare_corpus(
            settings, text, folder, request.choose_tokenizer, request.display, tokenizer=request.tokenizer
        )

    def reopen(self, settings: Settings, folder: Path) -> TaskCorpus:
        """Return the corpus of a run that resumes, from the run's folder or that of `transduce prepare`."""
        if settings.data.prepared is not None:
            return reopen_prepared_corpus(settings, partial(self.read_text, overwrite=False), folder)
        return open_corpus(folder, settings, self.read_text(settings, folder, overwrite=False))

    def as_prepared(self, data: DataSettings, corpus: TaskCorpus) -> DataSettings:
        """Return the data settings with the filters of the prepared corpus, if the run uses one; else unchanged.

        Filters that the task does not use keep their defaults.
        """
        if data.prepared is None:
            return data
        defaults = FilterSettings()
        unused = {name: getattr(defaults, name) for name in self.unused_filters}
        return msgspec.structs.replace(data, filters=msgspec.structs.replace(corpus.filters, **unused))

    def check_corpus(self, corpus: TaskCorpus, config: ModelConfig, task: TaskSettings) -> None:  # noqa: ARG002
        """Raise an error for vocabularies and texts that the model cannot read.

        Raises:
            TransduceError: one embedding matrix is to be shared by two vocabularies, or texts exceed the learned
                positions.
        """
        tokenizer = corpus.tokenizer
        ids = range(0 if tokenizer.joint else tokenizer.source.size)
        if config.tie_source_target and any(tokenizer.source.token(id) != tokenizer.target.token(id) for id in ids):
            raise TransduceError(
                "`model.tie_source_target` gives a token the same vector on both sides, but source and target have "
                "separate vocabularies (`tokenizer.joint` = false): leave one of the two out."
            )
        if config.kind == "transformer" and config.positions == "learned":
            _check_lengths(corpus, config.max_positions)

    # --- batches ---

    def plan(self, corpus: TaskCorpus, resolved: ResolvedSettings, rank_and_count: RankAndCount = (0, 1)) -> Plan[Any]:
        """Return the plan of a process's training batches; `training.batch_tokens` is a number of target tokens.

        `rank_and_count` are the process's rank and the number of processes.
        """
        return BatchPlan(
            corpus.prepared,
            batch_tokens=resolved.micro_batch_tokens,
            seed=resolved.training.seed,
            rank_and_count=rank_and_count,
        )

    def largest_batches(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> list[Batch]:
        """Return one or two artificial batches as large as those that need most memory, to try before training."""
        return largest_batches(corpus.prepared, batch_tokens=resolved.micro_batch_tokens, seed=resolved.training.seed)


def _check_lengths(corpus: TaskCorpus, limit: int) -> None:
    """Raise an error if training or dev texts have more tokens than `limit`, the number of learned positions."""
    for name, prepared in (("training text", corpus.prepared), ("dev set", corpus.dev)):
        if prepared is None:
            continue
        statistics = prepared.statistics
        longest = max(statistics.source_percentiles[-1], statistics.target_percentiles[-1])
        if longest > limit:
            raise TransduceError(
                f"`model.max_positions` must be at least {longest:,}, as many tokens as a text of the {name} has, but "
                f"is {limit:,}: raise it, or leave longer pairs out by `data.filters.max_tokens` = {limit - 1:,}."
            )
