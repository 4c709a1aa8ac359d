"""Convert a Hugging Face model folder to a transduce model folder."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from torch import Tensor

from transduce.argument_checks import as_path
from transduce.errors import TransduceError, explain_wrong_types
from transduce.interop.hugging_face.export import class_for
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.model_folder.cards import kept_documents
from transduce.model_folder.hugging_face import (
    check_hugging_face_folder,
    hugging_face_context,
    hugging_face_notes,
    hugging_face_search_settings,
)
from transduce.model_folder.load import with_languages
from transduce.model_folder.read import (
    CONTEXT,
    DIRECTIONS,
    SETTINGS_FILE,
    describe_imported,
    read_saved_by_transformers,
    was_saved_by_transformers,
)
from transduce.model_folder.safety import file_inside
from transduce.model_folder.write import (
    TransformersContent,
    read_original_tokenizer,
    to_toml,
    was_interrupted,
    write_model_folder,
)
from transduce.search.settings import SearchSettings


class ImportReport(msgspec.Struct, frozen=True):
    """A description of an imported model, which `import_model_folder` returns."""

    folder: str
    """The path of the new model folder."""
    model_type: str
    """The `model_type` of the Hugging Face folder, such as "marian"."""
    kind: str
    """The model's kind, such as "transformer"."""
    num_parameters: int
    """Number of parameters."""
    source_language: str | None
    """Code of the default source language; None: unknown."""
    target_language: str | None
    """Code of the default target language; None: unknown."""
    languages: tuple[str, ...]
    """Language codes that the model can translate between; empty for models without language tags."""
    notes: tuple[str, ...] = ()
    """Sentences about what was left out or renamed, such as a head that no task uses."""

    def __str__(self) -> str:
        languages = f"; {len(self.languages)} languages" if self.languages else ""
        line = f"{self.folder}: {self.model_type}, {self.num_parameters:,} parameters{languages}"
        return "\n".join([line, *self.notes])


@explain_wrong_types
def import_model_folder(
    folder: str | Path, out: str | Path, *, source_language: str | None = None, target_language: str | None = None
) -> ImportReport:
    """Convert a Hugging Face model to a transduce model folder: weights, configuration, tokenizer and search settings.

    A transduce model that transformers opened and saved again can be imported, too. Its folder must then hold
    transduce's tokenizer files. They are there if transformers saved the model to the folder that it opened.

    If a Hugging Face class computes the model, the original tokenizer files are copied, too.

    Args:
        folder: a folder with config.json, model.safetensors and the tokenizer's files.
        out: the folder to create. It must not hold a model, but may hold what an interrupted import left incomplete.
        source_language: default source language, for models with language tags; None: as the folder specifies.
        target_language: default target language, for models with language tags; None: as the folder specifies.

    Returns:
        A description of the imported model.

    Raises:
        TransduceError: the folder cannot be imported, or `out` holds a model.
    """
    folder, out = as_path(folder, "The model's folder"), as_path(out, "The folder to make")
    is_resaved = was_saved_by_transformers(folder)
    model_type = "transduce" if is_resaved else check_hugging_face_folder(folder)
    if (out / "config.json").exists() and not was_interrupted(out):
        raise TransduceError(f"{out} holds a model already: name another folder.")
    weights: Mapping[str, Tensor]
    if is_resaved:
        content = read_saved_by_transformers(folder)
        if content.directions and (source_language, target_language) != (None, None):
            chosen = with_languages(content, source_language, target_language).manifest
            source_language, target_language = chosen.source_language, chosen.target_language
        weights = content.model.state_dict()
    else:
        content, weights = describe_imported(folder)
        content = with_languages(content, source_language, target_language)
        source_language = target_language = None  # those of the manifest are the model's own codes
    max_positions = hugging_face_context(folder)
    languages = (
        source_language or content.manifest.source_language,
        target_language or content.manifest.target_language,
    )
    has_class = class_for(content.model.config) is not None
    is_imported = isinstance(content.tokenizer, ImportedTokenizer)
    tokenizer_files = read_original_tokenizer(folder, languages) if has_class and is_imported else {}
    kind = content.model.config.kind
    documents = {"README.md": _card(model_type, kind)} | kept_documents(folder)
    if is_resaved:
        documents |= {
            name: file_inside(folder, name).read_text("utf-8")
            for name in (SETTINGS_FILE, DIRECTIONS, CONTEXT)
            if (folder / name).is_file()
        }
    elif kind == "transformer":  # other kinds have no search settings
        documents[SETTINGS_FILE] = _settings(hugging_face_search_settings(folder))
    elif kind == "decoder" and max_positions is not None:
        documents[SETTINGS_FILE] = f"[task]\ncontext = {max_positions}\n"
    write_model_folder(
        out,
        weights=weights,
        config=content.model.config,
        tokenizer=content.tokenizer,
        languages=languages,
        documents=documents,
        for_transformers=TransformersContent(files=tokenizer_files, max_positions=max_positions),
    )
    tags = content.tokenizer.record.languages if isinstance(content.tokenizer, ImportedTokenizer) else None
    return ImportReport(
        folder=str(out),
        model_type=model_type,
        kind=kind,
        num_parameters=sum(parameter.numel() for parameter in content.model.parameters()),
        source_language=languages[0],
        target_language=languages[1],
        languages=() if tags is None else tuple(sorted(tags.tags)),
        notes=() if is_resaved else hugging_face_notes(folder),
    )


def _settings(search: SearchSettings) -> str:
    """Return search settings as the text of a settings.toml (TOML); a setting with its default value is left out."""
    defaults = msgspec.to_builtins(SearchSettings())
    values = msgspec.to_builtins(search)
    generate = {name: value for name, value in values.pop("generate").items() if value not in (None, [])}
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    return to_toml({"search": changed | {"generate": generate}})


def _card(model_type: str, kind: str) -> str:
    search = " `settings.toml` says how it is searched: as `generate` would." if kind == "transformer" else ""
    return (
        f"# A {model_type} model\n\nIt was imported by transduce from a Hugging Face folder, whose licence and card "
        f"hold for it.\nIts kind is `{kind}`.{search}\n"
    )
