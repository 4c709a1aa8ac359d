"""Models of this package that Hugging Face's transformers loads from a folder and runs offline.

A folder is opened by one of transformers' automatic classes, such as `AutoModelForCausalLM`.

Legend: B texts, S source length, T target length, L tokens of a row, V vocabulary, D model width, C classes.
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
from transduce.interop.hugging_face.export import automatic_class_for, generation_config, ignored_names
from transduce.model.config import ModelConfig


class _OpenedModel:
    """A model and tokenizer opened by transformers, with helpers that pad rows and cut them at the end symbol."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """Open the folder with transformers, without running code from it.

        Raises:
            TransduceError: transformers is missing, or finds a tensor missing, unknown or of another shape.
        """
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        transformers = import_extra("transformers", "hf")
        transformers.logging.disable_progress_bar()
        self.config = config
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        automatic = getattr(transformers, automatic_class_for(config) or "AutoModel")
        with _quiet(transformers):
            self.model, loading_info = automatic.from_pretrained(folder, output_loading_info=True)
        self.model.eval()
        expected = ignored_names(config)
        unexpected = {kind: sorted(set(map(str, names)) - expected) for kind, names in loading_info.items()}
        wrong = {kind: names for kind, names in unexpected.items() if names}
        if wrong:
            raise TransduceError(
                f"transformers opens {folder}, but not all of its tensors are what it expects: {wrong}."
            )

    def use_greedy_search(self, unk_id: int, forced: Sequence[int]) -> None:
        """Make `generate` search as this package's greedy search does, whatever the folder's generation config says.

        Args:
            unk_id: id of the target vocabulary's unknown token.
            forced: ids with which every translation begins, such as the language tag.
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
        """Return the token ids of each text, including the special tokens that the folder's tokenizer adds."""
        ids: list[list[int]] = self.tokenizer(list(texts))["input_ids"]
        return ids

    def _rows(self, rows: Ids, *, pad_left: bool = False) -> dict[str, Tensor]:
        """Pad rows of ids to one length and return them with their attention mask, as transformers' arguments."""
        width = max(map(len, rows))
        filler = [[self.config.pad_id] * (width - len(row)) for row in rows]
        missing = [[0] * len(each) for each in filler]
        present = [[1] * len(row) for row in rows]
        if pad_left:
            ids = [[*fill, *row] for fill, row in zip(filler, rows, strict=True)]
            mask = [[*zeros, *ones] for zeros, ones in zip(missing, present, strict=True)]
        else:
            ids = [[*row, *fill] for fill, row in zip(filler, rows, strict=True)]
            mask = [[*ones, *zeros] for zeros, ones in zip(missing, present, strict=True)]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    def _until_end(self, written: Tensor) -> list[list[int]]:
        """Return the tokens of each row before the end symbol."""
        rows: list[list[int]] = written.tolist()
        return [row[: row.index(self.config.eos_id)] if self.config.eos_id in row else row for row in rows]


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Suppress transformers' report of unused tensors, which `_OpenedModel` checks itself."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)


class HuggingFaceModel(_OpenedModel):
    """Implements `ExportedModel` for an encoder–decoder run by transformers."""

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-probabilities, in nats, of each target's tokens followed by the end symbol."""
        inputs = self._rows([[self.config.start_id, *row] for row in targets])["input_ids"]
        with torch.inference_mode():
            logits = self.model(**self._sources(sources), decoder_input_ids=inputs).logits  # (B, T, V)
        expected = self._rows([[*row, self.config.eos_id] for row in targets])["input_ids"]
        log_probs = logits.log_softmax(dim=-1).gather(-1, expected[..., None])[..., 0]
        return [values[: len(row) + 1] for values, row in zip(log_probs.tolist(), targets, strict=True)]

    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """Return the token ids of each source's translation, at most `max_tokens` of them.

        `generate` searches with one beam.
        """
        with torch.inference_mode():
            written = self.model.generate(
                **self._sources(sources), num_beams=1, do_sample=False, max_new_tokens=max_tokens, max_length=None
            )
        return self._until_end(written[:, 1:])

    def _sources(self, sources: Ids) -> dict[str, Tensor]:
        return self._rows(sources)


class HuggingFaceLanguageModel(_OpenedModel):
    """Implements `ExportedModel` for a decoder-only language model run by transformers."""

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-probabilities, in nats, of each target's tokens followed by the end symbol.

        Each target continues the prompt with the same index in `sources`.
        """
        prompts = [[self.config.start_id, *row] for row in sources]
        rows = [[*prompt, *target] for prompt, target in zip(prompts, targets, strict=True)]
        with torch.inference_mode():
            log_probs = self.model(**self._rows(rows)).logits.log_softmax(dim=-1)  # (B, T, V)
        labels = [torch.tensor([*target, self.config.eos_id]) for target in targets]
        return [
            log_probs[number, len(prompt) - 1 : len(row)].gather(-1, ids[:, None])[:, 0].tolist()
            for number, (prompt, row, ids) in enumerate(zip(prompts, rows, labels, strict=True))
        ]

    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """Return the token ids with which `generate` greedily continues each prompt, at most `max_tokens` of them."""
        rows = self._rows([[self.config.start_id, *row] for row in sources], pad_left=True)
        with torch.inference_mode():
            written = self.model.generate(
                **rows, num_beams=1, do_sample=False, max_new_tokens=max_tokens, max_length=None
            )
        return self._until_end(written[:, rows["input_ids"].shape[1] :])


class HuggingFaceEncoder(_OpenedModel):
    """Implements `ExportedEncoder` for an encoder run by transformers."""

    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        """Return the encoder's outputs for each row, by the names that `ExportedEncoder` uses."""
        inputs = self._rows(rows)
        width = inputs["input_ids"].shape[1]
        types = torch.tensor([[*row, *[0] * (width - len(row))] for row in token_types])
        with torch.inference_mode():
            results = self.model(**inputs, token_type_ids=types, output_hidden_states=True)
        outputs_by_name = {"states": results.hidden_states[-1]}
        logits = "prediction_logits" if "prediction_logits" in results else "logits"
        if logits in results:
            outputs_by_name["logits" if self.config.masked_language_head else "classes"] = results[logits]
        if "seq_relationship_logits" in results:
            outputs_by_name["classes"] = results["seq_relationship_logits"].flip(
                -1
            )  # Hugging Face's class 0 is this package's class 1
        if "pooler_output" in results:
            outputs_by_name["pooled"] = results["pooler_output"]
        return {name: _split_rows(tensor, rows) for name, tensor in outputs_by_name.items()}


def _split_rows(tensor: Tensor, rows: Ids) -> list[NDArray[Any]]:
    """Split a batch into rows and remove their padding: (B, L, …) to arrays (tokens, …), (B, …) to arrays (…)."""
    if tensor.dim() == 2:
        return list(tensor.numpy())
    return [tensor[number, : len(row)].numpy() for number, row in enumerate(rows)]
