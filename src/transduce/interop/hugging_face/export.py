"""Convert weights, config.json and tokenizer files between this package's models and equivalent Hugging Face classes.

`families.EXPORT_FAMILIES` lists the classes. A model folder stores its weights under the names of the matching class,
so transformers opens it without an export step. If no class matches, or if the class cannot hold all weights exactly
(Gemma), the weights have this package's names, and `config.json` names no class. Folders written before a class was
supported also have this package's names, so the reader decides by the names in the file.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import UNSET
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from transduce.errors import TransduceError, import_extra
from transduce.interop.components import (
    MAXIMUM_POSITIONS,
    ExportedEncoder,
    ExportedModel,
    Ids,
    max_sequence_length,
    padded,
    split_outputs,
    target_log_probabilities,
    until_end,
)
from transduce.interop.hugging_face.families import Family, family_for
from transduce.interop.hugging_face.import_settings import export_generation, names_of
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.interop.hugging_face.stored_names import StoredNames, StoredParameter, find_names
from transduce.interop.hugging_face.token_pipelines import TokenizerJson, flags_of
from transduce.model.config import ModelConfig
from transduce.model.positions import sinusoids
from transduce.search.settings import SearchSettings
from transduce.text.sentencepiece_model import is_plain
from transduce.text.tokenizer import Tokenizer, special_tokens_map, tokenizer_config, tokenizer_json
from transduce.text.vocabulary import (
    CLS,
    MASK,
    SEP,
    SPECIAL_TOKENS,
    Vocabulary,
    find_special_tokens,
    language_token,
    tag_token,
)

_NATIVE_NAME = "source_weight"
# BERT's next-sentence head. Its class 0 means "the second segment follows"; in this package that is class 1.
_NEXT_SENTENCE_HEAD = "cls.seq_relationship"


def class_for(config: ModelConfig) -> str | None:
    """Return the name of the Hugging Face class that computes models with this configuration; None if none does."""
    family = family_for(config)
    return None if family is None else family.architecture


def automatic_class_for(config: ModelConfig) -> str | None:
    """Return the name of Hugging Face's automatic class that opens a model, such as `AutoModelForCausalLM`.

    The result is None if no Hugging Face class computes models with this configuration.
    """
    family = family_for(config)
    return None if family is None else family.automatic


def opens_folder(config: ModelConfig) -> bool:
    """Return whether a Hugging Face class reads the weights in a model folder with this configuration as they are.

    The result is False if no class computes the model, or if only an export is written for the class, as for Gemma's.
    """
    family = family_for(config)
    return family is not None and not family.rounds_weights


def config_json(
    config: ModelConfig,
    labels: Sequence[str] = (),
    names: Collection[str] = (),
    max_positions: int = MAXIMUM_POSITIONS,
    *,
    is_export: bool = False,
) -> dict[str, Any]:
    """Return the content of `config.json`, a dict, for a model's configuration.

    The content has the keys of the Hugging Face class that computes the model, and this package's configuration under
    "transduce". Without such a class the content names no class, and `model_type` is "transduce".

    Args:
        config: the model's configuration.
        labels: the names of the model's classes; if empty, the classes are named LABEL_0, LABEL_1, …
        names: the names of the model's parameters and buffers. If the Hugging Face class lacks one of them, the content
            names no class.
        max_positions: the maximum number of tokens, for a model whose positions set no limit.
        is_export: True for an export to Hugging Face, whose class may hold some weights rounded.
    """
    ours = {"transduce": msgspec.to_builtins(config)}
    encoder_decoder = {"is_encoder_decoder": config.kind in ("transformer", "recurrent")}
    family = _naming_family(names, config, is_export=is_export)
    if family is None:
        # An export has this key, for whose value nothing else in the folder stands.
        limit = {"max_position_embeddings": max_positions} if family_for(config) is not None else {}
        return {"model_type": "transduce"} | encoder_decoder | limit | ours
    label_names: dict[str, Any] = {}
    if config.num_labels:
        class_names = labels if len(labels) == config.num_labels else [f"LABEL_{n}" for n in range(config.num_labels)]
        label_names = {
            "id2label": {str(number): name for number, name in enumerate(class_names)},
            "label2id": {name: number for number, name in enumerate(class_names)},
        }
    ids = {"pad_token_id": config.pad_id, "eos_token_id": config.eos_id, "dtype": "float32"}
    header = {"architectures": [family.architecture], "model_type": family.model_type}
    content = family.content(config)
    if config.positions != "learned" and "max_position_embeddings" in content:
        content["max_position_embeddings"] = max_positions
    return header | encoder_decoder | content | label_names | ids | ours


def generation_config(config: ModelConfig, unk_id: int, search: SearchSettings | None = None) -> dict[str, Any] | None:
    """Return the content of `generation_config.json`, a dict with the settings of Hugging Face's `generate`.

    The result is None for an encoder, which generates no text.

    Args:
        config: the model's configuration.
        unk_id: id of the target vocabulary's unknown token, which a language model must not generate.
        search: search settings of an encoder–decoder; None: the defaults. Settings that rank hypotheses as `generate`
            does are converted completely. Of others, only the number of beams and the length of n-grams that must not
            be repeated are converted.
    """
    ids = {"eos_token_id": config.eos_id, "pad_token_id": config.pad_id}
    if config.kind == "decoder":
        words = [[id] for id in sorted({config.pad_id, unk_id} - {config.eos_id})]
        limits = {"bad_words_ids": words or None, "max_length": max_sequence_length(config)}
        return {"bos_token_id": config.start_id} | ids | limits
    if config.kind not in ("transformer", "recurrent"):
        return None
    content: dict[str, Any] = {"decoder_start_token_id": config.start_id, **ids}
    if search is None or search.generate is None:
        defaults = content | {"bad_words_ids": [[config.pad_id]], "num_beams": 4, "max_length": 512}
        if search is None:
            return defaults
        repeated = {"no_repeat_ngram_size": search.no_repeated_ngrams} if search.no_repeated_ngrams else {}
        return defaults | {"num_beams": search.beam_size} | repeated
    words = [[id] for id in sorted({config.pad_id, *search.generate.forbidden_ids} - {config.eos_id})]
    content |= {"bad_words_ids": words} if words else {}
    if config.eos_id in search.generate.forbidden_ids:  # `generate` does not heed it among `bad_words_ids`
        content["suppress_tokens"] = [config.eos_id]
    return content | export_generation(search, search.generate)


def stored_tensors(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    max_positions: int = MAXIMUM_POSITIONS,
    *,
    is_export: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) for every tensor of a model's `model.safetensors`.

    The names are those of the Hugging Face class that computes the model. They are this package's names in three cases:
    there is no such class, the class lacks a parameter or buffer, or the class rounds weights and this is not an
    export. The tensors that make up a parameter follow one another, so that a reader can map the parameter as one
    tensor.

    Args:
        weights: the parameters and buffers by this package's names; they are accessed one at a time, when due.
        config: the model's configuration.
        max_positions: the number of rows of a table of sinusoids.
        is_export: True for an export to Hugging Face, whose class may hold some weights rounded.
    """
    family = _naming_family(weights, config, is_export=is_export)
    if family is None:
        for name in weights:
            yield name, weights[name].contiguous()
        return
    for name in weights:
        yield from _stored_parameter(name, config, family).store(weights[name], _sizes(name, config)).items()
    if family.stores_sinusoids:
        for stack in ("encoder", "decoder"):
            yield f"model.{stack}.embed_positions.weight", sinusoids(max_positions, config.d_model)
    if family.stores_output_bias and not config.output_bias:
        zeros = torch.zeros(config.target_vocabulary_size)
        yield from _output_bias_place(_stored_names(family, config)).store(zeros, ()).items()
    output = _stored_names(family, config).output
    if output is not None and family.stores_tied_output(config):
        yield output, weights["source_weight"].contiguous()


