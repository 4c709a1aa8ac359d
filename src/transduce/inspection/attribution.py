"""Attribution: which words made each word of a model's output more probable, by six methods.

The words are those of the source in a translator or parser, and those of the text that the model reads in all others.
Shapes: S source tokens and T target tokens, both with the end symbol; H heads; D model width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.forecaster import Forecaster
from transduce.inference.tagger import Tagger
from transduce.inference.translator import Translator
from transduce.inspection.attention import Weights, group_words, shaded_table
from transduce.inspection.reading import Reader, Reading, as_array, read
from transduce.inspection.recorder import Recording, hook_points, of_this_thread, record_activations
from transduce.model.attention import MultiHeadAttention, ScoredAttention
from transduce.model.masks import AttentionMask, BiasedMask
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import EncoderDecoderLayers

Method = Literal["value", "occlusion", "integrated", "gradient", "gradient-input", "rollout"]

_ATTENTION_POINTS = (0.05, 0.5)
"""Factors of attention to source words at which `integrated` averages gradients, chosen to agree with `occlusion`."""
_EMBEDDING_POINTS = (0.07, 0.33, 0.67)
"""Factors of word embeddings at which `integrated` averages gradients, chosen to agree with `occlusion`."""
_BATCH_TOKENS = 4096
"""Maximum number of source and target tokens in one forward and backward pass."""
_PREFIXES, _MIN_OPERATIONS_OF_PREFIXES = 4, 1e10
"""Two constants: into how many parts a decoder's predictions are divided, and the least operations for that.

