"""Test the demonstration's corpus: its English, its split, its alignments, and its reproducibility."""

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path

import msgspec
import pytest

from transduce.demonstration import clauses, lexicon
from transduce.demonstration.clauses import (
    NOTHING,
    NOUNS,
    PRONOMINALS,
    Action,
    Nominal,
    Phrase,
    a_subject,
    article,
    bare,
    counted,
    declarative,
    demonstrative,
    how_many,
    many,
    owned,
    phrase,
    somebody,
    swap,
    whether,
)
from transduce.demonstration.grammar import (
    MAX_CHARACTERS,
    MIN_COOCCURRENCES,
    MIN_OCCURRENCES,
    PARTICIPANTS,
    PREDICATES,
    RULES,
    AlignedPair,
    DemoCorpus,
    combinations,
    generate,
    greeting,
    pair_of,
)

SOURCE = Path(__file__).resolve().parents[2] / "src"
ME, YOU, HE = PRONOMINALS[:3]
VERBS = {verb.english.split()[0]: verb for verb in (*lexicon.VERBS, *lexicon.FEELINGS)}
NEW = next(adjective for adjective in lexicon.THING_ADJECTIVES if adjective.english == "new")
OLD = next(adjective for adjective in lexicon.THING_ADJECTIVES if adjective.english == "old")
EATING_APPLES = Action(VERBS["eat"], bare(NOUNS["苹果"]).object)
YESTERDAY, TODAY, TOMORROW = phrase("昨天", "yesterday"), phrase("今天", "today"), phrase("明天", "tomorrow")


@cache
def corpus() -> DemoCorpus:
    return generate()


def text(words: Phrase) -> tuple[str, str]:
    pair = pair_of(words)
    return pair.source, pair.target


def in_all_parts() -> tuple[AlignedPair, ...]:
    return (*corpus().train, *corpus().dev, *corpus().test)


# --- phrases ---


def test_phrases_join_in_the_same_order_and_in_opposite_orders() -> None:
    red, book = phrase("红", "red"), phrase("本 书", "book", "1-0")
    assert red + book == Phrase(("红", "本", "书"), ("red", "book"), ((0, 0), (2, 1)))
    assert swap(red, book) == Phrase(("红", "本", "书"), ("book", "red"), ((0, 1), (2, 0)))


def test_the_empty_phrase_is_neutral() -> None:
    word = phrase("书", "book")
    assert phrase("", "", "") is NOTHING
    assert word + NOTHING == NOTHING + word == swap(word, NOTHING) == swap(NOTHING, word) == word


def test_every_word_is_linked_to_every_word_but_the_articles() -> None:
    assert phrase("图书馆", "the library").links == ((0, 1),)
    assert phrase("没 有", "do not have").links == tuple(product(range(2), range(3)))
    assert phrase("一", "a", "0-0").links == ((0, 0),)


# --- sentences ---


