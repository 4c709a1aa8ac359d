"""The command `transduce`: parse its arguments, run a subcommand, and turn errors into a message and exit code 2."""

import argparse
import errno
import gc
import io
import os
import re
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import Any, NoReturn

from transduce.deprecation import current_command, current_options, warnings_on_stderr
from transduce.errors import TransduceError, WrongLanguageWarning, near_name, option_with_other_dashes
from transduce.process_environment import (
    handle_hangup,
    handle_sigterm,
    set_library_defaults,
    stop_with_parent,
    use_common_options,
)
from transduce.ui_language import LANGUAGES, labeled, localized, ui_language, wrap
from transduce.ui_language_choice import set_ui_language, use_ui_language

STARTED_AT = time.monotonic()
"""Value of `time.monotonic` when the command started, before it imported what it needs."""

# In the order in which users need them. Each is a module in this package with `add_arguments` and `run`, or two
# functions in one of `_SHARED_MODULES`; it is imported only when used, so that `--help` answers at once.
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
    "paper": 'reproduce tables and figures of "Attention Is All You Need" at a small scale',
    "plot": "plot positions, masks, schedules, attention, and the progress of a run",
    "check-install": "report versions, hardware and extras, and which backends train and decode here",
    "doctor": "check that a model is implemented correctly, and find problems of a corpus",
    "export": "write a model for CTranslate2, ONNX or Hugging Face, and check it",
    "import": "import a Hugging Face model: Marian, NLLB, BART, T5, BERT, GPT-2, Llama and others",
    "import-tutorial": "import a translator written after a tutorial, with the tutorial's word lists",
    "quantize": "store a model's weights in 8 bits, so that `--precision int8` opens it at once",
    "verify": "compare every byte of a model's weights, vocabulary and configuration with what was written",
}

_SHARED_MODULES = {
    **dict.fromkeys(("demo", "prepare", "train", "build-datastore"), "train"),
    **dict.fromkeys(("inspect", "align"), "inspect"),
    **dict.fromkeys(("classify", "tag", "parse", "fill-mask", "embed", "forecast"), "tasks"),
    **dict.fromkeys(("evaluate", "compare", "score", "estimate-quality"), "evaluation"),
    **dict.fromkeys(("export", "import", "import-tutorial", "quantize"), "conversion"),
    **dict.fromkeys(("experiment", "paper", "plot"), "experiments"),
    **dict.fromkeys(("check-install", "doctor", "verify", "verify-resume"), "checks"),
}
"""Dict: command → module that it shares with others, and which has its functions, such as `add_tag_arguments` and
`run_tag`.
"""

_WITHOUT_TORCH = ("compare", "plot")
"""Names of commands that compute some results without PyTorch, which they import only where they need it."""

