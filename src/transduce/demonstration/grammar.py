"""Generate the demonstration's corpus: Chinese sentences with English translations, by a grammar.

Held-out sentences contain combinations of words that occur in no training sentence, although training contains every
word, and every verb with each of its objects, many times. To translate them, a model must generalize to new
combinations.
"""

import re
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from itertools import combinations as subsets
from itertools import islice, permutations
from random import Random

import msgspec

from transduce.demonstration import actions, clauses, lexicon
from transduce.demonstration.actions import early
from transduce.demonstration.clauses import (
    BE,
    NOTHING,
    NOUNS,
    OWNERS,
    QUESTION_MARK,
    WHO,
    Action,
    Links,
    Nominal,
    Phrase,
    a_noun,
    a_subject,
    asked,
    bare,
    declarative,
    definite,
    owned,
    phrase,
    somebody,
    swap,
    whether,
)
from transduce.demonstration.lexicon import Adjective, Place

# --- feelings and qualities ---


_QUALITIES = tuple(
    (adjective, NOUNS[noun])
    for adjective in lexicon.THING_ADJECTIVES
    if adjective.source not in lexicon.COLOURS
    for noun in adjective.nouns.split()
)
_COUNTED_QUALITIES = tuple((adjective, noun) for adjective, noun in _QUALITIES if noun.measure)
_GENERIC_COMPARISONS = tuple(
    (adjective, NOUNS[first], NOUNS[second])
    for adjective in lexicon.THING_ADJECTIVES
    if adjective.generic
    for kind in (lexicon.FOODS, lexicon.DRINKS, lexicon.ANIMALS, "中文 英文 法语 数学")
    for first, second in permutations([noun for noun in kind.split() if noun in adjective.nouns.split()], 2)
)
_PERSON_COMPARISONS = tuple(a for a in lexicon.PERSON_ADJECTIVES if a.source not in ("饿", "高兴"))
# With these, 太…了 means too much; with others it is praise.
_EXCESSIVE = frozenset(("贵", "大", "小", "旧", "难", "忙", "累"))
_VERY_MUCH = frozenset(("喜欢", "爱", "想", "需要"))
# Feelings that do not fit people who are only pointed at.
_TENDER = frozenset(("爱", "想", "需要"))
_PRESENT_DAYS = (("今天", "today", ""), ("现在", "now", ""))


# --- feelings ---


def feeling(random: Random) -> Phrase:
    """Return a random sentence about a feeling as a bilingual `Phrase`, such as 他不喜欢茶 / he does not like tea."""
    subject = a_subject(random)
    action = _feeling(random, subject)
    if action.verb.source in _VERY_MUCH and random.random() < 0.2:
        loves = action.phrase(clauses.FINITE[subject.agreement])
        return subject.subject + swap(phrase("非常", "very much"), loves)
    frames = [clauses.HABIT, clauses.HABIT, clauses.HABIT, clauses.DOES_NOT, clauses.ALSO]
    if subject.plural:
        frames.append(clauses.BOTH if subject in clauses.PAIRS else clauses.ALL)
    return declarative(subject, random.choice(frames), action)


def feeling_question(random: Random) -> Phrase:
    """Return a random question about a feeling as a bilingual `Phrase`, such as 你喜欢他吗 / do you like him."""
    kind, subject = random.random(), asked(random)
    action = _feeling(random, subject)
    if kind < 0.45:
        return whether(subject, clauses.DOES_ONE, action)
    if kind < 0.65:
        return clauses.why(phrase("为什么", "why"), subject, clauses.DOES_ONE, action, random.choice(("", "不")))
    if kind < 0.85:
        return declarative(WHO, random.choice((clauses.HABIT, clauses.DOES_NOT)), action) + QUESTION_MARK
    word = clauses.WHAT if action.verb is lexicon.LIKE and random.random() < 0.5 else WHO.object
    return clauses.what(word, subject, clauses.DOES_ONE, Action(action.verb))


