"""Define what the rest of the package calls kernels for: the choice of a decoder, batch searches, and training.

Kernels are optional. Code above them gets an implementation of `BatchSearch` from `acceleration.find_batch_search`, and
of `TrainingKernels` from `backend_in_use`; it takes the reference path where there is none.

Legend: B sentences that are still decoded, W hypotheses of each, t tokens so far.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.model.backend import Backend, Rows
from transduce.model.masks import PackedBatch, PackedMask
from transduce.model.positions import Rotation

# --- the choice of a backend ---


class DecoderChoice(NamedTuple):
    """The name of the backend that decodes a model, and the reasons why faster backends do not decode it."""

    backend: str
    """The backend: `compiled` (kernels on a CPU), `triton` (on a GPU) or `reference` (PyTorch modules)."""
    refused: dict[str, str]
    """A dict from the name of each faster backend to a clause that says why it does not decode the model."""

    @classmethod
    def of(cls, backend: str, reason: str | None) -> "DecoderChoice":
        """Return the choice of a backend, or of `reference` if there is a reason to refuse the backend.

        Args:
            backend: the backend.
            reason: why the backend does not decode the model; None: it does.
        """
        return cls(backend, {}) if reason is None else cls("reference", {backend: reason})


# --- searching for a batch of sentences ---


class RepetitionPenalties(NamedTuple):
    """Penalties of a batch search for tokens that occurred before, which make their repetition less likely.

    In a beam search the penalties change log-probabilities; in greedy search and sampling they change logits.
    """

    before: Sequence[Sequence[int]]
    """For each sentence, the token ids before its output, such as its prompt; only `repetition` applies to them."""
    repetition: float
    """Greater than 0. A token that occurred has its score divided by this, or multiplied if the score is negative."""
    frequency: float
    """The number that is subtracted from a token's score for each time that it occurs in the output."""
    presence: float
    """The number that is subtracted once from the score of each token that occurs in the output."""


class SearchRules(NamedTuple):
    """The rules of a batch search: permitted, forced and penalized tokens, and the ranking of hypotheses.

    The default is the paper's search without rules.
    """

    forced: Sequence[Sequence[int]] = ()
    """For each sentence, the token ids with which its hypotheses must begin; empty: none. The first of them may count
    as certain (`context_lengths`, `certain_count`); the others keep the model's probability."""
    certain_count: int = 0
    """The number of first tokens after a sentence's context that, if they are forced, count with probability 1 instead
    of the model's."""
    context_lengths: Sequence[int] = ()
    """The number of each sentence's forced tokens that are context: they have probability 1, and rules, penalties and
    scores begin after them; empty: no context.
    """
    forced_last: int | None = None
    """The token id that every hypothesis gets at its sentence's maximum length, with probability 1; None: any token."""
    forbidden: Sequence[int] = ()
    """Token ids that no hypothesis may contain; their probability stays unused, unless `renormalizes`."""
    more_ends: Sequence[int] = ()
    """Token ids that end a hypothesis, besides the end symbol. Search gives the end symbol the greatest of all their
    probabilities, and sampling gives it their sum.
    """
    min_length: int = 0
    """The number of tokens before which no hypothesis may end."""
    no_repeated_ngrams: int = 0
    """The length of n-grams that may not occur twice in a hypothesis; 0: no restriction."""
    penalties: RepetitionPenalties | None = None
    """Penalties of tokens that occurred before, which make their repetition less likely; None: no penalties."""
    renormalizes: bool = False
    """True if probabilities are normalized over the permitted tokens only."""
    ranking: Literal["paper", "full", "likely", "never"] = "paper"
    """`paper`: ended hypotheses rank first, and a sentence is finished once no other hypothesis can enter its n best.
    Other values select the search of Hugging Face's `generate`, with this value of `GenerateSettings.stop`."""


class SamplingNumbers(NamedTuple):
    """The options of a batch search that draws tokens, and its random numbers."""

    uniform: Tensor
    """Random numbers in [0, 1), one for each draw of a token: float32, (sentences, steps, samples), for at least
    max(max_lengths) steps."""
    temperature: float
    """The number by which logits are divided; below 1, likely tokens become more likely."""
    top_k: int
    """The number of most likely tokens that may be drawn; 0: all."""
    top_p: float
    """Nucleus sampling: draw from the smallest set of most likely tokens with at least this share of the probability,
    after `top_k`.
    """
    min_p: float
    """Only tokens with at least this share of the greatest probability may be drawn."""


