"""Options that several verbs share."""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from transduce.durable import is_no_file, write_file
from transduce.errors import TransduceError
from transduce.evaluation.scores import check_line_counts
from transduce.given import as_path
from transduce.runtime.folder import MANIFEST
from transduce.runtime.opening import load
from transduce.runtime.search_defaults import read_search_settings
from transduce.runtime.translator import Translator
from transduce.runtime.wanted import as_glossary
from transduce.search.settings import SearchSettings
from transduce.tasks.new_run import RUN_FILES, SETTINGS_FILE
from transduce.text.files import read_lines
from transduce.text.glossary import Glossary


def text_argument(argument: str) -> str:
    """The type of an option that is text: bytes that are no UTF-8 would be read as replacement characters.

    Raises:
        argparse.ArgumentTypeError: it has such bytes; a file's name may.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{argument!a} is no text in UTF-8: write it so") from None
    return argument


def add_place(parser: argparse.ArgumentParser) -> None:
    """Where to compute: --device, --threads."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: the GPU where there is one")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads to compute with; not said: as OMP_NUM_THREADS says, or all cores",
    )


def add_computing(parser: argparse.ArgumentParser, *, int8: bool = True) -> None:
    """Where and how to compute: --device, --threads, --precision, which is int8 for models that write."""
    add_place(parser)
    parser.add_argument(
        "--precision",
        default="auto",
        choices=("auto", "fp32", "bf16", "int8") if int8 else ("auto", "fp32", "bf16"),
        help="auto: bf16 where the hardware multiplies it faster"
        + ("; int8: 8-bit weights, for writing on a CPU" if int8 else ""),
    )


SEARCH_OPTIONS = (
    "beam_size",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeated_ngrams",
    "coverage_penalty",
    "diverse_groups",
    "diversity_penalty",
    "forbid",
    "strict",
)
SEARCHING = ("beam_size", "length_penalty", "coverage_penalty", "diverse_groups", "diversity_penalty")
"""Those that mean nothing where translations are drawn."""


def add_search(parser: argparse.ArgumentParser) -> None:
    """How to search, where it shall not be as the model's folder says."""
    parser.add_argument(
        "--beam-size",
        type=int,
        metavar="N",
        help="hypotheses kept at each step; 1 is greedy; else as the model's folder says, mostly 4",
    )
    parser.add_argument(
        "--length-penalty",
        type=float,
        metavar="ALPHA",
        help="greater favours longer output; else as the model's folder says, mostly 0.6",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="at most so many new pieces, end symbol included; else as the folder says, mostly source pieces + 50",
    )
    parser.add_argument("--min-length", type=int, metavar="N", help="at least so many new pieces")
    parser.add_argument("--no-repeated-ngrams", type=int, metavar="N", help="no run of N pieces comes twice; 0: it may")
    parser.add_argument(
        "--coverage-penalty", type=float, metavar="BETA", help="greater ranks down what leaves source pieces out"
    )
    parser.add_argument(
        "--diverse-groups", type=int, metavar="G", help="groups of the beam that avoid each other's choices"
    )
    parser.add_argument("--diversity-penalty", type=float, metavar="NATS", help="how much they avoid them")
    parser.add_argument(
        "--forbid",
        action="append",
        type=text_argument,
        metavar="TEXT",
        help="no translation contains this word or text; may be said several times",
    )
    parser.add_argument(
        "--strict",
        action="store_const",
        const=True,
        help="bit-equal scores whatever is translated together, or a refusal; one thread a process",
    )


def add_glossary(parser: argparse.ArgumentParser) -> None:
    """Terms: --glossary."""
    parser.add_argument(
        "--glossary",
        metavar="FILE",
        help="how terms are translated: `term TAB translation` a line; one alone in its line stays as it is",
    )


def add_examples(parser: argparse.ArgumentParser) -> None:
    """Pairs that the model remembers: --examples."""
    parser.add_argument(
        "--examples", metavar="FILE", help="translate by the pairs that `transduce remember` wrote here for this model"
    )


