"""Attribution: which source words made each word of a translation more probable, by six methods.

Shapes: S source tokens and T target tokens, both with the end symbol; H heads; D model width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.argument_checks import as_text
from transduce.errors import TransduceError
from transduce.inference.batching import pad
from transduce.inference.translator import Translator
from transduce.inspection.attention import Weights, group_words, shaded_table
from transduce.inspection.reading import check_single_model
from transduce.model.attention import AttentionTrace, MultiHeadAttention
from transduce.model.layers import Residual
from transduce.model.masks import padding_mask
from transduce.model.transformer import Transformer

Method = Literal["value", "occlusion", "integrated", "gradient", "gradient-input", "rollout"]

_INTEGRATION_STEPS = 8
_BATCH_TOKENS = 4096
"""Maximum number of source and target tokens in one forward and backward pass."""


class Attribution(msgspec.Struct, frozen=True):
    """The contributions of source tokens and words to target tokens and words, measured by one method.

    The unit of `occlusion`, `integrated` and `gradient-input` is nats of the target's log-probability; values may be
    negative. `gradient` is a norm. `value` and `rollout` are shares, whose sum over the source tokens is 1.
    """

    method: Method
    source_tokens: tuple[str, ...]
    """Source tokens with the end symbol."""
    target_tokens: tuple[str, ...]
    """Target tokens with the end symbol."""
    tokens: Weights
    """The contribution of each source token to each target token, (T, S)."""
    source_words: tuple[str, ...]
    """Source words, without the end symbol."""
    target_words: tuple[str, ...]
    """Target words, without the end symbol."""
    words: Weights
    """The contribution of each source word to each target word, (target words, source words)."""

    def shares(self) -> Weights:
        """Return the positive contributions of the source words as shares that sum to 1 for each target word."""
        positive = np.maximum(self.words, 0.0)
        total = positive.sum(axis=1, keepdims=True)
        return np.asarray(positive / np.where(total > 0.0, total, 1.0), dtype=np.float32)

    def _repr_html_(self) -> str:
        return shaded_table(self.target_words, self.source_words, self.shares())


def attribute(
    translator: Translator, source: str, target: str | None = None, *, method: Method = "value"
) -> Attribution:
    """Return how much each source word contributed to each word of a translation.

    The translation is scored word by word given the words before it (teacher forcing). Methods:

    * `value`: the vectors that attention and residual connections move, traced through all layers of both stacks
      (Ferrando et al. 2022, ALTI+); fast, and the most faithful after `occlusion`.
    * `occlusion`: the drop of the log-probability when the source word is removed. The model reads the source once for
      each word.
    * `integrated`: integrated gradients (Sundararajan et al. 2017) from embeddings of zero, in 8 steps.
    * `gradient`: the norm of the gradient of the log-probability by the embedding (Li et al. 2016).
    * `gradient-input`: this gradient times the embedding (Denil et al. 2014).
    * `rollout`: attention multiplied through the layers of the encoder (Abnar and Zuidema 2020).

    Args:
        translator: a translator with one Transformer.
        source: a sentence.
        target: a translation of it; None: the model's own.
        method: the method.

    Raises:
        TransduceError: the object is not a translator with exactly one Transformer, the method is unknown, the
            sentence is empty, or the method does not fit the model.
    """
    if method not in get_args(Method):
        raise TransduceError(f"`method` must be one of {', '.join(get_args(Method))}, but is {method!r}.")
    if not isinstance(translator, Translator):
        raise TransduceError(f"Attribution needs a translator, but this is a {type(translator).__name__}.")
    check_single_model(translator)
    if translator.precision == "int8" and method not in ("occlusion", "rollout"):
        raise TransduceError(
            f"The method `{method}` needs weights in floating point, but the precision is int8: load the model in "
            "fp32, or use `occlusion`."
        )
    source, model, tokenizer = as_text(source), translator.transformer, translator.tokenizer
    target = translator(source).text if target is None else as_text(target)
    source_ids = tokenizer.source.with_special_tokens(tokenizer.source.encode(source))
    target_ids = tokenizer.target.with_special_tokens(tokenizer.target.encode(target))
    source_tokens, target_tokens = tokenizer.source.pieces(source_ids), tokenizer.target.pieces(target_ids)
    source_words, source_groups = group_words(source_tokens[:-1])
    target_words, target_groups = group_words(target_tokens[:-1])
    if not source_words or not target_words:
        raise TransduceError("Attribution needs words in the source and in the translation: one of them has none.")
    pair = _Pair(model, source_ids, target_ids, translator.device)
    sets = [[index] for index in range(len(source_ids))]
    with _evaluation(model):
        if method == "occlusion":
            both = pair.occlusion([*sets, *source_groups])
            tokens, columns = both[:, : len(sets)], both[:, len(sets) :]
        else:
            tokens = {
                "integrated": lambda: pair.gradients(_INTEGRATION_STEPS),
                "gradient": lambda: pair.gradients(1, norm=True),
                "gradient-input": lambda: pair.gradients(1),
                "rollout": pair.rollout,
                "value": pair.value_rollout,
            }[method]()
            columns = np.stack([tokens[:, group].sum(axis=1) for group in source_groups], axis=1)
    is_share = method in ("rollout", "value")
    join: Callable[..., Any] = np.mean if is_share else np.sum
    words = np.stack([join(columns[group], axis=0) for group in target_groups])
    return Attribution(
        method,
        tuple(source_tokens),
        tuple(target_tokens),
        np.asarray(tokens, dtype=np.float32),
        source_words,
        target_words,
        np.asarray(words, dtype=np.float32),
    )


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Switch dropout off, and compute no gradients of weights, while the context runs."""
    was_training, needed = model.training, [parameter.requires_grad for parameter in model.parameters()]
    model.eval()
    model.requires_grad_(requires_grad=False)
    try:
        yield
    finally:
        model.train(was_training)
        for parameter, need in zip(model.parameters(), needed, strict=True):
            parameter.requires_grad_(need)


