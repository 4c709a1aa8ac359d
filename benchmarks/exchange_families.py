"""Model families that exchange.py exports and imports, with random weights in all parameters.

Legend: B rows, S source length, T target length.
"""

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from transduce.interop.hugging_face.import_weights import StoredTensors, import_model
from transduce.model.build import Model, build_model
from transduce.model.config import ModelConfig
from transduce.text.tokenizer import Tokenizer

# --- export ---

# Unscaled scores and gated layers amplify small differences: with the default noise,
# float32 rounding would change the results by more than the bar.
_SPREAD, _SPREAD_UNSCALED, _SPREAD_GATED = 0.1, 0.02, 0.05
_LEARNED = {"positions": "learned", "position_offset": 2, "embedding_norm": True}
_BERT = {
    "kind": "encoder",
    "norm_order": "post",
    "positions": "learned",
    "max_positions": 512,
    "embedding_norm": True,
    "token_types": 2,
    "activation": "gelu",
    "scale_embeddings": False,
}
_DECODER = {"kind": "decoder", "scale_embeddings": False, "start_id": 1}
_NUMBERED = {"position_offset": 2, "pad_id": 1, "eos_id": 2, "start_id": 0}
_MPNET = {"output_bias": True, "relative_bias": True, "token_types": 0}
_LLAMA: dict[str, Any] = _DECODER | {
    "positions": "rotary",
    "norm": "rms",
    "activation": "swiglu",
    "num_key_value_heads": 2,
    "bias": False,
}


class Family(NamedTuple):
    """A model architecture to be exported."""

    name: str
    changes: dict[str, Any]
    """Settings that differ from the defaults."""
    separate: bool = False
    """True if source and target have separate vocabularies."""
    spread: float = _SPREAD
    """Standard deviation of the noise added to all weights."""


OUT = (
    Family("pre-norm, sinusoids (the default)", {}),
    Family("post-norm, sinusoids", {"norm_order": "post"}),
    Family("post-norm, sinusoids, two vocabularies", {"norm_order": "post", "tie_source_target": False}, separate=True),
    Family("post-norm, learned positions from 2, embedding norm", _LEARNED | {"norm_order": "post"}),
    Family("pre-norm, learned positions from 2, embedding norm", _LEARNED),
    Family(
        "pre-norm, sinusoids from 2 to the end, padding id 1",
        {"position_offset": 2, "sinusoids_to_end": True, "pad_id": 1, "eos_id": 2, "start_id": 2},
    ),
    Family(
        "bias by distance, RMSNorm, GEGLU, no biases, unscaled scores",
        {
            "positions": "relative",
            "norm": "rms",
            "activation": "geglu-tanh",
            "bias": False,
            "attention_score": "dot",
            "scale_embeddings": False,
            "output_scale": 0.125,
        },
        spread=_SPREAD_UNSCALED,
    ),
    Family(
        "rotary, RMSNorm, SwiGLU, shared heads, no biases",
        {"positions": "rotary", "norm": "rms", "activation": "swiglu", "num_key_value_heads": 2, "bias": False},
    ),
    Family("sandwich norms, GELU", {"norm_order": "sandwich", "activation": "gelu"}),
    Family("general score, window of 8", {"attention_score": "general", "attention_window": 8}),
    Family("LSTM, general score (Luong)", {"kind": "recurrent", "attention_score": "general"}),
    Family(
        "GRU, additive score before the step (Bahdanau)",
        {
            "kind": "recurrent",
            "recurrent_cell": "gru",
            "recurrent_attention": "bahdanau",
            "attention_score": "additive",
        },
    ),
    Family("encoder, masked words", _BERT | {"output_bias": True}),
    Family("encoder, masked words and next sentence", _BERT | {"output_bias": True, "num_labels": 2, "pooler": True}),
    Family("encoder, classes", _BERT | {"masked_language_head": False, "num_labels": 5}),
    Family(
        "encoder, masked words, embeddings of 32, shared layers",
        _BERT | {"output_bias": True, "embedding_size": 32, "share_layers": True},
    ),
    Family("encoder, masked words, bias by distance besides learned positions", _BERT | _NUMBERED | _MPNET),
    Family(
        "decoder, learned positions, GELU (the default)",
        _DECODER | {"positions": "learned", "max_positions": 512, "activation": "gelu-tanh"},
    ),
    Family(
        "decoder, learned positions from 2, ReLU",
        _DECODER | {"positions": "learned", "max_positions": 512, "position_offset": 2},
    ),
    Family("decoder, rotary, RMSNorm, SwiGLU, shared heads, no biases", _LLAMA, spread=_SPREAD_GATED),
    Family("the same, window of 8", _LLAMA | {"attention_window": 8}, spread=_SPREAD_GATED),
    Family(
        "the same, no window, tanh-GEGLU, scaled embeddings",
        _LLAMA | {"activation": "geglu-tanh", "scale_embeddings": True},
        spread=_SPREAD_GATED,
    ),
    Family("decoder, bias by distance, sandwich norms", _DECODER | {"positions": "relative", "norm_order": "sandwich"}),
)


