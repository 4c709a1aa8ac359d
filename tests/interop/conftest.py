"""Small models with random weights, of any configuration, and a tokenizer that fits them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.interop.exported import ExportedModel
from transduce.model.build import Model, build_model
from transduce.model.config import ModelConfig
from transduce.model.norms import BatchNorm
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.runtime.comparison import Comparison, compare_models
from transduce.runtime.folder_writing import write_model_folder
from transduce.runtime.own_models import OwnModel
from transduce.runtime.translator import Translator
from transduce.text.corpus import CorpusFiles, read_pairs
from transduce.text.marks import MARKS
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

MakeModel = Callable[..., Model]
MakeTranslator = Callable[..., Translator]
WriteFolder = Callable[..., Path]
Compare = Callable[[Translator, ExportedModel], Comparison]


@pytest.fixture(scope="session")
def small_tokenizer(toy_corpus: Path) -> Tokenizer:
    """With 200 pieces or somewhat fewer."""
    files = CorpusFiles(source=(str(toy_corpus / "train.zh"),), target=(str(toy_corpus / "train.en"),))
    settings = TokenizerSettings(vocabulary_size=200, byte_fallback=False)
    return Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)


@pytest.fixture(scope="session")
def marked_tokenizer(toy_corpus: Path) -> Tokenizer:
    """The same with [CLS], [SEP] and [MASK]."""
    files = CorpusFiles(source=(str(toy_corpus / "train.zh"),), target=(str(toy_corpus / "train.en"),))
    settings = TokenizerSettings(vocabulary_size=200, byte_fallback=False, user_symbols=MARKS)
    return Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)


@pytest.fixture(scope="session")
def separate_tokenizer(toy_corpus: Path) -> Tokenizer:
    """With a vocabulary for each side, of different sizes."""
    files = CorpusFiles(source=(str(toy_corpus / "train.zh"),), target=(str(toy_corpus / "train.en"),))
    settings = TokenizerSettings(vocabulary_size=80, joint=False, byte_fallback=False)
    return Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)


@pytest.fixture
def make_model(small_tokenizer: Tokenizer) -> MakeModel:
    """A model by the settings that differ from a small one's, with weights that are all random, biases too."""

    def make(tokenizer: Tokenizer = small_tokenizer, **changes: Any) -> Model:
        torch.manual_seed(1)
        sizes: dict[str, Any] = {
            "source_vocabulary_size": tokenizer.source.size,
            "target_vocabulary_size": tokenizer.target.size,
            "num_encoder_layers": 2,
            "num_decoder_layers": 3,
            "d_model": 16,
            "d_ff": 24,
            "num_heads": 4,
        }
        model = build_model(ModelConfig(**(sizes | changes))).eval()
        # Scores that are not scaled make much of small differences, those of rounding too.
        spread = 0.05 if changes.get("attention_score") == "dot" else 0.2
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=spread)
            for module in model.modules():
                if isinstance(module, BatchNorm):
                    module.running_mean.normal_()
                    module.running_variance.uniform_(2.0, 9.0)
        return model

    return make


@pytest.fixture
def make_translator(small_tokenizer: Tokenizer, make_model: MakeModel) -> MakeTranslator:
    """The same of a model with an encoder and a decoder, with its tokenizer."""

    def make(**changes: Any) -> Translator:
        model = make_model(**changes)
        assert isinstance(model, Transformer | Recurrent)
        return Translator(model, small_tokenizer, source_language="zh", target_language="en")

    return make


@pytest.fixture
def write_folder() -> WriteFolder:
    """Writes a model as a folder."""

    def write(model: Model, tokenizer: Tokenizer, folder: Path, **documents: str) -> Path:
        write_model_folder(
            folder,
            weights=model.state_dict(),
            config=model.config,
            tokenizer=tokenizer,
            languages=("zh", "en"),
            documents=documents,
        )
        return folder

    return write


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
