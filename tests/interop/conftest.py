"""Small models with random weights, of any configuration, and a tokenizer that fits them."""

import copy
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sentencepiece import SentencePieceTrainer
from torch import Tensor

from transduce.exchange.comparison import ExportComparison, OriginalModel, compare_models
from transduce.inference.translator import Translator
from transduce.interop.components import ExportedModel
from transduce.model.build import Model, build_model
from transduce.model.config import ModelConfig
from transduce.model.norms import BatchNorm
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.model_folder.write import TransformersContent, write_model_folder
from transduce.text.corpus import CorpusFiles, read_pairs
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import SPECIAL_TOKENS

MakeModel = Callable[..., Model]
MakeTranslator = Callable[..., Translator]
WriteFolder = Callable[..., Path]
Compare = Callable[[Translator, ExportedModel], ExportComparison]

NLLB_TAGS = ["deu_Latn", "eng_Latn", "zho_Hans"]
NLLB_CONFIG: dict[str, Any] = {
    "model_type": "m2m_100",
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "activation_function": "relu",
    "scale_embedding": True,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


@pytest.fixture(scope="session")
def small_tokenizer(toy_corpus: Path) -> Tokenizer:
    """Return a tokenizer with at most 200 tokens."""
    files = CorpusFiles(source=(str(toy_corpus / "train.zh"),), target=(str(toy_corpus / "train.en"),))
    settings = TokenizerSettings(vocabulary_size=200, byte_fallback=False)
    return Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)


@pytest.fixture(scope="session")
def marked_tokenizer(toy_corpus: Path) -> Tokenizer:
    """Return a tokenizer with [CLS], [SEP] and [MASK] and at most 200 tokens."""
    files = CorpusFiles(source=(str(toy_corpus / "train.zh"),), target=(str(toy_corpus / "train.en"),))
    settings = TokenizerSettings(vocabulary_size=200, byte_fallback=False, user_symbols=SPECIAL_TOKENS)
    return Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)


@pytest.fixture(scope="session")
def separate_tokenizer(toy_corpus: Path) -> Tokenizer:
    """Return a tokenizer with vocabularies of different sizes for source and target."""
    files = CorpusFiles(source=(str(toy_corpus / "train.zh"),), target=(str(toy_corpus / "train.en"),))
    settings = TokenizerSettings(vocabulary_size=80, joint=False, byte_fallback=False)
    return Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)


@pytest.fixture
def make_model(small_tokenizer: Tokenizer) -> MakeModel:
    """Return a function that makes a small model with changed settings, whose weights and biases are all random."""

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
        # Unscaled attention scores amplify small differences, including those of rounding.
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
    """Return a function that makes a translator from an encoder–decoder with changed settings."""

    def make(**changes: Any) -> Translator:
        model = make_model(**changes)
        assert isinstance(model, Transformer | Recurrent)
        tokenizer = with_special_ids(small_tokenizer, model.config)
        return Translator(model, tokenizer, source_language="zh", target_language="en")

    return make


def with_special_ids(tokenizer: Tokenizer, config: ModelConfig) -> Tokenizer:
    """Return a joint tokenizer that has a model's ids of padding and end, for tests that pass token ids only."""
    if (config.pad_id, config.eos_id) == (tokenizer.target.pad_id, tokenizer.target.eos_id):
        return tokenizer
    fitting = copy.copy(tokenizer)
    fitting.source = fitting.target = copy.copy(tokenizer.target)
    fitting.target.pad_id, fitting.target.eos_id = config.pad_id, config.eos_id
    return fitting


@pytest.fixture
def write_folder() -> WriteFolder:
    """Return a function that writes a model folder."""

    def write(model: Model, tokenizer: Tokenizer, folder: Path, *, is_export: bool = False, **documents: str) -> Path:
        write_model_folder(
            folder,
            weights=model.state_dict(),
            config=model.config,
            tokenizer=tokenizer,
            languages=("zh", "en"),
            documents=documents,
            for_transformers=TransformersContent(is_export=is_export),
        )
        return folder

    return write


@pytest.fixture
def compare(small_tokenizer: Tokenizer) -> Compare:
    """Return a function that compares a model with an exported one on padded batches of sentences of many lengths."""

    def run(translator: Translator, exported: ExportedModel) -> ExportComparison:
        size = small_tokenizer.source.size
        sources = [
            small_tokenizer.source.with_special_tokens(
                3 + (7 * row + 5 * place) % (size - 3) for place in range(1 + 11 * row % 47)
            )
            for row in range(12)
        ]
        return compare_models(OriginalModel(translator), exported, sources, tokens=range(3, size), max_tokens=20)

    return run


def _bart_layer(place: str, attentions: list[str]) -> dict[str, Tensor]:
    tensors = {}
    for attention in attentions:
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors[f"{place}.{attention}.{part}.weight"] = torch.randn(16, 16) * 0.4
            tensors[f"{place}.{attention}.{part}.bias"] = torch.randn(16) * 0.2
    shapes = {"fc1.weight": (24, 16), "fc1.bias": (24,), "fc2.weight": (16, 24), "fc2.bias": (16,)}
    tensors |= {f"{place}.{name}": torch.randn(*shape) * 0.4 for name, shape in shapes.items()}
    for norm in (*(f"{attention}_layer_norm" for attention in attentions), "final_layer_norm"):
        tensors |= {f"{place}.{norm}.weight": torch.ones(16), f"{place}.{norm}.bias": torch.zeros(16)}
    return tensors


@pytest.fixture(scope="session")
def nllb(tmp_path_factory: pytest.TempPathFactory, toy_corpus: Path) -> Path:
    """Return a folder like those of NLLB models, with random weights, written without `transformers`."""
    folder = tmp_path_factory.mktemp("nllb")
    lines = [line for name in ("train.zh", "train.en") for line in (toy_corpus / name).read_text("utf-8").split("\n")]
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=150, minloglevel=2
    )
    (folder / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    size = 150 + 1 + len(NLLB_TAGS) + 1
    documents: dict[str, dict[str, Any]] = {
        "config.json": NLLB_CONFIG | {"vocab_size": size + 3},
        "tokenizer_config.json": {"tokenizer_class": "NllbTokenizer", "src_lang": "zho_Hans", "tgt_lang": "eng_Latn"},
        "special_tokens_map.json": {"additional_special_tokens": NLLB_TAGS, "unk_token": "<unk>"},
        "generation_config.json": {"num_beams": 3, "max_length": 12, "length_penalty": 1.5, "no_repeat_ngram_size": 2},
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content), "utf-8")
    torch.manual_seed(3)
    tensors = {"model.shared.weight": torch.randn(size + 3, 16) * 0.3}
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        tensors |= _bart_layer(f"model.{stack}.layers.0", attentions)
        tensors |= {
            f"model.{stack}.layer_norm.weight": torch.ones(16),
            f"model.{stack}.layer_norm.bias": torch.zeros(16),
        }
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _offline() -> Iterator[None]:
    """Keep libraries from opening network connections."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield
