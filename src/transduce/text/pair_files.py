"""Read sentence pairs from CSV, Parquet, Arrow, Hugging Face datasets, TMX, and Python objects.

Each reader yields pairs of texts, which training first writes to JSON lines. Optional packages are imported on use.
"""

import csv
import io
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple
from xml.etree import ElementTree

import msgspec

from transduce.errors import (
    TransduceError,
    count_noun,
    import_extra,
    near_name,
    not_utf8,
    shown_names,
    warn,
    with_half_width_hint,
)
from transduce.text.corpus import (
    USUAL_COLUMNS,
    Format,
    as_label,
    column_language,
    find_layout,
    format_of,
    is_header,
    parse_weight,
    read_record,
)
from transduce.text.files import is_decodable, missing_file, open_uncompressed, read_lines, uncompressed_name
from transduce.text.languages import is_same_language, short_code

TableFormat = Literal["csv", "tsv", "jsonl", "parquet", "arrow", "datasets", "tmx"]
_FORMAT_OF_SUFFIX: dict[str, TableFormat] = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".tmx": "tmx",
}
_ROWS = 10_000  # read at a time
_BLANK_LINE = object()
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_INLINE_CODES = ("bpt", "ept", "it", "ph", "ut")  # TMX: the content of these elements is markup of another program


