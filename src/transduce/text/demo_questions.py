"""Questions and requests about what people do: did you eat apples, where does she work, please help me."""

from random import Random

from transduce.text import demo_clauses as clauses
from transduce.text.demo_actions import (
    DESTINATIONS,
    a_journey,
    a_thing,
    a_time,
    activities,
    an_action,
    an_activity,
    an_experience,
    destination,
    early,
    with_adjuncts,
)
from transduce.text.demo_clauses import Action, said, what, where, whether, why
from transduce.text.demo_lexicon import BASE, GIFTS, GIVE, GO, HEAD, HELPING_VERBS, INTRANSITIVE_VERBS
from transduce.text.demo_nominals import ME, NOUNS, WE, WHAT, WHO, YOU, asked, counted, how_many
from transduce.text.demo_phrase import QUESTION_MARK, Phrase, phrase, swap

_COUNTED = tuple(activity for activity in activities("吃 喝 买 看 写 画 唱") if activity[1].measure)
# 看什么 and 做什么 are left out: the verb alone does not say which of its meanings is meant.
_ASKED = activities("吃 喝 买 写 学 听 唱 画 洗")
_QUESTIONS = (
    clauses.DOES_ONE,
    clauses.DID_ONE,
    clauses.DID_ONE,
    clauses.WANTS_ONE,
    clauses.WANTS_ONE,
    clauses.LIKES_ONE,
    clauses.IS_ONE,
    clauses.WILL_ONE,
    clauses.CAN_ONE,
    clauses.MAY_ONE,
    clauses.SHOULD_ONE,
)
_OPEN_QUESTIONS = (
    clauses.DID_ONE,
    clauses.DID_ONE,
    clauses.WANTS_ONE,
    clauses.LIKES_ONE,
    clauses.IS_ONE,
    clauses.WILL_ONE,
    clauses.SHOULD_ONE,
)
_WHERE_QUESTIONS = (clauses.DOES_ONE, clauses.DID_ONE, clauses.WANTS_ONE, clauses.LIKES_ONE)
_WHY_QUESTIONS = (
    (clauses.DOES_ONE, ""),
    (clauses.DOES_ONE, "不"),
    (clauses.WANTS_ONE, ""),
    (clauses.WANTS_ONE, "不"),
    (clauses.LIKES_ONE, ""),
    (clauses.LIKES_ONE, "不"),
    (clauses.DID_ONE, ""),
    (clauses.DID_NOT_ONE, "没"),
)
_WHO_FRAMES = (
    clauses.DID,
    clauses.DID,
    clauses.DID_NOT,
    clauses.IS_DOING,
    clauses.WILL,
    clauses.WANTS,
    clauses.DOES_NOT_WANT,
    clauses.LIKES,
    clauses.OFTEN,
    clauses.CAN,
)


def going_question(random: Random) -> Phrase:
    """Return a random sentence such as 你想去哪里, 你怎么去学校, 你去过北京吗."""
    subject, kind = asked(random), random.random()
    if kind < 0.3:
        question = random.choice((clauses.WANTS_ONE, clauses.DID_ONE, clauses.WILL_ONE))
        time = a_time(random, question)
        return what(phrase("哪里", "where"), subject, question, Action(HEAD), time, early(random))
    if kind < 0.5:
        place = random.choice(DESTINATIONS)
        return why(phrase("怎么", "how"), subject, clauses.DOES_ONE, Action(GO, destination(place)))
    if kind < 0.6:
        return whether(subject, clauses.HAS_ONE, an_experience(random))
    question = random.choice((clauses.DID_ONE, clauses.WANTS_ONE, clauses.WILL_ONE, clauses.CAN_ONE))
    time = a_time(random, question)
    return whether(subject, question, a_journey(random, question, time), time, early(random))


def yes_no_question(random: Random) -> Phrase:
    """Return a random sentence such as 你昨天吃了苹果吗."""
    question, subject = random.choice(_QUESTIONS), asked(random)
    if question is clauses.MAY_ONE:
        subject = random.choice((ME, WE))
    return whether(subject, question, an_action(random, subject, question), a_time(random, question), early(random))


def what_question(random: Random) -> Phrase:
    """Return a random sentence such as 你喜欢吃什么."""
    question, subject = random.choice(_OPEN_QUESTIONS), asked(random)
    verb, _ = random.choice(_ASKED)
    action = with_adjuncts(random, subject, question, Action(verb))
    return what(WHAT, subject, question, action, a_time(random, question), early(random))


def how_many_question(random: Random) -> Phrase:
    """Return a random sentence such as 你买了几本书."""
    question, subject = random.choice((clauses.DID_ONE, clauses.DID_ONE, clauses.WANTS_ONE)), asked(random)
    verb, noun = random.choice(_COUNTED)
    return what(how_many(noun), subject, question, Action(verb), a_time(random, question), early(random))


def whom_question(random: Random) -> Phrase:
    """Return a random sentence such as 他正在等谁."""
    question, subject = random.choice((clauses.IS_ONE, clauses.WANTS_ONE, clauses.WILL_ONE)), asked(random)
    verb = random.choice(HELPING_VERBS)
    return what(WHO.object, subject, question, Action(verb), a_time(random, question), early(random))


def where_question(random: Random) -> Phrase:
    """Return a random sentence such as 你想在哪里吃饭."""
    question, subject = random.choice(_WHERE_QUESTIONS), asked(random)
    if random.random() < 0.3 and not question.aspect:
        action = Action(random.choice(INTRANSITIVE_VERBS))
    else:
        verb, noun = an_activity(random, question)
        action = Action(verb, a_thing(random, noun, question, subject))
    return where(subject, question, action, a_time(random, question))


def why_question(random: Random) -> Phrase:
    """Return a random sentence such as 你为什么没吃苹果."""
    (question, negation), subject = random.choice(_WHY_QUESTIONS), asked(random)
    action = an_action(random, subject, question)
    return why(phrase("为什么", "why"), subject, question, action, negation)


def who_question(random: Random) -> Phrase:
    """Return a random sentence such as 谁吃了我的苹果."""
    frame = random.choice(_WHO_FRAMES)
    return said(WHO, frame, an_action(random, WHO, frame), a_time(random, frame), early=False) + QUESTION_MARK


def request(random: Random) -> Phrase:
    """Return a random sentence such as 请给我一杯茶, 别看电视, 我们去公园吧."""
    kind = random.random()
    if kind < 0.3:
        return phrase("请", "please") + _please(random).phrase(BASE)
    if kind < 0.6:
        return phrase("别", "do not") + an_action(random, YOU, clauses.CANNOT).phrase(BASE)
    action = a_journey(random, clauses.WANTS) if kind < 0.8 else an_action(random, WE, clauses.LIKES)
    return swap(phrase("我们", "us") + action.phrase(BASE), phrase("吧", "let"))


def _please(random: Random) -> Action:
    if random.random() < 0.5:
        given = counted(NOUNS[random.choice(GIFTS.split())], ("一", ""))
        return Action(GIVE, phrase("我", "me") + given.object)
    return an_action(random, YOU, clauses.CAN)
