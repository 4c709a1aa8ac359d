"""Store the glossaries that clients create through DeepL's API, within limits; each client sees only its own."""

import csv
import io
import logging
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from transduce.atomic_io import write_file
from transduce.errors import TransduceError
from transduce.serving.messages import RequestError, invalid_request
from transduce.text.glossary import Glossary, Term

MAX_GLOSSARIES = 100  # of one owner
MAX_TERMS = 5000
_MAX_NAME_CHARACTERS = 1024
_MAX_TERM_CHARACTERS = 1024
_MAX_ALL_GLOSSARIES = 10_000
_LOG = logging.getLogger("transduce.serving")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class StoredGlossary(msgspec.Struct, frozen=True, kw_only=True):
    """A glossary that a client created through DeepL's API, as it is stored."""

    id: str
    """Random identifier in the form of a UUID."""
    name: str
    source: str
    """Canonical code of the source language, without a region."""
    target: str
    """Canonical code of the target language, without a region."""
    created_at: float
    """Time of creation, in seconds since 1970."""
    terms: tuple[tuple[str, str], ...]
    """The terms: pairs of a source text and its translation."""
    owner: str = ""
    """Digest of the API key of the client that created the glossary; empty if the server has no keys."""


def storage_error(action: str, path: Path, error: OSError) -> RequestError:
    """Log why the server cannot write a file, and return the `RequestError` (status 507) for the client.

    Args:
        action: what the server cannot do, such as "store the glossary".
        path: the file or folder.
        error: the reason, which only the log shows.
    """
    _LOG.error("The server cannot %s: %s: %s", action, path, error.strerror or error)
    return RequestError(507, f"The server cannot {action}: ask its operator, whose log has the reason.")


class GlossaryStore:
    """The glossaries of all clients, in a folder or in memory; clients are identified by digests of their API keys."""

    def __init__(self, folder: Path | None = None) -> None:
        """Read the stored glossaries.

        Args:
            folder: the folder of the glossaries, which is created if necessary; None: new glossaries are kept in memory
                only.

        Raises:
            TransduceError: the folder cannot be used, or one of its glossaries is damaged.
        """
        self._folder = folder
        self._glossaries = {} if folder is None else {stored.id: stored for stored in _read_folder(folder)}
        self._for_search: dict[str, Glossary] = {}

    def list(self, owner: str) -> list[StoredGlossary]:
        """Return a list of the glossaries of one client, oldest first.

        Args:
            owner: digest of the client's API key; "" if the server has no keys.
        """
        own = (stored for stored in self._glossaries.values() if stored.owner == owner)
        return sorted(own, key=lambda stored: (stored.created_at, stored.id))

    def get(self, id: str, owner: str) -> StoredGlossary:
        """Return the stored glossary with this identifier, if it is the client's.

        Args:
            id: the glossary's identifier.
            owner: digest of the client's API key; "" if the server has no keys.

        Raises:
            RequestError: status 404, the client has no such glossary.
        """
        stored = self._glossaries.get(id)
        if stored is None or stored.owner != owner:
            raise RequestError(404, f"There is no glossary `{id[:40]}`: GET /v2/glossaries lists yours.")
        return stored

    def glossary(self, stored: StoredGlossary) -> Glossary:
        """Return a stored glossary as a `Glossary` for the search.

        Further calls for the same stored glossary return the same object.
        """
        if stored.id not in self._for_search:
            self._for_search[stored.id] = as_glossary(stored.terms)
        return self._for_search[stored.id]

    def add(
        self, name: str, source: str, target: str, terms: tuple[tuple[str, str], ...], owner: str
    ) -> StoredGlossary:
        """Store a new glossary, in the folder if there is one, and return it with its new identifier.

        Args:
            name: the client's name for the glossary.
            source: code of the source language.
            target: code of the target language.
            terms: source and translation of each term.
            owner: digest of the client's API key; "" if the server has no keys.

        Raises:
            RequestError: the name is empty or too long, there are too many glossaries, or the folder cannot be written.
        """
        if not name.strip() or len(name) > _MAX_NAME_CHARACTERS:
            raise invalid_request(f"`name` must have 1 to {_MAX_NAME_CHARACTERS} characters, but has {len(name)}")
        if len(self.list(owner)) >= MAX_GLOSSARIES or len(self._glossaries) >= _MAX_ALL_GLOSSARIES:
            raise RequestError(456, f"There may be {MAX_GLOSSARIES} glossaries: delete one first.")
        stored = StoredGlossary(
            id=str(uuid.uuid4()),
            name=name,
            source=source,
            target=target,
            created_at=time.time(),
            terms=terms,
            owner=owner,
        )
        if self._folder is not None:
            try:
                write_file(self._folder / f"{stored.id}.json", msgspec.json.encode(stored) + b"\n")
            except OSError as error:
                raise storage_error("store the glossary", self._folder, error) from None
        self._glossaries[stored.id] = stored
        return stored

    def delete(self, id: str, owner: str) -> None:
        """Delete a client's glossary, from the folder too.

        Args:
            id: the glossary's identifier.
            owner: digest of the client's API key; "" if the server has no keys.

        Raises:
            RequestError: the client has no such glossary (status 404), or its file cannot be deleted.
        """
        self.get(id, owner)
        if self._folder is not None:
            try:
                (self._folder / f"{id}.json").unlink(missing_ok=True)
            except OSError as error:
                raise storage_error("delete the glossary", self._folder, error) from None
        del self._glossaries[id]
        self._for_search.pop(id, None)


