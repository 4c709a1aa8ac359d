"""`transduce score MODEL --source F --target F`: how probable given translations are."""

import argparse
import math

import msgspec

from transduce.commands.options import add_computing, check_writable, load_translator, read_side_by_side, write_lines
from transduce.errors import TransduceError
from transduce.runtime.scoring import Score, TooLongError
from transduce.search.settings import SearchSettings
from transduce.text.counted import counted


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All lines together."""

    lines: int
    pieces: int
    """Of the targets, end symbols included."""
    log_probability: float
    """In nats."""
    perplexity: float
    """Of a piece: the exponential of the mean of -log-probability."""
    length_penalty: float
    precision: str
    scores: list[float]
    """One a line."""

    def __str__(self) -> str:
        return (
            f"{counted(self.lines, 'line')}, {counted(self.pieces, 'piece')}, "
            f"log-probability {self.log_probability:,.2f}, perplexity of a piece {self.perplexity:,.3f}"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("model", nargs="+", help="a model folder; of several, the probabilities are averaged")
    parser.add_argument("--source", required=True, metavar="FILE", help="sentences, one a line")
    parser.add_argument("--target", required=True, metavar="FILE", help="their translations, one a line")
    parser.add_argument(
        "--length-penalty",
        type=float,
        default=0.0,
        metavar="ALPHA",
        help="divide log-probabilities as search does, whose usual value is 0.6; 0: leave them as they are",
    )
    parser.add_argument("--json", metavar="PATH", help="write scores and sums as JSON; - for standard output")
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Prints a score for each line, and on standard error what they come to."""
    check_writable(report=options.json, inputs=[options.model, options.source, options.target])
    SearchSettings(length_penalty=options.length_penalty)  # refuses what is out of range
    sources, targets = read_side_by_side(options.source, options.target)
    translator = load_translator(options.model, options)
    try:
        scores = translator.score(sources, targets, length_penalty=options.length_penalty)
    except TooLongError as error:
        raise TransduceError(f"{vars(options)[error.side]}:{error.number}: {error}") from error
    summary = summarize(scores, options.length_penalty, translator.precision)
    write_lines((f"{score.score:.6f}" for score in scores), summary, options.json)
    return 0


def summarize(scores: list[Score], length_penalty: float, precision: str) -> Summary:
    """All lines together."""
    pieces = sum(len(score.piece_log_probabilities) for score in scores)
    total = math.fsum(score.log_probability for score in scores)
    return Summary(
        lines=len(scores),
        pieces=pieces,
        log_probability=total,
        perplexity=math.exp(min(-total / max(1, pieces), 700.0)),
        length_penalty=length_penalty,
        precision=precision,
        scores=[score.score for score in scores],
    )
