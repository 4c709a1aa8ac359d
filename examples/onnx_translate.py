"""Translate with a model exported by `transduce export --to onnx`, using only onnxruntime, sentencepiece and numpy.

    python examples/onnx_translate.py FOLDER < in.txt > out.txt

Greedy search over all lines in one batch: the encoder runs once, the decoder once per token of the longest translation.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import sentencepiece

MAX_EXTRA_TOKENS = 50  # of a translation, compared with the longest source


def translate(folder: Path, lines: list[str]) -> list[str]:
    """Return one translation per line."""
    encoder = onnxruntime.InferenceSession(str(folder / "encoder.onnx"))
    decoder = onnxruntime.InferenceSession(str(folder / "decoder.onnx"))
    metadata = encoder.get_modelmeta().custom_metadata_map
    pad, end, start = (int(metadata[name]) for name in ("pad_id", "eos_id", "start_id"))

    # Token ids of the sources with the end symbol, padded: (lines, longest).
    rows = [[*ids, end] for ids in vocabulary(folder, "source").encode(lines)]
    width = max(map(len, rows))
    source_ids = np.array([row + [pad] * (width - len(row)) for row in rows], dtype=np.int64)

    # The encoder's outputs have the names of the decoder's inputs. The cache has length 0 at first.
    names = [output.name for output in encoder.get_outputs()]
    memory = dict(zip(names, encoder.run(None, {"source_ids": source_ids}), strict=True))
    # A recurrent model's initial state is among the encoder's outputs.
    missing = {given.name: given.shape for given in decoder.get_inputs() if given.name not in {"target_ids", *memory}}
    cache = {name: np.zeros((len(rows), size[1], 0, size[3]), np.float32) for name, size in missing.items()}
    cache_names = [f"past_{output.name}" for output in decoder.get_outputs()[1:]]

    newest = np.full((len(rows), 1), start, dtype=np.int64)
    written = np.zeros((len(rows), 0), dtype=np.int64)
    while written.shape[1] < width + MAX_EXTRA_TOKENS and not (written == end).any(axis=1).all():
        logits, *arrays = decoder.run(None, {"target_ids": newest, **memory, **cache})
        cache = dict(zip(cache_names, arrays, strict=True))
        logits[:, -1, pad] = -np.inf  # never select padding
        newest = logits[:, -1].argmax(axis=-1)[:, None]
        written = np.concatenate([written, newest], axis=1)
    found = [row[: row.index(end)] if end in row else row for row in written.tolist()]
    return [text.replace("\n", " ") for text in vocabulary(folder, "target").decode(found)]


def vocabulary(folder: Path, side: str) -> sentencepiece.SentencePieceProcessor:
    """Load the sentencepiece model of a side; source and target may share one."""
    joint = folder / "sentencepiece.model"
    return sentencepiece.SentencePieceProcessor(model_file=str(joint if joint.exists() else folder / f"{side}.spm"))


if __name__ == "__main__":
    sources = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n").split("\n")
    sys.stdout.buffer.write("".join(f"{text}\n" for text in translate(Path(sys.argv[1]), sources)).encode())