class _Pair:
    """A sentence and its translation as token ids, with the methods of attribution."""

    def __init__(self, model: Transformer, source_ids: Sequence[int], target_ids: Sequence[int], device: Any) -> None:
        config = model.config
        self.model, self.pad_id = model, config.pad_id
        self.source_ids, self.device = source_ids, device
        self.source = pad([source_ids], config.pad_id, device)  # (1, S)
        self.inputs = pad([[config.start_id, *target_ids[:-1]]], config.pad_id, device)  # (1, T)
        self.labels = torch.tensor(target_ids, device=device)  # (T,)

    def occlusion(self, groups: Sequence[Sequence[int]]) -> Weights:
        """Return the drop of each target token's log-probability without each group of source tokens, (T, groups)."""
        shortened = [[id for n, id in enumerate(self.source_ids) if n not in group] for group in groups]
        # A group of all tokens leaves nothing; the end symbol then stands alone.
        sources = [list(self.source_ids), *(ids or [self.source_ids[-1]] for ids in shortened)]
        rows = max(1, _BATCH_TOKENS // (len(self.source_ids) + len(self.labels)))
        with torch.inference_mode():
            scores = [
                self._log_probabilities(self.model.encode(pad(sources[n : n + rows], self.pad_id, self.device)))
                for n in range(0, len(sources), rows)
            ]
        joined = torch.cat(scores)  # (1 + groups, T)
        return _array((joined[:1] - joined[1:]).T)

    def gradients(self, steps: int, *, norm: bool = False) -> Weights:
        """Return the gradient of each target token's log-probability times the embedding, or its norm, (T, S).

        With several steps, the gradient is the mean along the line from embeddings of zero (with their positions).
        """
        embedded, mask = self._embedded()
        zero = embedded - self._word_vectors()
        alphas = (torch.arange(steps, device=self.device) + 0.5) / steps if steps > 1 else torch.ones(1)
        points = [(t, float(alpha)) for t in range(len(self.labels)) for alpha in alphas.tolist()]
        rows = max(1, _BATCH_TOKENS // (len(self.source_ids) + len(self.labels)))
        total = torch.zeros(len(self.labels), len(self.source_ids), dtype=torch.float64)
        for start in range(0, len(points), rows):
            part = points[start : start + rows]
            mixed = torch.cat([zero + alpha * (embedded - zero) for _, alpha in part]).detach().requires_grad_()
            memory = self.model.encode_embedded(mixed, mask)
            scores = self._log_probabilities((memory, mask))  # (rows, T)
            chosen = scores[torch.arange(len(part)), torch.tensor([t for t, _ in part])]
            (gradient,) = torch.autograd.grad(chosen.sum(), mixed)
            products = gradient.norm(dim=-1) if norm else (gradient * (embedded - zero)).sum(dim=-1)
            values = products.double().cpu() / steps
            for (t, _), value in zip(part, values, strict=True):
                total[t] += value
        return _array(total)

    def rollout(self) -> Weights:
        """Return the cross-attention of each target token, traced through the encoder's attention, (T, S)."""
        trace = AttentionTrace()
        with torch.inference_mode():
            memory, mask = self.model.encode(self.source, trace=trace)
            self.model.decode(self.inputs, memory, mask, trace=trace)
        through = torch.eye(len(self.source_ids), device=self.device)
        for weights in trace.encoder:
            # Half of a layer's output is its input, by the residual connection.
            through = (
                0.5 * weights[0].float().mean(dim=0) + 0.5 * torch.eye(len(through), device=self.device)
            ) @ through
        crossed = torch.stack([weights[0].float().mean(dim=0) for weights in trace.memory]).mean(dim=0)
        return _array(crossed @ through)

    def value_rollout(self) -> Weights:
        """Return the share of each source token in each target token's state, traced through all layers, (T, S).

        Raises:
            TransduceError: the model has an attention or an order of norms whose moved vectors are not known.
        """
        for name, module in self.model.named_modules():
            if isinstance(module, MultiHeadAttention) and type(module) is not MultiHeadAttention:
                raise TransduceError(
                    f"The method `value` knows only multi-head attention, but {name} is of class "
                    f"{type(module).__name__}: use the method `occlusion`."
                )
        if self.model.config.norm_order == "sandwich":
            raise TransduceError("The method `value` needs `model.norm_order` pre or post: use the method `occlusion`.")
        with torch.inference_mode(), recorded_attention(self.model) as records:
            memory, mask = self.model.encode(self.source)
            through = torch.eye(len(self.source_ids), device=self.device)  # memory tokens × source tokens
            for record in records:
                through = _contributions(record) @ through
            records.clear()
            self.model.decode(self.inputs, memory, mask)
            shares = torch.zeros(len(self.labels), len(self.source_ids), device=self.device)
            for record in records:
                parts = _contributions(record)
                # Cross-attention has one column more: the decoder's own state, which the residual connection keeps.
                shares = parts @ shares if record.memory is None else parts[:, :-1] @ through + parts[:, -1:] * shares
        return _array(shares / shares.sum(dim=-1, keepdim=True))

    def _embedded(self) -> tuple[Tensor, Any]:
        with torch.no_grad():
            embedded = self.model.source_embedding(self.source, self.model.source_weight)
        return embedded, padding_mask(self.source, self.pad_id)

    def _word_vectors(self) -> Tensor:
        """Return what the embedding adds for the words alone, without positions, (1, S, D)."""
        embedding = self.model.source_embedding
        if embedding.norm is not None:
            raise TransduceError(
                "Gradients need embeddings without a norm, but this model has one: use `value` or `occlusion`."
            )
        return F.embedding(self.source, self.model.source_weight.detach()) * embedding.scale

    def _log_probabilities(self, encoded: tuple[Tensor, Any]) -> Tensor:
        """Return the log-probability of each target token, (rows, T), for sources that are encoded."""
        memory, mask = encoded
        hidden = self.model.decode(self.inputs.expand(len(memory), -1), memory, mask)
        labels = self.labels.expand(len(memory), -1)
        logits = self.model.project(hidden).float()
        return logits.gather(-1, labels[..., None])[..., 0] - logits.logsumexp(dim=-1)


# --- recording attention modules ---


class AttentionRecord(msgspec.Struct, frozen=True):
    """One call of an attention module: its inputs, and the attention weights that it computed."""

    module: MultiHeadAttention
    residual: Tensor
    """What the residual connection around the module adds to its output, (B, Q, D)."""
    x: Tensor
    """What the queries are made of, (B, Q, D)."""
    memory: Tensor | None
    """What keys and values are made of, (B, S, D); None: `x`."""
    weights: Tensor
    """Attention weights, (B, H, Q, L)."""


@contextmanager
def recorded_attention(model: nn.Module) -> Iterator[list[AttentionRecord]]:
    """Record every call of the model's attention modules while the context runs, in the order of the calls.

    Forward hooks record, so all layers take the reference path, which computes attention weights.
    """
    records: list[AttentionRecord] = []
    residuals: list[Tensor] = []

    def enter(_: nn.Module, args: tuple[Any, ...]) -> None:
        residuals[:] = [args[0]]

    def ask(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**named, "weights_out": []} if named.get("weights_out") is None else named

    def store(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], _: Tensor) -> None:
        assert isinstance(module, MultiHeadAttention)
        memory = args[1] if len(args) > 1 else named.get("memory")
        records.append(AttentionRecord(module, residuals[0], args[0], memory, named["weights_out"][-1]))

    hooks = []
    for module in model.modules():
        if isinstance(module, Residual):
            hooks.append(module.register_forward_pre_hook(enter))
        if isinstance(module, MultiHeadAttention):
            hooks.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            hooks.append(module.register_forward_hook(store, with_kwargs=True))
    try:
        yield records
    finally:
        for hook in hooks:
            hook.remove()


def _contributions(record: AttentionRecord) -> Tensor:
    """Return each position's share in the output of an attention module with its residual connection, (Q, L).

    A position's vector is its projected value, times the attention weight; the output is the sum of all vectors. The
    share is proportional to how much nearer the vector is to the output than zero is, in the L1 norm. For
    cross-attention the last column, L + 1, is the residual connection; in self-attention it belongs to the query's own
    position.
    """
    module, inputs = record.module, record.x if record.memory is None else record.memory
    first = module.widths[0] + module.widths[1]
    weight, bias = module.projection.weight[first:], module.projection.bias
    values = F.linear(inputs, weight, None if bias is None else bias[first:])  # (1, L, G × V)
    values = values[0].unflatten(-1, (module.num_key_value_heads, module.d_v))  # (L, G, V)
    values = values.repeat_interleave(module.num_heads // module.num_key_value_heads, dim=1)  # (L, H, V)
    outputs = module.output.weight.unflatten(-1, (module.num_heads, module.d_v))  # (D, H, V)
    vectors = torch.einsum("lhv,dhv->hld", values.float(), outputs.float())  # (H, L, D)
    moved = torch.einsum("hql,hld->qld", record.weights[0].float(), vectors)  # (Q, L, D)
    residual = record.residual[0].float()
    if record.memory is None:
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


def _array(tensor: Tensor) -> Weights:
    return np.asarray(tensor.detach().float().cpu().numpy(), dtype=np.float32)
