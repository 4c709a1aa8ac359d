"""Choose default settings from the corpus and the machine, each by a function that also gives the reason.

The rules are functions of the size of the corpus, fitted to published recipes and to our own sweeps
(docs/results.md).
"""

import math
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from transduce.acceleration import why_no_kernels, why_no_triton
from transduce.errors import count_noun
from transduce.evaluation.scores import BLEU_WORDS
from transduce.machine import Precision
from transduce.training import PRESET_SIZES
from transduce.training.schedule import MAX_DECAY, TOTAL_DECAY, ScheduleName, constant_weight_decay, paper_peak
from transduce.training.settings import BestBy, Kernels, OptimizerName
from transduce.ui_language import localized

T = TypeVar("T")

CHOSEN_PRESETS = ("tiny", "small", "base", "big")
_TOKENS_PER_PARAMETER = 3
_LARGE_BATCH = 4_096  # target tokens
_PAPER_WARMUP_STEPS = 4_000
_MICRO_BATCH_ELEMENTS = 2**20  # target tokens × d_model
_SMALLEST_MICRO_BATCH = 2_048  # target tokens
_EPOCHS_OF_USUAL_DROPOUT = 60
MIN_STEPS = 300  # of a run whose steps are chosen by epochs


class Choice(msgspec.Struct, Generic[T], frozen=True):
    """The value that was chosen for a setting, and the reason for it, which the run prints."""

    value: T
    reason: str


class CorpusSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a corpus, from which the size of its vocabulary follows."""

    pairs: int
    unspaced_characters: int
    """Distinct characters of scripts written without spaces (Han, Kana, Thai, …) that occur often enough to learn."""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a model, such as its layers and width, with its dropout and order of normalization."""

    num_encoder_layers: int
    num_decoder_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    dropout: float
    norm_order: str = "pre"


PRESETS = {name: Preset(**sizes) for name, sizes in PRESET_SIZES.items()}


def choose_preset(pairs: int, noun: str = "pair") -> Choice[str]:
    """Choose the model size from the number of sentence pairs, or of other examples.

    The size is tiny below 50,000 pairs, small below 1,000,000, base below 10,000,000, and otherwise big. Small corpora
    train small models best: on Multi30k's 29,000 pairs, 4+4 layers of width 128 beat 6+6 of width 512 by 2.7 BLEU (Wu
    et al. 2021, "Good for Misconceived Reasons", Table 2).

    Returns:
        A `Choice`: the preset's name and the reason, in which `noun` names the examples.
    """
    for limit, preset in ((50_000, "tiny"), (1_000_000, "small"), (10_000_000, "base")):
        if pairs < limit:
            return Choice(preset, f"{count_noun(pairs, noun)}, fewer than {limit:,}")
    return Choice("big", f"{count_noun(pairs, noun)}, 10,000,000 or more")


def choose_preset_in_time(
    suited: Choice[str], *, minutes: float, operations_per_second: float, vocabulary_size: int
) -> Choice[str]:
    """Choose the largest preset that can be trained in the time budget.

    The preset is at most as large as the one that suits the corpus (`suited`). In the time, training must read at least
    three target tokens per parameter. If it reads fewer, a smaller model that reads more is better. The limit follows
    from the loss function that Hoffmann et al. 2022 fitted ("Training Compute-Optimal Large Language Models", approach
    3).

    A step computes 6 operations per token and parameter, forward and backward. The operations per second are a round
    number for the kind of machine, not a measurement, so that the same command always chooses the same model.

    Returns:
        A `Choice`: the preset's name and the reason. If the time is too short for every preset, the smallest is chosen.
    """
    read = {}
    for name in reversed(CHOSEN_PRESETS[: CHOSEN_PRESETS.index(suited.value) + 1]):
        parameters = count_multiplied_weights(PRESETS[name], vocabulary_size)
        read[name] = tokens_in_time(parameters, minutes=minutes, operations_per_second=operations_per_second)
        if read[name] >= _TOKENS_PER_PARAMETER * parameters:
            break
    if name == suited.value:
        return suited
    return Choice(
        name,
        f"{suited.reason}, suit {suited.value}, but {minutes:g} min are too short for it: it would read about "
        f"{read[suited.value]:.1g} target tokens, and this one {read[name]:.1g}",
    )