def make_model(tokenizer: Tokenizer, family: Family) -> Model:
    """Build a model with 4 (and 4) layers × 64; recurrent ones have 2 and 2 layers."""
    torch.manual_seed(1)
    changes = family.changes
    layers = 2 if changes.get("kind") == "recurrent" else 4
    sizes: dict[str, Any] = {"num_encoder_layers": layers, "num_decoder_layers": layers, "d_model": 64, "d_ff": 128}
    vocabulary = {"source_vocabulary_size": tokenizer.source.size, "target_vocabulary_size": tokenizer.target.size}
    model = build_model(ModelConfig(**(sizes | vocabulary | {"num_heads": 4} | changes)))
    with_noise(model, family.spread)
    return model.eval()


def with_noise(model: nn.Module, spread: float, fixed: str = " ") -> None:
    """Add noise to all parameters except those whose name contains `fixed`, so that misplaced initial zeros or ones
    show up.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if fixed not in name:
                parameter.add_(torch.randn_like(parameter), alpha=spread)


# --- import ---

_VOCABULARY = 500
_BART = {
    "vocab_size": _VOCABULARY,
    "d_model": 64,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_PADDING_LAST = {"pad_token_id": _VOCABULARY - 1, "eos_token_id": 0, "decoder_start_token_id": _VOCABULARY - 1}
_PADDING_FIRST = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
_T5 = {"vocab_size": _VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 4, "num_heads": 4}
_BERT_LIKE = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
_DISTILBERT = {"vocab_size": _VOCABULARY, "dim": 64, "n_layers": 4, "n_heads": 4, "hidden_dim": 128}
_GPT2 = {"vocab_size": _VOCABULARY, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_ALL_WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
_SEPARATE_VOCABULARIES = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": _VOCABULARY}

IN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("MarianMTModel", _BART | _PADDING_LAST | {"scale_embedding": True, "activation_function": "silu"}),
    ("MarianMTModel", _BART | _PADDING_LAST | _SEPARATE_VOCABULARIES),
    (
        "PegasusForConditionalGeneration",
        _BART | _PADDING_FIRST | {"scale_embedding": True, "activation_function": "relu"},
    ),
    ("M2M100ForConditionalGeneration", _BART | {"scale_embedding": True, "activation_function": "relu"}),
    ("BartForConditionalGeneration", _BART),
    ("MBartForConditionalGeneration", _BART),
    ("T5ForConditionalGeneration", _T5 | {"decoder_start_token_id": 0}),
    (
        "T5ForConditionalGeneration",
        _T5 | {"decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu"},
    ),
    # mT5's logits are not scaled: with default weights they are too large for float32 to meet the bar.
    (
        "MT5ForConditionalGeneration",
        _T5 | {"decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu", "initializer_factor": 0.25},
    ),
    ("BertForMaskedLM", _BERT_LIKE),
    ("BertForSequenceClassification", _BERT_LIKE | {"num_labels": 5}),
    ("DistilBertForMaskedLM", _DISTILBERT),
    ("DistilBertForSequenceClassification", _DISTILBERT | {"num_labels": 5}),
    ("ElectraForMaskedLM", _BERT_LIKE | {"embedding_size": 64}),
    ("ElectraForSequenceClassification", _BERT_LIKE | {"embedding_size": 64, "num_labels": 5}),
    ("ElectraForMaskedLM", _BERT_LIKE | {"embedding_size": 32}),
    ("AlbertForMaskedLM", _BERT_LIKE | {"embedding_size": 32}),
    ("AlbertForSequenceClassification", _BERT_LIKE | {"embedding_size": 32, "num_labels": 5}),
    ("RobertaForMaskedLM", _BERT_LIKE | _ENDS | {"pad_token_id": 1, "bos_token_id": 0, "type_vocab_size": 1}),
    ("MPNetForMaskedLM", _BERT_LIKE | _ENDS | {"pad_token_id": 1, "bos_token_id": 0}),
    ("MPNetForSequenceClassification", _BERT_LIKE | _ENDS | {"pad_token_id": 1, "bos_token_id": 0, "num_labels": 5}),
    ("GPT2LMHeadModel", _GPT2 | {"bos_token_id": 2, "eos_token_id": 2}),
    ("LlamaForCausalLM", _BERT_LIKE | _ENDS | {"num_key_value_heads": 2}),
    ("MistralForCausalLM", _BERT_LIKE | _ENDS | {"num_key_value_heads": 2, "sliding_window": None}),
    ("MistralForCausalLM", _BERT_LIKE | _ENDS | {"num_key_value_heads": 2, "sliding_window": 8}),
    ("Qwen2ForCausalLM", _BERT_LIKE | _ENDS | {"num_key_value_heads": 2}),
    ("Qwen2ForCausalLM", _BERT_LIKE | _ENDS | {"num_key_value_heads": 2} | _ALL_WINDOWS),
    ("Qwen3ForCausalLM", _BERT_LIKE | _ENDS | {"num_key_value_heads": 2, "head_dim": 32}),
    ("Qwen3ForCausalLM", _BERT_LIKE | _ENDS | {"num_key_value_heads": 2, "head_dim": 32} | _ALL_WINDOWS),
    ("Phi3ForCausalLM", _BERT_LIKE | _ENDS | {"num_key_value_heads": 2, "pad_token_id": 0}),
    ("GemmaForCausalLM", _BERT_LIKE | _ENDS | {"num_key_value_heads": 1, "head_dim": 32}),
    ("OPTForCausalLM", _BERT_LIKE | _ENDS | {"ffn_dim": 128, "max_position_embeddings": 128}),
)


def brought_in() -> Iterator[tuple[str, float]]:
    """Yield the class of each model that transformers created, and its largest difference after import, in nats."""
    transformers: Any = import_module("transformers")
    transformers.logging.disable_progress_bar()
    for name, settings in IN:
        torch.manual_seed(1)
        kind = getattr(transformers, name)
        sinusoidal = name.startswith(("Marian", "Pegasus", "M2M100"))
        fixed = "embed_positions" if sinusoidal else " "
        theirs = kind._from_config(kind.config_class(**settings)).eval()
        with_noise(theirs, _SPREAD_UNSCALED if name.startswith(("T5", "MT5")) else _SPREAD, fixed)
        with tempfile.TemporaryDirectory() as folder:
            yield f"{name}, {_describe(settings)}", _difference(theirs, Path(folder))


def _describe(settings: dict[str, Any]) -> str:
    if "share_encoder_decoder_embeddings" in settings:
        return "two vocabularies"
    if settings.get("sliding_window") is not None:
        return f"a window of {settings['sliding_window']}"
    return str(settings.get("feed_forward_proj", "one vocabulary"))


def _difference(theirs: Any, folder: Path) -> float:
    theirs.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    content = json.loads((folder / "config.json").read_text("utf-8"))
    start = {"start_id": content["decoder_start_token_id"]} if content.get("is_encoder_decoder") else {}
    readers = {name: partial(tensors.__getitem__, name) for name in tensors}
    found = import_model(content, StoredTensors(readers, str(folder)), start)
    ours: Any = build_model(found.config).eval()
    ours.load_state_dict(found.weights)
    return _compare(ours, theirs)


@torch.inference_mode()
def _compare(ours: Any, theirs: Any) -> float:
    """Return the largest difference of log-probabilities at non-padding positions, for 32 rows of up to 60 tokens."""
    config = ours.config
    lengths = torch.randint(1, 61, (32, 1))
    present = torch.arange(60) < lengths  # (B, S)
    ids = torch.where(present, torch.randint(5, _VOCABULARY - 2, (32, 60)), torch.tensor(config.pad_id))
    given = {"input_ids": ids, "attention_mask": present.long()}
    if config.kind == "transformer":
        target = torch.randint(5, _VOCABULARY - 2, (32, 40))
        target[:, 0] = config.start_id
        return _largest(ours(ids, target), theirs(**given, decoder_input_ids=target).logits)
    if config.num_labels:
        return _largest(ours.classify(ours.encode(ids)[0]), theirs(**given).logits)
    return _largest(ours(ids)[present], theirs(**given).logits[present])


def _largest(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference of log-probabilities in nats; beyond 10 nats, relative to a tenth of the value."""
    known, found = ours.log_softmax(dim=-1), theirs.log_softmax(dim=-1)
    return float(((known - found).abs() / (known.abs() / 10.0).clamp_min(1.0)).max())