@pytest.mark.parametrize(
    ("words", "source", "target"),
    [
        (declarative(ME, clauses.HABIT, Action(VERBS["love"], YOU.object)), "我爱你", "I love you"),
        (declarative(ME, clauses.LIKES, EATING_APPLES), "我喜欢吃苹果", "I like to eat apples"),
        (declarative(ME, clauses.DID, EATING_APPLES, YESTERDAY), "昨天我吃了苹果", "I ate apples yesterday"),
        (
            declarative(ME, clauses.DID, EATING_APPLES, YESTERDAY, early=False),
            "我昨天吃了苹果",
            "I ate apples yesterday",
        ),
        (declarative(HE, clauses.HABIT, EATING_APPLES), "他吃苹果", "he eats apples"),
        (declarative(HE, clauses.DOES_NOT, EATING_APPLES), "他不吃苹果", "he does not eat apples"),
        (declarative(HE, clauses.DID_NOT, EATING_APPLES), "他没吃苹果", "he did not eat apples"),
        (declarative(ME, clauses.IS_DOING, EATING_APPLES), "我正在吃苹果", "I am eating apples"),
        (declarative(HE, clauses.HAS_DONE, EATING_APPLES), "他吃过苹果", "he has eaten apples before"),
        (declarative(HE, clauses.HAS_NEVER, EATING_APPLES), "他没吃过苹果", "he has never eaten apples"),
        (
            declarative(HE, clauses.WILL_NOT, EATING_APPLES, TOMORROW),
            "明天他不会吃苹果",
            "he will not eat apples tomorrow",
        ),
        (declarative(HE, clauses.DOES_NOT_WANT, EATING_APPLES), "他不想吃苹果", "he does not want to eat apples"),
        (whether(HE, clauses.DOES_ONE, EATING_APPLES), "他吃苹果吗？", "does he eat apples?"),
        (
            whether(YOU, clauses.DID_ONE, EATING_APPLES, YESTERDAY),
            "昨天你吃了苹果吗？",
            "did you eat apples yesterday?",
        ),
        (whether(HE, clauses.HAS_ONE, EATING_APPLES), "他吃过苹果吗？", "has he ever eaten apples?"),
        (whether(YOU, clauses.CAN_ONE, EATING_APPLES), "你能吃苹果吗？", "can you eat apples?"),
    ],
)
def test_sentences_have_the_exact_chinese_and_english_text(words: Phrase, source: str, target: str) -> None:
    assert text(words) == (source, target)


@pytest.mark.parametrize(
    ("nominal", "source", "target"),
    [
        (bare(NOUNS["苹果"]), "苹果", "apples"),
        (bare(NOUNS["茶"]), "茶", "tea"),
        (counted(NOUNS["苹果"], ("一", "")), "一个苹果", "an apple"),
        (counted(NOUNS["书"], ("一", ""), NEW), "一本新书", "a new book"),
        (counted(NOUNS["书"], ("一", ""), OLD), "一本旧书", "an old book"),
        (counted(NOUNS["书"], ("三", "three")), "三本书", "three books"),
        (counted(NOUNS["茶"], ("一", "")), "一杯茶", "a cup of tea"),
        (counted(NOUNS["茶"], ("两", "two")), "两杯茶", "two cups of tea"),
        (many(NOUNS["书"]), "很多书", "a lot of books"),
        (demonstrative(NOUNS["书"], ("这", "this")), "这本书", "this book"),
        (demonstrative(NOUNS["茶"], ("那", "that")), "那杯茶", "that cup of tea"),
        (demonstrative(NOUNS["书"], ("那些", "those"), NEW), "那些新书", "those new books"),
        (owned(NOUNS["书"], "我"), "我的书", "my book"),
        (owned(NOUNS["书"], "汤姆"), "汤姆的书", "Tom's book"),
    ],
)
def test_nominals_have_the_exact_chinese_and_english_text(nominal: Nominal, source: str, target: str) -> None:
    assert text(nominal.object) == (source, target)


def test_how_many_asks_for_the_container_of_what_is_not_counted() -> None:
    assert text(how_many(NOUNS["书"])) == ("几本书", "how many books")
    assert text(how_many(NOUNS["茶"])) == ("几杯茶", "how many cups of tea")


def test_the_article_goes_by_the_first_letter_and_no_word_of_the_lexicon_is_an_exception() -> None:
    assert (article("engineer"), article("teacher"), article("old")) == ("an", "a", "an")
    words = [noun.one for noun in (*lexicon.THINGS, *lexicon.OCCUPATIONS, *lexicon.FAMILY)]
    words += [adjective.english for adjective in lexicon.THING_ADJECTIVES]
    # A vowel's letter that sounds like "you" or "won", or a silent h, would need a rule of its own.
    assert [word for word in words if word.startswith(("uni", "use", "eu", "one", "hour", "honest"))] == []


