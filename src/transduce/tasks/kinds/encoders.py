"""Share BERT's settings and text handling between pretraining, classification and tagging."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from transduce.atomic_io import write_file
from transduce.data.prepared import PreparedCorpus
from transduce.data.sentence_pairs import SentenceStore
from transduce.errors import TransduceError
from transduce.model.build import AnyModel, build_model
from transduce.model.config import ModelConfig
from transduce.model.encoder import Encoder
from transduce.tasks.corpus import TaskCorpus
from transduce.tasks.kinds.texts import holds_texts
from transduce.tasks.settings.structs import Settings
from transduce.text.corpus import Format, read_texts
from transduce.text.sentences import read_documents, sentences_of
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import Choice, Preset
from transduce.training.schedule import ScheduleName

# Default maximum number of tokens in a text, including special tokens.
DEFAULT_CONTEXT = 128

# Settings of BERT's encoder that differ from the defaults.
BERT: dict[str, object] = {
    "kind": "encoder",
    "positions": "learned",
    "activation": "gelu",
    "norm_order": "post",
    "norm_epsilon": 1e-12,
    "embedding_norm": True,
    "token_types": 2,
    "scale_embeddings": False,
    "output_bias": True,
    "pooler": True,
}

# Settings of the vocabulary projection, which these models lack, with values that settings files may contain.
OF_PROJECTION = {"tie_output": True, "output_bias": False, "output_scale": 1.0}


def choose_encoder_rate(settings: Settings, d_model: int) -> Choice[float]:
    """Choose the peak learning rate of a classifier or tagger, proportional to 1 / d_model.

    For a pretrained model, this is 6.5e-5 at BERT's width, where its authors used 2e-5 to 5e-5. It is five times as
    high from random weights, and ten times as high for LoRA.
    """
    factor = 0.5 if settings.training.lora_rank else 0.25 if settings.init_from is None else 0.05
    return Choice(factor / d_model, f"{factor} / d_model ({d_model})")


def encoder_sizes(preset: Preset) -> dict[str, object]:
    """Return a preset's encoder sizes, with BERT's feed-forward width and dropout."""
    return {
        "num_encoder_layers": preset.num_encoder_layers,
        "d_model": preset.d_model,
        "d_ff": 4 * preset.d_model,
        "num_heads": preset.num_heads,
        "dropout": 0.1,
    }


def text_length(model: ModelConfig, context: int | None) -> int:
    """Return the maximum number of tokens read from a text, including special tokens.

    This is the context, limited to the number of learned positions.
    """
    if model.positions != "learned":
        return DEFAULT_CONTEXT if context is None else context
    return model.max_positions if context is None else min(context, model.max_positions)


def as_encoder(model: AnyModel) -> Encoder:
    """Return the model with the type `Encoder`; the task's settings guarantee that it is one."""
    assert isinstance(model, Encoder)
    return model


def build_encoder(config: ModelConfig) -> Encoder:
    """Build an encoder with random initial weights."""
    return as_encoder(build_model(config))


def read_store(corpus: PreparedCorpus, tokenizer: Tokenizer, side: Literal["source", "target"]) -> SentenceStore:
    """Open one side of a prepared corpus as memory-mapped sentences."""
    vocabulary = tokenizer.source if side == "source" else tokenizer.target
    card = corpus.card.source if side == "source" else corpus.card.target
    ids = np.memmap(corpus.folder / f"{side}.ids", dtype=np.dtype(card.dtype), mode="r")
    offsets = np.memmap(corpus.folder / f"{side}.offsets", dtype=np.dtype("<i8"), mode="r")
    return SentenceStore(ids, offsets, len(vocabulary.before), len(vocabulary.after))


def linear_schedule() -> Choice[ScheduleName]:
    """Return BERT's learning-rate schedule, a linear decay to zero, as a choice with its reason."""
    return Choice("linear", "a linear decay to zero, as in BERT")


# --- running text ---
# One sentence per line, with the end held out as a dev set.


# Without a dev set, the end of the text is held out: this share of its sentences, up to a maximum.
_DEV_SHARE = 0.02
_MAX_DEV_SENTENCES = 2_000
_MIN_SENTENCES = 4


def write_sentences(files: Sequence[str], chosen: Format, path: Path, *, overwrite: bool) -> str:
    """Write the sentences of texts to a file, with an empty line after each document, and return the file's path.

    Args:
        files: files of text.
        chosen: format of the files; "auto": by their suffixes.
        path: the file to write, one sentence per line.
        overwrite: write the file even if it exists.

    Raises:
        TransduceError: a text cannot be read, or there is none.
    """
    if overwrite or not path.exists():
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
    """Return the training and the dev text, from two files, or from the start and the end of a single file.

    Raises:
        TransduceError: a single file has too few sentences for both.
    """
    text = read_store(corpus.prepared, corpus.tokenizer, "target")
    if corpus.dev is not None:
        return text, read_store(corpus.dev, corpus.tokenizer, "target")
    filled = np.flatnonzero(text.lengths > 0)  # the other lines are empty and end documents
    if len(filled) < 2 * _MIN_SENTENCES:
        raise TransduceError(
            f"Pretraining needs running text of at least {2 * _MIN_SENTENCES} sentences, half of them for "
            f"validation, but this one has {len(filled)}: add more text, or name a dev text (`--dev-source`)."
        )
    dev = min(_MAX_DEV_SENTENCES, max(_MIN_SENTENCES, int(len(filled) * _DEV_SHARE)))
    cut = int(filled[-dev])
    return text.part(0, cut), text.part(cut, len(text.offsets) - 1)
