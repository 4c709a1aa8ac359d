"""Read a model for export, and give it the interface of exported models for the comparison."""

from functools import cached_property
from pathlib import Path

from transduce.interop.onnx import longest_sequence
from transduce.model.build import Model
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder
from transduce.model.encoder import Encoder
from transduce.runtime.folder import ModelFolder
from transduce.runtime.own_models import OwnEncoder, OwnLanguageModel, OwnModel
from transduce.runtime.translator import Translator
from transduce.text.tokenizer import Tokenizer


class Original:
    """The model of a folder that is exported."""

    def __init__(self, content: ModelFolder[Model], folder: Path, threads: int) -> None:
        """Wrap a model in float32 on the CPU; `threads` is the number of compute threads of both models."""
        self.model = content.model
        self.config: ModelConfig = content.model.config
        self.tokenizer: Tokenizer = content.tokenizer
        self.languages = (content.manifest.source_language, content.manifest.target_language)
        self.folder = folder
        self.threads = threads

    @property
    def longest(self) -> int:
        """The maximum length of a text in tokens, for the original and the export."""
        return longest_sequence(self.config)

    @cached_property
    def translator(self) -> Translator | None:
        """A translator of an encoder-decoder model; None for other kinds."""
        if isinstance(self.model, Encoder | Decoder):
            return None
        source, target = self.languages
        return Translator(self.model, self.tokenizer, source_language=source, target_language=target)

    def own_model(self) -> OwnModel | OwnLanguageModel | OwnEncoder:
        """Return the model with the interface of an exported one."""
        if isinstance(self.model, Encoder):
            return OwnEncoder(self.model)
        if isinstance(self.model, Decoder):
            unknown = self.tokenizer.target.unk_id
            return OwnLanguageModel(self.model, never_written=unknown, context=self.longest)
        assert self.translator is not None
        return OwnModel(self.translator)
