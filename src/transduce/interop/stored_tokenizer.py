"""The tokenizer of a model folder, of whichever kind it is."""

from pathlib import Path

from transduce.interop.foreign_tokenizer import FOREIGN_TOKENIZER, ForeignTokenizer
from transduce.text.tokenizer import Tokenizer


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Reads what either kind's `save` wrote.

    Raises:
        TransduceError: a file is missing or broken.
    """
    if (Path(folder) / FOREIGN_TOKENIZER).exists():
        return ForeignTokenizer.load(folder)
    return Tokenizer.load(folder)