def test_every_verb_has_five_forms_that_agree() -> None:
    verbs = [value for value in vars(lexicon).values() if isinstance(value, lexicon.Verb)]
    verbs += [verb for table in vars(lexicon).values() if isinstance(table, tuple) for verb in table
              if isinstance(verb, lexicon.Verb)]  # fmt: skip
    assert len(verbs) > 40
    for verb in verbs:
        base, third, _, _, gerund = verb.english.partition(" + ")[0].split()
        assert third == {"be": "is", "have": "has"}.get(base) or third in (base + "s", base + "es", base[:-1] + "ies")
        assert gerund in (base + "ing", base.removesuffix("e") + "ing", base + base[-1] + "ing")


def test_the_lexicon_names_only_nouns_and_locations_that_it_has() -> None:
    places = {place.source for place in lexicon.PLACES}
    for verb in (*lexicon.VERBS, *lexicon.HELPING_VERBS, *lexicon.INTRANSITIVE_VERBS):
        assert set(verb.places.split()) <= places
        assert set(verb.objects.split()) <= NOUNS.keys()
    for adjective in lexicon.THING_ADJECTIVES:
        assert set(adjective.nouns.split()) <= NOUNS.keys()


def test_subject_and_object_never_refer_to_the_same_person() -> None:
    chance = random.Random(3)
    for _ in range(2000):
        subject = a_subject(chance)
        assert not subject.referents & somebody(chance, subject).referents


# --- the corpus ---


def test_the_corpus_has_50000_500_and_1000_pairs() -> None:
    assert (len(corpus().train), len(corpus().dev), len(corpus().test)) == (50_000, 500, 1_000)


def test_english_is_a_function_of_chinese() -> None:
    sources = [pair.source for pair in in_all_parts()]
    assert len(set(sources)) == len(sources)
    # Sentences that were drawn several times, each time with the translation that another rule gives.
    translations: dict[str, str] = {}
    for pair in draws():
        assert translations.setdefault(pair.source, pair.target) == pair.target


def draws() -> list[AlignedPair]:
    """Return 1,000 draws of each rule of the grammar, repeated sentences included."""
    chance = random.Random(4)
    return [pair_of(rule(chance)) for rule, _ in RULES for _ in range(1000)]


def test_the_splits_share_no_sentence_on_either_side() -> None:
    parts = (corpus().train, corpus().dev, corpus().test)
    for side in ("source_words", "target_words"):
        first, second, third = ({getattr(pair, side) for pair in part} for part in parts)
        assert not first & second
        assert not first & third
        assert not second & third


def test_no_training_sentence_holds_a_held_out_combination_and_every_other_sentence_holds_one() -> None:
    held_out = corpus().held_out
    assert all(held_out.isdisjoint(combinations(pair.source_words)) for pair in corpus().train)
    assert not any(held_out.isdisjoint(combinations(pair.source_words)) for pair in (*corpus().dev, *corpus().test))


def test_combinations_are_all_predicates_with_all_pairs_of_participants() -> None:
    words = ("我", "喜欢", "吃", "汤姆", "的", "苹果")
    found = combinations(words)
    assert len(found) == len(set(found)) == 2 * 3
    assert all(set(combination) <= set(words) for combination in found)
    assert ("吃", *sorted(("我", "苹果"))) in found
    assert PARTICIPANTS.isdisjoint(PREDICATES)


def test_about_a_tenth_of_the_combinations_is_held_out() -> None:
    shown = {found for pair in corpus().train for found in combinations(pair.source_words)}
    assert 0.08 < len(corpus().held_out) / (len(corpus().held_out) + len(shown)) < 0.12


def test_training_shows_every_held_out_word_often() -> None:
    for side in ("source_words", "target_words"):
        shown = Counter(word for pair in corpus().train for word in getattr(pair, side))
        asked = {word for pair in (*corpus().dev, *corpus().test) for word in getattr(pair, side)}
        assert min(shown[word] for word in asked) >= MIN_OCCURRENCES


