"""Sentences of the demonstration's grammar about feelings, qualities, identity, possession and thoughts."""

from itertools import permutations
from random import Random

from transduce.demonstration import clauses
from transduce.demonstration.actions import early, time_phrase
from transduce.demonstration.clauses import BE, WAS, Action, at_time, declarative, particle, what, whether, why
from transduce.demonstration.lexicon import (
    ABODES,
    ANIMALS,
    COLOURS,
    COMPANIONS,
    DRINKS,
    FAMILY,
    FEELINGS,
    FOODS,
    HAVE,
    KNOW,
    LIKE,
    MOODS,
    NEED,
    NOT_OWNED,
    NUMBERS,
    OCCUPATIONS,
    OWNED,
    PAST_TIMES,
    PERSON_ADJECTIVES,
    PLACES,
    SPOTS,
    THING_ADJECTIVES,
    THINK,
    UNCOUNTED_GOODS,
    WISH,
    Adjective,
    Noun,
    Place,
)
from transduce.demonstration.nominals import (
    FIRST,
    NAMED,
    NOUNS,
    OWNERS,
    PAIRS,
    POINTERS,
    PRONOMINALS,
    QUESTION_MARK,
    RELATIVES,
    STRANGERS,
    WHAT,
    WHO,
    Nominal,
    Phrase,
    a_subject,
    article,
    asked,
    bare,
    counted,
    definite,
    demonstrative,
    how_many,
    owned,
    owner_phrase,
    phrase,
    some,
    somebody,
    swap,
)

# --- feelings and qualities ---


_QUALITIES = tuple(
    (adjective, NOUNS[noun])
    for adjective in THING_ADJECTIVES
    if adjective.source not in COLOURS
    for noun in adjective.nouns.split()
)
_COUNTED_QUALITIES = tuple((adjective, noun) for adjective, noun in _QUALITIES if noun.measure)
_GENERIC_COMPARISONS = tuple(
    (adjective, NOUNS[first], NOUNS[second])
    for adjective in THING_ADJECTIVES
    if adjective.generic
    for kind in (FOODS, DRINKS, ANIMALS, "中文 英文 法语 数学")
    for first, second in permutations([noun for noun in kind.split() if noun in adjective.nouns.split()], 2)
)
_PERSON_COMPARISONS = tuple(a for a in PERSON_ADJECTIVES if a.source not in ("饿", "高兴"))
# With these, 太…了 means too much; with others it is praise.
_EXCESSIVE = frozenset(("贵", "大", "小", "旧", "难", "忙", "累"))
_VERY_MUCH = frozenset(("喜欢", "爱", "想", "需要"))
# Feelings that do not fit people who are only pointed at.
_TENDER = frozenset(("爱", "想", "需要"))
_PRESENT_DAYS = (("今天", "today", ""), ("现在", "now", ""))


# --- feelings ------------------------------------------------------------------------------------------------


def feeling(random: Random) -> Phrase:
    """Return a random sentence such as 我爱你, 他不喜欢茶, 我们都认识她."""
    subject = a_subject(random)
    action = _feeling(random, subject)
    if action.verb.source in _VERY_MUCH and random.random() < 0.2:
        loves = action.phrase(clauses.FINITE[subject.agreement])
        return subject.subject + swap(phrase("非常", "very much"), loves)
    frames = [clauses.HABIT, clauses.HABIT, clauses.HABIT, clauses.DOES_NOT, clauses.ALSO]
    if subject.plural:
        frames.append(clauses.BOTH if subject in PAIRS else clauses.ALL)
    return declarative(subject, random.choice(frames), action)


def feeling_question(random: Random) -> Phrase:
    """Return a random sentence such as 你喜欢他吗, 你为什么喜欢他, 谁喜欢你, 你喜欢谁."""
    kind, subject = random.random(), asked(random)
    action = _feeling(random, subject)
    if kind < 0.45:
        return whether(subject, clauses.DOES_ONE, action)
    if kind < 0.65:
        return why(phrase("为什么", "why"), subject, clauses.DOES_ONE, action, random.choice(("", "不")))
    if kind < 0.85:
        return declarative(WHO, random.choice((clauses.HABIT, clauses.DOES_NOT)), action) + QUESTION_MARK
    word = WHAT if action.verb is LIKE and random.random() < 0.5 else WHO.object
    return what(word, subject, clauses.DOES_ONE, Action(action.verb))


