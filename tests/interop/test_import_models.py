"""Test random models of transformers after import: the same logits, and the same output as `generate`."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from transduce.acceleration import make_inference_copy, select_decoder
from transduce.errors import TransduceError
from transduce.inference.compiled_search import CompiledSearch, find_compiled_search
from transduce.inference.decoding import SentenceBatch, start_search
from transduce.inference.scorers import DecoderOnlyScorer
from transduce.interop.hugging_face.import_settings import IMPORT_FAMILIES, ConfigReader, names_of
from transduce.interop.hugging_face.import_weights import ImportedModel, StoredTensors, import_model
from transduce.interop.hugging_face.stored_names import StoredParameter, find_names
from transduce.model.build import build_model
from transduce.model.transformer import Decoder, Encoder, Transformer
from transduce.search.beam import BeamOptions
from transduce.search.rules import GenerateSettings, RepetitionPenalty
from transduce.search.scorer import SequenceLimits, run_search
from transduce.search.settings import SearchSettings
from transduce.text.vocabulary import Vocabulary

V = 50
NEW_PIECES = 14


def bart_like(**changes: Any) -> dict[str, Any]:
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 40}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "vocab_size": V}
    return sizes | heads | ids | changes


T5: dict[str, Any] = {"vocab_size": V, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
T5 |= {"num_decoder_layers": 1, "decoder_start_token_id": 0}
DISTILBERT = {"vocab_size": V, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24}
BERT = {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
ALBERT = BERT | {"embedding_size": 8}
MPNET = BERT | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
GPT2 = {
    "vocab_size": V,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 30,
    "bos_token_id": 2,
    "eos_token_id": 2,
}
OPT = {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24}
OPT |= {"max_position_embeddings": 30, "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
LLAMA = BERT | {"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 30}
ROTATION = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROTATION |= {"original_max_position_embeddings": 8, "rope_theta": 500.0}
PADDING_FIRST = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
MARIAN = {"pad_token_id": V - 1, "eos_token_id": 0, "decoder_start_token_id": V - 1}

ENCODER_DECODERS = [
    ("BartForConditionalGeneration", bart_like()),
    ("BartForConditionalGeneration", bart_like(activation_function="relu", scale_embedding=True, encoder_layers=1)),
    ("MBartForConditionalGeneration", bart_like(decoder_layers=3)),
    ("MarianMTModel", bart_like(**MARIAN, scale_embedding=True, activation_function="silu")),
    ("MarianMTModel", bart_like(**MARIAN, d_model=24, decoder_layers=2)),
    ("PegasusForConditionalGeneration", bart_like(**PADDING_FIRST, scale_embedding=True, activation_function="relu")),
    ("M2M100ForConditionalGeneration", bart_like(decoder_ffn_dim=32, encoder_ffn_dim=32)),
    ("T5ForConditionalGeneration", T5),
    ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("T5ForConditionalGeneration", T5 | {"d_kv": 8, "feed_forward_proj": "gated-silu"}),
    ("MT5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu"}),
]
ENCODERS: list[tuple[str, dict[str, Any]]] = [
    ("BertForMaskedLM", BERT),
    ("BertForMaskedLM", BERT | {"hidden_act": "relu", "type_vocab_size": 3, "num_hidden_layers": 1}),
    ("RobertaForMaskedLM", BERT | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}),
    ("DistilBertForMaskedLM", DISTILBERT),
    ("DistilBertForMaskedLM", DISTILBERT | {"activation": "relu", "sinusoidal_pos_embds": True, "n_layers": 1}),
    ("ElectraForMaskedLM", BERT | {"embedding_size": 16}),
    ("ElectraForMaskedLM", ALBERT),
    ("AlbertForMaskedLM", ALBERT),
    ("AlbertForMaskedLM", ALBERT | {"embedding_size": 16, "hidden_act": "relu", "num_hidden_layers": 3}),
    ("MPNetForMaskedLM", MPNET),
    ("MPNetForMaskedLM", MPNET | {"hidden_size": 24, "num_hidden_layers": 3}),
]
CLASSIFIERS: list[tuple[str, dict[str, Any]]] = [
    ("BertForSequenceClassification", BERT | {"num_labels": 3}),
    ("RobertaForSequenceClassification", BERT | {"num_labels": 4, "pad_token_id": 1}),
    ("DistilBertForSequenceClassification", DISTILBERT | {"num_labels": 3}),
    ("ElectraForSequenceClassification", BERT | {"num_labels": 3, "embedding_size": 16}),
    ("ElectraForTokenClassification", BERT | {"num_labels": 3, "embedding_size": 16}),
    ("ElectraForSequenceClassification", ALBERT | {"num_labels": 3}),
    ("AlbertForSequenceClassification", ALBERT | {"num_labels": 3}),
    ("AlbertForTokenClassification", ALBERT | {"num_labels": 3, "hidden_act": "gelu"}),
    ("MPNetForSequenceClassification", MPNET | {"num_labels": 3}),
    ("MPNetForTokenClassification", MPNET | {"num_labels": 4}),
    ("DistilBertForTokenClassification", DISTILBERT | {"num_labels": 3}),
    ("BertForTokenClassification", BERT | {"num_labels": 3}),
    ("RobertaForTokenClassification", BERT | {"num_labels": 4, "pad_token_id": 1}),
]
DECODERS = [
    ("GPT2LMHeadModel", GPT2),
    ("GPT2LMHeadModel", GPT2 | {"n_inner": 20, "activation_function": "gelu"}),
    ("LlamaForCausalLM", LLAMA),
    ("LlamaForCausalLM", LLAMA | {"num_key_value_heads": 2, "head_dim": 8, "attention_bias": True, "mlp_bias": True}),
    ("LlamaForCausalLM", LLAMA | {"tie_word_embeddings": True, "rope_parameters": ROTATION}),
    ("MistralForCausalLM", LLAMA | {"num_key_value_heads": 2, "sliding_window": None}),
    ("Qwen2ForCausalLM", LLAMA | {"num_key_value_heads": 2}),
    ("Qwen2ForCausalLM", LLAMA | {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    ("Qwen3ForCausalLM", LLAMA | {"num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-3}),
    ("Qwen3ForCausalLM", LLAMA | {"num_key_value_heads": 4, "attention_bias": True, "tie_word_embeddings": True}),
    ("GemmaForCausalLM", LLAMA | {"num_key_value_heads": 1, "head_dim": 8}),
    (
        "GemmaForCausalLM",
        LLAMA | {"head_dim": 4, "num_key_value_heads": 4, "hidden_act": "gelu", "attention_bias": True},
    ),
    ("OPTForCausalLM", OPT),
    ("OPTForCausalLM", OPT | {"activation_function": "gelu", "enable_bias": False, "tie_word_embeddings": False}),
    ("Phi3ForCausalLM", LLAMA | {"pad_token_id": 0, "num_key_value_heads": 2, "rms_norm_eps": 1e-3}),
    ("Phi3ForCausalLM", LLAMA | {"pad_token_id": 0, "tie_word_embeddings": True, "sliding_window": 6}),
    ("MistralForCausalLM", LLAMA | {"num_key_value_heads": 2, "sliding_window": 5}),
    ("MistralForCausalLM", LLAMA | {"num_key_value_heads": 1, "sliding_window": 30}),
    (
        "Qwen2ForCausalLM",
        LLAMA | {"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    ),
    (
        "Qwen2ForCausalLM",
        LLAMA | {"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
    ),
    (
        "Qwen3ForCausalLM",
        LLAMA | {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
    ),
]


def peer(name: str, settings: Mapping[str, Any], *, seed: int = 1, spread: float = 0.2) -> Any:
    """Return a model of transformers whose parameters, including biases and norms, are all random."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    torch.manual_seed(seed)
    kind = getattr(transformers, name)
    model = kind._from_config(kind.config_class(**settings)).eval()
    fixed = "embed_positions" if name.startswith(("Marian", "Pegasus", "M2M100")) else "nothing"
    with torch.no_grad():
        for parameter in (p for place, p in model.named_parameters() if fixed not in place):
            parameter.add_(torch.randn_like(parameter), alpha=spread)
        for buffer in (b for place, b in model.named_buffers() if place == "final_logits_bias"):
            buffer.normal_()
    return model


