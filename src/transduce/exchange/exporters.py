"""Write a model in another toolkit's format, and load it again so that the export can be checked."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from transduce.errors import TransduceError
from transduce.exchange.comparison import comparable_texts, expected_token_ids
from transduce.exchange.own_models import Original
from transduce.interop.components import ExportedEncoder, ExportedModel, check_components
from transduce.interop.ctranslate2 import (
    QUANTIZATIONS,
    CTranslate2LanguageModel,
    CTranslate2Model,
    ctranslate2_obstacles,
    write_ctranslate2,
)
from transduce.interop.hugging_face.export import HuggingFaceEncoder, HuggingFaceLanguageModel, HuggingFaceModel
from transduce.interop.hugging_face.families import HUGGING_FACE, huggingface_obstacles, huggingface_remedy
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.interop.hugging_face.tokenizer_files import has_tokenizer
from transduce.interop.onnx.export import OnnxEncoder, OnnxLanguageModel, OnnxModel, onnx_obstacles, write_onnx
from transduce.interop.readme import readme
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder
from transduce.model.encoder import Encoder
from transduce.model.recurrent import Recurrent
from transduce.model_folder.cards import TASK_CARD, find_task_card
from transduce.model_folder.read import VOCABULARIES
from transduce.model_folder.safety import file_inside
from transduce.model_folder.write import (
    has_original_tokenizer,
    read_original_tokenizer,
    write_model_folder,
    write_original_tokenizer,
)

# Files that a run wrote for people to read.
_DOCUMENTS = ("README.md", "settings.toml")


class Exporter(Protocol):
    """A writer and loader of one export format."""

    @property
    def title(self) -> str:
        """The format's name in messages."""

    @property
    def quantizations(self) -> Sequence[str]:
        """The storage types of weights; the first is float32."""

    def write(self, folder: Path, quantization: str) -> None:
        """Write all files of the export to an empty folder."""

    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel | ExportedEncoder:
        """Load the written export for running; `texts` are used to check its tokenizer if it has one."""

    def describe(self, folder: Path, measured: str) -> None:
        """Write the export's README.md with the measured agreement with the original."""


class CTranslate2Exporter:
    """Implements `Exporter` for CTranslate2: model.bin, config.json, vocabularies and sentencepiece files."""

    title = "CTranslate2"
    quantizations = QUANTIZATIONS

    def __init__(self, original: Original) -> None:
        self.original = original

    def write(self, folder: Path, quantization: str) -> None:
        """Write the files with the ctranslate2 package.

        Raises:
            TransduceError: the package is not installed, or CTranslate2 does not support a setting of the model.
        """
        model = self.original.model
        _check_fits("ctranslate2", "CTranslate2", model.config)
        assert not isinstance(model, Encoder | Recurrent)  # _check_fits refuses these
        write_ctranslate2(model, self.original.tokenizer, folder, quantization=quantization)
        _write_vocabularies(self.original, folder)

    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel:  # noqa: ARG002
        """Load the export as CTranslate2's translator or generator."""
        original = self.original
        if isinstance(original.model, Decoder):
            return CTranslate2LanguageModel(
                folder, original.tokenizer, start_id=original.config.start_id, threads=original.threads
            )
        return CTranslate2Model(folder, original.tokenizer, start_id=original.config.start_id, threads=original.threads)

    def describe(self, folder: Path, measured: str) -> None:
        """Write the export's README.md with the measured agreement with the original."""
        _write_readme("ctranslate2", self.original, folder, measured)


class OnnxExporter:
    """Implements `Exporter` for ONNX: encoder.onnx and decoder.onnx, or model.onnx, and sentencepiece files."""

    title = "ONNX"
    quantizations = ("float32",)

    def __init__(self, original: Original) -> None:
        self.original = original

    def write(self, folder: Path, quantization: str) -> None:  # noqa: ARG002
        """Write the ONNX graphs.

        Raises:
            TransduceError: a package is not installed, or ONNX does not support a setting of the model.
        """
        _check_fits("onnx", "Our ONNX graphs", self.original.config)
        write_onnx(self.original.model, folder)
        _write_vocabularies(self.original, folder)
        for name, text in _task_document(self.original.folder).items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")

    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel | ExportedEncoder:  # noqa: ARG002
        """Load the export with onnxruntime."""
        threads = self.original.threads
        if isinstance(self.original.model, Encoder):
            return OnnxEncoder(folder, threads=threads)
        if isinstance(self.original.model, Decoder):
            return OnnxLanguageModel(folder, threads=threads, forbidden_tokens=self.original.tokenizer.target.unk_id)
        return OnnxModel(folder, threads=threads, forced=self.original.tokenizer.target.forced)

    def describe(self, folder: Path, measured: str) -> None:
        """Write the export's README.md with the measured agreement with the original."""
        _write_readme("onnx", self.original, folder, measured)


