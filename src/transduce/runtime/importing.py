"""`import_model_folder`: from a Hugging Face folder to a folder of ours."""

from pathlib import Path
from typing import Any

import msgspec

from transduce.errors import TransduceError
from transduce.given import as_path
from transduce.interop.foreign_tokenizer import ForeignTokenizer
from transduce.interop.huggingface import class_for
from transduce.runtime.folder import read_any_model_folder, read_saved_again, was_saved_again
from transduce.runtime.folder_writing import write_model_folder
from transduce.runtime.foreign import check_foreign, foreign_context, foreign_search_settings
from transduce.runtime.kept_tokenizer import read_kept_files, write_kept_files
from transduce.runtime.languages import with_languages
from transduce.runtime.task_card import TASK_CARD, find_task_card
from transduce.search.settings import SearchSettings


class ImportReport(msgspec.Struct, frozen=True):
    """What was imported."""

    folder: str
    model_type: str
    kind: str
    num_parameters: int
    source_language: str | None
    target_language: str | None
    languages: tuple[str, ...]
    """Those that the model can be told."""

    def __str__(self) -> str:
        told = f"; it can be told {len(self.languages)} languages" if self.languages else ""
        return f"{self.folder}: {self.model_type}, {self.num_parameters:,} parameters{told}"


def import_model_folder(
    folder: str | Path, out: str | Path, *, source_language: str | None = None, target_language: str | None = None
) -> ImportReport:
    """Writes a Hugging Face model as a folder of ours: weights, configuration, tokenizer, and how it was searched.

    A model of ours that was opened there and saved comes back the same way, once our tokenizer's files are copied
    beside it; where it was saved in place, they are there.

    Where a class there computes the model, the tokenizer's own files stand beside ours.

    Args:
        folder: with config.json, model.safetensors and the tokenizer's own files.
        out: the folder to make; it must not hold a model.
        source_language: what the model translates from where nobody says otherwise, for models with tags.
        target_language: what it translates into.

    Raises:
        TransduceError: the folder cannot be imported, or there is a model in `out`.
    """
    folder, out = as_path(folder, "The model's folder"), as_path(out, "The folder to make")
    is_own = was_saved_again(folder)
    model_type = "transduce" if is_own else check_foreign(folder)
    if (out / "config.json").exists():
        raise TransduceError(f"{out} holds a model already: name another folder.")
    if is_own:
        content = read_saved_again(folder)
    else:
        content = with_languages(read_any_model_folder(folder), source_language, target_language)
    languages = (
        source_language or content.manifest.source_language,
        target_language or content.manifest.target_language,
    )
    weights = {name: tensor.contiguous() for name, tensor in content.model.state_dict().items()}
    has_class = class_for(content.model.config) is not None
    kept = read_kept_files(folder, languages) if has_class and not is_own else {}
    kind = content.model.config.kind
    documents = {"README.md": _card(model_type, kind)}
    if (card := find_task_card(folder)) is not None:
        documents[TASK_CARD] = card.text()
    if is_own and (folder / "settings.toml").is_file():
        documents["settings.toml"] = (folder / "settings.toml").read_text("utf-8")
    elif kind == "transformer":  # nothing else has a search of its own
        documents["settings.toml"] = _settings(foreign_search_settings(folder))
    elif kind == "decoder" and (context := foreign_context(folder)) is not None:
        documents["settings.toml"] = f"[task]\ncontext = {context}\n"
    write_model_folder(
        out,
        weights=weights,
        config=content.model.config,
        tokenizer=content.tokenizer,
        languages=languages,
        documents=documents,
    )
    write_kept_files(out, kept)
    tags = content.tokenizer.record.languages if isinstance(content.tokenizer, ForeignTokenizer) else None
    return ImportReport(
        folder=str(out),
        model_type=model_type,
        kind=kind,
        num_parameters=sum(parameter.numel() for parameter in content.model.parameters()),
        source_language=languages[0],
        target_language=languages[1],
        languages=() if tags is None else tuple(sorted(tags.tags)),
    )


def _settings(search: SearchSettings) -> str:
    """How to search, as a run's settings say it; what has its usual value is left out."""
    usual = msgspec.to_builtins(SearchSettings())
    said = msgspec.to_builtins(search)
    generate = {name: value for name, value in said.pop("generate").items() if value not in (None, [])}
    lines = ["[search]", *(_line(name, value) for name, value in said.items() if value != usual[name])]
    return "\n".join([*lines, "", "[search.generate]", *(_line(name, value) for name, value in generate.items()), ""])


def _line(name: str, value: Any) -> str:
    """Numbers, strings and lists of numbers are the same in JSON and TOML."""
    return f"{name} = {msgspec.json.encode(value).decode()}"


def _card(model_type: str, kind: str) -> str:
    search = " `settings.toml` says how it is searched: as `generate` would." if kind == "transformer" else ""
    return (
        f"# A {model_type} model\n\nIt was imported by transduce from a Hugging Face folder, whose licence and card "
        f"hold for it.\nIts kind is `{kind}`.{search}\n"
    )
