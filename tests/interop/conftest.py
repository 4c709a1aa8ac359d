"""Small models with random weights, of any configuration, and a tokenizer that fits them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.interop.exported import ExportedModel
from transduce.model.config import ModelConfig
from transduce.model.norms import BatchNorm
from transduce.model.transformer import Transformer
from transduce.runtime.comparison import Comparison, OwnModel, compare_models
from transduce.runtime.translator import Translator
from transduce.text.corpus import CorpusFiles, read_pairs
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

MakeTranslator = Callable[..., Translator]
Compare = Callable[[Translator, ExportedModel], Comparison]


@pytest.fixture(scope="session")
def small_tokenizer(toy_corpus: Path) -> Tokenizer:
    """With 200 pieces or somewhat fewer."""
    files = CorpusFiles(source=(str(toy_corpus / "train.zh"),), target=(str(toy_corpus / "train.en"),))
    settings = TokenizerSettings(vocabulary_size=200, byte_fallback=False)
    return Tokenizer.train(lambda: read_pairs(files), settings, shrink=True)


@pytest.fixture
def make_translator(small_tokenizer: Tokenizer) -> MakeTranslator:
    """A model by the settings that differ from a small one's, with weights that are all random, biases too."""

    def make(**changes: Any) -> Translator:
        torch.manual_seed(1)
        sizes: dict[str, Any] = {
            "source_vocabulary_size": small_tokenizer.source.size,
            "target_vocabulary_size": small_tokenizer.target.size,
            "num_encoder_layers": 2,
            "num_decoder_layers": 3,
            "d_model": 16,
            "d_ff": 24,
            "num_heads": 4,
        }
        model = Transformer(ModelConfig(**(sizes | changes))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            for module in model.modules():
                if isinstance(module, BatchNorm):
                    module.running_mean.normal_()
                    module.running_variance.uniform_(2.0, 9.0)
        return Translator(model, small_tokenizer, source_language="zh", target_language="en")

    return make


@pytest.fixture
def compare(small_tokenizer: Tokenizer) -> Compare:
    """Compares a model with an exported one on sentences of many lengths, in batches with padding."""

    def run(translator: Translator, exported: ExportedModel) -> Comparison:
        size = small_tokenizer.source.size
        sources = [[3 + (7 * row + 5 * place) % (size - 3) for place in range(1 + 11 * row % 47)] for row in range(12)]
        return compare_models(OwnModel(translator), exported, sources, pieces=range(3, size), most_pieces=20)

    return run


@pytest.fixture(scope="session", autouse=True)
def _offline() -> Iterator[None]:
    """No library may ask a network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield
