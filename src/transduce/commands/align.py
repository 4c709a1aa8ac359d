"""`transduce align MODEL --source F --target F`: align the words of sentence pairs."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.atomic_io import write_file
from transduce.commands.options import add_computing, add_languages, check_writable, load_translator, read_aligned_lines
from transduce.errors import TransduceError, count_noun
from transduce.text.files import read_lines
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inspection.alignment import Links, SplitSentencePair


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce align` in its argparse parser."""
    add = parser.add_argument
    add("model", help="a model folder")
    add("--source", required=True, metavar="FILE", help="sentences, one per line")
    add("--target", required=True, metavar="FILE", help="their translations, one per line")
    add(
        "--source-words",
        metavar="FILE",
        help="the source sentences with a space after each word (default: split at spaces, and into characters in "
        "scripts without spaces)",
    )
    add("--target-words", metavar="FILE", help="the translations with a space after each word (same default)")
    heads = parser.add_argument_group("choice of attention heads").add_argument
    heads("--heads", metavar="FILE", help="heads that were chosen for this model with --learn")
    heads(
        "--learn",
        metavar="FILE",
        help="choose heads by the alignments of --known and write them here; a hundred lines suffice. Without --known: "
        "learn from these lines alone which heads align and which words translate each other",
    )
    heads(
        "--known",
        metavar="FILE",
        help="reference alignments of these lines, as `0-0 1-2`: to choose heads with --learn, otherwise to compare",
    )
    add_languages(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> None:
    """Print the word links of each sentence pair as `source-target`, counted from 0.

    With --known, the alignment error rate is printed too. With --learn, attention heads or word statistics are written
    to a file instead.
    """
    from transduce.inspection.alignment import (
        ReferenceAlignment,
        align_pairs,
        alignment_error,
        choose_heads,
        learn_word_statistics,
        read_heads,
    )

    if options.learn is not None and options.heads is not None:
        raise TransduceError("`--learn` chooses heads, and --heads names chosen ones: pass one of them.")
    read = [options.model, options.source, options.target, options.source_words, options.target_words]
    check_writable(options.learn, inputs=[*read, options.known])
    heads = None if options.heads is None else read_heads(Path(options.heads))
    pairs = list(_read_pairs(options))
    references = None if options.known is None else [parse_links(*line) for line in _numbered(options.known)]
    if references is not None and len(references) != len(pairs):
        raise TransduceError(
            f"Every pair needs its reference alignment on the same line, but {options.known} has "
            f"{count_noun(len(references), 'line')} for {count_noun(len(pairs), 'pair')}: use files with equally many "
            "lines."
        )
    translator = load_translator(options.model, options)
    if options.learn is not None:
        learned: msgspec.Struct
        if references is None:
            learned = learn_word_statistics(translator, pairs)
            message = f"The word statistics of {count_noun(len(pairs), 'pair')} are in {options.learn}.\n"
        else:
            learned = choose_heads(
                translator, [ReferenceAlignment(*each) for each in zip(pairs, references, strict=True)]
            )
            message = f"The heads, chosen by {len(pairs):,} alignments, are in {options.learn}.\n"
        write_file(Path(options.learn), msgspec.json.encode(learned) + b"\n")
        sys.stderr.write(localized(message))
        return
    predicted = []
    for links in align_pairs(translator, pairs, heads):
        predicted.append(links)
        sys.stdout.buffer.write(f"{format_links(links)}\n".encode())
    sys.stdout.buffer.flush()
    if references is not None:
        sys.stderr.write(localized(f"alignment error rate {100 * alignment_error(predicted, references):.1f} %\n"))


def parse_links(location: str, line: str) -> "Links":
    """Return the word links in a line such as `0-0 1-2 2-1`, as a set of pairs; words are counted from 0.

    Args:
        location: name of the line in error messages.
        line: the line; a blank one has no links.

    Returns:
        A set of pairs (source word, target word).

    Raises:
        TransduceError: a part of the line is not a link.
    """
    links = []
    for link in line.split():
        source, dash, target = link.partition("-")
        if not (dash and source.isdecimal() and target.isdecimal()):
            raise TransduceError(
                f"A link is written `0-2`, source word first, but {location} says `{link}`: correct it."
            )
        links.append((int(source), int(target)))
    return frozenset(links)


def format_links(links: "Links") -> str:
    """Return the word links of a sentence pair as a line such as `0-0 1-2 2-1`, sorted by source and target word."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def _read_pairs(options: argparse.Namespace) -> "Iterator[SplitSentencePair]":
    from transduce.inspection.alignment import word_pair

    files = [options.source, options.target, options.source_words, options.target_words]
    lines = iter(read_aligned_lines(*(file for file in files if file is not None)))
    columns: list[Iterable[str | None]] = [repeat(None) if file is None else next(lines) for file in files]
    named = " and ".join(file for file in files[2:] if file is not None)
    is_document = False  # empty lines separate the documents of models that read context
    for number, (source, target, source_words, target_words) in enumerate(zip(*columns, strict=False), 1):
        try:
            pair = word_pair(source or "", target or "", _split(source_words), _split(target_words))
        except TransduceError as error:
            raise TransduceError(f"{named}, line {number:,}: {error}") from error
        has_text = bool(pair.source.strip())
        yield msgspec.structs.replace(pair, continues=is_document and has_text)
        is_document = has_text


def _split(words: str | None) -> list[str] | None:
    return None if words is None else words.split()


def _numbered(path: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), 1):
        yield f"{path}, line {number},", line
