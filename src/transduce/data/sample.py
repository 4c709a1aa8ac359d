"""A deterministic sample of a corpus's pairs, for steps that do not need all of them."""

import json
from pathlib import Path

import msgspec

from transduce.data.order import permutation
from transduce.text import CorpusFiles
from transduce.text.corpus import PairBlock, PairReader

# Makes this random choice independent of the orders of batches.
_SAMPLE = 5


def write_sample(files: CorpusFiles, pairs: int, most: int, path: Path) -> CorpusFiles:
    """Write ``most`` of the corpus's ``pairs`` as JSON lines in their order, and return a description of the file.

    Every block of the corpus contributes its share, to within one pair. Which of its pairs are taken depends on the
    block's number and a fixed seed, so periodic patterns in a corpus do not bias the sample.
    """
    encoder = msgspec.json.Encoder()
    before = 0
    with path.open("wb") as stream:
        for block in PairReader(files):
            after = before + len(block.sources)
            share = after * most // pairs - before * most // pairs
            for row in sorted(permutation(len(block.sources), _SAMPLE, block.number)[:share].tolist()):
                pair = _object(block, row)
                try:
                    line = encoder.encode(pair)
                except UnicodeEncodeError:  # the text has bytes that are not UTF-8, which the reader has escaped
                    line = json.dumps(pair).encode()
                stream.write(line + b"\n")
            before = after
    return CorpusFiles(source=(str(path),), format="jsonl")


def _object(block: PairBlock, row: int) -> dict[str, str]:
    return {"source": block.sources[row], "target": block.targets[row]}
