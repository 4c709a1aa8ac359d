"""The languages of models that are told theirs by tags: NLLB, mBART, M2M100, and OPUS models of several targets."""

from typing import TypeVar

import msgspec

from transduce.errors import TransduceError
from transduce.interop.foreign_tokenizer import ForeignTokenizer
from transduce.model.build import Model
from transduce.runtime.folder import ModelFolder

M = TypeVar("M", bound=Model)


def with_languages(content: ModelFolder[M], source: str | None, target: str | None) -> ModelFolder[M]:
    """A model that translates between these languages; None leaves a side as it is.

    Raises:
        TransduceError: the model has no tags, or not these.
    """
    if source is None and target is None:
        return content
    tokenizer = content.tokenizer
    if not isinstance(tokenizer, ForeignTokenizer) or tokenizer.record.languages is None:
        raise TransduceError(
            f"The model translates between two languages and has no tags to tell it others, but `{target or source}` "
            "was asked for: leave it out."
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
