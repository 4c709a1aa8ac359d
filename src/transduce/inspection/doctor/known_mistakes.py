"""Recognize mistakes that well-known tutorials teach, by watching what a model computes in one forward pass.

A mistake is named together with the checks that fail because of it, so that a report has one cause instead of several
failures. The documentation's page of errata explains each mistake.

Shapes: B batch, H heads, S source length, T target length, Q queries, L keys, D model width.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from transduce.inspection.doctor.subject import RandomTokens, Subject

_BATCH, _SOURCE, _TARGET = 3, 7, 9
_PADDING = 2
_LOW = -50.0
"""Threshold below which an attention score counts as masked, since its exponential is negligible."""
_LEAKS = ("future", "target padding", "batch-mates", "cache")
_PADDING_CHECKS = ("source padding", "batch-mates")
_SOFTMAXES = {torch.softmax, F.softmax, Tensor.softmax}
_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum}
_DIVISIONS = {torch.div, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__itruediv__}
_SCALINGS = _DIVISIONS | {torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__}
_BLENDS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.__sub__, Tensor.sub, torch.cat, torch.stack}
_VIEWS = {
    *(Tensor.transpose, torch.transpose, Tensor.permute, torch.permute, Tensor.view, Tensor.reshape, torch.reshape),
    *(Tensor.contiguous, Tensor.unflatten, Tensor.flatten, Tensor.unsqueeze, Tensor.squeeze, Tensor.to, Tensor.float),
}
_DROPOUTS = {F.dropout, torch.dropout, F.alpha_dropout, F.feature_alpha_dropout, F.dropout1d, F.dropout2d}


class KnownMistake(msgspec.Struct, frozen=True, kw_only=True):
    """A mistake that well-known tutorials teach and that the examined model makes."""

    name: str
    """A few words that identify the mistake, such as "no causal mask"."""
    message: str
    """Message on what the model does, what is right, and how to repair the model."""
    explains: tuple[str, ...]
    """Names of the checks that fail because of the mistake; empty for one that makes learning harder only."""


def recognize(subject: Subject) -> tuple[KnownMistake, ...]:
    """Return a tuple of the known mistakes that a model makes.

    The function runs the model once, and the model's norms again. A mistake may stay unrecognized, because only
    operations of PyTorch that Python code calls are seen.
    """
    watch, norms = _Watch(), list[tuple[str, nn.Module, Tensor]]()
    samples = RandomTokens(subject)
    source, target = samples.source(_BATCH, _SOURCE), samples.target_input(_BATCH, _TARGET)
    source[0, -_PADDING:] = subject.pad_id
    with _recorded_norms(subject.module, norms), watch:
        logits = subject.logits(source, target)
    found = [
        *watch.dropout_mistakes(),
        *watch.softmax_mistakes(),
        *watch.mask_mistakes(),
        *watch.scale_mistakes(),
        *_norm_mistakes(norms),
        *_position_mistakes(subject),
        *_output_mistakes(logits),
    ]
    return tuple({mistake.name: mistake for mistake in found}.values())


# --- operations ---

_MASK_MISTAKES = (
    KnownMistake(
        name="mask multiplied",
        message="Scores are multiplied by the mask before the softmax, and hidden ones become 0, which is an ordinary "
        "score. Add a large negative number instead: `scores.masked_fill(hidden, torch.finfo(scores.dtype).min)`.",
        explains=(*_LEAKS, *_PADDING_CHECKS),
    ),
    KnownMistake(
        name="no causal mask",
        message="Scores of later target tokens are not hidden before the softmax of the decoder's self-attention. Hide "
        "all keys after the query, with a triangular mask.",
        explains=_LEAKS,
    ),
    KnownMistake(
        name="mask on the query axis",
        message="The padding mask hides the rows of padded queries, and not the columns of padded keys. Give it the "
        "shape (B, 1, 1, S), so that it is broadcast over the queries.",
        explains=(*_PADDING_CHECKS, "cache"),
    ),
    KnownMistake(
        name="padding not masked",
        message="Scores of the source's padding are not hidden before the softmax. Hide these keys in the encoder's "
        "self-attention and in the decoder's cross-attention.",
        explains=_PADDING_CHECKS,
    ),
)


def _fault_of_mask(hidden: Tensor, unmasked: str) -> str:
    """Return the name of an attention mask's mistake, recognized by the scores that the mask must hide.

    Args:
        hidden: the scores, before softmax, at the positions that the mask must hide.
        unmasked: the name to return if none of these scores is hidden.

    Returns:
        "mask multiplied" if all these scores are zero, `unmasked` if none is hidden, or "" in all other cases.
    """
    if not hidden.numel() or float(hidden.max()) <= _LOW:
        return ""
    return "mask multiplied" if bool((hidden == 0.0).all()) else unmasked if float(hidden.min()) > _LOW else ""


class _Watch(TorchFunctionMode):
    """A context that records what attention computes in a forward pass: softmaxes, products, scalings and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.softmaxes: list[tuple[Tensor, int]] = []
        """Pairs of the scores and the axis of every softmax over a tensor of at least three dimensions."""
        self.products: list[tuple[Tensor, int, float]] = []
        """For each matrix product: the result, the length of the summed axis, and the factor that scaled the first
        operand.
        """
        self.scaled: dict[int, tuple[Tensor, float]] = {}
        """Dict: `id` of a tensor that was multiplied by a number → the tensor and the number; NaN if the number is not
        known.
        """
        self.has_dropout = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        if func in _DROPOUTS and named.get("training", args[2] if len(args) > 2 else True):
            self.has_dropout = self.has_dropout or float(named.get("p", args[1] if len(args) > 1 else 0.5)) > 0.0
        elif func in _SOFTMAXES and args[0].dim() >= 3:
            axis = named.get("dim", args[1] if len(args) > 1 else None)
            if axis is not None:
                self.softmaxes.append((args[0].detach(), int(axis) % args[0].dim()))
        elif func in _PRODUCTS and isinstance(result, Tensor) and result.dim() >= 3:
            first = next((each for each in args if isinstance(each, Tensor)), None)
            if first is not None:
                # A copy, because the scores may be scaled and masked in place.
                self.products.append((result.detach().clone(), first.shape[-1], self._scale(first)))
        elif isinstance(result, Tensor) and args:
            self._keep_scale(func, args, result)
        return result

    def _scale(self, tensor: Tensor) -> float:
        return self.scaled.get(id(tensor), (None, 1.0))[1]

    def _keep_scale(self, func: Any, args: Any, result: Tensor) -> None:
        if func in _VIEWS and id(args[0]) in self.scaled:
            self.scaled[id(result)] = (result, self._scale(args[0]))
        elif func in _BLENDS:
            parts = args[0] if isinstance(args[0], (list, tuple)) else args[:2]
            if any(id(each) in self.scaled for each in parts):
                self.scaled[id(result)] = (result, math.nan)
        elif func in _SCALINGS and len(args) > 1:
            numbers = [each for each in args[:2] if not isinstance(each, Tensor) or each.numel() == 1]
            tensors = [each for each in args[:2] if isinstance(each, Tensor) and each.numel() > 1]
            scale = math.nan
            if len(numbers) == len(tensors) == 1:
                number = float(numbers[0])
                scale = self._scale(tensors[0]) * (1.0 / number if func in _DIVISIONS and number else number)
            self.scaled[id(result)] = (result, scale)

    def dropout_mistakes(self) -> Iterator[KnownMistake]:
        """Yield a mistake if dropout ran in the watched forward pass, which is in evaluation mode."""
        if self.has_dropout:
            yield KnownMistake(
                name="dropout in evaluation",
                message="Dropout runs in evaluation mode. Use `nn.Dropout`, or pass `training=self.training` to "
                "`F.dropout`, whose default is True.",
                explains=("repeatability",),
            )

    def softmax_mistakes(self) -> Iterator[KnownMistake]:
        """Yield a mistake for each softmax of attention scores that is not over the keys, the last axis."""
        for scores, axis in self.softmaxes:
            if _sides(scores) is not None and axis != scores.dim() - 1:
                yield KnownMistake(
                    name="softmax over the wrong axis",
                    message=f"The softmax of attention scores of shape {tuple(scores.shape)} is over axis {axis}. The "
                    "weights of one query's keys must sum to 1: use `dim=-1`.",
                    explains=(*_LEAKS, *_PADDING_CHECKS),
                )

    def mask_mistakes(self) -> Iterator[KnownMistake]:
        """Yield a `KnownMistake` for each fault of the look-ahead and padding masks that the recorded scores show.

        The scores are those before the softmax. A fault in several layers is one mistake.
        """
        look_ahead = torch.ones(_TARGET, _TARGET, dtype=torch.bool).triu(1)
        names = set()
        for scores, axis in self.softmaxes:
            sides = _sides(scores)
            if sides is None or axis != scores.dim() - 1:
                continue
            if sides == (_TARGET, _TARGET):
                name = _fault_of_mask(scores[..., look_ahead.to(scores.device)], "no causal mask")
            else:  # the first sentence ends with padding
                keys = scores[0][..., : _SOURCE - _PADDING, -_PADDING:]
                name = _fault_of_mask(keys, "padding not masked")
                rows = scores[0][..., -_PADDING:, :-_PADDING]
                if name == "padding not masked" and sides[0] == _SOURCE and float(rows.max()) <= _LOW:
                    name = "mask on the query axis"
            names.add(name)
        if "mask on the query axis" in names:
            names.discard("padding not masked")
        yield from (mistake for mistake in _MASK_MISTAKES if mistake.name in names)

    def scale_mistakes(self) -> Iterator[KnownMistake]:
        """Yield a mistake for each softmax of attention scores that have a wrong scale.

        The scores are either not scaled, or divided by the root of the model's width instead of a head's. A softmax
        whose scale cannot be found yields no mistake.
        """
        for scores, _ in self.softmaxes:
            found = None if _sides(scores) is None else self._scale_of(scores)
            if found is None:
                continue
            scale, width, heads = found
            if math.isclose(scale, 1.0, rel_tol=1e-3):
                yield KnownMistake(
                    name="scores not scaled",
                    message=f"Attention scores are not divided by √d_k, √{width}. Their variance grows with the width "
                    "of a head, and the softmax saturates.",
                    explains=(),
                )
            elif heads > 1 and math.isclose(scale, (heads * width) ** -0.5, rel_tol=1e-3):
                yield KnownMistake(
                    name="scores scaled by d_model",
                    message=f"Attention scores are divided by √d_model, √{heads * width}. The width of a head counts, "
                    f"d_k = {width}.",
                    explains=(),
                )

    def _scale_of(self, scores: Tensor) -> tuple[float, int, int] | None:
        """Return the scale of attention scores, the width of a head, and the number of heads.

        The scale is the factor between the scores and the product of queries and keys. The result is None if no
        recorded product is proportional to the scores.
        """
        visible = scores > _LOW
        for product, width, before in reversed(self.products):
            if product.shape != scores.shape or not bool(visible.any()):
                continue
            large = visible & (product.abs() > 1e-3) & (scores != 0.0)
            if int(large.sum()) < 4:
                continue
            ratios = scores[large].double() / product[large].double()
            if float(ratios.std()) > 1e-4 * float(ratios.abs().mean()):
                continue
            heads = product.shape[1] if product.dim() == 4 else 1
            return float(ratios.mean()) * before, width, heads
        return None