def stored(model: Any, folder: Path) -> tuple[dict[str, Any], StoredTensors]:
    """Return the tensors and configuration that transformers saves for a model."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    readers = {name: partial(tensors.__getitem__, name) for name in tensors}
    return json.loads((folder / "config.json").read_text("utf-8")), StoredTensors(readers, str(folder))


def import_peer(model: Any, folder: Path) -> Any:
    content, tensors = stored(model, folder)
    start = {"start_id": content["decoder_start_token_id"]} if content.get("is_encoder_decoder") else {}
    found = import_model(content, tensors, start)
    ours = build_model(found.config)
    ours.load_state_dict(found.weights)
    return ours.eval()


def padded(pad_id: int) -> tuple[Tensor, Tensor]:
    """Return sources of several lengths, (3, 12), and an attention mask with 0 at padding."""
    lengths = torch.tensor([[12], [7], [1]])
    ids = torch.randint(5, V - 2, (3, 12))
    present = torch.arange(12) < lengths
    return torch.where(present, ids, torch.tensor(pad_id)), present.long()


@pytest.mark.parametrize(("name", "settings"), ENCODER_DECODERS)
def test_encoder_decoders_compute_the_same(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    theirs = peer(name, settings)
    ours = import_peer(theirs, tmp_path)
    source, present = padded(theirs.config.pad_token_id)
    target = torch.randint(5, V - 2, (3, 9))
    target[:, 0] = theirs.config.decoder_start_token_id
    with torch.inference_mode():
        expected = theirs(input_ids=source, attention_mask=present, decoder_input_ids=target).logits
        assert isinstance(ours, Transformer)
        assert float((ours(source, target) - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize(("name", "settings"), ENCODERS + CLASSIFIERS)
def test_encoders_compute_the_same(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    theirs = peer(name, settings)
    ours = import_peer(theirs, tmp_path)
    ids, present = padded(theirs.config.pad_token_id)
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=present).logits
        assert isinstance(ours, Encoder)
        if "TokenClassification" in name:
            found, expected = ours.label_tokens(ours.encode(ids)[0])[present.bool()], expected[present.bool()]
        elif "num_labels" in settings:
            found = ours.classify(ours.encode(ids)[0])
        else:
            found, expected = ours(ids)[present.bool()], expected[present.bool()]
    assert float((found - expected).abs().max()) < 1e-5


def test_a_tagger_of_an_old_file_has_a_pooler_that_nothing_reads(tmp_path: Path) -> None:
    theirs = peer("BertForTokenClassification", BERT | {"num_labels": 3})
    content, tensors = stored(theirs, tmp_path)
    shapes = {"weight": (16, 16), "bias": (16,)}
    pooler = {f"bert.pooler.dense.{part}": partial(torch.randn, *shape) for part, shape in shapes.items()}
    found = import_model(content, StoredTensors({**tensors.names, **pooler}, "folder"), {})
    assert (found.config.token_labels, found.config.pooler, found.config.num_labels) == (True, False, 3)


def test_an_electra_that_finds_replaced_tokens_gives_the_states_of_transformers(tmp_path: Path) -> None:
    theirs = peer("ElectraForPreTraining", BERT | {"embedding_size": 16})
    ours = import_peer(theirs, tmp_path)
    ids, present = padded(0)
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=present, output_hidden_states=True).hidden_states[-1]
        difference = (ours.encode(ids)[0] - expected)[present.bool()]
    assert float(difference.abs().max()) < 1e-5
    assert (ours.config.masked_language_head, ours.config.num_labels, ours.config.pooler) == (False, 0, False)


@pytest.mark.parametrize("name", ["RobertaForMaskedLM", "RobertaForSequenceClassification"])
def test_an_unused_pooler_in_a_roberta_file_is_accepted(name: str, tmp_path: Path) -> None:
    """The files of roberta-base and xlm-roberta-base have a pooler that no head uses."""
    theirs = peer(name, BERT | {"pad_token_id": 1, "type_vocab_size": 1, "num_labels": 3})
    content, tensors = stored(theirs, tmp_path)
    shapes = {"weight": (16, 16), "bias": (16,)}
    pooler = {f"roberta.pooler.dense.{part}": partial(torch.randn, *shape) for part, shape in shapes.items()}
    found = import_model(content, StoredTensors({**tensors.names, **pooler}, "folder"), {})
    ours: Any = build_model(found.config)
    ours.load_state_dict(found.weights)
    ids, present = padded(1)
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=present).logits
        if "Classification" in name:
            difference = ours.eval().classify(ours.encode(ids)[0]) - expected
        else:
            difference = (ours.eval()(ids) - expected)[present.bool()]
    assert float(difference.abs().max()) < 1e-5


@pytest.mark.parametrize(("name", "settings"), DECODERS)
def test_decoders_compute_and_continue_the_same(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    theirs = peer(name, settings)
    ours = import_peer(theirs, tmp_path)
    ids = torch.randint(5, V - 2, (3, 12))
    with torch.inference_mode():
        assert isinstance(ours, Decoder)
        assert float((ours(ids) - theirs(input_ids=ids).logits).abs().max()) < 1e-5
        state, newest = ours.start(ids), ids[:, -1:]
        written = [ids]
        for _ in range(8):
            newest = ours.project(state.step(newest)).argmax(dim=-1)
            written.append(newest)
        expected = theirs.generate(input_ids=ids, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.cat(written, dim=1).tolist() == expected.tolist()


@pytest.mark.parametrize(("name", "settings"), DECODERS)
def test_decoders_have_the_same_gradients(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    theirs = peer(name, settings)
    ours = import_peer(theirs, tmp_path)
    content, tensors = stored(theirs, tmp_path)
    ids = torch.randint(5, V - 2, (3, 13))
    theirs(input_ids=ids, labels=ids).loss.backward()
    cross_entropy(ours(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    gradients = {each: parameter.grad for each, parameter in theirs.named_parameters()}
    known = names_of(content["model_type"], tensors.names)
    tables = {"source_weight": known.shared, "own_output_weight": str(known.output)}
    for each, parameter in ours.named_parameters():
        table = StoredParameter((tables[each],)) if each in tables else find_names(known.names, each)
        assert table is not None
        found = [gradients[part] for part in table.names]
        # A weight that is stored less 1 has the gradient of what is stored.
        expected = table.restore(found) - table.restore([torch.zeros_like(part) for part in found])
        assert float((parameter.grad - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max())), each


# Arguments of `generate`, and the equivalent search settings.
WAYS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"num_beams": 1}, {}, {}),
    ({"num_beams": 4}, {}, {}),
    ({"num_beams": 4, "length_penalty": 2.0}, {}, {"forced_last_id": "eos"}),
    ({"num_beams": 4, "length_penalty": 0.6, "early_stopping": True}, {}, {"stop": "full", "forced_last_id": "eos"}),
    ({"num_beams": 3, "length_penalty": 0.5, "early_stopping": "never"}, {}, {"stop": "never"}),
    ({"num_beams": 4, "no_repeat_ngram_size": 2}, {"no_repeated_ngrams": 2}, {"forced_first_id": 7}),
    ({"num_beams": 4, "min_new_tokens": 5}, {"min_length": 5}, {"forbidden_ids": "pad"}),
    (
        {"num_beams": 6, "min_new_tokens": 5, "renormalize_logits": True},
        {"min_length": 5},
        {"forbidden_ids": "pad", "forced_last_id": "eos", "renormalize": True},
    ),
    ({"num_beams": 1, "repetition_penalty": 1.6}, {"repetition_penalty": 1.6}, {"forced_last_id": "eos"}),
    ({"num_beams": 4, "repetition_penalty": 1.3}, {"repetition_penalty": 1.3}, {"forced_first_id": 7}),
    (
        {"num_beams": 3, "repetition_penalty": 0.9, "renormalize_logits": True},
        {"repetition_penalty": 0.9},
        {"renormalize": True},
    ),
]


@pytest.mark.parametrize(("theirs_says", "ours_says", "generate"), WAYS)
def test_search_finds_the_translations_of_generate(
    theirs_says: dict[str, Any], ours_says: dict[str, Any], generate: dict[str, Any], tmp_path: Path
) -> None:
    lengths: set[int] = set()
    for number, (name, settings) in enumerate(ENCODER_DECODERS[::2] + ENCODER_DECODERS[5:6]):
        theirs = peer(name, settings, seed=number + 3, spread=0.6)
        let_some_end(theirs, share=0.02 + 0.04 * number)
        ours = import_peer(theirs, tmp_path / str(number))
        ids = {"eos": ours.config.eos_id, "pad": ours.config.pad_id}
        said: dict[str, Any] = {key: ids.get(value, value) for key, value in generate.items()}
        if "forbidden_ids" in said:
            said["forbidden_ids"] = (said["forbidden_ids"],)
        search = SearchSettings(
            beam_size=theirs_says["num_beams"],
            length_penalty=theirs_says.get("length_penalty", 1.0),
            max_length=NEW_PIECES,
            generate=GenerateSettings(**said),
            **ours_says,
        )
        source = torch.randint(5, V - 2, (12, 9))
        expected = generated(theirs, source, theirs_says, said)
        batch = SentenceBatch(source.tolist(), [[]] * 12, [()] * 12, range(12))
        with torch.inference_mode():
            found = run_search(start_search([ours], _NoVocabulary(ours.config.eos_id), batch, search))
        assert [hypotheses[0].ids for hypotheses in found] == expected, name
        lengths.update(map(len, expected))
    assert any(0 < length < NEW_PIECES - 1 for length in lengths)  # not only empty and cut ones


@torch.no_grad()
def let_some_end(model: Any, *, share: float) -> None:
    """Raise the end symbol's logit by the output bias, if there is one, so that outputs have different lengths."""
    eos_id = model.config.eos_token_id
    for buffer in (buffer for name, buffer in model.named_buffers() if name == "final_logits_bias"):
        ids = torch.randint(5, V - 2, (20, 9))
        logits = model(input_ids=ids, decoder_input_ids=ids).logits  # (B, T, V)
        buffer[:, eos_id] += (logits.amax(dim=-1) - logits[..., eos_id]).quantile(share)


