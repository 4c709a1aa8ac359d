"""Write models in the shapes of well-known Hugging Face models, with random weights, for imported_speed.py.

    python benchmarks/imported_shapes.py opus-mt FOLDER      # writes FOLDER/hugging-face and FOLDER/ctranslate2

This runs in the peers' environment and imports no part of transduce. Vocabularies are made-up tokens: all engines get
token ids, so that no text is tokenized.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Name: class, configuration, and generation_config.json.
_BART_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
_OPUS_IDS = {"pad_token_id": 58_100, "eos_token_id": 0, "decoder_start_token_id": 58_100}
_T5_IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


def _stacks(layers: int, heads: int, inner: int) -> dict[str, int]:
    names = ("layers", "attention_heads", "ffn_dim")
    sizes = zip(names, (layers, heads, inner), strict=True)
    return {f"{side}_{name}": size for name, size in sizes for side in ("encoder", "decoder")}


def _m2m100(vocabulary_size: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    sizes = {"vocab_size": vocabulary_size, "d_model": 1024, "max_position_embeddings": 1024}
    own = {"activation_function": "relu", "scale_embedding": True}
    settings = sizes | own | _stacks(12, 16, 4096) | _BART_IDS
    return "M2M100ForConditionalGeneration", settings, {"max_length": 200} | _BART_IDS


SHAPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "opus-mt": (
        "MarianMTModel",
        {"vocab_size": 58_101, "d_model": 512, "scale_embedding": True, "activation_function": "swish"}
        | {"max_position_embeddings": 512, "static_position_embeddings": True}
        | _stacks(6, 8, 2048)
        | _OPUS_IDS,
        {"num_beams": 4, "forced_eos_token_id": 0, "bad_words_ids": [[58_100]], "renormalize_logits": True} | _OPUS_IDS,
    ),
    "t5-small": (
        "T5ForConditionalGeneration",
        {"vocab_size": 32_128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8} | _T5_IDS,
        _T5_IDS,
    ),
    "flan-t5-base": (
        "T5ForConditionalGeneration",
        {"vocab_size": 32_128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
        | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
        | _T5_IDS,
        _T5_IDS,
    ),
    "bart-base": (
        "BartForConditionalGeneration",
        {
            "vocab_size": 50_265,
            "d_model": 768,
            "max_position_embeddings": 1024,
            "activation_function": "gelu",
            "normalize_before": False,
        }
        | _stacks(6, 12, 3072)
        | _BART_IDS,
        {"forced_bos_token_id": 0, "forced_eos_token_id": 2, "no_repeat_ngram_size": 3, "early_stopping": True}
        | _BART_IDS,
    ),
    "nllb-600m": _m2m100(256_206),
    "m2m100-418m": _m2m100(128_112),
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
        | {"bos_token_id": 50_256, "eos_token_id": 50_256},
        {},
    ),
    "qwen2-0.5b": (
        "Qwen2ForCausalLM",
        {"vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14}
        | {"num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True}
        | {"max_position_embeddings": 32_768, "bos_token_id": 151_643, "eos_token_id": 151_645},
        {},
    ),
    "qwen3-0.6b": (
        "Qwen3ForCausalLM",
        {"vocab_size": 151_936, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16}
        | {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "tie_word_embeddings": True}
        | {"max_position_embeddings": 40_960, "bos_token_id": 151_643, "eos_token_id": 151_645},
        {},
    ),
}
LANGUAGE_MODELS = ("gpt2", "qwen2-0.5b", "qwen3-0.6b")
_DECODER = {"vocab_size": 32_000, "hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8}
_DECODER |= {"num_key_value_heads": 2, "intermediate_size": 1408, "max_position_embeddings": 1024}
_DECODER |= {"bos_token_id": 31_998, "eos_token_id": 31_999}
# Name: class and configuration, for fine_tuning_speed.py; the last two are of large families, at a small size.
FINE_TUNED: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: SHAPES[name][:2] for name in ("opus-mt", "t5-small", "gpt2")},
    "bert-base": ("BertForMaskedLM", {"pad_token_id": 0}),
    "t5-v1.1-small": (
        "T5ForConditionalGeneration",
        SHAPES["t5-small"][1]
        | {"d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"}
        | {"tie_word_embeddings": False},
    ),
    "qwen2-12x512": ("Qwen2ForCausalLM", _DECODER | {"tie_word_embeddings": True}),
    "llama-12x512": ("LlamaForCausalLM", _DECODER | {"tie_word_embeddings": False}),
}
FINE_TUNED_DECODERS = ("gpt2", "qwen2-12x512", "llama-12x512")
_FINAL_NORMS = {
    "MarianMTModel": "model.decoder.layers.5.final_layer_norm",
    "BartForConditionalGeneration": "model.decoder.layers.5.final_layer_norm",
    "M2M100ForConditionalGeneration": "model.decoder.layer_norm",
    "T5ForConditionalGeneration": "decoder.final_layer_norm",
    "GPT2LMHeadModel": "transformer.ln_f",
    "Qwen2ForCausalLM": "model.norm",
    "Qwen3ForCausalLM": "model.norm",
}
_SPREAD = 2.5  # standard deviation of a row of logits, about that of trained models


def write(name: str, folder: Path) -> None:
    """Write a model as a Hugging Face folder without a tokenizer, and as a folder of CTranslate2."""
    import torch
    import transformers
    from ctranslate2.converters.transformers import _MODEL_LOADERS

    kind, settings, generation = SHAPES[name]
    torch.manual_seed(1)
    model_class = getattr(transformers, kind)
    model = model_class._from_config(model_class.config_class(**settings)).eval()
    spread_logits(model)
    for table in (table for place, table in model.named_buffers() if place == "final_logits_bias"):
        table[:, settings["pad_token_id"]] = -1e4  # the padding symbol is never the likeliest token
    model.save_pretrained(folder / "hugging-face")
    (folder / "hugging-face" / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    tokens = [f"t{id}" for id in range(settings["vocab_size"])]
    names = {f"{part}_token": tokens[settings.get(f"{part}_token_id", 3)] for part in ("bos", "eos", "pad", "unk")}
    tokenizer = SimpleNamespace(**names, convert_ids_to_tokens=tokens.__getitem__, special_tokens_map={})
    loader: Any = _MODEL_LOADERS[type(model.config).__name__]
    spec = loader.get_model_spec(model)
    loader.set_config(spec.config, model, tokenizer)
    loader.set_vocabulary(spec, tokens[:-1] if name == "opus-mt" else tokens)  # Marian's padding symbol is dropped
    spec.validate()
    spec.optimize(quantization=None)
    (folder / "ctranslate2").mkdir(parents=True, exist_ok=True)
    spec.save(str(folder / "ctranslate2"))


def spread_logits(model: Any) -> None:
    """Scale a model's last norm so that its logits differ as those of trained models do.

    Random weights give almost equal logits. Engines that recompute the largest logits exactly would recompute all.
    """
    import torch

    ids = torch.randint(10, 10_000, (4, 16))
    with torch.no_grad():
        decoder_ids = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        norm = model.get_submodule(_FINAL_NORMS[type(model).__name__])
        norm.weight *= _SPREAD / model(input_ids=ids, **decoder_ids).logits.std(dim=-1).mean()


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
