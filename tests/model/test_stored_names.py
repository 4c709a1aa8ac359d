"""Test that weights of existing model folders keep their names, shapes and order."""

from collections.abc import Iterator
from typing import Any

import pytest

from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer


def linear(prefix: str, rows: int, columns: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}.weight", (rows, columns)
    if bias:
        yield f"{prefix}.bias", (rows,)


def norm(prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}.weight", (16,)
    yield f"{prefix}.bias", (16,)


def layer(prefix: str, attentions: tuple[str, ...], place: str, *, bias: bool, gated: bool) -> Iterator[Any]:
    for attention in attentions:
        yield from linear(f"{prefix}.{attention}.projection", 48, 16, bias)
        yield from linear(f"{prefix}.{attention}.output", 16, 16, bias)
        yield from norm(f"{prefix}.{attention}_residual.{place}")
    yield from linear(f"{prefix}.feed_forward.inner", 48 if gated else 24, 16, bias)
    yield from linear(f"{prefix}.feed_forward.outer", 16, 24, bias)
    yield from norm(f"{prefix}.feed_forward_residual.{place}")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize(
    "changes", [{}, {"activation": "swiglu", "bias": False}, {"positions": "none", "activation": "gelu"}], ids=str
)
def test_stored_weights_keep_their_names_shapes_and_order(changes: dict[str, Any], order: str, tied: bool) -> None:
    shape = {"num_encoder_layers": 2, "num_decoder_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 4}
    ties = {"tie_source_target": tied, "tie_output": tied, "source_vocabulary_size": 13}
    model = Transformer(ModelConfig(**shape, **ties, target_vocabulary_size=13, norm_order=order, **changes))  # type: ignore[arg-type]
    bias, gated = changes.get("bias", True), changes.get("activation") == "swiglu"
    place = "norm_before" if order == "pre" else "norm_after"
    expected: list[tuple[str, tuple[int, ...]]] = [("source_weight", (13, 16))]
    if not tied:
        expected += [("own_target_weight", (13, 16)), ("own_output_weight", (13, 16))]
    for number in range(2):
        expected += layer(f"encoder_layers.{number}", ("self_attention",), place, bias=bias, gated=gated)
    both = ("self_attention", "memory_attention")
    expected += layer("decoder_layers.0", both, place, bias=bias, gated=gated)
    if order == "pre":
        expected += [*norm("encoder_norm"), *norm("decoder_norm")]
    # Within a layer the order of construction holds, which the optimiser's flat vector follows.
    stored = [(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()]
    assert sorted(stored) == sorted(expected)
    assert [name for name, _ in stored] == [name for name, _ in model.named_parameters()]
    assert [name.split(".")[:2] for name, _ in stored] == [name.split(".")[:2] for name, _ in expected]