class HuggingFaceExporter:
    """Implements `Exporter` for Hugging Face: a model folder without the run's other files.

    The folder is written anew, because an older version may have written the model before its class was supported.
    """

    title = "Hugging Face"
    quantizations = ("float32",)

    def __init__(self, original: Original) -> None:
        self.original = original

    def write(self, folder: Path, quantization: str) -> None:  # noqa: ARG002
        """Write the model folder.

        Raises:
            TransduceError: no Hugging Face class computes the model or its tokenizer.
        """
        original = self.original
        tokenizer = original.tokenizer
        _check_fits("huggingface", "Hugging Face's classes", original.config)
        check_components(HUGGING_FACE, original.model)
        self._check_tokenizer()
        documents = (file_inside(original.folder, name) for name in _DOCUMENTS if (original.folder / name).is_file())
        write_model_folder(
            folder,
            weights=original.model.state_dict(),
            config=original.config,
            tokenizer=tokenizer,
            languages=original.languages,
            documents={path.name: path.read_text("utf-8") for path in documents} | _task_document(original.folder),
        )
        if isinstance(tokenizer, ImportedTokenizer):
            write_original_tokenizer(folder, read_original_tokenizer(original.folder, original.languages))

    def _check_tokenizer(self) -> None:
        original = self.original
        is_imported = isinstance(original.tokenizer, ImportedTokenizer)
        if (
            has_original_tokenizer(original.folder)
            if is_imported
            else has_tokenizer(original.tokenizer, original.config)
        ):
            return
        alternatives = _other_formats("huggingface", original.config)
        if is_imported:
            raise TransduceError(
                f"The tokenizer in {original.folder} was imported, and its own files are not there: copy them from the "
                "folder that it came from (tokenizer.json or a sentencepiece model, and tokenizer_config.json), or "
                f"{alternatives}."
            )
        raise TransduceError(
            "Of Hugging Face's tokenizers only Marian's has a vocabulary for each side, and no composed text "
            f"(`tokenizer.nfc`), but {original.folder} has one for each side with other settings: {alternatives}."
        )

    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel | ExportedEncoder:
        """Load the export with transformers and check its tokenizer.

        Raises:
            TransduceError: the tokenizer splits a text into other tokens than ours.
        """
        model = self._opened(folder)
        if isinstance(self.original.tokenizer, ImportedTokenizer):
            vocabulary = self.original.tokenizer.target
            model.use_greedy_search(vocabulary.unk_id, vocabulary.forced)
        texts = comparable_texts(self.original, texts)
        for text, left, right in zip(texts, expected_token_ids(self.original, texts), model.ids_of(texts), strict=True):
            if left != right:
                raise TransduceError(
                    "The export to Hugging Face was checked and is wrong, so nothing was written: its tokenizer splits "
                    f'"{text}" into other tokens; please report this with the model\'s tokenizer.json.'
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
        """Write nothing, because the model's README.md is already in the folder."""


_EXPORTERS: dict[str, Callable[[Original], Exporter]] = {
    "ctranslate2": CTranslate2Exporter,
    "onnx": OnnxExporter,
    "huggingface": HuggingFaceExporter,
}
FORMATS = tuple(_EXPORTERS)
_OBSTACLES = {"ctranslate2": ctranslate2_obstacles, "onnx": onnx_obstacles, "huggingface": huggingface_obstacles}


def exporter_for(name: str, original: Original) -> Exporter:
    """Return the exporter of one of FORMATS.

    Raises:
        TransduceError: the format is unknown.
    """
    if name not in _EXPORTERS:
        raise TransduceError(f"A model can be exported to {', '.join(FORMATS)}, but not to `{name}`.")
    return _EXPORTERS[name](original)


def formats_for(config: ModelConfig) -> list[str]:
    """Return the names of the formats that support a model."""
    return [name for name, obstacles in _OBSTACLES.items() if not obstacles(config)]


def _check_fits(name: str, title: str, config: ModelConfig) -> None:
    obstacles = _OBSTACLES[name](config)
    if obstacles:
        values = ", ".join(f"`model.{setting}` = {_value(config, setting)}" for setting in obstacles)
        remedy = huggingface_remedy(config) if name == "huggingface" else {}
        fitting = ", ".join(f"`model.{setting}` = {_as_toml(value)}" for setting, value in remedy.items())
        alternative = f", or train one with {fitting}" if fitting else ""
        raise TransduceError(
            f"{title} cannot compute a model with {values}: {_other_formats(name, config)}{alternative}."
        )


def _value(config: ModelConfig, setting: str) -> str:
    """Return a setting's value in TOML notation; an unset value is shown as its effective value."""
    resolved: dict[str, object] = {
        "num_key_value_heads": config.num_key_value_heads or config.num_heads,
        "d_k": config.key_width,
        "d_v": config.value_width,
        "final_norm": config.has_final_norm,
    }
    settings = msgspec.structs.asdict(config)
    if setting in ("projection_bias", "attention_output_bias", "feed_forward_bias") and settings[setting] is None:
        resolved[setting] = config.bias
    return _as_toml(resolved.get(setting, settings[setting]))


def _as_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _other_formats(name: str, config: ModelConfig) -> str:
    """Return a hint for an error message: the other formats that support a model."""
    fitting = [format_name for format_name in formats_for(config) if format_name != name]
    return f"export it to {' or '.join(fitting)}" if fitting else "no other export can either"


def _write_vocabularies(original: Original, folder: Path) -> None:
    """Write the tokenizer's vocabulary files."""
    if isinstance(original.tokenizer, ImportedTokenizer):
        original.tokenizer.save(folder)
    else:
        _copy(original.folder, folder, VOCABULARIES)


def _task_document(folder: Path) -> dict[str, str]:
    """Return the model's task file by name; empty if it has none."""
    card = find_task_card(folder)
    return {} if card is None else {TASK_CARD: card.text()}


def _copy(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy the named files that exist, refusing links out of the folder."""
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(file_inside(source, name), target / name)


def _write_readme(export_format: str, original: Original, folder: Path, measured: str) -> None:
    text = readme(
        export_format, original.config.kind, original.tokenizer, original.languages, measured, original.longest
    )
    (folder / "README.md").write_text(text, encoding="utf-8", newline="\n")
