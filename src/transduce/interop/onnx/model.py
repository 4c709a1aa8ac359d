"""A folder of ONNX graphs, run by onnxruntime.

Legend: B rows, S source length, T pieces of a call, L pieces of a row so far, V vocabulary.
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


class _Graph:
    """One graph, and the ids that its metadata tells."""

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
        """All outputs by name."""
        return dict(zip(self.outputs, self._session.run(None, given), strict=True))

    def empty_cache(self, rows: int, given: Mapping[str, Any]) -> Arrays:
        """What the graph takes of the past and nobody gives: keys and values of no piece."""
        missing = {name: shape for name, shape in self.inputs.items() if name.startswith("past_") and name not in given}
        return {name: np.zeros((rows, shape[1], 0, shape[3]), np.float32) for name, shape in missing.items()}

    def padded(self, rows: Ids) -> NDArray[np.int64]:
        """Rows of one length."""
        width = max(map(len, rows))
        return np.array([[*row, *[self.pad_id] * (width - len(row))] for row in rows], dtype=np.int64)

    def best(self, logits: NDArray[Any], *never: int) -> NDArray[np.int64]:
        """The best piece of each row but these, (B, V) to (B, 1)."""
        allowed = logits.copy()
        allowed[:, sorted({self.pad_id, *never} - {self.eos_id})] = -np.inf
        found: NDArray[np.int64] = allowed.argmax(axis=-1)[:, None]
        return found

    def until_end(self, tokens: NDArray[np.int64]) -> list[list[int]]:
        """The pieces before the end symbol."""
        rows: list[list[int]] = tokens.tolist()
        return [row[: row.index(self.eos_id)] if self.eos_id in row else row for row in rows]


def _past(outputs: Arrays) -> Arrays:
    """What the next call is given of what this one gave."""
    return {f"past_{name}": array for name, array in outputs.items() if name != "logits"}


def _log_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    shifted: NDArray[Any] = logits - logits.max(axis=-1, keepdims=True)
    normalized: NDArray[Any] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalized


class OnnxModel:
    """Implements `ExportedModel` for an encoder and a decoder, with attention or recurrent."""

    def __init__(self, folder: Path, *, threads: int, forced: Sequence[int] = ()) -> None:
        """`forced` is what every translation begins with."""
        self._encoder = _Graph(folder / ENCODER, threads)
        self._decoder = _Graph(folder / DECODER, threads)
        self._forced = list(forced)

    def encode(self, sources: Ids) -> Arrays:
        """What the decoder needs of these sentences."""
        return self._encoder.run({"source_ids": self._encoder.padded(sources)})

    def nothing_known(self, sentences: int) -> Arrays:
        """A cache of length 0; a recurrent model's first state is the encoder's."""
        return self._decoder.empty_cache(sentences, dict.fromkeys(self._encoder.outputs))

    def decode(self, target_ids: NDArray[np.int64], memory: Arrays, known: Arrays) -> tuple[NDArray[Any], Arrays]:
        """Logits (B, T, V) after these pieces (B, T), and the cache with them; piece by piece where it must be."""
        at_once = target_ids.shape[1] if self._decoder.inputs["target_ids"][1] != 1 else 1
        parts = []
        for first in range(0, target_ids.shape[1], at_once):
            outputs = self._decoder.run({**memory, **known, "target_ids": target_ids[:, first : first + at_once]})
            known = _past(outputs)
            parts.append(outputs["logits"])
        return np.concatenate(parts, axis=1), known

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Of each target's pieces and the end symbol."""
        inputs = self._decoder.padded([[self._decoder.start_id, *row] for row in targets])
        logits, _ = self.decode(inputs, self.encode(sources), self.nothing_known(len(sources)))
        found = _log_softmax(logits)
        labels = [[*target, self._decoder.eos_id] for target in targets]
        return [found[row, range(len(ids)), ids].tolist() for row, ids in enumerate(labels)]

    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """What greedy search finds, a piece a call."""
        decoder, memory, known = self._decoder, self.encode(sources), self.nothing_known(len(sources))
        newest = np.array([[decoder.start_id, *self._forced]] * len(sources), dtype=np.int64)
        tokens = newest[:, 1:]
        while tokens.shape[1] < max_tokens and not (tokens == decoder.eos_id).any(axis=1).all():
            logits, known = self.decode(newest, memory, known)
            newest = decoder.best(logits[:, -1], decoder.start_id)
            tokens = np.concatenate([tokens, newest], axis=1)
        return decoder.until_end(tokens)


class OnnxLanguageModel:
    """Implements `ExportedModel` for a decoder alone."""

    def __init__(self, folder: Path, *, threads: int, forbidden_tokens: int) -> None:
        """`forbidden_tokens` is the unknown piece."""
        self._graph = _Graph(folder / MODEL, threads)
        self._never = forbidden_tokens

    def decode(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], known: Arrays
    ) -> tuple[NDArray[Any], Arrays]:
        """Logits (B, T, V) after pieces (B, T), and the cache with them; positions (B, L) are of all pieces so far."""
        outputs = self._graph.run({"ids": ids, "positions": positions, **known})
        return outputs["logits"], _past(outputs)

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Of each target's pieces and the end symbol, after the prompt."""
        prompts = [[self._graph.start_id, *row] for row in sources]
        rows = [[*prompt, *target] for prompt, target in zip(prompts, targets, strict=True)]
        logits, _ = self.decode(self._graph.padded(rows), _places(rows), self._graph.empty_cache(len(rows), {}))
        found = _log_softmax(logits)
        return [
            found[number, range(len(prompt) - 1, len(row)), [*target, self._graph.eos_id]].tolist()
            for number, (prompt, row, target) in enumerate(zip(prompts, rows, targets, strict=True))
        ]

    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """What greedy search goes on with: the prompts in one call, then a piece a call."""
        graph = self._graph
        prompts = [[graph.start_id, *row] for row in sources]
        lengths, positions = np.array([[len(row)] for row in prompts]), _places(prompts)
        logits, known = self.decode(graph.padded(prompts), positions, graph.empty_cache(len(prompts), {}))
        newest = graph.best(logits[range(len(prompts)), lengths[:, 0] - 1], self._never)
        tokens = newest
        while tokens.shape[1] < max_tokens and not (tokens == graph.eos_id).any(axis=1).all():
            positions = np.concatenate([positions, lengths + tokens.shape[1] - 1], axis=1)
            logits, known = self.decode(newest, positions, known)
            newest = graph.best(logits[:, -1], self._never)
            tokens = np.concatenate([tokens, newest], axis=1)
        return graph.until_end(tokens)


def _places(rows: Ids) -> NDArray[np.int64]:
    """The position of each piece, and -1 in the padding."""
    width = max(map(len, rows))
    return np.array([[*range(len(row)), *[-1] * (width - len(row))] for row in rows], dtype=np.int64)


class OnnxEncoder:
    """Implements `ExportedEncoder`."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        self._graph = _Graph(folder / MODEL, threads)

    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        """Of each row, without its padding."""
        given = {"ids": self._graph.padded(rows)}
        if "token_types" in self._graph.inputs:
            width = given["ids"].shape[1]
            given["token_types"] = np.array([[*row, *[0] * (width - len(row))] for row in token_types], np.int64)
        found = self._graph.run(given)
        lengths = [len(row) for row in rows]
        return {
            name: [each[:length] if array.ndim > 2 else each for each, length in zip(array, lengths, strict=True)]
            for name, array in found.items()
        }