_UI_LANGUAGE = "--ui-language"


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """A help formatter that appends "(default: X)" to options with a default, unless it is None, False or empty.

    Texts are shown in the user's language.
    """

    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], groups: Iterable[Any], prefix: str | None = None
    ) -> None:
        """Add the line of usage to the help text; its first word ("usage:") is in the user's language."""
        super().add_usage(usage, actions, groups, prefix if ui_language() == "en" else localized("usage: "))

    def start_section(self, heading: str | None) -> None:
        """Begin a group of options in the help text, with its title in the user's language; None: no title."""
        super().start_section(None if heading is None else localized(heading))

    def format_help(self) -> str:
        """Return the whole help text; in Chinese, the titles of groups end with a Chinese colon."""
        return re.sub(r"(?<=[\u2e80-\uffff]):$", "：", super().format_help(), flags=re.MULTILINE)

    def add_text(self, text: str | None) -> None:
        """Add a paragraph, translated to the user's language, to the help text; None adds nothing."""
        super().add_text(None if text is None else localized(text))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        nothing = action.default is None or action.default is False or action.default in ("", [])
        text = action.help if nothing else super()._get_help_string(action)
        if text is None or action.help is None or ui_language() == "en":
            return text
        return localized(action.help) + localized(text.removeprefix(action.help)).strip()

    def _split_lines(self, text: str, width: int) -> list[str]:
        return super()._split_lines(text, width) if ui_language() == "en" else wrap(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if ui_language() == "en":
            return super()._fill_text(text, width, indent)
        return "\n".join(indent + line for line in wrap(" ".join(text.split()), width - len(indent)))


class ListingFormatter(HelpFormatter):
    """A help formatter that keeps the line breaks of descriptions instead of wrapping them, for lists of commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002 - argparse's own interface
        return "\n".join(indent + line for line in text.split("\n"))


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports errors in one sentence and suggests the nearest option for a mistyped one."""

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse a subcommand's arguments, and return the options.

        Positional arguments may stand before or after options. Renamed options are accepted. A misspelled option is
        reported before a missing argument. After an error, the process exits with code 2.
        """
        self._arguments = arguments = current_options(arguments, self._option_string_actions)
        for argument in arguments:
            option = argument.partition("=")[0]
            if option == "--":
                break
            intended = option_with_other_dashes(argument)
            if intended in self._option_string_actions:
                self.error(f"`{option}` begins with another dash than `-`: type {intended}")
            if option.startswith("--") and " " not in option and option not in self._option_string_actions:
                near = near_name(option, self._option_string_actions)
                self.error(f"there is no option {option}" + (f"; did you mean {near}?" if near else ""))
        return self.parse_intermixed_args(arguments)

    def format_usage(self) -> str:
        """Return the line of usage, which begins with an English "usage: ", because argparse relies on its length."""
        with use_ui_language("en"):
            return super().format_usage()

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a message such as the help; unlike argparse's own method, this raises an OSError if a disk is full."""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """Print an error about the arguments on standard error, with a hint at `--help`, and exit with code 2."""
        choice = re.match(r"^argument (.+): invalid choice: '(.*)' \(choose from (.+)\)$", message)
        if choice is not None:
            choices = re.findall(r"'([^']*)'", choice[3]) or choice[3].split(", ")
            near = near_name(choice[2], choices)
            name, value, listed = choice[1], choice[2], ", ".join(choices)
            message = (
                f"argument {name}: invalid choice: '{value}' (choose from {listed}); did you mean {near}?"
                if near
                else f"argument {name}: invalid choice: '{value}' (choose from {listed})"
            )
        word = message.removeprefix("unrecognized arguments: ")
        if word != message and not word.startswith("-") and "--source" in self._option_string_actions:
            other = "--reference" if "--reference" in self._option_string_actions else "--target"
            message += f"; pass texts with --source and {other}"
        if self.prog.endswith((" train", " prepare")) and "required: " in message:
            # Text may also come from a file of settings, so that argparse does not require it.
            names = {argument.partition("=")[0] for argument in self._arguments}
            text = "" if names & {"--source", "--settings", "--set", "--resume"} else "--source"
            message = f"{message}, {text}" if text else message
        sentence = f"{self.prog}: {message} (see {self.prog} --help)\n"
        sys.stderr.write(localized(sentence))
        raise SystemExit(2)


class _VersionAction(argparse.Action):
    """The argparse action of the option --version, which prints the version of transduce and exits with code 0."""

    def __call__(self, *_: object) -> NoReturn:
        """Print the version of transduce, which is looked up only when it is asked for, and exit with code 0."""
        from importlib.metadata import version  # half of the time of `transduce --help`, if imported above

        print(f"transduce {version('transduce')}")
        raise SystemExit(0)


def build_parser(verb: str | None) -> CommandParser:
    """Return the argument parser of one subcommand.

    Args:
        verb: the subcommand, a key of `VERBS`; None: the parser of `transduce` itself, whose help lists all of them.
    """
    if verb is None:
        listing = "\n".join(f"  {name:17} {localized(purpose)}" for name, purpose in VERBS.items())
        about = localized("Train a sequence-to-sequence Transformer and use it.")
        explained = localized("`transduce COMMAND --help` explains a command.")
        parser = CommandParser(
            prog="transduce",
            usage=localized("transduce COMMAND [options]"),
            description=f"{about}\n\n{listing}\n\n{explained}",
            formatter_class=ListingFormatter,
        )
        parser.add_argument("--version", action=_VersionAction, nargs=0, help="print the version and exit")
        add_ui_language(parser)
        return parser
    parser = CommandParser(
        prog=f"transduce {verb}", description=_sentence(VERBS[verb]), allow_abbrev=False, formatter_class=HelpFormatter
    )
    add_arguments, _ = _functions_of(verb)
    add_arguments(parser)
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file of yours that registers components of models; can be repeated",
    )
    add_ui_language(parser)
    return parser


def _sentence(purpose: str) -> str:
    """Return the purpose of a command, an English phrase in `VERBS`, as a sentence in the user's language."""
    text = localized(purpose)
    return f"{text[0].upper()}{text[1:]}." if text == purpose else f"{text}。"


def add_ui_language(parser: argparse.ArgumentParser) -> None:
    """Declare the option --ui-language, so that help shows it; `main` removes it from the arguments before parsing."""
    parser.add_argument(
        _UI_LANGUAGE,
        metavar=f"{{{','.join(LANGUAGES)},auto}}",
        help="language of messages; auto: as $TRANSDUCE_LANGUAGE or else the locale sets it (default: auto)",
    )


