"""Test that glossary terms replace the words that depend on them, with a model of scripted scores."""

from collections.abc import Sequence

import msgspec
import pytest

from transduce.inference.batching import TextPart
from transduce.inference.glossary_search import _with_final_mark, translate_with_terms
from transduce.inference.quality_estimation import has_new_faults
from transduce.inference.scoring import Score
from transduce.inference.spans import word_spans
from transduce.inference.substitution import TermModel, _forms_like, insert_terms, substitute
from transduce.inference.translation import Alternative, Translation
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary, Term
from transduce.text.vocabulary import Vocabulary


class Opinions:
    """A model to which a word is unlikely without its cause in the source, and some texts always are."""

    def __init__(
        self, vocabulary: Vocabulary, causes: dict[str, str], dislikes: Sequence[str] = (), nats: float = 5.0
    ) -> None:
        self.vocabulary = vocabulary
        self.causes = causes
        self.dislikes = dislikes
        self.nats = nats
        self.asked: list[tuple[str, str]] = []

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
        self.asked += zip(sources, targets, strict=True)
        return [self._score(*pair) for pair in zip(sources, targets, strict=True)]

    def _score(self, source: str, target: str) -> Score:
        values, pieces = [], []
        for word in target.split():
            cause = self.causes.get(word.lower().strip("“”.,!"))
            own = self.vocabulary.tokens(self.vocabulary.encode(word))
            nats = -self.nats if cause is not None and cause not in source else -0.1
            values += [nats / len(own)] * len(own)
            pieces += own
        end = -9.0 if any(text in target for text in self.dislikes) else -0.1
        total = sum(values) + end
        return Score(source, target, tuple(pieces), (*values, end), total)


@pytest.fixture
def vocabulary(translator: Translator) -> Vocabulary:
    return translator.tokenizer.target


def not_called(texts: Sequence[str]) -> list[Translation]:
    """Fail if terms are to be translated by themselves, which scripts with spaces do not need."""
    assert list(texts) == []
    return []


CAUSES = {"fish": "鱼", "tea": "茶", "teacher": "老师", "the": "老师"}


def substituted(
    vocabulary: Vocabulary, source: str, text: str, dislikes: Sequence[str] = (), **terms: str
) -> str | None:
    glossary = Glossary(Term(key, tuple(targets.split("/"))) for key, targets in terms.items())
    opinions = Opinions(vocabulary, CAUSES, dislikes)
    (changed,) = substitute([(source, text)], glossary, TermModel(vocabulary, opinions.score, not_called))
    return None if changed is None else changed.target


def test_a_term_replaces_the_word_that_depends_on_it(vocabulary: Vocabulary) -> None:
    assert substituted(vocabulary, "我吃鱼。", "we eat fish.", 鱼="milk") == "we eat milk."
    assert substituted(vocabulary, "鱼", "fish", 鱼="the water") == "the water"


def test_several_terms_each_have_their_position(vocabulary: Vocabulary) -> None:
    found = substituted(vocabulary, "老师吃鱼喝茶", "teacher eat fish tea.", 茶="milk", 鱼="apples", 老师="student")
    assert found == "student eat apples milk."


def test_a_term_that_begins_the_text_is_capitalized(vocabulary: Vocabulary) -> None:
    assert substituted(vocabulary, "鱼", "Fish eat", 鱼="milk") == "Milk eat"
    assert substituted(vocabulary, "鱼", "Fish eat", 鱼="iPod") == "iPod eat"  # a name is as it is written
    assert substituted(vocabulary, "鱼", "eat fish", 鱼="milk") == "eat milk"


def test_the_most_probable_form_of_a_term_is_inserted(vocabulary: Vocabulary) -> None:
    assert substituted(vocabulary, "我吃鱼", "we eat fish", 鱼="apple/apples", dislikes=["apples"]) == "we eat apple"
    assert substituted(vocabulary, "我吃鱼", "we eat fish", 鱼="milk/apples", dislikes=["milk"]) == "we eat apples"


