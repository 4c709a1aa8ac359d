"""`transduce translate MODEL < in.txt > out.txt`."""

import argparse
import codecs
import contextlib
import io
import sys
from collections.abc import Iterable, Iterator

import msgspec

from transduce.commands.options import add_computing, add_search, load_translator, search_settings
from transduce.runtime.translator import Translator
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.text.files import read_lines

_LINES_AT_ONCE = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("model", help="a model folder")
    parser.add_argument("file", nargs="?", help="text, a sentence a line; standard input where nothing is said")
    parser.add_argument(
        "--n-best",
        type=int,
        default=1,
        metavar="N",
        help="alternatives; more than 1 prints `number ||| text ||| score`",
    )
    add_search(parser)
    add_sampling(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """One line out for each line in; a prompt on a terminal."""
    search = search_settings(options, n_best=1 if options.sample else options.n_best)
    if options.sample:
        search = msgspec.structs.replace(search, n_best=options.n_best, sampling=sampling_settings(options))
    translator = load_translator(options.model, options)
    output = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
    try:
        if options.file is None and sys.stdin.isatty():
            prompt(translator, output, search)
        else:
            lines = read_lines(options.file) if options.file else stdin_lines()
            translate_lines(translator, lines, output, search)
        output.flush()
    finally:
        output.detach()
    return 0


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Drawing in place of searching: --sample, --temperature, --top-k, --top-p, --seed."""
    parser.add_argument("--sample", action="store_true", help="draw translations instead of searching for the best")
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="below 1 likely pieces get likelier"
    )
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw among the likeliest K pieces; 0: all")
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="draw among the likeliest pieces that reach P together"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="the same seed draws the same translations")


def sampling_settings(options: argparse.Namespace) -> SamplingSettings:
    """The options of `add_sampling`."""
    return SamplingSettings(
        temperature=options.temperature, top_k=options.top_k, top_p=options.top_p, seed=options.seed
    )


def stdin_lines() -> Iterator[str]:
    """Lines of standard input, as read_lines reads a file; but bytes that are no UTF-8 become U+FFFD.

    A file can be mended and a stream cannot, so its other lines are translated all the same.
    """
    for number, raw in enumerate(sys.stdin.buffer, 1):
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        text = line.decode("utf-8", "replace")
        if text.count("\ufffd") > line.count("\ufffd".encode()):
            sys.stderr.write(f"Standard input, line {number}: what is not UTF-8 was read as U+FFFD.\n")
        yield text


def translate_lines(
    translator: Translator, lines: Iterable[str], output: io.TextIOWrapper, search: SearchSettings
) -> None:
    """Translates in portions, so that output follows input closely and memory stays flat."""
    number = 0
    for portion in portions(lines, _LINES_AT_ONCE):
        for translation in translator.translate(portion, search, first_place=number):
            if search.n_best == 1:
                output.write(translation.text + "\n")
            else:
                for alternative in translation.alternatives:
                    output.write(f"{number} ||| {alternative.text} ||| {alternative.score:.4f}\n")
            number += 1
        output.flush()


def portions(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of at most `size` lines."""
    portion: list[str] = []
    for line in lines:
        portion.append(line)
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion


def prompt(translator: Translator, output: io.TextIOWrapper, search: SearchSettings) -> None:
    """Reads sentences from a person until the input ends."""
    languages = f"{translator.source_language or 'source'} → {translator.target_language or 'target'}"
    sys.stderr.write(f"{languages}. Type a sentence; an empty line ends.\n")
    while True:
        try:
            sentence = _ask()
        except EOFError:
            return
        if not sentence.strip():
            return
        for alternative in translator(sentence, search=search).alternatives:
            output.write(alternative.text + "\n")
        output.flush()


def _ask() -> str:
    """A line that a person types; the mark before it never goes into a file that takes the translations."""
    with contextlib.suppress(ImportError):  # Windows has none; its console edits lines by itself
        import readline  # noqa: F401
    if sys.stdout.isatty():
        return input("> ")
    sys.stderr.write("> ")
    sys.stderr.flush()
    return input()
