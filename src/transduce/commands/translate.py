"""`transduce translate MODEL < in.txt > out.txt`: translate lines of text."""

import argparse
import contextlib
import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from transduce.argument_checks import as_shard
from transduce.atomic_io import file_sha256, is_special_file, name_path_in_errors
from transduce.commands.options import (
    SAMPLING_OPTIONS,
    add_computing,
    add_datastore,
    add_glossary,
    add_languages,
    add_sampling,
    add_search,
    check_writable,
    file_or_stream,
    glossary_from,
    load_translator,
    passed_options,
    refuse_options,
    report_long_lines,
    report_overridden,
    search_settings,
    standard_output,
    stdin_lines,
    text_argument,
    translator_arguments,
    typed_lines,
)
from transduce.commands.translate_document import add_documents, document_format, naming_options, translate_file
from transduce.errors import TransduceError, count_noun
from transduce.inference.segmentation import join_wrapped_lines
from transduce.text.files import LineNotes, read_lines
from transduce.text.glossary import Glossary, TermTally
from transduce.text.text_settings import SplitSentences, TextSettings
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.commands.line_warnings import LineWarnings
    from transduce.inference.bulk_files import LineOptions, Portion, ResumableFile
    from transduce.inference.translator import Translator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce translate` in its argparse parser."""
    parser.add_argument(
        "model",
        nargs="+",
        help="a model folder, or several with one vocabulary for an ensemble; then optionally a file of text, which is "
        "translated line by line (default: standard input)",
    )
    parser.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        help="alternatives; more than 1 prints `number ||| text ||| score` (default: 1)",
    )
    add_text(parser)
    parser.add_argument("--redecode", action="store_true", help="re-decode translations that have quality warnings")
    terms = parser.add_argument_group("required text").add_argument
    terms("--prefix", default="", type=text_argument, metavar="TEXT", help="start of every translation")
    terms(
        "--must-contain",
        action="append",
        default=[],
        type=text_argument,
        metavar="PHRASE",
        help="every translation contains this phrase; can be repeated",
    )
    terms("--phrases", metavar="FILE", help="phrases that each line's translation contains, separated by tabs")
    add_glossary(parser)
    add_datastore(parser)
    add_search(parser)
    sampling = parser.add_argument_group("sampling (with --sample)").add_argument
    sampling("--sample", action="store_true", help="draw translations instead of searching for the best")
    add_sampling(sampling, temperature=1)
    add_bulk(parser)
    add_documents(parser)
    add_languages(parser)
    add_computing(parser)


def add_text(parser: argparse.ArgumentParser) -> None:
    """Declare a command's options for how texts are read: --split-sentences, --join-lines and --protect."""
    group = parser.add_argument_group("text").add_argument
    group(
        "--split-sentences",
        choices=get_args(SplitSentences),
        default="auto",
        help="translate each sentence of a line by itself; auto: unless the model was trained on lines with several "
        "sentences",
    )
    group(
        "--join-lines",
        action="store_true",
        help="join the lines of each paragraph, for text that is wrapped by width; empty lines separate paragraphs",
    )
    group(
        "--protect",
        action="append",
        default=[],
        metavar="REGEX",
        help="copy text that matches this regular expression unchanged, as placeholders and URLs; can be repeated",
    )


def add_bulk(parser: argparse.ArgumentParser) -> None:
    """Declare a command's options for large files: --output, --resume, --shard and --workers."""
    group = parser.add_argument_group("large files").add_argument
    group("--output", metavar="FILE", type=file_or_stream, help="write here, atomically (default: standard output)")
    group("--resume", action="store_true", help="continue an interrupted --output")
    group("--shard", default="1/1", metavar="I/N", help="translate only lines I, I + N, … of the input")
    group("--workers", type=int, default=1, metavar="N", help="processes, which share the threads")


def run(options: argparse.Namespace) -> None:
    """Translate the lines of a file or of standard input, or a document.

    Translations are printed, or written to --output. If the input is a terminal, the user is prompted for sentences.
    """
    from transduce.inference.bulk_files import portion_size, portions
    from transduce.machine import detect_machine

    folders, file = split_paths(options.model)
    job = make_job(options, folders[0])
    shard = as_shard(options.shard)
    check_options(options)
    check_writable(options.output, inputs=[folders, file, options.phrases, options.glossary, options.datastore])
    if file is None and sys.stdin.isatty() and not options.output:
        with standard_output() as output:
            prompt(load_translator(folders, options), output, job)
        return
    if file and not Path(file).exists():
        raise TransduceError(
            f"{file} does not exist: name a file of sentences, or pipe a sentence in by `echo … | transduce translate`."
        )
    format = document_format(file, options)
    if file is not None and format is not None:
        with naming_options(file):
            translate_file(options, folders, file, format, job, identity(options, folders, job))
            return
    notes = LineNotes()
    lines = report_long_lines(
        read_lines(file, notes) if file else stdin_lines(notes, is_any_text=options.format == "txt")
    )
    lines = join_wrapped_lines(lines) if options.join_lines else lines
    phrases = read_lines(options.phrases) if options.phrases else None
    size = portion_size(detect_machine(options.device).device)
    context = _check_context(options, folders[0])
    line_portions = portions(lines, shard=shard, phrases=phrases, size=size, context=context)
    if options.output and not is_special_file(Path(options.output)):
        write_to_file(options, folders, job, line_portions, notes, file)
        return
    if options.resume:
        raise TransduceError(f"--resume continues a file, but {options.output} is not a file: leave it out.")
    with open_device(options.output) if options.output else standard_output() as output:
        for _, text in translate_with_warnings(options, folders, job, line_portions):
            with name_path_in_errors(options.output or "standard output"):
                output.write(text.replace("\n", notes.line_end))
                output.flush()


def _check_context(options: argparse.Namespace, folder: str) -> int:
    """Return how many earlier lines a model reads as context for each line; refuse options that would lose these.

    Args:
        options: the options of `transduce translate`.
        folder: the model's folder.

    Returns:
        The number of lines; 0 if the model reads each line by itself.

    Raises:
        TransduceError: an option divides documents, or translates lines by themselves.
    """
    from transduce.model_folder.read import read_context

    record = read_context(Path(folder)) if Path(folder).is_dir() else None
    if record is None:
        return 0
    refused = {"--shard": options.shard != "1/1", "--redecode": options.redecode}
    if record.sides == "both":
        refused |= {"--resume": options.resume, "--workers": options.workers > 1}
    for option, value in refused.items():
        if value:
            raise TransduceError(
                f"{option} separates lines of a document from those before them, which the model in {folder} reads: "
                "leave it out."
            )
    return record.before


def split_paths(paths: list[str]) -> tuple[list[str], str | None]:
    """Split a command's positional arguments into a list of model folders and the input file.

    If there are several arguments and the last is not a folder, it is the file. The file is None if there is none, or
    if it is `-` (standard input).
    """
    if len(paths) > 1 and paths[-1] and not Path(paths[-1]).is_dir():
        return paths[:-1], file_or_stream(paths[-1])
    return paths, None


def make_job(options: argparse.Namespace, folder: str) -> "LineOptions":
    """Return the `LineOptions` for every line to translate: search settings, required text, glossary and text settings.

    Args:
        options: the options of `transduce translate`.
        folder: the model's folder, whose search settings the options override.

    Raises:
        TransduceError: an option is out of range, or has no effect.
    """
    from transduce.inference.bulk_files import LineOptions
    from transduce.search.settings import BEAM_SETTINGS, SamplingSettings, override_search

    if options.sample:
        refuse_options(
            options,
            BEAM_SETTINGS,
            "`{option}` sets how to search, but --sample does not search: leave one of them out.",
        )
    search = search_settings(options, folder)
    sampling, draws = None, options.sample or search.sampling is not None
    if draws:
        sampling = msgspec.structs.replace(
            search.sampling or SamplingSettings(), **passed_options(options, SAMPLING_OPTIONS)
        )
    else:
        refuse_options(options, SAMPLING_OPTIONS, "`{option}` sets how to sample: add --sample, or leave it out.")
    stored, search = search, override_search(search, {"n_best": options.n_best, "sampling": sampling})
    report_overridden(stored, search, ("n_best", "sampling"), folder)
    if options.redecode and (draws or search.n_best > 1):
        raise TransduceError("--redecode searches for one better translation: leave --sample and --n-best out.")
    glossary = glossary_from(options)
    return LineOptions(
        search=search,
        prefix=options.prefix,
        phrases=tuple(options.must_contain),
        terms=() if glossary is None else glossary.terms,
        redecode=options.redecode,
        text_settings=TextSettings(
            split_sentences=options.split_sentences,
            protect=tuple(options.protect),
            lines="join" if options.join_lines else "separate",
        ),
    )


def check_options(options: argparse.Namespace) -> None:
    """Raise an error, before any work is done, if options of `transduce translate` contradict each other.

    Raises:
        TransduceError: an option is invalid.
    """
    if options.workers < 1:
        raise TransduceError(f"`workers` must be at least 1, but is {options.workers}.")
    if options.join_lines and options.phrases:
        raise TransduceError(
            "--phrases has phrases for each line of the input, but --join-lines joins lines: leave one of them out."
        )
    if options.resume and not options.output:
        raise TransduceError("--resume continues a file, but none is named: add --output FILE.")


def translate_with_warnings(
    options: argparse.Namespace, folders: list[str], job: "LineOptions", portions: "Iterable[Portion]"
) -> "Iterator[tuple[Portion, str]]":
    """Translate groups of input lines; yield each group with its translated text, in order.

    Several processes can translate at the same time. Warnings about the lines are printed on standard error. Missing
    glossary terms are reported, too, unless there are several alternatives per line.

    Args:
        options: the options of `transduce translate`.
        folders: the model folders; several are an ensemble.
        job: what applies to each line.
        portions: the groups of lines.
    """

    from transduce.commands.line_warnings import LineWarnings, resolve_languages, unknown_characters_of, with_warnings

    def make_warnings() -> "LineWarnings":
        folder = Path(folders[0])
        return LineWarnings(
            *resolve_languages(folder, options.source_language, options.target_language),
            unknown_characters=unknown_characters_of(folder),
            noun="output line" if options.join_lines else "line",
        )

    results = with_warnings(
        _translate_portions(options, folders, job, portions), make_warnings, is_line_by_line=job.search.n_best == 1
    )
    return results if job.glossary is None or job.search.n_best > 1 else _report_missing_terms(job.glossary, results)


def _report_missing_terms(
    glossary: Glossary, results: "Iterable[tuple[Portion, str]]"
) -> "Iterator[tuple[Portion, str]]":
    """Yield translated groups of lines unchanged; at the end, report on standard error lines that lack glossary terms.

    Args:
        glossary: the terms.
        results: the groups of input lines with their translated text.
    """
    tally = TermTally(glossary)
    for portion, text in results:
        yield portion, text
        for position, source, translation in zip(portion.indices, portion.lines, text.split("\n"), strict=False):
            tally.add(position + 1, source, translation)
    sys.stderr.write(localized(f"{tally}\n"))


def _translate_portions(
    options: argparse.Namespace, folders: list[str], job: "LineOptions", portions: "Iterable[Portion]"
) -> "Iterator[tuple[Portion, str]]":
    from transduce.inference.bulk_files import WorkerProcesses, WorkerSettings, translate_portions
    from transduce.machine import detect_machine
    from transduce.model_folder.load import choose_direction, warn_untrained_direction
    from transduce.model_folder.read import read_directions

    if options.workers == 1:
        yield from translate_portions(load_translator(folders, options), job, portions)
        return
    if directions := read_directions(Path(folders[0])):
        pair = choose_direction(directions, options.source_language, options.target_language)
        warn_untrained_direction(directions, *pair)
    loading = translator_arguments(options, folders[0])
    loading["threads"] = max(1, detect_machine(options.device, loading["threads"]).threads // options.workers)
    worker_settings = WorkerSettings(folders=folders, job=job, loading=loading, plugins=tuple(options.plugin))
    with WorkerProcesses(worker_settings, options.workers) as workers:
        yield from workers.translate(portions)


def write_to_file(
    options: argparse.Namespace,
    folders: list[str],
    job: "LineOptions",
    portions: "Iterable[Portion]",
    notes: LineNotes,
    source: str | None,
) -> None:
    """Translate groups of input lines into the file --output, so that an interrupted translation can be resumed.

    If the file is complete already, nothing is done, and a message on standard error says so.

    Args:
        options: the options of `transduce translate`.
        folders: the model folders; several are an ensemble.
        job: what applies to each line.
        portions: the groups of lines; with --resume, those that were translated earlier are skipped.
        notes: has the line end of the input's first line, as soon as that line is read. Output lines get the same end.
        source: path of the input; None: standard input.

    Raises:
        TransduceError: the file is complete, but older than the input.
    """
    from transduce.inference.bulk_files import ResumableFile, skip_lines

    content = identity(options, folders, job)
    with ResumableFile(Path(options.output), options=content, resume=options.resume) as file:
        if file.is_finished:
            _refuse_older_than(source, file.path)
            sys.stderr.write(
                localized(f"{file.path} exists already, so nothing was done: delete it to translate again.\n")
            )
            return
        try:
            if file.progress.lines:
                done, portions = skip_lines(portions, file.progress.lines)
                file.line_end = notes.line_end
                file.skip(done)
                sys.stderr.write(localized(f"Continuing after line {file.progress.lines:,} of {file.partial}.\n"))
            elif options.resume:
                sys.stderr.write(localized("There is nothing to resume, so this starts at the first line.\n"))
            file.open()
            _write(file, translate_with_warnings(options, folders, job, portions), notes)
        except (KeyboardInterrupt, SystemExit):
            sys.stderr.write(localized(f"{_describe_interruption(file)}\n"))
            raise


def _refuse_older_than(source: str | None, output: Path) -> None:
    """Raise an error if a complete output is older than its input, and so is no translation of the present input.

    Args:
        source: path of the input; None: standard input, whose age is not known.
        output: the output.

    Raises:
        TransduceError: the input has changed since the output was written.
    """
    if source is not None and Path(source).is_file() and Path(source).stat().st_mtime > output.stat().st_mtime:
        raise TransduceError(
            f"{output} is complete, but older than {source}: delete it, or leave --resume out, to translate again."
        )


def _describe_interruption(file: "ResumableFile") -> str:
    """Return a sentence about an interrupted translation: how many lines are finished, and how to continue."""
    lines = file.progress.lines
    return (
        f"Finished: {count_noun(lines, 'line')}, in {file.partial}. Continue with the same command and --resume."
        if lines
        else f"No line of {file.path} was finished, so it starts at the first line next time."
    )


def _write(file: "ResumableFile", translated: "Iterable[tuple[Portion, str]]", notes: LineNotes) -> None:
    """Append translated groups of lines to an open output file, report the progress now and then, and finish the file.

    Args:
        file: the file.
        translated: the groups of input lines with their translated text.
        notes: has the line end of the input's first line. Output lines get the same end.
    """
    from transduce.inference.bulk_files import ReportClock

    clock, before = ReportClock(), file.progress.lines
    for portion, text in translated:
        file.line_end = notes.line_end
        file.append(portion.lines, text)
        if clock.is_due():
            rate = (file.progress.lines - before) / clock.elapsed_seconds
            lines = count_noun(file.progress.lines, "line")
            sys.stderr.write(localized(f"{lines}, {rate:,.{0 if rate >= 10 else 1}f} a second\n"))
    file.finish()
    lines = count_noun(file.progress.lines, "line")
    sys.stderr.write(localized(f"{lines} in {file.path}, {clock.elapsed_seconds:.1f} s\n"))


def identity(options: argparse.Namespace, folders: list[str], job: "LineOptions") -> bytes:
    """Return bytes that represent all models and options that determine the translation of a line.

    An interrupted translation is resumed only if these bytes are the same as when it started.

    Args:
        options: the options of `transduce translate`.
        folders: the model folders, whose files are read.
        job: what applies to each line.
    """
    from transduce.model_folder.load import read_max_source_tokens
    from transduce.search.settings import EARLIER_DEFAULTS

    models = [_digests(Path(folder)) for folder in folders if Path(folder).is_dir()]
    phrases = options.phrases
    if phrases and not is_special_file(Path(phrases)):  # a pipe can be read only once
        phrases = file_sha256(Path(phrases))
    languages = (options.source_language, options.target_language, *([options.tag] if options.tag else []))
    max_source_tokens = [read_max_source_tokens(Path(folder)) for folder in folders]
    datastore = file_sha256(Path(options.datastore)) if options.datastore else None
    stored = msgspec.to_builtins(job)
    if job.search.diverse_groups == 1:
        stored["search"] |= EARLIER_DEFAULTS  # without effect, so that interruptions of earlier versions are resumed
    return msgspec.json.encode(
        (models, stored, options.shard, options.precision, phrases, languages, max_source_tokens, datastore)
    )


def _digests(folder: Path) -> list[str]:
    """Return a list of SHA-256 digests that identify the model in a folder.

    The list has the digest of the manifest. Without a manifest, it has the digests of all files.
    """
    from transduce.model_folder.read import MANIFEST

    manifest = folder / MANIFEST
    files = [manifest] if manifest.is_file() else sorted(path for path in folder.iterdir() if path.is_file())
    return [file_sha256(path) for path in files]


@contextlib.contextmanager
def open_device(path: str) -> Iterator[io.TextIOWrapper]:
    """Open a device such as /dev/stdout in a `with` block, to write UTF-8 text with line feeds in any locale."""
    with name_path_in_errors(path), Path(path).open("w", encoding="utf-8", errors="replace", newline="\n") as device:
        yield device


def prompt(translator: "Translator", output: io.TextIOWrapper, job: "LineOptions") -> None:
    """Translate sentences that a user types at a prompt, until an empty line or the end of the input.

    A single translation is printed while it is generated; several alternatives, and re-decoded ones, when they are
    complete.

    Args:
        translator: the model.
        output: where translations are written.
        job: what applies to each sentence: search settings, required text, glossary.
    """
    from transduce.inference.quality_estimation import describe_wrong_language
    from transduce.inference.redecoding import redecode

    shared: dict[str, Any] = {name: getattr(job, name) for name in ("prefix", "glossary", "text_settings")}
    languages = f"{translator.source_language or 'source'} → {translator.target_language or 'target'}"
    sys.stderr.write(localized(f"{languages}. Type a sentence; an empty line ends.\n"))
    for sentence in typed_lines():
        wrong = describe_wrong_language(sentence, translator.source_language)
        if wrong is not None:
            sys.stderr.write(localized(f"warning: this {wrong}.\n"))
        if job.search.n_best == 1 and not job.redecode:
            for text in translator.stream(sentence, job.search, phrases=job.phrases, **shared):
                output.write(text)
                output.flush()
            output.write("\n")
        else:
            results = translator(sentence, search=job.search, phrases=job.phrases, **shared)
            if job.redecode:
                (results,) = redecode(translator, [results], job.search, phrases=[job.phrases], **shared)
            output.write("".join(f"{alternative.text}\n" for alternative in results.alternatives))
        output.flush()
