"""Read files of text only, line by line; the texts of JSON-lines files are first written to text files."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from transduce.durable import replace_file
from transduce.errors import TransduceError
from transduce.tasks.settings import DataSettings
from transduce.text.corpus import Format, format_of, read_texts


def write_texts(data: DataSettings, folder: Path, *, anew: bool) -> DataSettings:
    """Write the texts of JSON-lines files to text files, and return settings that name these files.

    Args:
        data: names the files. Training text of a prepared corpus is not written again.
        folder: folder of the written files.
        anew: True for a new run; a resumed run reads only its dev text.

    Raises:
        TransduceError: a file has columns, or is not JSON lines of texts.
    """
    source, dev = data.source, data.dev_source
    if anew and data.prepared is None:
        source = tuple(_lines_of(path, data.format, folder / f"text-{n}.txt") for n, path in enumerate(source, 1))
    dev = tuple(_lines_of(path, data.format, folder / f"dev-text-{n}.txt", anew=anew) for n, path in enumerate(dev, 1))
    return msgspec.structs.replace(data, source=source, dev_source=dev, format="lines")


def holds_texts(path: str, chosen: Format) -> bool:
    """Return whether a file is JSON lines of texts; otherwise, it is text line by line.

    Raises:
        TransduceError: the file has columns.
    """
    file_format = format_of(path, chosen)
    if file_format == "tsv":
        raise TransduceError(
            f"{path} has columns, but this task learns from text only: extract one (cut -f1 {path} > text.txt), or "
            "use `--set data.format=lines` if its lines are the text."
        )
    return file_format == "jsonl"


def _lines_of(path: str, chosen: Format, out: Path, *, anew: bool = True) -> str:
    """Return the path of a file's text, one line per text line."""
    if not holds_texts(path, chosen):
        return path
    if anew or not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        _write(read_texts(path), out)
    return str(out)


def _write(texts: Iterable[str], out: Path) -> None:
    partial = out.with_name(f".partial-{out.name}")
    try:
        with partial.open("wb") as file:
            file.writelines(text.removesuffix("\n").encode() + b"\n" for text in texts)
        replace_file(partial, out)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
