"""Other programs' forms of a model: how each is written, and opened again to be checked."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from transduce.errors import TransduceError
from transduce.interop.ctranslate2 import QUANTIZATIONS, CTranslate2Model, ctranslate2_obstacles, write_ctranslate2
from transduce.interop.exported import ExportedModel
from transduce.interop.huggingface import huggingface_obstacles
from transduce.interop.huggingface_model import HuggingFaceModel
from transduce.interop.onnx import longest_sequence, onnx_obstacles, write_onnx
from transduce.interop.onnx_model import OnnxModel
from transduce.interop.readme import readme
from transduce.model.config import ModelConfig
from transduce.runtime.folder import CONFIG, MANIFEST, TOKENIZER_CARD, VOCABULARIES, WEIGHTS
from transduce.runtime.translator import Translator

_HUGGING_FACE_FILES = (
    CONFIG,
    WEIGHTS,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_FURTHER_FILES = (*VOCABULARIES, TOKENIZER_CARD, MANIFEST, "README.md", "settings.toml")


class Original(NamedTuple):
    """What is exported."""

    translator: Translator
    """In float32."""
    folder: Path
    """Its model folder."""
    threads: int


class Exporter(Protocol):
    """One form of a model."""

    @property
    def title(self) -> str:
        """What people call it."""

    @property
    def quantizations(self) -> Sequence[str]:
        """How its weights can be stored; the first is float32."""

    def write(self, folder: Path, quantization: str) -> None:
        """Writes all files into a folder that is empty."""

    def open(self, folder: Path, sentences: Sequence[str]) -> ExportedModel:
        """What was written, to be run; with sentences to try its tokenizer on, where it has one of its own."""

    def describe(self, folder: Path, measured: str) -> None:
        """Adds what people read."""


class CTranslate2Exporter:
    """model.bin, config.json, vocabularies; and sentencepiece's files."""

    title = "CTranslate2"
    quantizations = QUANTIZATIONS

    def __init__(self, original: Original) -> None:
        self.original = original

    def write(self, folder: Path, quantization: str) -> None:
        """By CTranslate2's package.

        Raises:
            TransduceError: it is not installed, or has no brick for a setting of the model.
        """
        translator = self.original.translator
        _check_fits("ctranslate2", "CTranslate2", translator.model.config)
        write_ctranslate2(translator.transformer, translator.tokenizer, folder, quantization=quantization)
        _copy(self.original.folder, folder, VOCABULARIES)

    def open(self, folder: Path, sentences: Sequence[str]) -> ExportedModel:  # noqa: ARG002
        """CTranslate2's translator."""
        translator = self.original.translator
        return CTranslate2Model(
            folder,
            translator.tokenizer,
            start_id=translator.model.config.start_id,
            threads=self.original.threads,
        )

    def describe(self, folder: Path, measured: str) -> None:
        """Writes README.md."""
        _write_readme("ctranslate2", self.original, folder, measured)


class OnnxExporter:
    """encoder.onnx and decoder.onnx; and sentencepiece's files."""

    title = "ONNX"
    quantizations = ("float32",)

    def __init__(self, original: Original) -> None:
        self.original = original

    def write(self, folder: Path, quantization: str) -> None:  # noqa: ARG002
        """Builds both graphs.

        Raises:
            TransduceError: a package is not installed, or the model is no encoder and decoder with attention.
        """
        _check_fits("onnx", "Our ONNX graphs", self.original.translator.model.config)
        write_onnx(self.original.translator.transformer, folder)
        _copy(self.original.folder, folder, VOCABULARIES)

    def open(self, folder: Path, sentences: Sequence[str]) -> ExportedModel:  # noqa: ARG002
        """By onnxruntime."""
        return OnnxModel(folder, threads=self.original.threads)

    def describe(self, folder: Path, measured: str) -> None:
        """Writes README.md."""
        _write_readme("onnx", self.original, folder, measured)


