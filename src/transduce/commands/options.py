"""Declare the options that several commands share, read them, check files, read standard input, and write results."""

import argparse
import codecs
import contextlib
import errno
import io
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from transduce.argument_checks import as_path
from transduce.atomic_io import is_special_file, json_bytes, link_target, write_file
from transduce.errors import TransduceError, count_noun, wide_encoding
from transduce.tasks.settings.options import COUNT, FLAG, OPTIONS, SettingOption
from transduce.text.files import TEXT_START, LineNotes, has_many_undecodable, read_lines
from transduce.text.glossary import Glossary
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inference.translator import Translator
    from transduce.inspection.plots import Chart
    from transduce.model_folder.load import LoadOptions
    from transduce.search.settings import SearchSettings

# Values that options offer. They equal those of the modules that use them, as a test shows, and stand here so that
# `--help` does not import PyTorch.
PREPARED_KINDS = ("translation", "language-model", "denoising", "masked-language-model")
EXPORT_FORMATS = ("ctranslate2", "onnx", "huggingface")
QUANTIZATIONS = ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
TUTORIAL_STYLES = ("torch", "annotated", "separate", "blocks", "transduce", "karpathy")
ATTRIBUTION_METHODS = ("value", "occlusion", "integrated", "gradient", "gradient-input", "rollout")
ABLATION_FILLS = ("zero", "mean")
PICTURE_SUFFIXES = (".png", ".svg", ".pdf")
DEMO_STEPS = 600
GENERATED_TOKENS = 200


def text_argument(argument: str) -> str:
    """Return an option's text unchanged if it is valid UTF-8; an argparse `type`.

    Raises:
        argparse.ArgumentTypeError: the text has bytes that are not UTF-8.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{argument!a} is not UTF-8: write it in UTF-8") from None
    return argument


def add_device(parser: argparse.ArgumentParser) -> Callable[..., object]:
    """Declare the options --device and --threads in a group of a command, and return the group's `add_argument`."""
    add = parser.add_argument_group("device and precision").add_argument
    add("--device", default="auto", help="cpu, cuda, mps, or auto: an NVIDIA GPU if there is one")
    add("--threads", type=int, metavar="N", help="number of threads (default: OMP_NUM_THREADS, or all cores)")
    return add


def add_json(add: Callable[..., object], what: str = "the report", *, needs: str | None = None) -> None:
    """Declare the option --json, which writes a command's result as JSON.

    Args:
        add: the `add_argument` of a command or a group.
        what: noun for the result in the help.
        needs: another option, without which --json has no effect; None: there is none.
    """
    text = f"write {what} as JSON; -: to standard output"
    add("--json", metavar="PATH", help=text if needs is None else f"with {needs}: {text}")


def option_of(name: str) -> str:
    """Return the command-line option for a name in Python, such as `--batch-tokens` for `batch_tokens`."""
    return f"--{name.replace('_', '-')}"


def add_settings(add: Callable[..., object], *names: str, table: Mapping[str, SettingOption] = OPTIONS) -> None:
    """Declare options that set training or other settings, by their names in Python.

    Args:
        add: the `add_argument` of a command or a group.
        *names: names of the options in Python.
        table: help and form of each option by its name; by default that of training and preparing.
    """
    for name in names:
        add(option_of(name), help=table[name].help, **table[name].form)


def settings_from(options: argparse.Namespace, **converted: Any) -> dict[str, Any]:
    """Return the settings that a command's options describe, as nested dicts like those of a settings file.

    Settings come from the settings file, if there is one. --set changes these settings, and the other options change
    the result.

    Args:
        options: the options of a command.
        **converted: values by the names of options, in the form that settings have. They replace the values in
            `options`.
    """
    from transduce.tasks.settings.reading import put_options, read_settings

    content = read_settings(Path(options.settings) if options.settings else None, options.set)
    put_options(content, {name: value for name, value in vars(options).items() if name in OPTIONS} | converted)
    return content