def _feeling(random: Random, subject: Nominal) -> Action:
    if random.random() < 0.4:
        noun = a_noun(random, lexicon.LIKE.objects)
        pointed = noun.measure and random.random() < 0.4
        return Action(lexicon.LIKE, (definite(random, noun, subject) if pointed else bare(noun)).object)
    verb = random.choice(lexicon.FEELINGS)
    while True:
        person = somebody(random, subject)
        if verb.source == "认识" and _related(subject, person):
            continue
        if verb.source not in _TENDER or person not in clauses.STRANGERS:
            return Action(verb, person.object)


def _related(first: Nominal, second: Nominal) -> bool:
    """Return whether two people are the same or related, so that they obviously know each other."""
    return bool((first.owners | first.referents) & (second.owners | second.referents))


# --- qualities ---


def quality(random: Random) -> Phrase:
    """Return a random sentence about a quality as a bilingual `Phrase`, such as 这本书很贵 / this book is expensive."""
    subject, adjective = _thing_with_quality(random)
    if adjective.source in lexicon.MOODS and random.random() < 0.4:
        return _mood(random, subject, adjective)
    return subject.subject + _degree(random, subject, adjective)


def _mood(random: Random, subject: Nominal, adjective: Adjective) -> Phrase:
    """Return a random sentence about a mood as a bilingual `Phrase`, such as 昨天我很累 / I was tired yesterday."""
    past = random.random() < 0.6
    time = random.choice(lexicon.PAST_TIMES if past else _PRESENT_DAYS)
    be = (clauses.WAS if past else BE)[subject.agreement]
    degree = random.choice((phrase("很", be), phrase("不", f"{be} not"), phrase("非常", f"{be} very", "0-1")))
    tired = degree + phrase(adjective.source, adjective.english)
    return clauses.at_time(subject.subject, tired, phrase(*time), early(random))


def _thing_with_quality(random: Random) -> tuple[Nominal, Adjective]:
    """Return a pair: a random person or thing as a `Nominal`, and an `Adjective` that can describe it."""
    if random.random() < 0.45:
        return a_subject(random), random.choice(lexicon.PERSON_ADJECTIVES)
    adjective, noun = random.choice(_QUALITIES)
    if not noun.measure or (adjective.generic and random.random() < 0.2):
        return bare(noun), adjective
    if noun.source not in lexicon.NOT_OWNED and random.random() < 0.5:
        return owned(noun, random.choice(OWNERS)), adjective
    pointers = clauses.POINTERS[:2] if noun.container else clauses.POINTERS
    return clauses.demonstrative(noun, random.choice(pointers)), adjective


def _degree(random: Random, subject: Nominal, adjective: Adjective) -> Phrase:
    """Return a random predicate with an adjective as a bilingual `Phrase`, such as 非常高 / is very tall."""
    be, kind = BE[subject.agreement], random.random()
    if adjective.source in _EXCESSIVE and kind < 0.15:
        return phrase(f"太 {adjective.source} 了", f"{be} too {adjective.english}", "0-1 1-2 2-1")
    if subject.plural and kind < 0.4:
        degree = phrase("都 很", f"{be} {'both' if subject in clauses.PAIRS else 'all'}", "0-1 1-0")
    elif kind < 0.6:
        degree = phrase("很", be)
    elif kind < 0.75:
        degree = phrase("非常", f"{be} very", "0-1")
    elif kind < 0.92:
        degree = phrase("不", f"{be} not")
    else:
        degree = phrase("也 很", f"{be} also", "0-1 1-0")
    return degree + phrase(adjective.source, adjective.english)


def quality_question(random: Random) -> Phrase:
    """Return a random question about a quality as a bilingual `Phrase`, such as 他比你高吗 / is he taller than you."""
    while True:
        subject, wanted = _comparison(random) if random.random() < 0.3 else _quality(random)
        if subject.agreement != clauses.FIRST:
            return swap(subject.subject + wanted, phrase("吗", BE[subject.agreement])) + QUESTION_MARK


def _quality(random: Random) -> tuple[Nominal, Phrase]:
    subject, adjective = _thing_with_quality(random)
    return subject, phrase(adjective.source, adjective.english)


def comparison(random: Random) -> Phrase:
    """Return a random comparison as a bilingual `Phrase`, such as 她和我一样忙 / she is as busy as me."""
    subject, compared = _comparison(random)
    return subject.subject + phrase("", BE[subject.agreement]) + compared