class HuggingFaceExporter:
    """The model folder is Hugging Face's already where a class fits: its files, without a run's own."""

    title = "Hugging Face"
    quantizations = ("float32",)

    def __init__(self, original: Original) -> None:
        self.original = original

    def write(self, folder: Path, quantization: str) -> None:  # noqa: ARG002
        """Copies the files.

        Raises:
            TransduceError: no class fits the model or its tokenizer, or a file is missing.
        """
        translator, config = self.original.translator, self.original.translator.model.config
        _check_fits("huggingface", "Hugging Face's classes", config)
        if not translator.tokenizer.joint:
            raise TransduceError(
                f"A tokenizer of Hugging Face's has one vocabulary, but {self.original.folder} has one for each side: "
                f"{_others('huggingface', config)}."
            )
        missing = [name for name in _HUGGING_FACE_FILES if not (self.original.folder / name).is_file()]
        if missing:
            raise TransduceError(
                f"{self.original.folder} has no {' and no '.join(missing)}, which Hugging Face's classes read: "
                "copy the model folder again."
            )
        _copy(self.original.folder, folder, (*_HUGGING_FACE_FILES, *_FURTHER_FILES))

    def open(self, folder: Path, sentences: Sequence[str]) -> ExportedModel:
        """By transformers.

        Raises:
            TransduceError: its tokenizer cuts a sentence into other pieces than ours.
        """
        model, vocabulary = HuggingFaceModel(folder), self.original.translator.tokenizer.source
        ours = [[*ids, vocabulary.eos_id] for ids in vocabulary.encode_batch(sentences)]
        for sentence, left, right in zip(sentences, ours, model.source_ids(sentences), strict=True):
            if left != right:
                raise TransduceError(
                    "The export to Hugging Face was checked and is wrong, so nothing was written: its tokenizer cuts "
                    f'"{sentence}" into other pieces; please report this with the model\'s tokenizer.json.'
                )
        return model

    def describe(self, folder: Path, measured: str) -> None:
        """The model's own card is there already."""


_EXPORTERS: dict[str, Callable[[Original], Exporter]] = {
    "ctranslate2": CTranslate2Exporter,
    "onnx": OnnxExporter,
    "huggingface": HuggingFaceExporter,
}
FORMATS = tuple(_EXPORTERS)
_OBSTACLES = {"ctranslate2": ctranslate2_obstacles, "onnx": onnx_obstacles, "huggingface": huggingface_obstacles}


def exporter_for(name: str, original: Original) -> Exporter:
    """The exporter of one of FORMATS.

    Raises:
        TransduceError: there is none of this name.
    """
    if name not in _EXPORTERS:
        raise TransduceError(f"A model can be exported to {', '.join(FORMATS)}, but not to `{name}`.")
    return _EXPORTERS[name](original)


def _check_fits(name: str, title: str, config: ModelConfig) -> None:
    obstacles = _OBSTACLES[name](config)
    if obstacles:
        values = ", ".join(f"`model.{setting}` = {_value(config, setting)}" for setting in obstacles)
        raise TransduceError(f"{title} cannot compute a model with {values}: {_others(name, config)}.")


def _value(config: ModelConfig, setting: str) -> str:
    """As TOML has it; where nothing was said, what that means."""
    chosen = {"d_k": config.key_width, "d_v": config.value_width, "final_norm": config.has_final_norm}
    value = chosen.get(setting, msgspec.structs.asdict(config)[setting])
    return str(value).lower() if isinstance(value, bool) else str(value)


def _others(name: str, config: ModelConfig) -> str:
    """What is left to do with a model that one program cannot have."""
    fitting = [other for other, obstacles in _OBSTACLES.items() if other != name and not obstacles(config)]
    return f"export it to {' or '.join(fitting)}" if fitting else "no other export can either"


def _copy(source: Path, target: Path, names: Sequence[str]) -> None:
    """Those of the files that are there."""
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _write_readme(export_format: str, original: Original, folder: Path, measured: str) -> None:
    translator = original.translator
    languages = (translator.source_language, translator.target_language)
    longest = longest_sequence(translator.model.config)
    text = readme(export_format, translator.tokenizer, languages, measured, longest)
    (folder / "README.md").write_text(text, encoding="utf-8", newline="\n")
