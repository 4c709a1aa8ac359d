"""Score a translator on a test set, and compare its 8-bit weights with float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import msgspec

from transduce.argument_checks import as_path, as_texts
from transduce.errors import TransduceError, explain_wrong_types, shown_names, shown_value
from transduce.evaluation.label_scores import AccuracyReport, score_labels
from transduce.evaluation.scores import ScoreReport, check_line_counts, choose_tokenizer, score
from transduce.inference.batching import Documents
from transduce.inference.classifier import Classifier
from transduce.inference.glossary_search import GlossaryLike
from transduce.inference.load import open_translator
from transduce.inference.translator import Translator
from transduce.model_folder.read import read_any_model_folder
from transduce.model_folder.upkeep import quantize_folder
from transduce.model_folder.weight_cache import Int8Comparison, Int8Proof, write_proof
from transduce.search.settings import SearchSettings, checked_search, override_search


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
@explain_wrong_types
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
        For a translator a `ScoreReport`: both scores, with signatures, counts and search settings. For a classifier an
        `AccuracyReport`: accuracy, macro F1 and confusions.

    Raises:
        TransduceError: the numbers of sources and references differ, there are none, the tokenizer is unknown, an
            option does not suit a classifier, or a classifier knows none of the labels.
    """
    if isinstance(translator, Classifier):
        if search is not None or glossary is not None or tokenize is not None or lowercase:
            raise TransduceError(
                "`search`, `glossary`, `tokenize` and `lowercase` are for translations, but the model is a classifier: "
                "leave them out."
            )
        return evaluate_labels(translator, sources, references)
    if not isinstance(translator, Translator):
        raise TransduceError(
            f"`evaluate` needs a `Translator`, but got {shown_value(translator)}: open one with transduce.load."
        )
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
    """Classify texts, and return a report of accuracy, macro F1 and confusions of the predicted labels.

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
    """Raise an error if a classifier knows none of a test set's labels; `where` names the labels in the message.

    Raises:
        TransduceError: the classifier knows none of the labels.
    """
    if not set(classifier.labels).intersection(labels):
        raise TransduceError(
            f'{where}: "{labels[0][:40]}" is no label of this model, nor is any other line: its labels are '
            f"{shown_names(classifier.labels)}."
        )


def decoding_record(search: SearchSettings, precision: str) -> dict[str, str | int | float | bool]:
    """Return a dict from names to values of the search settings to report with a score.

    Included are the settings that differ from their default, and always the beam size, the length penalty, the
    precision, and all set values of `sampling` and `generate`.
    """
    defaults, changed = SearchSettings(), dict[str, Any]()
    for name, value in msgspec.structs.asdict(search).items():
        if isinstance(value, msgspec.Struct):
            changed |= {f"{name}.{key}": inner for key, inner in msgspec.structs.asdict(value).items()}
        elif value != getattr(defaults, name):
            changed[name] = value
    always = {"beam_size": search.beam_size, "length_penalty": search.length_penalty}
    changed = {name: value for name, value in changed.items() if value not in (None, ())}
    shown = {name: value if isinstance(value, int | float) else str(value) for name, value in changed.items()}
    return always | shown | {"precision": precision}


# --- proof of 8-bit weights ---


@explain_wrong_types
def prove_int8(
    folder: str | Path,
    sources: Sequence[str],
    references: Sequence[str] | None = None,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    tag: str | None = None,
) -> Int8Proof:
    """Quantize a translator, measure how often it translates as in float32, and store the result beside the weights.

    Every sentence is translated greedily and with the folder's own search settings. In each search at least 99 % of at
    least 100 sentences must get the same translation, and BLEU may differ by at most 0.1. Then `precision="auto"` uses
    the 8-bit weights on processors with these instructions, until the model or the version of transduce changes.

    Args:
        folder: the folder of a translation model that `transduce train`, `transduce import` or `save` wrote.
        sources: source sentences that are typical of what the model will translate, such as those of a dev set; a model
            with `data.context_before` reads them as documents, which an empty source ends.
        references: a human translation of each source; None: BLEU is not compared.
        source_language: source language of a multilingual model, as in `load`.
        target_language: target language of a multilingual model, as in `load`; the proof counts for all others, too.
        tag: tag of the texts, as in `load`.

    Returns:
        The measurement, with the number of equal translations and the difference of BLEU in each search.

    Raises:
        TransduceError: the model is no translator or cannot be quantized here, its folder is changed meanwhile, there
            are no sentences, or the numbers of sources and references differ.
    """
    sources = as_texts(sources)
    check_line_counts({"sources": sources} | ({} if references is None else {"references": as_texts(references)}))
    folder = as_path(folder, "The model's folder")
    outputs: list[dict[SearchSettings, list[str]]] = []
    language, documents = None, Documents.of_lines(sources)
    for precision in ("fp32", "int8"):
        translator = open_translator(  # refuses other kinds of models
            folder,
            precision=precision,
            device="cpu",
            source_language=source_language,
            target_language=target_language,
            tag=tag,
        )
        own = msgspec.structs.replace(translator.search, n_best=1)
        greedy = override_search(own, {"beam_size": 1})
        searches = dict.fromkeys((greedy, own))
        translations = {search: translator.translate(sources, search, documents=documents) for search in searches}
        outputs.append({search: [each.text for each in found] for search, found in translations.items()})
        language = translator.target_language
        del translator
        if precision == "fp32":
            quantize_folder(folder)
    comparisons = []
    for search, exact in outputs[0].items():
        rounded, difference = outputs[1][search], None
        if references is not None:
            bleus = [score(texts, references, target_language=language).bleu.value for texts in (rounded, exact)]
            difference = round(bleus[0] - bleus[1], 3)
        equal = sum(one == other for one, other in zip(exact, rounded, strict=True))
        comparisons.append(Int8Comparison(search.beam_size, search.sampling is not None, equal, difference))
    prepacked = read_any_model_folder(folder, prepacked=True).prepacked
    if prepacked is None:
        raise TransduceError(f"The 8-bit weights of {folder} have changed meanwhile: try again.")
    return write_proof(prepacked, len(sources), comparisons)
