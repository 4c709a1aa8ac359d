"""Prepare running text for masked language models: one sentence per line, with the end held out as a dev set."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transduce.data.sentence_pairs import SentenceStore
from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.tasks.corpus import TaskCorpus
from transduce.tasks.encoders import read_store
from transduce.tasks.texts import holds_texts
from transduce.text.corpus import Format, read_texts
from transduce.text.sentences import read_documents, sentences_of

# Without a dev set, the end of the text is held out: this share of its sentences, up to a maximum.
_DEV_SHARE = 0.02
_MOST_DEV_SENTENCES = 2_000
_LEAST_SENTENCES = 4


def write_sentences(files: Sequence[str], chosen: Format, path: Path, *, anew: bool) -> str:
    """Write the sentences of texts to a file, with an empty line after each document, and return the file's path.

    Args:
        files: files of text.
        chosen: format of the files; "auto": by their suffixes.
        path: the file to write, one sentence per line.
        anew: overwrite an existing file.

    Raises:
        TransduceError: a text cannot be read, or there is none.
    """
    if anew or not path.exists():
        documents = (document for file in files for document in _documents(file, chosen))
        content = "".join("\n".join([*document, "", ""]) for document in documents)
        if not content:
            raise TransduceError(f"There is no sentence in {', '.join(files)}: name files with text.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content.encode())
    return str(path)


def _documents(file: str, chosen: Format) -> Iterator[list[str]]:
    """Yield the documents of a file as lists of sentences; each text of a JSON-lines file is a document."""
    if holds_texts(file, chosen):
        return filter(None, map(sentences_of, read_texts(file)))
    return read_documents(file)


def split_text(corpus: TaskCorpus) -> tuple[SentenceStore, SentenceStore]:
    """Return training and dev text: of two files, or the start and the end of one.

    Raises:
        TransduceError: a single file has too few sentences for both.
    """
    text = read_store(corpus.prepared, corpus.tokenizer, "target")
    if corpus.dev is not None:
        return text, read_store(corpus.dev, corpus.tokenizer, "target")
    filled = np.flatnonzero(text.lengths > 0)  # the other lines are empty and end documents
    if len(filled) < 2 * _LEAST_SENTENCES:
        raise TransduceError(
            f"Pretraining needs running text of at least {2 * _LEAST_SENTENCES} sentences, half of them for "
            f"validation, but this one has {len(filled)}: add more text, or name a dev text (`--dev-source`)."
        )
    dev = min(_MOST_DEV_SENTENCES, max(_LEAST_SENTENCES, int(len(filled) * _DEV_SHARE)))
    cut = int(filled[-dev])
    return text.part(0, cut), text.part(cut, len(text.offsets) - 1)
