"""`transduce doctor MODEL_OR_SETTINGS`, `transduce doctor --source F --target F`, or both."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from transduce.commands.options import add_place, check_writable, write_report
from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.inspection.corpus_doctor import CorpusReport, examine_corpus
from transduce.inspection.corpus_doctor.page import html_page
from transduce.inspection.doctor import DoctorReport, examine
from transduce.inspection.doctor.place import open_subject
from transduce.runtime.machine import detect_machine
from transduce.text.corpus import format_of

if TYPE_CHECKING:
    from transduce.text.tokenizer import Tokenizer


class _Both(msgspec.Struct, frozen=True):
    """A model and the corpus that it is to be trained on."""

    model: DoctorReport
    corpus: CorpusReport

    def __str__(self) -> str:
        return f"{self.model}\n\n{self.corpus}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.formatter_class = argparse.HelpFormatter
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="a model folder, or a settings file of `transduce train`")
    add("--source", nargs="+", metavar="FILE", help="source text, a sentence a line, plain or gzip; or files of pairs")
    add("--target", nargs="+", metavar="FILE", help="target text, line by line")
    add("--test-source", nargs="+", default=[], metavar="FILE", help="the test set, to find its sentences in the text")
    add("--test-target", nargs="+", default=[], metavar="FILE", help="the test set's target side")
    add("--languages", nargs=2, metavar=("SOURCE", "TARGET"), help="codes, where JSON lines have them for keys")
    add("--json", metavar="PATH", help="write the report as JSON; - for standard output")
    add("--html", metavar="PATH", help="write the corpus' page as HTML")
    add_place(parser)  # it examines in float64, whatever the model computes in elsewhere


def run(options: argparse.Namespace) -> int:
    """Prints the report; 0 where nothing failed, else 1."""
    _check_options(options)
    read = [options.model, options.source, options.target, options.test_source, options.test_target]
    check_writable(options.html, report=options.json, inputs=read)
    machine = detect_machine(options.device, options.threads)
    torch.set_num_threads(machine.threads)
    model = examine(open_subject(Path(options.model), machine.device)) if options.model else None
    corpus = _examine_corpus(options) if options.source else None
    if corpus is not None and options.html:
        write_file(Path(options.html), html_page(corpus).encode())
    report: msgspec.Struct | None = _Both(model, corpus) if model and corpus else model or corpus
    assert report is not None
    write_report(report, options.json)
    return int(not all(part.passed for part in (model, corpus) if part is not None))


def _check_options(options: argparse.Namespace) -> None:
    if not options.model and not options.source:
        raise TransduceError(
            "The doctor needs a model, a settings file, or text: name one, or give --source and --target."
        )
    for one, other in (("source", "target"), ("test_source", "test_target")):
        sources, targets = getattr(options, one), getattr(options, other)
        are_pairs = bool(sources) and not targets and all(map(_holds_pairs, sources))
        if bool(sources) != bool(targets) and not are_pairs:
            names = [name.replace("_", "-") for name in (one, other)]
            raise TransduceError(f"--{names[0]} and --{names[1]} belong together: give both.")
    if options.test_source and not options.source:
        raise TransduceError("--test-source is looked for in the training text: give --source and --target too.")
    if options.html and not options.source:
        raise TransduceError("--html is the page of a corpus: give --source and --target too.")


def _holds_pairs(path: str) -> bool:
    return format_of(path, "auto") != "lines"


def _examine_corpus(options: argparse.Namespace) -> CorpusReport:
    sys.stderr.write("Looking through the text; this takes about a minute for 150,000 pairs.\n")
    return examine_corpus(
        options.source,
        options.target or (),
        test_source=options.test_source,
        test_target=options.test_target,
        languages=None if options.languages is None else (options.languages[0], options.languages[1]),
        tokenizer=_tokenizer(options.model),
    )


def _tokenizer(model: str | None) -> "Tokenizer | None":
    """The model's, where it is a folder."""
    from transduce.runtime.folder import read_model_folder

    return read_model_folder(Path(model)).tokenizer if model and Path(model).is_dir() else None
