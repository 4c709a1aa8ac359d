"""`transduce import-tutorial FILE OUT`: convert a model written after a tutorial to a model folder."""

import argparse
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.atomic_io import name_path_in_errors
from transduce.commands.options import TUTORIAL_STYLES, check_folder, option_of
from transduce.errors import TransduceError, shown_names
from transduce.model.config import ModelConfig
from transduce.text.tokenizer import Tokenizer
from transduce.ui_language import localized

if TYPE_CHECKING:
    from torch import Tensor

    from transduce.interop.hugging_face.import_weights import ImportedModel
    from transduce.interop.tutorials import Style, TutorialNames

_MAX_BYTES = 4 * 1024**3
_MAX_ADDED = 3  # padding, end and unknown words
_NO_SCALE: "tuple[Style, ...]" = ("separate",)  # listings that do not multiply embeddings by √d_model
_PRE_NORM: "tuple[Style, ...]" = ("annotated",)
_TRANSLATOR_OPTIONS = (
    *("source_words", "target_words", "start", "end", "padding", "source_start"),
    *("norm_order", "embeddings", "stacks", "unscaled"),
)
"""Options that only translators have, so that they are refused for a language model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce import-tutorial` in its argparse parser."""
    add = parser.add_argument
    add("file", help="the weights: a state_dict in a .pt or .pth file, or a .safetensors file; only tensors are read")
    add("out", help="the folder to create")
    add("--style", required=True, choices=TUTORIAL_STYLES, help="how the listing names its layers")
    add("--heads", required=True, type=int, metavar="N", help="attention heads, which weights do not show")
    words = parser.add_argument_group("words")
    words.add_argument(
        "--words",
        metavar="LIST",
        help="one word list for both sides; for karpathy, JSON with the characters, or a tokenizer.json",
    )
    words.add_argument("--source-words", metavar="LIST", help="the source's word list: a word a line, or JSON")
    words.add_argument("--target-words", metavar="LIST", help="the target's word list")
    words.add_argument("--start", metavar="WORD", help="the decoder's start symbol, such as S; default: <s>, <bos>, …")
    words.add_argument("--end", metavar="WORD", help="the end symbol, such as E; default: </s>, <eos>, …")
    words.add_argument("--padding", metavar="WORD", help="the padding symbol, such as P; default: <pad>, …")
    words.add_argument("--source-start", action="store_true", help="the source begins with the start symbol, too")
    words.add_argument("--languages", nargs=2, metavar=("SOURCE", "TARGET"), help="language codes, such as zh en")
    listing = parser.add_argument_group("listing")
    listing.add_argument("--norm-order", choices=("pre", "post"), help="default: pre for annotated, else post")
    listing.add_argument("--embeddings", nargs=3, metavar=("SOURCE", "TARGET", "OUTPUT"), help="names of these layers")
    listing.add_argument("--stacks", nargs=2, metavar=("ENCODER", "DECODER"), help="names of the two stacks of layers")
    listing.add_argument(
        "--activation",
        choices=("relu", "gelu", "gelu-tanh"),
        help="of karpathy's feed-forward networks; default: nanoGPT's gelu, minGPT's gelu-tanh, the lecture's relu",
    )
    listing.add_argument("--unscaled", action="store_true", help="embeddings are not multiplied by √d_model")


def run(options: argparse.Namespace) -> int:
    """Convert a model written after a tutorial, with its word lists, to a model folder; print a report and return 0."""
    from transduce.interop.tutorials import import_tutorial
    from transduce.interop.vocabulary_files import read_vocabulary, start_symbol_id

    check_folder(options.out)
    if options.style == "karpathy":
        return _import_language_model(options)
    if options.activation is not None:
        raise TransduceError("`--activation` is for the style karpathy: the other listings have relu.")
    if (options.words is None) == (options.source_words is None) or (options.source_words is None) != (
        options.target_words is None
    ):
        raise TransduceError("Name one list with --words, or two with --source-words and --target-words.")
    weights = read_tensors(Path(options.file))
    lists = [
        _read_list(file, options) for file in (options.words or options.source_words, options.target_words) if file
    ]
    start_id = start_symbol_id(lists[-1])
    if start_id is None:
        raise TransduceError("The target's word list has no usual start symbol: name its own with --start.")
    tokenizer = read_vocabulary(*lists, source_start=options.source_start)
    names = _names(options)
    ids = (tokenizer.target.pad_id, tokenizer.target.eos_id)
    for id, meaning, option in ((ids[0], "padding", "--padding"), (ids[1], "end", "--end")):
        if id not in lists[-1].values():
            raise TransduceError(f"The target's word list has no usual {meaning} symbol: name its own with {option}.")
    config = _config(options, weights, names, start_id, ids)
    found = _with_unknown(import_tutorial(weights, config, style=options.style, names=names), tokenizer)
    languages = tuple(options.languages) if options.languages else (None, None)
    count = _save(found, options.out, tokenizer, languages)
    report = (
        f"{options.out}: {config.num_encoder_layers} + {config.num_decoder_layers} layers of width {config.d_model}, "
        f"{count:,} parameters, {config.norm_order}-norm. Compare a translation with the tutorial's own before you "
        "rely on it: weights do not show heads, the order of norms, or the scale of embeddings.\n"
    )
    sys.stdout.write(localized(report))
    return 0


