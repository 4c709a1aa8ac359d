"""Exported ONNX models, run by onnxruntime.

Legend: B rows, S source length, T tokens of a call, L tokens of a row so far, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.errors import import_extra
from transduce.interop.components import Ids
from transduce.interop.onnx.export import DECODER, ENCODER, MODEL

Arrays = dict[str, NDArray[Any]]


class _Session:
    """An onnxruntime session of one graph, with the special ids from its metadata."""

    def __init__(self, path: Path, threads: int) -> None:
        onnxruntime = import_extra("onnxruntime", "export")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.pad_id, self.eos_id, self.start_id = (int(metadata[name]) for name in ("pad_id", "eos_id", "start_id"))
        self.inputs: dict[str, list[Any]] = {given.name: given.shape for given in self._session.get_inputs()}
        self.outputs: list[str] = [output.name for output in self._session.get_outputs()]

    def run(self, given: Arrays) -> Arrays:
        """Run the graph and return all outputs by name."""
        return dict(zip(self.outputs, self._session.run(None, given), strict=True))

    def empty_cache(self, rows: int, given: Mapping[str, Any]) -> Arrays:
        """Return caches of length 0 for the graph's `past_` inputs that are not in `given`."""
        missing = {name: shape for name, shape in self.inputs.items() if name.startswith("past_") and name not in given}
        return {name: np.zeros((rows, shape[1], 0, shape[3]), np.float32) for name, shape in missing.items()}

    def padded(self, rows: Ids) -> NDArray[np.int64]:
        """Return the rows as one array, padded at the right."""
        width = max(map(len, rows))
        return np.array([[*row, *[self.pad_id] * (width - len(row))] for row in rows], dtype=np.int64)

    def best(self, logits: NDArray[Any], *forbidden: int) -> NDArray[np.int64]:
        """Return the most probable allowed token of each row, (B, V) to (B, 1); padding and `never` are excluded."""
        allowed = logits.copy()
        allowed[:, sorted({self.pad_id, *forbidden} - {self.eos_id})] = -np.inf
        token: NDArray[np.int64] = allowed.argmax(axis=-1)[:, None]
        return token

    def until_end(self, ids: NDArray[np.int64]) -> list[list[int]]:
        """Return the tokens of each row before the end symbol."""
        rows: list[list[int]] = ids.tolist()
        return [row[: row.index(self.eos_id)] if self.eos_id in row else row for row in rows]


def _cache_from(outputs: Arrays) -> Arrays:
    """Return the KV cache for the next call from the outputs of a call."""
    return {f"past_{name}": array for name, array in outputs.items() if name != "logits"}


def _log_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    shifted: NDArray[Any] = logits - logits.max(axis=-1, keepdims=True)
    normalized: NDArray[Any] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalized


class OnnxModel:
    """Implements `ExportedModel` for an encoder–decoder model in ONNX, a Transformer or a recurrent network."""

    def __init__(self, folder: Path, *, threads: int, forced: Sequence[int] = ()) -> None:
        """Open both graphs of a folder; `forced` are the ids with which every translation begins."""
        self._encoder = _Session(folder / ENCODER, threads)
        self._decoder = _Session(folder / DECODER, threads)
        self._forced = list(forced)

    def encode(self, sources: Ids) -> Arrays:
        """Run the encoder and return the decoder's inputs for these sources."""
        return self._encoder.run({"source_ids": self._encoder.padded(sources)})

    def empty_caches(self, sentences: int) -> Arrays:
        """Return an empty KV cache; a recurrent model's initial state comes from the encoder instead."""
        return self._decoder.empty_cache(sentences, dict.fromkeys(self._encoder.outputs))

    def decode(self, target_ids: NDArray[np.int64], memory: Arrays, known: Arrays) -> tuple[NDArray[Any], Arrays]:
        """Return the logits (B, T, V) after these tokens (B, T), and the extended cache.

        A graph that accepts one token per call, such as a recurrent one, is called T times.
        """
        tokens_per_call = target_ids.shape[1] if self._decoder.inputs["target_ids"][1] != 1 else 1
        logits = []
        for first in range(0, target_ids.shape[1], tokens_per_call):
            outputs = self._decoder.run(
                {**memory, **known, "target_ids": target_ids[:, first : first + tokens_per_call]}
            )
            known = _cache_from(outputs)
            logits.append(outputs["logits"])
        return np.concatenate(logits, axis=1), known

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-probabilities, in nats, of each target's tokens followed by the end symbol."""
        inputs = self._decoder.padded([[self._decoder.start_id, *row] for row in targets])
        logits, _ = self.decode(inputs, self.encode(sources), self.empty_caches(len(sources)))
        log_probs = _log_softmax(logits)
        labels = [[*target, self._decoder.eos_id] for target in targets]
        return [log_probs[row, range(len(ids)), ids].tolist() for row, ids in enumerate(labels)]

    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """Return the token ids of each source's translation by greedy search, at most `max_tokens` of them."""
        decoder, memory, cache = self._decoder, self.encode(sources), self.empty_caches(len(sources))
        newest = np.array([[decoder.start_id, *self._forced]] * len(sources), dtype=np.int64)
        written = newest[:, 1:]
        while written.shape[1] < max_tokens and not (written == decoder.eos_id).any(axis=1).all():
            logits, cache = self.decode(newest, memory, cache)
            newest = decoder.best(logits[:, -1], decoder.start_id)
            written = np.concatenate([written, newest], axis=1)
        return decoder.until_end(written)


