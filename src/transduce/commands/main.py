"""`transduce COMMAND …`: run a subcommand, and turn errors into a message and exit code 2."""

import argparse
import difflib
import io
import keyword
import os
import sys
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from transduce.deprecation import current_command, current_options, renamed_warnings_on_stderr
from transduce.errors import TransduceError, WrongLanguageWarning

STARTED_AT = time.monotonic()
"""The time at which the command started, before it imported what it needs."""

# In the order in which users need them. Each is a module in this package with `add_arguments` and `run`, which is
# imported only when used, so that `--help` answers at once.
VERBS = {
    "demo": "train a small Chinese-English translator on the built-in corpus and watch it work",
    "train": "train a model on your own files",
    "prepare": "tokenize a corpus before training, at once or in shards",
    "verify-resume": "check that a killed and resumed run is bit-equal to an uninterrupted one",
    "translate": "translate lines of text",
    "generate": "let a language model continue a text",
    "fill-mask": "fill the masks of a text with a masked language model",
    "classify": "label lines of text",
    "embed": "write a vector for each line of text",
    "tag": "tag the words of sentences: parts of speech, names",
    "parse": "print the constituency trees of sentences",
    "forecast": "forecast time series",
    "serve": "translate over HTTP, for clients of LibreTranslate, DeepL and OpenAI",
    "evaluate": "score a model on a test set: BLEU and chrF with their signatures",
    "estimate-quality": "find translations with quality warnings, and search for better ones",
    "build-datastore": "build a datastore of sentence pairs for kNN retrieval, without training",
    "score": "compute the probabilities of existing translations",
    "compare": "test whether the difference between two models or outputs is significant",
    "inspect": "inspect one translation: attention, probabilities, the beam's tree",
    "align": "align the words of sentence pairs",
    "experiment": "train variants with several seeds, and report which are better",
    "plot": "plot positions, masks, schedules, attention, and the progress of a run",
    "check-install": "report versions, hardware and extras, and which backends train and decode here",
    "doctor": "check that a model is implemented correctly, and find problems of a corpus",
    "export": "write a model for CTranslate2, ONNX or Hugging Face, and check it",
    "import": "import a Hugging Face model: Marian, NLLB, BART, T5, BERT, GPT-2, Llama and others",
    "import-tutorial": "import a translator written after a tutorial, with the tutorial's word lists",
    "quantize": "store a model's weights in 8 bits, so that `--precision int8` opens it at once",
    "verify": "read every byte of a model folder, and compare it with what was written",
}


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """A help formatter that appends "(default: X)" to options with a default, unless it is None, False or empty."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        nothing = action.default is None or action.default is False or action.default in ("", [])
        return action.help if nothing else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one sentence and suggests the nearest option for a mistyped one."""

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse arguments, checking option names first, as argparse would first complain about missing options.

        Positional arguments may come before or after options.
        """
        arguments = current_options(arguments, self._option_string_actions)
        for argument in arguments:
            option = argument.partition("=")[0]
            if option == "--":
                break
            if option.startswith("--") and " " not in option and option not in self._option_string_actions:
                near = difflib.get_close_matches(option, list(self._option_string_actions), 1)
                self.error(f"there is no option {option}" + (f"; did you mean {near[0]}?" if near else ""))
        return self.parse_intermixed_args(arguments)

    def error(self, message: str) -> NoReturn:
        """Print an error message about the arguments, and exit with code 2."""
        word = message.removeprefix("unrecognized arguments: ")
        if word != message and not word.startswith("-") and "--source" in self._option_string_actions:
            other = "--reference" if "--reference" in self._option_string_actions else "--target"
            message += f"; pass texts with --source and {other}"
        sys.stderr.write(f"{self.prog}: {message} (see {self.prog} --help)\n")
        raise SystemExit(2)


class _Version(argparse.Action):
    """An option that prints the version of transduce and exits, and reads the version only then."""

    def __call__(self, *_: object) -> NoReturn:
        """Print the version and exit."""
        from importlib.metadata import version  # half of the time of `transduce --help`, if imported above

        print(f"transduce {version('transduce')}")
        raise SystemExit(0)


def build_parser(verb: str | None) -> Parser:
    """Return the parser of one subcommand, or the parser that lists all subcommands."""
    if verb is None:
        listing = "\n".join(f"  {name:17} {purpose}" for name, purpose in VERBS.items())
        parser = Parser(
            prog="transduce",
            usage="transduce COMMAND [options]",
            description=f"Train a sequence-to-sequence Transformer and use it.\n\n{listing}\n\n"
            "`transduce COMMAND --help` explains a command.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
        return parser
    parser = Parser(
        prog=f"transduce {verb}",
        description=VERBS[verb][0].upper() + VERBS[verb][1:] + ".",
        allow_abbrev=False,
        formatter_class=HelpFormatter,
    )
    _module_of(verb).add_arguments(parser)
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file of yours that registers components of models; can be repeated",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit code: 0, 2 for an error that it explains, or 130 after Ctrl-C."""
    if arguments is None:
        _start_in_utf8()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal shows "?" for characters it lacks; results are written as UTF-8 bytes and not affected.
        sys.stdout.reconfigure(errors="replace")
    try:
        with renamed_warnings_on_stderr():
            warnings.simplefilter("ignore", WrongLanguageWarning)  # commands report it by themselves, with line numbers
            return _run(arguments)
    except TransduceError as error:
        sys.stderr.write(f"transduce: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe, as in `transduce translate … | head`; nothing can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnicodeEncodeError:
        invalid = next((argument for argument in arguments if any("\ud800" <= c <= "\udfff" for c in argument)), None)
        if invalid is None:
            raise
        sys.stderr.write(f"transduce: {invalid!a} is not UTF-8: convert it, or put it into a file.\n")
        return 2
    except (MemoryError, RuntimeError) as error:
        from transduce.training.out_of_memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        sys.stderr.write("transduce: Memory ran out: use a smaller model, shorter texts, or a larger machine.\n")
        return 2
    except OSError as error:
        if error.strerror is None:
            raise
        location = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"transduce: A file or folder could not be used: {location}{error.strerror}.\n")
        return 2