def _save(found: "ImportedModel", out: str, tokenizer: Tokenizer, languages: tuple[str | None, str | None]) -> int:
    """Write an imported model and its tokenizer to the folder `out`, and return the model's number of parameters."""
    from transduce.model.build import build_model
    from transduce.model.transformer import Decoder, Transformer
    from transduce.model_folder.write import save

    model = build_model(found.config)
    assert isinstance(model, Transformer | Decoder)
    model.load_state_dict(found.weights)
    save(model, out, tokenizer=tokenizer, languages=languages)
    return sum(parameter.numel() for parameter in model.parameters())


def _import_language_model(options: argparse.Namespace) -> int:
    """Convert a language model written after nanoGPT, minGPT or Karpathy's lecture to a model folder.

    A report is printed, and 0 returned.

    Raises:
        TransduceError: an option applies to translators only, or weights and vocabulary do not fit together.
    """
    from transduce.interop.tutorials import USUAL_NAMES, import_tutorial, language_model_config

    unused = next((name for name in _TRANSLATOR_OPTIONS if vars(options)[name]), None)
    if unused is not None:
        raise TransduceError(f"`{option_of(unused)}` is for translators, but karpathy's are language models.")
    if options.words is None:
        raise TransduceError("Name the model's characters, as JSON, or its tokenizer.json with --words.")
    weights = read_tensors(Path(options.file))
    names = USUAL_NAMES["karpathy"]
    table = next((weights[name] for name in (names.source, "token_embedding_table.weight") if name in weights), None)
    if table is None:
        raise TransduceError(
            f"{options.file} has neither {names.source} nor token_embedding_table.weight, the embeddings of the style "
            f"karpathy: choose another --style; the first weights are {shown_names(weights, 5)}."
        )
    tokenizer = _language_tokenizer(options.words, len(table))
    vocabulary = tokenizer.target
    if (added := vocabulary.size - len(table)) > 0:
        matrices = (names.source, "token_embedding_table.weight", "lm_head.weight")
        weights = _with_rows(weights, dict.fromkeys(matrices, added), "lm_head.bias", (len(table), vocabulary.size))
    config = language_model_config(
        weights, options.heads, activation=options.activation, pad_id=vocabulary.pad_id, eos_id=vocabulary.eos_id
    )
    found = import_tutorial(weights, config, style="karpathy", names=names)
    language = options.languages[-1] if options.languages else None
    count = _save(found, options.out, tokenizer, (language, language))
    report = (
        f"{options.out}: {config.num_decoder_layers} layers of width {config.d_model}, {count:,} parameters, a context "
        f"of {config.max_positions} tokens, {config.activation}. Compare the probabilities of a text with the "
        "tutorial's own before you rely on it: weights show neither heads nor the activation.\n"
    )
    sys.stdout.write(localized(report))
    return 0


def _language_tokenizer(file: str, rows: int) -> Tokenizer:
    """Return the tokenizer of an imported language model.

    Args:
        file: a tokenizer.json, or a file with a list of characters.
        rows: number of the model's embeddings. The tokenizer's size is at least that, and up to 3 more, for padding,
            end and unknown.

    Raises:
        TransduceError: the number of tokens does not fit the embeddings.
    """
    from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
    from transduce.interop.vocabulary_files import character_vocabulary, read_vocabulary, read_words

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


def _with_rows(
    weights: "Mapping[str, Tensor]", added: Mapping[str, int], bias: str, sizes: tuple[int, int]
) -> "dict[str, Tensor]":
    """Return weights with more rows, for tokens that were added to a word list and must never be generated.

    The rows are zero, and the bias of the tokens' logits is −10,000.

    Args:
        weights: the weights by name, which are not changed.
        added: number of rows to add to each matrix, by its name; matrices that the model lacks are left out.
        bias: name of the output layer's bias, which is zero if the model lacks it.
        sizes: numbers of tokens of the output layer, before and after.
    """
    import torch
    from torch.nn import functional

    padded = {name: functional.pad(weights[name], (0, 0, 0, rows)) for name, rows in added.items() if name in weights}
    old_bias = weights.get(bias, torch.zeros(sizes[0]))
    return {**weights, **padded, bias: functional.pad(old_bias, (0, sizes[1] - sizes[0]), value=-1e4)}


