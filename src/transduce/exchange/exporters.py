"""Write a model in the format of another toolkit, and load it again, so that the export can be checked."""

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from transduce.atomic_io import json_bytes
from transduce.errors import TransduceError
from transduce.exchange.comparison import Original, comparable_texts, expected_token_ids, exported_texts
from transduce.interop.components import ExportedEncoder, ExportedModel, check_components, max_sequence_length
from transduce.interop.ctranslate2 import (
    QUANTIZATIONS,
    CTranslate2LanguageModel,
    CTranslate2Model,
    ctranslate2_obstacles,
    write_ctranslate2,
)
from transduce.interop.hugging_face.export import (
    HuggingFaceEncoder,
    HuggingFaceLanguageModel,
    HuggingFaceModel,
    automatic_class_for,
    class_for,
    has_tokenizer,
    pipeline_files,
)
from transduce.interop.hugging_face.families import (
    HUGGING_FACE,
    effective_settings,
    huggingface_obstacles,
    huggingface_remedy,
)
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.interop.hugging_face.token_pipelines import WordListRecord
from transduce.interop.onnx.export import (
    OnnxEncoder,
    OnnxLanguageModel,
    OnnxModel,
    onnx_obstacles,
    write_onnx,
)
from transduce.model.config import REGISTERED_NAMES, ModelConfig
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Decoder, Encoder
from transduce.model_folder.cards import TASK_CARD, find_task_card, kept_documents
from transduce.model_folder.hugging_face import hugging_face_context
from transduce.model_folder.read import (
    CONTEXT,
    DIRECTIONS,
    SETTINGS_FILE,
    VOCABULARIES,
    directions_text,
    read_context,
    read_run_setting,
)
from transduce.model_folder.safety import file_inside
from transduce.model_folder.write import (
    TransformersContent,
    has_original_tokenizer,
    read_original_tokenizer,
    with_added_tokens,
    write_model_folder,
)
from transduce.text.vocabulary import CONTEXT_SEPARATOR

# --- README of an exported folder: it describes the model and shows how to run it ---


def _render(template: str, **values: object) -> str:
    """Return the text of a Jinja2 template in the folder `readme`, filled with these values."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("readme")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)


def _readme(exporter: "Exporter", measured: str) -> str:
    """Return the text of an export's README.md, which says how to run the model in the other toolkit.

    Args:
        exporter: the exporter to that toolkit, with the model.
        measured: the report that compares the export with the model.
    """
    original = exporter.original
    kind, tokenizer, languages = original.config.kind, original.tokenizer, original.languages
    is_imported = isinstance(tokenizer, ImportedTokenizer)
    source, target = ("sentencepiece.model",) * 2 if tokenizer.joint else ("source.spm", "target.spm")
    vocabulary = tokenizer.target
    pad, end, unk = vocabulary.tokens((vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id))
    begin, separator, _ = vocabulary.special_token_names
    before = tokenizer.source.tokens(tokenizer.source.before)
    use = f"{exporter.name}/{kind}.md"
    return _render(
        "frame.md",
        use=[f"{exporter.name}/imported_{kind}.md", use] if is_imported else use,  # the first one that exists
        runtime=exporter.runtime,
        kind=kind,
        is_imported=is_imported,
        pair=f"{languages[0] or 'source'} → {languages[1] or 'target'}",
        source=source,
        target=target,
        pad=pad,
        end=end,
        unk=unk,
        begin=begin,
        separator=separator,
        keeps_line_feeds=vocabulary.keeps_line_feeds,
        forced=vocabulary.tokens(vocabulary.forced),
        before=before,
        before_as_code=json.dumps(before),
        composes=tokenizer.source.composes,
        length=f"{max_sequence_length(original.config):,}",
        context=read_context(original.folder),
        context_separator=CONTEXT_SEPARATOR,
        measured=measured,
    )


NO_CLASS, NO_TOKENIZER = "No class of Hugging Face's holds this model", "Hugging Face has no such tokenizer"
"""The beginnings of paragraphs in model cards that say why Hugging Face's transformers does not open the folder."""
AFTER_EXPORT = "Hugging Face's transformers opens this folder only after an export"
# The last one is in the cards of older folders.
NOT_OPENED = (NO_CLASS, NO_TOKENIZER, AFTER_EXPORT, "Hugging Face's tokenizers read this folder only after an export")