class ReservedCapacity(NamedTuple):
    """The capacity that a batch search reserves for sentences that join the batch later."""

    sentences: int
    """The maximum number of sentences that are decoded at once."""
    tokens: int
    """The maximum number of new tokens of a hypothesis."""
    positions: int
    """The maximum number of tokens of a prompt and its continuation."""


class BatchSearchOptions(NamedTuple):
    """The options of a batch search: start and end symbols, maximum lengths, rules, and ranking of hypotheses."""

    start_id: int
    """The id of the start symbol, the decoder's first input."""
    eos_id: int
    """The id of the end symbol, which ends a hypothesis."""
    forbidden_tokens: Sequence[int]
    """Ids of tokens that are never output: their logits are set to -inf before the softmax."""
    max_lengths: Sequence[int]
    """The maximum number of tokens of each sentence's hypotheses, end symbol included."""
    beam_size: int
    """W, the number of hypotheses of each sentence; 1 is greedy search."""
    n_best: int
    """The number of results of each sentence, whose search ends once no other hypothesis can be among these results."""
    penalties: Tensor
    """The length penalties, divisors of a hypothesis's score, of 0, 1, … tokens after the context: a float64 vector of
    at least max(max_lengths) + 2 entries."""
    rules: SearchRules = SearchRules()
    """The rules on tokens, and the ranking of hypotheses."""
    sampling: SamplingNumbers | None = None
    """Options for drawing `beam_size` samples of each sentence; None: the best hypotheses are searched."""
    reserved: ReservedCapacity | None = None
    """Capacity for prompts that join later; None: only for the prompts at the start."""


class FoundHypothesis(NamedTuple):
    """A result of a batch search: the tokens of a hypothesis, their log-probabilities, and whether it ended."""

    tokens: Tensor | NDArray[Any]
    """Token ids, (t,), with the end symbol if the hypothesis ended."""
    log_probabilities: Tensor | NDArray[Any]
    """The log-probability of each token, (t,)."""
    ended: bool
    """True if the hypothesis ended with the end symbol; otherwise it was cut, such as at the maximum length."""


