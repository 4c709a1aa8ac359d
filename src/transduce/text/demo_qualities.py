"""Sentences about feelings and qualities: whom somebody loves, what is expensive, who is taller."""

from itertools import permutations
from random import Random

from transduce.text import demo_clauses as clauses
from transduce.text.demo_actions import early, time_phrase
from transduce.text.demo_clauses import BE, WAS, Action, at_time, said, what, whether, why
from transduce.text.demo_lexicon import (
    ANIMALS,
    COLOURS,
    DRINKS,
    FEELINGS,
    FOODS,
    LIKE,
    MOODS,
    NOT_OWNED,
    PAST_TIMES,
    PERSON_ADJECTIVES,
    THING_ADJECTIVES,
    Adjective,
    Noun,
)
from transduce.text.demo_nominals import (
    FIRST,
    NOUNS,
    OWNERS,
    PAIRS,
    POINTERS,
    STRANGERS,
    WHAT,
    WHO,
    Nominal,
    a_subject,
    asked,
    bare,
    definite,
    owned,
    pointed_at,
    somebody,
)
from transduce.text.demo_phrase import QUESTION_MARK, Phrase, phrase, swap

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
    return said(subject, random.choice(frames), action)


def feeling_question(random: Random) -> Phrase:
    """Return a random sentence such as 你喜欢他吗, 你为什么喜欢他, 谁喜欢你, 你喜欢谁."""
    kind, subject = random.random(), asked(random)
    action = _feeling(random, subject)
    if kind < 0.45:
        return whether(subject, clauses.DOES_ONE, action)
    if kind < 0.65:
        return why(phrase("为什么", "why"), subject, clauses.DOES_ONE, action, random.choice(("", "不")))
    if kind < 0.85:
        return said(WHO, random.choice((clauses.HABIT, clauses.DOES_NOT)), action) + QUESTION_MARK
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
    """Return whether two people are related, so that they know each other anyway."""
    return bool((first.owners | first.referents) & (second.owners | second.referents))


# --- qualities -----------------------------------------------------------------------------------------------


def quality(random: Random) -> Phrase:
    """Return a random sentence such as 这本书很贵, 她不忙, 昨天我很累."""
    subject, adjective = _bearer(random)
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


def _bearer(random: Random) -> tuple[Nominal, Adjective]:
    """Return a random person or thing with a quality that fits."""
    if random.random() < 0.45:
        return a_subject(random), random.choice(PERSON_ADJECTIVES)
    adjective, noun = random.choice(_QUALITIES)
    if not noun.measure or (adjective.generic and random.random() < 0.2):
        return bare(noun), adjective
    if noun.source not in NOT_OWNED and random.random() < 0.5:
        return owned(noun, random.choice(OWNERS)), adjective
    return _this(random, noun), adjective


def _this(random: Random, noun: Noun) -> Nominal:
    return pointed_at(noun, random.choice(POINTERS[:2] if noun.container else POINTERS))


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
    subject, adjective = _bearer(random)
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
    return pointed_at(noun, this), pointed_at(noun, that), adjective