def opening_sentence(config: ModelConfig) -> str:
    """Return a sentence for a model card that names the Hugging Face classes that open the folder.

    One of Hugging Face's classes must support this configuration.
    """
    return (
        f"The folder is also one of Hugging Face's class `{class_for(config)}`: `{automatic_class_for(config)}` and "
        "`AutoTokenizer` open it."
    )


# Files that a run wrote for people to read.
_DOCUMENTS = ("README.md", SETTINGS_FILE, CONTEXT)


class Exporter(ABC):
    """An export of one model to one format: it writes the files, loads them again and writes the README.md."""

    name: str
    """The name of the export format in commands and in Python, one of `FORMATS`."""
    title: str
    """The name of the export format in messages."""
    subject: str
    """The noun with which a message begins that says what the format cannot compute."""
    obstacles: Callable[[ModelConfig], list[str]]
    """A static method that returns a list of the names of settings that the format does not support; empty without any.
    """
    runtime: str = ""
    """The name of the program that runs exports, for their README.md (the templates in `readme/NAME/`)."""
    quantizations: Sequence[str] = ("float32",)
    """The storage types of weights that the format supports, such as `int8`; the first is float32."""

    def __init__(self, original: Original) -> None:
        self.original = original

    @abstractmethod
    def write(self, folder: Path, quantization: str) -> None:
        """Write all files of the export to an empty folder, except the README.md.

        Args:
            folder: the folder.
            quantization: storage type of the weights, one of `quantizations`.

        Raises:
            TransduceError: a package is not installed, or the format does not support a setting of the model.
        """

    def _check_settings(self, remedy: Mapping[str, object] | None = None) -> None:
        """Check that the format supports all settings of the model.

        Args:
            remedy: values of settings that the format supports, which the error message suggests for training another
                model; None: the message suggests none.

        Raises:
            TransduceError: the format does not support a setting, or the model has a component that a user registered.
        """
        name, title, config = self.name, self.subject, self.original.config
        registered = [each for each, names in REGISTERED_NAMES.items() if getattr(config, each) in names]
        if registered:
            values = _shown_settings(config, registered)
            raise TransduceError(
                f"{title} cannot compute a model with {values}, a component of your own, which only PyTorch computes: "
                "translate with transduce and `--plugin`."
            )
        if obstacles := self.obstacles(config):
            values = _shown_settings(config, obstacles)
            fitting = ", ".join(f"`model.{setting}` = {_as_toml(value)}" for setting, value in (remedy or {}).items())
            alternative = f", or train one with {fitting}" if fitting else ""
            raise TransduceError(
                f"{title} cannot compute a model with {values}: {_other_formats(name, config)}{alternative}."
            )

    @abstractmethod
    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel | ExportedEncoder:
        """Load the written export, and return it as a model that can be run for comparison.

        Args:
            folder: the folder that was written.
            texts: texts on which the export's tokenizer, if it has one, is compared with the model's own.

        Raises:
            TransduceError: the tokenizer splits a text into other tokens than the model's own tokenizer.
        """

    def describe(self, folder: Path, measured: str) -> None:
        """Write the export's README.md, or adapt an existing one.

        Args:
            folder: the folder that was written.
            measured: how the export compares with the original, as lines of text.
        """
        text = _readme(self, measured)
        (folder / "README.md").write_text(text, encoding="utf-8", newline="\n")


class CTranslate2Exporter(Exporter):
    """An exporter to CTranslate2: model.bin, config.json, vocabularies and tokenizer files."""

    name = "ctranslate2"
    title = subject = runtime = "CTranslate2"
    obstacles = staticmethod(ctranslate2_obstacles)
    quantizations = QUANTIZATIONS

    @override
    def write(self, folder: Path, quantization: str) -> None:
        model = self.original.model
        self._check_settings()
        assert not isinstance(model, Encoder | Recurrent)  # which were refused
        write_ctranslate2(model, self.original.tokenizer, folder, quantization=quantization)
        _write_vocabularies(self.original, folder)

    @override
    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel:
        original = self.original
        exported = CTranslate2LanguageModel if isinstance(original.model, Decoder) else CTranslate2Model
        return exported(folder, original.tokenizer, start_id=original.config.start_id, threads=original.threads)


