"""Commands that check an installation, a model and its folder, a corpus, and whether runs resume exactly."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.atomic_io import write_file
from transduce.commands.options import (
    add_computing,
    add_device,
    add_json,
    add_settings,
    check_writable,
    loading_options,
    option_of,
    page_file,
    write_report,
)
from transduce.commands.train import add_run, run_request
from transduce.errors import TransduceError
from transduce.text.corpus import format_of
from transduce.text.files import is_spreadsheet, spreadsheet_error
from transduce.text.pair_files import table_format
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inspection.corpus_doctor import CorpusReport
    from transduce.inspection.doctor import DoctorReport
    from transduce.text.tokenizer import Tokenizer


def add_check_install_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce check-install` in its argparse parser."""
    add = parser.add_argument
    add("model", nargs="?", help="a model folder: show what decodes this model, and why faster backends do not")
    add_json(add)
    add_computing(parser)


def run_check_install(options: argparse.Namespace) -> None:
    """Print a report on the installation (versions, hardware, extras, backends), and on a model if one is named."""
    from transduce.inspection.installation import check_install

    check_writable(report=options.json, inputs=[options.model])
    report = check_install(options.model, **loading_options(options))
    write_report(report, options.json)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce verify` in its argparse parser."""
    parser.add_argument("folder", help="a model folder of `transduce train` or `transduce import`")
    add_json(parser.add_argument)


def run_verify(options: argparse.Namespace) -> None:
    """Compare every byte of a model folder with its manifest, and print what was checked."""
    from transduce.model_folder.upkeep import verify

    check_writable(report=options.json, inputs=[options.folder])
    write_report(verify(options.folder), options.json)


def add_verify_resume_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce verify-resume`: the options of `transduce train` that define a run."""
    add_run(parser)
    add_json(parser.add_argument)


def run_verify_resume(options: argparse.Namespace) -> int:
    """Test that a killed and resumed training run ends exactly like an uninterrupted one, and print a report.

    Return 0 if both runs end equally, otherwise 1.
    """
    from transduce.tasks.run.verification import verify_resume

    read = [options.settings, options.source, options.target, options.dev_source, options.dev_target]
    check_writable(report=options.json, inputs=read)
    report = verify_resume(run_request(options, Path()))
    write_report(report, options.json)
    return 0 if report.equal else 1


# --- doctor ---


class _ModelAndCorpusReport(msgspec.Struct, frozen=True):
    """The reports of `transduce doctor` on a model and on its training corpus, for one JSON file."""

    model: "DoctorReport"
    corpus: "CorpusReport"

    def __str__(self) -> str:
        return f"{self.model}\n\n{self.corpus}"


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce doctor` in its argparse parser."""
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="a model folder, or a settings file of `transduce train`")
    add_json(add)
    corpus = parser.add_argument_group("corpus").add_argument
    corpus(
        "--source",
        nargs="+",
        metavar="FILE",
        help="source text, one sentence per line, plain or compressed; or files of pairs",
    )
    corpus("--target", nargs="+", metavar="FILE", help="target text, line by line")
    corpus(
        "--test-source",
        nargs="+",
        default=[],
        metavar="FILE",
        help="test set, whose sentences are searched in the text",
    )
    corpus("--test-target", nargs="+", default=[], metavar="FILE", help="target side of the test set")
    corpus(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="language codes, if columns or fields of pairs are named after them",
    )
    add_settings(corpus, "columns")
    corpus("--html", metavar="PATH", type=page_file, help="write the report on the corpus as an HTML page")
    add_device(parser)  # no --precision: the doctor computes in float64


def run_doctor(options: argparse.Namespace) -> int:
    """Print the report on a model, a corpus or both; return 0 if every check passed, otherwise 1."""
    import torch

    from transduce.inspection.corpus_doctor.report import html_page
    from transduce.inspection.doctor import examine
    from transduce.inspection.doctor.transduce_models import subject_from_path
    from transduce.machine import detect_machine

    _check_options(options)
    read = [options.model, options.source, options.target, options.test_source, options.test_target]
    check_writable(options.html, report=options.json, inputs=read)
    machine = detect_machine(options.device, options.threads)
    torch.set_num_threads(machine.threads)
    model = examine(subject_from_path(Path(options.model), machine.device)) if options.model else None
    corpus = _examine_corpus(options) if options.source else None
    if corpus is not None and options.html:
        write_file(Path(options.html), html_page(corpus).encode())
    report: msgspec.Struct | None = _ModelAndCorpusReport(model, corpus) if model and corpus else model or corpus
    assert report is not None
    write_report(report, options.json)
    return int(not all(part.passed for part in (model, corpus) if part is not None))


def _check_options(options: argparse.Namespace) -> None:
    if not options.model and not options.source:
        raise TransduceError(
            "The doctor needs a model, a settings file, or text: name one, or pass --source and --target."
        )
    for one, other in (("source", "target"), ("test_source", "test_target")):
        sources, targets = getattr(options, one), getattr(options, other)
        are_pairs = bool(sources) and not targets and all(map(_holds_pairs, sources))
        if bool(sources) != bool(targets) and not are_pairs:
            raise TransduceError(
                f"{option_of(one)} and {option_of(other)} belong together: pass both, or files of pairs such as .tsv "
                "and .csv."
            )
    if options.test_source and not options.source:
        raise TransduceError("--test-source is searched in the training text: pass --source and --target too.")
    if options.html and not options.source:
        raise TransduceError("--html writes the report on a corpus: pass --source and --target too.")


def _holds_pairs(path: str) -> bool:
    """Return whether a file contains sentence pairs, judged by its name; True for `-` (standard input).

    Raises:
        TransduceError: the file is a spreadsheet.
    """
    if is_spreadsheet(path):
        raise spreadsheet_error(path)
    return path == "-" or table_format(path) is not None or format_of(path, "auto") != "lines"


def _examine_corpus(options: argparse.Namespace) -> "CorpusReport":
    from transduce.inspection.corpus_doctor import examine_corpus

    sys.stderr.write(localized("Examining the text; this takes about half a minute for 150,000 pairs.\n"))
    return examine_corpus(
        options.source,
        options.target or (),
        test_source=options.test_source,
        test_target=options.test_target,
        languages=None if options.languages is None else (options.languages[0], options.languages[1]),
        columns=None if options.columns is None else (options.columns[0], options.columns[1]),
        tokenizer=_tokenizer(options.model),
    )


def _tokenizer(model: str | None) -> "Tokenizer | None":
    """Return the tokenizer in a model folder; None if `model` is not a folder.

    Instead of a folder, `model` may be None or the path of a settings file.
    """
    from transduce.model_folder.read import read_model_folder

    return read_model_folder(Path(model)).tokenizer if model and Path(model).is_dir() else None
