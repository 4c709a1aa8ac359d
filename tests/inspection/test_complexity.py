"""Test the costs of layers and of training: path lengths counted by hand, and the paper's figures."""

import math

import pytest
import torch

from transduce.errors import TransduceError
from transduce.inspection.complexity import (
    TABLE_2,
    PaperReport,
    chain_length,
    compare_layers,
    layer_types,
    path_length,
    training_costs,
    training_flops,
)
from transduce.model.build import build_any_model
from transduce.model.config import ModelConfig
from transduce.training.choices import PRESETS


@pytest.mark.parametrize("n", [2, 9, 27, 28, 50])
def test_paths_have_the_length_that_the_paper_states(n: int) -> None:
    kernel, radius = 3, 4
    attention, recurrent, convolution, restricted = layer_types(kernel, radius)
    assert path_length(attention, n) == 1
    assert path_length(recurrent, n) == n
    assert kernel ** (path_length(convolution, n) - 1) < n <= kernel ** path_length(convolution, n)  # ⌈log_k(n)⌉
    assert path_length(restricted, n) == math.ceil((n - 1) / radius)


def test_chains_are_counted_by_their_longest_branch() -> None:
    x = torch.ones(2, requires_grad=True)
    once = x * 2  # the gradient of x, and the product
    assert chain_length(once) == 2
    assert chain_length(once + once.exp().sin()) == 5


def test_only_recurrent_layers_have_more_sequential_operations_for_longer_texts() -> None:
    report = compare_layers(lengths=(4, 8), timed_lengths=(8, 16), timed_widths=(4, 8), radius=2)
    by_name = {row[0]: dict(zip(report.columns, row, strict=True)) for row in report.rows}
    assert list(by_name) == ["Self-Attention", "Recurrent", "Convolutional", "Self-Attention (restricted)"]
    chains = {name: [int(each) for each in str(row["chain, the same n"]).split("/")] for name, row in by_name.items()}
    for name, (short, long) in chains.items():
        assert (long == short) == (name != "Recurrent"), name
    assert chains["Recurrent"][1] >= 2 * chains["Recurrent"][0] - 4
    assert by_name["Self-Attention (restricted)"]["path, n=4/8"] == "2/4"
    assert all(isinstance(row["16×4"], float) for row in by_name.values())
    assert "r = 5" in str(report)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": 1}, "`kernel` must be at least 2, but is 1"),
        ({"radius": 0}, "`radius` must be at least 1, but is 0"),
        ({"lengths": (8,)}, r"`lengths` must be two or more rising numbers of at least 2, but is \[8\]"),
        ({"timed_widths": (8, 4)}, r"`timed_widths` must be two or more rising numbers"),
    ],
)
def test_sizes_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        compare_layers(**options)  # type: ignore[arg-type]


def test_training_costs_are_those_of_the_weights_that_multiply() -> None:
    """The paper's figures are time × GPUs × speed; ours counts the matrices, as a model has them."""
    sizes = PRESETS["paper-base"]
    config = ModelConfig(
        source_vocabulary_size=37_000,
        target_vocabulary_size=37_000,
        num_encoder_layers=sizes.num_encoder_layers,
        num_decoder_layers=sizes.num_decoder_layers,
        d_model=sizes.d_model,
        d_ff=sizes.d_ff,
        num_heads=sizes.num_heads,
        norm_order="post",
    )
    with torch.device("meta"):
        model = build_any_model(config)
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
    assert training_flops("paper-base") == 6.0 * matrices * 25_000 * 100_000
    published = {row[0]: row for row in TABLE_2}
    assert published["Transformer (base model)"][3] == pytest.approx(12 * 3600 * 8 * 9.5e12, rel=0.01)
    assert published["Transformer (big)"][3] == pytest.approx(3.5 * 86400 * 8 * 9.5e12, rel=0.01)
    report = training_costs("models/mine", 12.5, ["BLEU 12.50  signature"])
    assert report.columns == ("model", "EN-DE", "EN-FR", "cost EN-DE", "cost EN-FR", "your test set")
    assert report.rows[-1] == ("models/mine", None, None, None, None, 12.5)
    assert report.rows[0] == (*TABLE_2[0], None)
    assert len(training_costs().columns) == len(training_costs().rows[-1]) == 5
    assert "cannot be compared" in str(report)
    assert "BLEU 12.50  signature" in report.notes


def test_a_report_is_aligned_by_the_width_of_characters() -> None:
    report = PaperReport(title="T", columns=("a", "b"), rows=(("他的", 1.0), ("x", None)), notes=("n",))
    assert str(report) == "T\n\na     b\n他的  1.00\nx     –\n\nn"
