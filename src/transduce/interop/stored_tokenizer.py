"""Loading of a model folder's tokenizer, ours or an imported one."""

from pathlib import Path

from transduce.interop.foreign_tokenizer import FOREIGN_TOKENIZER, ForeignTokenizer
from transduce.text.tokenizer import Tokenizer


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer of a folder, whichever class saved it.

    Raises:
        TransduceError: a file is missing or broken.
    """
    if (Path(folder) / FOREIGN_TOKENIZER).exists():
        return ForeignTokenizer.load(folder)
    return Tokenizer.load(folder)
