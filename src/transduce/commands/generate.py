"""`transduce generate MODEL "the beginning"`: continue a text with a language model."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from transduce.commands.options import (
    GENERATED_TOKENS,
    SAMPLING_OPTIONS,
    SEARCH_OPTIONS,
    add_computing,
    add_json,
    add_sampling,
    add_settings,
    check_writable,
    loading_options,
    passed_options,
    refuse_options,
    search_from,
    standard_output,
    text_argument,
    write_report,
)
from transduce.errors import TransduceError, shown_names
from transduce.text.files import read_lines
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inference.generator import Continuation, Generation, Generator
    from transduce.search.settings import SearchSettings

_TEMPERATURE = 0.8
_SEARCH_OPTIONS = ("no_repeated_ngrams", "repetition_penalty", "forbid")


class GenerationReport(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with its continuations by a language model, and the settings that produced these."""

    prompt: str
    continuations: "tuple[Continuation, ...]"
    search: "SearchSettings"
    precision: str
    """Number format of the model's weights, such as `fp32`."""

    def __str__(self) -> str:
        return "\n---\n".join(self.prompt + each.text for each in self.continuations)


class GenerationReports(msgspec.Struct, frozen=True):
    """The reports on several prompts with their continuations, in the order of the prompts."""

    generations: tuple[GenerationReport, ...]

    def __str__(self) -> str:
        return "\n---\n".join(map(str, self.generations))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce generate` in its argparse parser."""
    add = parser.add_argument
    add("model", help="the folder of a language model")
    add(
        "prompt",
        nargs="?",
        default="",
        type=text_argument,
        help="the beginning of the text; -: read it from standard input (default: empty)",
    )
    add(
        "--prompts",
        metavar="FILE",
        help="beginnings of texts, one per line, which are continued together; lines of --- separate the texts",
    )
    add("--max-length", type=int, default=GENERATED_TOKENS, metavar="N", help="maximum number of new tokens")
    add("--n-best", type=int, default=1, metavar="N", help="number of texts, separated by lines of ---")
    add("--one-line", action="store_true", help="end a text at its first line feed")
    add_settings(add, *_SEARCH_OPTIONS, table=SEARCH_OPTIONS)
    add_json(add, "the texts with their probabilities")
    add_sampling(parser.add_argument_group("sampling").add_argument, temperature=_TEMPERATURE)
    search = parser.add_argument_group("search instead of sampling")
    search.add_argument("--greedy", action="store_true", help="always take the most likely token")
    search.add_argument(
        "--beam-size", type=int, default=0, metavar="N", help="hypotheses of a beam search; 0: no beam search"
    )
    search.add_argument(
        "--length-penalty",
        type=float,
        metavar="ALPHA",
        help="with --beam-size: greater values favor longer output (default: 0)",
    )
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Continue prompts by a language model, print the texts, and return 0.

    A single continuation is printed while it is generated; several, or JSON, are printed when complete.
    """
    from transduce.inference.generator import load_generator

    search = search_from_options(options)
    check_writable(report=options.json, inputs=[options.model, options.prompts])
    if options.prompts and options.prompt:
        raise TransduceError("A prompt and --prompts are both set: leave one of them out.")
    prompts = list(read_lines(options.prompts)) if options.prompts else []
    prompt = _standard_input() if options.prompt == "-" else options.prompt
    generator = load_generator(options.model, **loading_options(options))
    _warn_of_unknown(generator, prompts or [prompt])
    if options.prompts:
        generations = generator(prompts, search=search, one_line=options.one_line)
        write_report(GenerationReports(tuple(_report(each, search, generator) for each in generations)), options.json)
        return 0
    if options.n_best == 1 and options.json is None:
        _stream(generator, prompt, search, one_line=options.one_line)
        return 0
    generation = generator(prompt, search=search, one_line=options.one_line)
    write_report(_report(generation, search, generator), options.json)
    return 0


def _warn_of_unknown(generator: "Generator", prompts: Sequence[str]) -> None:
    """Warn on standard error of letters in the prompts that the vocabulary lacks, or that it spells in bytes."""
    from transduce.commands.line_warnings import unknown_letters

    find = unknown_letters(generator.vocabulary)
    found = dict.fromkeys(letter for prompt in prompts for letters in find(prompt) for letter in letters)
    if found:
        sys.stderr.write(
            localized(
                f"warning: The model has not learned these characters of the prompt: {shown_names(found)}. Do not rely "
                "on its continuation.\n"
            )
        )


def _report(generation: "Generation", search: "SearchSettings", generator: "Generator") -> GenerationReport:
    """Return a report on a prompt's continuations, with the search settings and the precision that produced these."""
    return GenerationReport(
        prompt=generation.prompt,
        continuations=generation.continuations,
        search=search,
        precision=generator.precision,
    )


def _standard_input() -> str:
    """Return all of standard input as UTF-8 text, without the last line break, which `echo` adds."""
    text = sys.stdin.buffer.read().decode("utf-8-sig", "replace")
    return text.removesuffix("\n").removesuffix("\r")


def search_from_options(options: argparse.Namespace) -> "SearchSettings":
    """Return the search settings that the options of `transduce generate` describe; by default they sample.

    Raises:
        TransduceError: an option is out of range, or contradicts another.
    """
    from transduce.search.settings import SamplingSettings, SearchSettings

    if options.greedy and options.beam_size:
        raise TransduceError("--greedy and --beam-size are two ways to search: leave one of them out.")
    if options.greedy and options.n_best > 1:
        raise TransduceError(f"--greedy finds one text, but --n-best is {options.n_best}: use --beam-size, or sample.")
    samples = not (options.greedy or options.beam_size)
    if not samples:
        way = "--greedy" if options.greedy else "--beam-size"
        refuse_options(
            options,
            SAMPLING_OPTIONS,
            f"`{{option}}` sets how to sample, but {way} does not sample: leave one of them out.",
        )
    if not options.beam_size:
        refuse_options(
            options, ("length_penalty",), "`{option}` ranks the hypotheses of a beam: add --beam-size, or leave it out."
        )
    return SearchSettings(
        beam_size=options.beam_size or 1,
        n_best=options.n_best,
        length_penalty=options.length_penalty or 0.0,
        max_length=options.max_length,
        **search_from(options, _SEARCH_OPTIONS),
        sampling=SamplingSettings(**{"temperature": _TEMPERATURE} | passed_options(options, SAMPLING_OPTIONS))
        if samples
        else None,
    )


def _stream(generator: "Generator", prompt: str, search: "SearchSettings", *, one_line: bool) -> None:
    with standard_output() as output:
        growing = generator.stream(prompt, search, one_line=one_line)
        first = next(growing, "")  # errors are raised before anything is written
        for text in (prompt, first):
            output.write(text)
        output.flush()
        for text in growing:
            output.write(text)
            output.flush()
        output.write("\n")
