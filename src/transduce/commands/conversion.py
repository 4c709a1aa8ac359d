"""Commands that convert models: `export`, `import` from Hugging Face, `import-tutorial`, and `quantize`."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.commands.options import (
    EXPORT_FORMATS,
    LANGUAGE_OPTIONS,
    QUANTIZATIONS,
    TUTORIAL_STYLES,
    add_computing,
    add_json,
    add_languages,
    check_folder,
    check_writable,
    option_of,
    read_aligned_lines,
    refuse_options,
    write_report,
)
from transduce.errors import TransduceError, count_noun
from transduce.text.files import read_lines
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.interop.tutorial_files import Listing, TutorialModel

# --- export and import ---


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce export` in its argparse parser."""
    add = parser.add_argument
    add("model", help="a model folder")
    add("out", help="the folder to create")
    add("--to", required=True, choices=EXPORT_FORMATS, help="target format")
    add(
        "--quantization",
        choices=QUANTIZATIONS,
        metavar="TYPE",
        help=f"how CTranslate2 stores weights: {', '.join(QUANTIZATIONS)}; int8 is smallest (default: float32)",
    )
    add(
        "--target-language",
        metavar="CODE",
        help="target language of a model of several; --to huggingface takes all of them if none is named",
    )
    add_json(add, "the comparison")
    texts = parser.add_argument_group("texts of the comparison").add_argument
    texts("--source", metavar="FILE", help="sentences to compare both models on (default: the dev set of the run)")
    texts("--reference", metavar="FILE", help="human translations of --source: score both models with greedy search")
    add_computing(parser)


