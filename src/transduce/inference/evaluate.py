"""Score a translator on a test set."""

from collections.abc import Sequence

import msgspec

from transduce.argument_checks import as_texts
from transduce.errors import TransduceError
from transduce.evaluation.scores import ScoreReport, check_line_counts, choose_tokenizer, score
from transduce.inference.classifier import Classifier
from transduce.inference.glossary_search import GlossaryLike
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings, checked_search


def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    search: SearchSettings | None = None,
    glossary: GlossaryLike = None,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> ScoreReport:
    """Translate a test set, and score the translations with BLEU and chrF.

    The report has sacreBLEU's signatures and the search settings, without which scores cannot be compared.

    Args:
        translator: the translator to score.
        sources: the source sentences of the test set.
        references: a human translation of each source.
        search: search settings; None: the translator's.
        glossary: terms that must be translated as specified: a mapping, a `Glossary` or a file.
        tokenize: sacreBLEU's tokenizer; None: the one that fits the target language.
        lowercase: ignore case.

    Returns:
        Both scores, with signatures, counts and search settings.

    Raises:
        TransduceError: the numbers of sources and references differ, there are none, or the tokenizer is unknown.
    """
    if not isinstance(translator, Translator):
        if isinstance(translator, Classifier):
            raise TransduceError(
                "`evaluate` scores translations, but the model is a classifier: `transduce classify MODEL TEXTS "
                "--labels LABELS` reports its accuracy and macro F1."
            )
        raise TransduceError(f"`evaluate` needs a `Translator`, but got {translator!r}: open one with transduce.load.")
    sources, references = as_texts(sources), as_texts(references)
    check_line_counts({"sources": sources, "references": references})
    search, language = checked_search(search or translator.search), translator.target_language
    choose_tokenizer(language, tokenize)  # check the tokenizer before hours of translating
    hypotheses = [each.text for each in translator.translate(sources, search, glossary=glossary)]
    return score(
        hypotheses,
        references,
        target_language=language,
        tokenize=tokenize,
        lowercase=lowercase,
        decoding=decoding_record(search, translator.precision),
    )


def decoding_record(search: SearchSettings, precision: str) -> dict[str, str | int | float | bool]:
    """Return the decoding settings that must accompany a score: those that are not the defaults, and a few always."""
    defaults, used = msgspec.structs.asdict(SearchSettings()), msgspec.structs.asdict(search)
    changed = {name: value for name, value in used.items() if value != defaults[name]}
    always = {"beam_size": search.beam_size, "length_penalty": search.length_penalty}
    shown = {name: value if isinstance(value, int | float) else str(value) for name, value in changed.items()}
    return always | shown | {"precision": precision}