Gradients of an early part need no computation of later positions. The predictions are divided only if the gradients
take more than the second number of floating-point operations.
"""
_MAX_OPERATIONS = 1e12
"""Maximum number of floating-point operations of a method of attribution if all methods are tried (`attributions`)."""


class Attribution(msgspec.Struct, frozen=True):
    """The contributions of source tokens and words to target tokens and words, measured by one method.

    `occlusion`, `integrated` and `gradient-input` measure nats of a target's log-probability, which may be negative.
    `gradient` is a norm. `value` and `rollout` are shares, whose sum over the source tokens is 1. In a language model,
    a token contributes 0 to its own prediction and to those of earlier tokens.
    """

    method: Method
    source_tokens: tuple[str, ...]
    """Source tokens with the end symbol; in a model of one text, the tokens that it reads."""
    target_tokens: tuple[str, ...]
    """Target tokens with the end symbol; in a model of one text, its predictions: tokens, tags, or a class."""
    tokens: Weights
    """The contribution of each source token to each target token, float32, (T, S)."""
    source_words: tuple[str, ...]
    """Source words, without the end symbol."""
    target_words: tuple[str, ...]
    """Target words, without the end symbol; in a model of one text, its predictions."""
    words: Weights
    """The contribution of each source word to each target word, (target words, source words)."""
    changes: Weights | None = None
    """With `integrated`, how much all source words together raise the log-probability of each target word, in nats,
    (target words,). Contributions by exact integrated gradients sum to this change, but those of few points often do
    not. None with other methods.
    """

    def shares(self) -> Weights:
        """Return the positive contributions of source words, divided so that they sum to 1 for each target word.

        The shape is (target words, source words); a target word without a positive contribution has zeros.
        """
        positive = np.maximum(self.words, 0.0)
        total = positive.sum(axis=1, keepdims=True)
        return np.asarray(positive / np.where(total > 0.0, total, 1.0), dtype=np.float32)

    def _repr_html_(self) -> str:
        return shaded_table(self.target_words, self.source_words, self.shares())


@explain_wrong_types
def attribute(translator: Reader, source: str, target: str | None = None, *, method: Method = "value") -> Attribution:
    """Return an `Attribution`: how much each word contributed to each of a model's predictions.

    A translator predicts the words of the translation, each given the words before it (teacher forcing). A language
    model predicts each next token of the text, and a masked language model its masks, or every token if there is no
    mask. A classifier predicts the class, and a tagger the tag of each word. Methods:

    * `value`: the share of each token in the states that predict, traced through attention and residual connections.
      Every position of attention adds a vector to the state; a vector's share is how near it is to the sum of all
      (ALTI+, Ferrando et al. 2022). The method takes one forward pass, and is the most faithful after `occlusion` and
      `integrated`.
    * `occlusion`: the drop of the log-probability when the word is removed. The model reads the text once without each
      word, and once without each token.
    * `integrated`: integrated gradients (Sundararajan et al. 2017) with few points of the path from absent words to the
      sentence. In each pass, neighboring words are at different points. In a translator or parser, no position attends
      to an absent word, and there are 2 points. In other models, and with attention in a window or of a class of your
      own, an absent word's embedding is zero, and there are 3 points. So few points rank the words well, but their sum
      may be several times the whole change (`Attribution.changes`), or a fraction of it.
    * `gradient`: the norm of the gradient of the log-probability by the embedding (Li et al. 2016).
    * `gradient-input`: this gradient times the embedding (Denil et al. 2014).
    * `rollout`: attention multiplied through the layers (Abnar and Zuidema 2020).

    Args:
        translator: a loaded model of any kind that predicts tokens, classes or tags, as `transduce.load` returns it.
        source: a sentence.
        target: for a translator, a translation of the sentence; None: the model's own.
        method: the method.

    Raises:
        TransduceError: the object is not such a model, the method is unknown, the sentence is empty, or the method does
            not fit the model.
    """
    if method not in get_args(Method):
        raise TransduceError(f"`method` must be one of {', '.join(get_args(Method))}, but is {method!r}.")
    return _attribute(translator, source, target, [method], skip_refused=False)[method]


@explain_wrong_types
def attributions(
    translator: Reader, source: str, target: str | None = None, *, methods: Sequence[Method] = get_args(Method)
) -> dict[Method, Attribution]:
    """Return a dict from each method that fits the model and the length of the sentence to its `Attribution`.

    The methods share passes through the model. A method is left out if the model lacks what it needs. To bound the
    time, it is also left out if its passes would take more than about 10^12 floating-point operations. `integrated` of
    25 tokens by a model of 60 million parameters takes a fifth of that.

    Args:
        translator: a loaded model of any kind that predicts tokens, classes or tags, as `transduce.load` returns it.
        source: a sentence.
        target: for a translator, a translation of the sentence; None: the model's own.
        methods: the methods to try.

    Raises:
        TransduceError: the object is not such a model, or the sentence is empty.
    """
    return _attribute(translator, source, target, methods, skip_refused=True)


def _attribute(
    reader: Reader, source: str, target: str | None, methods: Sequence[Method], *, skip_refused: bool
) -> dict[Method, Attribution]:
    """Return a dict from methods to their attributions of one text's predictions to its words.

    With `skip_refused`, methods that do not fit the model or cost too much are left out. Without it, a method that does
    not fit raises an error, and the cost is not limited.
    """
    if isinstance(reader, Forecaster):
        raise TransduceError("Attribution explains tokens, classes and tags, but a forecaster predicts numbers.")
    subject = _Subject(read(reader, source, target))
    source_words, source_groups = subject.words_read()
    target_words, target_groups = subject.words_predicted()
    if not source_words or not target_words:
        raise TransduceError("Attribution needs words in the source and in the translation: one of them has none.")
    found: dict[Method, Attribution] = {}
    with _frozen(subject.model):
        for method in methods:
            try:
                _check_reader(reader, method)
                if skip_refused and subject.operations(method) > _MAX_OPERATIONS:
                    continue
                tokens, columns = subject.measure(method, source_groups)
            except TransduceError:
                if skip_refused:
                    continue
                raise
            join: Callable[..., Any] = np.mean if method in ("rollout", "value") else np.sum
            words = np.stack([join(columns[group], axis=0) for group in target_groups])
            changes = None
            if method == "integrated":
                by_token = subject.whole_changes()
                changes = np.array([by_token[group].sum() for group in target_groups], dtype=np.float32)
            outputs = subject.reading.outputs
            found[method] = Attribution(
                method, subject.tokens, outputs, tokens, source_words, target_words, words, changes
            )
    return found


def _check_reader(reader: object, method: Method) -> None:
    """Raise a `TransduceError` if a method of attribution is not defined for a model or for its precision (int8)."""
    if getattr(reader, "precision", None) == "int8" and method not in ("occlusion", "rollout"):
        raise TransduceError(
            f"The method `{method}` needs weights in floating point, but the precision is int8: load the model in "
            "fp32, or use `occlusion`."
        )
    if isinstance(reader, Tagger) and method == "occlusion":
        raise TransduceError(
            "Occlusion removes words, and a word that is removed has no tag: use the method `value` or `integrated`."
        )
    if isinstance(reader, Translator) and isinstance(reader.model, Recurrent) and method != "occlusion":
        raise TransduceError(
            f"The method `{method}` needs a Transformer, but the model is recurrent: use the method `occlusion`."
        )


_FROZEN: WeakKeyDictionary[nn.Module, tuple[list[bool], list[object]]] = WeakKeyDictionary()
_FROZEN_LOCK = Lock()


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Disable the gradients of a model's weights within a `with` block, and restore the weights' settings after it.

    If several threads are in such a block, the last one that leaves it restores the settings.
    """
    holder = object()
    with _FROZEN_LOCK:
        needed, holders = _FROZEN.setdefault(model, ([each.requires_grad for each in model.parameters()], []))
        holders.append(holder)
        model.requires_grad_(requires_grad=False)
    try:
        yield
    finally:
        with _FROZEN_LOCK:
            holders.remove(holder)
            if not holders:
                del _FROZEN[model]
                for parameter, need in zip(model.parameters(), needed, strict=True):
                    parameter.requires_grad_(need)