def _comparison(random: Random) -> tuple[Nominal, Phrase]:
    """Return a pair: a random subject, and a comparison without "is", such as 比 我 高 / taller than me."""
    first, second, adjective = _compared(random)
    kind = random.random()
    if kind < 0.25:
        as_tall = phrase("一样", "as") + phrase(adjective.source, adjective.english)
        return first, swap(phrase("和", "as") + second.object, as_tall)
    taller = phrase(adjective.source, adjective.comparative)
    if kind < 0.4:
        taller = swap(taller, phrase("一点", "a little", "0-0 0-1"))
    return first, swap(phrase("比", "than") + second.object, taller)


def _compared(random: Random) -> tuple[Nominal, Nominal, Adjective]:
    kind = random.random()
    if kind < 0.5:
        first = a_subject(random)
        return first, somebody(random, first), random.choice(_PERSON_COMPARISONS)
    if kind < 0.7:
        adjective, one, other = random.choice(_GENERIC_COMPARISONS)
        return bare(one), bare(other), adjective
    adjective, noun = random.choice(_COUNTED_QUALITIES)
    if kind < 0.85 and not noun.container and noun.source not in lexicon.NOT_OWNED:
        mine, yours = random.sample(OWNERS, 2)
        return owned(noun, mine), owned(noun, yours), adjective
    this, that = random.sample(clauses.POINTERS[:2], 2)
    return clauses.demonstrative(noun, this), clauses.demonstrative(noun, that), adjective


# --- being, having, thinking ---


_ABODES = tuple(place for place in lexicon.PLACES if place.source in lexicon.ABODES.split())
_SIBLINGS = lexicon.FAMILY[2:]
_COPULAS = (("是", "{}", ""), ("是", "{}", ""), ("不 是", "{} not", "0-0 0-1 1-0"), ("也 是", "{} also", "0-1 1-0"))
_THIS = (phrase("这", "this"), phrase("那", "that"))
_IS = phrase("是", "is")


# --- who somebody is, what something is ---


def identity(random: Random) -> Phrase:
    """Return a random sentence about who or what something is as a bilingual `Phrase`.

    An example is 他是老师 / he is a teacher.
    """
    if random.random() < 0.2:
        return random.choice(_THIS) + _copula(random, "is") + _property(random)
    people = (clauses.PRONOMINALS, clauses.NAMED, clauses.RELATIVES, clauses.PAIRS)
    subject = random.choice(random.choices(people, (6, 3, 6, 1))[0])
    return subject.subject + _copula(random, BE[subject.agreement]) + _role(random, subject)


def _copula(random: Random, be: str) -> Phrase:
    source, english, links = random.choice(_COPULAS)
    return phrase(source, english.format(be), links)


def _role(random: Random, subject: Nominal) -> Phrase:
    """Return a random description of what a person is as a bilingual `Phrase`.

    An example is 老师 / a teacher, 我 的 朋友 / my friends.
    """
    if random.random() < 0.6:
        noun = random.choice(lexicon.OCCUPATIONS)
        return phrase(noun.source, noun.many if subject.plural else f"{clauses.article(noun.one)} {noun.one}")
    excluded = subject.referents | subject.owners
    owner = random.choice([owner for owner in OWNERS if owner.removesuffix("们") not in excluded])
    noun = random.choice(lexicon.COMPANIONS)
    return clauses.owner_phrase(owner) + phrase(noun.source, noun.many if subject.plural else noun.one)


def _property(random: Random) -> Phrase:
    return owned(a_noun(random, lexicon.OWNED), random.choice(OWNERS)).object


