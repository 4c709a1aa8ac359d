"""`transduce fill-mask MODEL "the [MASK] sat on the mat"`: fill masks with a masked language model."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from transduce.commands.options import add_computing, check_writable, text_argument, write_report
from transduce.commands.translate import stdin_lines
from transduce.errors import TransduceError

if TYPE_CHECKING:
    from transduce.inference.mask_filler import Candidate, Filler, Filling


class FillReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report of texts with the candidates for their masks."""

    fillings: "Sequence[Filling]"

    def __str__(self) -> str:
        """Return each text with its masks filled, and a line of candidates for each mask."""
        return "\n".join("\n".join([filling.text, *_masks(filling)]) for filling in self.fillings)


def _masks(filling: "Filling") -> list[str]:
    return [
        "  " + "  ".join(f"{_shown(candidate)} {candidate.probability:.3f}" for candidate in mask)
        for mask in filling.masks
    ]


def _shown(candidate: "Candidate") -> str:
    """Return a candidate's text, or the candidate's token if its text is invisible or part of a character."""
    text = candidate.text.strip()
    return candidate.token if not text or "\ufffd" in text else text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce fill-mask`."""
    add = parser.add_argument
    add("model", help="the folder of a masked language model")
    add(
        "text",
        type=text_argument,
        nargs="?",
        default="-",
        help="a text that contains [MASK] (<mask> for some imported models); -: read standard input, one text per line",
    )
    add("--candidates", type=int, default=5, metavar="N", help="number of candidates shown for each mask")
    add("--json", metavar="PATH", help="write texts, tokens and probabilities as JSON; -: to standard output")
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Print each text with its masks filled, and below it the candidates for each mask."""
    from transduce.inference.mask_filler import load_filler

    check_writable(report=options.json, inputs=[options.model])
    filler = load_filler(options.model, precision=options.precision, device=options.device, threads=options.threads)
    if options.text == "-":
        lines = enumerate(stdin_lines(), 1)
        fillings = [_fill_line(filler, number, line, options.candidates) for number, line in lines if line.strip()]
    else:
        fillings = [filler(options.text, candidates=options.candidates)]
    write_report(FillReport(fillings=fillings), options.json)
    return 0


def _fill_line(filler: "Filler", number: int, line: str, candidates: int) -> "Filling":
    try:
        return filler(line, candidates=candidates)
    except TransduceError as error:
        raise TransduceError(f"Standard input, line {number:,}: {error}") from error
