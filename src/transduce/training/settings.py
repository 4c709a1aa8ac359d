"""Define the settings of a training run; None means that a value is chosen from the corpus and the machine."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from transduce.errors import TransduceError
from transduce.machine import Precision
from transduce.training.schedule import ScheduleName

Kernels = Literal["native", "torch"]
OptimizerName = Literal["adam", "muon"]
BestBy = Literal["loss", "bleu", "chrf", "exact_match", "accuracy", "macro_f1", "f1", "skill", "last"]
# The projections of a layer that LoRA can adapt.
PROJECTIONS = ("queries-keys-values", "attention-output", "feed-forward-inner", "feed-forward-outer")
# With a higher rate even Adam's steps exceed the range of float32.
_MAX_LEARNING_RATE = 1e6
# The names of settings that are greater than 0, at least 0, and in [0, 1).
_POSITIVE = (
    "steps,minutes,batch_tokens,batch_size,accumulate,learning_rate,report_every,validate_every,save_every,"
    "keep_checkpoints,lora_alpha,epsilon,unigram_alpha"
)
_NOT_NEGATIVE = "seed,warmup_steps,weight_decay,clip_norm,average_checkpoints,patience,translate_dev,lora_rank"
_SHARES = "label_smoothing,average_decay,momentum,beta1,beta2,placeholder_rate,bpe_dropout"


class TrainingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of how a model is trained: `training.*` in a settings file.

    A value of None means that the setting is chosen from the corpus and the machine, or not used.
    """

    seed: int = 1
    """The seed of all random numbers of a run."""
    steps: int | None = None
    """Total number of parameter updates, including those before a resume."""
    minutes: float | None = None
    """Time of the run, instead of `steps`: of preparation, training, validations and the final evaluation. The number
    of steps follows the speed of the machine until the end.
    """
    time_plan: tuple[tuple[int, int, int], ...] = ()
    """The decisions of the clock in a run with `minutes`, as triples: after which step, the last step, and the number
    of validations. A finished run stores them, and a run that starts with them repeats its steps whatever the clock
    says.
    """
    batch_tokens: int | None = None
    """The size of one step over all micro-batches and processes, in target tokens without padding; masked language
    models count all tokens that are read. For the tasks of `batch_size`, the unit is the one that `batch_size` names.
    """
    batch_size: int | None = None
    """The size of one step over all micro-batches and processes for classification (in texts), tagging (in sentences)
    and time series (in numbers to predict). It is stored as `batch_tokens`; set only one of the two.
    """
    accumulate: int | None = None
    """Number of micro-batches per step, whose gradients are added."""
    optimizer: OptimizerName | None = None
    """`adam`: the paper's (section 5.3). `muon`: matrices of layers move by their gradient's orthogonalized momentum
    (Jordan et al. 2024), and Adam updates all other parameters.
    """
    learning_rate: float | None = None
    """The highest learning rate of the schedule."""
    schedule: ScheduleName | None = None
    """The schedule after the warm-up: falling as 1/√step (the paper), linearly or by a cosine to 0, or constant.
    Where the rate falls to 0, it is 0 at the last step, which changes no weights. Hugging Face's schedules are one step
    later: their first step has rate 0.
    """
    warmup_steps: int | None = None
    """The number of steps at the start in which the learning rate rises from 0."""
    momentum: float = 0.95
    """Muon: decay of the running mean of gradients."""
    beta1: float = 0.9
    """Adam (section 5.3): decay of the running mean of gradients."""
    beta2: float = 0.98
    """Adam: decay of the running mean of squared gradients."""
    epsilon: float = 1e-9
    """Adam: constant added to the denominator."""
    weight_decay: float | None = None
    """Decoupled weight decay, as in AdamW: each step multiplies matrices by 1 - rate × decay; other parameters do not
    decay.
    """
    clip_norm: float = 1.0
    """Gradients are scaled down to this norm; 0 disables clipping."""
    label_smoothing: float | None = None
    """ε of label smoothing (section 5.4)."""
    precision: Precision | None = None
    """Precision that the model computes in; master weights and moments are float32."""
    compile: bool = False
    """Compile layers with `torch.compile` before training (on a GPU), instead of using our own kernels; takes a minute
    at the start.
    """
    kernels: Kernels | None = None
    """`native`: our fused kernels (`compiled` on a CPU, `triton` on a GPU); `torch`: plain PyTorch, the `reference`."""
    cuda_graphs: bool | None = None
    """Record steps on a GPU as CUDA graphs and replay them, instead of launching each operation. Several processes
    record separately and exchange gradients after each replay.
    """
    sharded: bool = False
    """With several processes: each holds only a part of the parameters and of the optimizer state, for models that do
    not fit into one process. Otherwise each holds all.
    """
    average_decay: float | None = None
    """Decay per step of the moving average of the weights, which is the model that is kept; 0 keeps the weights without
    averaging.
    """
    average_checkpoints: int = 0
    """The model that is kept is the mean of the current weights and those of the checkpoints before them, as many in
    all as this number (section 6.1), instead of a moving average. Only checkpoints at multiples of `save_every` count;
    0: no such mean.
    """
    adapt_dropout: bool | None = None
    """Disable dropout at a validation if the last step's batches have a higher loss without dropout than with it: a
    model that sorts or counts may come to depend on the noise.
    """
    report_every: int = 50
    """Steps between reports."""
    validate_every: int | None = None
    """Steps between validations."""
    save_every: int | None = None
    """Steps between checkpoints."""
    best_by: BestBy | None = None
    """The metric of the dev set by which the best model is selected and kept; `last` keeps the newest model, whatever
    its scores. The dev loss decides instead where a difference of the metric is smaller than its standard error.
    """
    patience: int | None = None
    """Training stops after this many validations without a better one, or once all of at least 100 dev sentences were
    right at two validations in a row; 0: never. Validations during the warm-up or with a new lowest dev loss do not
    count.
    """
    translate_dev: int = 500
    """Dev sentences translated greedily at each validation; 0 translates none."""
    placeholder_rate: float = 0.05
    """Share of the pairs of an epoch into which placeholder tokens are put, so that a translation model learns to copy
    them; without effect if the vocabulary has none (`tokenizer.placeholders`).
    """
    spread_copies: bool = True
    """With shares of `data.corpora`: put copies of a pair into batches of similar length instead of one batch. Runs of
    versions without this setting continue without it.
    """
    bpe_dropout: float = 0.0
    """BPE-dropout (Provilkov et al. 2020): the probability with which each merge of a training word is left out, anew
    in each epoch; the paper has 0.1. Validation and translation never leave merges out. Translation only.
    """
    unigram_alpha: float | None = None
    """Subword regularization (Kudo 2018), for `tokenizer.kind` = unigram: training words are divided at random, by
    their probabilities to this power; smaller values vary more. None: the most probable division.
    """
    keep_checkpoints: int = 2
    """Number of newest checkpoints that are kept."""
    lora_rank: int = 0
    """LoRA (Hu et al. 2022), with `--init-from`: the model's weights are frozen, and a product of two matrices of this
    width is trained for each projection (queries, keys and values are one) and merged into the model that is kept. 0:
    the whole model is trained.
    """
    lora_alpha: float | None = None
    """The product of LoRA's matrices is multiplied by lora_alpha / lora_rank."""
    lora_projections: tuple[str, ...] = PROJECTIONS
    """The projections of each layer that LoRA adapts."""

    def __post_init__(self) -> None:
        for name in _POSITIVE.split(","):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise TransduceError(f"`training.{name}` must be greater than 0, but is {value}.")
        if self.batch_tokens is not None and self.batch_size is not None:
            raise TransduceError(
                f"`training.batch_size` ({self.batch_size:,}) and `training.batch_tokens` ({self.batch_tokens:,}) set "
                "the same: set one of them."
            )
        for name in _NOT_NEGATIVE.split(","):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise TransduceError(f"`training.{name}` must not be negative, but is {value}.")
        if self.learning_rate is not None and not self.learning_rate <= _MAX_LEARNING_RATE:
            raise TransduceError(
                f"`training.learning_rate` must be at most {_MAX_LEARNING_RATE:g}, but is {self.learning_rate:g}."
            )
        if self.seed >= 2**63:
            raise TransduceError(f"`training.seed` must be below 2 to the power of 63, but is {self.seed}.")
        for name in _SHARES.split(","):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share < 1.0:
                raise TransduceError(f"`training.{name}` must be in [0, 1), but is {share}.")
        if self.best_by in ("bleu", "chrf", "exact_match") and not self.translate_dev:
            raise TransduceError(
                f"`training.best_by` is `{self.best_by}`, which needs translations, but `training.translate_dev` is 0: "
                "raise it, or choose `loss`."
            )
        if self.bpe_dropout and self.unigram_alpha is not None:
            raise TransduceError(
                "`training.bpe_dropout` is for a BPE vocabulary and `training.unigram_alpha` for a unigram model: set "
                "only one of them."
            )
        self._check_length()
        self._check_average()
        self._check_execution()
        self._check_lora()

    def _check_average(self) -> None:
        if self.average_checkpoints and self.average_decay:
            raise TransduceError(
                f"`training.average_checkpoints` ({self.average_checkpoints}) and `training.average_decay` "
                f"({self.average_decay:g}) both set how weights are averaged: set only one of them."
            )
        if self.average_checkpoints and self.lora_rank:
            raise TransduceError(
                f"`training.average_checkpoints` ({self.average_checkpoints}) averages whole weights, but with "
                f"`training.lora_rank` ({self.lora_rank}) checkpoints hold narrow matrices: leave one of them out."
            )
        if self.average_checkpoints and self.minutes is not None and self.save_every is None:
            raise TransduceError(
                f"`training.average_checkpoints` ({self.average_checkpoints}) averages checkpoints at equal distances, "
                "but with `training.minutes` their distance follows the clock: set `training.save_every`."
            )

    def _check_length(self) -> None:
        if self.steps is not None and self.minutes is not None:
            raise TransduceError(
                f"`training.steps` ({self.steps}) and `training.minutes` ({self.minutes}) both set when to stop: "
                "set only one of them."
            )
        if self.time_plan and self.minutes is None:
            raise TransduceError(
                "`training.time_plan` repeats a run with `training.minutes`, which is not set: leave it out."
            )
        before, end = 0, None
        for step, steps, validations in self.time_plan:
            if not before < step < steps or validations < 1 or (end is not None and step >= end):
                raise TransduceError(
                    f"`training.time_plan` holds {[step, steps, validations]}, which no clock decides: copy the plan "
                    "from the settings of the run."
                )
            before, end = step, steps

    def _check_execution(self) -> None:
        if self.compile and self.sharded:
            raise TransduceError("`training.compile` and `training.sharded` do not go together: leave one of them out.")
        if self.compile and self.kernels == "native":
            raise TransduceError(
                "`training.compile` and `training.kernels` = native do not go together, as compiled layers use "
                "their own kernels: leave one of them out."
            )

    def _check_lora(self) -> None:
        if self.optimizer == "muon" and self.lora_rank:
            raise TransduceError(
                f"`training.optimizer` is muon, which updates full matrices, but with `training.lora_rank` "
                f"({self.lora_rank}) only narrow matrices are trained: set only one of them."
            )
        if not self.lora_rank and self.lora_alpha is not None:
            raise TransduceError(
                f"`training.lora_alpha` ({self.lora_alpha:g}) means nothing where `training.lora_rank` is 0: set both."
            )
        if not self.lora_rank and self.lora_projections != PROJECTIONS:
            raise TransduceError(
                "`training.lora_projections` means nothing where `training.lora_rank` is 0: set both, or leave it out."
            )
        check_projections(self.lora_projections)
        if self.lora_rank and self.sharded:
            raise TransduceError(
                f"`training.sharded` distributes the optimizer state, but `training.lora_rank` "
                f"({self.lora_rank}) makes it negligible: leave one of them out."
            )


def check_projections(projections: Sequence[str]) -> None:
    """Refuse names of projections for LoRA that are not in `PROJECTIONS`.

    Raises:
        TransduceError: a name is unknown, or there are no names.
    """
    unknown = [name for name in projections if name not in PROJECTIONS]
    if unknown or not projections:
        raise TransduceError(
            f"`training.lora_projections` must name some of {', '.join(PROJECTIONS)}, but names "
            f"{unknown[0] if unknown else 'none'}."
        )


class ResolvedTraining(TrainingSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a training run after all defaults have been chosen.

    If `minutes` is set, `steps` is None until the speed of training is known. A default `weight_decay` is None until
    then, too, because it depends on the number of steps.
    """

    batch_tokens: int
    accumulate: int
    optimizer: OptimizerName
    learning_rate: float
    schedule: ScheduleName
    warmup_steps: int
    label_smoothing: float
    precision: Precision
    kernels: Kernels
    cuda_graphs: bool
    average_decay: float
    adapt_dropout: bool
    best_by: BestBy
    patience: int