def identity_question(random: Random) -> Phrase:
    """Return a random question about who or what something is as a bilingual `Phrase`, such as 她是谁 / who is she."""
    kind = random.random()
    if kind < 0.6:
        subject = asked(random) if kind < 0.2 else random.choice(clauses.RELATIVES)
        return swap(subject.subject, phrase("是", BE[subject.agreement])) + _role(random, subject) + clauses.PARTICLE
    if kind < 0.7:
        subject = random.choice((*clauses.PRONOMINALS[1:4], *clauses.STRANGERS))
        return swap(swap(subject.subject, phrase("是", BE[subject.agreement])), WHO.subject) + QUESTION_MARK
    this = random.choice(_THIS)
    if kind < 0.85:
        noun = a_noun(random, lexicon.OWNED)
        whose = phrase("谁 的", "whose") + phrase(noun.source, noun.one)
        return swap(swap(this, _IS), whose) + QUESTION_MARK
    return swap(this, _IS) + _property(random) + clauses.PARTICLE


# --- where somebody or something is ---


def location(random: Random) -> Phrase:
    """Return a random sentence about a location as a bilingual `Phrase`, such as 他在学校 / he is at school."""
    subject, be_there = _located(random)
    return subject.subject + be_there


def _located(random: Random) -> tuple[Nominal, Phrase]:
    if random.random() < 0.35:
        source, english, links, nouns = random.choice(lexicon.SPOTS)
        thing = definite(random, a_noun(random, nouns))
        return thing, phrase("在", BE[thing.agreement]) + phrase(source, english, links)
    subject, place = a_subject(random), random.choice(_ABODES)
    return subject, _being_at(place, BE[subject.agreement], negated=random.random() < 0.35)


def _being_at(place: Place, be: str, *, negated: bool) -> Phrase:
    """Return a predicate of place as a bilingual `Phrase`, such as 在 学校 / is at school.

    If `negated`, it is 不 在 学校 / is not at school. `be` is am, is or are.
    """
    preposition, where = place.where.split(" ", 1)
    if negated:
        return phrase("不 在", f"{be} not {preposition}", "0-0 0-1 1-0 1-2") + phrase(place.source, where)
    return phrase("在", f"{be} {preposition}") + phrase(place.source, where)


def location_question(random: Random) -> Phrase:
    """Return a random question about a location as a bilingual `Phrase`, such as 他在哪里 / where is he."""
    kind = random.random()
    if kind < 0.5:
        subject = asked(random)
    else:
        subject = owned(a_noun(random, lexicon.OWNED), random.choice(OWNERS))
    be = BE[subject.agreement]
    if kind < 0.3:
        place = random.choice(_ABODES)
        return swap(subject.subject, phrase("在", be)) + phrase(place.source, place.where) + clauses.PARTICLE
    return swap(subject.subject, swap(phrase("在", be), phrase("哪里", "where"))) + QUESTION_MARK


# --- greetings ---

_GREETINGS = (
    phrase("你好", "hello"),
    phrase("早上好", "good morning"),
    phrase("晚上好", "good evening"),
    phrase("晚安", "good night"),
    phrase("再见", "goodbye"),
    phrase("明天 见", "see you tomorrow", "0-2 1-0 1-1"),
    phrase("谢谢", "thank you"),
    phrase("谢谢 你", "thank you", "0-0 1-1"),
    phrase("对不起", "sorry"),
    phrase("欢迎", "welcome"),
)
_ADDRESSED = (
    *(phrase(*name) for name in lexicon.NAMES),
    *(phrase(noun.source, noun.one) for noun in lexicon.OCCUPATIONS),
)


def greeting(random: Random) -> Phrase:
    """Return a random greeting, thanks or apology as a bilingual `Phrase`, such as 再见玛丽 / goodbye Mary."""
    words, kind = random.choice(_GREETINGS), random.random()
    if kind < 0.05:
        return words
    if kind < 0.25:
        return words + (phrase("，", ",") if kind < 0.15 else NOTHING) + random.choice(_ADDRESSED)
    if kind < 0.8:
        return words + phrase("，", ",") + random.choice((identity, feeling, quality, location, possession))(random)
    if kind < 0.9:
        return phrase("谢谢", "thank you for") + owned(a_noun(random, lexicon.GIFTS), "你").object
    person = asked(random)
    return swap(person.subject, phrase("好", f"how {BE[person.agreement]}")) + clauses.PARTICLE