class OnnxLanguageModel:
    """Implements `ExportedModel` for a decoder-only language model."""

    def __init__(self, folder: Path, *, threads: int, forbidden_tokens: int) -> None:
        """Open the graph of a folder.

        `forbidden_tokens` is the id of the unknown token, which the search must not generate.
        """
        self._graph = _Session(folder / MODEL, threads)
        self._never = forbidden_tokens

    def decode(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], known: Arrays
    ) -> tuple[NDArray[Any], Arrays]:
        """Return the logits (B, T, V) after tokens (B, T), and the extended cache.

        `positions` (B, L) are those of all tokens so far, with -1 in padding.
        """
        outputs = self._graph.run({"ids": ids, "positions": positions, **known})
        return outputs["logits"], _cache_from(outputs)

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-probabilities, in nats, of each target's tokens followed by the end symbol.

        Each target continues the prompt with the same index in `sources`.
        """
        prompts = [[self._graph.start_id, *row] for row in sources]
        rows = [[*prompt, *target] for prompt, target in zip(prompts, targets, strict=True)]
        logits, _ = self.decode(self._graph.padded(rows), _positions(rows), self._graph.empty_cache(len(rows), {}))
        log_probs = _log_softmax(logits)
        return [
            log_probs[number, range(len(prompt) - 1, len(row)), [*target, self._graph.eos_id]].tolist()
            for number, (prompt, row, target) in enumerate(zip(prompts, rows, targets, strict=True))
        ]

    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """Return the token ids with which greedy search continues each prompt, at most `max_tokens` of them."""
        graph = self._graph
        prompts = [[graph.start_id, *row] for row in sources]
        lengths, positions = np.array([[len(row)] for row in prompts]), _positions(prompts)
        logits, cache = self.decode(graph.padded(prompts), positions, graph.empty_cache(len(prompts), {}))
        newest = graph.best(logits[range(len(prompts)), lengths[:, 0] - 1], self._never)
        written = newest
        while written.shape[1] < max_tokens and not (written == graph.eos_id).any(axis=1).all():
            positions = np.concatenate([positions, lengths + written.shape[1] - 1], axis=1)
            logits, cache = self.decode(newest, positions, cache)
            newest = graph.best(logits[:, -1], self._never)
            written = np.concatenate([written, newest], axis=1)
        return graph.until_end(written)


def _positions(rows: Ids) -> NDArray[np.int64]:
    """Return the position of each token, and -1 in padding."""
    width = max(map(len, rows))
    return np.array([[*range(len(row)), *[-1] * (width - len(row))] for row in rows], dtype=np.int64)


class OnnxEncoder:
    """Implements `ExportedEncoder` for an ONNX graph."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        self._graph = _Session(folder / MODEL, threads)

    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        """Compute the encoder's outputs and return them by name, one array per row without padding."""
        inputs = {"ids": self._graph.padded(rows)}
        if "token_types" in self._graph.inputs:
            width = inputs["ids"].shape[1]
            inputs["token_types"] = np.array([[*row, *[0] * (width - len(row))] for row in token_types], np.int64)
        outputs = self._graph.run(inputs)
        lengths = [len(row) for row in rows]
        return {
            name: [each[:length] if array.ndim > 2 else each for each, length in zip(array, lengths, strict=True)]
            for name, array in outputs.items()
        }
