"""A Hugging Face folder of one of our models, run by transformers.

Legend: B sentences, S source length, T target length, V vocabulary.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.interop.exported import Ids
from transduce.interop.packages import import_extra


class HuggingFaceModel:
    """Implements `ExportedModel`. Opens the folder by the automatic classes, offline, and runs no code of its own."""

    def __init__(self, folder: Path) -> None:
        """Reads the folder.

        Raises:
            TransduceError: transformers is missing, or finds a tensor missing, unknown or of another shape.
        """
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        transformers = import_extra("transformers", "hf")
        transformers.logging.disable_progress_bar()
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.model, notes = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
        self.model.eval()
        wrong = {kind: sorted(map(str, names)) for kind, names in notes.items() if names}
        if wrong:
            raise TransduceError(
                f"transformers opens {folder}, but not all of its tensors are what it expects: {wrong}."
            )
        self._config = self.model.config

    def source_ids(self, sentences: Sequence[str]) -> list[list[int]]:
        """What its tokenizer makes of sentences, with the end symbol."""
        ids: list[list[int]] = self.tokenizer(list(sentences))["input_ids"]
        return ids

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Of each target's pieces and the end symbol."""
        inputs = self._padded([[self._config.decoder_start_token_id, *row] for row in targets])
        with torch.inference_mode():
            logits = self.model(**self._sources(sources), decoder_input_ids=inputs).logits  # (B, T, V)
        expected = self._padded([[*row, self._config.eos_token_id] for row in targets])
        found = logits.log_softmax(dim=-1).gather(-1, expected[..., None])[..., 0]
        return [values[: len(row) + 1] for values, row in zip(found.tolist(), targets, strict=True)]

    def translate(self, sources: Ids, most_pieces: int) -> list[list[int]]:
        """What `generate` finds with one beam."""
        with torch.inference_mode():
            written = self.model.generate(
                **self._sources(sources), num_beams=1, do_sample=False, max_new_tokens=most_pieces, max_length=None
            )
        eos_id = self._config.eos_token_id
        rows: list[list[int]] = written[:, 1:].tolist()
        return [row[: row.index(eos_id)] if eos_id in row else row for row in rows]

    def _sources(self, sources: Ids) -> dict[str, Tensor]:
        ids = self._padded([[*row, self._config.eos_token_id] for row in sources])
        lengths = torch.tensor([[len(row) + 1] for row in sources])
        return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths).long()}

    def _padded(self, rows: Ids) -> Tensor:
        width = max(map(len, rows))
        return torch.tensor([[*row, *[self._config.pad_token_id] * (width - len(row))] for row in rows])