def add_computing(parser: argparse.ArgumentParser, *, int8: bool = True) -> None:
    """Declare a command's options for where and how to compute: --device, --threads, --precision.

    Args:
        parser: the command's parser.
        int8: offer 8-bit weights as a precision; False: offer what --precision of `transduce train` offers.
    """
    add = add_device(parser)
    if not int8:
        add_settings(add, "precision")
        return
    choices = (*OPTIONS["precision"].form["choices"], "int8")
    add(
        "--precision",
        default="auto",
        choices=choices,
        help="auto: bf16 if the hardware multiplies it faster; int8: 8-bit weights, for a CPU",
    )


SEARCH_OPTIONS = {
    "beam_size": SettingOption("search.beam_size", "hypotheses kept at each step, usually 4; 1: greedy", COUNT),
    "length_penalty": SettingOption(
        "search.length_penalty", "greater values favor longer output; usually 0.6", {"type": float, "metavar": "ALPHA"}
    ),
    "max_length": SettingOption(
        "search.max_length", "maximum number of new tokens, including the end symbol; usually source tokens + 50", COUNT
    ),
    "min_length": SettingOption("search.min_length", "minimum number of new tokens; usually 0", COUNT),
    "no_repeated_ngrams": SettingOption(
        "search.no_repeated_ngrams", "no n-gram of N tokens occurs twice; usually 0: no limit", COUNT
    ),
    "repetition_penalty": SettingOption(
        "search.repetition_penalty",
        "greater than 1: earlier tokens, also of a prompt, become less likely, as in transformers; usually 1: no "
        "effect",
        {"type": float, "metavar": "P"},
    ),
    "coverage_penalty": SettingOption(
        "search.coverage_penalty",
        "greater values penalize omissions of source tokens; usually 0",
        {"type": float, "metavar": "BETA"},
    ),
    "diverse_groups": SettingOption(
        "search.diverse_groups",
        "groups of the beam that avoid each other's choices; usually 1",
        {"type": int, "metavar": "G"},
    ),
    "diversity_penalty": SettingOption(
        "search.diversity_penalty",
        "cost of a choice of an earlier group; usually 1",
        {"type": float, "metavar": "NATS"},
    ),
    "forbid": SettingOption(
        "search.forbidden",
        "a word or text that no output contains; can be repeated",
        {"action": "append", "type": text_argument, "metavar": "TEXT"},
    ),
    "batch_invariant": SettingOption(
        "search.batch_invariant",
        "the same scores, bit by bit, whatever sentences share the batch; refused where that cannot be guaranteed",
        FLAG,
    ),
}
"""The options that override the search settings in a model's folder: name in Python → `SettingOption`."""


def add_search(parser: argparse.ArgumentParser) -> None:
    """Declare a command's options that override the search settings in a model's folder, such as --beam-size."""
    group = parser.add_argument_group("search (defaults: the settings in the model's folder)").add_argument
    add_settings(group, *SEARCH_OPTIONS, table=SEARCH_OPTIONS)


def passed_options(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return a dict of those options in `names` that the user has set: name → value."""
    return {name: vars(options)[name] for name in names if vars(options)[name] is not None}


def search_from(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return a dict of those search options in `names` that the user has set: name in `SearchSettings` → value."""
    passed = passed_options(options, names).items()
    values = {SEARCH_OPTIONS[name].setting.removeprefix("search."): value for name, value in passed}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "seed")