class _NoVocabulary(Vocabulary):
    """A vocabulary without texts, for a search that needs only the tokens at the start and end."""

    def __init__(self, eos_id: int) -> None:
        self.forced = ()
        self.eos_id = eos_id


def generated(model: Any, source: Tensor, way: Mapping[str, Any], rules: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return transformers' output up to the end symbol."""
    model.generation_config.forced_eos_token_id = rules.get("forced_last_id")
    model.generation_config.forced_bos_token_id = rules.get("forced_first_id")
    forbidden = [[id] for id in rules.get("forbidden_ids", ())] or None
    written = model.generate(
        input_ids=source,
        attention_mask=torch.ones_like(source),
        max_new_tokens=NEW_PIECES,
        do_sample=False,
        bad_words_ids=forbidden,
        **({"length_penalty": 1.0} | dict(way)),
    )
    eos_id = model.config.eos_token_id
    rows: list[list[int]] = written[:, 1:].tolist()
    return [tuple(row[: row.index(eos_id)] if eos_id in row else row) for row in rows]


# --- the compiled search: models whose widths the kernels take ---


WIDE = {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 300}
WIDE_IDS = {"pad_token_id": 299, "eos_token_id": 0, "decoder_start_token_id": 299}
WIDE_T5 = T5 | {"d_model": 64, "d_kv": 32, "d_ff": 64, "num_heads": 2, "vocab_size": 300, "eos_token_id": 1}
WIDE_LLAMA = LLAMA | {"vocab_size": 300, "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4}


def with_kernels(model: Any, folder: Path) -> Any:
    """Import a model and make its inference copy, which the compiled search needs."""
    ours = import_peer(model, folder)
    make_inference_copy(ours, torch.float32)
    if select_decoder(ours).backend != "compiled":
        pytest.skip("there are no kernels for this processor")
    return ours


@pytest.mark.parametrize(("theirs_says", "ours_says", "generate"), [WAYS[0], *WAYS[2:6], *WAYS[7:]])
def test_the_compiled_search_finds_the_translations_of_generate(
    theirs_says: dict[str, Any], ours_says: dict[str, Any], generate: dict[str, Any], tmp_path: Path
) -> None:
    families = [
        ("MarianMTModel", bart_like(**WIDE, **WIDE_IDS, scale_embedding=True, activation_function="silu")),
        ("T5ForConditionalGeneration", WIDE_T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ]
    for number, (name, settings) in enumerate(families):
        theirs = peer(name, settings, seed=number + 3, spread=0.3)
        let_some_end(theirs, share=0.1)
        ours = with_kernels(theirs, tmp_path / str(number))
        ids = {"eos": ours.config.eos_id, "pad": ours.config.pad_id}
        said: dict[str, Any] = {key: ids.get(value, value) for key, value in generate.items()}
        if "forbidden_ids" in said:
            said["forbidden_ids"] = (said["forbidden_ids"],)
        search = SearchSettings(
            beam_size=theirs_says["num_beams"],
            length_penalty=theirs_says.get("length_penalty", 1.0),
            max_length=NEW_PIECES,
            generate=GenerateSettings(**said),
            **ours_says,
        )
        source = torch.randint(5, V - 2, (8, 9))
        expected = generated(theirs, source, theirs_says, said)
        batch = SentenceBatch(source.tolist(), [[]] * 8, [()] * 8, range(8))
        with torch.inference_mode():
            found = start_search([ours], _NoVocabulary(ours.config.eos_id), batch, search)
            assert isinstance(found, CompiledSearch)
            assert [hypotheses[0].ids for hypotheses in run_search(found)] == expected, name


@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("GPT2LMHeadModel", GPT2 | {"n_embd": 64, "n_head": 2, "vocab_size": 300}),
        ("LlamaForCausalLM", WIDE_LLAMA | {"num_key_value_heads": 2, "rope_parameters": ROTATION}),
        ("Qwen2ForCausalLM", WIDE_LLAMA | {"num_key_value_heads": 1, "tie_word_embeddings": True}),
        ("Qwen3ForCausalLM", WIDE_LLAMA | {"num_key_value_heads": 1, "head_dim": 64}),
        ("GemmaForCausalLM", WIDE_LLAMA | {"num_key_value_heads": 1, "head_dim": 64}),
        ("OPTForCausalLM", OPT | {"vocab_size": 300, "hidden_size": 64, "ffn_dim": 128, "num_attention_heads": 2}),
        ("Phi3ForCausalLM", WIDE_LLAMA | {"num_key_value_heads": 2, "pad_token_id": 0}),
        ("MistralForCausalLM", WIDE_LLAMA | {"num_key_value_heads": 2, "sliding_window": 5}),
    ],
)
def test_prompts_of_several_lengths_in_a_batch_are_continued_as_by_generate(
    name: str, settings: dict[str, Any], penalty: float, tmp_path: Path
) -> None:
    theirs = peer(name, settings, spread=0.1)
    ours = with_kernels(theirs, tmp_path)
    prompts = [torch.randint(5, 290, (length,)).tolist() for length in (7, 1, 12, 4)]
    with torch.inference_mode():
        scorer = DecoderOnlyScorer(ours, prompts, max_context=30, excluded_ids=[])
        rules = [RepetitionPenalty(prompts, repetition=penalty)]
        limits = SequenceLimits(0, -1, torch.full((4,), 15))
        search = find_compiled_search(scorer, limits, BeamOptions(beam_size=1, alpha=0.0), rules=rules)
        assert search is not None
        for prompt, (found,) in zip(prompts, run_search(search), strict=True):
            options = {
                "max_new_tokens": 15,
                "repetition_penalty": penalty,
                "do_sample": False,
                "eos_token_id": None,
                "pad_token_id": 0,
            }
            expected = theirs.generate(input_ids=torch.tensor([prompt]), **options)
            assert [*prompt, *found.ids] == expected[0].tolist()


# --- what is refused ---


MIXED_WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
ALL_WINDOWS = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
MIXED_LAYERS = {"layer_types": ["sliding_attention", "full_attention"]}


@pytest.mark.parametrize("model_type", ["mistral", "qwen2", "qwen3"])
def test_the_types_of_layers_decide_whether_there_is_a_window(model_type: str) -> None:
    read = IMPORT_FAMILIES[model_type].settings
    content = LLAMA | ALL_WINDOWS | {"model_type": model_type, "max_position_embeddings": 9}
    for name, window in (("sliding_attention", 3), ("full_attention", None)):
        typed = content | {"layer_types": [name] * LLAMA["num_hidden_layers"]}
        assert read(ConfigReader(typed, "config.json")).get("attention_window") == window
    typed = content | MIXED_LAYERS | {"max_position_embeddings": 4}  # a window that no text exceeds
    assert "attention_window" not in read(ConfigReader(typed, "config.json"))
    assert "attention_window" not in read(ConfigReader(content | {"sliding_window": None}, "config.json"))


def test_a_gemma_without_an_activation_has_the_one_of_transformers() -> None:
    content = LLAMA | {"model_type": "gemma", "hidden_act": None, "use_bidirectional_attention": False}
    assert IMPORT_FAMILIES["gemma"].settings(ConfigReader(content, "config.json"))["activation"] == "geglu-tanh"


def bart_content(**changes: Any) -> dict[str, Any]:
    return {"model_type": "bart", "is_encoder_decoder": True, "activation_function": "gelu"} | bart_like(**changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bart_content(auto_map={"AutoModel": "x.py"}), "code of its own to be run"),
        (bart_content(model_type="whisper"), "`model_type` must be one of bart, .* but is 'whisper'"),
        (bart_content(normalize_before=True), "`normalize_before` must be False .* but is True"),
        (bart_content(decoder_attention_heads=4), "`encoder_attention_heads` must equal `decoder_attention_heads`, 4"),
        (bart_content(activation_function="mish"), "`activation_function` must be one of .* but is 'mish'"),
        (bart_content(d_model="wide"), "`d_model` must be a whole number .* but is 'wide'"),
        (bart_content(vocab_size=None), "must set `vocab_size`"),
        (LLAMA | {"model_type": "llama", "rope_scaling": {"type": "yarn"}}, "`rope_scaling` must be of the type"),
        (BERT | {"model_type": "bert", "position_embedding_type": "relative_key"}, "must be 'absolute'"),
        (ALBERT | {"model_type": "albert", "num_hidden_groups": 2}, "`num_hidden_groups` must be 1 .* but is 2"),
        (
            MPNET | {"model_type": "mpnet", "relative_attention_num_buckets": 16},
            "`relative_attention_num_buckets` must be 32 .* but is 16",
        ),
        (MPNET | {"model_type": "mpnet", "pad_token_id": 0}, "`pad_token_id` must be 1 .* but is 0"),
        (
            LLAMA | {"model_type": "qwen2"} | MIXED_WINDOW,
            "`sliding_window` must apply to all layers or to none .* is 4",
        ),
        (
            LLAMA | {"model_type": "qwen3"} | MIXED_WINDOW,
            "`sliding_window` must apply to all layers or to none .* is 4",
        ),
        (LLAMA | {"model_type": "mistral", "sliding_window": 0}, "`sliding_window` must be at least 1 .* but is 0"),
        # transformers takes this for a Ministral, whose window is not that of all layers.
        (LLAMA | {"model_type": "mistral", "sliding_window": 4} | MIXED_LAYERS, "must apply to all layers or to none"),
        (LLAMA | {"model_type": "phi3", "sliding_window": 4} | MIXED_LAYERS, "`layer_types` must be None"),
        (LLAMA | {"model_type": "qwen2", "layer_types": []} | ALL_WINDOWS, "must apply to all layers or to none"),
        (LLAMA | {"model_type": "phi3", "partial_rotary_factor": 0.5}, "`partial_rotary_factor` must be 1.0"),
        (LLAMA | {"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": 0.5}}, "and rotate whole heads"),
        (LLAMA | {"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "`rope_scaling` must be of the type"),
        (LLAMA | {"model_type": "gemma", "use_bidirectional_attention": True}, "must be false .* but is True"),
        (OPT | {"model_type": "opt", "do_layer_norm_before": False}, "`do_layer_norm_before` must be True"),
        (OPT | {"model_type": "opt", "word_embed_proj_dim": 8}, "`word_embed_proj_dim` must equal `hidden_size`, 16"),
        (GPT2 | {"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "must be False"),
        (T5 | {"model_type": "t5", "dense_act_fn": "silu"}, "`dense_act_fn` must be 'relu' .* but is 'silu'"),
        (T5 | {"model_type": "t5", "is_gated_act": True}, "`is_gated_act` must be False .* but is True"),
    ],
)
def test_unsupported_configurations_are_refused_by_setting(content: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        import_model(content, StoredTensors({}, "folder"), {})


@pytest.mark.parametrize("name", ["Roberta", "XLMRoberta", "Camembert"])
def test_a_roberta_head_with_another_activation_than_its_layers_is_refused(name: str, tmp_path: Path) -> None:
    """The head of the classes in transformers always has gelu, ours has the activation of the layers."""
    settings = BERT | {"pad_token_id": 1, "type_vocab_size": 1, "hidden_act": "relu"}
    content, tensors = stored(peer(f"{name}ForMaskedLM", settings), tmp_path)
    with pytest.raises(TransduceError, match="`hidden_act` must be gelu, which the head for hidden tokens always uses"):
        import_model(content, tensors, {})


def small_bart() -> ImportedModel:
    """Return an imported BART model from tensors with BART's names, made without transformers."""
    return import_model(bart_content(), StoredTensors(_bart_tensors(), "folder"), {"start_id": 2})


def _bart_tensors() -> dict[str, Any]:
    names: dict[str, tuple[int, ...]] = {"model.shared.weight": (V, 16)}
    for stack, layers in (("encoder", 2), ("decoder", 1)):
        names |= {f"model.{stack}.embed_positions.weight": (42, 16)}
        names |= {f"model.{stack}.layernorm_embedding.{p}": (16,) for p in ("weight", "bias")}
        for n in range(layers):
            names |= _layer_shapes(
                f"model.{stack}.layers.{n}", ["self_attn", "encoder_attn"][: 1 + (stack == "decoder")]
            )
    return {name: partial(torch.randn, *shape) for name, shape in names.items()}


def _layer_shapes(place: str, attentions: list[str]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for attention in attentions:
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= {f"{place}.{attention}.{part}.weight": (16, 16), f"{place}.{attention}.{part}.bias": (16,)}
        shapes |= {f"{place}.{attention}_layer_norm.{p}": (16,) for p in ("weight", "bias")}
    shapes |= {f"{place}.fc1.weight": (24, 16), f"{place}.fc1.bias": (24,)}
    shapes |= {f"{place}.fc2.weight": (16, 24), f"{place}.fc2.bias": (16,)}
    return shapes | {f"{place}.final_layer_norm.{p}": (16,) for p in ("weight", "bias")}


def test_a_folder_without_transformers() -> None:
    assert small_bart().config.num_decoder_layers == 1


@pytest.mark.parametrize(
    ("name", "settings"), [("GPT2LMHeadModel", GPT2), ("BartForConditionalGeneration", bart_like())]
)
def test_an_untied_output_is_not_replaced_by_the_embeddings(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    content, tensors = stored(peer(name, settings | {"tie_word_embeddings": False}), tmp_path)
    names = {key: read for key, read in tensors.names.items() if key != "lm_head.weight"}
    with pytest.raises(TransduceError, match=r"missing lm_head\.weight; unexpected none"):
        import_model(content, StoredTensors(names, "here"), {"start_id": 2})


def test_missing_and_unexpected_tensors_are_all_listed() -> None:
    tensors = _bart_tensors()
    del tensors["model.encoder.layers.1.fc1.bias"], tensors["model.decoder.layers.0.encoder_attn.k_proj.weight"]
    tensors |= {"model.encoder.layers.7.fc1.bias": partial(torch.randn, 24), "extra": partial(torch.randn, 2)}
    expected = (
        "missing model.decoder.layers.0.encoder_attn.k_proj.weight, model.encoder.layers.1.fc1.bias; unexpected extra, "
        "model.encoder.layers.7.fc1.bias"
    )
    with pytest.raises(TransduceError, match=expected):
        import_model(bart_content(), StoredTensors(tensors, "folder"), {"start_id": 2})


def test_a_wrong_shape_is_an_error() -> None:
    tensors = _bart_tensors() | {"model.encoder.layers.0.fc1.weight": partial(torch.randn, 20, 16)}
    with pytest.raises(TransduceError, match=r"feed_forward.inner.weight must have the shape \(24, 16\)"):
        import_model(bart_content(), StoredTensors(tensors, "folder"), {"start_id": 2})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bart_content(encoder_layers=10**9), "`num_encoder_layers` must be from 0 to 1,000, but is 1,000,000,000"),
        (bart_content(encoder_ffn_dim=2**40, decoder_ffn_dim=2**40), "`d_ff` must be from 0 to 16,777,216"),
        ({"model_type": "t5", "d_model": 0, "vocab_size": V}, "`d_model` must be at least 1 .* but is 0"),
        (LLAMA | {"model_type": "llama", "num_attention_heads": 0}, "`num_attention_heads` must be at least 1"),
    ],
)
def test_sizes_out_of_range_are_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        import_model(content, StoredTensors(_bart_tensors(), "folder"), {"start_id": 2})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"model.encoder.layers.0.self_attn.k_proj.weight": (16, 8)},
            "must have rows of one length, but have the shapes",
        ),
        ({"model.encoder.layers.0.self_attn.k_proj.bias": ()}, "must have rows of one length, but have the shapes"),
        ({"model.shared.weight": (V,)}, "model.shared.weight must have a row for each token, but has the shape"),
    ],
)
def test_tensors_of_impossible_shapes_are_refused_by_name(tensors: dict[str, tuple[int, ...]], message: str) -> None:
    wrong = {name: partial(torch.randn, shape) for name, shape in tensors.items()}
    with pytest.raises(TransduceError, match=message):
        import_model(bart_content(), StoredTensors(_bart_tensors() | wrong, "folder"), {"start_id": 2})