def _feeling(random: Random, subject: Nominal) -> Action:
    if random.random() < 0.4:
        noun = NOUNS[random.choice(LIKE.objects.split())]
        pointed = noun.measure and random.random() < 0.4
        return Action(LIKE, (definite(random, noun, subject) if pointed else bare(noun)).object)
    verb = random.choice(FEELINGS)
    while True:
        person = somebody(random, subject)
        if verb.source == "认识" and _related(subject, person):
            continue
        if verb.source not in _TENDER or person not in STRANGERS:
            return Action(verb, person.object)


def _related(first: Nominal, second: Nominal) -> bool:
    """Return whether two people are the same or related, so that they obviously know each other."""
    return bool((first.owners | first.referents) & (second.owners | second.referents))


# --- qualities -----------------------------------------------------------------------------------------------


def quality(random: Random) -> Phrase:
    """Return a random sentence such as 这本书很贵, 她不忙, 昨天我很累."""
    subject, adjective = _thing_with_quality(random)
    if adjective.source in MOODS and random.random() < 0.4:
        return _mood(random, subject, adjective)
    return subject.subject + _degree(random, subject, adjective)


def _mood(random: Random, subject: Nominal, adjective: Adjective) -> Phrase:
    """Return a random sentence such as 昨天我很累 / I was tired yesterday."""
    past = random.random() < 0.6
    time = random.choice(PAST_TIMES if past else _PRESENT_DAYS)
    be = (WAS if past else BE)[subject.agreement]
    degree = random.choice((phrase("很", be), phrase("不", f"{be} not"), phrase("非常", f"{be} very", "0-1")))
    tired = degree + phrase(adjective.source, adjective.english)
    return at_time(subject.subject, tired, time_phrase(time), early(random))


def _thing_with_quality(random: Random) -> tuple[Nominal, Adjective]:
    """Return a random person or thing of which a quality can be stated."""
    if random.random() < 0.45:
        return a_subject(random), random.choice(PERSON_ADJECTIVES)
    adjective, noun = random.choice(_QUALITIES)
    if not noun.measure or (adjective.generic and random.random() < 0.2):
        return bare(noun), adjective
    if noun.source not in NOT_OWNED and random.random() < 0.5:
        return owned(noun, random.choice(OWNERS)), adjective
    return _this(random, noun), adjective


def _this(random: Random, noun: Noun) -> Nominal:
    return demonstrative(noun, random.choice(POINTERS[:2] if noun.container else POINTERS))


def _degree(random: Random, subject: Nominal, adjective: Adjective) -> Phrase:
    """Return a random phrase such as 很高 / is tall, 非常高 / is very tall, 太贵了 / is too expensive."""
    be, kind = BE[subject.agreement], random.random()
    if adjective.source in _EXCESSIVE and kind < 0.15:
        return phrase(f"太 {adjective.source} 了", f"{be} too {adjective.english}", "0-1 1-2 2-1")
    if subject.plural and kind < 0.4:
        degree = phrase("都 很", f"{be} {'both' if subject in PAIRS else 'all'}", "0-1 1-0")
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
    """Return a random sentence such as 你忙吗, 这本书贵吗, 他比你高吗."""
    while True:
        subject, wanted = _comparison(random) if random.random() < 0.3 else _quality(random)
        if subject.agreement != FIRST:
            return swap(subject.subject + wanted, phrase("吗", BE[subject.agreement])) + QUESTION_MARK


def _quality(random: Random) -> tuple[Nominal, Phrase]:
    subject, adjective = _thing_with_quality(random)
    return subject, phrase(adjective.source, adjective.english)


def comparison(random: Random) -> Phrase:
    """Return a random sentence such as 他比我高, 苹果比香蕉便宜, 她和我一样忙."""
    subject, compared = _comparison(random)
    return subject.subject + phrase("", BE[subject.agreement]) + compared


def _comparison(random: Random) -> tuple[Nominal, Phrase]:
    """Return a random subject with a comparison: 比 我 高 / taller than me, or 和 我 一样 高 / as tall as me."""
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
    if kind < 0.85 and not noun.container and noun.source not in NOT_OWNED:
        mine, yours = random.sample(OWNERS, 2)
        return owned(noun, mine), owned(noun, yours), adjective
    this, that = random.sample(POINTERS[:2], 2)
    return demonstrative(noun, this), demonstrative(noun, that), adjective


# --- being, having, thinking ---


