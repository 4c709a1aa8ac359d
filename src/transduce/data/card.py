"""The description of a prepared corpus, stored as corpus.json."""

from pathlib import Path

import msgspec

from transduce.data.idfiles import SideCard
from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.text import FilterReport

FORMAT_VERSION = 1
CARD_NAME = "corpus.json"
HELD_OUT_NAMES = ("held_out.source.txt", "held_out.target.txt")


class CorpusCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of corpus.json, which describes the files of a prepared corpus."""

    format_version: int
    pairs: int
    tokenizer_fingerprint: str
    source: SideCard
    target: SideCard
    filters: FilterReport


def write_card(card: CorpusCard, folder: Path) -> None:
    """Write corpus.json."""
    write_file(folder / CARD_NAME, msgspec.json.format(msgspec.json.encode(card), indent=1) + b"\n")


def read_card(folder: Path) -> CorpusCard:
    """Read corpus.json.

    Raises:
        TransduceError: the file is missing, damaged or of another format.
    """
    path = folder / CARD_NAME
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=dict[str, object]).get("format_version")
        if version != FORMAT_VERSION:
            raise TransduceError(
                f"{path} has format {version}, but this version reads format {FORMAT_VERSION}: prepare it again."
            )
        return msgspec.json.decode(content, type=CorpusCard)
    except FileNotFoundError:
        raise TransduceError(f"{path} does not exist: {path.parent} holds no prepared corpus.") from None
    except msgspec.DecodeError as error:
        raise TransduceError(f"{path} is not a corpus's description ({error}): prepare it again.") from None