def test_training_shows_every_predicate_of_a_held_out_combination_with_each_of_its_participants() -> None:
    shown: Counter[tuple[str, str]] = Counter()
    for pair in corpus().train:
        words = set(pair.source_words)
        shown.update(product(words & PREDICATES, words & PARTICIPANTS))
    for pair in (*corpus().dev, *corpus().test):
        for predicate, *participants in corpus().held_out.intersection(combinations(pair.source_words)):
            assert all(shown[predicate, participant] >= MIN_COOCCURRENCES for participant in participants)


def test_sentences_are_short_and_written_as_people_write() -> None:
    for pair in in_all_parts():
        assert 2 <= len(pair.source) <= MAX_CHARACTERS
        assert " " not in pair.source
        assert pair.target == pair.target.strip()
        assert "  " not in pair.target
        assert pair.source.endswith("？") == pair.target.endswith("?")
        assert pair.source.endswith("。") == pair.target.endswith(".")
        assert pair.source.endswith("！") == pair.target.endswith("!")


def test_capital_letters_stand_only_where_english_has_them() -> None:
    capitals = {word for pair in in_all_parts() for word in pair.target_words if word != word.lower()}
    names = {english for _, english in lexicon.NAMES}
    proper = {"I", "TV", "Chinese", "English", "French", "Beijing", "China"}
    assert capitals <= proper | names | {f"{name}'s" for name in names}


def test_every_chinese_word_is_aligned_and_only_words_that_chinese_lacks_are_not() -> None:
    without = {"a", "an", "the", "to", "and", "do", "does", "did", "am", "is", "are", "was", "were", "before"}
    for pair in in_all_parts():
        assert list(pair.alignment) == sorted(set(pair.alignment))
        assert {i for i, _ in pair.alignment} == set(range(len(pair.source_words)))
        linked = {j for _, j in pair.alignment}
        assert {word for j, word in enumerate(pair.target_words) if j not in linked} <= without


def test_greetings_have_the_exact_chinese_and_english_text() -> None:
    chance = random.Random(2)
    said = {pair.source: pair.target for pair in (pair_of(greeting(chance)) for _ in range(2000))}
    expected = {
        "你好": "hello",
        "再见玛丽": "goodbye Mary",
        "谢谢": "thank you",
        "谢谢你的书": "thank you for your book",
        "你好吗？": "how are you?",
        "明天见": "see you tomorrow",
    }
    assert {source: said.get(source) for source in expected} == expected


def test_an_alignment_of_words_in_another_order() -> None:
    pair = pair_of(declarative(ME, clauses.DID, EATING_APPLES, YESTERDAY))
    assert pair.source_words == ("昨天", "我", "吃", "了", "苹果")
    assert pair.target_words == ("I", "ate", "apples", "yesterday")
    assert pair.alignment == ((0, 3), (1, 0), (2, 1), (3, 1), (4, 2))


def test_the_particle_of_a_question_is_aligned_with_do() -> None:
    pair = pair_of(whether(YOU, clauses.DOES_ONE, EATING_APPLES))
    assert pair.source_words == ("你", "吃", "苹果", "吗", "？")
    assert pair.target_words == ("do", "you", "eat", "apples", "?")
    assert pair.alignment == ((0, 1), (1, 2), (2, 3), (3, 0), (4, 4))


def digest(corpus: DemoCorpus) -> str:
    parts = [corpus.train, corpus.dev, corpus.test, sorted(corpus.held_out)]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_corpus_does_not_depend_on_hash_seeds(hash_seed: str) -> None:
    code = (
        "import hashlib, msgspec\n"
        "from transduce.demonstration.grammar import generate\n"
        "c = generate()\n"
        "parts = [c.train, c.dev, c.test, sorted(c.held_out)]\n"
        "print(hashlib.sha256(msgspec.json.encode(parts)).hexdigest())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest(corpus())


def test_another_seed_gives_another_corpus_with_as_many_sentences() -> None:
    other = generate(2)
    assert (len(other.train), len(other.dev), len(other.test)) == (50_000, 500, 1_000)
    assert other.held_out != corpus().held_out
    assert {pair.source for pair in other.test} != {pair.source for pair in corpus().test}