_ABODES = tuple(place for place in PLACES if place.source in ABODES.split())
_SIBLINGS = FAMILY[2:]
_COPULAS = (("是", "{}", ""), ("是", "{}", ""), ("不 是", "{} not", "0-0 0-1 1-0"), ("也 是", "{} also", "0-1 1-0"))
_THIS = (phrase("这", "this"), phrase("那", "that"))
_IS = phrase("是", "is")


# --- who somebody is, what something is ----------------------------------------------------------------------


def identity(random: Random) -> Phrase:
    """Return a random sentence such as 他是老师, 我妈妈不是医生, 这是我的书."""
    if random.random() < 0.2:
        return random.choice(_THIS) + _copula(random, "is") + _property(random)
    subject = _known(random)
    return subject.subject + _copula(random, BE[subject.agreement]) + _role(random, subject)


def _copula(random: Random, be: str) -> Phrase:
    source, english, links = random.choice(_COPULAS)
    return phrase(source, english.format(be), links)


def _known(random: Random) -> Nominal:
    return random.choice(random.choices((PRONOMINALS, NAMED, RELATIVES, PAIRS), (6, 3, 6, 1))[0])


def _role(random: Random, subject: Nominal) -> Phrase:
    """Return a random phrase such as 老师 / a teacher, 我 的 朋友 / my friends."""
    if random.random() < 0.6:
        noun = random.choice(OCCUPATIONS)
        return phrase(noun.source, noun.many if subject.plural else f"{article(noun.one)} {noun.one}")
    excluded = subject.referents | subject.owners
    owner = random.choice([owner for owner in OWNERS if owner.removesuffix("们") not in excluded])
    noun = random.choice(COMPANIONS)
    return owner_phrase(owner) + phrase(noun.source, noun.many if subject.plural else noun.one)


def _property(random: Random) -> Phrase:
    return owned(_owned_noun(random), random.choice(OWNERS)).object


def _owned_noun(random: Random) -> Noun:
    return NOUNS[random.choice(OWNED.split())]


def identity_question(random: Random) -> Phrase:
    """Return a random sentence such as 他是老师吗, 她是谁, 这是谁的书."""
    kind = random.random()
    if kind < 0.6:
        subject = asked(random) if kind < 0.2 else random.choice(RELATIVES)
        return swap(subject.subject, phrase("是", BE[subject.agreement])) + _role(random, subject) + particle()
    if kind < 0.7:
        subject = random.choice((*PRONOMINALS[1:4], *STRANGERS))
        return swap(swap(subject.subject, phrase("是", BE[subject.agreement])), WHO.subject) + QUESTION_MARK
    this = random.choice(_THIS)
    if kind < 0.85:
        noun = _owned_noun(random)
        whose = phrase("谁 的", "whose") + phrase(noun.source, noun.one)
        return swap(swap(this, _IS), whose) + QUESTION_MARK
    return swap(this, _IS) + _property(random) + particle()


# --- where somebody or something is --------------------------------------------------------------------------


def location(random: Random) -> Phrase:
    """Return a random sentence such as 他在学校, 我不在家, 我的书在桌子上."""
    subject, be_there = _located(random)
    return subject.subject + be_there


def _located(random: Random) -> tuple[Nominal, Phrase]:
    if random.random() < 0.35:
        subject, spot = _placed_thing(random)
        return subject, phrase("在", BE[subject.agreement]) + spot
    subject, place = a_subject(random), random.choice(_ABODES)
    return subject, _being_at(place, BE[subject.agreement], negated=random.random() < 0.35)


def _being_at(place: Place, be: str, *, negated: bool) -> Phrase:
    """Return a phrase such as 在 学校 / is at school, 不 在 学校 / is not at school."""
    preposition, where = place.where.split(" ", 1)
    if negated:
        return phrase("不 在", f"{be} not {preposition}", "0-0 0-1 1-0 1-2") + phrase(place.source, where)
    return phrase("在", f"{be} {preposition}") + phrase(place.source, where)


def _placed_thing(random: Random) -> tuple[Nominal, Phrase]:
    source, english, links, nouns = random.choice(SPOTS)
    thing = definite(random, NOUNS[random.choice(nouns.split())])
    return thing, phrase(source, english, links)


