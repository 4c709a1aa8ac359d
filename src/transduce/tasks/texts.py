"""Files of text alone as tasks read them: line by line. Of JSON lines, the texts are written out first."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from transduce.durable import replace_file
from transduce.errors import TransduceError
from transduce.tasks.settings import DataSettings
from transduce.text.corpus import Format, format_of, read_texts


def write_texts(data: DataSettings, folder: Path, *, anew: bool) -> DataSettings:
    """The same with the lines of texts in place of files of JSON lines, of which each text has one or several.

    Args:
        data: where the text is. Training text that was prepared ahead is not written again.
        folder: of the files that are written.
        anew: whether a run begins. One that goes on reads its dev text alone.

    Raises:
        TransduceError: a file has columns, or is not JSON lines of texts.
    """
    source, dev = data.source, data.dev_source
    if anew and data.prepared is None:
        source = tuple(_lines_of(path, data.format, folder / f"text-{n}.txt") for n, path in enumerate(source, 1))
    dev = tuple(_lines_of(path, data.format, folder / f"dev-text-{n}.txt", anew=anew) for n, path in enumerate(dev, 1))
    return msgspec.structs.replace(data, source=source, dev_source=dev, format="lines")


def holds_texts(path: str, chosen: Format) -> bool:
    """Whether a file is JSON lines of texts; otherwise it is text, line by line.

    Raises:
        TransduceError: it has columns.
    """
    found = format_of(path, chosen)
    if found == "tsv":
        raise TransduceError(
            f"{path} has columns, but this task learns from text alone: write one out (cut -f1 {path} > text.txt), or "
            "say `--set data.format=lines` if its lines are the text."
        )
    return found == "jsonl"


def _lines_of(path: str, chosen: Format, out: Path, *, anew: bool = True) -> str:
    """Where a file's text stands line by line."""
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
            # A line feed at a text's end ends its last line, as in a file.
            file.writelines(text.removesuffix("\n").encode() + b"\n" for text in texts)
        replace_file(partial, out)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