def test_a_further_form_must_be_much_more_probable_than_the_first(vocabulary: Vocabulary) -> None:
    """Words that are new to a model differ by about 1 nat, whatever their number and case."""
    glossary = Glossary([Term("鱼", ("apple", "apples"))])
    for nats, text in ((1.0, "we eat apple"), (3.0, "we eat apples")):

        def score(sources: Sequence[str], targets: Sequence[str], nats: float = nats) -> list[Score]:
            scores = Opinions(vocabulary, CAUSES).score(sources, targets)
            return [
                msgspec.structs.replace(each, token_log_probabilities=(-9.0 + nats * each.target.endswith("apples"),))
                if "apple" in each.target
                else each
                for each in scores
            ]

        (changed,) = substitute([("我吃鱼", "we eat fish")], glossary, TermModel(vocabulary, score, not_called))
        assert changed is not None
        assert changed.target == text


@pytest.mark.parametrize(
    ("replaced", "forms", "taken"),
    [
        ("dogs", ("goat", "goats"), "goats"),
        ("Dog", ("goat", "goats"), "goat"),
        ("children", ("pupil", "pupils"), "pupils"),
        ("class", ("group", "groups"), "group"),
        ("dog", ("sheep", "goats"), "sheep"),
    ],
)
def test_an_english_plural_replaces_a_plural(replaced: str, forms: tuple[str, ...], taken: str) -> None:
    assert _forms_like(replaced, forms) == [taken]
    assert _forms_like(replaced, ("milk", "tea")) == (["milk", "tea"] if taken[-1] != "s" else ("milk", "tea"))


def test_an_english_term_takes_the_grammatical_number_of_the_replaced_word(vocabulary: Vocabulary) -> None:
    glossary = Glossary([Term("茶", ("apple", "apples"))])
    opinions = Opinions(vocabulary, {"teas": "茶"}, dislikes=["apples"])
    texts = {"en": "we like apples", "eng_Latn": "we like apples", "en_GB": "we like apples", "de": "we like apple"}
    for language, text in texts.items():
        model = TermModel(vocabulary, opinions.score, not_called, target_language=language)
        (changed,) = substitute([("我喜欢茶", "we like teas")], glossary, model)
        assert changed is not None
        assert changed.target == text


@pytest.mark.parametrize(
    ("source", "plain", "again", "text"),
    [
        ("He works at Foo GmbH.", "Er arbeitet.", "Er arbeitet an einem GmbH", "Er arbeitet an einem GmbH."),
        ("At Foo!", "Da!", "Da ist Foo,", "Da ist Foo,"),
        ("At Foo Inc.", "Da.", "Da ist Foo Inc.", "Da ist Foo Inc."),
        ("At Foo", "Da.", "Da ist Foo", "Da ist Foo"),
        ("我在Foo。", "I am.", "I am at Foo", "I am at Foo."),
    ],
)
def test_a_search_for_terms_keeps_the_mark_at_the_end(source: str, plain: str, again: str, text: str) -> None:
    assert _with_final_mark(Translation.of(source, again), plain).text == text


def test_neighboring_words_are_replaced_if_that_is_more_probable(vocabulary: Vocabulary) -> None:
    """`the` depends on the teacher, too."""
    source, text = "老师吃鱼", "the teacher eat fish"
    assert substituted(vocabulary, source, text, 老师="students", dislikes=["the students", "students teacher"]) == (
        "students eat fish"
    )


def test_without_a_dependent_word_no_term_is_inserted(vocabulary: Vocabulary) -> None:
    assert substituted(vocabulary, "我吃鱼。", "we eat milk.", 鱼="apples") is None
    assert substituted(vocabulary, "我吃鱼。", "", 鱼="apples") is None
    assert substituted(vocabulary, "我吃鱼喝茶。", "we eat fish.", 鱼="apples", 茶="water") is None  # one of two


def test_word_spans_omit_punctuation_and_split_unspaced_characters() -> None:
    text = "It's “fish” (我们吃), 1,234.5 or 6."
    words = ["It", "s", "fish", "我", "们", "吃", "1,234.5", "or", "6"]
    assert [text[start:end] for start, end in word_spans(text)] == words
    assert word_spans("") == []


def part_and_translation(*texts: str) -> tuple[TextPart, Translation]:
    part = TextPart("我吃鱼", 0, 0, [4, 5, 6, 1])
    alternatives = tuple(
        Alternative(text, tuple(text.split()), (-0.1,), -1.0 - n, True) for n, text in enumerate(texts)
    )
    return part, Translation(part.text, alternatives)