def existence(random: Random) -> Phrase:
    """Return a random sentence or question about what exists at a place as a bilingual `Phrase`.

    An example is 桌子上有三本书 / there are three books on the table.
    """
    source, english, links, nouns = random.choice(lexicon.SPOTS)
    spot, noun = phrase(source, english, links), a_noun(random, nouns)
    kind = random.random()
    if kind < 0.6:
        things = clauses.some(random, noun)
        return swap(spot, phrase("有", f"there {BE[things.agreement]}") + things.subject)
    if kind < 0.75:
        things = bare(noun)
        return swap(spot, phrase("没有", f"there {BE[things.agreement]} no") + things.subject)
    if kind < 0.9:
        return swap(spot, swap(phrase("有", "are there"), clauses.how_many(noun))) + QUESTION_MARK
    return swap(spot, swap(phrase("有", "is"), clauses.WHAT)) + QUESTION_MARK


# --- what people have and want ---


def possession(random: Random) -> Phrase:
    """Return a random sentence about possession as a bilingual `Phrase`, such as 我有一只猫 / I have a cat."""
    subject, kind = a_subject(random), random.random()
    if kind < 0.2:
        return declarative(subject, clauses.HAS_NOT, Action(lexicon.HAVE, _goods(random)))
    if kind < 0.35:
        siblings = clauses.counted(random.choice(_SIBLINGS), random.choice(lexicon.NUMBERS[:3]))
        return declarative(subject, clauses.HABIT, Action(lexicon.HAVE, siblings.object))
    verb = random.choice((lexicon.HAVE, lexicon.HAVE, lexicon.NEED, lexicon.WISH))
    return declarative(subject, clauses.HABIT, Action(verb, clauses.some(random, a_noun(random, verb.objects)).object))


def _goods(random: Random) -> Phrase:
    return bare(a_noun(random, lexicon.UNCOUNTED_GOODS)).object


def possession_question(random: Random) -> Phrase:
    """Return a random question about possession as a bilingual `Phrase`.

    An example is 你有几本书 / how many books do you have.
    """
    subject, kind = asked(random), random.random()
    if kind < 0.35:
        return whether(subject, clauses.DOES_ONE, Action(lexicon.HAVE, _goods(random)))
    if kind < 0.5:
        sibling = random.choice(_SIBLINGS)
        has = Action(lexicon.HAVE, phrase(sibling.source, f"{clauses.article(sibling.one)} {sibling.one}"))
        return whether(subject, clauses.DOES_ONE, has)
    verb = random.choice((lexicon.HAVE, lexicon.HAVE, lexicon.WISH, lexicon.NEED))
    noun = a_noun(random, verb.objects)
    return clauses.what(clauses.how_many(noun), subject, clauses.DOES_ONE, Action(verb))


# --- what people think and know ---


def thought(random: Random) -> Phrase:
    """Return a random sentence or question about a thought as a bilingual `Phrase`.

    An example is 我觉得他很忙 / I think he is busy.
    """
    verb, rule = random.choice(((lexicon.THINK, quality), (lexicon.KNOW, _known_fact), (lexicon.KNOW, _unknown_fact)))
    clause = rule(random)
    # "Also" would need a preceding sentence.
    while "也" in clause.source:
        clause = rule(random)
    if random.random() < 0.3:
        return whether(asked(random), clauses.DOES_ONE, Action(verb, clause))
    negated = rule is _unknown_fact or random.random() < 0.25
    return declarative(a_subject(random), clauses.DOES_NOT if negated else clauses.HABIT, Action(verb, clause))


def _known_fact(random: Random) -> Phrase:
    """Return a random fact as a bilingual `Phrase`, such as 他是老师 / he is a teacher."""
    return random.choice((identity, location))(random)


def _unknown_fact(random: Random) -> Phrase:
    """Return a random indirect question as a bilingual `Phrase`, such as 他是谁 / who he is, 他在哪里 / where he is."""
    subject = random.choice((*clauses.PRONOMINALS[2:4], *clauses.STRANGERS, *clauses.NAMED))
    be = BE[subject.agreement]
    if random.random() < 0.5:
        return swap(subject.subject + phrase("是", be), WHO.subject)
    return swap(subject.subject + phrase("在", be), phrase("哪里", "where"))