def _take_ui_language(arguments: list[str]) -> str:
    """Remove --ui-language and its value from the list of arguments, wherever it is before `--`, and return the value.

    Without the option it is "auto". An unknown value is an error, with exit code 2.
    """
    language = "auto"
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for number in reversed([n for n, each in enumerate(options) if each.partition("=")[0] == _UI_LANGUAGE]):
        _, equals, language = arguments.pop(number).partition("=")
        if not equals:
            language = arguments.pop(number) if number < len(arguments) else ""
        if language not in (*LANGUAGES, "auto"):
            build_parser(None).error(f"argument {_UI_LANGUAGE}: choose {', '.join(LANGUAGES)} or auto")
    return language


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand of `transduce` and return its exit code.

    Args:
        arguments: the subcommand and its arguments; None: those of the process.

    Returns:
        0; 1 if a check or a run failed; 2 for an error that was explained on standard error; 130 after Ctrl-C; 143 if
        SIGTERM ended a training run that was saved.
    """
    owns_process = arguments is None
    if arguments is None:
        _start_in_utf8()
        set_library_defaults()
        stop_with_parent()
        arguments = sys.argv[1:]
    arguments = list(arguments)
    with use_ui_language("auto"):
        language = _take_ui_language(arguments)
        set_ui_language(language)
        with use_common_options([] if language == "auto" else [(_UI_LANGUAGE, language)]):
            return _explained(arguments, owns_process)


def _explained(arguments: list[str], owns_process: bool) -> int:
    """Run a subcommand and return its exit code; print an explanation of errors that a user can cause.

    The exit code is 2 after an explained error, 130 after Ctrl-C, and 0 if the reader of a pipe has closed it.
    Otherwise it is the subcommand's own. Errors of other kinds are raised. `owns_process` is True if this subcommand is
    all that the process runs.
    """
    replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal shows "?" for characters it lacks; results are written as UTF-8 bytes and not affected.
        sys.stdout.reconfigure(errors="replace")
    try:
        with warnings_on_stderr():
            warnings.simplefilter("ignore", WrongLanguageWarning)  # commands report it by themselves, with line numbers
            return _run_and_flush(arguments, owns_process)
    except TransduceError as error:
        sys.stderr.write(labeled("transduce", f"{_with_options(error, arguments)}\n"))
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0  # the reader closed the pipe, as in `transduce translate … | head`
    except UnicodeEncodeError:
        invalid = next((argument for argument in arguments if any("\ud800" <= c <= "\udfff" for c in argument)), None)
        if invalid is None:
            raise
        sys.stderr.write(localized(f"transduce: {invalid!a} is not UTF-8: convert it, or put it into a file.\n"))
        return 2
    except (MemoryError, RuntimeError) as error:
        from transduce.machine import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        ran_out = "transduce: Memory ran out: use a smaller model, shorter texts, or a larger machine.\n"
        sys.stderr.write(localized(ran_out))
        return 2
    except OSError as error:
        if error.strerror is None:
            raise
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        file = error.filename or ("standard output" if is_full else None)  # of files, errors have the name
        location = f"{file}: " if file else ""
        unusable = f"transduce: A file or folder could not be used: {location}{error.strerror}.\n"
        sys.stderr.write(localized(unusable))
        sys.stderr.write(localized(_disk_remedy(error)))
        return 2
    finally:
        _discard_unwritable_output()


def _run_and_flush(arguments: list[str], owns_process: bool) -> int:
    """Run a subcommand, write its whole output, and return its exit code; a full disk raises an OSError."""
    try:
        code = _run(arguments, owns_process)
    except SystemExit:  # after --help and --version
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def _discard_unwritable_output() -> None:
    """Discard output that cannot be written; otherwise Python tries again as it exits, and complains once more."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError, TransduceError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _disk_remedy(error: OSError) -> str:
    """Return a line that tells how to remedy a full disk or a limit on the size of files.

    The text is empty for other errors. It is also empty for a full device such as /dev/full, which has no space to
    free.
    """
    if error.errno == errno.EFBIG:
        return "transduce: Raise the limit on the size of a file (`ulimit -f`), then run the command again.\n"
    try:
        is_device = stat.S_ISCHR(os.stat(1 if error.filename in (None, "standard output") else error.filename).st_mode)
    except OSError:
        is_device = False
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT) and not is_device
    return "transduce: Free disk space, then run the command again.\n" if is_full else ""


