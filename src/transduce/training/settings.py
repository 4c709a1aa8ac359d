"""Settings of a training run. None stands for "choose from the corpus and the machine"."""

from typing import Literal

import msgspec

from transduce.errors import TransduceError
from transduce.model.precision import Precision
from transduce.training.schedule import ScheduleName

Kernels = Literal["native", "torch"]
OptimizerName = Literal["adam", "muon"]
BestBy = Literal["loss", "bleu", "chrf", "exact_match", "accuracy", "f1", "skill"]
# What LoRA can adapt in a layer.
PROJECTIONS = ("queries-keys-values", "attention-output", "feed-forward-inner", "feed-forward-outer")
# Beyond it even Adam's steps leave the range of float32.
_MOST_LEARNING_RATE = 1e6


class TrainingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a model is trained. `training.*` in a settings file."""

    # All random numbers of a run follow from it.
    seed: int = 1
    # Parameter updates in all, also when a run is resumed.
    steps: int | None = None
    # In place of steps: training time. Becomes a number of steps once the rate is known.
    minutes: float | None = None
    # Non-padding target tokens of one step: all micro-batches, all processes.
    batch_tokens: int | None = None
    # A step is cut into so many micro-batches, whose gradients are added.
    accumulate: int | None = None
    # adam: the paper's (section 5.3); muon: layers' matrices move by their gradient's momentum made orthogonal (Jordan
    # et al. 2024), and Adam takes the rest.
    optimizer: OptimizerName | None = None
    learning_rate: float | None = None
    schedule: ScheduleName | None = None
    warmup_steps: int | None = None
    # Muon: decay of the mean of the gradients.
    momentum: float = 0.95
    # Adam: decay of the mean of the gradients, and of their squares, and what is added to the divisor.
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float | None = None
    # Gradients are scaled down to this norm; 0 leaves them.
    clip_norm: float = 1.0
    label_smoothing: float | None = None
    precision: Precision | None = None
    # Layers are compiled before training (on a GPU), in place of kernels of our own; takes a minute at the start.
    compile: bool = False
    # What PyTorch takes several passes for is done in one, by code of our own for this processor or GPU, or not.
    kernels: Kernels | None = None
    # Steps on a GPU are recorded and played again, in place of being launched operation by operation. Of several
    # processes each does that for itself, and they exchange gradients after it.
    record: bool | None = None
    # With several processes: each holds a part of the parameters and of the optimiser's state, where the whole does not
    # fit. Otherwise each holds all.
    sharded: bool = False
    # The model that is kept is an average over the last steps: weights of the past count by average_decay per step.
    # 0 keeps the weights as they are.
    average_decay: float | None = None
    # Dropout is turned off where the text that was just learnt from is told worse without it.
    adapt_dropout: bool | None = None
    # Steps between events.
    report_every: int = 50
    validate_every: int | None = None
    save_every: int | None = None
    # The model that scores best by this on the dev set is kept; training stops after so many validations without a
    # better one (0: never).
    best_by: BestBy | None = None
    patience: int | None = None
    # Dev sentences translated at each validation, greedily; 0 translates none.
    translate_dev: int = 500
    # Checkpoints kept, the newest ones.
    keep_checkpoints: int = 2
    # LoRA (Hu et al. 2022), with `--from`: the model's weights stay, and what learns is a product of two matrices of
    # this width beside each projection (queries, keys and values, one matrix, share one), which is added to it in the
    # model that is kept. 0: the whole model learns.
    lora_rank: int = 0
    # The product is multiplied by lora_alpha / lora_rank.
    lora_alpha: float | None = None
    # The projections of each layer that get one.
    lora_projections: tuple[str, ...] = PROJECTIONS

    def __post_init__(self) -> None:
        positive = {
            "steps": self.steps,
            "minutes": self.minutes,
            "batch_tokens": self.batch_tokens,
            "accumulate": self.accumulate,
            "learning_rate": self.learning_rate,
            "report_every": self.report_every,
            "validate_every": self.validate_every,
            "save_every": self.save_every,
            "keep_checkpoints": self.keep_checkpoints,
            "lora_alpha": self.lora_alpha,
            "epsilon": self.epsilon,
        }
        for name, value in positive.items():
            if value is not None and not value > 0:
                raise TransduceError(f"`training.{name}` must be greater than 0, but is {value}.")
        for name in ("seed", "warmup_steps", "weight_decay", "clip_norm", "patience", "translate_dev", "lora_rank"):
            least = getattr(self, name)
            if least is not None and not least >= 0:
                raise TransduceError(f"`training.{name}` must not be negative, but is {least}.")
        if self.learning_rate is not None and not self.learning_rate <= _MOST_LEARNING_RATE:
            raise TransduceError(
                f"`training.learning_rate` must be at most {_MOST_LEARNING_RATE:g}, but is {self.learning_rate:g}."
            )
        if self.seed >= 2**63:
            raise TransduceError(f"`training.seed` must be below 2 to the power of 63, but is {self.seed}.")
        for name in ("label_smoothing", "average_decay", "momentum", "beta1", "beta2"):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share < 1.0:
                raise TransduceError(f"`training.{name}` must be in [0, 1), but is {share}.")
        if self.best_by in ("bleu", "chrf", "exact_match", "f1") and not self.translate_dev:
            raise TransduceError(
                f"`training.best_by` is `{self.best_by}`, which needs translations, but `training.translate_dev` is 0: "
                "raise it, or choose `loss`."
            )
        if self.steps is not None and self.minutes is not None:
            raise TransduceError(
                f"`training.steps` ({self.steps}) and `training.minutes` ({self.minutes}) both say when to stop: "
                "give one of them."
            )
        if self.optimizer == "muon" and self.lora_rank:
            raise TransduceError(
                f"`training.optimizer` is muon, which moves whole matrices, but of these `training.lora_rank` "
                f"({self.lora_rank}) lets a narrow product learn: leave one of them out."
            )
        self._check_lora()

    def _check_lora(self) -> None:
        if not self.lora_rank and self.lora_alpha is not None:
            raise TransduceError(
                f"`training.lora_alpha` ({self.lora_alpha:g}) means nothing where `training.lora_rank` is 0: give both."
            )
        if not self.lora_rank and self.lora_projections != PROJECTIONS:
            raise TransduceError(
                "`training.lora_projections` means nothing where `training.lora_rank` is 0: give both, or leave it out."
            )
        unknown = [name for name in self.lora_projections if name not in PROJECTIONS]
        if unknown or not self.lora_projections:
            raise TransduceError(
                f"`training.lora_projections` must name some of {', '.join(PROJECTIONS)}, but names "
                f"{unknown[0] if unknown else 'none'}."
            )
        if self.compile and self.sharded:
            raise TransduceError("`training.compile` and `training.sharded` do not go together: leave one of them out.")
        if self.compile and self.kernels == "native":
            raise TransduceError(
                "`training.compile` and `training.kernels` = native do not go together, for compiled layers have "
                "kernels of theirs: leave one of them out."
            )
        if self.lora_rank and self.sharded:
            raise TransduceError(
                f"`training.sharded` cuts the optimiser's state into parts, of which `training.lora_rank` "
                f"({self.lora_rank}) leaves next to none: leave one of them out."
            )


class ResolvedTraining(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The same with nothing left to choose; `steps` is None until `minutes` has become a number of steps, and
    `weight_decay` where it follows from that number.
    """

    seed: int
    steps: int | None
    minutes: float | None
    batch_tokens: int
    accumulate: int
    optimizer: OptimizerName = "adam"
    learning_rate: float
    schedule: ScheduleName
    warmup_steps: int
    momentum: float = 0.95
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float | None = 0.0
    clip_norm: float
    label_smoothing: float
    precision: Precision
    compile: bool = False
    kernels: Kernels = "torch"
    record: bool = False
    sharded: bool = False
    average_decay: float
    adapt_dropout: bool = False
    report_every: int
    validate_every: int | None
    save_every: int | None
    best_by: BestBy
    patience: int
    translate_dev: int
    keep_checkpoints: int
    lora_rank: int = 0
    lora_alpha: float | None = None
    lora_projections: tuple[str, ...] = PROJECTIONS
