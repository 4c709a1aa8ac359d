"""Read models written after tutorials from files: their weights, word lists, and settings that weights do not show."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from transduce.atomic_io import name_path_in_errors
from transduce.errors import TransduceError, shown_names
from transduce.interop.hugging_face.import_weights import ImportedModel
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.interop.tutorials import USUAL_NAMES, Style, TutorialNames, import_tutorial, language_model_config
from transduce.interop.vocabulary_files import character_vocabulary, read_vocabulary, read_words, start_symbol_id
from transduce.model.config import Activation, ModelConfig
from transduce.text.tokenizer import Tokenizer

_MAX_BYTES = 4 * 1024**3
_MAX_ADDED = 3  # padding, end and unknown words
_NO_SCALE: tuple[Style, ...] = ("separate",)  # listings that do not multiply embeddings by √d_model
_PRE_NORM: tuple[Style, ...] = ("annotated",)
_INNER: dict[Style, str] = {
    "torch": "linear1.weight",
    "annotated": "feed_forward.w_1.weight",
    "separate": "pos_ffn.fc.0.weight",
    "blocks": "ffn.dense1.weight",
    "transduce": "feed_forward.inner.weight",
}
"""A dict from a tutorial's style to the ending of the name of a feed-forward network's first matrix, for counting
layers.
"""


class TutorialModel(NamedTuple):
    """A model that was imported from a tutorial's files: its configuration and weights, with its tokenizer."""

    model: ImportedModel
    tokenizer: Tokenizer


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a tutorial's code that are needed to import its model, but that the weights do not show."""

    style: Style
    """The tutorial's way of naming layers, such as `torch` or `annotated`."""
    num_heads: int
    """Number of attention heads."""
    norm_order: Literal["pre", "post"] | None = None
    """The place of norms: `pre` or `post`; None: the usual one of the style."""
    scales_embeddings: bool = True
    """False if embeddings are not multiplied by √d_model; in the style `separate`, they never are."""
    activation: Activation | None = None
    """The activation of a language model's feed-forward networks; None: the usual one."""
    embeddings: tuple[str, str, str] | None = None
    """Names of the source embeddings, the target embeddings and the output layer; None: the usual ones."""
    stacks: tuple[str, str] | None = None
    """Names of the encoder's and the decoder's stack of layers; None: the usual ones."""

    def names(self) -> TutorialNames:
        """Return the `TutorialNames` of embeddings, output layer and stacks that are set, or else the style's."""
        names = USUAL_NAMES[self.style]
        if self.embeddings is not None:
            source, target, output = self.embeddings
            weight = [each if each.endswith(".weight") else f"{each}.weight" for each in (source, target)]
            names = names._replace(source=weight[0], target=weight[1], output=output.removesuffix(".weight"))
        if self.stacks is not None:
            names = names._replace(encoder=self.stacks[0], decoder=self.stacks[1])
        return names


class SpecialWords(NamedTuple):
    """The spellings of start, end and padding symbols in a translator's word lists; None: a usual one, such as <s>."""

    start: str | None = None
    end: str | None = None
    padding: str | None = None


# --- translators ---


def read_translator(
    file: Path, lists: Sequence[str], listing: Listing, special: SpecialWords, *, source_start: bool = False
) -> TutorialModel:
    """Read a translator written after a tutorial, with its tokenizer, from files.

    Args:
        file: the weights, a state_dict.
        lists: the path of one word list for both sides, or the paths of two, for source and target.
        listing: the properties of the tutorial's code, such as the number of heads.
        special: the spellings of special symbols in the word lists.
        source_start: True if the source begins with the start symbol, too.

    Returns:
        A `TutorialModel`: the model and its tokenizer.

    Raises:
        OSError: the file of weights does not exist.
        TransduceError: a file cannot be read, or the files do not fit together.
    """
    weights, words = read_tensors(file), [_read_list(path, special) for path in lists]
    start_id = start_symbol_id(words[-1])
    if start_id is None:
        raise TransduceError("The target's word list has no usual start symbol: name its own with --start.")
    tokenizer = read_vocabulary(*words, source_start=source_start)
    target = tokenizer.target
    for id, meaning, option in ((target.pad_id, "padding", "--padding"), (target.eos_id, "end", "--end")):
        if id not in words[-1].values():
            raise TransduceError(f"The target's word list has no usual {meaning} symbol: name its own with {option}.")
    config = _translator_config(file, listing, weights, (target.pad_id, target.eos_id, start_id))
    found = import_tutorial(weights, config, style=listing.style, names=listing.names())
    return TutorialModel(_with_unknown(found, tokenizer), tokenizer)