def _with_options(error: TransduceError, arguments: Sequence[str]) -> str:
    """Return an error's message in which options, such as `--batch-tokens`, replace names of settings and arguments.

    Only options of the subcommand replace a name. If a settings file or --set is passed, the name of a setting is
    replaced only if its option is passed, too. Names of Python arguments are replaced only if one of their options is
    passed.

    Args:
        error: the error, whose message has names in backticks.
        arguments: the subcommand and its arguments.
    """
    message = str(error)
    verb = current_command(arguments[0]) if arguments else ""
    # The table that a setting belongs to is one of a settings file.
    names = set(re.findall(r"`([a-z_.]+)`(?! belongs to the table)", error.args[0]))
    if verb not in VERBS or not names:
        return message
    from transduce.commands.options import option_of
    from transduce.tasks.settings.options import OPTIONS

    passed = {argument.partition("=")[0] for argument in arguments}
    options_of_settings = {option.setting: name for name, option in OPTIONS.items()}
    if "--mix" in passed and "--corpus" not in passed:
        options_of_settings["data.corpora"] = "mix"
    of_settings = {name: option_of(options_of_settings[name]) for name in names & options_of_settings.keys()}
    of_arguments = {name: option_of(name) for name in names - of_settings.keys()}
    if "--set" in passed or any(argument.endswith(".toml") for argument in arguments):
        of_settings = {name: option for name, option in of_settings.items() if option in passed}
    if not passed.intersection(of_arguments.values()):
        of_arguments = {}
    existing = build_parser(verb)._option_string_actions
    for name, option in {**of_settings, **of_arguments}.items():
        if option in existing:
            message = message.replace(f"`{name}`", f"`{option}`")
    return message


def _start_in_utf8() -> None:
    """Restart the process in Python's UTF-8 mode if the locale cannot represent its UTF-8 arguments.

    Without UTF-8 mode, the process could not open files with such names. If there are no such arguments, nothing
    happens.
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


def _run(arguments: list[str], owns_process: bool) -> int:
    """Run a subcommand and return its exit code.

    If the process has only this subcommand to run (`owns_process`), Python's garbage collector skips PyTorch's objects.
    """
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    verb = arguments[0] if arguments else "--help"
    if verb.startswith("-"):
        build_parser(None).parse([verb])
        return 0
    verb = current_command(verb)
    if verb not in VERBS:
        near = near_name(verb, VERBS)
        raise TransduceError(
            f"There is no command `{verb}`"
            + (f": did you mean `{near}`?" if near else f": the commands are {', '.join(VERBS)}.")
        )
    options = build_parser(verb).parse(arguments[1:])
    if options.plugin:
        from transduce.model.build import load_plugin

        for path in options.plugin:
            load_plugin(path)
    _, run = _functions_of(verb)
    # Training, experiments and the server handle SIGTERM in their own way.
    with (
        handle_sigterm(lambda *_: sys.exit(143)),
        # A server loads its models later anyway; the handler is for services that are told to reload as they start.
        handle_hangup(lambda *_: None) if verb == "serve" else nullcontext(),
        use_common_options(("--plugin", path) for path in options.plugin),
    ):
        if owns_process and verb not in _WITHOUT_TORCH:
            _import_torch()
        return run(options) or 0


def _import_torch() -> None:
    """Import PyTorch, and make Python's garbage collector skip its 200,000 objects, which live as long as the process.

    Otherwise a quarter of a short command's time is spent looking at these objects, during the import and at the end.
    """
    gc.disable()
    import_module("torch")
    gc.freeze()
    gc.enable()


def _functions_of(
    verb: str,
) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int | None]]:
    """Import a subcommand's module, and return two functions.

    The first one declares the options in a parser. The second one runs the command, and returns its exit code or None
    for 0.
    """
    name = verb.replace("-", "_")
    if verb in _SHARED_MODULES:
        module = import_module(f"transduce.commands.{_SHARED_MODULES[verb]}")
        return getattr(module, f"add_{name}_arguments"), getattr(module, f"run_{name}")
    module = import_module(f"transduce.commands.{name}")
    return module.add_arguments, module.run


# --- streams ---
# Replacements for standard streams that were closed by the caller (`<&-`, `>&-`), which raise a clear error on use.


class _Closed(io.RawIOBase):
    """A replacement for a closed standard stream, which raises a TransduceError when it is read or written."""

    def __init__(self, sentence: str, *, reads: bool) -> None:
        super().__init__()
        self._sentence, self._reads = sentence, reads

    def readable(self) -> bool:
        """Return whether this stream replaces standard input."""
        return self._reads

    def writable(self) -> bool:
        """Return whether this stream replaces standard output or standard error."""
        return not self._reads

    def readinto(self, _: object, /) -> NoReturn:
        """Raise an error that explains that the stream is closed.

        Raises:
            TransduceError: always.
        """
        raise TransduceError(self._sentence)

    write = readinto


def replace_closed_streams() -> None:
    """Replace the standard streams that the caller has closed, for example by `>&-`.

    Using standard input or output then raises a TransduceError, and messages on standard error are discarded. The
    streams' file descriptors are occupied by `/dev/null`. Otherwise the next opened file would get one of them, and
    libraries would write into that file.
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
