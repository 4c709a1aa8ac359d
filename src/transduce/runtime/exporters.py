"""Other programs' forms of a model: how each is written, and opened again to be checked."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from transduce.errors import TransduceError
from transduce.interop.bricks import check_components
from transduce.interop.ctranslate2 import (
    QUANTIZATIONS,
    CTranslate2LanguageModel,
    CTranslate2Model,
    ctranslate2_obstacles,
    write_ctranslate2,
)
from transduce.interop.exported import ExportedEncoder, ExportedModel
from transduce.interop.huggingface_families import HUGGING_FACE, huggingface_obstacles, huggingface_remedy
from transduce.interop.huggingface_model import HuggingFaceEncoder, HuggingFaceLanguageModel, HuggingFaceModel
from transduce.interop.onnx import onnx_obstacles, write_onnx
from transduce.interop.onnx_model import OnnxEncoder, OnnxLanguageModel, OnnxModel
from transduce.interop.readme import readme
from transduce.interop.tokenizer_files import has_tokenizer
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder
from transduce.model.encoder import Encoder
from transduce.model.recurrent import Recurrent
from transduce.runtime.export_trial import cut_alike, tokenized
from transduce.runtime.folder import VOCABULARIES
from transduce.runtime.folder_writing import write_model_folder
from transduce.runtime.kept_tokenizer import has_kept_files, read_kept_files, write_kept_files
from transduce.runtime.original import Original
from transduce.runtime.task_card import TASK_CARD, find_task_card
from transduce.runtime.untrusted import file_inside
from transduce.text.foreign import ForeignTokenizer

# What a run has written for people.
_DOCUMENTS = ("README.md", "settings.toml")


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

    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel | ExportedEncoder:
        """What was written, to be run; with texts to try its tokenizer on, where it has one of its own."""

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
        model = self.original.model
        _check_fits("ctranslate2", "CTranslate2", model.config)
        assert not isinstance(model, Encoder | Recurrent)  # which do not fit
        write_ctranslate2(model, self.original.tokenizer, folder, quantization=quantization)
        _write_vocabularies(self.original, folder)

    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel:  # noqa: ARG002
        """CTranslate2's translator or generator."""
        original = self.original
        if isinstance(original.model, Decoder):
            return CTranslate2LanguageModel(
                folder, original.tokenizer, start_id=original.config.start_id, threads=original.threads
            )
        return CTranslate2Model(folder, original.tokenizer, start_id=original.config.start_id, threads=original.threads)

    def describe(self, folder: Path, measured: str) -> None:
        """Writes README.md."""
        _write_readme("ctranslate2", self.original, folder, measured)


class OnnxExporter:
    """encoder.onnx and decoder.onnx, or model.onnx; and sentencepiece's files."""

    title = "ONNX"
    quantizations = ("float32",)

    def __init__(self, original: Original) -> None:
        self.original = original

    def write(self, folder: Path, quantization: str) -> None:  # noqa: ARG002
        """Builds the graphs.

        Raises:
            TransduceError: a package is not installed, or a setting of the model has no graph.
        """
        _check_fits("onnx", "Our ONNX graphs", self.original.config)
        write_onnx(self.original.model, folder)
        _write_vocabularies(self.original, folder)
        for name, text in _task_document(self.original.folder).items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")

    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel | ExportedEncoder:  # noqa: ARG002
        """By onnxruntime."""
        threads = self.original.threads
        if isinstance(self.original.model, Encoder):
            return OnnxEncoder(folder, threads=threads)
        if isinstance(self.original.model, Decoder):
            return OnnxLanguageModel(folder, threads=threads, never_written=self.original.tokenizer.target.unk_id)
        return OnnxModel(folder, threads=threads, forced=self.original.tokenizer.target.forced)

    def describe(self, folder: Path, measured: str) -> None:
        """Writes README.md."""
        _write_readme("onnx", self.original, folder, measured)


