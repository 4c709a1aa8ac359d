"""`transduce embed MODEL FILE --out vectors.npy`: write a vector for each line of text, with an encoder."""

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from transduce.atomic_io import name_path_in_errors, open_atomically
from transduce.commands.options import add_computing, check_writable, file_or_stream
from transduce.commands.translate import stdin_lines
from transduce.errors import TransduceError
from transduce.text.files import read_lines
from transduce.ui_language import localized

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transduce.inference.embedder import Embedder

    _Block = tuple[list[str], NDArray[np.float32], int]

_LINES_AT_A_TIME = 1_024
_FORMATS = {".npy": "npy", ".jsonl": "jsonl"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce embed`."""
    add = parser.add_argument
    add("model", help="the folder of an encoder: a model of sentence-transformers, or any other BERT")
    add("text", nargs="?", metavar="FILE", type=file_or_stream, help="texts, one per line (default: standard input)")
    add("--out", metavar="FILE", required=True, help="vectors.npy: one float32 array; vectors.jsonl: JSON lines")
    add(
        "--pooling", choices=("mean", "max", "first"), help="how token states become one vector (default: the folder's)"
    )
    add(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="divide each vector by its norm, so that dot products are cosines (default: as the folder specifies)",
    )
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Write the vectors of all lines, and report their number and that of truncated lines."""
    from transduce.inference.embedder import load_embedder

    path, kind = Path(options.out), _FORMATS.get(Path(options.out).suffix)
    if kind is None:
        raise TransduceError(f"`--out` must end in .npy or .jsonl, which sets the format, but is `{options.out}`.")
    check_writable(options.out, inputs=[options.model, options.text])
    embedder = load_embedder(
        options.model,
        precision=options.precision,
        device=options.device,
        threads=options.threads,
        pooling=options.pooling,
        normalizes=options.normalize,
    )
    lines = read_lines(options.text) if options.text else stdin_lines()
    write = _write_npy if kind == "npy" else _write_json_lines
    with name_path_in_errors(path), open_atomically(path) as file:
        count, cut = write(file, _embedded(embedder, lines), embedder.model.config.d_model)
    sys.stderr.write(localized(f"{path}: {count:,} vectors of {embedder.model.config.d_model} numbers\n"))
    if cut:
        sys.stderr.write(
            localized(f"texts of which the model reads only the first {embedder.length:,} tokens: {cut:,}\n")
        )
    return 0


def _embedded(embedder: "Embedder", lines: Iterable[str]) -> "Iterator[_Block]":
    """Yield some lines at a time, with their vectors, float32 (B, D), and the number of truncated ones."""
    waiting = iter(lines)
    while block := list(itertools.islice(waiting, _LINES_AT_A_TIME)):
        whole = embedder.tokenizer.source.encode_batch(block)
        rows = embedder.frame(whole)
        cut = sum(len(row) < len(ids) + 2 for row, ids in zip(rows, whole, strict=True))  # with [CLS] and [SEP]
        yield block, embedder.vectors(rows).numpy(), cut


def _write_npy(file: BinaryIO, blocks: "Iterable[_Block]", width: int) -> tuple[int, int]:
    """Write one array (N, D) in NumPy's format; return N and the number of truncated texts."""
    count = cut = 0
    _write_header(file, (0, width))
    for _, vectors, cut_here in blocks:
        file.write(vectors.tobytes())
        count, cut = count + len(vectors), cut + cut_here
    if file.seekable():
        file.seek(0)
        _write_header(file, (count, width))
    elif count:
        raise TransduceError("An .npy file begins with the number of its rows: name a regular file, or use .jsonl.")
    return count, cut


def _write_header(file: BinaryIO, shape: tuple[int, int]) -> None:
    """Write the header of an array; NumPy pads it, so that its length does not depend on the number of rows."""
    import numpy as np

    header = {"descr": np.lib.format.dtype_to_descr(np.dtype("<f4")), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _write_json_lines(file: BinaryIO, blocks: "Iterable[_Block]", width: int) -> tuple[int, int]:  # noqa: ARG001
    """Write a JSON object with a text and its vector for each line; return the numbers of lines and of truncated ones.

    Nine digits identify a float32.
    """
    count = cut = 0
    for texts, vectors, cut_here in blocks:
        for text, vector in zip(texts, vectors.tolist(), strict=True):
            numbers = ",".join(f"{number:.9g}" for number in vector)
            file.write(b'{"text":' + msgspec.json.encode(text) + f',"vector":[{numbers}]}}\n'.encode())
        count, cut = count + len(texts), cut + cut_here
    return count, cut
