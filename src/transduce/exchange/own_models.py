"""Wrap transduce's own models in the interface of exported ones, so that an export can be compared with its original.

Legend: B texts, T tokens of a text, L tokens of a row, V vocabulary size, D model width, C classes.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from transduce.inference.batching import pad
from transduce.inference.scorers import ContinuingScorer
from transduce.inference.translator import Translator
from transduce.interop.components import Ids
from transduce.interop.onnx.export import longest_sequence
from transduce.model.build import Model
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder
from transduce.model.encoder import Encoder
from transduce.model_folder.read import ModelFolder
from transduce.search.greedy import greedy_search
from transduce.search.settings import SearchSettings
from transduce.text.tokenizer import Tokenizer

_CPU = torch.device("cpu")


class OriginalModel:
    """Implements `ExportedModel` for an encoder-decoder model."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self._config = translator.model.config

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-probability of each target's tokens and end symbol."""
        config, device = self._config, self.translator.device
        source_ids = pad(sources, config.pad_id, device)
        inputs = pad([[config.start_id, *row] for row in targets], config.pad_id, device)
        expected = pad([[*row, config.eos_id] for row in targets], config.pad_id, device)
        with torch.inference_mode():
            log_probabilities = self.translator.model(source_ids, inputs).log_softmax(dim=-1)  # (B, T, V)
        target_values = log_probabilities.gather(-1, expected[..., None])[..., 0].tolist()
        return [values[: len(row) + 1] for values, row in zip(target_values, targets, strict=True)]

    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """Return the token ids that greedy search finds for each source."""
        search = SearchSettings(beam_size=1, length_penalty=0.0, max_length=max_tokens)
        hypotheses = self.translator.search_ids([list(row) for row in sources], search)
        return [list(best.ids) for best, *_ in hypotheses]


class OriginalLanguageModel:
    """Implements `ExportedModel` for a decoder-only model, in float32 on a CPU."""

    def __init__(self, model: Decoder, *, forbidden_tokens: int, context: int) -> None:
        """Wrap a decoder-only model.

        Args:
            model: the decoder.
            forbidden_tokens: id of the unknown token, which is never generated.
            context: maximum number of tokens that the model attends to.
        """
        self._model = model
        self._never = forbidden_tokens
        self._context = context

    @torch.inference_mode()
    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-probability of each target's tokens and end symbol after its prompt, one text at a time."""
        config, results = self._model.config, []
        for source, target in zip(sources, targets, strict=True):
            row = torch.tensor([[config.start_id, *source, *target]])
            values = self._model(row)[0, len(source) :].log_softmax(dim=-1)  # (T + 1, V)
            results.append(values.gather(-1, torch.tensor([[*target, config.eos_id]]).T)[:, 0].tolist())
        return results

    @torch.inference_mode()
    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """Return the greedy continuation of each prompt, up to the end of its line."""
        config = self._model.config
        never = sorted({config.pad_id, self._never} - {config.eos_id})
        prompts = [[config.start_id, *row] for row in sources]
        scorer = ContinuingScorer(self._model, prompts, context=self._context, excluded_ids=never)
        longest = torch.full((len(prompts),), max_tokens)
        hypotheses = greedy_search(scorer, start_id=config.start_id, eos_id=config.eos_id, max_lengths=longest)
        return [list(best.ids) for best, *_ in hypotheses]


class OriginalEncoder:
    """Implements `ExportedEncoder` for an encoder, in float32 on a CPU."""

    def __init__(self, model: Encoder) -> None:
        self._model = model

    @torch.inference_mode()
    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        """Return the hidden states and the outputs of the model's heads, by name."""
        config = self._model.config
        types = pad(token_types, 0, _CPU) if config.token_types else None
        states, _ = self._model.encode(pad(rows, config.pad_id, _CPU), token_types=types)  # (B, L, D)
        outputs = {"states": _without_padding(states, rows)}
        if self._model.masked_language_head is not None:
            outputs["logits"] = _without_padding(self._model.project(self._model.hidden(states)), rows)
        if self._model.pooler is not None:
            outputs["pooled"] = list(self._model.pool(states).numpy())
        if self._model.classifier is not None:
            outputs["classes"] = list(self._model.classify(states).numpy())
        return outputs


def _without_padding(tensor: torch.Tensor, rows: Ids) -> list[NDArray[Any]]:
    return [tensor[number, : len(row)].numpy() for number, row in enumerate(rows)]


# --- model to export ---


class Original:
    """The model that is exported, opened from its folder for comparison with the export."""

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

    def as_exported_model(self) -> OriginalModel | OriginalLanguageModel | OriginalEncoder:
        """Return the model with the interface of an exported one."""
        if isinstance(self.model, Encoder):
            return OriginalEncoder(self.model)
        if isinstance(self.model, Decoder):
            unknown = self.tokenizer.target.unk_id
            return OriginalLanguageModel(self.model, forbidden_tokens=unknown, context=self.longest)
        assert self.translator is not None
        return OriginalModel(self.translator)
