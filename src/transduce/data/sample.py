"""Some of a corpus' pairs, for what needs no more: the same ones whoever chooses them."""

import json
from pathlib import Path

import msgspec

from transduce.data.order import permutation
from transduce.text import CorpusFiles
from transduce.text.corpus import PairBlock, PairReader

# Keeps this random choice apart from the orders of batches.
_SAMPLE = 5


def write_sample(files: CorpusFiles, pairs: int, most: int, path: Path) -> CorpusFiles:
    """Write ``most`` of the corpus' ``pairs`` as a file of JSON lines, in their order; returns how to read it.

    Every block of the corpus gives its share, to within one pair. Which of its pairs are taken depends on the block's
    number and a fixed seed: neither on what they say nor on a period in which a corpus repeats itself.
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
                except UnicodeEncodeError:  # it holds bytes that are no UTF-8, which the reader knows as escapes
                    line = json.dumps(pair).encode()
                stream.write(line + b"\n")
            before = after
    return CorpusFiles(source=(str(path),), format="jsonl")


def _object(block: PairBlock, row: int) -> dict[str, str]:
    return {"source": block.sources[row], "target": block.targets[row]}