def _read_list(file: str, special: SpecialWords) -> dict[str, int]:
    """Return a dict from the words of a vocabulary file to their ids.

    The symbols whose spellings `special` has are renamed to `<s>`, `</s>` and `<pad>`.

    Raises:
        TransduceError: the file is no word list, or lacks a symbol of `special`.
    """
    ids = read_words(Path(file))
    for symbol, usual in zip(special, ("<s>", "</s>", "<pad>"), strict=True):
        if symbol is not None and symbol not in ids:
            raise TransduceError(f"{file} has no {symbol!r}: name a symbol as the list spells it.")
        if symbol is not None and symbol != usual:
            ids[usual] = ids.pop(symbol)
    return ids


def _translator_config(
    file: Path, listing: Listing, weights: Mapping[str, Tensor], ids: tuple[int, int, int]
) -> ModelConfig:
    """Return the `ModelConfig` of a tutorial's translator.

    Args:
        file: the file of weights, for messages.
        listing: the properties of the tutorial's code, such as the number of heads.
        weights: the model's state_dict, whose shapes determine the sizes.
        ids: ids of padding, end and the decoder's start symbol.

    Raises:
        TransduceError: the weights lack the source embeddings, or the style's names of layers.
    """
    names, style = listing.names(), listing.style
    if names.source not in weights:
        raise TransduceError(
            f"{file} has no {names.source}, the source embeddings of the style {style}: pass the names with "
            f"--embeddings; the first weights are {shown_names(weights, 5)}."
        )
    inner = [name for name in weights if name.endswith(_INNER[style])]
    if not inner:
        raise TransduceError(
            f"{file} has no weight that ends with {_INNER[style]}, as the style {style} has: choose another --style."
        )
    return ModelConfig(
        source_vocabulary_size=len(weights[names.source]),
        target_vocabulary_size=len(weights.get(names.target, weights[names.source])),
        tie_source_target=False,  # the import finds out
        num_encoder_layers=sum(name.startswith(f"{names.encoder}.") for name in inner),
        num_decoder_layers=sum(name.startswith(f"{names.decoder}.") for name in inner),
        d_model=weights[names.source].shape[1],
        d_ff=len(weights[inner[0]]),
        num_heads=listing.num_heads,
        norm_order=listing.norm_order or ("pre" if style in _PRE_NORM else "post"),
        final_norm=f"{names.encoder}.norm.weight" in weights or f"{names.encoder}.norm.a_2" in weights,
        scale_embeddings=listing.scales_embeddings and style not in _NO_SCALE,
        pad_id=ids[0],
        eos_id=ids[1],
        start_id=ids[2],
    )


def _with_unknown(found: ImportedModel, tokenizer: Tokenizer) -> ImportedModel:
    """Return an imported model whose embeddings have rows for symbols added to its word lists, such as `<unk>`.

    If no symbol was added, the result is `found` itself.

    Args:
        found: the imported model's configuration and weights.
        tokenizer: the tokenizer of the word lists, to which the symbols were added.

    Raises:
        TransduceError: a word list, with added symbols, is shorter than the embeddings or more than 3 entries longer.
    """
    sizes = tokenizer.source.size, tokenizer.target.size
    config = found.config
    added = sizes[0] - config.source_vocabulary_size, sizes[1] - config.target_vocabulary_size
    if added == (0, 0):
        return found
    if min(added) < 0 or max(added) > _MAX_ADDED:
        raise TransduceError(
            f"The word lists have {sizes[0]:,} and {sizes[1]:,} words, but the embeddings "
            f"{config.source_vocabulary_size:,} and {config.target_vocabulary_size:,} rows: pass the lists that the "
            "model was trained with."
        )
    rows = {"source_weight": added[0], "own_target_weight": added[1], "own_output_weight": added[1]}
    weights = _with_rows(found.weights, rows, "output_bias", (config.target_vocabulary_size, sizes[1]))
    config = msgspec.structs.replace(
        config, source_vocabulary_size=sizes[0], target_vocabulary_size=sizes[1], output_bias=True
    )
    return ImportedModel(config, weights)


def _with_rows(
    weights: Mapping[str, Tensor], added: Mapping[str, int], bias: str, sizes: tuple[int, int]
) -> dict[str, Tensor]:
    """Return a dict of weights with more rows, for tokens that were added to a word list.

    The new rows are zero. The output bias of the new tokens is −10,000, so that they are never generated.

    Args:
        weights: the weights by name, which are not changed.
        added: number of rows to add to each matrix, by its name; matrices that the model lacks are left out.
        bias: name of the output layer's bias. If the model lacks it, the other tokens have the bias zero.
        sizes: the number of tokens of the output layer before the addition, and after it.
    """
    padded = {name: functional.pad(weights[name], (0, 0, 0, rows)) for name, rows in added.items() if name in weights}
    old_bias = weights.get(bias, torch.zeros(sizes[0]))
    return {**weights, **padded, bias: functional.pad(old_bias, (0, sizes[1] - sizes[0]), value=-1e4)}


