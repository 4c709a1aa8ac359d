"""Are models the same elsewhere? Each family of models out to each program, and tokenizer.json on every line.

    python benchmarks/exchange.py                  # all lines of Tatoeba zh-en and de-en: minutes on one core
    python benchmarks/exchange.py --quick          # 5,000 lines of each file
    python benchmarks/exchange.py --json rows.json # the figures as a list of rows; `-` for standard output

Models have random weights in all their parameters, and are compared on sentences of the dev set and a long one: the
log-probabilities of each piece of the model's greedy translation and of random pieces, all in float32, and the
translations themselves. Bars are 1e-5 nats with transformers and 1e-4 with CTranslate2 and onnxruntime. Packages that
are not installed beside transduce come from an environment of their own.
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
from report import REPOSITORY, Row, data_folder, machine, parser, report

from transduce.interop.ctranslate2 import CTranslate2Model, ctranslate2_obstacles, write_ctranslate2
from transduce.interop.exported import ExportedModel
from transduce.interop.huggingface import class_for
from transduce.interop.huggingface_model import HuggingFaceModel
from transduce.interop.onnx import write_onnx
from transduce.interop.onnx_model import OnnxModel
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.runtime.comparison import OwnModel, compare_models
from transduce.runtime.folder import write_model_folder
from transduce.runtime.translator import Translator
from transduce.text.corpus import CorpusFiles, read_pairs
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.tokenizer_json import tokenizer_json

PACKAGES = ("ctranslate2", "onnx", "onnxruntime", "transformers")
LEARNED = {"positions": "learned", "position_offset": 2, "embedding_norm": True}
M2M100 = {"position_offset": 2, "sinusoids_to_end": True, "pad_id": 1, "eos_id": 2, "start_id": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "pre-norm, sinusoids (the default)": {},
    "post-norm, sinusoids": {"norm_order": "post"},
    "post-norm, learned positions": LEARNED | {"norm_order": "post"},
    "pre-norm, learned positions": LEARNED,
    "pre-norm, sinusoids from 2": M2M100,
    "rotary, RMSNorm, SwiGLU, shared heads": {
        "positions": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "num_key_value_heads": 2,
        "bias": False,
    },
    "bias by distance, RMSNorm, GEGLU": {
        "positions": "relative",
        "norm": "rms",
        "activation": "geglu-tanh",
        "bias": False,
        "scale_embeddings": False,
    },
    "sandwich norms, GELU": {"norm_order": "sandwich", "activation": "gelu"},
    "general score, window of 8": {"attention_score": "general", "attention_window": 8},
}
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


# --- models -----------------------------------------------------------------------------------------------------


def make_translator(tokenizer: Tokenizer, changes: dict[str, Any]) -> Translator:
    """4 + 4 layers × 64 with random weights."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"num_encoder_layers": 4, "num_decoder_layers": 4, "d_model": 64, "d_ff": 128}
    vocabulary = {"source_vocabulary_size": tokenizer.source.size, "target_vocabulary_size": tokenizer.target.size}
    model = Transformer(ModelConfig(**(sizes | vocabulary | {"num_heads": 4} | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return Translator(model, tokenizer)


def to_hugging_face(translator: Translator, folder: Path) -> ExportedModel:
    """The model folder itself, opened by transformers."""
    write_model_folder(
        folder,
        weights={name: parameter.detach() for name, parameter in translator.model.named_parameters()},
        config=translator.model.config,
        tokenizer=translator.tokenizer,
        languages=("zh", "en"),
        documents={},
    )
    return HuggingFaceModel(folder)


def to_ctranslate2(translator: Translator, folder: Path) -> ExportedModel:
    """By our own converter."""
    write_ctranslate2(translator.model, translator.tokenizer, folder)
    return CTranslate2Model(folder, translator.tokenizer, start_id=translator.model.config.start_id, threads=1)


def to_onnx(translator: Translator, folder: Path) -> ExportedModel:
    """Both graphs, run by onnxruntime."""
    write_onnx(translator.model, folder)
    return OnnxModel(folder, threads=1)


def compared(make: Callable[[Translator, Path], ExportedModel], translator: Translator, lines: list[str]) -> float:
    """The largest difference in nats; infinite where a translation is another one."""
    config = translator.model.config
    special = {config.pad_id, config.eos_id, config.start_id}
    encoded = translator.tokenizer.source.encode_batch([*lines, " ".join(lines[:12])])
    with tempfile.TemporaryDirectory() as folder:
        comparison = compare_models(
            OwnModel(translator),
            make(translator, Path(folder)),
            # A random model has ids of its own for padding and end; sentences may not have these in their middle.
            [[id for id in ids if id not in special] for ids in encoded],
            pieces=[id for id in range(config.target_vocabulary_size) if id not in special],
            most_pieces=60,
        )
    agreement = comparison.agreement
    same = agreement.same_translations == agreement.sentences
    return agreement.largest_difference if same else float("inf")


def model_rows(tokenizer: Tokenizer, lines: list[str]) -> Iterator[Row]:
    """A row for each family and each program that can have it."""
    for family, changes in FAMILIES.items():
        translator = make_translator(tokenizer, changes)
        config = translator.model.config
        ways: list[tuple[str, float, Callable[[Translator, Path], ExportedModel]]] = []
        if (architecture := class_for(config)) is not None:
            ways.append((f"transformers {version('transformers')} as {architecture}", 1e-5, to_hugging_face))
        # Its tokens are the tokenizer's, whose padding is 0: models that count positions from the padding id come with
        # a tokenizer of their own.
        if not ctranslate2_obstacles(config) and tokenizer.source.pad_id == config.pad_id:
            ways.append((f"CTranslate2 {version('ctranslate2')}", 1e-4, to_ctranslate2))
        ways.append((f"onnxruntime {version('onnxruntime')}", 1e-4, to_onnx))
        for name, most, make in ways:
            difference = compared(make, translator, lines)
            yield Row(
                f"out: {family} → {name}",
                difference * 1e6,
                "millionths of a nat",
                bar=f"at most {most * 1e6:g}, same translations",
                holds=difference <= most,
            )


# --- tokenizers -------------------------------------------------------------------------------------------------


def tokenizer_rows(folder: Path, most_lines: int | None) -> Iterator[Row]:
    """Lines of which tokenizer.json and sentencepiece make different ids."""
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


def learn(folder: Path, side: str, kind: Any, size: int = 8_000) -> Tokenizer:
    """A tokenizer of the first 20,000 pairs."""
    files = CorpusFiles(source=(str(folder / f"train.{side}.gz"),), target=(str(folder / "train.en.gz"),))
    settings = TokenizerSettings(kind=kind, vocabulary_size=size)
    return Tokenizer.train(lambda: islice(read_pairs(files), 20_000), settings, shrink=True)


def texts(folder: Path, sides: tuple[str, str], most_lines: int | None) -> Iterator[str]:
    """Odd texts, then the lines of all files."""
    yield from ODD_TEXTS
    for part in ("dev", "test", "train"):
        for side in sides:
            with gzip.open(folder / f"{part}.{side}.gz", "rt", encoding="utf-8", newline="\n") as lines:
                yield from (line.removesuffix("\n") for line in islice(lines, most_lines))


def portions(lines: Iterator[str], size: int = 10_000) -> Iterator[list[str]]:
    """Lists of lines."""
    while portion := list(islice(lines, size)):
        yield portion


# --- the run ----------------------------------------------------------------------------------------------------


def run_in_environment() -> int:
    """Runs this script once more, where the missing packages are found too."""
    python = peer_python("exchange", [pinned(name) for name in PACKAGES])
    ours = [str(REPOSITORY / "src"), *sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(ours)}
    return subprocess.run([python, *sys.argv], env=environment, check=False).returncode


def main() -> int:
    """Measures, prints and writes; 1 where a bar is missed."""
    said = parser(__doc__).parse_args()
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        return run_in_environment()
    torch.set_num_threads(1)
    sys.stderr.write(f"{machine()}\n")
    folder = data_folder()
    tokenizer = learn(folder / "tatoeba-zh-en", "zh", "bpe", size=2_000)
    with gzip.open(folder / "tatoeba-zh-en" / "dev.zh.gz", "rt", encoding="utf-8", newline="\n") as lines:
        sentences = [line.removesuffix("\n") for line in islice(lines, 20 if said.quick else 200)]
    rows = list(model_rows(tokenizer, sentences))
    rows += tokenizer_rows(folder, 5_000 if said.quick else None)
    return report(rows, said.json)


if __name__ == "__main__":
    sys.exit(main())