def _naming_family(names: Collection[str], config: ModelConfig, *, is_export: bool) -> Family | None:
    """Return the Hugging Face class, as `Family`, whose names are used to store a model's weights.

    The result is None if weights are stored under this package's names.

    Args:
        names: this package's names of the parameters and buffers.
        config: the model's configuration.
        is_export: True if the class may hold some weights rounded.
    """
    family = family_for(config)
    if family is None or (family.rounds_weights and not is_export):
        return None
    tables = ("output_bias", "source_weight", "own_target_weight", "own_output_weight")
    known = _stored_names(family, config).names
    others = (name for name in names if name not in tables and not name.startswith("classifier."))
    return family if all(find_names(known, name) is not None for name in others) else None


def stored_parameters(
    names: Collection[str], config: ModelConfig, present: Collection[str]
) -> dict[str, StoredParameter]:
    """Return a dict from each parameter's name to its tensors in a weights file, as `StoredParameter`.

    Args:
        names: this package's parameter names.
        config: the model's configuration.
        present: the names of all tensors in the file; if they are this package's, each parameter is one tensor.
    """
    family = family_for(config)
    if family is None or _NATIVE_NAME in present:
        return {name: StoredParameter((name,)) for name in names}
    return {name: _stored_parameter(name, config, family) for name in names}