def glossary_from(options: argparse.Namespace) -> Glossary | None:
    """The glossary of `add_glossary`, if there is one."""
    return as_glossary(options.glossary)


def add_languages(parser: argparse.ArgumentParser) -> None:
    """Which languages, where the model has tags for them: --source-language, --target-language."""
    parser.add_argument("--source-language", metavar="TAG", help="of the text, for NLLB, mBART and M2M100: zho_Hans")
    parser.add_argument(
        "--target-language", metavar="TAG", help="to translate into, for these and for OPUS models: eng_Latn, fra"
    )


def add_scoring(parser: argparse.ArgumentParser) -> None:
    """How to score: --tokenize, --lowercase."""
    parser.add_argument(
        "--tokenize",
        metavar="NAME",
        help="sacreBLEU's tokenizer; the one that fits the target language where nothing is said",
    )
    parser.add_argument("--lowercase", action="store_true", help="score without regard to case")


def refuse_beside(options: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Refuses options that other options leave without a meaning; what nobody said is None.

    Raises:
        TransduceError: one of the names was said.
    """
    for name in names:
        if vars(options)[name] is not None:
            raise TransduceError(f"`--{name.replace('_', '-')}` {reason}")


def load_translator(folders: str | list[str], options: argparse.Namespace) -> Translator:
    """The model of a folder, or several models as one, by the options of `add_computing` and `add_search`."""
    first = folders if isinstance(folders, str) else folders[0]
    threads = threads_to_use(options, first)
    return load(
        folders,
        precision=options.precision,
        device=options.device,
        threads=threads,
        source_language=options.source_language if "source_language" in options else None,
        target_language=options.target_language if "target_language" in options else None,
        examples=options.examples if "examples" in options else None,
    )


def threads_to_use(options: argparse.Namespace, folder: str) -> int | None:
    """Threads of a process, None for all cores: strict results take one."""
    if options.threads is None and "strict" in options and search_settings(options, folder).strict:
        return 1
    threads: int | None = options.threads
    return threads


def search_settings(options: argparse.Namespace, folder: str) -> SearchSettings:
    """The options of `add_search`, and for what they do not say the settings in a model's folder.

    Whoever says how to search wants no translation drawn, as a folder's settings may say.

    Raises:
        TransduceError: one is out of its range, which is better said before a model is loaded.
    """
    said = {name: vars(options)[name] for name in SEARCH_OPTIONS}
    forbidden = said.pop("forbid")
    said["forbidden"] = None if forbidden is None else tuple(forbidden)
    base = read_search_settings(Path(folder))
    if any(said[name] is not None for name in SEARCHING):
        base = msgspec.structs.replace(base, sampling=None)
    search = msgspec.structs.replace(base, **{name: value for name, value in said.items() if value is not None})
    if options.coverage_penalty and search.beam_size == 1:
        raise TransduceError("`--coverage-penalty` ranks the hypotheses of a beam, but `beam_size` is 1: raise it.")
    if options.diversity_penalty is not None and search.diverse_groups == 1:
        raise TransduceError("`--diversity-penalty` is for groups of a beam: say how many with --diverse-groups.")
    if search.strict and getattr(options, "examples", None) is not None:
        raise TransduceError("Strict results are a model's alone: leave --examples or --strict out.")
    return search


def decoding_record(search: SearchSettings, precision: str) -> dict[str, str | int | float | bool]:
    """What a score must be accompanied by: how its translations were found."""
    usual, said = msgspec.structs.asdict(SearchSettings()), msgspec.structs.asdict(search)
    unusual = {name: value for name, value in said.items() if value != usual[name]}
    always = {"beam_size": search.beam_size, "length_penalty": search.length_penalty}
    shown = {name: value if isinstance(value, int | float) else str(value) for name, value in unusual.items()}
    return always | shown | {"precision": precision}


def or_standard(path: str) -> str | None:
    """The type of an option for a file in place of standard input or output, which `-` stands for."""
    return None if path == "-" else path


def check_writable(
    *paths: str | None, report: str | None = None, inputs: Sequence[str | Sequence[str] | None] = ()
) -> None:
    """Refuses, before any work is done, what could not be written after it, or only in place of what is read.

    Args:
        paths: files, or None.
        report: one that may be `-`, standard output.
        inputs: files and model folders that are read, or None.

    Raises:
        TransduceError: the folder of one is missing or must not be written to, or it is a folder itself, or `-`, or an
            input, or another of the paths.
    """
    if "-" in paths:
        raise TransduceError("`-` would be standard output, but a file is needed here: name one.")
    files = [path for path in (*paths, None if report == "-" else report) if path]
    for path in map(Path, files):
        if not path.parent.is_dir():
            raise TransduceError(f"{path} cannot be written: there is no folder {path.parent}.")
        if path.is_dir():
            raise TransduceError(f"{path} cannot be written: it is a folder.")
        if path.suffix == ".gz":
            raise TransduceError(f"{path} would be gzip by its name, but plain text is written: leave .gz out.")
        # What is no file, such as /dev/stdout, is written to as it is; a file gets its name when it is whole.
        place = path if is_no_file(path) else path.parent
        if not os.access(place, os.W_OK):
            raise TransduceError(f"{path} cannot be written: you may not write to {place}, so name another place.")
    written = [Path(path).resolve() for path in files if not is_no_file(Path(path))]
    if len(set(written)) < len(written):
        raise TransduceError(f"{files[-1]} is named for two outputs: name another file for one of them.")
    read = [Path(path) for given in inputs if given for path in ([given] if isinstance(given, str) else given)]
    for path in written:
        for place in read:
            if path.exists() and (_is_model_file(path, place) if place.is_dir() else _is_same(path, place)):
                raise TransduceError(f"{path} is read here, and would be replaced: name another file to write.")


def _is_same(path: Path, other: Path) -> bool:
    return other.exists() and path.samefile(other)


def _is_model_file(path: Path, folder: Path) -> bool:
    """Whether a file belongs to the model in a folder; a report that was written there before does not."""
    if not path.parent.samefile(folder):
        return False
    manifest = folder / MANIFEST
    if not manifest.is_file() or path.name in (SETTINGS_FILE, *RUN_FILES):
        return True
    return f'"{path.name}"' in manifest.read_text("utf-8")


def check_folder(path: str) -> None:
    """The same for a folder that is to be made or filled.

    Raises:
        TransduceError: something on the way to it is a file, or must not be written to.
    """
    place = as_path(path, "The folder to write")
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise TransduceError(f"{path} cannot be a folder, for {place} is a file: name another one.")
    if not os.access(place, os.W_OK):
        raise TransduceError(f"{path} cannot be filled, for you may not write to {place}: name another folder.")


def read_side_by_side(*paths: str) -> list[list[str]]:
    """The lines of files that belong together line by line.

    Raises:
        TransduceError: one cannot be read, or they differ in length, or are empty.
    """
    lines = [list(read_lines(path)) for path in paths]
    check_line_counts({f"lines in {path}": each for path, each in zip(paths, lines, strict=True)})
    return lines


def write_report(report: msgspec.Struct, json_path: str | None) -> None:
    """Prints a report for people, and writes it as JSON where a path is given; `-` is standard output."""
    if json_path is not None:
        write_json(report, json_path)
    if json_path != "-":
        sys.stdout.buffer.write(f"{report}\n".encode())
        sys.stdout.buffer.flush()


def write_json(report: msgspec.Struct, path: str) -> None:
    """Writes a report as JSON; `-` is standard output."""
    content = msgspec.json.format(msgspec.json.encode(report)) + b"\n"
    if path != "-":
        write_file(Path(path), content)
        return
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def write_lines(lines: Iterable[object], report: msgspec.Struct, json_path: str | None) -> None:
    """Prints lines, and what they come to on standard error; JSON in their place where the path is `-`, else to it."""
    if json_path is not None:
        write_json(report, json_path)
    if json_path != "-":
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
    sys.stderr.write(f"{report}\n")