def tokens_in_time(parameters: int, *, minutes: float, operations_per_second: float) -> float:
    """Return how many target tokens training reads in `minutes`, at 6 operations per token and parameter."""
    return operations_per_second * minutes * 60.0 / (6 * parameters)


def count_multiplied_weights(preset: Preset, vocabulary_size: int) -> int:
    """Return the number of weights that multiply each token: those of all layers and of the output projection."""
    attention, feed_forward = 4 * preset.d_model**2, 2 * preset.d_model * preset.d_ff
    encoder = preset.num_encoder_layers * (attention + feed_forward)
    decoder = preset.num_decoder_layers * (2 * attention + feed_forward)
    return encoder + decoder + preset.d_model * vocabulary_size


_SMALLEST_VOCABULARY, _LARGEST_VOCABULARY = 400, 40_000


def choose_vocabulary_size(size: CorpusSize) -> Choice[int]:
    """Choose the vocabulary size: about 70 × pairs^0.4, between 400 and 40,000.

    The size is 4,000 for 25,000 pairs, 8,500 for 165,000 and 32,000 for 4.5 million (the paper: 37,000), since tokens
    must be frequent enough to be learned (Gowda and May 2020, "Finding the Optimal Vocabulary Size"). Characters of
    scripts without spaces are added, since each is a token.

    Returns:
        A `Choice`: the size and the reason.
    """
    by_size = 70.0 * size.pairs**0.4
    chosen = by_size + size.unspaced_characters
    rounded = min(_LARGEST_VOCABULARY, max(_SMALLEST_VOCABULARY, round(chosen / 100) * 100))
    reason = f"70 × {size.pairs:,}^0.4 = {by_size:,.0f}"
    if size.unspaced_characters:
        reason += f", and {size.unspaced_characters:,} characters of a script without spaces"
    elif not _SMALLEST_VOCABULARY <= by_size <= _LARGEST_VOCABULARY:
        reason += f" {'<' if by_size < rounded else '>'} {rounded:,}"
    return Choice(rounded, reason)


def choose_batch_tokens(epoch_tokens: int, device: str) -> Choice[int]:
    """Choose the target tokens per step: 2,048 on a CPU, and the paper's 25,000 on a GPU (section 5.1).

    A CPU takes few steps in acceptable time. In the same two epochs, half as many steps of twice the size gave 41.5
    BLEU instead of 42.8, and smaller steps leave threads idle (docs/results.md). If an epoch would have fewer than 50
    steps, a step has fewer tokens, but at least 512.

    Returns:
        A `Choice`: the number and the reason.
    """
    if not device.startswith("cuda"):
        return _fewer_for_small_corpora(epoch_tokens, Choice(2_048, "many small steps learn fastest on a CPU"))
    return _fewer_for_small_corpora(epoch_tokens, Choice(25_000, "a GPU works best on large steps"))