def texts_with_terms(vocabulary: Vocabulary, search: SearchSettings, *texts: str) -> list[str] | None:
    part, translation = part_and_translation(*texts)
    score = Opinions(vocabulary, CAUSES).score
    glossary = Glossary([Term("鱼", ("milk",))])
    found = insert_terms([part], {part.key: translation}, glossary, search, TermModel(vocabulary, score, not_called))
    return [each.text for each in found[part.key].alternatives] if found else None


def test_alternatives_have_their_terms_in_their_order_and_none_twice(vocabulary: Vocabulary) -> None:
    search = SearchSettings(n_best=3)
    found = texts_with_terms(vocabulary, search, "we eat fish", "we fish eat", "we eat milk")
    assert found is not None
    assert found == ["we eat milk", "we milk eat"]
    assert texts_with_terms(vocabulary, search, "we eat tea", "we eat fish") == [
        "we eat milk"
    ]  # the other alternative has no position for the term
    assert texts_with_terms(vocabulary, search, "we eat tea") is None


def test_a_name_that_comes_twice_is_replaced_twice(vocabulary: Vocabulary) -> None:
    assert substituted(vocabulary, "鱼 鱼", "fish likes Fish!", 鱼="milk") == "milk likes milk!"
    assert substituted(vocabulary, "鱼", "fish likes tea fish!", 鱼="milk") == "milk likes tea milk!"


def test_a_term_that_begins_a_later_sentence_is_capitalized(vocabulary: Vocabulary) -> None:
    assert substituted(vocabulary, "我吃鱼", "we eat. “Fish”", 鱼="milk") == "we eat. “Milk”"
    assert substituted(vocabulary, "我吃鱼", "we eat, Fish", 鱼="milk") == "we eat, milk"


def test_a_cut_translation_gets_no_terms(vocabulary: Vocabulary) -> None:
    part = TextPart("我吃鱼", 0, 0, [4, 5, 6, 1])
    cut = Translation(part.text, (Alternative("we eat fish", ("we", "eat", "fish"), (-0.1,), -1.0, ended=False),))
    glossary, score = Glossary([Term("鱼", ("milk",))]), Opinions(vocabulary, CAUSES).score
    assert (
        insert_terms([part], {part.key: cut}, glossary, SearchSettings(), TermModel(vocabulary, score, not_called))
        == {}
    )


@pytest.mark.parametrize(
    "search",
    [SearchSettings(max_length=1), SearchSettings(forbidden=("eat milk",)), SearchSettings(no_repeated_ngrams=2)],
)
def test_insertions_that_violate_search_settings_are_discarded(vocabulary: Vocabulary, search: SearchSettings) -> None:
    assert texts_with_terms(vocabulary, SearchSettings(), "we eat fish") == ["we eat milk"]
    assert texts_with_terms(vocabulary, search, "we eat fish") is None


def test_only_translations_that_lack_a_term_are_scored(vocabulary: Vocabulary) -> None:
    opinions = Opinions(vocabulary, CAUSES)
    part, translation = part_and_translation("we eat milk")
    glossary = Glossary([Term("鱼", ("milk",))])
    model = TermModel(vocabulary, opinions.score, not_called)
    assert insert_terms([part], {part.key: translation}, glossary, SearchSettings(), model) == {}
    assert opinions.asked == []


def test_batch_invariant_results_with_terms_do_not_depend_on_the_batch(translator: Translator) -> None:
    strict, glossary = SearchSettings(batch_invariant=True, beam_size=2), {"鱼": "milk", "茶": "water"}
    sentences = ["我吃鱼。", "老师喝茶。", "我们喝水。"]
    together = translator.translate(sentences, strict, glossary=glossary)
    alone = [translator.translate([sentence], strict, glossary=glossary)[0] for sentence in sentences]
    assert together == alone