def _read_folder(folder: Path) -> Iterator[StoredGlossary]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = sorted(folder.glob("*.json"))
    except OSError as error:
        raise TransduceError(f"{folder} cannot hold glossaries ({error.strerror}): choose another folder.") from None
    for path in paths:
        if not _ID.fullmatch(path.stem):
            continue
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=StoredGlossary)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransduceError(f"{path} is not a stored glossary ({error}): remove it.") from None
        if stored.id != path.stem:
            raise TransduceError(f"{path} holds another glossary ({stored.id}): remove it.")
        yield stored


def as_glossary(terms: tuple[tuple[str, str], ...]) -> Glossary:
    """Return terms as a `Glossary` for the search.

    Args:
        terms: the source text and the translation of each term.
    """
    return Glossary(Term(source, (target,)) for source, target in terms)


def parse_entries(text: str, format: str) -> tuple[tuple[str, str], ...]:
    """Return a tuple of the terms in a glossary that a client sends, as pairs (source text, translation).

    Args:
        text: the glossary, with a term per line; blank lines are skipped.
        format: `tsv` for a tab between source text and translation. `csv` for columns of CSV; further columns are
            ignored.

    Raises:
        RequestError: a line lacks a source text or a translation, a line of `tsv` has a third column, a source text
            occurs twice, a text is too long, the text is not valid CSV, or there are no terms or too many.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    rows = csv.reader(io.StringIO(text, newline="")) if format == "csv" else (line.split("\t") for line in lines)
    terms: dict[str, str] = {}
    try:
        for number, row in enumerate(rows, 1):
            if not any(field.strip() for field in row):
                continue
            source, target = (row[0].strip(), row[1].strip()) if len(row) > 1 else ("", "")
            if not source or not target or (format == "tsv" and len(row) > 2):
                raise invalid_request(f"line {number} of `entries` must have a source text and its translation")
            if max(len(source), len(target)) > _MAX_TERM_CHARACTERS:
                raise invalid_request(f"a term may have {_MAX_TERM_CHARACTERS} characters, but line {number} has more")
            if source in terms:
                raise invalid_request(f"`entries` must have each source once, but line {number} has one again")
            terms[source] = target
    except csv.Error as error:
        raise invalid_request(f"`entries` is not CSV ({error})") from None
    if not terms:
        raise invalid_request("`entries` must have a term, but is empty")
    if len(terms) > MAX_TERMS:
        raise invalid_request(f"`entries` must have at most {MAX_TERMS} terms, but has {len(terms)}")
    return tuple(terms.items())


def entries_as_tsv(stored: StoredGlossary) -> str:
    """Return the terms of a stored glossary as lines of text, with a tab between source text and translation."""
    return "\n".join(f"{source}\t{target}" for source, target in stored.terms)