def count_rounded(weights: Mapping[str, Tensor], config: ModelConfig) -> int:
    """Return how many numbers of a model's weights its Hugging Face class does not hold exactly; 0 without a class."""
    locations = stored_parameters(weights, config, ()).items()
    shifted = ((weights[name], each) for name, each in locations if each.layout == "minus-one")
    return sum(int((each.restore(list(each.store(weight, ()).values())) != weight).sum()) for weight, each in shifted)


def redundant_names(config: ModelConfig, present: Collection[str]) -> set[str]:
    """Return a set of the names of tensors in a weights file that a reader may ignore.

    A reader may ignore these tensors if no parameter needs them. Some are tables, such as embeddings, that can be
    copies of other tensors. Others, such as sinusoids, are computed again. The result is empty for a file with this
    package's names.

    Args:
        config: the model's configuration.
        present: the names of all tensors in the file.
    """
    family = family_for(config)
    if family is None or _NATIVE_NAME in present:
        return set()
    names = _stored_names(family, config)
    tables = {names.shared, names.source, names.target, names.output, *names.output_bias}
    ignored = re.compile(names.ignored)
    return {name for name in present if name in tables or ignored.fullmatch(name)}


def ignored_names(config: ModelConfig) -> set[str]:
    """Return a set of tensor names that the class of an encoder reports as unexpected because it does not use them.

    The result is empty for other kinds of models.
    """
    family = family_for(config)
    if family is None or family.kind != "encoder":
        return set()
    if config.masked_language_head:
        pooler_is_unused = config.pooler and config.num_labels == 0
        names = ("pooler.weight", "pooler.bias") if pooler_is_unused else ()
        return {_stored_parameter(name, config, family).names[0] for name in names}
    return {_stored_names(family, config).output_bias[0]} if config.output_bias else set()


# --- one parameter ---


def _stored_parameter(name: str, config: ModelConfig, family: Family) -> StoredParameter:
    names = _stored_names(family, config)
    if name == "output_bias":
        return _output_bias_place(names)
    table = {
        "source_weight": names.shared if config.tie_source_target else names.source,
        "own_target_weight": names.target,
        "own_output_weight": names.output,
    }.get(name)
    if table is not None:
        return StoredParameter((table,))
    if family.architecture == "BertForPreTraining" and name.startswith("classifier."):
        return StoredParameter((name.replace("classifier", _NEXT_SENTENCE_HEAD),), "reversed")
    found = find_names(names.names, name)
    if found is None:
        raise ValueError(f"{family.architecture} has no name for the parameter {name}")
    return found


def _output_bias_place(names: StoredNames) -> StoredParameter:
    name = names.output_bias[0]
    return StoredParameter((name,), "flat" if name == "final_logits_bias" else "rows")