class Columns(NamedTuple):
    """The columns of a table that hold texts, weights and document names; for TMX, the languages."""

    names: tuple[str, str] | None = None
    """The columns of source and target, a pair; None: found among the languages' codes and usual names such as
    `source`.
    """
    languages: tuple[str, str] | None = None
    """The codes of source and target language, a pair; None: they are not known."""
    report: Callable[[tuple[str, str]], object] = tuple
    """A function that is called with the pair of columns (or of languages, for TMX) that were found; by default it does
    nothing.
    """
    weight: str | None = None
    """The name of the column that holds the weight of each pair in the loss; None: pairs have no weights."""
    document: str | None = None
    """The name of the column that names the document of each pair; None: documents have no names."""

    def check_more(self, names: Sequence[str], where: str) -> None:
        """Check that a table has the weight and document columns that are set.

        Args:
            names: the names of the table's columns.
            where: the name of the file or argument, for messages.

        Raises:
            TransduceError: the table lacks one of the columns.
        """
        for name, option in ((self.weight, "weight"), (self.document, "document")):
            if name is not None and name not in names:
                raise TransduceError(
                    f"{where} has no column {name!r}, but {_listed(names)}: correct --{option}-column "
                    f"(`data.{option}_column`)."
                )

    def more(self, row: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the values of a row's weight and document columns, a dict by column name.

        Columns that are not set are left out; a missing document name becomes an empty text.

        Raises:
            TransduceError: the weight is missing, or not a number of at least 0; the message begins with `where`.
        """
        values: dict[str, Any] = {}
        if self.document is not None:
            values[self.document] = str(row.get(self.document, ""))
        if self.weight is not None:
            values[self.weight] = parse_weight(row.get(self.weight), self.weight, where)
        return values


class PairRow(NamedTuple):
    """A source and a target text, with the values of their row's weight and document columns by column name."""

    source: str
    target: str
    more: Mapping[str, Any] = {}
    number: int = 0
    """The number of the line (CSV, TSV, JSON lines), row or translation unit of the pair in its table, from 1."""


def table_format(path: str, format: Format = "auto", *, has_columns: bool = False) -> TableFormat | None:
    """Return the format of a file of pairs that must be converted to JSON lines.

    The result is a text such as "csv". It is None if the file is read directly.

    Args:
        path: the file, or a folder of a dataset.
        format: the format that is set for all files; "auto": by the file's suffix.
        has_columns: True if the user names columns; then TSV and JSON lines are converted, too.
    """
    if Path(path).is_dir() and any((Path(path) / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return "datasets"
    table = _FORMAT_OF_SUFFIX.get(uncompressed_name(path).suffix.lower()) if format == "auto" else None
    if table is None and has_columns:
        lines = format_of(path, format)
        return lines if lines in ("tsv", "jsonl") else None
    return table


def read_table(path: str, format: TableFormat, columns: Columns) -> Iterator[PairRow]:
    """Yield a `PairRow` for each sentence pair of a file in a format such as CSV, Parquet or TMX.

    Raises:
        TransduceError: the file cannot be read, a package is missing, or no columns or languages fit.
    """
    if format == "tmx":
        columns.check_more((), path)
        yield from _read_tmx(path, columns)
    elif format in ("csv", "tsv"):
        yield from _read_csv(path, columns, delimiter="\t" if format == "tsv" else None)
    else:
        yield from _pairs_of_rows(_read_batches(path, format), columns, path)


def read_objects(pairs: Any, columns: Columns, name: str) -> Iterator[PairRow]:
    """Yield a `PairRow` for each pair in a Python object: an iterable of pairs or mappings, or a table.

    Args:
        pairs: the object; tables are those of pandas, Arrow and datasets.
        columns: which columns or keys hold the texts.
        name: the argument's name, for messages.

    Raises:
        TransduceError: the object is none of these, or no columns fit.
    """
    if isinstance(pairs, str | bytes | Mapping) or not (hasattr(pairs, "__iter__") or hasattr(pairs, "to_batches")):
        splits = f": choose one of its parts {list(pairs)}" if isinstance(pairs, Mapping) else ""
        raise TransduceError(
            f"{name} must be pairs of texts, such as a list of tuples, a table of pandas or Arrow or a "
            f"datasets.Dataset, but is of the type {type(pairs).__name__}{splits}."
        )
    if hasattr(pairs, "to_batches"):  # an Arrow table
        batches: Iterable[Any] = (batch.to_pylist() for batch in pairs.to_batches(max_chunksize=_ROWS))
    elif hasattr(pairs, "itertuples"):  # a DataFrame of pandas
        names = list(map(str, pairs.columns))
        batches = [(dict(zip(names, row, strict=True)) for row in pairs.itertuples(index=False, name=None))]
    elif hasattr(pairs, "features") and hasattr(pairs, "load_from_disk"):  # a Dataset of datasets
        batches = _batches_of_dataset(pairs)
    else:
        batches = [pairs]
    yield from _pairs_of_rows(batches, columns, name)


def _pairs_of_rows(batches: Iterable[Iterable[Any]], columns: Columns, where: str) -> Iterator[PairRow]:
    """Yield a `PairRow` for each row, which is a mapping by column names or a sequence of two texts.

    Blank lines are skipped but counted in row numbers.

    Args:
        batches: the rows, in any number of batches.
        columns: which columns hold the texts.
        where: the name of the file or argument, for messages.

    Raises:
        TransduceError: there is no row, a row has not two texts, or no columns fit.
    """
    keys: tuple[str, str] | None = None
    number = 0
    for batch in batches:
        for row in batch:
            number += 1
            if row is _BLANK_LINE:
                continue
            more: Mapping[str, Any] = {}
            if isinstance(row, Mapping):
                if columns.weight is not None or columns.document is not None:
                    if keys is None:
                        columns.check_more(list(row), where)
                    more = columns.more(row, f"{where}, row {number:,}")
                nested = row.get("translation")
                row = nested if isinstance(nested, Mapping) else row
                if keys is None:
                    keys = find_columns(list(row), columns, where)
                    columns.report(keys)
                values: Sequence[Any] = [row.get(keys[0]), as_label(keys[1], row.get(keys[1]))]
            else:
                columns.check_more((), where)
                row = row.tolist() if hasattr(row, "tolist") else row  # a row of an array of NumPy
                values = row if isinstance(row, Sequence) and not isinstance(row, str) else ()
            if len(values) != 2 or not all(isinstance(value, str) for value in values):
                raise TransduceError(
                    f"{where}, row {number:,}: a pair is two texts, but this one is {str(row)[:80]!r}: fix it, or "
                    "remove it."
                )
            yield PairRow(str(values[0]), str(values[1]), more, number)  # without NumPy's subclass of `str`
    if not number:
        raise TransduceError(f"{where} has no rows, but a corpus needs at least one pair: check it.")


def find_columns(names: Sequence[str], columns: Columns, where: str) -> tuple[str, str]:
    """Return the names of a table's source and target columns, a pair.

    These are the columns that are set. If none are set, the first rule that fits decides: columns named by the
    languages' codes; columns with usual names; columns named by the languages' names; the only two columns.

    Raises:
        TransduceError: the columns that are set do not exist or are the same; or none are set, and no rule fits.
    """
    if columns.names is not None:
        missing = [name for name in columns.names if name not in names]
        if missing:
            near = near_name(missing[0], names, cutoff=0.75)
            raise TransduceError(
                f"{where} has no column {missing[0]!r}, but {_listed(names)}: "
                + (f"did you mean {near!r}? Correct `data.columns`." if near else "correct `data.columns`.")
            )
        if columns.names[0] == columns.names[1]:
            raise TransduceError(
                f"`data.columns` must name the column of the source and that of the target, but names "
                f"{columns.names[0]!r} twice: {where} has {_listed(names)}."
            )
        return columns.names
    names = [name for name in names if name not in (columns.weight, columns.document)]
    for pair in (*([columns.languages] if columns.languages else []), *USUAL_COLUMNS):
        if pair[0] in names and pair[1] in names:
            return pair
    if columns.languages:
        by_language = {column_language(name): name for name in names}
        found = [by_language.get(code.casefold()) for code in columns.languages]
        if found[0] and found[1]:
            return found[0], found[1]
    if len(names) == 2:
        return names[0], names[1]
    message = f"{where} has the columns {_listed(names)}: name those of source and target by `data.columns`."
    is_divided = len(names) == 1 and any(mark in names[0] for mark in "\uff0c\uff1b")
    raise TransduceError(with_half_width_hint(message, names[0] if is_divided else ""))


def column_numbers(chosen: tuple[str, str] | None, names: Sequence[str], where: str) -> tuple[int, int] | None:
    """Return the indices of a table's source and target columns, if the user chose them by number.

    The user counts columns from 1, and the indices count from 0. The result is None if the columns are not chosen by
    number. Numbers that are names of columns count as names.

    Raises:
        TransduceError: the table has no column with such a number.
    """
    if chosen is None or not all(name.isdecimal() for name in chosen) or set(chosen) <= set(names):
        return None
    numbers = int(chosen[0]), int(chosen[1])
    wrong = next((number for number in numbers if not 1 <= number <= len(names)), None)
    if wrong is not None:
        raise TransduceError(
            f"{where} has {count_noun(len(names), 'column')}, but `data.columns` chooses number {wrong}: correct it."
        )
    return numbers[0] - 1, numbers[1] - 1


def names_languages(path: str, ignored: Sequence[str]) -> bool:
    """Return whether the keys of the first JSON object in a file are two languages.

    Keys in `ignored` do not count. If the object has an object `translation`, the keys of `translation` are examined
    instead. The result is False for an empty file.

    Raises:
        TransduceError: the file cannot be read, or its first line that is not blank is no JSON object.
    """
    first = next(((number, line) for number, line in enumerate(read_lines(path), 1) if line.strip()), None)
    if first is None:
        return False
    record = read_record(first[1], f"{path}:{first[0]}")
    nested = record.get("translation")
    names = list(nested) if isinstance(nested, dict) else [name for name in record if name not in ignored]
    return len(names) == 2 and languages_of((str(names[0]), str(names[1]))) is not None


def languages_of(names: tuple[str, str]) -> tuple[str, str] | None:
    """Return the pair of language codes that two column names stand for, or None.

    The result is None for usual names such as src and tgt, for names that are no languages, and for two names of one
    language.
    """
    codes = [name if column_language(name) == name.casefold() else column_language(name) for name in names]
    is_usual = any(name.casefold() in usual for name in names for usual in USUAL_COLUMNS)
    return None if is_usual or codes[0] is None or codes[1] is None or codes[0] == codes[1] else (codes[0], codes[1])


# --- origins ---
# The file of JSON lines that a table is converted to has a file beside it, `NAME.origin`, with a line of JSON, and then
# the number of each pair's line or translation unit in the table, as little-endian uint64. Rows need no numbers.


class ConversionOrigin(msgspec.Struct, frozen=True):
    """The original of a converted file of JSON lines: a table, a stream or a Python object.

    Messages name places in the original.
    """

    name: str
    """The name of the original file or argument."""
    unit: Literal["line", "row", "unit"] = "line"
    """How messages count pairs in the original: by "line", "row", or "unit" (translation unit)."""

    @property
    def header(self) -> bytes:
        """The first line of the file that records an origin: its name and unit, as JSON bytes."""
        return msgspec.json.encode(self) + b"\n"

    def write(self, file: BinaryIO, pairs: Iterable[PairRow]) -> Iterator[PairRow]:
        """Yield sentence pairs unchanged, and write this origin to a binary file on the way.

        The file lies beside the JSON lines with the pairs. It also receives the number of each pair in the original, in
        8 bytes. Rows need no numbers.
        """
        file.write(self.header)
        for pair in pairs:
            if self.unit != "row":
                file.write(struct.pack("<Q", pair.number))
            yield pair


def origin_path(path: str | Path) -> Path:
    """Return the path of the file that records the origin of a file of JSON lines.

    The file exists only if the JSON lines were converted from another format.
    """
    return Path(f"{path}.origin")


def origin_of(path: str, line: int) -> tuple[ConversionOrigin, int]:
    """Return the original of a file, and the number of one of its lines in the original.

    A file that was not converted is its own original.

    Args:
        path: a file of texts or pairs.
        line: number of the line, from 1.

    Returns:
        A `ConversionOrigin` and the number, from 1.
    """
    try:
        with origin_path(path).open("rb") as file:
            origin = msgspec.json.decode(file.readline(), type=ConversionOrigin)
            file.seek(8 * (line - 1), io.SEEK_CUR)
            number = file.read(8)
    except (OSError, msgspec.MsgspecError):
        return ConversionOrigin(path), line
    return origin, struct.unpack("<Q", number)[0] if len(number) == 8 else line


def location_of(path: str, line: int) -> str:
    """Return the location of a text or pair in the file that a user named, as text such as `train.csv:17`.

    Args:
        path: the file that is read, which may have been converted from a table.
        line: number of the line, from 1.
    """
    origin, number = origin_of(path, line)
    return f"{origin.name}:{number}" if origin.unit == "line" else f"{origin.name}, {origin.unit} {number:,}"


def _listed(names: Sequence[str]) -> str:
    return shown_names(map(repr, names), 20)


# --- formats ---


def _read_csv(path: str, columns: Columns, delimiter: str | None) -> Iterator[PairRow]:
    is_plain = delimiter == "\t" and not find_layout(path).is_quoted
    quoting: Literal[0, 3] = csv.QUOTE_NONE if is_plain else csv.QUOTE_MINIMAL
    with open_uncompressed(path, is_text=True) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
        sample = text.readline()
        _check_decodable(sample, f"{path}:1")
        if not sample.strip():
            raise TransduceError(f"{path} is empty, but a table begins with a line of column names: check it.")
        delimiter = delimiter or max(",;\t", key=sample.count)
        names = next(csv.reader([sample], delimiter=delimiter, quoting=quoting), [])
        numbers = column_numbers(columns.names, names, path)
        keys = find_columns(names, columns, path) if numbers is None else (names[numbers[0]], names[numbers[1]])
        has_header = numbers is None or is_header(keys, columns.languages)
        if columns.names is None and not is_header(keys, columns.languages):
            raise TransduceError(
                f"{path} begins with {_listed(names)}, which name neither columns nor languages: name the "
                "columns by `data.columns`, or write a first line such as source,target."
            )
        if has_header:
            columns.report(keys)
        columns.check_more(names if has_header else (), path)
        indices = [names.index(key) for key in keys] if numbers is None else numbers
        rows = csv.reader(text, delimiter=delimiter, quoting=quoting, strict=True)
        if not has_header:
            yield PairRow(keys[0], keys[1], number=1)
        first, last, is_empty = 1, 1, has_header  # lines of a row
        try:
            for row in rows:
                first, last = last + 1, rows.line_num + 1
                if not row:
                    continue
                _check_decodable("".join(row), f"{path}:{first}")
                if len(row) != len(names):
                    raise TransduceError(
                        f"{path}:{first}: a row needs {len(names)} columns as the header has, but this one has "
                        f"{len(row)}: fix it."
                    )
                more = columns.more(dict(zip(names, row, strict=True)), f"{path}:{first}")
                is_empty = False
                yield PairRow(row[indices[0]], row[indices[1]], more, first)
        except csv.Error as error:
            raise TransduceError(
                f"{path}:{rows.line_num + 1}: this is no row of a table with the delimiter {delimiter!r} ({error}): "
                "fix it."
            ) from None
    if is_empty:
        raise TransduceError(f"{path} has column names but no rows: add a line for each pair.")


def _check_decodable(text: str, where: str) -> None:
    if not is_decodable(text):
        raise not_utf8(where, "this line is not")


def _read_batches(path: str, format: TableFormat) -> Iterator[list[Any]]:
    """Yield lists of rows (dicts by column name) of a Parquet, Arrow or JSON-lines file or datasets folder.

    A blank line of JSON lines yields a marker in place of a row, so that row numbers stay right.

    Raises:
        TransduceError: the file is missing, broken or of another format, or a package is missing.
    """
    if not Path(path).exists():
        raise missing_file(path)
    try:
        if format == "datasets":
            yield from _read_datasets(path)
        elif format == "jsonl":
            for number, line in enumerate(read_lines(path), 1):
                yield [read_record(line, f"{path}:{number}") if line.strip() else _BLANK_LINE]
        elif format == "parquet":
            with import_extra("pyarrow.parquet", "data", path).ParquetFile(path) as file:
                classes = _class_names(file.schema_arrow.metadata)
                for batch in file.iter_batches(batch_size=_ROWS):
                    yield [_with_class_names(row, classes) for row in batch.to_pylist()]
        else:
            yield from _read_arrow(path)
    except TransduceError:  # a ValueError
        raise
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        raise TransduceError(f"{path} is not {format} ({str(error)[:200]}): check or write it again.") from None


def _read_arrow(path: str) -> Iterator[list[Any]]:
    ipc = import_extra("pyarrow.ipc", "data", path)
    with open(path, "rb") as stream:
        is_file = stream.read(6) == b"ARROW1"
        stream.seek(0)
        reader = ipc.open_file(stream) if is_file else ipc.open_stream(stream)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        classes = _class_names(reader.schema.metadata)
        for batch in batches:
            yield [_with_class_names(row, classes) for row in batch.to_pylist()]


def _class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return a dict from column to the names of its classes.

    The library `datasets` stores the names in the metadata of a table. The dict is empty without such names.
    """
    try:
        stored = msgspec.json.decode((metadata or {}).get(b"huggingface", b"{}"))
        features = stored["info"]["features"]
        return {name: list(each["names"]) for name, each in features.items() if each.get("_type") == "ClassLabel"}
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return {}


def _with_class_names(row: dict[str, Any], classes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a row of a table in which the numbers of classes are replaced by their names; other numbers stay."""

    def named(name: str, value: Any) -> Any:
        names = classes.get(name, ())
        return names[value] if isinstance(value, int) and 0 <= value < len(names) else value

    return {name: named(name, value) for name, value in row.items()} if classes else row


def _batches_of_dataset(dataset: Any) -> Iterator[list[Any]]:
    """Yield lists of rows of a `datasets.Dataset`, in which the classes have their names."""
    classes = {name: each.names for name, each in dataset.features.items() if hasattr(each, "names")}
    for start in range(0, len(dataset), _ROWS):
        numbers = range(start, min(start + _ROWS, len(dataset)))
        yield [_with_class_names(dataset[number], classes) for number in numbers]


def _read_datasets(path: str) -> Iterator[list[Any]]:
    if (Path(path) / "dataset_dict.json").is_file():
        parts = sorted(each.name for each in Path(path).iterdir() if each.is_dir())
        raise TransduceError(
            f"{path} holds the datasets {shown_names(parts)}: name one of them, such as {Path(path) / parts[0]}."
            if parts
            else f"{path} holds no dataset: write it again."
        )
    dataset = import_extra("datasets", "data", path).load_from_disk(path)
    yield from _batches_of_dataset(dataset)


def _read_tmx(path: str, columns: Columns) -> Iterator[PairRow]:
    """Yield a `PairRow` for each TMX translation unit that has both languages.

    If no languages are set, the two languages of the first unit are used. If a unit has several texts in one language,
    the first is used. A warning reports how many units lack a language and are left out.

    Raises:
        TransduceError: the file is not valid XML, or no unit has both languages.
    """
    with open_uncompressed(path) as stream:
        found, count, header_language, languages = set[str](), 0, None, columns.names or columns.languages
        number = 0
        parser = ElementTree.iterparse(stream, ("start", "end"))
        try:
            for event, element in parser:
                if event == "start" and element.tag == "header":
                    header_language = element.get("srclang")
                if event == "start" or element.tag != "tu":
                    continue
                texts = _texts_of(element)
                element.clear()
                number += 1
                found |= texts.keys()
                if languages is None:
                    languages = _guess_languages(list(texts), header_language, path)
                    columns.report(languages)
                pair = [_of_language(texts, language) for language in languages]
                if pair[0] is not None and pair[1] is not None:
                    count += 1
                    yield PairRow(pair[0], pair[1], number=number)
        except TransduceError:
            raise
        except (ElementTree.ParseError, LookupError, ValueError) as error:  # unknown encodings, and those of many bytes
            raise TransduceError(f"{path} is not valid XML ({error}): export it again, in UTF-8.") from None
    if 0 < count < number:
        names, left_out = " or ".join(languages or ()), count_noun(number - count, "translation unit")
        warn(f"{path}: left out, because a text in {names} is missing: {left_out} of {number:,}.")
    if not count:
        raise TransduceError(
            f"{path} has no translation unit in {' and '.join(languages) if languages else 'two languages'}, but in "
            f"{shown_names(sorted(found), 40)}: name two of these by `data.languages`."
        )


def _texts_of(unit: ElementTree.Element) -> dict[str, str]:
    """Return the texts of a TMX translation unit as a dict by lower-case language code, in order of the file.

    Of several texts with one code, the first is kept.
    """
    texts: dict[str, str] = {}
    for variant in unit.findall("tuv"):
        segment = variant.find("seg")
        language = variant.get(_LANGUAGE) or variant.get("lang") or ""
        if segment is not None:
            texts.setdefault(language.casefold(), "".join(_texts(segment)))
    return texts


def _texts(element: ElementTree.Element) -> Iterator[str]:
    yield element.text or ""
    for child in element:
        if child.tag not in _INLINE_CODES:
            yield from _texts(child)
        yield child.tail or ""


def _guess_languages(found: list[str], header_language: str | None, path: str) -> tuple[str, str]:
    if len(found) != 2:
        raise TransduceError(
            f"{path} has texts in {shown_names(sorted(found), 40) if found else 'no language'}: name source and target "
            "by `data.languages`."
        )
    source = (header_language or "").casefold()
    first = next((language for language in found if source and language.split("-")[0] == source.split("-")[0]), None)
    first = first or found[0]
    return first, next(language for language in found if language != first)


def _of_language(texts: Mapping[str, str], language: str) -> str | None:
    """Return the text of a language from a dict of texts by language code; None if there is none.

    The exact code is preferred. Next comes a code of the same script and region (zh-CN for zh), and then the first code
    of the language (de-DE for de).
    """
    code = language.casefold().replace("_", "-")
    codes = [each for each in texts if short_code(each) == short_code(language)]
    chosen = [*({code} & texts.keys()), *(each for each in codes if is_same_language(each, language)), *codes]
    return texts[chosen[0]] if chosen else None