# --- language models ---


def read_language_model(file: Path, words: str, listing: Listing) -> TutorialModel:
    """Read a language model written after a tutorial, with its tokenizer, from files.

    The tutorials are nanoGPT, minGPT and Andrej Karpathy's lecture that writes a GPT from an empty file.

    Args:
        file: the weights, a state_dict.
        words: the path of a tokenizer.json, or of a file with a list of characters.
        listing: the properties of the tutorial's code: its number of heads and activation are used.

    Returns:
        A `TutorialModel`: the model and its tokenizer.

    Raises:
        OSError: the file of weights does not exist.
        TransduceError: a file cannot be read, the weights are not of these tutorials, or the files do not fit together.
    """
    weights, source = read_tensors(file), USUAL_NAMES["karpathy"].source
    tables = (source, "token_embedding_table.weight")
    table = next((weights[name] for name in tables if name in weights), None)
    if table is None:
        raise TransduceError(
            f"{file} has no embeddings of the style karpathy ({', '.join(tables)}): choose another --style; the first "
            f"weights are {shown_names(weights, 5)}."
        )
    tokenizer = _language_tokenizer(words, len(table))
    vocabulary = tokenizer.target
    if (added := vocabulary.size - len(table)) > 0:
        rows = dict.fromkeys((*tables, "lm_head.weight"), added)
        weights = _with_rows(weights, rows, "lm_head.bias", (len(table), vocabulary.size))
    config = language_model_config(
        weights,
        listing.num_heads,
        activation=listing.activation,
        pad_id=vocabulary.pad_id,
        eos_id=vocabulary.eos_id,
    )
    return TutorialModel(import_tutorial(weights, config, style="karpathy"), tokenizer)


def _language_tokenizer(file: str, rows: int) -> Tokenizer:
    """Return the tokenizer of an imported language model, which keeps line feeds.

    The tokenizer may have up to 3 tokens more than the model has embeddings: padding, end and unknown. If it has fewer,
    its size becomes the number of embeddings.

    Args:
        file: the path of a tokenizer.json, or of a file with a list of characters.
        rows: number of the model's embeddings.

    Raises:
        TransduceError: the file cannot be read, or has too many tokens for the embeddings.
    """
    if Path(file).name == "tokenizer.json":
        tokenizer = read_vocabulary(file)
    else:
        tokenizer = character_vocabulary(read_words(Path(file), may_be_space=True), file)
    assert isinstance(tokenizer, ImportedTokenizer)
    record = tokenizer.record.source
    if not rows <= max(rows, record.size) <= rows + _MAX_ADDED:
        raise TransduceError(
            f"{file} has {len(record.ids):,} tokens, but the embeddings have {rows:,} rows: pass the list that the "
            "model was trained with."
        )
    source = msgspec.structs.replace(record, size=max(rows, record.size), keeps_line_feeds=True)
    return ImportedTokenizer(msgspec.structs.replace(tokenizer.record, source=source))


# --- weights ---


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a state_dict, a dict from names to tensors, from a file of PyTorch or safetensors.

    Code that a pickle may contain is not run. If the file is a checkpoint, the state_dict is its entry `state_dict`,
    `model_state_dict` or `model`. The prefixes of DataParallel and torch.compile are removed from the names.

    Raises:
        OSError: the file does not exist.
        TransduceError: the file is too large, damaged, in another format, or has values that are not tensors.
    """
    with name_path_in_errors(file):
        size = file.stat().st_size
    if size > _MAX_BYTES:
        raise TransduceError(f"{file} has {size:,} bytes, but at most {_MAX_BYTES:,} are read.")
    is_safetensors = file.suffix == ".safetensors"
    if not is_safetensors and not zipfile.is_zipfile(file):
        raise TransduceError(f"{file} is neither .safetensors nor a file of torch.save of PyTorch 1.6 or later.")
    try:
        content = load_file(file) if is_safetensors else _load_archive(file)
    except TransduceError:  # a ValueError
        raise
    except (SafetensorError, zipfile.BadZipFile, RuntimeError, EOFError, ValueError) as error:
        raise TransduceError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":
            raise
        raise TransduceError(
            f"{file} holds more than tensors, and nothing else is unpickled: save `model.state_dict()` with torch.save."
        ) from None
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(each, Tensor) for each in content.values()):
        raise TransduceError(f"{file} must hold a state_dict, tensors by name: save `model.state_dict()`.")
    return {name.removeprefix("module.").removeprefix("_orig_mod."): tensor for name, tensor in content.items()}


def _load_archive(file: Path) -> object:
    with zipfile.ZipFile(file) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MAX_BYTES:
            raise TransduceError(f"{file} unpacks to more than {_MAX_BYTES:,} bytes.")
    content: object = torch.load(file, map_location="cpu", weights_only=True)
    return content
