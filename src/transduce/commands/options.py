"""Options that several verbs share."""

import argparse
import sys
from pathlib import Path

import msgspec

from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.runtime.translator import Translator, load
from transduce.search.settings import SearchSettings


def add_computing(parser: argparse.ArgumentParser) -> None:
    """Where and how to compute: --device, --threads, --precision."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: the GPU where there is one")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads to compute with; all cores where nothing is said"
    )
    parser.add_argument(
        "--precision",
        default="auto",
        choices=("auto", "fp32", "bf16"),
        help="auto: bf16 where the hardware multiplies it faster",
    )


def add_search(parser: argparse.ArgumentParser) -> None:
    """How to search: --beam-size, --length-penalty, --max-length, --min-length, --no-repeated-ngrams."""
    parser.add_argument(
        "--beam-size", type=int, default=4, metavar="N", help="hypotheses kept at each step; 1 is greedy"
    )
    parser.add_argument(
        "--length-penalty", type=float, default=0.6, metavar="ALPHA", help="greater favours longer output"
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="at most so many new pieces; source pieces + 50 where nothing is said",
    )
    parser.add_argument("--min-length", type=int, default=0, metavar="N", help="at least so many new pieces")
    parser.add_argument(
        "--no-repeated-ngrams", type=int, default=0, metavar="N", help="no run of N pieces comes twice; 0: it may"
    )


def add_scoring(parser: argparse.ArgumentParser) -> None:
    """How to score: --tokenize, --lowercase."""
    parser.add_argument(
        "--tokenize",
        metavar="NAME",
        help="sacreBLEU's tokenizer; the one that fits the target language where nothing is said",
    )
    parser.add_argument("--lowercase", action="store_true", help="score without regard to case")


def load_translator(folder: str, options: argparse.Namespace) -> Translator:
    """The model of a folder, by the options of `add_computing`."""
    return load(folder, precision=options.precision, device=options.device, threads=options.threads)


def search_settings(options: argparse.Namespace, *, n_best: int = 1) -> SearchSettings:
    """The options of `add_search`.

    Raises:
        TransduceError: one is out of its range, which is better said before a model is loaded.
    """
    return SearchSettings(
        beam_size=options.beam_size,
        length_penalty=options.length_penalty,
        n_best=n_best,
        max_length=options.max_length,
        min_length=options.min_length,
        no_repeated_ngrams=options.no_repeated_ngrams,
    )


def decoding_record(search: SearchSettings, precision: str) -> dict[str, str | int | float | bool]:
    """What a score must be accompanied by: how its translations were found."""
    said = {"max_length": search.max_length, "min_length": search.min_length}
    said["no_repeated_ngrams"] = search.no_repeated_ngrams
    unusual = {name: value for name, value in said.items() if value}
    return {"beam_size": search.beam_size, "length_penalty": search.length_penalty} | unusual | {"precision": precision}


def check_writable(*paths: str | None) -> None:
    """Refuses, before any work is done, what could not be written after it.

    Raises:
        TransduceError: the folder of one is missing, or it is a folder itself.
    """
    for path in map(Path, filter(None, paths)):
        if not path.parent.is_dir():
            raise TransduceError(f"{path} cannot be written: there is no folder {path.parent}.")
        if path.is_dir():
            raise TransduceError(f"{path} cannot be written: it is a folder.")


def write_report(report: msgspec.Struct, json_path: str | None) -> None:
    """Prints a report for people, and writes it as JSON where a path is given; `-` is standard output."""
    content = msgspec.json.format(msgspec.json.encode(report)).decode() + "\n"
    if json_path == "-":
        sys.stdout.buffer.write(content.encode())
        sys.stdout.buffer.flush()
        return
    if json_path is not None:
        write_file(Path(json_path), content.encode())
    sys.stdout.buffer.write(f"{report}\n".encode())
    sys.stdout.buffer.flush()
