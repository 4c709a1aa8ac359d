"""`transduce generate MODEL "the beginning"`: a language model goes on."""

import argparse
import sys

import msgspec

from transduce.commands.options import add_computing, check_writable, refuse_beside, text_argument, write_report
from transduce.commands.translate import standard_output
from transduce.errors import TransduceError
from transduce.runtime.generator import USUAL_LENGTH, Continuation, Generator, load_generator
from transduce.search.settings import SamplingSettings, SearchSettings

_TEMPERATURE = 0.8
_SAMPLING = ("temperature", "top_k", "top_p", "seed")


class GenerationReport(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt, how it went on, and by what settings."""

    prompt: str
    continuations: tuple[Continuation, ...]
    search: SearchSettings
    precision: str

    def __str__(self) -> str:
        return "\n---\n".join(self.prompt + each.text for each in self.continuations)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    add = parser.add_argument
    add("model", help="the folder of a language model")
    add(
        "prompt",
        nargs="?",
        default="",
        type=text_argument,
        help="the beginning of the text; - reads it from standard input",
    )
    add("--max-length", type=int, default=USUAL_LENGTH, metavar="N", help="new pieces")
    add("--n-best", type=int, default=1, metavar="N", help="texts; a line with --- stands between them")
    add("--one-line", action="store_true", help="a text ends with its line")
    add("--temperature", type=float, metavar="T", help=f"below 1 likely pieces get likelier ({_TEMPERATURE})")
    add("--top-k", type=int, metavar="K", help="draw among the likeliest K pieces (all)")
    add("--top-p", type=float, metavar="P", help="draw among the likeliest pieces that reach P together (1)")
    add("--seed", type=int, metavar="N", help="the same seed draws the same texts (1)")
    add("--greedy", action="store_true", help="always the likeliest piece, in place of drawing")
    add(
        "--beam-size",
        type=int,
        default=0,
        metavar="N",
        help="hypotheses of a search in place of drawing; 0: draw",
    )
    add("--length-penalty", type=float, metavar="ALPHA", help="of the beam: greater favours longer lines (0)")
    add("--no-repeated-ngrams", type=int, default=0, metavar="N", help="no run of N pieces comes twice; 0: it may")
    add(
        "--forbid",
        action="append",
        default=[],
        type=text_argument,
        metavar="TEXT",
        help="no text contains this; may be said several times",
    )
    add("--json", metavar="PATH", help="write texts and probabilities as JSON; - for standard output")
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Writes the text as it grows, where there is one; several when they are done."""
    search = search_of(options)
    check_writable(report=options.json, inputs=[options.model])
    prompt = _standard_input() if options.prompt == "-" else options.prompt
    generator = load_generator(
        options.model, precision=options.precision, device=options.device, threads=options.threads
    )
    if options.n_best == 1 and options.json is None:
        _stream(generator, prompt, search, one_line=options.one_line)
        return 0
    found = generator(prompt, search=search, one_line=options.one_line)
    report = GenerationReport(
        prompt=prompt, continuations=found.continuations, search=search, precision=generator.precision
    )
    write_report(report, options.json)
    return 0


def _standard_input() -> str:
    """All of it but the last line's end, which `echo` adds."""
    text = sys.stdin.buffer.read().decode("utf-8-sig", "replace")
    return text.removesuffix("\n").removesuffix("\r")


def search_of(options: argparse.Namespace) -> SearchSettings:
    """How to go on.

    Raises:
        TransduceError: an option is out of its range, or contradicts another.
    """
    if options.greedy and options.beam_size:
        raise TransduceError("--greedy and --beam-size are two ways to search: leave one of them out.")
    if options.greedy and options.n_best > 1:
        raise TransduceError(f"--greedy finds one text, but --n-best is {options.n_best}: say --beam-size, or draw.")
    drawn = not (options.greedy or options.beam_size)
    if not drawn:
        way = "--greedy" if options.greedy else "--beam-size"
        refuse_beside(options, _SAMPLING, f"says how to draw pieces, and {way} draws none: leave one of them out.")
    if not options.beam_size:
        refuse_beside(options, ("length_penalty",), "ranks the hypotheses of a beam: add --beam-size, or leave it out.")
    said = {name: vars(options)[name] for name in _SAMPLING if vars(options)[name] is not None}
    return SearchSettings(
        beam_size=options.beam_size or 1,
        n_best=options.n_best,
        length_penalty=options.length_penalty or 0.0,
        max_length=options.max_length,
        no_repeated_ngrams=options.no_repeated_ngrams,
        forbidden=tuple(options.forbid),
        sampling=SamplingSettings(**{"temperature": _TEMPERATURE} | said) if drawn else None,
    )


def _stream(generator: Generator, prompt: str, search: SearchSettings, *, one_line: bool) -> None:
    with standard_output() as output:
        growing = generator.stream(prompt, search, one_line=one_line)
        first = next(growing, "")  # what cannot be had is told before anything is written
        for text in (prompt, first):
            output.write(text)
        output.flush()
        for text in growing:
            output.write(text)
            output.flush()
        output.write("\n")