class _Subject:
    """A text and a model's predictions for it, with the computation of every method of attribution."""

    def __init__(self, reading: Reading) -> None:
        reading.check_head()
        self.reading, self.model = reading, reading.model
        self.is_pair = bool(reading.source_tokens and reading.decoder_tokens)
        self.stack = "decoder" if not reading.source_tokens else "encoder"
        """The stack ("encoder" or "decoder") that reads the words whose contributions are measured."""
        self.tokens = reading.decoder_tokens if self.stack == "decoder" else reading.source_tokens
        self.ids = reading.ids
        self.device: torch.device = reading.model.source_weight.device
        self.is_special = [
            index == len(self.tokens) - 1 if self.is_pair else token in reading.special_tokens
            for index, token in enumerate(self.tokens)
        ]
        """True for each token that the model reads that spells no word, such as the end symbol; a list of S values."""
        self._gradients: Tensor | None = None

    def words_read(self) -> tuple[tuple[str, ...], list[list[int]]]:
        """Return a tuple of the words whose contributions are measured, and a list of each word's token indices."""
        positions = [number for number, is_special in enumerate(self.is_special) if not is_special]
        words, groups = group_words([self.tokens[number] for number in positions])
        return words, [[positions[number] for number in group] for group in groups]

    def words_predicted(self) -> tuple[tuple[str, ...], list[list[int]]]:
        """Return a tuple of the predicted words (or tags, classes), and a list of each word's prediction indices."""
        if self.is_pair:
            return group_words(self.reading.outputs[:-1])
        return self.reading.outputs, [[number] for number in range(len(self.reading.outputs))]

    def measure(self, method: Method, groups: Sequence[Sequence[int]]) -> tuple[Weights, Weights]:
        """Return by one method how much each token, (T, S), and each word, (T, words), contributes to T predictions.

        `groups` has the indices of each word's tokens. A word's contribution is the sum of its tokens', except for
        `occlusion`, which removes the whole word.
        """
        if method == "occlusion":
            both = self.occlusion([*([index] for index in range(len(self.ids))), *groups])
            return both[:, : len(self.ids)], both[:, len(self.ids) :]
        tokens = {
            "integrated": lambda: self.integrated(groups),
            "gradient": lambda: as_array(self.gradients().norm(dim=-1)),
            "gradient-input": lambda: as_array((self.gradients() * self._word_vectors()).sum(dim=-1)),
            "rollout": self.rollout,
            "value": self.value_rollout,
        }[method]()
        return tokens, np.stack([tokens[:, group].sum(axis=1) for group in groups], axis=1)

    def operations(self, method: Method) -> float:
        """Return roughly how many floating-point operations a method of attribution takes for this sentence."""
        gradient = 1.0 + len(self.reading.outputs)
        passes = {
            "occlusion": 2.0 * len(self.ids),
            "integrated": 2.0 + len(self._points) * gradient,
            "gradient": gradient,
            "gradient-input": gradient,
        }.get(method, 1.0)
        names = ("encoder_layers", "decoder_layers") if self.is_pair else ("layers",)
        sizes = [sum(each.numel() for each in getattr(self.model, name).parameters()) for name in names]
        lengths = filter(None, (len(self.reading.source_tokens), len(self.reading.decoder_tokens)))
        total: float = sum(2.0 * length * size for length, size in zip(lengths, sizes, strict=True))
        return passes * total

    def occlusion(self, groups: Sequence[Sequence[int]]) -> Weights:
        """Return how much each prediction's log-probability drops without each group of tokens, in nats, (T, groups).

        `groups` has the indices of each group's tokens. The drop is 0 for a prediction that disappears with the group.
        """
        unique = list(dict.fromkeys(map(tuple, groups)))
        shortened = [[id for n, id in enumerate(self.ids) if n not in group] for group in unique]
        if self.is_pair:
            # A group of all tokens leaves nothing; the end symbol then stands alone.
            shortened = [ids or [self.ids[-1]] for ids in shortened]
        sources, removed = [list(self.ids), *shortened], [(), *unique]
        rows = max(1, _BATCH_TOKENS // (len(self.ids) + len(self.reading.outputs)))
        with torch.inference_mode():
            scores = [
                self.reading.rescore(sources[n : n + rows], removed[n : n + rows]) for n in range(0, len(sources), rows)
            ]
        joined = torch.cat(scores)  # (1 + unique groups, T)
        columns = [unique.index(tuple(group)) for group in groups]
        return as_array((joined[:1] - joined[1:])[columns].nan_to_num(0.0).T)

    @property
    def weighs_attention(self) -> bool:
        """True if the path of `integrated` scales attention to a word, False if it scales the word's embedding."""
        if not self.is_pair or self.model.config.attention_window is not None or _other_attention(self.model):
            return False
        scores = [each for each in self.model.modules() if isinstance(each, ScoredAttention)]
        return all(type(each).forward is ScoredAttention.forward and "forward" not in vars(each) for each in scores)

    @property
    def _points(self) -> tuple[float, ...]:
        return _ATTENTION_POINTS if self.weighs_attention else _EMBEDDING_POINTS

    def integrated(
        self, groups: Sequence[Sequence[int]], points: ArrayLike | None = None, weights: ArrayLike | None = None
    ) -> Weights:
        """Return the integrated gradients of each prediction's log-probability by the source tokens, in nats, (T, S).

        The path goes from absent words, at the factor 0, to the sentence itself, at the factor 1. The factor multiplies
        all attention to a word if `weighs_attention`, and otherwise the word's embedding without its position. In each
        pass, neighboring words have different factors. The gradients then show better what the removal of a word
        changes than among words that are all absent or all complete. Special tokens stay as they are, and contribute 0.

        If all words are one group, and the points and weights are an exact quadrature from 0 to 1, the contributions
        sum to the change of the log-probability. The default points favor the beginning of the path, where gradients
        are less saturated.

        Args:
            groups: the indices of each word's tokens, which have the same factor.
            points: the factors, each of which takes a pass through the model; None: those chosen by agreement with
                occlusion.
            weights: the weight of each point; None: equal weights.
        """
        nodes = np.asarray(self._points if points is None else points)
        count = len(nodes)
        shares = np.full(count, 1 / count) if weights is None else np.asarray(weights)
        order = np.zeros(len(self.ids), dtype=np.int64)
        for number, group in enumerate(groups):
            order[list(group)] = number
        total = np.zeros((len(self.reading.outputs), len(self.ids)), dtype=np.float32)
        for first in range(count):
            at = (order + first) % count
            factors = np.where(self.is_special, 1.0, nodes[at])
            if self.weighs_attention:
                change = as_array(self.attention_gradients(factors))
            else:
                change = as_array((self.gradients(factors) * self._word_vectors()).sum(dim=-1))
            total += change * shares[at]
        return np.asarray(np.where(self.is_special, 0.0, total), dtype=np.float32)

    def whole_changes(self) -> Weights:
        """Return how much each prediction's log-probability rises when absent words become present, in nats, (T,).

        Exact integrated gradients would sum to this rise.
        """
        kept = torch.tensor(self.is_special, device=self.device)
        absent: AbstractContextManager[object]
        if self.weighs_attention:
            absent = _weighted_attention(self.model, torch.where(kept, 1.0, torch.finfo(torch.float32).tiny))
        else:
            absent = self._with_word_vectors(self._word_vectors() * kept[:, None])
        with torch.inference_mode():
            whole = self.reading.log_probabilities()[0]
            with absent:
                return as_array(whole - self.reading.log_probabilities()[0])

    def attention_gradients(self, factors: Weights) -> Tensor:
        """Return the derivative of each prediction's log-probability by the factor of attention to each token, (T, S).

        Args:
            factors: what the attention of every position to each source token is multiplied by, (S,), greater than 0.
        """
        weights = torch.tensor(factors, dtype=torch.float32, device=self.device, requires_grad=True)
        return self._backpropagate(weights, _weighted_attention(self.model, weights))

    def gradients(self, factors: Weights | None = None) -> Tensor:
        """Return the gradients of each prediction's log-probability by the embeddings of the words read, (T, S, D).

        Args:
            factors: what each word's embedding is multiplied by, (S,); None: 1, for the sentence itself.
        """
        if factors is None and self._gradients is not None:
            return self._gradients
        vectors = self._word_vectors()
        scale = torch.as_tensor(np.ones(len(self.ids)) if factors is None else factors).to(vectors)
        mixed = (scale[:, None] * vectors).detach().requires_grad_()
        gradients = self._backpropagate(mixed, self._with_word_vectors(mixed))[:, 0]
        if factors is None:  # two methods need it
            self._gradients = gradients
        return gradients

    def _backpropagate(self, variable: Tensor, edit: AbstractContextManager[object]) -> Tensor:
        """Return the gradient of each prediction's log-probability by a tensor.

        The result has the shape of the tensor, after a first dimension for the T predictions. The backward passes of
        several predictions are computed in one batch.

        Args:
            variable: the tensor, which requires gradients.
            edit: a context in which the model's forward pass uses the tensor.
        """
        reading, positions = self.reading, torch.tensor(self.reading.positions, device=self.device)
        rows = max(1, _BATCH_TOKENS // (len(self.ids) + len(positions)))
        prefix_states = reading.prefix_states if self.operations("gradient") > _MIN_OPERATIONS_OF_PREFIXES else None
        if prefix_states is not None:  # later positions of a decoder would only add zeros
            rows = min(rows, -(-len(positions) // _PREFIXES))
        parts = positions.split(rows)
        with edit:
            if prefix_states is not None:
                hidden = prefix_states([int(part.max()) + 1 for part in parts])
            else:
                hidden = [reading.forward()] * len(parts)  # (1, states, D)
        states = hidden[-1].detach().requires_grad_()
        scores = reading.chosen(reading.predict(states).log_softmax(dim=-1))
        (by_states,) = torch.autograd.grad(scores.sum(), states)
        found = list[Tensor]()
        for part, of_part in zip(parts, hidden, strict=True):
            starts = torch.zeros(len(part), *of_part.shape, dtype=of_part.dtype, device=self.device)
            starts[torch.arange(len(part)), 0, part] = by_states[0, part]
            found += torch.autograd.grad(of_part, variable, starts, retain_graph=True, is_grads_batched=True)
        return torch.cat(found)

    def rollout(self) -> Weights:
        """Return each prediction's attention to each token, multiplied through the layers (method `rollout`), (T, S).

        Heads are averaged, and rows sum to 1. In a sentence pair, the decoder's cross-attention, averaged over layers,
        is multiplied by the encoder's attention.
        """
        with torch.inference_mode(), record_activations(self.model, "*.weights") as recording:
            self.reading.forward()
        through = torch.eye(len(self.ids), device=self.device)
        for weights in recording.layers(self.stack, "self_attention.weights"):
            # Half of a layer's output is its input, by the residual connection.
            through = (
                0.5 * weights[0].float().mean(dim=0) + 0.5 * torch.eye(len(through), device=self.device)
            ) @ through
        if not self.is_pair:
            return as_array(through[list(self.reading.positions)])
        layers = recording.layers("decoder", "memory_attention.weights")
        crossed = torch.stack([weights[0].float().mean(dim=0) for weights in layers]).mean(dim=0)
        return as_array(crossed @ through)

    def value_rollout(self) -> Weights:
        """Return each source token's share in the state behind each prediction, traced through all layers, (T, S).

        Rows sum to 1. This is the method `value`.

        Raises:
            TransduceError: the model has an attention class or an order of norms that this method cannot trace.
        """
        if other := _other_attention(self.model):
            raise TransduceError(
                f"The method `value` knows only multi-head attention, but {other[0]} is of class "
                f"{type(other[1]).__name__}: use the method `occlusion`."
            )
        if self.model.config.norm_order == "sandwich":
            raise TransduceError("The method `value` needs `model.norm_order` pre or post: use the method `occlusion`.")
        points = ("*.input", "*.weights", "*.values")
        with torch.inference_mode(), record_activations(self.model, points) as recording:
            self.reading.forward()
            through = torch.eye(len(self.ids), device=self.device)  # tokens of the states × tokens that are read
            for moved in _moved_vectors(self.model, recording, self.stack):
                through = moved.shares() @ through
            if self.is_pair:
                shares = torch.zeros(len(self.reading.outputs), len(self.ids), device=self.device)
                for moved in _moved_vectors(self.model, recording, "decoder"):
                    parts = moved.shares()
                    # Cross-attention has one column more: the decoder's state, which the residual connection keeps.
                    is_self = moved.is_self_attention
                    shares = parts @ shares if is_self else parts[:, :-1] @ through + parts[:, -1:] * shares
            else:
                shares = through[list(self.reading.positions)]
        return as_array(shares / shares.sum(dim=-1, keepdim=True))

    def _embedding(self) -> Any:
        return self.model.source_embedding if self.is_pair else self.model.embedding

    def _with_word_vectors(self, vectors: Tensor) -> AbstractContextManager[object]:
        """Return a context in which the model reads these vectors, (1, S, D), instead of the words' embeddings."""
        embedded: Tensor = self._embedding().complete(vectors)
        return record_activations(self.model, (), edit={f"{self.stack}.embedding": lambda _: embedded})

    def _word_vectors(self) -> Tensor:
        """Return the scaled embeddings of the tokens that are read, without positions, (1, S, D)."""
        ids = torch.tensor([self.ids], device=self.device)
        vectors: Tensor = F.embedding(ids, self.model.source_weight.detach()) * self._embedding().scale
        return vectors


def _other_attention(model: nn.Module) -> tuple[str, nn.Module] | None:
    """Return the name and the module of a model's first attention that is not exactly a `MultiHeadAttention`, or None.

    A derived class, or a `forward` that was set on the module, may compute anything, so methods of attribution that
    know the computation refuse it.
    """
    attentions = ((name, each) for name, each in model.named_modules() if isinstance(each, MultiHeadAttention))
    others = (each for each in attentions if type(each[1]) is not MultiHeadAttention or "forward" in vars(each[1]))
    return next(others, None)


@contextmanager
def _weighted_attention(model: EncoderDecoderLayers, weights: Tensor) -> Iterator[None]:
    """Multiply all attention to each source token by its weight within a `with` block.

    Attention weights of a query still sum to 1, in the encoder's self-attention and the decoder's cross-attention. Near
    a weight of 0, the token is hidden from all other positions, as padding is.

    Args:
        model: a model whose attention modules are all `MultiHeadAttention`, without a window.
        weights: the weight of each source token, (S,), greater than 0.
    """

    def weighted(mask: AttentionMask) -> AttentionMask:
        term = weights.log()[None, None, None, :]
        return BiasedMask(mask.allowed, mask.term + term if isinstance(mask, BiasedMask) else term)

    def weigh_self_attention(_: nn.Module, __: object, output: tuple[AttentionMask, Any]) -> tuple[AttentionMask, Any]:
        return weighted(output[0]), output[1]

    def weigh_cross_attention(_: nn.Module, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, named | {"memory_mask": weighted(named["memory_mask"])}

    weigh_memory = of_this_thread(weigh_cross_attention)
    with ExitStack() as stack:
        stack.callback(model.encoder_positions.register_forward_hook(of_this_thread(weigh_self_attention)).remove)
        for layer in model.decoder_layers:
            stack.callback(layer.register_forward_pre_hook(weigh_memory, with_kwargs=True).remove)
        yield


# --- moved vectors ---


class _MovedVectors(msgspec.Struct, frozen=True):
    """The components of the output of one attention module in a pass: values, attention weights, and residual input."""

    module: MultiHeadAttention
    is_self_attention: bool
    residual: Tensor
    """The tensor that the residual connection around the module adds to its output, (1, queries, d_model)."""
    values: Tensor
    """Projected values of the keys' positions, (1, key/value heads, keys, value width)."""
    weights: Tensor
    """Attention weights, (1, heads, queries, keys)."""

    def shares(self) -> Tensor:
        """Return each position's share in an attention module's output plus residual connection, for each query.

        Every position adds a vector, its projected value times its attention weight, and so does the residual
        connection. The sum is that of all vectors and the module's bias. A vector's share is proportional to the sum's
        L1 norm minus the L1 norm of the sum without the vector; negative shares become 0. Shares sum to 1.

        The shape is (queries, keys) for self-attention; the residual connection is added to the query's own position.
        For cross-attention, it is (queries, keys + 1); the last column is the share of the residual connection.
        """
        module = self.module
        values = self.values[0].repeat_interleave(module.num_heads // module.num_key_value_heads, dim=0)  # (H, L, V)
        outputs = module.output.weight.unflatten(-1, (module.num_heads, module.d_v))  # (D, H, V)
        vectors = torch.einsum("hlv,dhv->hld", values.float(), outputs.float())  # (H, L, D)
        moved = torch.einsum("hql,hld->qld", self.weights[0].float(), vectors)  # (Q, L, D)
        residual = self.residual[0].float()
        if self.is_self_attention:
            positions = torch.arange(len(moved), device=moved.device)
            moved[positions, positions] += residual
        else:
            moved = torch.cat([moved, residual[:, None]], dim=1)
        total = moved.sum(dim=1, keepdim=True)
        if module.output.bias is not None:
            total = total + module.output.bias.float()
        shares = (total.abs().sum(dim=-1) - (total - moved).abs().sum(dim=-1)).clamp(min=0.0)
        sums: Tensor = shares.sum(dim=-1, keepdim=True)
        return shares / sums.clamp(min=torch.finfo(torch.float32).tiny)


def _moved_vectors(model: Any, recording: Recording, stack: str) -> Iterator[_MovedVectors]:
    """Yield the components of the output of each attention module of a stack, as `_MovedVectors`, in order.

    `stack` is "encoder" or "decoder", and `recording` has the inputs, weights and values of its attention modules.
    """
    layers = getattr(model, f"{stack}_layers", None) or model.layers
    for point in hook_points(model):
        of_stack, number, name, *last = f"{point.name}...".split(".")[:4]
        if of_stack == stack and last == ["weights"]:
            module = getattr(layers[int(number) % len(layers)], name)
            at = f"{stack}.{number}.{name}"
            yield _MovedVectors(
                module,
                name == "self_attention",
                recording[f"{at}.input"],
                recording[f"{at}.values"],
                recording[f"{at}.weights"],
            )
