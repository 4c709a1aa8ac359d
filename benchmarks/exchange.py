"""Check that imported and exported models compute the same, for each family and runtime, and tokenizer.json on every
line.

    python benchmarks/exchange.py                  # all lines of Tatoeba zh-en and de-en: minutes on one core
    python benchmarks/exchange.py --quick          # 5,000 lines of each file
    python benchmarks/exchange.py --json rows.json # the figures as a list of rows; `-` for standard output

Models have random weights in all parameters and are compared on sentences of the dev set and a long one. Compared are
log-probabilities of each token of the model's greedy translation and of random tokens, all in float32, and the
translations themselves; for encoders, all states and logits. Bars are 1e-5 nats with transformers, and 1e-4 with
CTranslate2 and onnxruntime; beyond 10 nats the bars are relative, as rounding errors are. Missing packages are
installed into a separate environment.
"""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from environments import peer_python, pinned
from exchange_families import OUT, brought_in, make_model
from report import REPOSITORY, Row, data_folder, machine, parser, report

from transduce.exchange.comparison import (
    OriginalEncoder,
    OriginalLanguageModel,
    OriginalModel,
    compare_encoders,
    compare_models,
)
from transduce.inference.translator import Translator
from transduce.interop.components import ExportedEncoder, ExportedModel
from transduce.interop.ctranslate2 import (
    CTranslate2LanguageModel,
    CTranslate2Model,
    ctranslate2_obstacles,
    write_ctranslate2,
)
from transduce.interop.hugging_face.export import (
    HuggingFaceEncoder,
    HuggingFaceLanguageModel,
    HuggingFaceModel,
    class_for,
)
from transduce.interop.onnx.export import OnnxEncoder, OnnxLanguageModel, OnnxModel, write_onnx
from transduce.model.build import Model
from transduce.model.transformer import Decoder, Encoder, Transformer
from transduce.model_folder.write import TransformersContent, write_model_folder
from transduce.text.corpus import CorpusFiles, read_pairs
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer, tokenizer_json

Write = Callable[[Model, Tokenizer, Path], ExportedModel | ExportedEncoder]

PACKAGES = ("ctranslate2", "onnx", "onnxruntime", "transformers")
ODD_TEXTS = [
    *[
        "",
        " ",
        " a",
        "a ",
        "  a  b  ",
        "a\tb",
        "a\u00a0b",
        "\u3000全角\u3000",
        "😀",
        "👨‍👩‍👧‍👦!",
        "e\u0301 é",
        "\u200b\u200d\ufeff",
    ],
    *[
        "ＡＢＣ１２３，。",
        "ｶﾀｶﾅ",
        "שלום עולם",
        "a\u2028b",
        "a\u0085b",
        "a\rb",
        "a\nb",
        "\x00",
        "▁",
        "▁a",
        "a▁▁b",
        "<0x41>",
    ],
    *["1234567 3.14", "x" * 300, "哈哈哈哈哈哈哈", "𠮷野家 𝒳", "\ufffd", "-- — –"],
]


# --- models ---


def to_hugging_face(model: Model, tokenizer: Tokenizer, folder: Path) -> ExportedModel | ExportedEncoder:
    """Write a model folder for Hugging Face's class, and open it with transformers."""
    write_model_folder(
        folder,
        weights=model.state_dict(),
        config=model.config,
        tokenizer=tokenizer,
        languages=("zh", "en"),
        documents={},
        for_transformers=TransformersContent(is_export=True),
    )
    if isinstance(model, Encoder):
        return HuggingFaceEncoder(folder, model.config)
    if isinstance(model, Decoder):
        return HuggingFaceLanguageModel(folder, model.config)
    return HuggingFaceModel(folder, model.config)


