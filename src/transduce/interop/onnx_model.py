"""A folder of ONNX graphs, run by onnxruntime.

Legend: B sentences, S source length, T target pieces of a call, V vocabulary.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.interop.exported import Ids
from transduce.interop.onnx import DECODER, ENCODER
from transduce.interop.packages import import_extra

Arrays = dict[str, NDArray[Any]]


class OnnxModel:
    """Implements `ExportedModel`."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        self._encoder = _session(folder / ENCODER, threads)
        self._decoder = _session(folder / DECODER, threads)
        metadata = self._encoder.get_modelmeta().custom_metadata_map
        self._pad, self._eos, self._start = (int(metadata[name]) for name in ("pad_id", "eos_id", "start_id"))
        self._memory_names = [output.name for output in self._encoder.get_outputs()]
        self._known_names = [f"past_{output.name}" for output in self._decoder.get_outputs()[1:]]

    def encode(self, sources: Ids) -> Arrays:
        """What the decoder needs of these sentences."""
        source_ids = self._padded([[*row, self._eos] for row in sources])
        return dict(zip(self._memory_names, self._encoder.run(None, {"source_ids": source_ids}), strict=True))

    def nothing_known(self, sentences: int) -> Arrays:
        """A cache of length 0."""
        shapes = {given.name: given.shape for given in self._decoder.get_inputs()}
        return {
            name: np.zeros((sentences, shapes[name][1], 0, shapes[name][3]), dtype=np.float32)
            for name in self._known_names
        }

    def decode(self, target_ids: NDArray[np.int64], memory: Arrays, known: Arrays) -> tuple[NDArray[Any], Arrays]:
        """Logits (B, T, V) after these pieces (B, T), and the cache with them."""
        logits, *arrays = self._decoder.run(None, {"target_ids": target_ids, **memory, **known})
        return logits, dict(zip(self._known_names, arrays, strict=True))

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Of each target's pieces and the end symbol, in one call of the decoder."""
        inputs = self._padded([[self._start, *row] for row in targets])
        logits, _ = self.decode(inputs, self.encode(sources), self.nothing_known(len(sources)))
        highest = logits.max(axis=-1, keepdims=True)
        normalizer = highest + np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True))
        found = []
        for row, target in enumerate(targets):
            ids = [*target, self._eos]
            found.append((logits - normalizer)[row, range(len(ids)), ids].tolist())
        return found

    def translate(self, sources: Ids, most_pieces: int) -> list[list[int]]:
        """What greedy search finds, a piece a call."""
        memory, known = self.encode(sources), self.nothing_known(len(sources))
        newest = np.full((len(sources), 1), self._start, dtype=np.int64)
        pieces = np.zeros((len(sources), 0), dtype=np.int64)
        while pieces.shape[1] < most_pieces and not (pieces == self._eos).any(axis=1).all():
            logits, known = self.decode(newest, memory, known)
            logits[:, -1, sorted({self._pad, self._start} - {self._eos})] = -np.inf
            newest = logits[:, -1].argmax(axis=-1)[:, None]
            pieces = np.concatenate([pieces, newest], axis=1)
        rows: list[list[int]] = pieces.tolist()
        return [row[: row.index(self._eos)] if self._eos in row else row for row in rows]

    def _padded(self, rows: Ids) -> NDArray[np.int64]:
        width = max(map(len, rows))
        return np.array([[*row, *[self._pad] * (width - len(row))] for row in rows], dtype=np.int64)


def _session(path: Path, threads: int) -> Any:
    onnxruntime = import_extra("onnxruntime", "export")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
