"""Define the complete settings of a run, with nothing left to choose."""

import msgspec

from transduce.interop.word_vectors import WordVectorSettings
from transduce.model.config import ModelConfig
from transduce.search.settings import SearchSettings
from transduce.tasks.settings import DataSettings, TaskSettings
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.training.settings import ResolvedTraining


class ResolvedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The complete settings of a run, including what follows from its tokenizer."""

    preset: str | None
    """Name of the preset of sizes; None if the model is a base model's."""
    start_from: str | None = None
    """Folder of the base model that training starts from; None: random weights."""
    task: TaskSettings
    data: DataSettings
    tokenizer: TokenizerSettings | None
    """Settings of the tokenizer; None for a task without text."""
    tokenizer_text: tuple[str, ...] = ()
    """Files of further text that the vocabulary is learned from."""
    word_vectors: WordVectorSettings | None = None
    model: ModelConfig
    training: ResolvedTraining
    search: SearchSettings

    @property
    def micro_batch_tokens(self) -> int:
        """The number of target tokens in one micro-batch of a gradient step."""
        return -(-self.training.batch_tokens // self.training.accumulate)
