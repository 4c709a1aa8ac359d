"""`transduce VERB …`: finds the verb, and turns errors into one sentence and exit code 2."""

import argparse
import difflib
import io
import keyword
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import NoReturn

from transduce.commands.streams import fill_in_closed_streams
from transduce.errors import TransduceError

# In the order in which a person meets them. Each is a module here, with `add_arguments` and `run`; it is imported
# when it is used, so that `--help` answers at once.
VERBS = {
    "demo": "train a small Chinese-English translator on the built-in corpus and watch it work",
    "train": "train a model on your own files",
    "prepare": "make a corpus ready ahead of training, in one go or in shards",
    "verify-resume": "prove that a run of your settings, killed and resumed, is bit-equal to one never stopped",
    "translate": "translate lines of text",
    "generate": "let a language model continue a text",
    "fill": "find the masked words of a text",
    "classify": "label lines of text",
    "parse": "print the constituency trees of sentences",
    "forecast": "foretell what time series do next",
    "serve": "translate over HTTP, for LibreTranslate's clients, DeepL's and OpenAI's",
    "evaluate": "score a model on a test set: BLEU and chrF with their signatures",
    "review": "find the translations that are doubtful, and look for better ones",
    "remember": "write down pairs for a model to translate by, without training",
    "score": "tell how probable given translations are",
    "compare": "tell whether the difference between two models or two outputs is real",
    "inspect": "look into one translation: attention, probabilities, the beam's tree",
    "align": "tell which words of two texts translate each other",
    "plot": "draw positions, masks, schedules, attention, and the course of a run",
    "doctor": "prove that a model is wired as it must be, and find what is wrong with a corpus",
    "export": "write a model for CTranslate2, ONNX or Hugging Face, and check it",
    "import": "bring in a Hugging Face model: Marian, NLLB, BART, mBART, T5, BERT, GPT-2, Llama, Qwen2 and others",
}


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """argparse's, which shows defaults, where there is something to show: not "None", "False" or an empty list."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        nothing = action.default is None or action.default is False or action.default in ("", [])
        return action.help if nothing else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """argparse, with one sentence in place of a usage message, and the nearest option to a mistyped one."""

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses, after a look at the options: argparse itself complains first of others that are missing.

        A file may stand before options or behind them.
        """
        for argument in arguments:
            option = argument.partition("=")[0]
            if option == "--":
                break
            if option.startswith("--") and " " not in option and option not in self._option_string_actions:
                near = difflib.get_close_matches(option, list(self._option_string_actions), 1)
                self.error(f"there is no option {option}" + (f"; did you mean {near[0]}?" if near else ""))
        return self.parse_intermixed_args(arguments)

    def error(self, message: str) -> NoReturn:
        """Leaves with exit code 2."""
        word = message.removeprefix("unrecognized arguments: ")
        if word != message and not word.startswith("-") and "--source" in self._option_string_actions:
            other = "--reference" if "--reference" in self._option_string_actions else "--target"
            message += f"; texts are named by --source and {other}"
        sys.stderr.write(f"{self.prog}: {message} (see {self.prog} --help)\n")
        raise SystemExit(2)


def build_parser(verb: str | None) -> Parser:
    """The parser of one verb, or the one that lists all verbs."""
    if verb is None:
        listing = "\n".join(f"  {name:14} {purpose}" for name, purpose in VERBS.items())
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
        formatter_class=HelpFormatter,
    )
    _module_of(verb).add_arguments(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb and returns the exit code: 0, or 2 for a mistake of the user's."""
    if arguments is None:
        _start_in_utf8()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    fill_in_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without a character shows "?" there; results go out as UTF-8 bytes and are not touched by this.
        sys.stdout.reconfigure(errors="replace")
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
    except UnicodeEncodeError:
        strange = next((argument for argument in arguments if any("\ud800" <= c <= "\udfff" for c in argument)), None)
        if strange is None:
            raise
        sys.stderr.write(f"transduce: {strange!a} is no text in UTF-8: write it so, or put it into a file.\n")
        return 2
    except (MemoryError, RuntimeError) as error:
        from transduce.training.exhaustion import is_exhaustion

        if not is_exhaustion(error):
            raise
        sys.stderr.write("transduce: Memory ran out: use a smaller model, shorter texts, or a larger machine.\n")
        return 2
    except OSError as error:
        if error.strerror is None:
            raise
        place = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"transduce: A file or folder could not be used: {place}{error.strerror}.\n")
        return 2


def _start_in_utf8() -> None:
    """Starts anew in Python's UTF-8 mode where the locale makes no text of arguments that are UTF-8.

    In this process their text could be had, but no file could be opened by such a name.
    """
    given = "\n".join(sys.argv[1:])
    if sys.getfilesystemencoding() == "utf-8" or not any("\udc80" <= character <= "\udcff" for character in given):
        return
    try:
        os.fsencode(given).decode()
    except UnicodeDecodeError:
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONUTF8": "1"})


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    verb = arguments[0] if arguments else "--help"
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
    code: int = _module_of(verb).run(options)
    return code


def _module_of(verb: str) -> ModuleType:
    name = verb.replace("-", "_")
    return import_module(f"transduce.commands.{name}_" if keyword.iskeyword(name) else f"transduce.commands.{name}")


if __name__ == "__main__":
    raise SystemExit(main())