class OnnxExporter(Exporter):
    """An exporter to ONNX: encoder.onnx and decoder.onnx, or model.onnx, and tokenizer files."""

    name = "onnx"
    title = "ONNX"
    subject = "Our ONNX graphs"
    obstacles = staticmethod(onnx_obstacles)
    runtime = "onnxruntime"

    @override
    def write(self, folder: Path, quantization: str) -> None:
        self._check_settings()
        write_onnx(self.original.model, folder)
        _write_vocabularies(self.original, folder)
        if (card := find_task_card(self.original.folder)) is not None:
            (folder / TASK_CARD).write_text(card.text(), encoding="utf-8", newline="\n")

    @override
    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel | ExportedEncoder:
        threads = self.original.threads
        if isinstance(self.original.model, Encoder):
            return OnnxEncoder(folder, threads=threads)
        if isinstance(self.original.model, Decoder):
            return OnnxLanguageModel(folder, threads=threads, unknown_id=self.original.tokenizer.target.unk_id)
        return OnnxModel(folder, threads=threads, forced=self.original.tokenizer.target.forced)


class HuggingFaceExporter(Exporter):
    """An exporter to Hugging Face: it writes a model folder without the other files of the training run.

    The files are written anew, because an older version of transduce may have written the model's own files. That
    version may not have supported the model's Hugging Face class.
    """

    name = "huggingface"
    title = "Hugging Face"
    subject = "Hugging Face's classes"
    obstacles = staticmethod(huggingface_obstacles)

    @override
    def write(self, folder: Path, quantization: str) -> None:
        original = self.original
        tokenizer = original.tokenizer
        is_imported = isinstance(tokenizer, ImportedTokenizer)
        # The settings of an imported model are those of its family.
        self._check_settings({} if is_imported else huggingface_remedy(original.config))
        check_components(HUGGING_FACE, original.model)
        self._check_tokenizer()
        documents = {
            name: file_inside(original.folder, name).read_text("utf-8")
            for name in _DOCUMENTS
            if (original.folder / name).is_file()
        }
        if original.directions:
            documents[DIRECTIONS] = directions_text(original.directions)
        files = dict[str, bytes]()
        if isinstance(tokenizer, ImportedTokenizer):
            files = with_added_tokens(read_original_tokenizer(original.folder, original.languages), tokenizer)
            if not has_original_tokenizer(original.folder):
                made = pipeline_files(tokenizer, original.config)
                files |= {name: json_bytes(content) for name, content in made.items()}
        write_model_folder(
            folder,
            weights=original.model.state_dict(),
            config=original.config,
            tokenizer=tokenizer,
            languages=original.languages,
            documents=documents | kept_documents(original.folder),
            for_transformers=TransformersContent(
                files=files, max_positions=hugging_face_context(original.folder), is_export=True
            ),
        )

    def _check_tokenizer(self) -> None:
        original = self.original
        is_imported = isinstance(original.tokenizer, ImportedTokenizer)
        has_files = is_imported and has_original_tokenizer(original.folder)
        if (
            has_files
            or has_tokenizer(original.tokenizer, original.config)
            or pipeline_files(original.tokenizer, original.config)
        ):
            return
        alternatives = _other_formats(self.name, original.config)
        if isinstance(original.tokenizer, ImportedTokenizer) and isinstance(
            original.tokenizer.record.source.algorithm, WordListRecord
        ):
            raise TransduceError(
                f"The vocabulary in {original.folder} is a list of whole words, which no tokenizer of Hugging Face's "
                f"reads alike: {alternatives}."
            )
        if is_imported:
            base = read_run_setting(original.folder, "init_from", str) or "the folder that it came from"
            raise TransduceError(
                f"The tokenizer in {original.folder} was imported, and its own files are not there: copy "
                "tokenizer_config.json and the vocabulary (tokenizer.json, or a sentencepiece model with vocab.json) "
                f"from {base} to {original.folder}, or {alternatives}."
            )
        if original.tokenizer.joint:
            raise TransduceError(
                f"The sentencepiece model in {original.folder} rewrites characters or places spaces in a way that "
                f"tokenizer.json cannot express exactly: {alternatives}, or learn the vocabulary with "
                "normalization_rule_name=identity."
            )
        raise TransduceError(
            "Of Hugging Face's tokenizers only Marian's has a vocabulary for each side, and no composed text "
            f"(`tokenizer.nfc`), but {original.folder} has one for each side with other settings: {alternatives}."
        )

    @override
    def open(self, folder: Path, texts: Sequence[str]) -> ExportedModel | ExportedEncoder:
        model = self._opened(folder)
        if isinstance(self.original.tokenizer, ImportedTokenizer):
            vocabulary = self.original.tokenizer.target
            model.use_greedy_search(vocabulary.unk_id, vocabulary.forced)
            symbols = _check_vocabulary(self.original.tokenizer, model.tokenizer.get_vocab())
            texts = [*texts, *(f"{texts[0]} {symbol} {symbol}" for symbol in symbols[:_MOST_SYMBOLS])]
        texts = comparable_texts(self.original, texts)
        found = model.ids_of(exported_texts(self.original, texts))
        for text, left, right in zip(texts, expected_token_ids(self.original, texts), found, strict=True):
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

    @override
    def describe(self, folder: Path, measured: str) -> None:
        card = folder / "README.md"
        if not card.is_file():
            return
        text = card.read_text("utf-8").replace("library_name: transduce\n", "library_name: transformers\n", 1)
        paragraphs = [
            opening_sentence(self.original.config) if each.startswith(NOT_OPENED) else each
            for each in text.split("\n\n")
        ]
        if (context := read_context(self.original.folder)) is not None:
            described = _render("context.md", context=context, context_separator=CONTEXT_SEPARATOR)
            paragraphs = [*paragraphs[:-1], paragraphs[-1].rstrip("\n"), described]
        card.write_text("\n\n".join(paragraphs), encoding="utf-8", newline="\n")


