"""A run with nothing left to choose."""

import msgspec

from transduce.interop.word_vectors import WordVectorSettings
from transduce.model.config import ModelConfig
from transduce.search.settings import SearchSettings
from transduce.tasks.settings import DataSettings, TaskSettings
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.training.settings import ResolvedTraining


class ResolvedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run, completely, with what follows from its tokenizer."""

    preset: str | None
    """None where the model of another folder is kept."""
    start_from: str | None = None
    task: TaskSettings
    data: DataSettings
    tokenizer: TokenizerSettings | None
    """None where numbers are read."""
    tokenizer_text: tuple[str, ...] = ()
    word_vectors: WordVectorSettings | None = None
    model: ModelConfig
    training: ResolvedTraining
    search: SearchSettings

    @property
    def micro_batch_tokens(self) -> int:
        """Target tokens of one of the parts in which a step is computed."""
        return -(-self.training.batch_tokens // self.training.accumulate)
