"""Score a translator on a test set."""

from collections.abc import Sequence
from typing import overload

import msgspec

from transduce.argument_checks import as_texts
from transduce.errors import TransduceError
from transduce.evaluation.scores import (
    AccuracyReport,
    ScoreReport,
    check_line_counts,
    choose_tokenizer,
    score,
    score_labels,
)
from transduce.inference.batching import Documents
from transduce.inference.classifier import Classifier
from transduce.inference.glossary_search import GlossaryLike
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings, checked_search

_MOST_SHOWN = 8  # labels in a message


@overload
def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    search: SearchSettings | None = None,
    glossary: GlossaryLike = None,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> ScoreReport: ...
@overload
def evaluate(translator: Classifier, sources: Sequence[str], references: Sequence[str]) -> AccuracyReport: ...
def evaluate(
    translator: Translator | Classifier,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    search: SearchSettings | None = None,
    glossary: GlossaryLike = None,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> ScoreReport | AccuracyReport:
    """Translate a test set, and score the translations with BLEU and chrF; or classify it, and score the labels.

    The report has sacreBLEU's signatures and the search settings, without which scores cannot be compared.

    A model that reads earlier sentences of a document (`data.context_before`) takes consecutive sources for a document,
    which an empty source ends.

    Args:
        translator: the translator or classifier to score.
        sources: the source sentences of the test set, or its texts.
        references: a human translation of each source, or the right label of each text.
        search: search settings; None: the translator's.
        glossary: terms that must be translated as specified: a mapping, a `Glossary` or a file.
        tokenize: sacreBLEU's tokenizer; None: the one that fits the target language.
        lowercase: ignore case.

    Returns:
        Both scores, with signatures, counts and search settings; of a classifier accuracy, macro F1 and confusions.

    Raises:
        TransduceError: the numbers of sources and references differ, there are none, the tokenizer is unknown, or an
            option does not suit a classifier.
    """
    if isinstance(translator, Classifier):
        if search is not None or glossary is not None or tokenize is not None or lowercase:
            raise TransduceError(
                "`search`, `glossary`, `tokenize` and `lowercase` are for translations, but the model is a classifier: "
                "leave them out."
            )
        return evaluate_labels(translator, sources, references)
    if not isinstance(translator, Translator):
        raise TransduceError(f"`evaluate` needs a `Translator`, but got {translator!r}: open one with transduce.load.")
    sources, references = as_texts(sources), as_texts(references)
    check_line_counts({"sources": sources, "references": references})
    search, language = checked_search(search or translator.search), translator.target_language
    choose_tokenizer(language, tokenize)  # check the tokenizer before hours of translating
    documents = Documents.of_lines(sources)
    hypotheses = [each.text for each in translator.translate(sources, search, glossary=glossary, documents=documents)]
    return score(
        hypotheses,
        references,
        target_language=language,
        tokenize=tokenize,
        lowercase=lowercase,
        decoding=decoding_record(search, translator.precision),
    )


def evaluate_labels(classifier: Classifier, texts: Sequence[str], labels: Sequence[str]) -> AccuracyReport:
    """Classify texts, and score the predicted labels.

    Args:
        classifier: the classifier to score.
        texts: the texts.
        labels: the right label of each text.

    Raises:
        TransduceError: the numbers of texts and labels differ, there are none, or the classifier knows none of the
            labels.
    """
    texts, labels = as_texts(texts), as_texts(labels)
    check_line_counts({"texts": texts, "labels": labels})
    check_labels(classifier, labels, "The right labels")
    return score_labels([each.label for each in classifier(list(texts))], labels)


def check_labels(classifier: Classifier, labels: Sequence[str], where: str) -> None:
    """Refuse a test set if the classifier knows none of its labels; `where` names their file or argument.

    Raises:
        TransduceError: the classifier knows none of the labels.
    """
    if not set(classifier.labels).intersection(labels):
        more = ", …" if len(classifier.labels) > _MOST_SHOWN else ""
        raise TransduceError(
            f'{where}: "{labels[0][:40]}" is no label of this model, nor is any other line: its labels are '
            f"{', '.join(classifier.labels[:_MOST_SHOWN])}{more}."
        )


def decoding_record(search: SearchSettings, precision: str) -> dict[str, str | int | float | bool]:
    """Return the decoding settings that must accompany a score: those that are not the defaults, and a few always."""
    defaults, used = msgspec.structs.asdict(SearchSettings()), msgspec.structs.asdict(search)
    changed = {name: value for name, value in used.items() if value != defaults[name]}
    always = {"beam_size": search.beam_size, "length_penalty": search.length_penalty}
    shown = {name: value if isinstance(value, int | float) else str(value) for name, value in changed.items()}
    return always | shown | {"precision": precision}