class HuggingFaceExporter:
    """A model folder, which is Hugging Face's where a class fits, without a run's own files.

    It is written anew: a folder may be from a time when no class was known for its model.
    """

    title = "Hugging Face"
    quantizations = ("float32",)

    def __init__(self, original: Original) -> None:
        self.original = original

    def write(self, folder: Path, quantization: str) -> None:  # noqa: ARG002
        """Writes the files.

        Raises:
            TransduceError: no class fits the model or its tokenizer.
        """
        original = self.original
        tokenizer = original.tokenizer
        _check_fits("huggingface", "Hugging Face's classes", original.config)
        check_components(HUGGING_FACE, original.model)
        self._check_tokenizer()
        found = (file_inside(original.folder, name) for name in _DOCUMENTS if (original.folder / name).is_file())
        write_model_folder(
            folder,
            weights=original.model.state_dict(),
            config=original.config,
            tokenizer=tokenizer,
            languages=original.languages,
            documents={path.name: path.read_text("utf-8") for path in found} | _task_document(original.folder),
        )
        if isinstance(tokenizer, ForeignTokenizer):
            write_kept_files(folder, read_kept_files(original.folder, original.languages))

    def _check_tokenizer(self) -> None:
        original = self.original
        is_foreign = isinstance(original.tokenizer, ForeignTokenizer)
        if has_kept_files(original.folder) if is_foreign else has_tokenizer(original.tokenizer, original.config):
            return
        others = _others("huggingface", original.config)
        if is_foreign:
            raise TransduceError(
                f"The tokenizer in {original.folder} was imported, and its own files are not there: copy them from the "
                "folder that it came from (tokenizer.json or a sentencepiece model, and tokenizer_config.json), or "
                f"{others}."
            )
        raise TransduceError(
            "Of Hugging Face's tokenizers only Marian's has a vocabulary for each side, and no composed text "
            f"(`tokenizer.nfc`), but {original.folder} has one for each side with other settings: {others}."
        )

    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel | ExportedEncoder:
        """By transformers.

        Raises:
            TransduceError: its tokenizer cuts a text into other pieces than ours.
        """
        model = self._opened(folder)
        if isinstance(self.original.tokenizer, ForeignTokenizer):
            vocabulary = self.original.tokenizer.target
            model.search_plainly(vocabulary.unk_id, vocabulary.forced)
        texts = cut_alike(self.original, texts)
        for text, left, right in zip(texts, tokenized(self.original, texts), model.ids_of(texts), strict=True):
            if left != right:
                raise TransduceError(
                    "The export to Hugging Face was checked and is wrong, so nothing was written: its tokenizer cuts "
                    f'"{text}" into other pieces; please report this with the model\'s tokenizer.json.'
                )
        return model

    def _opened(self, folder: Path) -> HuggingFaceModel | HuggingFaceLanguageModel | HuggingFaceEncoder:
        config = self.original.config
        if config.kind == "encoder":
            return HuggingFaceEncoder(folder, config)
        return (
            HuggingFaceLanguageModel(folder, config) if config.kind == "decoder" else HuggingFaceModel(folder, config)
        )

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


def formats_for(config: ModelConfig) -> list[str]:
    """The exports that can have a model."""
    return [name for name, obstacles in _OBSTACLES.items() if not obstacles(config)]


def _check_fits(name: str, title: str, config: ModelConfig) -> None:
    obstacles = _OBSTACLES[name](config)
    if obstacles:
        values = ", ".join(f"`model.{setting}` = {_value(config, setting)}" for setting in obstacles)
        remedy = huggingface_remedy(config) if name == "huggingface" else {}
        fitting = ", ".join(f"`model.{setting}` = {_as_toml(value)}" for setting, value in remedy.items())
        other = f", or train one with {fitting}" if fitting else ""
        raise TransduceError(f"{title} cannot compute a model with {values}: {_others(name, config)}{other}.")


def _value(config: ModelConfig, setting: str) -> str:
    """As TOML has it; where nothing was said, what that means."""
    chosen: dict[str, object] = {
        "num_key_value_heads": config.num_key_value_heads or config.num_heads,
        "d_k": config.key_width,
        "d_v": config.value_width,
        "final_norm": config.has_final_norm,
    }
    said = msgspec.structs.asdict(config)
    if setting in ("projection_bias", "attention_output_bias", "feed_forward_bias") and said[setting] is None:
        chosen[setting] = config.bias
    return _as_toml(chosen.get(setting, said[setting]))


def _as_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _others(name: str, config: ModelConfig) -> str:
    """What is left to do with a model that one program cannot have."""
    fitting = [other for other in formats_for(config) if other != name]
    return f"export it to {' or '.join(fitting)}" if fitting else "no other export can either"


def _write_vocabularies(original: Original, folder: Path) -> None:
    """What cuts texts into the model's pieces."""
    if isinstance(original.tokenizer, ForeignTokenizer):
        original.tokenizer.save(folder)
    else:
        _copy(original.folder, folder, VOCABULARIES)


def _task_document(folder: Path) -> dict[str, str]:
    """What says what a model is for, by its name; nothing where nothing does."""
    card = find_task_card(folder)
    return {} if card is None else {TASK_CARD: card.text()}


def _copy(source: Path, target: Path, names: Sequence[str]) -> None:
    """Those of the files that are there, if they are the folder's own."""
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(file_inside(source, name), target / name)


def _write_readme(export_format: str, original: Original, folder: Path, measured: str) -> None:
    text = readme(
        export_format, original.config.kind, original.tokenizer, original.languages, measured, original.longest
    )
    (folder / "README.md").write_text(text, encoding="utf-8", newline="\n")