def _stored_names(family: Family, config: ModelConfig) -> StoredNames:
    """Return the table (`StoredNames`) that maps this package's parameter names to those of a Hugging Face family.

    Some families have several tables: T5's are for plain or gated feed-forward layers, which the activation function
    shows, and RoBERTa's for different heads.
    """
    if config.activation.endswith(("glu", "glu-tanh")):
        distinctive = ["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"]
    else:
        heads = {
            "RobertaForSequenceClassification": "classifier.dense.weight",
            "RobertaForTokenClassification": "classifier.weight",
            "MPNetForSequenceClassification": "classifier.dense.weight",
            "MPNetForTokenClassification": "classifier.weight",
        }
        distinctive = [heads[family.architecture]] if family.architecture in heads else []
    return names_of(family.model_type, distinctive)


def _sizes(name: str, config: ModelConfig) -> Sequence[int]:
    """Return the numbers of rows of the stored tensors into which a parameter is split.

    A gated feed-forward layer's parameter is split into two halves. An attention's is split into queries, keys and
    values.
    """
    if ".feed_forward.inner." in name:
        return (config.d_ff, config.d_ff)
    heads = config.key_value_heads
    return (config.num_heads * config.key_width, heads * config.key_width, heads * config.value_width)


# --- models that transformers loads from a folder and runs offline ---
# A folder is opened by one of transformers' automatic classes, such as `AutoModelForCausalLM`.
# Legend: B texts, T target length, V vocabulary.


class _OpenedModel:
    """A model and tokenizer opened by transformers, which pads token ids and cuts outputs at the end symbol."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """Open a model folder with transformers on the CPU, offline and without running code from it.

        Raises:
            TransduceError: transformers is missing, or finds a tensor missing, unknown or of another shape.
        """
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        transformers = import_extra("transformers", "hf")
        transformers.logging.disable_progress_bar()
        self.config = config
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        automatic = getattr(transformers, automatic_class_for(config) or "AutoModel")
        with _quiet(transformers):
            self.model, loading_info = automatic.from_pretrained(folder, output_loading_info=True)
        self.model.eval()
        expected = ignored_names(config)
        unexpected = {kind: sorted(set(map(str, names)) - expected) for kind, names in loading_info.items()}
        wrong = {kind: names for kind, names in unexpected.items() if names}
        if wrong:
            raise TransduceError(
                f"transformers opens {folder}, but not all of its tensors are what it expects: {wrong}."
            )

    def use_greedy_search(self, unk_id: int, forced: Sequence[int]) -> None:
        """Make `generate` of transformers search as this package's greedy search does, whatever the folder says.

        Nothing happens for an encoder, which generates no text.

        Args:
            unk_id: id of the target vocabulary's unknown token.
            forced: ids with which every translation begins, such as the language tag.
        """
        content = generation_config(self.config, unk_id)
        if content is None:
            return
        if self.config.kind == "transformer":
            content["bad_words_ids"] = [[id] for id in self.config.forbidden_tokens] or None
        if forced:
            content["forced_bos_token_id"] = forced[0]
        self.model.generation_config = import_extra("transformers", "hf").GenerationConfig(**content)

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """Return a list of token ids for each text, including the special tokens that the folder's tokenizer adds."""
        ids: list[list[int]] = self.tokenizer(list(texts))["input_ids"]
        return ids

    def _rows(self, rows: Ids, *, pad_left: bool = False) -> dict[str, Tensor]:
        """Pad texts' token ids to one length; return them and their attention mask as transformers' arguments.

        Args:
            rows: the ids of each text, at least one.
            pad_left: put the padding before the text, as continuing prompts needs, instead of behind it.

        Returns:
            A dict of `input_ids` and `attention_mask`, int64 tensors (texts, longest text).
        """
        present = [[1] * len(row) for row in rows]
        return {
            "input_ids": padded(rows, self.config.pad_id, left=pad_left),
            "attention_mask": padded(present, 0, left=pad_left),
        }

    @torch.inference_mode()
    def _generate(self, inputs: Mapping[str, Tensor], max_tokens: int, *, written: int) -> list[list[int]]:
        """Return a list of the ids that greedy search of transformers adds to each text, without the end symbol.

        Args:
            inputs: the arguments of `generate` with the texts' ids and their attention mask.
            max_tokens: maximum number of tokens to generate for a text.
            written: number of ids at the start of each row of `generate`'s result that were not generated.
        """
        ids = self.model.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=max_tokens, max_length=None)
        return until_end(ids[:, written:].tolist(), self.config.eos_id)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Suppress transformers' warnings in a `with` block, as of unused tensors, which this package checks itself."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)


