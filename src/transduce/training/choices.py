"""Settings chosen from the corpus and the machine. Each rule is a function that says why.

The rules are laws in the size of the corpus, fitted to published recipes and to our own sweeps (docs/benchmarks.md).
"""

import math
from typing import Generic, TypeVar

import msgspec

from transduce.evaluation.scores import BLEU_WORDS
from transduce.model.fast import why_no_kernels
from transduce.model.gpu.available import why_no_triton
from transduce.model.precision import Precision
from transduce.training.rates import MOST_DECAY, TOTAL_DECAY, decay_over
from transduce.training.schedule import ScheduleName, paper_peak
from transduce.training.settings import BestBy, Kernels, OptimizerName

T = TypeVar("T")

_ASCENDING = ("tiny", "small", "base", "big")
_PIECES_A_PARAMETER = 3
_LARGE_BATCH = 4_096  # target tokens
_PAPER_WARMUP_STEPS = 4_000
_PART_NUMBERS = 2**20  # target tokens × d_model
_SMALLEST_PART = 2_048  # target tokens
_EPOCHS_OF_USUAL_DROPOUT = 60


class Choice(msgspec.Struct, Generic[T], frozen=True):
    """A value and the reason for it."""

    value: T
    reason: str


class CorpusSize(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules know of a corpus before it is cut into pieces."""

    pairs: int
    unspaced_characters: int
    """Distinct characters of scripts written without spaces (Han, Kana, Thai, …) that occur often enough to learn."""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a model (Table 3 of the paper)."""

    num_encoder_layers: int
    num_decoder_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    dropout: float
    norm_order: str = "pre"


PRESETS = {
    "tiny": Preset(num_encoder_layers=4, num_decoder_layers=4, d_model=128, d_ff=256, num_heads=4, dropout=0.3),
    "small": Preset(num_encoder_layers=6, num_decoder_layers=6, d_model=256, d_ff=1024, num_heads=4, dropout=0.2),
    "base": Preset(num_encoder_layers=6, num_decoder_layers=6, d_model=512, d_ff=2048, num_heads=8, dropout=0.1),
    "big": Preset(num_encoder_layers=6, num_decoder_layers=6, d_model=1024, d_ff=4096, num_heads=16, dropout=0.3),
    "paper-base": Preset(
        num_encoder_layers=6,
        num_decoder_layers=6,
        d_model=512,
        d_ff=2048,
        num_heads=8,
        dropout=0.1,
        norm_order="post",
    ),
    "paper-big": Preset(
        num_encoder_layers=6,
        num_decoder_layers=6,
        d_model=1024,
        d_ff=4096,
        num_heads=16,
        dropout=0.3,
        norm_order="post",
    ),
}


def choose_preset(pairs: int) -> Choice[str]:
    """tiny below 50,000 pairs, small below 1,000,000, base below 10,000,000, else big: few sentences train a small
    model best. On Multi30k's 29,000 pairs 4+4 × 128 beats 6+6 × 512 by 2.7 BLEU
    (Wu et al. 2021, "Good for Misconceived Reasons", Table 2).
    """
    for most, preset in ((50_000, "tiny"), (1_000_000, "small"), (10_000_000, "base")):
        if pairs < most:
            return Choice(preset, f"{pairs:,} pairs, fewer than {most:,}")
    return Choice("big", f"{pairs:,} pairs, 10,000,000 or more")


def choose_preset_in_time(
    suited: Choice[str], *, minutes: float, operations_per_second: float, vocabulary_size: int
) -> Choice[str]:
    """Where the minutes are given, the greatest preset, up to the one that suits the corpus, that reads at least three
    target pieces for each of its parameters: with less time a smaller model that reads more is better (Hoffmann et al.
    2022, "Training Compute-Optimal Large Language Models", by whose third law neighbouring presets are equal there).

    A step computes 6 operations for each piece and parameter, forth and back. How many the machine does in a second is
    a round number for its kind, not measured, so that the same command chooses the same model.
    """
    read = {}
    for name in reversed(_ASCENDING[: _ASCENDING.index(suited.value) + 1]):
        parameters = count_multiplied_weights(PRESETS[name], vocabulary_size)
        read[name] = pieces_in_time(parameters, minutes=minutes, operations_per_second=operations_per_second)
        if read[name] >= _PIECES_A_PARAMETER * parameters:
            break
    if name == suited.value:
        return suited
    return Choice(
        name,
        f"{suited.reason}, suit {suited.value}, but {minutes:g} minutes are too short for it: it would read about "
        f"{read[suited.value]:.1g} target pieces, and this one {read[name]:.1g}",
    )


def pieces_in_time(parameters: int, *, minutes: float, operations_per_second: float) -> float:
    """Target pieces that training reads: 6 operations for each piece and parameter."""
    return operations_per_second * minutes * 60.0 / (6 * parameters)


def count_multiplied_weights(preset: Preset, vocabulary_size: int) -> int:
    """Weights that each target piece and its source are multiplied by: layers, and the output."""
    attention, feed_forward = 4 * preset.d_model**2, 2 * preset.d_model * preset.d_ff
    encoder = preset.num_encoder_layers * (attention + feed_forward)
    decoder = preset.num_decoder_layers * (2 * attention + feed_forward)
    return encoder + decoder + preset.d_model * vocabulary_size


def choose_vocabulary_size(size: CorpusSize) -> Choice[int]:
    """About 70 × pairs^0.4, which is 4,000 for 25,000 pairs, 8,500 for 165,000 and 32,000 for 4.5 million (the paper:
    37,000), as frequent pieces must occur often enough to be learnt (Gowda and May 2020, "Finding the Optimal
    Vocabulary Size"). Characters of scripts without spaces come on top: each is a piece. It is
    at least 400 and at most 40,000.
    """
    by_size = 70.0 * size.pairs**0.4
    chosen = by_size + size.unspaced_characters
    rounded = min(40_000, max(400, round(chosen / 100) * 100))
    reason = f"70 × pairs^0.4 = {by_size:,.0f}"
    if size.unspaced_characters:
        reason += f", and {size.unspaced_characters:,} characters of a script without spaces"
    return Choice(rounded, reason)


def choose_batch_tokens(epoch_tokens: int, device: str) -> Choice[int]:
    """2,048 target tokens on a CPU, where time is short: with the same arithmetic, half as many steps of twice the size
    gave 41.5 BLEU for 42.8 after two epochs, and smaller ones keep several threads waiting (docs/benchmarks.md). The
    paper's 25,000 on a GPU (section 5.1). Fewer where an epoch would otherwise have less than 50 steps, but 512 at
    least.
    """
    if not device.startswith("cuda"):
        return _fewer_for_small_corpora(epoch_tokens, Choice(2_048, "many small steps learn fastest on a CPU"))
    return _fewer_for_small_corpora(epoch_tokens, Choice(25_000, "a GPU works best on large steps"))


def choose_accumulate(batch_tokens: int, d_model: int, precision: Precision, device: str) -> Choice[int]:
    """On a CPU so many parts that each has at most 2^20 / d_model target tokens, 2,048 at 512, but never fewer than
    2,048: what the backward pass reads takes half of the memory of a large step, and parts are hardly slower
    (docs/benchmarks.md). In bfloat16 a part has twice as many tokens, as a token takes less room and what each
    part costs a larger share of the time. A GPU takes a step at once.
    """
    most = max(_SMALLEST_PART, _PART_NUMBERS // d_model) * (2 if precision == "bf16" else 1)
    if device.startswith("cuda") or batch_tokens <= most:
        return Choice(1, "a step at once")
    return Choice(-(-batch_tokens // most), f"at most {most:,} tokens at once, for less memory")


def choose_language_model_batch_tokens(epoch_tokens: int, device: str) -> Choice[int]:
    """Of a language model, whose every piece is foretold: 4,096 on a CPU, 25,000 on a GPU, and fewer as for pairs."""
    if not device.startswith("cuda"):
        return _fewer_for_small_corpora(epoch_tokens, Choice(4_096, "what a CPU takes in about a second"))
    return choose_batch_tokens(epoch_tokens, device)


def _fewer_for_small_corpora(epoch_tokens: int, usual: Choice[int]) -> Choice[int]:
    most = max(512, epoch_tokens // 50)
    if most >= usual.value:
        return usual
    return Choice(most, f"50 steps an epoch of {epoch_tokens:,} tokens, but not fewer than 512 tokens")


def choose_epochs(pairs: int) -> Choice[float]:
    """100 × (30,000 / pairs)^0.6, between 5 and 150: 100 for Multi30k's 29,000 pairs (Wu et al. 2021 train 8,000 steps
    of 8,192 tokens, about 150 epochs), 36 for 165,000, 5 for 4.5 million (the paper: 100,000 steps of 25,000 tokens
    are about 17).
    """
    epochs = 100.0 * (30_000 / pairs) ** 0.6
    return Choice(min(150.0, max(5.0, epochs)), f"100 × (30,000 / {pairs:,} pairs)^0.6, between 5 and 150")


def choose_steps(pairs: int, epoch_tokens: int, batch_tokens: int) -> Choice[int]:
    """As many steps as the epochs need; 300 at least."""
    epochs = choose_epochs(pairs)
    steps = max(300, round(epochs.value * epoch_tokens / batch_tokens))
    return Choice(steps, f"{epochs.value:.0f} epochs: {epochs.reason}")


def choose_language_model_preset(tokens: int) -> Choice[str]:
    """Of a language model: as many parameters as the text can teach, about one for each piece or two. tiny below
    5,000,000 pieces, small below 50,000,000, base below 1,000,000,000, else big.
    """
    for most, preset in ((5_000_000, "tiny"), (50_000_000, "small"), (1_000_000_000, "base")):
        if tokens < most:
            return Choice(preset, f"{tokens:,} pieces of text, fewer than {most:,}")
    return Choice("big", f"{tokens:,} pieces of text, 1,000,000,000 or more")


def choose_language_model_steps(epoch_tokens: int, batch_tokens: int) -> Choice[int]:
    """Of a language model: 20 × √(1,000,000 / pieces) epochs, between 1 and 40; 300 steps at least. A text can be read
    about four times as if it were new each time (Muennighoff et al. 2023), and small ones must be read more often.
    """
    epochs = min(40.0, max(1.0, 20.0 * (1_000_000 / max(1, epoch_tokens)) ** 0.5))
    steps = max(300, round(epochs * epoch_tokens / batch_tokens))
    return Choice(steps, f"{epochs:.0f} epochs of {epoch_tokens:,} pieces")


def choose_dropout(preset: str, epochs: float) -> Choice[float]:
    """The preset's where texts are read 60 times or more. Those that are read less often need less: times the root of
    their epochs' share of 60 (docs/benchmarks.md), but 0.1 at least, as the paper has it for 17 epochs. The paper's
    presets keep theirs.
    """
    usual, least = PRESETS[preset].dropout, PRESETS["paper-base"].dropout
    share = math.sqrt(epochs / _EPOCHS_OF_USUAL_DROPOUT)
    if preset not in _ASCENDING or share >= 1.0 or usual <= least:
        return Choice(usual, f"preset {preset}")
    of_epochs = f"{usual:g} × √({epochs:.1f} / {_EPOCHS_OF_USUAL_DROPOUT} epochs)"
    if usual * share < least:
        return Choice(least, f"more than {of_epochs}, the least")
    return Choice(round(usual * share, 2), of_epochs)


def choose_label_smoothing(kind: str, smoothing: float) -> Choice[float]:
    """The paper's 0.1 (section 5.4) where a text is written from another: translation, denoising, parsing. 0 for
    language models, masked or not, for classification and for time series.
    """
    return Choice(smoothing, f"usual for `task.kind` {kind}")


def choose_optimizer(model_kind: str, norm_order: str, *, start_from: str | None) -> Choice[OptimizerName]:
    """Muon where pre-norm layers learn from random weights: it needs half of Adam's steps (docs/benchmarks.md). Adam
    for the paper's post-norm models and for recurrent ones, and for weights that were trained before (`--from`).
    """
    if model_kind == "recurrent":
        return Choice("adam", "recurrent cells have no layers' matrices")
    if norm_order != "pre":
        return Choice("adam", f"the paper's, section 5.3, as the model has `norm_order` {norm_order}")
    if start_from is not None:
        return Choice("adam", f"the weights of {start_from} were trained before")
    return Choice("muon", "needs half of Adam's steps where pre-norm layers learn from random weights")


def choose_learning_rate(
    d_model: int,
    schedule: ScheduleName,
    warmup_steps: int,
    batch_tokens: int = _LARGE_BATCH,
    optimizer: OptimizerName = "adam",
) -> Choice[float]:
    """0.5 / d_model at the peak: wider models need smaller steps; twice that with Muon. Where a step has fewer than
    4,096 tokens, times the root of their share of these, as Adam wants it (Malladi et al. 2022); but not for language
    models and time series.
    With the paper's schedule, equation (3), but no more than its peak after 4,000 steps: a shorter warm-up has a higher
    one, after which a post-norm model loses what it has learnt.
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
    optimizer: OptimizerName, schedule: ScheduleName, learning_rate: float, warmup_steps: int, steps: int | None
) -> Choice[float | None]:
    """0 with Adam, as in the paper. With Muon so much that rate × decay adds up to 1.3 over the run
    (docs/benchmarks.md): the longer the run, the less in each step. Weights that decay are an average over the last
    1 / (rate × decay) updates, which must be as long as the run or somewhat shorter (Wang and Aitchison 2024, "How to
    set AdamW's weight decay as you scale model and dataset size").
    """
    if optimizer != "muon":
        return Choice(0.0, "the paper has none")
    if steps is None:
        return Choice(None, f"{TOTAL_DECAY:g} / the sum of all steps' rates, once their number is known")
    decay = decay_over(steps, schedule=schedule, peak=learning_rate, warmup_steps=warmup_steps)
    reason = f"{TOTAL_DECAY:g} / the sum of the rates of {steps:,} steps"
    if decay == MOST_DECAY / learning_rate:
        reason += f", at most {MOST_DECAY:g} / the highest"
    return Choice(decay, reason)


def choose_fine_tuning_rate(d_model: int) -> Choice[float]:
    """Of a model that has learnt its task already and is to learn more of it (`--from`): 0.05 / d_model at the peak, a
    tenth of what new weights need (6.5e-5 at BERT's width, where its makers took 2e-5 to 5e-5); updates of LoRA are
    new weights.
    """
    return Choice(0.05 / d_model, f"0.05 / d_model ({d_model}): the model has learnt the task before")


def choose_schedule(norm_order: str) -> Choice[ScheduleName]:
    """The paper's where `norm_order` is post, as in its model; otherwise a linear fall to zero, as the number of steps
    is known.
    """
    if norm_order == "post":
        return Choice("inverse-sqrt", "the paper's schedule, section 5.3")
    return Choice("linear", "falls to zero at the last step")


def choose_warmup_steps(steps: int | None) -> Choice[int]:
    """The paper's 4,000, but no more than a tenth of the steps, or than half of them in a run of less than 500 steps,
    where a tenth is too few; 500 while the steps are not known.
    """
    if steps is None:
        return Choice(500, "the number of steps is not known yet")
    if steps >= 10 * _PAPER_WARMUP_STEPS:
        return Choice(_PAPER_WARMUP_STEPS, "the paper's 4,000")
    if steps >= 500:
        return Choice(steps // 10, f"a tenth of {steps:,} steps")
    return Choice(max(1, min(50, steps // 2)), f"50, or half of {steps:,} steps")


def choose_average_decay(steps: int | None) -> Choice[float]:
    """The kept model averages about the last twentieth of the steps, as the paper averages its last checkpoints
    (section 6.1).
    """
    window = 500 if steps is None else min(5_000, max(10, steps // 20))
    return Choice(1.0 - 1.0 / window, f"an average over about the last {window:,} steps")


def choose_kernels(device: str, threads: int, *, compiled: bool = False) -> Choice[Kernels]:
    """On a CPU, our own wherever llvmlite is installed, which writes them, and knows this processor and how to use its
    cores together. On a GPU, our own wherever Triton is installed, which writes those, and the C compiler and Python's
    headers that it builds its launchers with, and the GPU is NVIDIA's, of Ampere or later; not in compiled layers,
    which have theirs.
    """
    if device != "cpu":
        if compiled:
            return Choice("torch", "compiled layers have kernels of theirs")
        if (missing := why_no_triton(device)) is not None:
            return Choice("torch", missing)
        return Choice("native", "written for GPUs: fewer passes over what lies between the products, and no padding")
    obstacle = why_no_kernels(threads)
    if obstacle is not None:
        return Choice("torch", obstacle)
    return Choice("native", "written for this processor: fewer passes over what lies between the products")


def choose_record(device: str, kernels: Kernels, processes: int) -> Choice[bool]:
    """On a GPU with kernels of our own, where one process trains alone: a step of the paper's base model takes 23 ms in
    place of 42 (docs/benchmarks.md). Several exchange gradients while operations are launched, which is better where
    what is between them is slow.
    """
    if device == "cpu":
        return Choice(value=False, reason="there is no GPU")
    if kernels == "torch":
        return Choice(value=False, reason="`training.kernels` is torch")
    if processes > 1:
        return Choice(value=False, reason="several processes exchange gradients meanwhile")
    return Choice(value=True, reason="a GPU is not kept waiting for each operation of a step")


def choose_best_by(translated: int, words: float = math.inf) -> Choice[BestBy]:
    """BLEU on dev, which goes on rising after the loss has turned: the smoothed model grows sure of itself, and is
    right more often all the same. chrF, which counts characters, where the references have fewer than four words on
    average: BLEU counts runs of four. The loss where nothing is translated. Classification goes by accuracy, parsing
    by bracket F1, time series by skill.
    """
    if translated and words < BLEU_WORDS:
        return Choice("chrf", f"dev references have {words:.1f} words on average, and BLEU counts runs of {BLEU_WORDS}")
    if translated:
        return Choice("bleu", f"of {translated:,} dev sentences at most, translated at each validation")
    return Choice("loss", "no dev sentence is translated")


def choose_patience() -> Choice[int]:
    """Half of the twelve validations of a run: the fall of the learning rate at its end brings the last points."""
    return Choice(6, "validations without a better one")