def test_an_output_matrix_of_its_own_is_kept_untied() -> None:
    tensors = _bart_tensors() | {"lm_head.weight": partial(torch.ones, V, 16)}
    model = import_model(bart_content(), StoredTensors(tensors, "folder"), {"start_id": 2})
    assert not model.config.tie_output
    assert bool((model.weights["own_output_weight"] == 1.0).all())


def test_stored_sinusoidal_positions_in_another_order_are_refused() -> None:
    content = bart_content(model_type="pegasus", activation_function="relu")
    tensors = {name: read for name, read in _bart_tensors().items() if "layernorm_embedding" not in name}
    for stack in ("encoder", "decoder"):
        tensors |= {f"model.{stack}.layer_norm.{p}": partial(torch.ones, 16) for p in ("weight", "bias")}
    with pytest.raises(TransduceError, match="must hold sines, then cosines"):
        import_model(content, StoredTensors(tensors, "folder"), {"start_id": 0})


@pytest.mark.parametrize("model_type", IMPORT_FAMILIES)
def test_a_key_that_config_json_lacks_has_the_default_of_transformers(model_type: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    kind = transformers.CONFIG_MAPPING[model_type]

    def settings(content: Mapping[str, Any]) -> dict[str, Any] | str:
        try:
            return IMPORT_FAMILIES[model_type].settings(ConfigReader(content, "config.json"))
        except TransduceError as error:
            return str(error)

    content = kind().to_dict()
    assert isinstance(settings(content), dict)
    # A language model's special ids may come from its tokenizer.
    ids = ("pad_token_id", "bos_token_id", "eos_token_id") if IMPORT_FAMILIES[model_type].kind == "decoder" else ()
    for key in content.keys() - set(ids):
        partial_content = {name: value for name, value in content.items() if name not in (key, "head_dim")}
        found = settings(partial_content)
        if not isinstance(found, str):  # a key may be required
            assert found == settings(kind.from_dict(partial_content).to_dict()), key
