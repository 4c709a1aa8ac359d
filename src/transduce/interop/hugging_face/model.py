"""A Hugging Face folder of one of our models, run by transformers: opened by the automatic classes, offline.

Legend: B texts, S source length, T target length, L pieces of a row, V vocabulary, D model width, C classes.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.errors import TransduceError, import_extra
from transduce.interop.components import Ids
from transduce.interop.hugging_face.export import automatic_class_for, generation_config, surplus_names
from transduce.model.config import ModelConfig


class _Opened:
    """A model and its tokenizer, and rows as tensors."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """Reads the folder. No code of its own is run.

        Raises:
            TransduceError: transformers is missing, or finds a tensor missing, unknown or of another shape.
        """
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        transformers = import_extra("transformers", "hf")
        transformers.logging.disable_progress_bar()
        self.config = config
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        opener = getattr(transformers, automatic_class_for(config) or "AutoModel")
        with _without_remarks(transformers):
            self.model, notes = opener.from_pretrained(folder, output_loading_info=True)
        self.model.eval()
        expected = surplus_names(config)
        found = {kind: sorted(set(map(str, names)) - expected) for kind, names in notes.items()}
        wrong = {kind: names for kind, names in found.items() if names}
        if wrong:
            raise TransduceError(
                f"transformers opens {folder}, but not all of its tensors are what it expects: {wrong}."
            )

    def search_plainly(self, unk_id: int, forced: Sequence[int]) -> None:
        """Has `generate` do what our greedy search does, whatever the folder's makers asked of it.

        Args:
            unk_id: the unknown piece of the target.
            forced: what every translation begins with: the tag of its language.
        """
        content = generation_config(self.config, unk_id)
        if content is None:
            return
        if self.config.kind == "transformer":
            content["bad_words_ids"] = [[id] for id in self.config.forbidden_tokens] or None
        if forced:
            content["forced_bos_token_id"] = forced[0]
        self.model.generation_config = import_extra("transformers", "hf").GenerationConfig(**content)

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """What its tokenizer makes of texts, with what it puts around them."""
        ids: list[list[int]] = self.tokenizer(list(texts))["input_ids"]
        return ids

    def _rows(self, rows: Ids, *, at_the_left: bool = False) -> dict[str, Tensor]:
        """Rows of one length, and which of their pieces are no padding."""
        width = max(map(len, rows))
        filler = [[self.config.pad_id] * (width - len(row)) for row in rows]
        missing = [[0] * len(each) for each in filler]
        present = [[1] * len(row) for row in rows]
        if at_the_left:
            ids = [[*fill, *row] for fill, row in zip(filler, rows, strict=True)]
            mask = [[*none, *there] for none, there in zip(missing, present, strict=True)]
        else:
            ids = [[*row, *fill] for fill, row in zip(filler, rows, strict=True)]
            mask = [[*there, *none] for none, there in zip(missing, present, strict=True)]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    def _until_end(self, written: Tensor) -> list[list[int]]:
        """The pieces before the end symbol."""
        rows: list[list[int]] = written.tolist()
        return [row[: row.index(self.config.eos_id)] if self.config.eos_id in row else row for row in rows]


@contextmanager
def _without_remarks(transformers: Any) -> Iterator[None]:
    """transformers prints a table of the tensors that it leaves aside; they are checked here."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)


class HuggingFaceModel(_Opened):
    """Implements `ExportedModel` for an encoder and decoder."""

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Of each target's pieces and the end symbol."""
        inputs = self._rows([[self.config.start_id, *row] for row in targets])["input_ids"]
        with torch.inference_mode():
            logits = self.model(**self._sources(sources), decoder_input_ids=inputs).logits  # (B, T, V)
        expected = self._rows([[*row, self.config.eos_id] for row in targets])["input_ids"]
        found = logits.log_softmax(dim=-1).gather(-1, expected[..., None])[..., 0]
        return [values[: len(row) + 1] for values, row in zip(found.tolist(), targets, strict=True)]

    def translate(self, sources: Ids, most_pieces: int) -> list[list[int]]:
        """What `generate` finds with one beam."""
        with torch.inference_mode():
            written = self.model.generate(
                **self._sources(sources), num_beams=1, do_sample=False, max_new_tokens=most_pieces, max_length=None
            )
        return self._until_end(written[:, 1:])

    def _sources(self, sources: Ids) -> dict[str, Tensor]:
        return self._rows(sources)


class HuggingFaceLanguageModel(_Opened):
    """Implements `ExportedModel` for a decoder alone."""

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Of each target's pieces and the end symbol, after the prompt."""
        prompts = [[self.config.start_id, *row] for row in sources]
        rows = [[*prompt, *target] for prompt, target in zip(prompts, targets, strict=True)]
        with torch.inference_mode():
            found = self.model(**self._rows(rows)).logits.log_softmax(dim=-1)  # (B, T, V)
        labels = [torch.tensor([*target, self.config.eos_id]) for target in targets]
        return [
            found[number, len(prompt) - 1 : len(row)].gather(-1, ids[:, None])[:, 0].tolist()
            for number, (prompt, row, ids) in enumerate(zip(prompts, rows, labels, strict=True))
        ]

    def translate(self, sources: Ids, most_pieces: int) -> list[list[int]]:
        """What `generate` goes on with, drawing nothing; rows of a batch end together."""
        rows = self._rows([[self.config.start_id, *row] for row in sources], at_the_left=True)
        with torch.inference_mode():
            written = self.model.generate(
                **rows, num_beams=1, do_sample=False, max_new_tokens=most_pieces, max_length=None
            )
        return self._until_end(written[:, rows["input_ids"].shape[1] :])


class HuggingFaceEncoder(_Opened):
    """Implements `ExportedEncoder`."""

    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        """By the class's own names, given ours."""
        given = self._rows(rows)
        width = given["input_ids"].shape[1]
        types = torch.tensor([[*row, *[0] * (width - len(row))] for row in token_types])
        with torch.inference_mode():
            found = self.model(**given, token_type_ids=types, output_hidden_states=True)
        named = {"states": found.hidden_states[-1]}
        logits = "prediction_logits" if "prediction_logits" in found else "logits"
        if logits in found:
            named["logits" if self.config.masked_language_head else "classes"] = found[logits]
        if "seq_relationship_logits" in found:
            named["classes"] = found["seq_relationship_logits"].flip(-1)  # its first class is our second
        if "pooler_output" in found:
            named["pooled"] = found["pooler_output"]
        return {name: _of_rows(tensor, rows) for name, tensor in named.items()}


def _of_rows(tensor: Tensor, rows: Ids) -> list[NDArray[Any]]:
    """Each row's own part, without padding: of (B, L, …) the pieces, of (B, …) everything."""
    if tensor.dim() == 2:
        return list(tensor.numpy())
    return [tensor[number, : len(row)].numpy() for number, row in enumerate(rows)]