def test_in_a_script_without_spaces_a_term_replaces_its_usual_translation(vocabulary: Vocabulary) -> None:
    """Pieces go over several words there, and so do their losses."""

    def score(sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
        found = []
        for source, target in zip(sources, targets, strict=True):
            count = len(vocabulary.encode(target))
            nats = -3.0 if "fish" in source else -6.0
            found.append(Score(source, target, ("x",) * count, (*[nats] * count, -0.1), nats * count))
        return found

    glossary = Glossary([Term("fish", ("虾",))])
    by_itself = TermModel(vocabulary, score, lambda texts: [Translation.of(text, "鱼。") for text in texts])
    (changed,) = substitute([("fish", "我吃鱼。")], glossary, by_itself)
    assert changed is not None
    assert changed.target == "我吃虾。"
    other = TermModel(vocabulary, score, lambda texts: [Translation.of(text, "鲤") for text in texts])
    (changed,) = substitute([("fish", "我吃鱼。")], glossary, other)
    assert changed is not None
    assert "虾" in changed.target


def searched_for(vocabulary: Vocabulary, plain: str, *again: str, nats: float = 5.0, milk: str = "milk") -> list[str]:
    """Return the translation with terms if re-decoding finds these alternatives."""
    part, translation = part_and_translation(plain)
    answer = part_and_translation(*again)[1]
    model = TermModel(vocabulary, Opinions(vocabulary, CAUSES, nats=nats).score, not_called)
    found = translate_with_terms(
        [part],
        {part.key: translation},
        Glossary([Term("鱼", (milk,))]),
        SearchSettings(),
        model,
        lambda parts: {part.key: answer for part in parts},
    )
    return [each.text for each in found[part.key].alternatives]


def test_a_re_decoded_translation_is_used_unless_it_has_new_faults(vocabulary: Vocabulary) -> None:
    plain = "we eat tea apples."
    assert searched_for(vocabulary, plain, "we eat milk.") == ["we eat milk."]
    assert searched_for(vocabulary, plain, "we eat milk milk milk milk.") == [plain]
    assert searched_for(vocabulary, plain, "we eat tea milk, we eat tea apples.") == [plain]  # begins anew
    assert searched_for(vocabulary, plain, "we eat 45 milk.", "they eat milk.") == ["they eat milk."]
    assert searched_for(vocabulary, plain, f"{plain} Milk.") == [f"{plain} Milk."]  # there is nothing better


def test_a_word_that_depends_a_little_is_replaced_where_the_search_finds_no_good_position(
    vocabulary: Vocabulary,
) -> None:
    plain = "we eat fish."
    assert searched_for(vocabulary, plain, f"{plain} Milk.", nats=0.6) == ["we eat milk."]
    assert searched_for(vocabulary, plain, "we eat milk milk milk milk.", nats=0.6) == ["we eat milk."]
    assert searched_for(vocabulary, plain, "milk we eat.", nats=0.6) == ["milk we eat."]
    assert searched_for(vocabulary, plain, f"{plain} Milk.", nats=0.2) == [f"{plain} Milk."]
    assert searched_for(vocabulary, "fish eat fish tea fish.", "45 milk", nats=0.6) == ["fish eat fish tea fish."]


@pytest.mark.parametrize(
    ("source", "plain", "text", "is_corrupted"),
    [
        ("45 Fische", "45 fish", "45 milk", False),
        ("45 Fische", "45 fish", "milk", True),
        ("45 Fische", "fish", "milk", False),  # lost before
        ("45 Fische", "45 fish", "45 milk 46", True),
        ("Windows 95 Fische", "Windows 95 fish", "Windows 98 milk", False),  # as the glossary says
        ("Fische", "fish", "milk milk milk milk", True),
    ],
)
def test_new_faults_of_an_inserted_term_are_detected(source: str, plain: str, text: str, is_corrupted: bool) -> None:
    glossary = Glossary([Term("Fische", ("milk",)), Term("Windows 95", ("Windows 98",))])
    assert has_new_faults(source, plain, text, glossary) == is_corrupted


def test_a_number_is_not_replaced(vocabulary: Vocabulary) -> None:
    part = TextPart("45 鱼", 0, 0, [4, 5, 6, 1])
    translation = Translation(part.text, (Alternative("45", ("45",), (-0.1,), -1.0, True),))
    model = TermModel(vocabulary, Opinions(vocabulary, {"45": "鱼"}).score, not_called)
    assert (
        insert_terms([part], {part.key: translation}, Glossary([Term("鱼", ("milk",))]), SearchSettings(), model) == {}
    )