def to_ctranslate2(model: Model, tokenizer: Tokenizer, folder: Path) -> ExportedModel:
    """Export the model to CTranslate2 and open it."""
    assert isinstance(model, Transformer | Decoder)
    write_ctranslate2(model, tokenizer, folder)
    opened = CTranslate2LanguageModel if isinstance(model, Decoder) else CTranslate2Model
    return opened(folder, tokenizer, start_id=model.config.start_id, threads=1)


def to_onnx(model: Model, tokenizer: Tokenizer, folder: Path) -> ExportedModel | ExportedEncoder:
    """Export the model to ONNX and open it with onnxruntime."""
    write_onnx(model, folder)
    if isinstance(model, Encoder):
        return OnnxEncoder(folder, threads=1)
    if isinstance(model, Decoder):
        return OnnxLanguageModel(folder, threads=1, unknown_id=tokenizer.target.unk_id)
    return OnnxModel(folder, threads=1)


def compared(write: Write, model: Model, tokenizer: Tokenizer, lines: list[str]) -> float:
    """Return the largest difference of a log-probability in nats, relative to a tenth of it beyond 10 nats.

    For an encoder, return the largest difference of any output. If the generated texts differ, return infinity.
    """
    config = model.config
    special = {config.pad_id, config.eos_id, config.start_id}
    pieces = [id for id in range(config.target_vocabulary_size) if id not in special]
    encoded = tokenizer.source.encode_batch([*lines, " ".join(lines[:12])])
    # Sentences must not contain the random model's special ids, which may differ from the tokenizer's.
    rows = [[id for id in ids if id not in special] or [pieces[0]] for ids in encoded]
    with tempfile.TemporaryDirectory() as folder:
        other = write(model, tokenizer, Path(folder))
        if isinstance(model, Encoder):
            assert isinstance(other, ExportedEncoder)
            types = [[int(place > len(row) // 2) for place in range(len(row))] for row in rows]
            found = compare_encoders(OriginalEncoder(model), other, rows, types).agreement
            return found.largest_difference if found.same_choices == found.texts else float("inf")
        assert isinstance(other, ExportedModel)
        own: ExportedModel
        if isinstance(model, Decoder):
            own = OriginalLanguageModel(model, unknown_id=tokenizer.target.unk_id, context=512)
            rows = [row[: len(row) // 2] for row in rows]
        else:
            own = OriginalModel(Translator(model, tokenizer))
            rows = [[*row, config.eos_id] for row in rows]
        comparison = compare_models(own, other, rows, tokens=pieces, max_tokens=60)
    if not all(comparison.agreeing):
        return float("inf")
    places = [*comparison.own_differences, *comparison.random_differences]
    return max(place.difference / max(1.0, abs(place.ours) / 10.0) for place in places)


def rows_out(tokenizers: tuple[Tokenizer, Tokenizer], lines: list[str]) -> Iterator[Row]:
    """Yield a row for each family and each runtime that supports it."""
    for family in OUT:
        tokenizer = tokenizers[family.separate]
        model = make_model(tokenizer, family)
        config = model.config
        ways: list[tuple[str, float, Write]] = []
        if (architecture := class_for(config)) is not None:
            ways.append((f"transformers {version('transformers')} as {architecture}", 1e-5, to_hugging_face))
        # CTranslate2 uses the tokenizer's tokens, so its padding id must be the model's.
        if not ctranslate2_obstacles(config) and tokenizer.source.pad_id == config.pad_id:
            ways.append((f"CTranslate2 {version('ctranslate2')}", 1e-4, to_ctranslate2))
        ways.append((f"onnxruntime {version('onnxruntime')}", 1e-4, to_onnx))
        for name, most, write in ways:
            difference = compared(write, model, tokenizer, lines)
            yield difference_row(f"out: {family.name} → {name}", difference, most, "same choices")


def rows_in() -> Iterator[Row]:
    """Yield a row for each family that transformers created."""
    for name, difference in brought_in():
        yield difference_row(f"in: {name}", difference, 1e-5, "32 rows of up to 60 tokens")


def difference_row(name: str, difference: float, most: float, rule: str) -> Row:
    """Return a row with a difference and its bar."""
    bar = f"at most {most * 1e6:g}, {rule}"
    return Row(name, difference * 1e6, "millionths of a nat", bar=bar, holds=difference <= most)


# --- tokenizers ---


def tokenizer_rows(folder: Path, most_lines: int | None) -> Iterator[Row]:
    """Yield rows that count the lines for which tokenizer.json and sentencepiece give different ids."""
    tokenizers: Any = import_module("tokenizers")
    for corpus, side in (("tatoeba-zh-en", "zh"), ("tatoeba-de-en", "de")):
        for kind in ("bpe", "unigram"):
            tokenizer = learn(folder / corpus, side, kind)
            other = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(tokenizer.source)))
            end = tokenizer.source.eos_id
            count = differing = 0
            for portion in portions(texts(folder / corpus, (side, "en"), most_lines)):
                ours = [[*ids, end] for ids in tokenizer.source.encode_batch(portion)]
                theirs = [encoding.ids for encoding in other.encode_batch(portion)]
                count += len(portion)
                differing += sum(left != right for left, right in zip(ours, theirs, strict=True))
            yield Row(
                f"tokenizer.json, {kind}, {corpus}: lines of {count:,} with other ids than sentencepiece's",
                differing,
                "lines",
                bar="none",
                holds=differing == 0,
            )


def learn(folder: Path, side: str, kind: Any, size: int = 8_000, *, joint: bool = True) -> Tokenizer:
    """Learn a tokenizer from the first 20,000 pairs."""
    files = CorpusFiles(source=(str(folder / f"train.{side}.gz"),), target=(str(folder / "train.en.gz"),))
    settings = TokenizerSettings(kind=kind, vocabulary_size=size, joint=joint)
    return Tokenizer.train(lambda: islice(read_pairs(files), 20_000), settings, adjust=True)


def texts(folder: Path, sides: tuple[str, str], most_lines: int | None) -> Iterator[str]:
    """Yield unusual texts, then the lines of all files."""
    yield from ODD_TEXTS
    for part in ("dev", "test", "train"):
        for side in sides:
            with gzip.open(folder / f"{part}.{side}.gz", "rt", encoding="utf-8", newline="\n") as lines:
                yield from (line.removesuffix("\n") for line in islice(lines, most_lines))


def portions(lines: Iterator[str], size: int = 10_000) -> Iterator[list[str]]:
    """Yield lists of `size` lines."""
    while portion := list(islice(lines, size)):
        yield portion


# --- the run ---


def run_in_environment() -> int:
    """Run this script again in an environment that also has the missing packages."""
    python = peer_python("exchange", [pinned(name) for name in PACKAGES])
    ours = [str(REPOSITORY / "src"), *sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(ours)}
    return subprocess.run([python, *sys.argv], env=environment, check=False).returncode


def main() -> int:
    """Run the benchmark, report its rows, and return 1 if a bar is missed."""
    options = parser(__doc__)
    options.add_argument("--lines", type=int, metavar="N", help="lines of each file for the tokenizers (default: all)")
    args = options.parse_args()
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        return run_in_environment()
    torch.set_num_threads(1)
    sys.stderr.write(f"{machine()}\n")
    folder = data_folder()
    corpus = folder / "tatoeba-zh-en"
    tokenizers = (learn(corpus, "zh", "bpe", 2_000), learn(corpus, "zh", "bpe", 4_000, joint=False))
    with gzip.open(folder / "tatoeba-zh-en" / "dev.zh.gz", "rt", encoding="utf-8", newline="\n") as lines:
        sentences = [line.removesuffix("\n") for line in islice(lines, 20 if args.quick else 200)]
    rows = [*rows_in(), *rows_out(tokenizers, sentences)]
    rows += tokenizer_rows(folder, 5_000 if args.quick else args.lines)
    return report(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
