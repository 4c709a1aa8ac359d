"""Set the languages of models with language tags: NLLB, mBART, M2M100, and OPUS models with several targets."""

from typing import TypeVar

import msgspec

from transduce.errors import TransduceError
from transduce.interop.foreign_tokenizer import ForeignTokenizer
from transduce.model.build import Model
from transduce.runtime.folder import ModelFolder

M = TypeVar("M", bound=Model)


def with_languages(content: ModelFolder[M], source: str | None, target: str | None) -> ModelFolder[M]:
    """Return a model that translates between these languages; None keeps a side's default.

    Raises:
        TransduceError: the model has no language tags, or lacks a tag for a language.
    """
    if source is None and target is None:
        return content
    tokenizer = content.tokenizer
    if not isinstance(tokenizer, ForeignTokenizer) or tokenizer.record.languages is None:
        raise TransduceError(
            f"The model has a fixed language pair and no language tags, but `{target or source}` was asked for: leave "
            "it out."
        )
    languages = tokenizer.record.languages
    if target is not None and languages.target_tag == "start":
        content.model.config = msgspec.structs.replace(content.model.config, start_id=languages.id(target))
    manifest = msgspec.structs.replace(
        content.manifest,
        source_language=source or content.manifest.source_language,
        target_language=target or content.manifest.target_language,
    )
    return ModelFolder(content.model, tokenizer.for_languages(source, target), manifest)