# A predicate and two of its participants, for example ("吃", "他", "苹果").
Combination = tuple[str, str, str]

_MARKED_SHARE = 0.2
"""Share of the statements that end with a full stop, or of the greetings with an exclamation mark."""
TRAIN_SENTENCES, DEV_SENTENCES, TEST_SENTENCES = 50_000, 500, 1_000
MAX_CHARACTERS = 16
HELD_OUT_SHARE = 0.1
# Minimum number of occurrences in training of each word of a dev or test sentence, and of each predicate of a held-out
# combination with each of its participants.
MIN_OCCURRENCES, MIN_COOCCURRENCES = 50, 20

PARTICIPANTS = frozenset(
    word[0]
    for table in (
        lexicon.PRONOUNS,
        lexicon.NAMES,
        lexicon.FAMILY,
        lexicon.COMPANIONS,
        lexicon.OCCUPATIONS,
        lexicon.CHILDREN,
        lexicon.THINGS,
        lexicon.PLACES,
    )
    for word in table
)
PREDICATES = frozenset(
    word.source
    for table in (
        lexicon.VERBS,
        lexicon.HELPING_VERBS,
        lexicon.INTRANSITIVE_VERBS,
        lexicon.FEELINGS,
        lexicon.SKILLS,
        (lexicon.GO, lexicon.GIVE, lexicon.HAVE, lexicon.SPOKEN, lexicon.TEACH, lexicon.WISH),
        lexicon.PERSON_ADJECTIVES,
        lexicon.THING_ADJECTIVES,
    )
    for word in table
)

RULES = (
    (actions.statement, 30),
    (actions.scene, 2),
    (actions.experience, 3),
    (actions.skill, 2),
    (actions.animal, 2),
    (actions.going, 6),
    (actions.errand, 3),
    (actions.going_question, 3),
    (actions.giving, 4),
    (actions.yes_no_question, 7),
    (actions.what_question, 3),
    (actions.how_many_question, 2),
    (actions.whom_question, 1),
    (actions.where_question, 3),
    (actions.why_question, 3),
    (actions.who_question, 3),
    (actions.request, 3),
    (feeling, 9),
    (feeling_question, 4),
    (quality, 7),
    (quality_question, 3),
    (comparison, 5),
    (identity, 4),
    (identity_question, 2),
    (location, 3),
    (location_question, 1),
    (existence, 2),
    (possession, 4),
    (possession_question, 2),
    (thought, 3),
    (greeting, 8),
)