_MOST_SYMBOLS = 100


def _check_vocabulary(tokenizer: ImportedTokenizer, ids: Mapping[str, int]) -> list[str]:
    """Check that an exported tokenizer has the symbols and token ids of the model's tokenizer.

    Symbols are tokens that are never split, such as added tokens. The exported tokenizer must have all symbols. It may
    lack other tokens, but each token that it has must have the same id.

    Args:
        tokenizer: the model's tokenizer.
        ids: the id of each token of the exported tokenizer.

    Returns:
        A list of the symbols' texts, the newest symbol first.

    Raises:
        TransduceError: a symbol is missing, or a token has another id.
    """
    record = tokenizer.record.source
    symbols = [symbol.text for symbol in record.all_symbols()]
    for token, id in record.ids.items():
        found = ids.get(token, None if token in symbols else id)
        if found != id:
            raise TransduceError(
                f"The export to Hugging Face was checked and is wrong, so nothing was written: its tokenizer must have "
                f"`{token}` with the id {id}, but {'lacks it' if found is None else f'has it with {found}'}: save the "
                "base model's tokenizer with transformers, and copy its tokenizer.json to the model's folder."
            )
    return symbols[::-1]


_EXPORTERS: dict[str, type[Exporter]] = {
    each.name: each for each in (CTranslate2Exporter, OnnxExporter, HuggingFaceExporter)
}
FORMATS = tuple(_EXPORTERS)


def exporter_for(name: str, original: Original) -> Exporter:
    """Return the `Exporter` of a model to a format.

    Args:
        name: name of the format, one of `FORMATS`.
        original: the model.

    Raises:
        TransduceError: the format is unknown.
    """
    if name not in _EXPORTERS:
        raise TransduceError(f"A model can be exported to {', '.join(FORMATS)}, but not to `{name}`.")
    return _EXPORTERS[name](original)


def formats_for(config: ModelConfig) -> list[str]:
    """Return a list of the names of the export formats that support a model with this configuration; may be empty."""
    return [name for name, exporter in _EXPORTERS.items() if not exporter.obstacles(config)]


def _shown_settings(config: ModelConfig, names: Sequence[str]) -> str:
    """Return the values of some of a model's settings in TOML notation, for a message.

    A setting that follows from others (None) is shown with the value that it has.
    """
    settings = effective_settings(config)
    return ", ".join(f"`model.{name}` = {_as_toml(settings[name])}" for name in names)


def _as_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _other_formats(name: str, config: ModelConfig) -> str:
    """Return the end of an error message: a suggestion of the other formats that support a model.

    `name` is the format that does not. Without other formats, the text is "no other export can either".
    """
    fitting = [format_name for format_name in formats_for(config) if format_name != name]
    return f"export it to {' or '.join(fitting)} instead" if fitting else "no other export can either"


def _write_vocabularies(original: Original, folder: Path) -> None:
    """Write the tokenizer of the original model into the folder of an export.

    An imported tokenizer is saved as foreign_tokenizer.json; otherwise the sentencepiece files are copied.

    Raises:
        TransduceError: a file is a link that leads out of the model's folder.
    """
    if isinstance(original.tokenizer, ImportedTokenizer):
        original.tokenizer.save(folder)
        return
    for name in VOCABULARIES:
        if (original.folder / name).is_file():
            shutil.copyfile(file_inside(original.folder, name), folder / name)
