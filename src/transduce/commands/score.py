"""`transduce score MODEL --source F --target F`: compute the probabilities of existing translations."""

import argparse
import math
from typing import TYPE_CHECKING

import msgspec

from transduce.commands.options import add_computing, check_writable, load_translator, read_aligned_lines, write_lines
from transduce.errors import TransduceError
from transduce.text.files import count_noun

if TYPE_CHECKING:
    from transduce.inference.scoring import Score


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of a file's scores: each line's score, and the sums."""

    lines: int
    tokens: int = msgspec.field(name="pieces")
    """The number of target tokens, including end symbols."""
    log_probability: float
    """The total log-probability, in nats."""
    perplexity: float
    """Perplexity per token: the exponential of the mean negative log-probability."""
    length_penalty: float
    precision: str
    scores: list[float]
    """The score of each line."""

    def __str__(self) -> str:
        return (
            f"{count_noun(self.lines, 'line')}, {count_noun(self.tokens, 'token')}, "
            f"log-probability {self.log_probability:,.2f}, perplexity per token {self.perplexity:,.3f}"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce score`."""
    add = parser.add_argument
    add("model", nargs="+", help="a model folder; the probabilities of several models are averaged")
    add("--source", required=True, metavar="FILE", help="sentences, one per line")
    add("--target", required=True, metavar="FILE", help="their translations, one per line")
    add(
        "--length-penalty",
        type=float,
        default=0.0,
        metavar="ALPHA",
        help="divide log-probabilities by the length penalty of search, which usually uses 0.6; 0: do not divide",
    )
    add("--json", metavar="PATH", help="write scores and totals as JSON; -: to standard output")
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Print a score for each line, and the totals on standard error."""
    from transduce.inference.scoring import TooLongError
    from transduce.search.settings import SearchSettings

    check_writable(report=options.json, inputs=[options.model, options.source, options.target])
    SearchSettings(length_penalty=options.length_penalty)  # checks the range
    sources, targets = read_aligned_lines(options.source, options.target)
    translator = load_translator(options.model, options)
    try:
        scores = translator.score(sources, targets, length_penalty=options.length_penalty)
    except TooLongError as error:
        raise TransduceError(f"{vars(options)[error.side]}:{error.number}: {error}") from error
    summary = summarize(scores, options.length_penalty, translator.precision)
    write_lines((f"{score.score:.6f}" for score in scores), summary, options.json)
    return 0


def summarize(scores: "list[Score]", length_penalty: float, precision: str) -> Summary:
    """Return the scores of all lines with their totals."""
    tokens = sum(len(score.token_log_probabilities) for score in scores)
    total = math.fsum(score.log_probability for score in scores)
    return Summary(
        lines=len(scores),
        tokens=tokens,
        log_probability=total,
        perplexity=math.exp(min(-total / max(1, tokens), 700.0)),
        length_penalty=length_penalty,
        precision=precision,
        scores=[score.score for score in scores],
    )