class BatchSearch(Protocol):
    """A search in progress: the live hypotheses of a batch, and the best finished ones of every sentence."""

    @property
    def active(self) -> Tensor:
        """The batch indices of the sentences that are still decoded, (B,)."""

    def advance(self, steps: int) -> None:
        """Run at most `steps` decoding steps of all unfinished sentences; stop earlier when none is left."""

    def live(self) -> tuple[Tensor, Tensor]:
        """Return each sentence's W live hypotheses: tokens, int64 (B, W, t), and total log-probabilities, (B, W)."""

    def finished(self, index: int, count: int) -> list[FoundHypothesis]:
        """Return a list of at most `count` finished hypotheses of the sentence with this index in the original batch.

        The best comes first. In sampling, the samples are in the order of their random numbers (the last axis of
        `SamplingNumbers.uniform`), and a sample is padded after its end symbol with further end symbols.
        """

    def abandon(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """Stop decoding sentences, and return for each, in the order of `rows`, a list of its unfinished hypotheses.

        `rows` are indices into `active`, the batch indices of the sentences that are still decoded.
        """


@runtime_checkable
class JoinableSearch(BatchSearch, Protocol):
    """A batch search that other sentences may join while it runs, when some of its sentences are finished."""

    def advance(self, steps: int, *, max_unfinished: int = 0) -> None:
        """Run at most `steps` decoding steps; stop earlier when at most `max_unfinished` sentences are unfinished."""

    @property
    def own_lengths(self) -> list[int]:
        """A list with the number of tokens generated so far for each unfinished sentence, in the order of the batch."""

    @property
    def gains_by_joining(self) -> bool:
        """True if one step for many hypotheses takes much less time than several steps for few.

        If not, it is better to search for other sentences separately.
        """

    def can_absorb(self, other: Any) -> bool:
        """Return whether the sentences of another search, which has taken one step, may join this search."""

    def absorb(self, other: Any, indices: Sequence[int]) -> None:
        """Move the unfinished sentences of another search, which has taken one step, into this search.

        Args:
            other: a search for which `can_absorb` holds. It must not be used afterwards.
            indices: the index in this batch that each of these sentences gets; none of them may be in use.
        """


# --- training ---


class AttentionOptions(NamedTuple):
    """Options of scaled dot-product attention whose defaults suit most models."""

    shared: int = 1
    """The number of neighboring query heads that share a head of keys and values."""
    scale: float | None = None
    """The factor of the dot products; None: 1 / √K."""
    drop_256ths: int = 0
    """The dropout rate of the attention weights in 256ths; 0: no dropout."""


PLAIN_ATTENTION = AttentionOptions()


class UpdatedVectors(NamedTuple):
    """The float32 master weights of a model as one vector, with the other vectors that an optimizer update uses.

    All vectors have the same length.
    """

    master: Tensor
    gradient: Tensor
    """The gradient, which the update reads and sets to zero."""
    average: Tensor | None
    """The moving average of the master weights; None: the run keeps none."""
    working: Tensor | None
    """The master weights rounded to the dtype that the model computes in; None: the model computes in float32."""


class AdamScalars(NamedTuple):
    """The numbers, equal for all weights, that a kernel needs for the t-th update by Adam (section 5.3)."""

    factor: float
    """The factor that the gradient is multiplied by before the update."""
    beta1: float
    beta2: float
    rate: float
    """The learning rate divided by 1 - β1^t, which corrects the bias of the first moment."""
    inverse_root: float
    """The number 1 / √(1 - β2^t), which corrects the bias of the square root of the second moment."""
    epsilon: float


class Projection(Protocol):
    """A model's output projection, prepared by a backend to compute the logits of a block of N hidden states at once.

    The matrix is (V, D), with a bias or without. All tensors are contiguous. Logits have C ≥ V columns; those after the
    first V are -inf.
    """

    columns: int
    """The number C of columns of the logits and of their gradient, at least the vocabulary size V."""

    def logits(self, x: Tensor, out: Tensor) -> None:
        """Write the logits x · matrixᵀ + bias of hidden states x, (N, D), to `out`, (N, C)."""

    def backward(self, gradient: Tensor, x: Tensor, grad_x: Tensor | None, weight_sum: Tensor | None) -> None:
        """Compute the gradients of the hidden states and of the matrix from the gradient of the logits.

        Args:
            gradient: the gradient with respect to the logits, (N, C).
            x: the hidden states that `logits` multiplied, (N, D).
            grad_x: receives the gradient with respect to x, (N, D); None: it is not computed.
            weight_sum: float32, (C, D); the gradient with respect to the matrix is added to it; None: it is not
                computed.
        """


Polynomials = tuple[tuple[float, float, float], ...]
"""A tuple with the coefficients (a, b, c) of each odd polynomial a x + b x³ + c x⁵ that Muon applies to
orthogonalize."""


class LossRecorder(Protocol):
    """A function that computes losses of batches; on a GPU it replays one recorded CUDA graph for each batch size."""

    def __call__(
        self, size: Hashable, numbers: NDArray[np.int64], compute: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss of a batch, and one more number; the caller must run `backward` before the next call.

        Args:
            size: a key of the CUDA graph, such as the batch's shape. Calls with an equal key run the same sequence of
                operations, whatever `numbers` holds.
            numbers: the batch as one int64 array; equally long for equal sizes.
            compute: computes two scalars from the batch on the model's device. It must not read values back to the CPU,
                and may read no changing tensors except parameters. Only the first scalar has gradients.

        Returns:
            The two scalars of `compute`.
        """


class PackedAttention(Protocol):
    """Kernels for training on batches without padding (`PackedBatch`); a backend has them only where they save time."""

    def supports(self, model: nn.Module, max_length: int) -> bool:
        """Return whether `hidden` can compute this model on sentences of at most `max_length` tokens.

        Otherwise, padded batches must be used.
        """

    def hidden(self, model: nn.Module, batch: PackedBatch) -> Tensor:
        """Return the decoder's last hidden states for a packed batch of N target tokens in total, (1, N, D)."""

    def attend(self, projected: Tensor, memory: Tensor | None, mask: PackedMask, num_heads: int) -> Tensor:
        """Compute scaled dot-product attention, equation (1), for a packed batch of N queries, with heads of width K.

        Args:
            projected: queries, keys and values, (1, N, 3 × H × K); with a memory, queries alone, (1, N, H × K).
            memory: keys and values of the encoder's output, (1, M, 2 × H × K); None for self-attention.
            mask: describes where the sentences begin and end.
            num_heads: H.

        Returns:
            (1, N, H × K).
        """

    def record_losses(self, model: nn.Module) -> LossRecorder:
        """Return a `LossRecorder`: a function that computes losses by replaying one CUDA graph for each batch size."""


class TrainingKernels(Backend, Protocol):
    """A training backend: kernels for training and validation, and checks of which inputs they support.

    A backend without kernels for attention, rotary embeddings or Muon inherits methods that answer "not supported".
    """

    @property
    def packed(self) -> PackedAttention | None:
        """The backend's kernels for packed batches (without padding); None if padded batches are at least as fast."""

    def run_layer(
        self,
        layer: nn.Module,
        x: Tensor,
        memory: Tensor | None,
        masks: Sequence[object],
        rotation: Rotation | None = None,
    ) -> Tensor | None:
        """Compute a whole encoder or decoder layer in training, or return None if the kernels do not support it.

        Args:
            layer: an encoder layer, or a decoder layer if there is a memory.
            x: the layer's input, (B, T, D), or (1, N, D) for a packed batch; `supports_rows` must hold for it.
            memory: the encoder's output, (B, S, D) or (1, M, D).
            masks: the mask of self-attention, then, with a memory, the mask of cross-attention.
            rotation: the rotary embedding of the queries and keys of self-attention; None: there is none.

        Returns:
            The output of the layer, in the shape of x.
        """

    def supports_attention(self, x: Tensor, num_keys: int, width: int) -> bool:  # noqa: ARG002
        """Return whether `attend` supports `num_keys` keys and heads of this width, in x's dtype on x's device."""
        return False

    def attend(
        self,
        projected: Tensor,
        memory: Tensor | None,
        lengths: Tensor | None,
        num_heads: int,
        options: AttentionOptions = PLAIN_ATTENTION,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Compute scaled dot-product attention, equation (1), with G key/value heads and heads of width K.

        Args:
            projected: queries, keys and values, (B, Q, (H + 2 G) × K); with a memory, queries alone, (B, Q, H × K).
            memory: keys and values of the encoder's output, (B, L, 2 × G × K); None for self-attention.
            lengths: the number of keys in each sentence, at least 1, int64, (B,); None: the look-ahead mask.
            num_heads: H, the number of query heads.
            options: among them H / G, the number of query heads for each key/value head.
            bias: a term added to the scores of all sentences, such as a relative position bias, (H, Q, Q).

        Returns:
            (B, Q, H × K).
        """

    def supports_rotary(self, x: Tensor, width: int) -> bool:  # noqa: ARG002
        """Return whether `apply_rotary` supports heads of this width, in x's dtype on x's device."""
        return False

    def apply_rotary(self, projected: Tensor, rotation: Rotation, heads: int) -> Tensor:
        """Rotate the first `heads` heads of each position by a rotary embedding, and copy the other heads.

        The input and the result are the projections (B, T, C) that hold the heads side by side. The rotation, for heads
        of width K, is the same for all sentences of a batch, (T, K / 2).
        """

    def dropout_add(self, residual: Tensor | None, x: Tensor, drop_256ths: int) -> Tensor:
        """Return residual + dropout(x) (section 5.4), in x's shape and dtype; the dropout rate is drop_256ths / 256.

        A residual of None counts as zero.
        """

    def residual_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
        """Return a pair: x itself, for a residual connection, and x normalized over the last dimension, (…, D) each.

        With a bias, the norm is LayerNorm: (x - mean) / √(variance + ε) · weight + bias. Without a bias, it is RMSNorm:
        x / √(mean of x² + ε) · weight. The backward pass adds the gradients of both outputs.
        """

    def sum_rows(self, x: Tensor) -> Tensor:
        """Return the sum of the rows of x, (N, D), as float32, (D,)."""

    def add_rows_in_place(
        self, total: Tensor, ids: Tensor, part: Tensor, factor: float, frozen_row: int | None
    ) -> None:
        """Add factor · part[n] to total[ids[n]] for each n, to sum the gradients of embeddings.

        Args:
            total: float32, (V, D), contiguous.
            ids: int64, (N,).
            part: (N, D); `supports_rows` must hold for it.
            factor: multiplies each row of `part`.
            frozen_row: the row of `total` that stays unchanged, or None.
        """

    @property
    def linear_activations(self) -> frozenset[str]:
        """The set of the names of the activations that `linear` can apply to its output."""

    def supports_activation(self, name: str, x: Tensor, width: int) -> bool:  # noqa: ARG002
        """Return whether `activate` supports the activation with this name for width F, in x's dtype on x's device."""
        return False

    def activate(self, projected: Tensor, name: str) -> Tensor:
        """Apply an activation: (…, F) to (…, F); a gated activation maps (…, 2 F), gates before values, to (…, F)."""

    def supports_linear(self, x: Tensor, weight: Tensor, rows: Rows | None) -> bool:
        """Return whether `linear`, a linear layer, supports the input (…, I) and these rows of the weight (O, I)."""

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, *, activation: str | None = None
    ) -> Tensor:
        """Return activation(x · weightᵀ + bias).

        Args:
            x: (…, I).
            weight: (O, I). If it has a `sum_of_gradients`, its gradient is added there instead of being returned.
            bias: (O,); its gradient is treated as that of the weight.
            rows: the rows of weight and bias to use; None: all.
            activation: one of `linear_activations`; None: no activation.

        Returns:
            (…, O), or as many columns as there are `rows`.
        """

    def project(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Projection | None:  # noqa: ARG002
        """Return a `Projection` for an output matrix, (V, D), to compute logits of blocks of at least 8 hidden states.

        `bias`, (V,), may be None, and `hidden` is an example of the hidden states, (N, D). The result is None if
        PyTorch is at least as fast.
        """
        return None

    def supports_update(self, vectors: UpdatedVectors) -> bool:
        """Return whether the kernels for optimizer updates support the device and dtypes of these vectors."""

    def update_by_adam(
        self, vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], scalars: AdamScalars, average_decay: float
    ) -> None:
        """Update parameters by Adam in one pass, together with their moving average and their bfloat16 copy.

        Args:
            vectors: the vectors to change.
            moments: the running means of the gradient and of its square, float32; both change.
            scalars: the scalars of this update.
            average_decay: the weight of the old average in the new one.
        """

    def update_momentum(self, gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
        """Update Nesterov momentum, and write the resulting direction to `out`; all vectors have equal length.

        Args:
            gradient: float32; it is multiplied by the factor first, and does not change.
            momentum: float32; becomes decay · momentum + (1 - decay) · gradient.
            out: float32 or bfloat16; becomes decay · (new momentum) + (1 - decay) · gradient.
            factor: multiplies the gradient.
            decay: the decay rate of the momentum.
        """

    def apply_update(
        self, vectors: UpdatedVectors, average_decay: float, direction: Tensor, rate: float, shrink: float
    ) -> None:
        """Replace the master weights by master · shrink - rate · direction, for optimizers other than Adam.

        The gradient is set to zero, and the moving average and the bfloat16 copy of the weights are refreshed.

        Args:
            vectors: the vectors to change.
            average_decay: the weight of the old average in the new one.
            direction: float32 or bfloat16; rate · direction is subtracted from the master weights.
            rate: the learning rate.
            shrink: multiplies the master weights before the subtraction.
        """

    def supports_orthogonalization(self, matrices: Sequence[Tensor]) -> bool:  # noqa: ARG002
        """Return whether `orthogonalize_in_place` supports these matrices, each (R, C), and is faster than PyTorch."""
        return False

    def orthogonalize_in_place(
        self, matrices: Sequence[Tensor], polynomials: Polynomials, scale: float, *, by_gram_matrix: bool
    ) -> list[bool]:
        """Orthogonalize matrices x in place (Muon): divide x by the square root of ‖x xᵀ‖, then apply odd polynomials.

        Args:
            matrices: (R, C) each.
            polynomials: three polynomials, each by its coefficients (a, b, c), applied in turn.
            scale: multiplies the result.
            by_gram_matrix: whether to apply the polynomials to x xᵀ and multiply x once, which is faster if C is many
                times R.

        Returns:
            A list with one boolean for each matrix: whether the matrix was changed. A matrix stays unchanged if powers
            of its elements would overflow or underflow.
        """

    def supports_logits(self, logits: Tensor) -> bool:
        """Return whether `softmax_`, the in-place softmax, supports these logits' device and dtype."""

    def softmax_(self, logits: Tensor) -> Tensor:
        """Replace each row of logits, (N, V), by its softmax, and return the rows' log-sum-exp, float32, (N,)."""