def location_question(random: Random) -> Phrase:
    """Return a random sentence such as 他在哪里, 你的手机在哪里, 他在家吗."""
    kind = random.random()
    if kind < 0.5:
        subject = asked(random)
    else:
        subject = owned(_owned_noun(random), random.choice(OWNERS))
    be = BE[subject.agreement]
    if kind < 0.3:
        return swap(subject.subject, phrase("在", be)) + _abode(random) + particle()
    return swap(subject.subject, swap(phrase("在", be), phrase("哪里", "where"))) + QUESTION_MARK


def _abode(random: Random) -> Phrase:
    place = random.choice(_ABODES)
    return phrase(place.source, place.where)


def existence(random: Random) -> Phrase:
    """Return a random sentence such as 桌子上有三本书, 公园里没有猫, 桌子上有几本书."""
    source, english, links, nouns = random.choice(SPOTS)
    spot, noun = phrase(source, english, links), NOUNS[random.choice(nouns.split())]
    kind = random.random()
    if kind < 0.6:
        things = some(random, noun)
        return swap(spot, phrase("有", f"there {BE[things.agreement]}") + things.subject)
    if kind < 0.75:
        things = bare(noun)
        return swap(spot, phrase("没有", f"there {BE[things.agreement]} no") + things.subject)
    if kind < 0.9:
        return swap(spot, swap(phrase("有", "are there"), how_many(noun))) + QUESTION_MARK
    return swap(spot, swap(phrase("有", "is"), WHAT)) + QUESTION_MARK


# --- what people have and want -------------------------------------------------------------------------------


def possession(random: Random) -> Phrase:
    """Return a random sentence such as 我有一只猫, 他没有钱, 她想要一杯茶."""
    subject, kind = a_subject(random), random.random()
    if kind < 0.2:
        return declarative(subject, clauses.HAS_NOT, Action(HAVE, _goods(random)))
    if kind < 0.35:
        siblings = counted(random.choice(_SIBLINGS), random.choice(NUMBERS[:3]))
        return declarative(subject, clauses.HABIT, Action(HAVE, siblings.object))
    verb = random.choice((HAVE, HAVE, NEED, WISH))
    return declarative(
        subject, clauses.HABIT, Action(verb, some(random, NOUNS[random.choice(verb.objects.split())]).object)
    )


def _goods(random: Random) -> Phrase:
    return bare(NOUNS[random.choice(UNCOUNTED_GOODS.split())]).object


def possession_question(random: Random) -> Phrase:
    """Return a random sentence such as 你有时间吗, 你有妹妹吗, 你有几本书."""
    subject, kind = asked(random), random.random()
    if kind < 0.35:
        return whether(subject, clauses.DOES_ONE, Action(HAVE, _goods(random)))
    if kind < 0.5:
        sibling = random.choice(_SIBLINGS)
        has = Action(HAVE, phrase(sibling.source, f"{article(sibling.one)} {sibling.one}"))
        return whether(subject, clauses.DOES_ONE, has)
    verb = random.choice((HAVE, HAVE, WISH, NEED))
    noun = NOUNS[random.choice(verb.objects.split())]
    return what(how_many(noun), subject, clauses.DOES_ONE, Action(verb))


# --- what people think and know ------------------------------------------------------------------------------


def thought(random: Random) -> Phrase:
    """Return a random sentence such as 我觉得这本书很贵, 你知道他是谁吗."""
    verb, rule = random.choice(((THINK, quality), (KNOW, _known_fact), (KNOW, _unknown_fact)))
    clause = rule(random)
    # "Also" would need a preceding sentence.
    while "也" in clause.source:
        clause = rule(random)
    if random.random() < 0.3:
        return whether(asked(random), clauses.DOES_ONE, Action(verb, clause))
    negated = rule is _unknown_fact or random.random() < 0.25
    return declarative(a_subject(random), clauses.DOES_NOT if negated else clauses.HABIT, Action(verb, clause))


def _known_fact(random: Random) -> Phrase:
    """Return a random sentence such as 他是老师, 他在学校."""
    return random.choice((identity, location))(random)


def _unknown_fact(random: Random) -> Phrase:
    """Return a random phrase such as 他是谁 / who he is, 他在哪里 / where he is."""
    subject = random.choice((*PRONOMINALS[2:4], *STRANGERS, *NAMED))
    be = BE[subject.agreement]
    if random.random() < 0.5:
        return swap(subject.subject + phrase("是", be), WHO.subject)
    return swap(subject.subject + phrase("在", be), phrase("哪里", "where"))
