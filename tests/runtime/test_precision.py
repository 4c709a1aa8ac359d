"""Precisions `int8` and `bf16`: what a user sees of them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.model.recurrent import Recurrent
from transduce.runtime.precision import to_eight_bits
from transduce.runtime.translator import load
from transduce.search.settings import SearchSettings
from transduce.tasks.train import train


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_translations_are_nearly_those_in_float32(trained: Path, toy_corpus: Path, precision: str) -> None:
    sentences = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:40]
    exact, fast = (load(trained, precision=each, device="cpu", threads=1) for each in ("fp32", precision))
    assert (exact.precision, fast.precision) == ("fp32", precision)
    for beam_size in (1, 4):
        pairs = zip(exact(sentences, beam_size=beam_size), fast(sentences, beam_size=beam_size), strict=True)
        equal = sum(one.text == other.text for one, other in pairs)
        assert equal >= 0.8 * len(sentences)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_strict_results_can_be_had_in_8_bits(trained: Path, toy_corpus: Path, beam_size: int) -> None:
    sentences = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:12]
    translator = load(trained, precision="int8", threads=1)
    search = SearchSettings(beam_size=beam_size, strict=True)
    together = translator.translate(sentences, search)
    for sentence, expected in zip(sentences, together, strict=True):
        assert translator.translate([sentence], search)[0].alternatives == expected.alternatives


def test_8_bits_are_refused_where_they_cannot_be_had() -> None:
    sizes = {"source_vocabulary_size": 9, "target_vocabulary_size": 9, "d_model": 8, "num_heads": 2, "d_ff": 8}
    with torch.device("meta"):
        model = Recurrent(ModelConfig(kind="recurrent", **sizes))  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match="`int8` is for CPUs, but the device is `cuda`: use `bf16` there"):
        to_eight_bits(model, "cuda")
    with pytest.raises(TransduceError, match="`int8` is for Transformers, but this model is of another kind"):
        to_eight_bits(model, "cpu")


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations_in_8_bits_by_kernels_do_not_depend_on_the_batch(
    tmp_path: Path, toy_settings: dict[str, Any], toy_corpus: Path, beam_size: int
) -> None:
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")
    wide = {"model.d_model": 64, "model.num_heads": 2, "training.steps": 30}
    train(out=tmp_path / "wide", settings=toy_settings | wide, device="cpu", threads=1)
    sentences = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:30]
    translator = load(tmp_path / "wide", precision="int8", threads=1)
    together = translator(sentences, beam_size=beam_size)
    apart = [translator(sentence, beam_size=beam_size) for sentence in reversed(sentences)]
    assert together == apart[::-1]
