"""`transduce VERB …`: finds the verb, and turns errors into one sentence and exit code 2."""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

from transduce.errors import TransduceError

# In the order in which a person meets them. Each is a module here, with `add_arguments` and `run`; it is imported
# when it is used, so that `--help` answers at once.
VERBS = {
    "demo": "train a small Chinese-English translator on the built-in corpus and watch it work",
    "train": "train a model on your own files",
    "translate": "translate lines of text",
    "evaluate": "score a model on a test set: BLEU and chrF with their signatures",
    "compare": "tell whether the difference between two models or two outputs is real",
}


class Parser(argparse.ArgumentParser):
    """argparse, with one sentence in place of a usage message, and the nearest option to a mistyped one."""

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses, after a look at the options: argparse itself complains first of others that are missing."""
        for argument in arguments:
            option = argument.partition("=")[0]
            if option == "--":
                break
            if option.startswith("--") and option not in self._option_string_actions:
                near = difflib.get_close_matches(option, list(self._option_string_actions), 1)
                self.error(f"there is no option {option}" + (f"; did you mean {near[0]}?" if near else ""))
        return self.parse_args(arguments)

    def error(self, message: str) -> NoReturn:
        """Leaves with exit code 2."""
        sys.stderr.write(f"{self.prog}: {message} (see {self.prog} --help)\n")
        raise SystemExit(2)


def wait_briefly() -> None:
    """Has threads that wait for one another spin for microseconds, not milliseconds, before they sleep.

    PyTorch's thread library spins long by default, so that on a machine that is busy with something else training took
    ten times as long as its share of the cores explains; now about twice (docs/benchmarks.md). It reads this once, when
    PyTorch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def build_parser(verb: str | None) -> Parser:
    """The parser of one verb, or the one that lists all verbs."""
    if verb is None:
        listing = "\n".join(f"  {name:10} {purpose}" for name, purpose in VERBS.items())
        parser = Parser(
            prog="transduce",
            usage="transduce VERB [options]",
            description=f"Train a sequence-to-sequence Transformer and use it.\n\n{listing}\n\n"
            "`transduce VERB --help` explains a verb.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--version", action="version", version=f"transduce {version('transduce')}")
        return parser
    parser = Parser(
        prog=f"transduce {verb}",
        description=VERBS[verb][0].upper() + VERBS[verb][1:] + ".",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    import_module(f"transduce.commands.{verb}").add_arguments(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb and returns the exit code: 0, or 2 for a mistake of the user's."""
    wait_briefly()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(arguments)
    except TransduceError as error:
        sys.stderr.write(f"transduce: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone, as in `transduce translate … | head`. Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.strerror is None:
            raise
        place = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"transduce: A file or folder could not be used: {place}{error.strerror}.\n")
        return 2


def _run(arguments: list[str]) -> int:
    verb = arguments[0] if arguments and arguments[0] != "help" else "--help"
    if verb.startswith("-"):
        build_parser(None).parse([verb])
        return 0
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        raise TransduceError(
            f"There is no verb `{verb}`"
            + (f": did you mean `{near[0]}`?" if near else f": the verbs are {', '.join(VERBS)}.")
        )
    options = build_parser(verb).parse(arguments[1:])
    code: int = import_module(f"transduce.commands.{verb}").run(options)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
