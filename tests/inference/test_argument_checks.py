"""Test which types of arguments callers may pass, and that others are rejected with one sentence."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import transduce
from transduce.argument_checks import as_list, as_texts
from transduce.errors import TransduceError
from transduce.inference.load import load
from transduce.inference.redecoding import estimate_quality, redecode
from transduce.inference.translation_pipeline import TranslationPipeline
from transduce.inference.translator import Translator
from transduce.interop.vocabulary_files import read_vocabulary
from transduce.search.rules import GenerateSettings
from transduce.search.settings import SearchSettings
from transduce.tasks.train import train

SOURCE = "我吃鱼。"
MODELS = Path(__file__).parents[1] / "compat" / "sets" / "0.1.0" / "models"


def _term(translations: Any) -> transduce.Term:
    return transduce.Term("鱼", translations)


def test_iterators_of_texts_and_phrases_are_accepted(translator: Translator) -> None:
    word = "tea" if "tea" not in translator(SOURCE).text else "milk"
    for found in translator([SOURCE, SOURCE], phrases=(each for each in [word])):
        assert word in found.text
    search = translator.search
    texts, phrases = (each for each in [SOURCE, SOURCE]), ((one for one in own) for own in ([word], []))
    first, second = translator.translate(texts, search, phrases=phrases)
    assert word in first.text
    assert second.text == translator(SOURCE).text


def test_a_single_string_is_not_split_into_characters(translator: Translator) -> None:
    assert translator.translate(SOURCE, translator.search) == [translator(SOURCE)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"text": SOURCE}, "not a `dict`: pass a list of its values"),
        ({SOURCE}, "not a `set`: pass a sorted list"),
        ([b"a"], r"text number 1 is b'a': leave it out, or pass an empty text"),
        ([list(range(1000))], r"text number 1 is \[0, 1, .{60,80}…: leave it out"),
    ],
)
def test_dicts_and_sets_of_texts_are_refused(translator: Translator, texts: Any, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        translator(texts)


TAKES_TEXTS: dict[str, Callable[[Translator, Any], object]] = {
    "call": lambda translator, texts: translator(texts),
    "translate": lambda translator, texts: translator.translate(texts, translator.search),
    "phrases": lambda translator, texts: translator(SOURCE, phrases=texts),
    "score": lambda translator, texts: translator.score(texts, texts),
    "evaluate": lambda translator, texts: transduce.evaluate(translator, texts, texts),
    "scores": lambda _, texts: transduce.score(texts, texts, target_language="en"),
    "compare": lambda _, texts: transduce.compare(texts, texts, texts, target_language="en"),
    "align": lambda translator, texts: transduce.align(translator, texts, texts),
    "markup": transduce.translate_markup,
    "pipeline": lambda translator, texts: TranslationPipeline(translator)(texts),
    "datastore": lambda translator, texts: transduce.build_datastore(translator, texts, texts),
    "probe": lambda translator, texts: transduce.probe(translator, texts, ["a"]),
}


@pytest.mark.parametrize("name", TAKES_TEXTS)
def test_tables_are_refused_whose_items_are_names_of_columns(name: str, translator: Translator) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TransduceError, match=r"not a `DataFrame`: pass one of its columns\.$"):
        TAKES_TEXTS[name](translator, pandas.DataFrame({"zh": [SOURCE] * 20}))


def test_tables_of_arrow_and_tables_of_labels_are_refused_with_the_same_advice() -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    for table in (pandas.DataFrame({"a": []}), pyarrow.table({"a": ["b"]})):
        name = type(table).__name__
        for check in (as_texts, lambda value: as_list(value, "labels")):
            with pytest.raises(TransduceError, match=rf"a `{name}`: pass one of its columns\.$"):
                check(table)


def test_columns_of_tables_are_texts(translator: Translator) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    expected = translator([SOURCE, "我"])
    for column in (pandas.Series([SOURCE, "我"], index=[7, 3]), pyarrow.array([SOURCE, "我"])):
        assert translator(column) == expected


def test_one_document_is_not_split_into_characters(translator: Translator) -> None:
    anything: Any = f"<p>{SOURCE}</p>"
    assert transduce.translate_markup(translator, anything) == [f"<p>{translator(SOURCE).text}</p>"]


def test_translations_in_place_of_texts_are_refused_with_the_remedy(translator: Translator) -> None:
    anything: Any = translator([SOURCE])
    with pytest.raises(TransduceError, match="text number 1 is a `Translation`: pass its `text`"):
        transduce.score(anything, ["tea"], target_language="en")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ("ab", r"A glossary has terms, but one is 'a': write Term\('source', \('translation',\)\)"),
        ([("a", "b")], r"A glossary has terms, but one is \('a', 'b'\)"),
        (None, "A glossary has terms, but one is None"),
        ([_term("fish")], r"A term has a text and a tuple of translations, but one is \('鱼', 'fish'\)"),
        ([_term((3,))], r"A term has a text and a tuple of translations, but one is \('鱼', \(3,\)\)"),
    ],
)
def test_glossaries_have_terms_with_tuples_of_translations(terms: Any, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        transduce.Glossary(terms)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": {"seed": 1}}, r"`sampling` must be a `SamplingSettings` or None, but is {'seed': 1}: write"),
        ({"generate": True}, "`generate` must be a `GenerateSettings` or None, but is True"),
        ({"forbidden": ("a", 3)}, r"`forbidden` must be a tuple of texts, but is \('a', 3\)"),
        ({"forbidden": 3}, "`forbidden` must be a tuple of texts, but is 3"),
        ({"batch_invariant": np.ones(2)}, "`batch_invariant` must be True or False, but is "),
        ({"batch_invariant": "no"}, "`batch_invariant` must be True or False, but is 'no'"),
    ],
)
def test_search_settings_of_another_type_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        SearchSettings(**options)


@pytest.mark.parametrize("forbidden", [None, ["a"], iter(["a"])])
def test_other_collections_and_numpys_bools_are_accepted_in_search_settings(forbidden: Any) -> None:
    anything: Any = np.True_
    settings = SearchSettings(forbidden=forbidden, batch_invariant=anything)
    assert settings.forbidden == (() if forbidden is None else ("a",))
    assert settings.batch_invariant is True


def test_a_device_of_pytorch_is_accepted(trained: Path) -> None:
    anything: Any = torch.device("cpu")
    opened = load(trained, device=anything)
    assert isinstance(opened, transduce.Translator)
    assert opened.device == anything


def test_whitespace_around_a_prefix_forces_nothing(translator: Translator) -> None:
    assert translator(SOURCE, prefix=" \n").text == translator(SOURCE).text
    assert translator(SOURCE, prefix="he \t\n") == translator(SOURCE, prefix="he")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phrases": [["tea"]]}, "Pass one list of phrases for each sentence: there are 2 sentences, but 1 of these"),
        ({"phrases": [["tea"]] * 3}, "there are 2 sentences, but 3 of these"),
        ({"phrases": ["tea", "tea"]}, "Phrases are a list of texts, but `tea` is one text"),
        ({"indices": [0, "1"]}, "`indices` must be a whole number, but is '1'"),
        ({"indices": [7]}, "Pass one index for each sentence: there are 2 sentences, but 1 of these"),
        ({"search": None}, "`search` must be a `SearchSettings`, but is None"),
        ({"prefix": 3}, r"Pass one text \(a `str`\), not 3"),
    ],
)
def test_per_sentence_options_of_another_length_are_refused(
    options: dict[str, Any], message: str, translator: Translator
) -> None:
    with pytest.raises(TransduceError, match=message):
        translator.translate([SOURCE, SOURCE], **({"search": translator.search} | options))


def test_streams_refuse_the_arguments_that_translations_refuse(translator: Translator) -> None:
    anything: Any = None
    for text, options in ((anything, {}), (SOURCE, {"prefix": anything}), (SOURCE, {"phrases": "tea"})):
        with pytest.raises(TransduceError):
            list(translator.stream(text, **options))


@pytest.mark.parametrize("penalty", [math.nan, -5.0, math.inf, 1e9, "x", None])
def test_scores_are_over_a_penalty_that_a_search_could_have(penalty: Any, translator: Translator) -> None:
    with pytest.raises(TransduceError, match="`length_penalty` must"):
        translator.score([SOURCE], ["tea"], length_penalty=penalty)


def test_forbidden_ids_beyond_the_vocabulary_are_refused(translator: Translator) -> None:
    size = translator.tokenizer.target.size
    search = SearchSettings(generate=GenerateSettings(forbidden_ids=(size,)))
    with pytest.raises(TransduceError, match=rf"must be a token id of the vocabulary, 0 to {size - 1}, but is {size}"):
        translator(SOURCE, search=search)


def test_a_beam_size_beyond_10000_is_refused() -> None:
    with pytest.raises(TransduceError, match="`beam_size` must be at most 10,000, but is 1,000,000,000"):
        SearchSettings(beam_size=10**9)


@pytest.mark.parametrize("given", [["text"], [None], "text", 3])
def test_quality_estimation_refuses_what_is_no_list_of_translations(given: Any, translator: Translator) -> None:
    for judge in (estimate_quality, redecode):
        with pytest.raises(TransduceError, match=r"Pass a list of translations|Pass the `Translation`s"):
            judge(translator, given)


def test_a_single_translation_instead_of_a_list_is_refused(translator: Translator) -> None:
    anything: Any = translator(SOURCE)
    with pytest.raises(TransduceError, match="Pass a list of translations"):
        estimate_quality(translator, anything)
    assert estimate_quality(translator, iter([anything])) == estimate_quality(translator, [anything])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": "x"}, "`max_length` must be a whole number, but is 'x'"),
        ({"max_length": 1}, "`max_length` must be at least 2, but is 1"),
        ({"min_length": "x"}, "`min_length` must be a whole number, but is 'x'"),
    ],
)
def test_a_pipeline_checks_its_length_options(options: dict[str, Any], message: str, translator: Translator) -> None:
    with pytest.raises(TransduceError, match=message):
        TranslationPipeline(translator)(SOURCE, **options)


@pytest.mark.parametrize("options", [{"threads": "x"}, {"threads": 1.5}, {"device": 3}, {"device": None}])
def test_invalid_threads_and_devices_are_refused(options: dict[str, Any], trained: Path) -> None:
    with pytest.raises(TransduceError, match=r"`(threads|device)` must be"):
        load(trained, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"user_symbols": "<x>"}, r"`user_symbols` must be a list, but is '<x>': write \['<x>'\]"),
        ({"languages": "zh"}, "`languages` must be a list, but is 'zh'"),
        ({"columns": "ab"}, "`columns` must be a list, but is 'ab'"),
        ({"corpora": {"source": "a.zh"}}, "`corpora` must be a list, but is {'source': 'a.zh'}"),
        ({"corpora": ["a.zh"]}, "Each of `corpora` must be a mapping such as .*, but one is 'a.zh'"),
        ({"mix": ["a:0.3"]}, r"`mix` must be a mapping of folders to shares, .*, not \['a:0.3'\]"),
    ],
)
def test_a_text_in_place_of_a_list_is_not_split_into_characters(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match=message):
        train(source="a.zh", target="a.en", out=tmp_path / "m", **options)
    if "user_symbols" in options:
        with pytest.raises(TransduceError, match=message):
            read_vocabulary(["a", "b"], **options)


# --- models with a tokenizer of another model ---


def _opened(name: str) -> Any:
    return load(MODELS / name, precision="fp32")


CONSTRUCTORS: dict[str, tuple[str, str, Callable[[Any, Any], object]]] = {
    "Translator": ("translation-joint", "language-model", transduce.Translator),
    "ensemble": (
        "translation-joint",
        "translation-joint",
        lambda model, tokenizer: transduce.Translator(model, tokenizer, ensemble=[_opened("language-model").model]),
    ),
    "Generator": (
        "language-model",
        "translation-joint",
        lambda model, tokenizer: transduce.Generator(model, tokenizer, context=64),
    ),
    "Filler": (
        "masked-language-model",
        "translation-joint",
        lambda model, tokenizer: transduce.Filler(model, tokenizer, length=64),
    ),
    "Embedder": (
        "masked-language-model",
        "translation-joint",
        lambda model, tokenizer: transduce.Embedder(model, tokenizer, length=64),
    ),
    "Parser": ("parsing", "translation-joint", transduce.Parser),
    "Tagger": (
        "masked-language-model",
        "translation-joint",
        lambda model, tokenizer: transduce.Tagger(model, tokenizer, ["a"], length=8),
    ),
    "Classifier": (
        "classification",
        "translation-joint",
        lambda model, tokenizer: transduce.Classifier(model, tokenizer, ["a"], length=8),
    ),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors_refuse_models_and_tokenizers_that_do_not_belong_together(name: str) -> None:
    own, other, construct = CONSTRUCTORS[name]
    right, wrong = _opened(own), _opened(other)
    with pytest.raises(TransduceError, match=r"they are of different models|needs a model of the kind"):
        construct(right.model, wrong.tokenizer)
    for model in (None, torch.nn.Linear(2, 2), right.model.state_dict()):
        with pytest.raises(TransduceError, match=r"needs a model of the kind .*, but got a `(NoneType|Linear|Ordered)"):
            construct(model, right.tokenizer)
    with pytest.raises(TransduceError, match="`tokenizer` must be a Tokenizer, but is 'x'"):
        construct(right.model, "x")


def test_texts_are_not_split_into_parts_without_tokens(translator: Translator) -> None:
    with pytest.raises(TransduceError, match="`max_source_tokens` must be at least 1, but is 0"):
        Translator(translator.model, translator.tokenizer, max_source_tokens=0)


# --- models in training mode ---


WORDS = "我吃鱼。"
# The folder of each model, its task, and what is computed by it; without the check, with dropout.
COMPUTED: dict[str, tuple[str, Any, Callable[[Any], object]]] = {
    "classify": ("classification", None, lambda model: model(WORDS)),
    "classes' probabilities": ("classification", None, lambda model: model.probabilities([WORDS])),
    "embed": ("masked-language-model", "embedding", lambda model: model(WORDS)),
    "states": ("masked-language-model", "embedding", lambda model: model.token_states([WORDS])),
    "fill": ("masked-language-model", None, lambda model: model(f"我{model.mask}")),
    "parse": ("parsing", None, lambda model: model(WORDS)),
    "generate": ("language-model", None, lambda model: model(WORDS)),
    "stream": ("language-model", None, lambda model: list(model.stream(WORDS))),
    "score text": ("language-model", None, lambda model: model.score(WORDS)),
    "forecast": ("time-series", None, lambda model: model(np.ones((model.card.past, len(model.card.columns))))),
    "normalized": (
        "time-series",
        None,
        lambda model: model.normalized(np.ones((model.card.past, len(model.card.columns)))),
    ),
    "translate": ("translation-joint", None, lambda model: model(WORDS)),
    "translate by LSTM": ("recurrent-lstm", None, lambda model: model(WORDS)),
    "score": ("translation-joint", None, lambda model: model.score([WORDS], [WORDS])),
    "score by LSTM": ("recurrent-lstm", None, lambda model: model.score([WORDS], [WORDS])),
    "datastore": (
        "translation-joint",
        None,
        lambda model: transduce.build_datastore(model, [WORDS, "你喝茶。"], [WORDS] * 2),
    ),
    "attention": ("translation-joint", None, lambda model: transduce.attention_maps(model, WORDS, WORDS)),
    "attribute": ("translation-joint", None, lambda model: transduce.attribute(model, WORDS, WORDS)),
    "inspect": ("translation-joint", None, lambda model: transduce.inspect(model, WORDS)),
    "inspect classes": ("classification", None, lambda model: transduce.inspect_text(model, WORDS)),
    "logit lens": ("language-model", None, lambda model: transduce.logit_lens(model, WORDS)),
    "align": ("translation-joint", None, lambda model: transduce.align(model, [WORDS], [WORDS])),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_model_in_training_mode_computes_no_results(name: str) -> None:
    folder, task, compute = COMPUTED[name]
    model: Any = load(MODELS / folder, task=task, precision="fp32")
    model.model.train()
    with pytest.raises(TransduceError, match=r"training mode applies dropout, .*: call `eval\(\)` on it"):
        compute(model)
    model.model.eval()
    compute(model)


WRONG = (None, b"x", 7, [None], np.array([1.5, 2]), Path("x"), math.nan, object(), {"a": 1})
_STATE = ("save", "load", "read", "train", "closed")  # they read and write files, or warn of an old name


def _calls(translator: Translator) -> dict[str, Callable[..., Any]]:
    vocabulary = translator.tokenizer.source
    owners = (vocabulary, translator.tokenizer, transduce.Glossary((_term(("fish",)),)), translator)
    calls: dict[str, Callable[..., Any]] = {}
    for owner in owners:
        for name in dir(type(owner)):
            if name[0] != "_" and name not in _STATE and callable(getattr(type(owner), name)):
                calls[f"{type(owner).__name__}.{name}"] = getattr(owner, name)
    names: tuple[str, ...] = (
        "align",
        "attribute",
        "ablate",
        "inspect",
        "intervene",
        "redecode",
        "add_lora",
        "merge_lora",
    )
    names += ("word_attention", "pronoun_attention", "replace_word", "translate_markup", "translate_document")
    names += ("build_datastore", "fill_embeddings", "import_tutorial", "read_glossary", "merge_shards", "register")
    return calls | {name: getattr(transduce, name) for name in names}


def test_no_public_function_fails_by_a_raw_error_for_an_argument_of_a_wrong_type(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    raw = []
    usable = {"translator": translator, "vocabulary": translator.tokenizer.source}
    for name, call in _calls(translator).items():
        parameters = inspect.signature(call).parameters.values()
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        needed = {each.name: usable.get(each.name, "我") for each in parameters if each.default is each.empty}
        for parameter in parameters:
            for value in WRONG if parameter.kind not in kinds else ():
                bound = inspect.signature(call).bind_partial()
                bound.arguments.update(needed | {parameter.name: value})
                try:
                    call(*bound.args, **bound.kwargs)
                except (TransduceError, OSError):
                    continue
                except Exception as error:  # noqa: BLE001 - any other is what this test looks for
                    raw.append(f"{name}({parameter.name}={value!r}): {error!r}")
    assert not raw, "\n".join(raw)


def test_every_public_function_explains_wrong_types() -> None:
    functions = [getattr(transduce, name) for name in transduce.__all__]
    assert [each for each in functions if inspect.isfunction(each) and not hasattr(each, "__wrapped__")] == []


def test_a_wrong_type_is_named_with_the_outermost_argument_and_other_errors_stay(translator: Translator) -> None:
    vocabulary = translator.tokenizer.source
    with pytest.raises(TransduceError, match=r"^`text` of `Vocabulary.encode` must be of the type `str`, but is None"):
        vocabulary.encode(None)  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match=r"of the type `Iterable\[int\]`, but its item number 2 is None\."):
        vocabulary.decode([1, None])  # type: ignore[list-item]
    with pytest.raises(TransduceError, match=r"^Token ids are 0 to [\d,]+ in .*, but one is 99999\."):
        vocabulary.decode([1, 99999])
    with pytest.raises(TransduceError, match=rf"^Token ids are 0 to [\d,]+ in .*, but one is {2**31}\."):
        vocabulary.decode([1, 2**31])
    with pytest.raises(TransduceError, match=r"of the type `Iterable\[int\]`, but is tensor\(3\)\."):
        vocabulary.decode(torch.tensor(3))
    with pytest.raises(TransduceError, match=r"^`rank` of `LowRankSettings` must be of the type `int`, but is None\."):
        transduce.LowRankSettings(rank=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'text'"):
        vocabulary.encode()  # type: ignore[call-arg]
    ids = vocabulary.encode("我")
    assert vocabulary.decode(np.array(ids)) == vocabulary.decode(torch.tensor(ids)) == vocabulary.decode(ids)
