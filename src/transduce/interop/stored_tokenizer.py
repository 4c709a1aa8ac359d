"""Loader of a model folder's tokenizer, native or imported."""

from pathlib import Path

from transduce.interop.foreign_tokenizer import FOREIGN_TOKENIZER, ForeignTokenizer
from transduce.text.tokenizer import Tokenizer


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer of a model folder, whether native or imported.

    Raises:
        TransduceError: a file is missing or broken.
    """
    if (Path(folder) / FOREIGN_TOKENIZER).exists():
        return ForeignTokenizer.load(folder)
    return Tokenizer.load(folder)