def choose_accumulate(batch_tokens: int, d_model: int, precision: Precision, device: str) -> Choice[int]:
    """Choose the number of micro-batches per step: one on a GPU, several on a CPU to save memory.

    On a CPU each micro-batch has at most max(2,048, 2^20 / d_model) target tokens: activations kept for the backward
    pass take half of the memory of a large step, and micro-batches are hardly slower (docs/results.md). In bfloat16 a
    micro-batch has twice as many tokens, as each token takes less memory and the fixed cost per micro-batch weighs
    more.

    Returns:
        A `Choice`: the number and the reason.
    """
    limit = max(_SMALLEST_MICRO_BATCH, _MICRO_BATCH_ELEMENTS // d_model) * (2 if precision == "bf16" else 1)
    if device.startswith("cuda") or batch_tokens <= limit:
        return Choice(1, "a step at once")
    return Choice(-(-batch_tokens // limit), f"at most {limit:,} tokens at once, for less memory")


def choose_language_model_batch_tokens(epoch_tokens: int, device: str) -> Choice[int]:
    """Choose the tokens per step of a language model: 4,096 on a CPU, 25,000 on a GPU.

    If an epoch would have fewer than 50 steps, a step has fewer tokens, but at least 512.

    Returns:
        A `Choice`: the number and the reason.
    """
    if not device.startswith("cuda"):
        return _fewer_for_small_corpora(epoch_tokens, Choice(4_096, "what a CPU takes in about a second"))
    return choose_batch_tokens(epoch_tokens, device)


def _fewer_for_small_corpora(epoch_tokens: int, usual: Choice[int]) -> Choice[int]:
    """Return the `usual` tokens per step, or fewer if an epoch would have fewer than 50 steps; at least 512.

    Both `usual` and the result are a `Choice`.
    """
    limit = max(512, epoch_tokens // 50)
    if limit >= usual.value:
        return usual
    return Choice(limit, f"50 steps an epoch of {epoch_tokens:,} tokens, but not fewer than 512 tokens")


def choose_epochs(pairs: int, noun: str = "pair") -> Choice[float]:
    """Choose the number of epochs: 100 × (30,000 / pairs)^0.6, between 5 and 150.

    The number is 102 for Multi30k's 29,000 pairs (Wu et al. 2021 train 8,000 steps of 8,192 tokens, about 150 epochs),
    36 for 165,000, and 5 for 4.5 million (the paper's 100,000 steps of 25,000 tokens are about 17).

    Returns:
        A `Choice`: the number and the reason, in which `noun` names the examples.
    """
    epochs = 100.0 * (30_000 / pairs) ** 0.6
    return Choice(min(150.0, max(5.0, epochs)), f"100 × (30,000 / {count_noun(pairs, noun)})^0.6, between 5 and 150")


def at_least(least: int, steps: int, reason: str) -> Choice[int]:
    """Return a `Choice` of a number of steps, raised to `least` if it is smaller; `reason` explains the number."""
    return Choice(steps, reason) if steps >= least else Choice(least, f"at least {least}; {reason} are {steps:,}")


def choose_steps(pairs: int, epoch_tokens: int, batch_tokens: int, noun: str = "pair") -> Choice[int]:
    """Choose the number of steps of the epochs that `choose_epochs` returns, but at least 300.

    Returns:
        A `Choice`: the number and the reason, in which `noun` names the examples.
    """
    epochs = choose_epochs(pairs, noun)
    steps = round(epochs.value * epoch_tokens / batch_tokens)
    if steps < MIN_STEPS:
        return at_least(MIN_STEPS, steps, f"about {epochs.value:.0f} epochs")
    return Choice(steps, f"about {epochs.value:.0f} epochs: {epochs.reason}")


def choose_language_model_preset(tokens: int) -> Choice[str]:
    """Choose the size of a language model from the number of its training tokens.

    The size is tiny below 5,000,000 tokens, small below 50,000,000, base below 1,000,000,000, and otherwise big. A
    model then has about as many parameters as there are tokens, or half as many.

    Returns:
        A `Choice`: the preset's name and the reason.
    """
    for limit, preset in ((5_000_000, "tiny"), (50_000_000, "small"), (1_000_000_000, "base")):
        if tokens < limit:
            return Choice(preset, f"{tokens:,} tokens of text, fewer than {limit:,}")
    return Choice("big", f"{tokens:,} tokens of text, 1,000,000,000 or more")


def choose_language_model_steps(epoch_tokens: int, batch_tokens: int) -> Choice[int]:
    """Choose the steps of a language model: 20 × √(1,000,000 / tokens) epochs, between 1 and 40, at least 300 steps.

    A text can be repeated about four times with almost the benefit of new text (Muennighoff et al. 2023); small corpora
    must be repeated more often.

    Returns:
        A `Choice`: the number of steps and the reason.
    """
    epochs = min(40.0, max(1.0, 20.0 * (1_000_000 / max(1, epoch_tokens)) ** 0.5))
    steps = round(epochs * epoch_tokens / batch_tokens)
    return at_least(MIN_STEPS, steps, f"about {epochs:.0f} epochs of {epoch_tokens:,} tokens")


def choose_dropout(preset: str, epochs: float) -> Choice[float]:
    """Choose the dropout probability: the preset's for 60 or more epochs, less for fewer.

    For fewer epochs it is multiplied by √(epochs / 60) (docs/results.md), with a minimum of 0.1, which the paper uses
    for 17 epochs. The paper's presets are not changed.

    Returns:
        A `Choice`: the probability and the reason.
    """
    usual, lowest = PRESETS[preset].dropout, PRESETS["paper-base"].dropout
    share = math.sqrt(epochs / _EPOCHS_OF_USUAL_DROPOUT)
    if preset not in CHOSEN_PRESETS or share >= 1.0 or usual <= lowest:
        return Choice(usual, f"preset {preset}")
    of_epochs = f"{usual:g} × √(about {epochs:.1f} / {_EPOCHS_OF_USUAL_DROPOUT} epochs)"
    if usual * share < lowest:
        return Choice(lowest, f"the minimum; {of_epochs} would be less")
    return Choice(round(usual * share, 2), of_epochs)


def choose_label_smoothing(kind: str, smoothing: float) -> Choice[float]:
    """Choose the label smoothing of a task: its default value `smoothing`.

    The default is the paper's 0.1 (section 5.4) for tasks that generate one text from another: translation, denoising
    and parsing. It is 0 for language models, masked or not, for classification, tagging and time series.

    Returns:
        A `Choice`: the value and the reason.
    """
    return Choice(smoothing, f"usual for `task.kind` {kind}")


def choose_optimizer(model_kind: str, norm_order: str, *, init_from: str | None) -> Choice[OptimizerName]:
    """Choose Muon for pre-norm layers with random initial weights, otherwise Adam.

    Muon needs half of Adam's steps (docs/results.md). The paper's post-norm models, recurrent models and models with
    pretrained weights (`--init-from`) use Adam. The tasks of encoders make an exception: classifiers and taggers that
    start from a small masked language model use Muon (docs/bert.md).

    Returns:
        A `Choice`: the optimizer's name and the reason.
    """
    if model_kind == "recurrent":
        return Choice("adam", "recurrent cells have no Transformer layers for Muon")
    if norm_order != "pre":
        return Choice("adam", f"the paper's, section 5.3, as the model has `norm_order` {norm_order}")
    if init_from is not None:
        return Choice("adam", f"the weights of {init_from} were trained before")
    return Choice("muon", "needs half of Adam's steps where pre-norm layers learn from random weights")


def choose_learning_rate(
    d_model: int,
    schedule: ScheduleName,
    warmup_steps: int,
    batch_tokens: int = _LARGE_BATCH,
    optimizer: OptimizerName = "adam",
) -> Choice[float]:
    """Choose the peak learning rate: 0.5 / d_model for Adam and 1 / d_model for Muon.

    Wider models need smaller steps. If a step has fewer than 4,096 tokens, the rate is multiplied by √(tokens / 4,096),
    as Adam needs (Malladi et al. 2022). This does not apply to language models and time series.

    With the paper's schedule, the rate is the peak of the paper's equation (3). A warm-up of fewer than 4,000 steps
    would have a higher peak, at which a post-norm model diverges. The rate is then the peak for 4,000 steps.

    Returns:
        A `Choice`: the rate and the reason.
    """
    if schedule == "inverse-sqrt":
        after = max(warmup_steps, _PAPER_WARMUP_STEPS)
        return Choice(paper_peak(d_model, after), f"the peak of the paper's equation (3) with {after:,} warm-up steps")
    share = 1.0 if optimizer == "muon" else 0.5
    if batch_tokens >= _LARGE_BATCH:
        return Choice(share / d_model, f"{share:g} / d_model ({d_model})")
    rate = share / d_model * math.sqrt(batch_tokens / _LARGE_BATCH)
    return Choice(rate, f"{share:g} / d_model ({d_model}) × √({batch_tokens:,} / {_LARGE_BATCH:,} tokens)")


def choose_weight_decay(
    optimizer: OptimizerName,
    schedule: ScheduleName,
    learning_rate: float,
    warmup_steps: int,
    steps: int | None,
    fine_tuning_rate: float = 0.0,
) -> Choice[float | None]:
    """Choose the weight decay: 0 with Adam, as in the paper; with Muon it depends on the length of the run.

    With Muon, the sum of rate × decay over the run is 1.3: the longer the run, the smaller the decay of each step
    (docs/results.md). Decayed weights are an average over the last 1 / (rate × decay) updates, which should be as long
    as the run or somewhat shorter (Wang and Aitchison 2024, "How to set AdamW's weight decay as you scale model and
    dataset size").

    For a base model, the default rate is `fine_tuning_rate`. At a lower rate, rate × decay is lower in the same
    proportion, so that the model keeps more of its weights.

    Returns:
        A `Choice`: the decay and the reason. While the number of steps is not known, Muon's decay is None, or 0 for a
        base model at a lower rate.
    """
    if optimizer != "muon":
        return Choice(0.0, "the paper has none")
    if learning_rate < fine_tuning_rate:
        if steps is None:
            return Choice(0.0, "keeps the base model's weights, as its rate is lower than the default")
        decay = constant_weight_decay(steps, schedule=schedule, peak=fine_tuning_rate, warmup_steps=warmup_steps)
        reason = f"that of {steps:,} steps at the default rate {fine_tuning_rate:.2g}, as this one is lower"
        return Choice(decay, reason)
    if steps is None:
        reason = f"{TOTAL_DECAY:g} / the sum of all steps' learning rates, once the number of steps is known"
        return Choice(None, reason)
    decay = constant_weight_decay(steps, schedule=schedule, peak=learning_rate, warmup_steps=warmup_steps)
    reason = f"{TOTAL_DECAY:g} / the sum of the learning rates of {steps:,} steps"
    if decay == MAX_DECAY / learning_rate:
        reason += f", at most {MAX_DECAY:g} / the highest"
    return Choice(decay, reason)


def choose_fine_tuning_rate(d_model: int) -> Choice[float]:
    """Choose the peak learning rate for continuing the weights of a base model (`--init-from`): 0.05 / d_model.

    The rate is a tenth of what random weights need (6.5e-5 at BERT's width, whose authors used 2e-5 to 5e-5). LoRA's
    matrices count as random weights.

    Returns:
        A `Choice`: the rate and the reason.
    """
    return Choice(0.05 / d_model, f"0.05 / d_model ({d_model}): training continues the weights of a base model")


def choose_schedule(norm_order: str) -> Choice[ScheduleName]:
    """Choose the paper's schedule for its post-norm model, otherwise a linear decay to zero at the last step.

    Returns:
        A `Choice`: the schedule's name and the reason.
    """
    if norm_order == "post":
        return Choice("inverse-sqrt", "the paper's schedule, section 5.3")
    return Choice("linear", "falls to zero at the last step")


def choose_warmup_steps(steps: int | None) -> Choice[int]:
    """Choose the number of warm-up steps: the paper's 4,000, but at most a tenth of the run.

    In a run of fewer than 500 steps, a tenth is too short. The number is then 50, but at most half of the run. While
    the length of the run is not known, the number is 500.

    Returns:
        A `Choice`: the number and the reason.
    """
    if steps is None:
        return Choice(500, "the number of steps is not known yet")
    if steps >= 10 * _PAPER_WARMUP_STEPS:
        return Choice(_PAPER_WARMUP_STEPS, "the paper's 4,000")
    if steps >= 500:
        return Choice(steps // 10, f"a tenth of {steps:,} steps")
    return Choice(max(1, min(50, steps // 2)), f"50, or half of {steps:,} steps")


def choose_average_decay(steps: int | None, average_checkpoints: int = 0) -> Choice[float]:
    """Choose the decay of the moving average of the weights: it covers about the last twentieth of the steps.

    The average covers at least 10 and at most 5,000 steps, and 500 if the number of steps is not known. The paper
    averages its last checkpoints instead (section 6.1); with `training.average_checkpoints` the decay is 0.

    Returns:
        A `Choice`: the decay and the reason.
    """
    if average_checkpoints:
        return Choice(0.0, f"the last {average_checkpoints} checkpoints are averaged instead")
    window = 500 if steps is None else min(5_000, max(10, steps // 20))
    return Choice(1.0 - 1.0 / window, f"an average over about the last {window:,} steps")


def choose_kernels(device: str, threads: int, *, compiled: bool = False) -> Choice[Kernels]:
    """Choose our own kernels where the machine supports them, otherwise PyTorch's.

    On a CPU our kernels need llvmlite and a supported processor. On a GPU they need Triton with its prerequisites (a C
    compiler and Python's headers) and an NVIDIA GPU of the Ampere generation or later. Layers compiled by
    `torch.compile` use their own kernels.

    Returns:
        A `Choice`: "native" or "torch", and the reason.
    """
    if device == "cpu":
        obstacle = why_no_kernels(threads)
        reason = "compiled for this processor; fuses the operations between matrix multiplications"
    else:
        obstacle = "layers compiled by torch.compile use their own kernels" if compiled else why_no_triton(device)
        reason = "written for GPUs; fuses the operations between matrix multiplications; no padding"
    return Choice("native", reason) if obstacle is None else Choice("torch", obstacle)


def choose_cuda_graphs(device: str, kernels: Kernels, processes: int) -> Choice[bool]:
    """Choose whether training steps are recorded as CUDA graphs: on a GPU with our own kernels and a single process.

    A step of the paper's base model then takes 23 ms instead of 42 (docs/results.md). Several processes do not record:
    they exchange gradients during the backward pass, which is faster over slow connections.

    Returns:
        A `Choice`: a boolean and the reason.
    """
    if device == "cpu":
        return Choice(value=False, reason="there is no GPU")
    if kernels == "torch":
        return Choice(value=False, reason="`training.kernels` is torch")
    if processes > 1:
        return Choice(value=False, reason="several processes exchange gradients meanwhile")
    return Choice(value=True, reason="the GPU does not wait for the launch of each operation")


def choose_best_by(translated: int, words: float = math.inf) -> Choice[BestBy]:
    """Choose the metric by which the best model is selected: BLEU, chrF or the loss on the dev set.

    BLEU keeps rising after the smoothed loss has reached its minimum, since translations still improve. chrF counts
    characters and is used where references have fewer than four words on average, as BLEU counts 4-grams. The loss is
    used if no dev sentence is translated. Other tasks choose otherwise: classification uses accuracy, parsing bracket
    F1, time series skill.

    Returns:
        A `Choice`: the metric's name and the reason.
    """
    if translated and words < BLEU_WORDS:
        return Choice("chrf", f"dev references have {words:.1f} words on average, and BLEU counts {BLEU_WORDS}-grams")
    if translated:
        return Choice("bleu", f"of {translated:,} dev sentences at most, translated at each validation")
    return Choice("loss", "no dev sentence is translated")


def choose_patience() -> Choice[int]:
    """Choose the patience: 6, half of a run's twelve validations, as the decay of the learning rate brings late gains.

    Returns:
        A `Choice`: the number of validations without a better one, and the reason.
    """
    return Choice(6, "validations without a better one")


# --- choice log ---


class LogEntry(msgspec.Struct, frozen=True):
    """An entry of the choice log: a setting, its value and the reason."""

    name: str
    """The setting's dotted name."""
    value: str
    """The value of the setting, as text."""
    reason: str
    """The reason why the value was chosen."""
    is_message: bool = False
    """True if the value is a message, which is shown in the user's language; False for a number, a name and other data.
    """

    @property
    def shown_value(self) -> str:
        """The value as it is shown to the user."""
        return localized(self.value) if self.is_message else self.value


class ChoiceLog:
    """A choice log: the settings of a run with their values and reasons, in the order of choosing."""

    def __init__(self, user_reason: str = "set by you", preset_reasons: Mapping[str, str] | None = None) -> None:
        """Create an empty log.

        Args:
            user_reason: the reason of settings that the user specified.
            preset_reasons: the reason of each setting that the preset specified, by dotted name.
        """
        self.lines: list[LogEntry] = []
        self._specified_reason, self._preset_reasons = user_reason, preset_reasons or {}

    def record(
        self, name: str, specified: T | None, choice: Choice[T] | None, *, is_message: bool = False, note: str = ""
    ) -> T:
        """Log a setting's value with its reason, and return the value: the specified one, or else that of `choice`.

        Args:
            name: the setting's dotted name.
            specified: the value that the user or a preset set; None: the value and its reason come from `choice`.
            choice: the default and its reason; not used with a specified value.
            is_message: the value of `choice` is a message, which is shown in the user's language.
            note: what the log adds to the reason of a specified value; empty: nothing.
        """
        if specified is not None:
            reason = self._preset_reasons.get(name, self._specified_reason)
            self.lines.append(LogEntry(name, _shown(specified), f"{reason}; {note}" if note else reason))
            return specified
        assert choice is not None
        self.lines.append(LogEntry(name, _shown(choice.value), choice.reason, is_message))
        return choice.value

    def amend(self, name: str, value: Any, reason: str) -> None:
        """Replace the value and the reason of a logged setting whose value has changed.

        An equal value changes nothing. "{}" in `reason` stands for the old value.
        """
        for index, line in enumerate(self.lines):
            if line.name == name and line.value != _shown(value):
                self.lines[index] = LogEntry(name, _shown(value), reason.format(line.value))


def _shown(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