class HuggingFaceModel(_OpenedModel, ExportedModel):
    """An exported encoder–decoder that transformers runs on the CPU, to compare it with its original."""

    @torch.inference_mode()
    @override
    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        inputs = padded([[self.config.start_id, *row] for row in targets], self.config.pad_id)
        logits = self.model(**self._rows(sources), decoder_input_ids=inputs).logits  # (B, T, V)
        return target_log_probabilities(logits, targets, [0] * len(targets), self.config.eos_id)

    @override
    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        return self._generate(self._rows(sources), max_tokens, written=1)


class HuggingFaceLanguageModel(_OpenedModel, ExportedModel):
    """An exported decoder-only language model that transformers runs on the CPU, to compare it with its original."""

    @override
    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        # A text is continued, so an end symbol that the folder's own tokenizer puts after it is left out.
        return [row[:-1] if row[1:] and row[-1] == self.config.eos_id else row for row in super().ids_of(texts)]

    @torch.inference_mode()
    @override
    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        start = self.config.start_id
        rows = [[start, *source, *target] for source, target in zip(sources, targets, strict=True)]
        logits = self.model(**self._rows(rows)).logits  # (B, T, V)
        return target_log_probabilities(logits, targets, list(map(len, sources)), self.config.eos_id)

    @override
    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        rows = self._rows([[self.config.start_id, *row] for row in sources], pad_left=True)
        return self._generate(rows, max_tokens, written=rows["input_ids"].shape[1])


class HuggingFaceEncoder(_OpenedModel, ExportedEncoder):
    """An exported encoder-only model that transformers runs on the CPU, to compare it with its original."""

    @torch.inference_mode()
    @override
    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        inputs = self._rows(rows)
        if self.config.token_types:
            inputs["token_type_ids"] = padded(token_types, 0)
        results = self.model(**inputs, output_hidden_states=True)
        outputs_by_name = {"states": results.hidden_states[-1]}
        logits = "prediction_logits" if "prediction_logits" in results else "logits"
        if logits in results:
            outputs_by_name["logits" if self.config.masked_language_head else "classes"] = results[logits]
        if "seq_relationship_logits" in results:  # Hugging Face's class 0 is this package's class 1
            outputs_by_name["classes"] = results["seq_relationship_logits"].flip(-1)
        if "pooler_output" in results:
            outputs_by_name["pooled"] = results["pooler_output"]
        return {name: split_outputs(tensor.numpy(), rows) for name, tensor in outputs_by_name.items()}


# --- tokenizer files ---
# Hugging Face's tokenizers add special tokens: the end symbol after a sentence to translate, [CLS] and [SEP] around an
# encoder's input, and the end-of-line symbol before a language model's prompt.


_SPACE = "▁"
# "</s>" in a text is plain characters, as in this package. Not for encoders and prompts, which contain special tokens.
_SPLIT_SPECIAL = {"split_special_tokens": True}


def tokenizer_files(
    tokenizer: Tokenizer, config: ModelConfig, languages: tuple[str | None, str | None]
) -> dict[str, Any]:
    """Return the JSON files with which Hugging Face tokenizes as this package does, a dict from names to contents.

    The files replace those of the same names that `Tokenizer.save` writes. The result is empty if Hugging Face has no
    such tokenizer.

    Args:
        tokenizer: the model's tokenizer.
        config: the model's configuration.
        languages: source and target language; None if unknown.
    """
    if isinstance(tokenizer, ImportedTokenizer):
        return {}
    if not tokenizer.joint:
        return _marian_files(tokenizer, languages) if has_tokenizer(tokenizer, config) else {}
    if not is_plain(tokenizer.source.model_bytes):
        return {}
    if config.kind == "encoder":
        return _encoder_files(tokenizer.source, config) if find_special_tokens(tokenizer.source) is not None else {}
    card = _config_content(tokenizer.source, config, ("input_ids", "attention_mask"))
    if config.kind != "decoder":
        return {"tokenizer_config.json": card | _SPLIT_SPECIAL} | _files_with_prefix(tokenizer.source)
    vocabulary = tokenizer.source
    start = vocabulary.token(config.start_id)
    return {
        "tokenizer.json": tokenizer_json(vocabulary) | {"post_processor": _post_processor((start,), (), vocabulary)},
        # Padding at the left aligns the ends of a batch's prompts for generation.
        "tokenizer_config.json": card | {"bos_token": start, "padding_side": "left"},
        "special_tokens_map.json": special_tokens_map(vocabulary) | {"bos_token": start},
    }