def read_tensors(file: Path) -> "dict[str, Tensor]":
    """Read a state_dict from a file of PyTorch or safetensors, without running code that a pickle may contain.

    A state_dict inside a checkpoint (`state_dict`, `model_state_dict`, `model`) is taken out of it, and the prefixes
    of DataParallel and torch.compile are removed from the names.

    Raises:
        TransduceError: the file is too large, damaged, or holds something else than tensors by name.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from torch import Tensor

    with name_path_in_errors(file):
        size = file.stat().st_size
    if size > _MAX_BYTES:
        raise TransduceError(f"{file} has {size:,} bytes, but at most {_MAX_BYTES:,} are read.")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        if not zipfile.is_zipfile(file):
            raise TransduceError(f"{file} is neither .safetensors nor a file of torch.save of PyTorch 1.6 or later.")
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MAX_BYTES:
                raise TransduceError(f"{file} unpacks to more than {_MAX_BYTES:,} bytes.")
        content = torch.load(file, map_location="cpu", weights_only=True)
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


def _read_list(file: str, options: argparse.Namespace) -> dict[str, int]:
    """Return the words of a vocabulary file with their ids, and with usual names of the special symbols.

    --start, --end and --padding say how the file spells these symbols, which become <s>, </s> and <pad>; without the
    options they stay.

    Raises:
        TransduceError: the file lacks a symbol that an option names.
    """
    from transduce.interop.vocabulary_files import read_words

    ids = read_words(Path(file))
    for symbol, usual in ((options.start, "<s>"), (options.end, "</s>"), (options.padding, "<pad>")):
        if symbol is not None and symbol not in ids:
            raise TransduceError(f"{file} has no {symbol!r}: name a symbol as the list spells it.")
        if symbol is not None and symbol != usual:
            ids[usual] = ids.pop(symbol)
    return ids


def _with_unknown(found: "ImportedModel", tokenizer: Tokenizer) -> "ImportedModel":
    """Return an imported translator with rows for the symbols that its word lists lacked, such as unknown words.

    The rows of embeddings and output layer are zero, and the bias of their logits is −10,000, so that the symbols are
    never generated. Without such symbols the model is returned unchanged.

    Args:
        found: the configuration and weights.
        tokenizer: the tokenizer of the word lists, to which the symbols were added.

    Raises:
        TransduceError: the word lists have fewer words, or over 3 more, than the embeddings have rows.
    """
    from transduce.interop.hugging_face.import_weights import ImportedModel

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


def _names(options: argparse.Namespace) -> "TutorialNames":
    from transduce.interop.tutorials import USUAL_NAMES

    names = USUAL_NAMES[options.style]
    if options.embeddings:
        source, target, output = options.embeddings
        weight = [each if each.endswith(".weight") else f"{each}.weight" for each in (source, target)]
        names = names._replace(source=weight[0], target=weight[1], output=output.removesuffix(".weight"))
    if options.stacks:
        names = names._replace(encoder=options.stacks[0], decoder=options.stacks[1])
    return names


def _config(
    options: argparse.Namespace,
    weights: "dict[str, Tensor]",
    names: "TutorialNames",
    start_id: int,
    ids: tuple[int, int],
) -> ModelConfig:
    """Return the configuration of a tutorial's translator, from the shapes of its weights and the command's options.

    Args:
        options: the options --style, --heads, --norm-order, --unscaled and --embeddings.
        weights: the model's state_dict.
        names: names of its embeddings and stacks.
        start_id: id of the decoder's start symbol.
        ids: ids of padding and end.

    Raises:
        TransduceError: the weights lack the source embeddings, or the style's names of layers.
    """
    if names.source not in weights:
        raise TransduceError(
            f"{options.file} has no {names.source}, the source embeddings of the style {options.style}: pass the names "
            f"with --embeddings; the first weights are {shown_names(weights, 5)}."
        )
    d_model = weights[names.source].shape[1]
    inner = [name for name in weights if name.endswith(_INNER[options.style])]
    if not inner:
        raise TransduceError(
            f"{options.file} has no weight that ends with {_INNER[options.style]}, as the style {options.style} has: "
            "choose another --style."
        )
    pre = (options.norm_order or ("pre" if options.style in _PRE_NORM else "post")) == "pre"
    return ModelConfig(
        source_vocabulary_size=len(weights[names.source]),
        target_vocabulary_size=len(weights.get(names.target, weights[names.source])),
        tie_source_target=False,  # the import finds out
        num_encoder_layers=sum(name.startswith(f"{names.encoder}.") for name in inner),
        num_decoder_layers=sum(name.startswith(f"{names.decoder}.") for name in inner),
        d_model=d_model,
        d_ff=len(weights[inner[0]]),
        num_heads=options.heads,
        norm_order="pre" if pre else "post",
        final_norm=f"{names.encoder}.norm.weight" in weights or f"{names.encoder}.norm.a_2" in weights,
        scale_embeddings=not (options.unscaled or options.style in _NO_SCALE),
        pad_id=ids[0],
        eos_id=ids[1],
        start_id=start_id,
    )


_INNER: "dict[Style, str]" = {
    "torch": "linear1.weight",
    "annotated": "feed_forward.w_1.weight",
    "separate": "pos_ffn.fc.0.weight",
    "blocks": "ffn.dense1.weight",
    "transduce": "feed_forward.inner.weight",
}
"""For each style, the ending of the name of a feed-forward network's first matrix, by which layers are counted."""
