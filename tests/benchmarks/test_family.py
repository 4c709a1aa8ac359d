"""Test the corpus of `benchmarks/family.py`: joined sentences correspond, and every variant is a valid model."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from transduce.errors import TransduceError
from transduce.model.build import build_model
from transduce.model.config import ModelConfig

# The scripts import one another by their names alone.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
corpus, speed, variants = map(importlib.import_module, ("family_corpus", "family_speed", "family_variants"))
VARIANTS = variants.VARIANTS

LINES = [f"s{number}" for number in range(9)]
PAIRS = corpus.Texts(LINES, [line.upper() for line in LINES])


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, LINES),
        (2, ["s0 s1", "s2 s3", "s4 s5", "s6 s7"]),
        (4, ["s0 s1 s2 s3", "s4 s5 s6 s7"]),
        (8, ["s0 s1 s2 s3 s4 s5 s6 s7"]),
        (10, []),
    ],
)
def test_consecutive_lines_are_joined_and_a_rest_is_left_out(count: int, expected: list[str]) -> None:
    assert corpus.join_sentences(LINES, count, " ") == expected


def test_sources_are_joined_with_the_targets_of_the_same_lines() -> None:
    joined = corpus.join_pairs(PAIRS, 4, ("", " "))
    assert joined == corpus.Texts(["s0s1s2s3", "s4s5s6s7"], ["S0 S1 S2 S3", "S4 S5 S6 S7"])


def test_joined_training_pairs_are_appended_and_correspond() -> None:
    texts = corpus.with_joined(PAIRS, (" ", " "))
    assert texts.source[: len(LINES)] == LINES
    assert [len(line.split()) for line in texts.source[len(LINES) :]] == [2] * 4 + [4] * 2 + [8]
    assert [line.upper() for line in texts.source] == texts.target
    assert texts == corpus.with_joined(PAIRS, (" ", " "))  # the same by every call
    assert texts.source[len(LINES)] != "s0 s1"  # not the corpus' own neighbours


def test_every_variant_differs_from_the_first_in_what_it_is_named_for_alone() -> None:
    files = variants.CORPORA["de-en"]
    base = variants.settings_of(VARIANTS["transformer"], files, quick=False)
    recurrent = variants.settings_of(VARIANTS["lstm-general"], files, quick=False)
    for name, variant in VARIANTS.items():
        settings = variants.settings_of(variant, files, quick=False)
        start = recurrent if variant.recurrent else base
        changed = {key for key, value in settings.items() if start.get(key) != value}
        assert changed <= set(variant.settings), name
        assert start.keys() <= settings.keys(), name
        assert bool(changed) == (name not in ("transformer", "lstm-general")), name
    assert variants.GROUPS == ("kinds", "attention", "positions", "norms", "layers")
    norms = {(n, o) for n in ("layer", "rms", "batch") for o in ("pre", "post", "sandwich")} - {("layer", "pre")}
    assert {f"{norm}-{order}" for norm, order in norms} <= VARIANTS.keys()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_a_model(name: str) -> None:
    try:
        with torch.device("meta"):
            model = build_model(speed.config_of(name, quick=False))
    except TransduceError as error:
        pytest.fail(f"{name}: {error}")
    assert isinstance(model.config, ModelConfig)


def test_recurrent_models_have_about_as_many_parameters_as_the_transformer() -> None:
    with torch.device("meta"):
        sizes = {
            name: sum(p.numel() for p in build_model(speed.config_of(name, quick=False)).parameters())
            for name in ("transformer", "lstm-general")
        }
    assert 0.8 < sizes["lstm-general"] / sizes["transformer"] < 1.25, sizes