def add_sampling(add: Callable[..., object], *, temperature: float) -> None:
    """Declare the options of sampling: --temperature, --top-k, --top-p, --min-p and --seed, which are None by default.

    Args:
        add: the `add_argument` of a command or a group.
        temperature: the temperature that the command uses by default, which the help states.
    """
    add(
        "--temperature",
        type=float,
        metavar="T",
        help=f"below 1, likely tokens become more likely (default: {temperature})",
    )
    add("--top-k", type=int, metavar="K", help="draw from the K most likely tokens (default: all tokens)")
    add(
        "--top-p",
        type=float,
        metavar="P",
        help="draw from the most likely tokens with total probability P, after --top-k (default: 1)",
    )
    add(
        "--min-p",
        type=float,
        metavar="P",
        help="draw only tokens with at least this share of the most likely token's probability (default: 0)",
    )
    add("--seed", type=int, metavar="N", help="random seed (default: 1)")


def add_glossary(parser: argparse.ArgumentParser) -> None:
    """Declare a command's option --glossary, a file with required translations of terms."""
    parser.add_argument(
        "--glossary",
        metavar="FILE",
        help="required translations of terms: `term TAB translation` per line; a term alone stays unchanged",
    )


def add_datastore(parser: argparse.ArgumentParser) -> None:
    """Declare a command's option --datastore, a file with a datastore for kNN retrieval."""
    parser.add_argument(
        "--datastore",
        metavar="FILE",
        help="datastore of sentence pairs that `transduce build-datastore` wrote for this model",
    )


def glossary_from(options: argparse.Namespace) -> Glossary | None:
    """Return the glossary in the file of the option --glossary; None if the option is not set."""
    from transduce.inference.glossary_search import as_glossary

    return as_glossary(options.glossary)


LANGUAGE_OPTIONS = ("source_language", "target_language", "tag")
"""The names in Python of the options for multilingual models: --source-language, --target-language and --tag."""


def add_languages(parser: argparse.ArgumentParser) -> None:
    """Declare a command's options for multilingual models: --source-language, --target-language and --tag."""
    group = parser.add_argument_group("languages (defaults: those of the model's folder)").add_argument
    group("--source-language", metavar="TAG", help="language of the text, for NLLB, mBART and M2M100: zho_Hans")
    group("--target-language", metavar="TAG", help="language of the translation, also for OPUS models: eng_Latn, fra")
    group("--tag", metavar="NAME", help="tag of the texts, for models that were trained on tagged corpora")


def add_scoring(parser: argparse.ArgumentParser) -> None:
    """Declare a command's options for computing BLEU: --tokenize and --lowercase."""
    group = parser.add_argument_group("scoring").add_argument
    group("--tokenize", metavar="NAME", help="sacreBLEU's tokenizer (default: the one that fits the target language)")
    group("--lowercase", action="store_true", help="ignore case")