def has_tokenizer(tokenizer: Tokenizer, config: ModelConfig) -> bool:
    """Return whether Hugging Face has a tokenizer class that can tokenize as this tokenizer does.

    For separate vocabularies, only Marian's class exists. A joint sentencepiece model must be one that tokenizer.json
    can express. The result is False for imported tokenizers.
    """
    if isinstance(tokenizer, ImportedTokenizer):
        return False
    if tokenizer.joint:
        return is_plain(tokenizer.source.model_bytes)
    family = family_for(config)
    return family is not None and family.model_type == "marian" and not tokenizer.source.nfc


def pipeline_files(tokenizer: Tokenizer, config: ModelConfig) -> dict[str, Any]:
    """Return Hugging Face's files for a tokenizer that a tokenizer.json describes.

    The result is a dict from file names to contents. Such a tokenizer is made from a user's file, or belongs to an
    imported language model. The dict is empty for other tokenizers. In a language model that was trained here, each
    line begins with the tokenizer's start tokens, or with the end symbol if there are none. The caller must check that
    the files tokenize like the tokenizer.

    Args:
        tokenizer: the model's tokenizer.
        config: the model's configuration.
    """
    if not isinstance(tokenizer, ImportedTokenizer) or tokenizer.record.target is not None:
        return {}
    record, is_language_model = tokenizer.record.source, config.kind == "decoder"
    before, after = record.before, record.after
    if is_language_model:
        before, after = before or (() if record.keeps_line_feeds else (record.eos_id,)), ()
    is_framed = record.forced or tokenizer.record.languages is not None
    is_plain_text = is_language_model or (before, after) == ((), (record.eos_id,))
    if not isinstance(record.algorithm, TokenizerJson) or is_framed or not is_plain_text:
        return {}
    names = {id: token for token, id in record.ids.items()}
    special = {record.pad_id, record.eos_id, record.unk_id, *record.silent}
    added = {id: {"id": id, "content": names[id], **_FLAGS, "special": True} for id in special if id in names}
    for symbol in record.all_symbols():
        id = record.ids[symbol.text]
        added[id] = {"id": id, "content": symbol.text, **flags_of(symbol)}
        added[id]["special"] = is_language_model and id in special
    vocabulary, chat = tokenizer.source, tokenizer.record.chat_template
    chat_settings = {} if chat is UNSET else chat.special_tokens | {"chat_template": chat.source}
    start = {"bos_token": names[before[0]]} if is_language_model and before else {}
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [added[id] for id in sorted(added)],
            **record.algorithm.content,
            "post_processor": _post_processor(vocabulary.tokens(before), vocabulary.tokens(after), vocabulary),
        },
        "tokenizer_config.json": chat_settings
        | tokenizer_config(vocabulary, MAXIMUM_POSITIONS)
        | {"model_input_names": ["input_ids", "attention_mask"]}
        | start
        | ({"padding_side": "left"} if is_language_model else {}),
        "special_tokens_map.json": special_tokens_map(vocabulary) | start,
    }


_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _config_content(vocabulary: Vocabulary, config: ModelConfig, inputs: Sequence[str]) -> dict[str, Any]:
    return tokenizer_config(vocabulary, max_sequence_length(config)) | {"model_input_names": list(inputs)}