def _sides(scores: Tensor) -> tuple[int, int] | None:
    """Return the numbers of queries and keys of attention scores, (…, queries, keys).

    The result is None if these numbers do not fit the test batch: attention is then neither self-attention nor
    cross-attention over whole sentences.
    """
    sides = (scores.shape[-2], scores.shape[-1])
    return sides if sides in ((_SOURCE, _SOURCE), (_TARGET, _TARGET), (_TARGET, _SOURCE)) else None


class WithoutDropout(TorchFunctionMode):
    """A context in which PyTorch's dropout functions return their input unchanged.

    This also turns off dropout that ignores evaluation mode.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in _DROPOUTS and args else func(*args, **(kwargs or {}))


# --- norms, positions and the output ---


@contextmanager
def _recorded_norms(module: nn.Module, records: list[tuple[str, nn.Module, Tensor]]) -> Iterator[None]:
    """Record the first input, (B, T, D), of each norm of `module` inside a `with` block.

    For each norm, its name, its module and the input are appended to `records`. Inputs of other shapes are ignored.
    """

    seen: set[str] = set()

    def keep(norm: nn.Module, args: tuple[Any, ...], *, name: str) -> None:
        if args and isinstance(args[0], Tensor) and args[0].dim() == 3 and name not in seen:
            seen.add(name)
            records.append((name, norm, args[0].detach()))

    with ExitStack() as stack:
        for name, each in module.named_modules():
            if _is_norm(each) and not any(map(_is_norm, each.children())):
                stack.callback(each.register_forward_pre_hook(partial(keep, name=name)).remove)
        yield


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _norm_mistakes(norms: list[tuple[str, nn.Module, Tensor]]) -> Iterator[KnownMistake]:
    """Yield a mistake for the first norm whose output at one position depends on another position or sentence."""
    for name, norm, x in norms:
        changed = x.clone()
        changed[-1, -1] += torch.linspace(-1.0, 1.0, x.shape[-1], dtype=x.dtype, device=x.device)
        try:
            difference = (norm(changed) - norm(x)).abs().amax(dim=-1)  # (B, T)
        except (RuntimeError, TypeError, ValueError):
            continue
        difference[-1, -1] = 0.0
        if float(difference.max()) > 1e-6:
            yield KnownMistake(
                name="norm over the wrong axis",
                message=f"The norm `{name}` mixes positions or sentences. LayerNorm's mean and variance are those of "
                "one token's vector: over the last axis.",
                explains=("repeatability", *_LEAKS, *_PADDING_CHECKS, "first loss"),
            )
            return


def _position_mistakes(subject: Subject) -> Iterator[KnownMistake]:
    """Yield a mistake if the model's table of sinusoids is one that tutorials compute with a wrong exponent."""
    if subject.position_table is None:
        return
    table = subject.position_table(50).double().cpu()
    length, width = table.shape
    rows, columns = torch.arange(length).double()[:, None], torch.arange(width).double()
    pairs = (columns // 2) * 2
    exponents = {
        "2i / d_model for every dimension i": 2 * columns,
        "2i / d_model with i in steps of two": 2 * pairs,
        "i / d_model for every dimension i": columns,
    }
    for name, exponent in exponents.items():
        angles = rows / 10000.0 ** (exponent / width)
        wrong = torch.where(columns % 2 == 0, angles.sin(), angles.cos())
        halves = torch.cat([wrong[:, 0::2], wrong[:, 1::2]], dim=1)
        if any(float((table - each).abs().max()) < 1e-3 for each in (wrong, halves)):
            yield KnownMistake(
                name="exponent of the positions",
                message=f"The exponent of the sinusoids is {name}. It is 2i / d_model for the *pair* i, so "
                "`2 * (i // 2) / d_model` for dimension i.",
                explains=("sinusoids",),
            )
            return


def _output_mistakes(logits: Tensor) -> Iterator[KnownMistake]:
    """Yield a mistake if the model returns probabilities instead of logits."""
    if bool((logits >= 0.0).all()) and float((logits.sum(dim=-1) - 1.0).abs().max()) < 1e-4:
        yield KnownMistake(
            name="softmax before the loss",
            message="The model returns probabilities. `F.cross_entropy` takes logits and applies the softmax itself: "
            "leave the last softmax out.",
            explains=("overfit",),
        )