def run_export(options: argparse.Namespace) -> None:
    """Export a model to another format, and print how well the export agrees with the model."""
    from transduce.exchange.export import export

    check_writable(report=options.json, inputs=[options.model, options.source, options.reference])
    for option, value, only in (("device", options.device, "cpu"), ("precision", options.precision, "fp32")):
        if value not in ("auto", only):
            raise TransduceError(
                f"The comparison of both models needs --{option} {only}, but it is {value}: leave it out."
            )
    if options.reference and not options.source:
        raise TransduceError("--reference needs the sources that it translates: pass --source too.")
    check_folder(options.out)
    sources, references = None, None
    if options.reference:
        sources, references = read_aligned_lines(options.source, options.reference)
    elif options.source:
        sources = list(read_lines(options.source))
    report = export(
        options.model,
        options.out,
        to=options.to,
        quantization=options.quantization,
        sources=sources,
        references=references,
        target_language=options.target_language,
        threads=options.threads,
    )
    write_report(report, options.json)


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce import` in its argparse parser."""
    add = parser.add_argument
    add("folder", help="a Hugging Face folder: config.json, model.safetensors and the tokenizer's files")
    add("out", help="the folder to create")
    add("--source-language", metavar="TAG", help="default source language of the imported model: zho_Hans, zh_CN")
    add("--target-language", metavar="TAG", help="default target language of the imported model: eng_Latn, >>fra<<")
    add_json(add)


def run_import(options: argparse.Namespace) -> None:
    """Convert a Hugging Face folder to a model folder, and print a report on the model."""
    from transduce.exchange.import_folder import import_model_folder

    check_writable(report=options.json, inputs=[options.folder])
    check_folder(options.out)
    report = import_model_folder(
        options.folder, options.out, source_language=options.source_language, target_language=options.target_language
    )
    write_report(report, options.json)


# --- import-tutorial ---


_TRANSLATOR_OPTIONS = (
    *("source_words", "target_words", "start", "end", "padding", "source_start"),
    *("norm_order", "embeddings", "stacks", "unscaled"),
)
"""Names of options of `import-tutorial` that only translators have, and that are refused for a language model."""


def add_import_tutorial_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce import-tutorial` in its argparse parser."""
    add = parser.add_argument
    add("file", help="the weights: a state_dict in a .pt or .pth file, or a .safetensors file; only tensors are read")
    add("out", help="the folder to create")
    add("--style", required=True, choices=TUTORIAL_STYLES, help="how the listing names its layers")
    add("--heads", required=True, type=int, metavar="N", help="attention heads, which weights do not show")
    words = parser.add_argument_group("words").add_argument
    words(
        "--words",
        metavar="LIST",
        help="one word list for both sides; for karpathy, JSON with the characters, or a tokenizer.json",
    )
    words("--source-words", metavar="LIST", help="the source's word list: a word a line, or JSON")
    words("--target-words", metavar="LIST", help="the target's word list")
    words("--start", metavar="WORD", help="the decoder's start symbol, such as S; default: <s>, <bos>, …")
    words("--end", metavar="WORD", help="the end symbol, such as E; default: </s>, <eos>, …")
    words("--padding", metavar="WORD", help="the padding symbol, such as P; default: <pad>, …")
    words("--source-start", action="store_true", help="the source begins with the start symbol, too")
    words("--languages", nargs=2, metavar=("SOURCE", "TARGET"), help="language codes, such as zh en")
    listing = parser.add_argument_group("listing").add_argument
    listing("--norm-order", choices=("pre", "post"), help="default: pre for annotated, else post")
    listing("--embeddings", nargs=3, metavar=("SOURCE", "TARGET", "OUTPUT"), help="names of these layers")
    listing("--stacks", nargs=2, metavar=("ENCODER", "DECODER"), help="names of the two stacks of layers")
    listing(
        "--activation",
        choices=("relu", "gelu", "gelu-tanh"),
        help="of karpathy's feed-forward networks; default: nanoGPT's gelu, minGPT's gelu-tanh, the lecture's relu",
    )
    listing("--unscaled", action="store_true", help="embeddings are not multiplied by √d_model")


def run_import_tutorial(options: argparse.Namespace) -> None:
    """Convert a model written after a tutorial, with its word lists, to a model folder, and print a report."""
    from transduce.interop.tutorial_files import Listing
    from transduce.model.build import build_model
    from transduce.model.transformer import Decoder, Transformer
    from transduce.model_folder.write import save

    check_folder(options.out)
    listing = Listing(
        style=options.style,
        num_heads=options.heads,
        norm_order=options.norm_order,
        scales_embeddings=not options.unscaled,
        activation=options.activation,
        embeddings=options.embeddings and tuple(options.embeddings),
        stacks=options.stacks and tuple(options.stacks),
    )
    is_language_model = options.style == "karpathy"
    (config, weights), tokenizer = (_language_model if is_language_model else _translator)(options, listing)
    model = build_model(config)
    assert isinstance(model, Transformer | Decoder)
    model.load_state_dict(weights)
    source, target = options.languages or (None, None)
    save(model, options.out, tokenizer=tokenizer, languages=(target if is_language_model else source, target))
    count = sum(parameter.numel() for parameter in model.parameters())
    if is_language_model:
        layers = count_noun(config.num_decoder_layers, "layer")
        report = (
            f"{options.out}: {layers} of width {config.d_model}, {count:,} parameters, a context of "
            f"{config.max_positions} tokens, {config.activation}. Compare the probabilities of a text with "
            "the tutorial's own before you rely on it: weights show neither heads nor the activation.\n"
        )
    else:
        report = (
            f"{options.out}: {config.num_encoder_layers} + {config.num_decoder_layers} layers of width "
            f"{config.d_model}, {count:,} parameters, {config.norm_order}-norm. Compare a translation with the "
            "tutorial's own before you rely on it: weights do not show heads, the order of norms, or the scale of "
            "embeddings.\n"
        )
    sys.stdout.write(localized(report))


def _translator(options: argparse.Namespace, listing: "Listing") -> "TutorialModel":
    from transduce.interop.tutorial_files import SpecialWords, read_translator

    if options.activation is not None:
        raise TransduceError("`--activation` is for the style karpathy: the other listings have relu.")
    if (options.words is None) == (options.source_words is None) or (options.source_words is None) != (
        options.target_words is None
    ):
        raise TransduceError("Name one list with --words, or two with --source-words and --target-words.")
    return read_translator(
        Path(options.file),
        [options.words] if options.words is not None else [options.source_words, options.target_words],
        listing,
        SpecialWords(options.start, options.end, options.padding),
        source_start=options.source_start,
    )


def _language_model(options: argparse.Namespace, listing: "Listing") -> "TutorialModel":
    from transduce.interop.tutorial_files import read_language_model

    unused = next((name for name in _TRANSLATOR_OPTIONS if vars(options)[name]), None)
    if unused is not None:
        raise TransduceError(f"`{option_of(unused)}` is for translators, but karpathy's are language models.")
    if options.words is None:
        raise TransduceError("Name the model's characters, as JSON, or its tokenizer.json with --words.")
    return read_language_model(Path(options.file), options.words, listing)


# --- quantize ---


def add_quantize_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce quantize` in its argparse parser."""
    parser.add_argument("folder", help="a model folder of `transduce train` or `transduce import`")
    parser.add_argument(
        "--prove",
        metavar="FILE",
        help="translate these lines in 8 bits and in float32, greedily and with the folder's search settings: if 99 %% "
        "of at least 100 are equal, `--precision auto` takes 8 bits here",
    )
    parser.add_argument(
        "--references",
        metavar="FILE",
        help="with --prove: translations of these lines; BLEU must not differ by over 0.1",
    )
    add_json(parser.add_argument)
    add_languages(parser)


def run_quantize(options: argparse.Namespace) -> None:
    """Store a model's weights in 8 bits, and print a report.

    With --prove, how often the model then translates as in float32 is also measured, printed and stored.
    """
    from transduce.model_folder.upkeep import quantize_folder

    check_writable(report=options.json, inputs=[options.folder, options.prove, options.references])
    if options.prove is None:
        refuse_options(
            options,
            ("references", *LANGUAGE_OPTIONS),
            "`{option}` describes the lines of `--prove`: name these, too, or leave it out.",
        )
        write_report(quantize_folder(options.folder), options.json)
        return
    from transduce.inference.evaluate import prove_int8

    references = None if options.references is None else list(read_lines(options.references))
    languages = {name: vars(options)[name] for name in LANGUAGE_OPTIONS}
    write_report(prove_int8(options.folder, list(read_lines(options.prove)), references, **languages), options.json)