def _files_with_prefix(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the tokenizer.json, in a dict by this name, of a vocabulary with language tokens or tags.

    If a target language is selected, the tokenizer puts the language's token before each text. Otherwise a text may
    start with a token such as `>>cs<<`, and the space after this token is not part of the text. The dict is empty for
    other vocabularies, whose file needs no change.
    """
    names = (*map(language_token, vocabulary.target_languages), *map(tag_token, vocabulary.tags))
    if not vocabulary.before and not names:
        return {}
    content: dict[str, Any] = tokenizer_json(vocabulary)
    if vocabulary.before:
        before, end = vocabulary.tokens(vocabulary.before), vocabulary.tokens((vocabulary.eos_id,))
        return {"tokenizer.json": content | {"post_processor": _post_processor(before, end, vocabulary)}}
    # Special tokens would be split (`split_special_tokens`), so these are ordinary added tokens.
    _add_tokens(content, vocabulary, names, _FLAGS | {"special": False, "rstrip": True})
    return {"tokenizer.json": content}


def _add_tokens(
    content: dict[str, Any], vocabulary: Vocabulary, names: Iterable[str], flags: Mapping[str, bool]
) -> None:
    """Add tokens with these flags to the added tokens of a tokenizer.json, whose content is changed in place."""
    added = [{"id": vocabulary.id(name), "content": name, **flags} for name in names]
    content["added_tokens"] = sorted([*content["added_tokens"], *added], key=lambda token: int(token["id"]))


# --- an encoder alone ---


def _encoder_files(vocabulary: Vocabulary, config: ModelConfig) -> dict[str, Any]:
    named = {"cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
    content: dict[str, Any] = tokenizer_json(vocabulary)
    # Special tokens are matched after normalization, which removes the space (▁) before them.
    _add_tokens(content, vocabulary, SPECIAL_TOKENS, _FLAGS | {"normalized": True, "special": True})
    content["normalizer"]["normalizers"] += [
        {"type": "Replace", "pattern": {"String": _SPACE + mark}, "content": mark} for mark in SPECIAL_TOKENS
    ]
    content["post_processor"] = _post_processor((CLS,), (SEP,), vocabulary)
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": _config_content(vocabulary, config, ("input_ids", "token_type_ids", "attention_mask"))
        | named,
        "special_tokens_map.json": special_tokens_map(vocabulary) | named,
    }


def _post_processor(before: Sequence[str], after: Sequence[str], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the post-processor of a tokenizer.json, a dict, that adds special tokens around texts.

    Args:
        before: tokens before a text, or before the first text of a pair.
        after: tokens after a text, or after each text of a pair.
        vocabulary: the vocabulary, which has the tokens' ids.
    """

    def special_tokens(names: Sequence[str], side: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": side}} for name in names]

    first, second = ({"Sequence": {"id": name, "type_id": side}} for side, name in enumerate("AB"))
    single = [*special_tokens(before, 0), first, *special_tokens(after, 0)]
    token_ids = {name: {"id": name, "ids": [vocabulary.id(name)], "tokens": [name]} for name in (*before, *after)}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, *special_tokens(after, 1)],
        "special_tokens": token_ids,
    }


# --- two vocabularies ---


def _marian_files(tokenizer: Tokenizer, languages: tuple[str | None, str | None]) -> dict[str, Any]:
    """Return the files that Marian's tokenizer needs in addition to source.spm and target.spm, a dict by name.

    The files contain the ids of the tokens, the special tokens, and the settings of the tokenizer.
    """
    source, target = tokenizer.source, tokenizer.target
    special_tokens = special_tokens_map(source)
    language_settings = {"source_lang": languages[0], "target_lang": languages[1]}
    return {
        "vocab.json": _ids(source),
        "target_vocab.json": _ids(target),
        "special_tokens_map.json": special_tokens,
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            **special_tokens,
            **language_settings,
            "separate_vocabs": True,
            "model_max_length": MAXIMUM_POSITIONS,
            "clean_up_tokenization_spaces": False,
            **_SPLIT_SPECIAL,
        },
    }


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {token: id for id, token in enumerate(vocabulary.tokens(range(vocabulary.size)))}
