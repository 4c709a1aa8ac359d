"""Test the precisions `int8` and `bf16` as users see them."""

import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.inference.scorers import EncoderDecoderScorer
from transduce.inference.translator import Translator
from transduce.inspection.interventions import Head, Intervention, intervene
from transduce.kernels.select import compiled_state
from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer
from transduce.model.recurrent import Recurrent
from transduce.model_folder.load import quantize_to_int8
from transduce.search.settings import SearchSettings
from transduce.tasks.train import train


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_translations_are_nearly_those_in_float32(trained: Path, toy_corpus: Path, precision: str) -> None:
    sentences = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:40]
    exact, fast = (open_translator(trained, precision=each, device="cpu", threads=1) for each in ("fp32", precision))
    assert (exact.precision, fast.precision) == ("fp32", precision)
    for beam_size in (1, 4):
        pairs = zip(exact(sentences, beam_size=beam_size), fast(sentences, beam_size=beam_size), strict=True)
        equal = sum(one.text == other.text for one, other in pairs)
        assert equal >= 0.8 * len(sentences)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_batch_invariant_search_gives_equal_results_in_int8(trained: Path, toy_corpus: Path, beam_size: int) -> None:
    sentences = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:12]
    translator = open_translator(trained, precision="int8", threads=1)
    search = SearchSettings(beam_size=beam_size, batch_invariant=True)
    together = translator.translate(sentences, search)
    for sentence, expected in zip(sentences, together, strict=True):
        assert translator.translate([sentence], search)[0].alternatives == expected.alternatives


def test_int8_is_refused_on_gpus_and_for_recurrent_models() -> None:
    sizes = {"source_vocabulary_size": 9, "target_vocabulary_size": 9, "d_model": 8, "num_heads": 2, "d_ff": 8}
    with torch.device("meta"):
        model = Recurrent(ModelConfig(kind="recurrent", **sizes))  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match="`int8` is for CPUs, but the device is `cuda`: use `bf16` there"):
        quantize_to_int8(model, "cuda")
    refusal = (
        "`int8` is for Transformers that read or write text, but this model is of the kind `recurrent`: use `fp32`."
    )
    with pytest.raises(TransduceError, match=re.escape(refusal)):
        quantize_to_int8(model, "cpu")


# --- by kernels ---


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory, toy_settings: dict[str, Any]) -> Path:
    """Return the folder of a model that is wide enough for the kernels."""
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")
    folder = tmp_path_factory.mktemp("wide") / "model"
    sizes = {"model.d_model": 64, "model.num_heads": 2, "training.steps": 30}
    train(out=folder, settings=toy_settings | sizes, device="cpu", threads=1)
    return folder


def load_by_kernels(folder: Path, precision: str) -> Translator:
    """Return a translator that runs by kernels on two threads; skip the test if the processor lacks them."""
    translator = open_translator(folder, precision=precision, device="cpu", threads=2)
    state = EncoderDecoderScorer(translator.model, torch.tensor([[5, 1]])).state
    if compiled_state(state) is None:
        pytest.skip(f"there are no kernels for {precision} on this processor")
    return translator


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("precision", ["int8", "bf16", "fp32"])
def test_translations_by_kernels_do_not_depend_on_the_batch(
    wide_model: Path, toy_corpus: Path, precision: str, beam_size: int
) -> None:
    sentences = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:30]
    translator = load_by_kernels(wide_model, precision)
    together = translator(sentences, beam_size=beam_size)
    apart = [translator(sentence, beam_size=beam_size) for sentence in reversed(sentences)]
    assert together == apart[::-1]
    torch.set_num_threads(1)
    assert translator(sentences, beam_size=beam_size) == together
    search = SearchSettings(beam_size=beam_size, batch_invariant=True)
    assert [found.text for found in translator(sentences, search=search)] == [found.text for found in together]


@pytest.mark.parametrize("precision", ["int8", "bf16", "fp32"])
def test_scoring_a_translation_gives_the_score_of_its_search(
    wide_model: Path, toy_corpus: Path, precision: str
) -> None:
    sentences = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:12]
    translator = load_by_kernels(wide_model, precision)
    found = translator(sentences, beam_size=4)
    scored = translator.score(sentences, [translation.text for translation in found])
    # Scoring attends by PyTorch: the last bit of a number between two steps, of 6 to 12 bits, rounds it to either.
    most = {"int8": 5e-3, "bf16": 1e-4, "fp32": 1e-6}[precision]
    pairs = [(translation.score, own.score) for translation, own in zip(found, scored, strict=True)]
    differences = [abs(one - other) / max(1.0, abs(one)) for one, other in pairs]
    assert max(differences) < most
    assert median(differences) < 1e-6


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_disabling_a_head_with_zero_output_weights_changes_nothing(
    wide_model: Path, toy_corpus: Path, precision: str
) -> None:
    """Both sides of the comparison are computed alike, though kernels do not support disabled heads."""
    translator = load_by_kernels(wide_model, precision)
    layer = translator.transformer.decoder_layers[0]
    assert isinstance(layer, DecoderLayer)
    attention = layer.memory_attention
    with torch.no_grad():
        attention.output.weight[:, : attention.d_v] = 0.0
    change = Intervention(heads_off=(Head("memory", 0, 0),))
    for sentence in (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:5]:
        both = intervene(translator, sentence, change, search=SearchSettings(beam_size=3))
        assert both.before == both.after
