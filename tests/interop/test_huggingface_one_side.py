"""Test that Hugging Face opens folders of encoders, language models and models with two vocabularies."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import transduce
from transduce.atomic_io import file_sha256
from transduce.errors import TransduceWarning
from transduce.exchange.comparison import (
    OriginalEncoder,
    OriginalLanguageModel,
    OriginalModel,
    compare_encoders,
    compare_models,
)
from transduce.inference.translator import Translator
from transduce.interop.hugging_face.export import (
    HuggingFaceEncoder,
    HuggingFaceLanguageModel,
    HuggingFaceModel,
    automatic_class_for,
    class_for,
    config_json,
    has_tokenizer,
    ignored_names,
)
from transduce.interop.hugging_face.families import huggingface_obstacles
from transduce.model.build import Model
from transduce.model.config import ModelConfig, RotaryScaling
from transduce.model.transformer import Decoder, Encoder, Transformer
from transduce.model_folder.cards import TASK_CARD, TaskCard
from transduce.model_folder.read import read_any_model_folder
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import SpecialTokens, encode_masked, special_tokens_of

MakeModel = Callable[..., Model]
WriteFolder = Callable[..., Path]

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'transduce[hf]'")
# Ignore warnings of this library.
pytestmark = pytest.mark.filterwarnings("default")

BERT = {
    "kind": "encoder",
    "positions": "learned",
    "max_positions": 64,
    "activation": "gelu",
    "norm_order": "post",
    "norm_epsilon": 1e-12,
    "embedding_norm": True,
    "token_types": 2,
    "scale_embeddings": False,
}
ROBERTA = BERT | {"token_types": 1, "position_offset": 1, "norm_epsilon": 1e-5}  # the padding id is 0
DISTILBERT = BERT | {"token_types": 0, "pooler_activation": "relu"}
NO_PIECES = {"masked_language_head": False}
GPT2 = {
    "kind": "decoder",
    "positions": "learned",
    "max_positions": 64,
    "activation": "gelu-tanh",
    "scale_embeddings": False,
    "start_id": 1,
}
LLAMA = {
    "kind": "decoder",
    "positions": "rotary",
    "norm": "rms",
    "activation": "swiglu",
    "bias": False,
    "scale_embeddings": False,
    "start_id": 1,
}
LLAMA_3 = LLAMA | {
    "num_decoder_layers": 2,
    "num_key_value_heads": 2,
    "d_k": 6,
    "d_v": 6,
    "tie_output": False,
    "projection_bias": True,
    "attention_output_bias": True,
    "feed_forward_bias": True,
    "activation": "geglu-tanh",
    "rotary_base": 500.0,
    "rotary_scaling": RotaryScaling(factor=4.0, original_length=16),
}
QWEN2 = LLAMA | {"num_key_value_heads": 2, "projection_bias": True}
QWEN3 = LLAMA | {"num_key_value_heads": 2, "d_k": 6, "d_v": 6, "attention": "query-key-norm", "norm_epsilon": 1e-6}
MISTRAL = LLAMA | {"num_key_value_heads": 2, "attention_window": 3}
GEMMA = LLAMA | {"num_key_value_heads": 1, "d_k": 6, "d_v": 6, "activation": "geglu-tanh", "scale_embeddings": True}
OPT = GPT2 | {"position_offset": 2, "activation": "relu"}
ROWS = [[3 + (7 * row + 5 * place) % 190 for place in range(1 + 11 * row % 17)] for row in range(9)]
TYPES = [[int(place > 3) for place in range(len(row))] for row in ROWS]


def config_of(**changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {"source_vocabulary_size": 200, "target_vocabulary_size": 200, "d_model": 16, "d_ff": 24}
    return ModelConfig(**(sizes | {"num_heads": 4} | changes))


# --- which class ---


@pytest.mark.parametrize(
    ("changes", "name", "automatic"),
    [
        (BERT | {"output_bias": True}, "BertForMaskedLM", "AutoModelForMaskedLM"),
        (BERT | {"pooler": True}, "BertForMaskedLM", "AutoModelForMaskedLM"),
        (BERT | {"num_labels": 2}, "BertForPreTraining", "AutoModelForPreTraining"),
        (BERT | NO_PIECES | {"num_labels": 3}, "BertForSequenceClassification", "AutoModelForSequenceClassification"),
        (
            BERT | NO_PIECES | {"num_labels": 3, "token_labels": True},
            "BertForTokenClassification",
            "AutoModelForTokenClassification",
        ),
        (BERT | NO_PIECES | {"pooler": True}, "BertModel", "AutoModel"),
        (ROBERTA | {"output_bias": True, "pooler": True}, "RobertaForMaskedLM", "AutoModelForMaskedLM"),
        (
            ROBERTA | NO_PIECES | {"num_labels": 3},
            "RobertaForSequenceClassification",
            "AutoModelForSequenceClassification",
        ),
        (
            ROBERTA | NO_PIECES | {"num_labels": 3, "token_labels": True},
            "RobertaForTokenClassification",
            "AutoModelForTokenClassification",
        ),
        (ROBERTA | NO_PIECES | {"pooler": True}, "RobertaModel", "AutoModel"),
        (ROBERTA | {"position_offset": 2}, None, None),
        (ROBERTA | {"activation": "relu"}, None, None),
        (ROBERTA | {"token_types": 0}, None, None),
        (ROBERTA | {"num_labels": 2}, None, None),
        (DISTILBERT, "DistilBertForMaskedLM", "AutoModelForMaskedLM"),
        (BERT | {"token_types": 0}, "DistilBertForMaskedLM", "AutoModelForMaskedLM"),
        (
            DISTILBERT | NO_PIECES | {"num_labels": 3},
            "DistilBertForSequenceClassification",
            "AutoModelForSequenceClassification",
        ),
        (
            DISTILBERT | NO_PIECES | {"num_labels": 3, "token_labels": True},
            "DistilBertForTokenClassification",
            "AutoModelForTokenClassification",
        ),
        (DISTILBERT | NO_PIECES, "DistilBertModel", "AutoModel"),
        (GPT2, "GPT2LMHeadModel", "AutoModelForCausalLM"),
        (LLAMA_3, "LlamaForCausalLM", "AutoModelForCausalLM"),
        (QWEN2, "Qwen2ForCausalLM", "AutoModelForCausalLM"),
        (QWEN3, "Qwen3ForCausalLM", "AutoModelForCausalLM"),
        (QWEN3 | {"feed_forward_bias": True}, None, None),
        (MISTRAL, "MistralForCausalLM", "AutoModelForCausalLM"),
        (QWEN2 | {"attention_window": 3}, "Qwen2ForCausalLM", "AutoModelForCausalLM"),
        (MISTRAL | {"attention_output_bias": True}, None, None),
        (GEMMA, "GemmaForCausalLM", "AutoModelForCausalLM"),
        (GEMMA | {"feed_forward_bias": True}, None, None),
        (OPT | {"bias": False}, "OPTForCausalLM", "AutoModelForCausalLM"),
        (OPT | {"attention_output_bias": False}, None, None),
        (OPT | {"norm_epsilon": 1e-6}, None, None),
        (BERT | NO_PIECES, None, None),
        (BERT | {"num_labels": 3}, None, None),
        (BERT | {"token_types": 0, "norm_epsilon": 1e-5}, None, None),
        (BERT | NO_PIECES | {"num_labels": 3, "pooler_activation": "relu"}, None, None),
        (DISTILBERT | NO_PIECES | {"num_labels": 3, "pooler_activation": "tanh"}, None, None),
        (DISTILBERT | {"pooler": True}, None, None),
        (BERT | {"norm_order": "pre"}, None, None),
        (GPT2 | {"norm_order": "post"}, None, None),
        (GPT2 | {"output_bias": True}, None, None),
        (LLAMA | {"bias": True, "attention_output_bias": False}, None, None),
        (LLAMA | {"positions": "rotary-interleaved"}, None, None),
        ({"kind": "recurrent", "attention_score": "dot"}, None, None),
    ],
)
def test_each_configuration_has_its_hugging_face_class_and_auto_class(
    changes: dict[str, Any], name: str | None, automatic: str | None
) -> None:
    config = config_of(**changes)
    assert (class_for(config), automatic_class_for(config)) == (name, automatic)
    assert (huggingface_obstacles(config) == []) == (name is not None)


@pytest.mark.parametrize(
    ("changes", "obstacles"),
    [
        (GPT2 | {"positions": "rotary", "max_positions": 1024}, ["activation", "norm"]),
        (LLAMA | {"num_heads": 3, "d_k": 6, "d_v": 4}, ["num_heads", "d_v"]),
        (BERT | NO_PIECES, ["masked_language_head"]),
        (BERT | {"token_types": 0, "num_labels": 3}, ["num_labels"]),
        (BERT | {"token_types": 0, "num_labels": 3, "pooler": True}, ["token_types", "num_labels"]),
    ],
)
def test_settings_that_no_hugging_face_class_supports_are_listed(changes: dict[str, Any], obstacles: list[str]) -> None:
    assert huggingface_obstacles(config_of(**changes)) == obstacles


# --- encoders ---


@pytest.mark.parametrize(
    ("changes", "outputs"),
    [
        ({"output_bias": True, "pooler": True, "num_labels": 2}, ["classes", "logits", "states"]),
        ({"pooler": True}, ["logits", "states"]),
        ({"output_bias": True, "activation": "silu"}, ["logits", "states"]),
        (NO_PIECES | {"num_labels": 5, "output_bias": True}, ["classes", "states"]),
        (NO_PIECES | {"pooler": True, "token_types": 1}, ["pooled", "states"]),
        (ROBERTA | {"output_bias": True}, ["logits", "states"]),
        (ROBERTA | {"pooler": True}, ["logits", "states"]),
        (ROBERTA | NO_PIECES | {"num_labels": 5, "activation": "relu"}, ["classes", "states"]),
        (ROBERTA | NO_PIECES | {"num_labels": 5, "token_labels": True}, ["classes", "states"]),
        (ROBERTA | NO_PIECES | {"pooler": True, "token_types": 2}, ["pooled", "states"]),
        (DISTILBERT | {"output_bias": True}, ["logits", "states"]),
        (DISTILBERT | NO_PIECES | {"num_labels": 5, "output_bias": True}, ["classes", "states"]),
        (DISTILBERT | NO_PIECES | {"num_labels": 5, "token_labels": True}, ["classes", "states"]),
        (DISTILBERT | NO_PIECES, ["states"]),
    ],
    ids=str,
)
def test_states_and_head_outputs_of_encoders_are_equal_in_hugging_face(
    make_model: MakeModel,
    write_folder: WriteFolder,
    marked_tokenizer: Tokenizer,
    tmp_path: Path,
    changes: dict[str, Any],
    outputs: list[str],
) -> None:
    model = make_model(marked_tokenizer, **(BERT | changes))
    assert isinstance(model, Encoder)
    write_folder(model, marked_tokenizer, tmp_path)
    theirs = HuggingFaceEncoder(tmp_path, model.config)
    assert type(theirs.model).__name__ == class_for(model.config)
    types = TYPES if model.config.token_types > 1 else [[0] * len(row) for row in ROWS]
    assert sorted(theirs.outputs(ROWS, types)) == outputs
    agreement = compare_encoders(OriginalEncoder(model), theirs, ROWS, types).agreement
    assert agreement.largest_difference < 1e-5
    assert sorted(agreement.largest_differences) == outputs
    assert agreement.texts == agreement.same_choices == len(ROWS)
    again = read_any_model_folder(tmp_path).model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_a_pretrained_folder_opens_as_each_of_its_heads(
    make_model: MakeModel, write_folder: WriteFolder, marked_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    import transformers

    model = make_model(marked_tokenizer, **BERT, num_labels=2, output_bias=True)
    write_folder(model, marked_tokenizer, tmp_path)
    ids = torch.tensor([[3, 9, 10, 4]])
    assert isinstance(model, Encoder)
    with torch.no_grad():
        states, _ = model.encode(ids)
        masked = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()(ids).logits
        bare = transformers.AutoModel.from_pretrained(tmp_path).eval()(ids)
        assert torch.allclose(masked, model(ids), atol=1e-5)
        assert torch.allclose(bare.last_hidden_state, states, atol=1e-5)
        assert torch.allclose(bare.pooler_output, model.pool(states), atol=1e-5)
        # Class 0 there is "follows", which is class 1 here.
        heads = transformers.AutoModelForPreTraining.from_pretrained(tmp_path).eval()(ids)
        assert torch.allclose(heads.seq_relationship_logits.flip(-1), model.classify(states), atol=1e-5)


def test_hugging_face_tokenizes_text_with_masks_and_pairs_equally(
    make_model: MakeModel, write_folder: WriteFolder, marked_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    import transformers

    write_folder(make_model(marked_tokenizer, **BERT), marked_tokenizer, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    vocabulary = marked_tokenizer.source
    marks = special_tokens_of(vocabulary)
    texts = ["I like tea.", "我喜欢[MASK]。", "The [MASK] eats [MASK].", "[MASK] like", "a[MASK]b", "  x  [MASK] "]
    for text in texts:
        ids = [marks.cls, *encode_masked(vocabulary, text), marks.sep]
        assert tokenizer(text)["input_ids"] == ids, text
    both = tokenizer("I like", "tea")
    first, second = (vocabulary.encode(text) for text in ("I like", "tea"))
    assert both["input_ids"] == [marks.cls, *first, marks.sep, *second, marks.sep]
    assert both["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert SpecialTokens(tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id) == marks
    assert tokenizer.model_max_length == 64
    assert tokenizer.decode([marks.cls, *first, marks.sep], skip_special_tokens=True) == "I like"


def test_classes_have_their_names(
    make_model: MakeModel, write_folder: WriteFolder, marked_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    import transformers

    model = make_model(marked_tokenizer, **BERT, **NO_PIECES, num_labels=3)
    card = TaskCard(kind="classification", labels=("bad", "good", "odd"), length=64).text()
    write_folder(model, marked_tokenizer, tmp_path, **{TASK_CARD: card})
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.num_labels == 3
    assert config.id2label == {0: "bad", 1: "good", 2: "odd"}
    found = transformers.pipeline("text-classification", str(tmp_path), device="cpu")("I like tea.")
    assert found[0]["label"] in ("bad", "good", "odd")
    assert config_json(model.config)["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}


def test_weights_that_a_hugging_face_class_ignores_are_listed() -> None:
    assert ignored_names(config_of(**BERT, pooler=True)) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert ignored_names(config_of(**BERT, **NO_PIECES, num_labels=2, output_bias=True)) == {"cls.predictions.bias"}
    assert ignored_names(config_of(**BERT, num_labels=2)) == ignored_names(config_of(**GPT2)) == set()


# --- language models ---


@pytest.mark.parametrize(
    "changes",
    [
        *(GPT2, GPT2 | {"tie_output": False, "activation": "relu"}, LLAMA, LLAMA_3, QWEN2, QWEN3),
        *(MISTRAL, QWEN2 | {"attention_window": 4}, QWEN3 | {"attention_window": 2}, GEMMA),
        *(GEMMA | {"activation": "geglu", "tie_output": False}, OPT, OPT | {"bias": False, "tie_output": False}),
    ],
    ids=[
        *("GPT-2", "GPT-2 untied", "Llama", "Llama 3", "Qwen 2", "Qwen 3"),
        *(
            "Mistral",
            "Qwen 2 with a window",
            "Qwen 3 with a window",
            "Gemma",
            "Gemma with gelu",
            "OPT",
            "OPT no biases",
        ),
    ],
)
def test_language_models_have_equal_log_probabilities_and_continuations_in_hugging_face(
    make_model: MakeModel,
    write_folder: WriteFolder,
    small_tokenizer: Tokenizer,
    tmp_path: Path,
    changes: dict[str, Any],
) -> None:
    model = make_model(**changes)
    assert isinstance(model, Decoder)
    write_folder(model, small_tokenizer, tmp_path, is_export=True)
    theirs = HuggingFaceLanguageModel(tmp_path, model.config)
    assert type(theirs.model).__name__ == class_for(model.config)
    own = OriginalLanguageModel(model, unknown_id=2, context=64)
    comparison = compare_models(own, theirs, ROWS, tokens=range(3, 190), max_tokens=20)
    places = [*comparison.own_differences, *comparison.random_differences]
    # One part in a million, where a log-probability is beyond 10 nats.
    assert all(place.difference < 1e-5 * max(1.0, abs(place.ours) / 10.0) for place in places)
    assert comparison.agreement.same_translations == len(ROWS)
    assert len({place.token for place in comparison.own_differences}) > 5
    again = read_any_model_folder(tmp_path).model.state_dict()
    for name, tensor in model.state_dict().items():
        # Gemma's weights of norms are stored less 1, which rounds those below 0.5.
        rounded = 2**-25 if changes["scale_embeddings"] and "norm" in name else 0.0
        assert float((again[name] - tensor).abs().max()) <= rounded, name


@pytest.mark.parametrize("changes", [GEMMA, MISTRAL, OPT])
def test_a_folder_holds_every_weight_exactly_and_only_an_export_rounds(
    make_model: MakeModel, small_tokenizer: Tokenizer, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Weights of norms below 0.5 are no sum of 1 and a stored float32, as Gemma's class stores them."""
    model = make_model(**changes)
    assert isinstance(model, Decoder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(-0.5, 0.5)
    transduce.save(model, tmp_path / "ours", tokenizer=small_tokenizer)
    again = read_any_model_folder(tmp_path / "ours").model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())
    content = json.loads((tmp_path / "ours" / "config.json").read_text("utf-8"))
    is_gemma = class_for(model.config) == "GemmaForCausalLM"
    assert content.get("architectures") == (None if is_gemma else [class_for(model.config)])
    assert content["max_position_embeddings"] == 64 if changes is OPT else 1024
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        transduce.export(tmp_path / "ours", tmp_path / "out", to="huggingface", threads=1)
    messages = [str(each.message) for each in caught if issubclass(each.category, TransduceWarning)]
    assert [message[:56] for message in messages] == (
        ["GemmaForCausalLM stores the weights of norms less 1, whi"] * is_gemma
    )
    exported = read_any_model_folder(tmp_path / "out").model.state_dict()
    equal = [name for name, tensor in model.state_dict().items() if torch.equal(exported[name], tensor)]
    assert {name for name in exported if name not in equal} == {
        name for name in exported if is_gemma and "norm" in name
    }