def _start_in_utf8() -> None:
    """Restart in Python's UTF-8 mode if the locale cannot represent arguments that are UTF-8.

    This process could decode them, but could not open files by such names.
    """
    argument_text = "\n".join(sys.argv[1:])
    if sys.getfilesystemencoding() == "utf-8" or not any(
        "\udc80" <= character <= "\udcff" for character in argument_text
    ):
        return
    try:
        os.fsencode(argument_text).decode()
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
    verb = current_command(verb)
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        raise TransduceError(
            f"There is no command `{verb}`"
            + (f": did you mean `{near[0]}`?" if near else f": the commands are {', '.join(VERBS)}.")
        )
    options = build_parser(verb).parse(arguments[1:])
    if options.plugin:
        from transduce.model.build import load_plugin

        for path in options.plugin:
            load_plugin(path)
    code: int = _module_of(verb).run(options)
    return code


def _module_of(verb: str) -> ModuleType:
    name = verb.replace("-", "_")
    return import_module(f"transduce.commands.{name}_" if keyword.iskeyword(name) else f"transduce.commands.{name}")


# --- streams ---
# Replacements for standard streams that were closed by the caller (`<&-`, `>&-`), which raise a clear error on use.


class _Closed(io.RawIOBase):
    """A stream in place of a closed standard stream, which raises an error when it is used."""

    def __init__(self, sentence: str, *, reads: bool) -> None:
        super().__init__()
        self._sentence, self._reads = sentence, reads

    def readable(self) -> bool:
        """Return whether the stream can be read: True in place of a closed standard input."""
        return self._reads

    def writable(self) -> bool:
        """Return whether the stream can be written to: True in place of a closed output."""
        return not self._reads

    def readinto(self, _: object, /) -> NoReturn:
        """Raise an error, as the stream is closed."""
        raise TransduceError(self._sentence)

    def write(self, _: object, /) -> NoReturn:
        """Raise an error, as the stream is closed."""
        raise TransduceError(self._sentence)


def replace_closed_streams() -> None:
    """Replace closed standard streams: using one raises TransduceError, and messages on standard error are discarded.

    Their file descriptors are occupied too. Otherwise the next opened file would get one, and with it the output of
    libraries.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
    if sys.stdin is None:
        sentence = "Standard input is closed: redirect it from something, or name a file."
        sys.stdin = io.TextIOWrapper(_Closed(sentence, reads=True))
    if sys.stdout is None:
        sentence = "Standard output is closed: redirect it to something, or name a file."
        sys.stdout = io.TextIOWrapper(_Closed(sentence, reads=False), write_through=True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process


if __name__ == "__main__":
    raise SystemExit(main())