def refuse_options(options: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Raise an error if one of the named options is set, which has no effect in combination with others.

    Args:
        options: the options of a command.
        names: names of the options to refuse, which are None, False or an empty list if they are not set.
        reason: the message, with `{option}` for the option.

    Raises:
        TransduceError: one of the options is set.
    """
    for name in names:
        value = vars(options)[name]
        if value is not None and value is not False and value != []:
            raise TransduceError(reason.replace("{option}", option_of(name)))


def refuse_options_of_others(
    options: argparse.Namespace, command: str, kind: str, names_of_kinds: Mapping[str, Collection[str]]
) -> None:
    """Raise an error if an option is set that applies only to other kinds of results than the chosen one.

    Args:
        options: the options of the command.
        command: the command, such as `plot`.
        kind: the chosen kind, such as `masks`.
        names_of_kinds: dict: kind → names of the options that apply to it.

    Raises:
        TransduceError: an option of other kinds is set.
    """
    own, others = names_of_kinds[kind], [names for name, names in names_of_kinds.items() if name != kind]
    refuse_options(
        options,
        dict.fromkeys(name for names in others for name in names if name not in own),
        f"`{{option}}` does not apply to `transduce {command} {kind}`: leave it out.",
    )


def check_json(options: argparse.Namespace, needed: str) -> None:
    """Raise an error if --json is set without the option `needed`.

    Without this option, the command makes no report that --json could write.

    Args:
        options: the options of a command.
        needed: the name in Python of the other option.

    Raises:
        TransduceError: --json is set alone.
    """
    if not vars(options)[needed]:
        reason = f"`{{option}}` writes the report of `{option_of(needed)}`: pass that too, or leave it out."
        refuse_options(options, ["json"], reason)


def loading_options(options: argparse.Namespace) -> "LoadOptions":
    """Return the options --precision, --device and --threads as keyword arguments for functions that load a model."""
    return {"precision": options.precision, "device": options.device, "threads": options.threads}


def load_translator(folders: str | list[str], options: argparse.Namespace) -> "Translator":
    """Load a translator from a model folder, or an ensemble from several folders, as a command's options say.

    The options are --precision, --device, --threads, --source-language, --target-language, --tag and --datastore. Of
    these, a command may lack the last four.
    """
    from transduce.inference.load import open_translator

    first = folders if isinstance(folders, str) else folders[0]
    return open_translator(folders, **translator_arguments(options, first))


def translator_arguments(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Return the keyword arguments of `open_translator` that a command's options describe.

    Without --threads, the number of threads is usually None. It is 1 if the search settings ask for batch-invariant
    results, which need one thread.

    Args:
        options: the options of the command.
        folder: the model folder whose search settings count; the first one of an ensemble.
    """
    arguments = loading_options(options) | {name: vars(options).get(name) for name in (*LANGUAGE_OPTIONS, "datastore")}
    if options.threads is None and "batch_invariant" in options and search_settings(options, folder).batch_invariant:
        arguments["threads"] = 1
    return arguments


def report_overridden(
    stored: "SearchSettings", search: "SearchSettings", overrides: Collection[str], folder: str
) -> None:
    """Report on standard error which search settings of a model's folder are changed or ignored because of options.

    Args:
        stored: the settings in the folder.
        search: the settings after the command's options were applied.
        overrides: names of the settings that the options set directly. These are not reported.
        folder: the model's folder.
    """
    from transduce.search.settings import describe_overridden

    for sentence in describe_overridden(stored, search, overrides, folder):
        _report_overridden(sentence)


@cache
def _report_overridden(sentence: str) -> None:
    """Print a sentence about an overridden search setting on standard error, unless it was printed before."""
    sys.stderr.write(localized(f"{sentence}\n"))


def search_settings(options: argparse.Namespace, folder: str) -> "SearchSettings":
    """Return the search settings in a model's folder, overridden by a command's options such as --beam-size.

    An option that only affects a beam search disables sampling, even if the folder's settings specify sampling. A
    notice on standard error names the settings of the folder that this changes or leaves without effect. No model is
    loaded.

    Raises:
        TransduceError: a setting is out of range, or options contradict each other.
    """
    from transduce.model_folder.load import read_search_settings
    from transduce.search.settings import override_search

    base = read_search_settings(Path(folder))
    overrides = search_from(options, SEARCH_OPTIONS)
    search = override_search(base, overrides)
    if options.length_penalty is not None and search.beam_size == 1:
        raise TransduceError("`--length-penalty` ranks the hypotheses of a beam, but `beam_size` is 1: raise it.")
    report_overridden(base, search, overrides, folder)
    if search.batch_invariant and getattr(options, "datastore", None) is not None:
        raise TransduceError(
            "--batch-invariant cannot be combined with --datastore, whose retrieval depends on the batch: leave one of "
            "them out."
        )
    return search


def file_or_stream(path: str) -> str | None:
    """Return a path unchanged, or None for `-` (standard input or output); an argparse `type`."""
    return None if path == "-" else path


def page_file(path: str) -> str:
    """Return the name of an HTML page to write, and raise an error for other kinds of files; an argparse `type`.

    Raises:
        argparse.ArgumentTypeError: the name ends as that of a picture or PDF.
    """
    suffix = Path(path).suffix.lower()
    if suffix in PICTURE_SUFFIXES:
        raise argparse.ArgumentTypeError(f"{path} is to be a page of HTML, not {suffix}: name it .html")
    return path


def check_writable(
    *paths: str | None, report: str | None = None, inputs: Sequence[str | Sequence[str] | None] = ()
) -> None:
    """Check, before any work is done, that outputs can be written and would not overwrite an input.

    Args:
        paths: files to write; None: an option that is not set.
        report: one more file to write, which may be `-` for standard output.
        inputs: files, lists of files and model folders that are read; None: an option that is not set.

    Raises:
        TransduceError: the folder of an output is missing or not writable; or an output is a folder, `-`, a file with
            the suffix `.gz`, an input, another output, or a symbolic link that leads back to itself.
    """
    if "-" in paths:
        raise TransduceError("`-` means standard output, but a file is needed here: name one.")
    files = [path for path in (*paths, None if report == "-" else report) if path]
    for path in map(Path, files):
        _refuse_circular_link(path)
        target = link_target(path)
        if not target.parent.is_dir():
            raise TransduceError(f"{path} cannot be written: there is no folder {target.parent}.")
        if path.is_dir():
            raise TransduceError(f"{path} cannot be written: it is a folder.")
        if path.suffix == ".gz":
            raise TransduceError(f"{path} would be gzip by its name, but plain text is written: leave .gz out.")
        # A device such as /dev/stdout is written directly; a file is renamed to its final name when complete.
        location = path if is_special_file(path) else target.parent
        if not os.access(location, os.W_OK):
            raise TransduceError(f"{path} cannot be written: you may not write to {location}, so name another place.")
    written = [Path(path).resolve() for path in files if not is_special_file(Path(path))]
    if len(set(written)) < len(written):
        raise TransduceError(f"{files[-1]} is named for two outputs: name another file for one of them.")
    read = [Path(path) for item in inputs if item for path in ([item] if isinstance(item, str) else item)]
    for path in written:
        for location in read:
            if path.exists() and (_is_model_file(path, location) if location.is_dir() else _is_same(path, location)):
                raise TransduceError(f"{path} is read here, and would be replaced: name another file to write.")


def _refuse_circular_link(path: Path) -> None:
    """Raise an error for a path that cannot be followed, since a symbolic link in it leads back to itself.

    Raises:
        TransduceError: the path has such a link.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise TransduceError(
                f"{path} cannot be written: a symbolic link in it leads back to itself, so name another place."
            ) from None


def _is_same(path: Path, other: Path) -> bool:
    return other.exists() and path.samefile(other)


def _is_model_file(path: Path, folder: Path) -> bool:
    """Return whether a file belongs to the model in a folder, so that no output may overwrite the file.

    Only files directly in the folder can belong to the model. With a manifest, these are the files that it lists, and
    the files that a training run writes. Without a manifest, these are all files.
    """
    from transduce.model_folder.read import MANIFEST, SETTINGS_FILE
    from transduce.tasks.run.run_folder import RUN_FILES

    if not path.parent.samefile(folder):
        return False
    manifest = folder / MANIFEST
    if not manifest.is_file() or path.name in (SETTINGS_FILE, *RUN_FILES):
        return True
    return f'"{path.name}"' in manifest.read_text("utf-8")


def check_folder(path: str) -> None:
    """Check, before any work is done, that a folder is writable or can be created.

    Raises:
        TransduceError: a part of the path is a file or a symbolic link that leads back to itself, or the folder is not
            writable.
    """
    location = as_path(path, "The folder to write")
    _refuse_circular_link(location)
    while not location.exists() and location != location.parent:
        location = location.parent
    if not location.is_dir():
        raise TransduceError(f"{path} cannot be a folder, for {location} is a file: name another one.")
    if not os.access(location, os.W_OK):
        raise TransduceError(f"{path} cannot be filled, for you may not write to {location}: name another folder.")


def read_aligned_lines(*paths: str) -> list[list[str]]:
    """Return a list of lines for each of several text files, which correspond line by line.

    Raises:
        TransduceError: a file cannot be read, the files differ in length, or they are empty.
    """
    from transduce.evaluation.scores import check_line_counts

    lines = [list(read_lines(path)) for path in paths]
    check_line_counts({f"lines in {path}": each for path, each in zip(paths, lines, strict=True)})
    return lines


def print_bytes(content: bytes) -> None:
    """Write bytes to standard output at once, whatever the encoding of the terminal."""
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def write_chart(chart: "Chart", output: str | None) -> None:
    """Write a chart to a picture file or, if `output` is None, as text to standard output."""
    from transduce.inspection.plots import draw_chart, save_chart

    if output is not None:
        save_chart(chart, Path(output))
    else:
        print_bytes(f"{draw_chart(chart, columns=shutil.get_terminal_size().columns)}\n".encode())


def write_report(report: msgspec.Struct, json_path: str | None) -> None:
    """Print a report as text in the user's language, and write it as JSON too if a path is set.

    Args:
        report: the report.
        json_path: the JSON file; None: no JSON; `-`: only the JSON is printed, and no text.
    """
    if json_path is not None:
        write_json_report(report, json_path)
    if json_path != "-":
        print_bytes(localized(f"{report}\n").encode())


def write_json_report(report: msgspec.Struct, path: str) -> None:
    """Write a report to a file as indented JSON; the path `-` is standard output."""
    content = json_bytes(report)
    if path != "-":
        write_file(Path(path), content)
        return
    print_bytes(content)


def write_lines(lines: Iterable[object], report: msgspec.Struct, json_path: str | None) -> None:
    """Print results on standard output and the report about them on standard error.

    Args:
        lines: the results, one per line.
        report: the report.
        json_path: also write the report as JSON to this file; None: no JSON; `-`: the JSON is printed on standard
            output instead of the lines.
    """
    if json_path is not None:
        write_json_report(report, json_path)
    if json_path != "-":
        print_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    sys.stderr.write(localized(f"{report}\n"))


# --- standard input and output ---


_MAX_DAMAGED = 5  # damaged lines that are reported individually
_GZIP_START = b"\x1f\x8b"


@contextlib.contextmanager
def standard_output() -> Iterator[io.TextIOWrapper]:
    """Yield standard output as a stream of UTF-8 text with line feeds, in any locale, and flush it at the end."""
    output = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", errors="replace", newline="\n")
    try:
        yield output
        output.flush()
    finally:
        output.detach()


def typed_lines() -> Iterator[str]:
    """Yield the lines that a user types at prompts, until an empty line or the end of the input.

    The prompts go to standard error if the output is redirected.
    """
    with contextlib.suppress(ImportError):  # Windows has no readline, but its console edits lines itself
        import readline  # noqa: F401
    while True:
        try:
            if sys.stdout.isatty():
                line = input("> ")
            else:
                sys.stderr.write("> ")
                sys.stderr.flush()
                line = input()
        except EOFError:
            return
        if not line.strip():
            return
        yield line


def stdin_lines(notes: LineNotes | None = None, *, is_any_text: bool = False) -> Iterator[str]:
    """Yield the lines of standard input without line ends.

    Bytes that are not UTF-8 become U+FFFD, and their lines are reported on standard error. Text in another encoding is
    refused. It is recognized in two ways: most characters of the first non-ASCII line are not UTF-8, or more lines are
    damaged than a file may have.

    Args:
        notes: gets the end of the first line.
        is_any_text: do not check whether the first lines show a document, such as subtitles.

    Raises:
        TransduceError: the bytes show another format or encoding, or all lines end with carriage returns alone.
    """
    from transduce.documents.formats import recognize_text

    damaged, start, has_utf8 = 0, b"", False
    buffer: Any = sys.stdin.buffer
    stream = buffer if isinstance(buffer, io.BufferedReader) else io.BufferedReader(buffer)  # a closed stream's
    _refuse_other_content(stream.peek(TEXT_START)[:TEXT_START])
    for number, raw in enumerate(stream, 1):
        if number <= 2 and not is_any_text:
            start += raw
            recognize_text("Standard input", start)
        line = raw.removesuffix(b"\n")
        line = line.removesuffix(b"\r") if line != raw else line
        if number == 1:
            _refuse_other_ends(raw)
            if notes is not None and raw.endswith(b"\r\n"):
                notes.line_end = "\r\n"
            line = line.removeprefix(codecs.BOM_UTF8)
        text = line.decode("utf-8", "replace")
        if not (has_utf8 or line.isascii()):
            replaced = text.count("\ufffd") - line.count("\ufffd".encode())
            has_utf8 = 2 * replaced < sum(character > "\x7f" for character in text)
            if not has_utf8 and replaced > 1:
                raise _not_utf8_input(f"line {number} is not")
        if text.count("\ufffd") > line.count("\ufffd".encode()):
            damaged += 1
            if has_many_undecodable(damaged, number):
                raise _not_utf8_input(f"{damaged} of the first {number} lines are not")
            if damaged <= _MAX_DAMAGED:
                sys.stderr.write(
                    localized(f"Standard input, line {number}: bytes that are not UTF-8 were read as U+FFFD.\n")
                )
        yield text
    if damaged > _MAX_DAMAGED:
        sys.stderr.write(localized(f"Standard input: {count_noun(damaged, 'line')} had such bytes in total.\n"))
    if damaged:
        sys.stderr.write(localized("Convert text in another encoding first: Chinese by `iconv -f GB18030 -t UTF-8`.\n"))


_LONG_LINE = 1_000_000


def report_long_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of an input unchanged; warn on standard error of lines of a million characters or more.

    Such a line takes so long that nothing is printed for minutes.
    """
    for number, line in enumerate(lines, 1):
        if len(line) >= _LONG_LINE:
            sys.stderr.write(
                localized(
                    f"warning: line {number:,} has {len(line):,} characters, which takes long: separate lines by line "
                    "feeds.\n"
                )
            )
        yield line


def _not_utf8_input(what: str) -> TransduceError:
    return TransduceError(
        f"Standard input must be lines of UTF-8, but {what}: convert it from its encoding, for Chinese by `iconv -f "
        "GB18030 -t UTF-8`."
    )


def _refuse_other_content(start: bytes) -> None:
    encoding = wide_encoding(start)
    if encoding or start.startswith(_GZIP_START):
        raise TransduceError(
            f"Standard input must be lines of UTF-8, but begins as {encoding} does: put it through `iconv -f "
            f"{encoding} -t UTF-8`."
            if encoding
            else "Standard input must be lines of UTF-8, but begins as gzip does: put it through `zcat`."
        )


def _refuse_other_ends(raw: bytes) -> None:
    """Raise an error if the lines of standard input end with carriage returns alone.

    All lines would be read as one.

    Args:
        raw: the bytes up to the first line feed.

    Raises:
        TransduceError: the lines end with carriage returns alone.
    """
    if raw.count(b"\r") > 1 and not raw.endswith(b"\n"):
        raise TransduceError(
            "Standard input ends its lines with carriage returns alone, so it is one line: convert it by "
            "`tr '\\r' '\\n'`."
        )


def write_results(results: Iterable[str], output: str | None) -> None:
    """Write texts, which include their line breaks, to a file or to standard output.

    Args:
        results: the texts, each one or more lines.
        output: the file, which is written after the last text is computed. None: standard output, to which each text is
            written as soon as it is computed.
    """
    if output:
        write_file(Path(output), "".join(results).encode("utf-8", "replace"))
        return
    with standard_output() as stream:
        for result in results:
            stream.write(result)
            stream.flush()