def test_hugging_face_starts_each_prompt_with_the_end_symbol(
    make_model: MakeModel, write_folder: WriteFolder, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    import transformers

    write_folder(make_model(**GPT2), small_tokenizer, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    encode = small_tokenizer.source.encode
    assert tokenizer("I like tea.")["input_ids"] == [1, *encode("I like tea.")]
    assert tokenizer("I like\ntea.".replace("\n", "</s>"))["input_ids"] == [1, *encode("I like"), 1, *encode("tea.")]
    assert list(tokenizer("我")) == ["input_ids", "attention_mask"]  # segments would be added to GPT-2's embeddings
    assert tokenizer.padding_side == "left"
    assert json.loads((tmp_path / "generation_config.json").read_bytes())["bad_words_ids"] == [[0], [2]]


def test_weights_stored_under_transduces_own_names_are_read(
    make_model: MakeModel, write_folder: WriteFolder, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = make_model(**GPT2)
    write_folder(model, small_tokenizer, tmp_path)
    assert "transformer.wte.weight" in load_file(tmp_path / "model.safetensors")
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    manifest["sha256"]["model.safetensors"] = [file_sha256(tmp_path / "model.safetensors")]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    again = read_any_model_folder(tmp_path).model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


# --- two vocabularies ---


def test_models_with_two_vocabularies_are_equal_in_marian(
    make_model: MakeModel, write_folder: WriteFolder, separate_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = make_model(separate_tokenizer, norm_order="post", tie_source_target=False)
    assert isinstance(model, Transformer)
    assert has_tokenizer(separate_tokenizer, model.config)
    write_folder(model, separate_tokenizer, tmp_path)
    theirs = HuggingFaceModel(tmp_path, model.config)
    assert type(theirs.model).__name__ == "MarianMTModel"
    assert type(theirs.tokenizer).__name__ == "MarianTokenizer"
    rows = [[*(id % 50 + 3 for id in row), 1] for row in ROWS]
    own = OriginalModel(Translator(model, separate_tokenizer))
    size = separate_tokenizer.target.size
    agreement = compare_models(own, theirs, rows, tokens=range(3, size), max_tokens=20).agreement
    assert agreement.largest_difference < 1e-5
    assert agreement.same_translations == len(rows)
    source, target = separate_tokenizer.source, separate_tokenizer.target
    assert theirs.ids_of(["我喜欢茶。", ""]) == [[*source.encode("我喜欢茶。"), 1], [1]]
    assert theirs.tokenizer(text_target="I like tea.")["input_ids"] == [*target.encode("I like tea."), 1]
    ids = target.encode("I like tea.")
    assert theirs.tokenizer.decode(ids, skip_special_tokens=True) == target.decode(ids) == "I like tea."


def test_only_marian_holds_models_with_two_vocabularies(make_model: MakeModel, separate_tokenizer: Tokenizer) -> None:
    model = make_model(separate_tokenizer, tie_source_target=False)
    assert huggingface_obstacles(model.config) == ["tie_source_target"]
    assert not has_tokenizer(separate_tokenizer, model.config)
