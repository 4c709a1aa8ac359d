"""Create model folders with random weights, for measurements that do not depend on trained weights.

python benchmarks/serving_models.py FOLDER --large
"""

import argparse
import sys
from itertools import islice
from pathlib import Path

import torch
from report import data_folder

from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.model_folder.write import write_model_folder
from transduce.text.corpus import Pair
from transduce.text.files import read_lines
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

_TRAINING_LINES = 20_000


def sentences(count: int) -> list[str]:
    """Return `count` Chinese test sentences of Tatoeba, repeated if there are too few."""
    lines = [line for line in read_lines(data_folder() / "tatoeba-zh-en" / "test.zh.gz") if line.strip()]
    return [lines[number % len(lines)] for number in range(count)]


def write_random_model(folder: Path, *, large: bool) -> Path:
    """Write a model folder: 6+6 layers × 512 and 16,000 tokens, or 1+1 × 64 and 2,000; the vocabulary is Tatoeba's."""
    if (folder / "config.json").exists():
        return folder
    source, target = (data_folder() / "tatoeba-zh-en" / f"train.{side}.gz" for side in ("zh", "en"))

    def pairs() -> list[Pair]:
        lines = zip(read_lines(source), read_lines(target), strict=True)
        return [Pair(*pair, line) for line, pair in enumerate(islice(lines, _TRAINING_LINES), 1)]

    size = 16_000 if large else 2_000
    tokenizer = Tokenizer.train(pairs, TokenizerSettings(vocabulary_size=size), adjust=True)
    layers, d_model = (6, 512) if large else (1, 64)
    vocabulary = tokenizer.source
    config = ModelConfig(
        source_vocabulary_size=vocabulary.size,
        target_vocabulary_size=vocabulary.size,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        num_heads=d_model // 64,
        pad_id=vocabulary.pad_id,
        eos_id=vocabulary.eos_id,
        start_id=vocabulary.pad_id,
    )
    torch.manual_seed(1)
    model = Transformer(config)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    write_model_folder(
        folder, weights=weights, config=config, tokenizer=tokenizer, languages=("zh", "en"), documents={}
    )
    return folder


def main() -> int:
    """Write a model folder."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--large", action="store_true", help="a model of 6+6 layers × 512")
    args = options.parse_args()
    write_random_model(args.folder, large=args.large)
    return 0


if __name__ == "__main__":
    sys.exit(main())
