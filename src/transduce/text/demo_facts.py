"""Sentences about who somebody is, where things are, what people have, and what they know and think."""

from random import Random

from transduce.text import demo_clauses as clauses
from transduce.text.demo_clauses import BE, Action, particle, said, what, whether
from transduce.text.demo_lexicon import (
    ABODES,
    COMPANIONS,
    FAMILY,
    HAVE,
    KNOW,
    NEED,
    NUMBERS,
    OCCUPATIONS,
    OWNED,
    PLACES,
    SPOTS,
    THINK,
    UNCOUNTED_GOODS,
    WISH,
    Noun,
    Place,
)
from transduce.text.demo_nominals import (
    NAMED,
    NOUNS,
    OWNERS,
    PAIRS,
    PRONOMINALS,
    RELATIVES,
    STRANGERS,
    WHAT,
    WHO,
    Nominal,
    a_subject,
    article,
    asked,
    bare,
    counted,
    definite,
    how_many,
    owned,
    owner_phrase,
    some,
)
from transduce.text.demo_phrase import QUESTION_MARK, Phrase, phrase, swap
from transduce.text.demo_qualities import quality

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
        return said(subject, clauses.HAS_NOT, Action(HAVE, _goods(random)))
    if kind < 0.35:
        siblings = counted(random.choice(_SIBLINGS), random.choice(NUMBERS[:3]))
        return said(subject, clauses.HABIT, Action(HAVE, siblings.object))
    verb = random.choice((HAVE, HAVE, NEED, WISH))
    return said(subject, clauses.HABIT, Action(verb, some(random, NOUNS[random.choice(verb.objects.split())]).object))


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
    return said(a_subject(random), clauses.DOES_NOT if negated else clauses.HABIT, Action(verb, clause))


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