class AlignedPair(msgspec.Struct, frozen=True):
    """A Chinese sentence and its English translation with word alignment."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    alignment: Links
    """Sorted links (source index, target index). Every Chinese word has one. English words without a Chinese
    counterpart have none: articles, "to", "do" in a question without 吗, "is" beside an adverb or a comparison.
    """

    @property
    def source(self) -> str:
        """The Chinese sentence, without spaces."""
        return "".join(self.source_words)

    @property
    def target(self) -> str:
        """The English sentence, with no space before a punctuation mark."""
        return re.sub(r" (?=[?,.!])", "", " ".join(self.target_words))


class DemoCorpus(msgspec.Struct, frozen=True):
    """The demonstration's training, dev and test pairs, with the held-out word combinations.

    No training sentence contains a held-out combination.
    """

    train: tuple[AlignedPair, ...]
    dev: tuple[AlignedPair, ...]
    test: tuple[AlignedPair, ...]
    held_out: frozenset[Combination]


def pair_of(words: Phrase) -> AlignedPair:
    """Convert the bilingual `Phrase` of a whole sentence into an `AlignedPair`: both sentences, aligned by words."""
    return AlignedPair(words.source, words.target, tuple(sorted(words.links)))


def combinations(words: tuple[str, ...]) -> list[Combination]:
    """Return a list of all triples (predicate, participant, other participant) of words of a Chinese sentence.

    Roles do not matter. Without a predicate or two participants, the list is empty.
    """
    predicates = sorted(PREDICATES.intersection(words))
    participants = sorted(PARTICIPANTS.intersection(words))
    return [(predicate, *two) for predicate in predicates for two in subsets(participants, 2)]


def generate(seed: int = 1) -> DemoCorpus:
    """Generate the demonstration's corpus as a `DemoCorpus`; a seed gives the same corpus on every machine.

    No Chinese sentence occurs twice, and no translation of a dev or test sentence occurs in another part.
    """
    sentences = _sentences(Random(seed))
    split = _Split(seed)
    while len(split.train) < TRAIN_SENTENCES:
        split.add(next(sentences))
    dev_and_test = list(islice(split.covered(), DEV_SENTENCES + TEST_SENTENCES))
    return DemoCorpus(
        tuple(split.train),
        tuple(dev_and_test[:DEV_SENTENCES]),
        tuple(dev_and_test[DEV_SENTENCES:]),
        frozenset(combination for combination, held in split.held_out.items() if held),
    )


def _sentences(random: Random) -> Iterator[Phrase]:
    """Yield distinct sentences endlessly as bilingual `Phrase`s, each drawn from a random rule.

    Sentences of more than 16 Chinese characters are skipped.
    """
    seen = set()
    rules, weights = [rule for rule, _ in RULES], [weight for _, weight in RULES]
    while True:
        for rule in random.choices(rules, weights, k=1000):
            words = rule(random)
            if words.source[-1] != "？" and random.random() < _MARKED_SHARE:
                words += phrase("！", "!") if rule is greeting else phrase("。", ".")
            sentence = "".join(words.source)
            if len(sentence) <= MAX_CHARACTERS and sentence not in seen:
                seen.add(sentence)
                yield words


class _Split:
    """A split of sentences into training sentences and reserved ones.

    A sentence is reserved, for dev and test, if it has a word combination that is held out.
    """

    def __init__(self, seed: int) -> None:
        self.train: list[AlignedPair] = []
        self.reserved: list[AlignedPair] = []
        self.held_out: dict[Combination, bool] = {}
        self._seed = seed

    def add(self, words: Phrase) -> None:
        """Add a sentence to the training pairs or, if it has a held-out word combination, to the reserved pairs."""
        part = self.reserved if self._held_out(words.source) else self.train
        part.append(pair_of(words))

    def _held_out(self, words: tuple[str, ...]) -> list[Combination]:
        """Return a list of the word combinations of a Chinese sentence that no training sentence may contain.

        A tenth of all combinations, chosen by a hash, is of this kind.
        """
        candidates = combinations(words)
        for combination in candidates:
            if combination not in self.held_out:
                self.held_out[combination] = _chance(combination, self._seed) < HELD_OUT_SHARE
        return [combination for combination in candidates if self.held_out[combination]]

    def covered(self) -> Iterator[AlignedPair]:
        """Yield each reserved pair that can test a model, as an `AlignedPair`.

        Three conditions hold for such a pair. Its translation occurs in no training pair, and in none yielded before.
        Each of its words occurs often enough in training. The predicate of its held-out combination occurs often enough
        in training with each single participant.
        """
        seen = {pair.target_words for pair in self.train}
        chinese = Counter(word for pair in self.train for word in pair.source_words)
        english = Counter(word for pair in self.train for word in pair.target_words)
        company = Counter(two for pair in self.train for two in _predicate_pairs(combinations(pair.source_words)))
        for pair in self.reserved:
            if (
                pair.target_words not in seen
                and min(chinese[word] for word in pair.source_words) >= MIN_OCCURRENCES
                and min(english[word] for word in pair.target_words) >= MIN_OCCURRENCES
                and min(company[two] for two in _predicate_pairs(self._held_out(pair.source_words)))
                >= MIN_COOCCURRENCES
            ):
                seen.add(pair.target_words)
                yield pair


def _predicate_pairs(candidates: list[Combination]) -> set[tuple[str, str]]:
    """Return a set of the pairs (predicate, participant) in triples (predicate, participant, other participant)."""
    return {(predicate, word) for predicate, *words in candidates for word in words}


def _chance(combination: Combination, seed: int) -> float:
    """Return a pseudo-random number in [0, 1), by which a word combination is held out of training or not.

    It depends only on the combination's words and the seed.
    """
    digest = blake2b(f"{seed} {' '.join(combination)}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32
