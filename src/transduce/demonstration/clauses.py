"""Clauses of the demonstration's grammar: statements and questions about who does what, where, when and with whom."""

from functools import cache

import msgspec

from transduce.demonstration.lexicon import (
    BASE,
    FUTURE_TIMES,
    GERUND,
    HABITUAL_TIMES,
    PARTICIPLE,
    PAST,
    PAST_TIMES,
    PRESENT_TIMES,
    THIRD,
    Verb,
)
from transduce.demonstration.nominals import NOTHING, QUESTION_MARK, Nominal, Phrase, phrase, swap

Times = tuple[tuple[str, str, str], ...]
Forms = tuple[int, int, int]

BE = ("am", "is", "are")
WAS = ("was", "was", "were")
DO = ("do", "does", "do")
HAVE = ("have", "has", "have")
FINITE: Forms = (BASE, THIRD, BASE)


class Action(msgspec.Struct, frozen=True):
    """An action of a sentence in both languages: a verb with its object, without time, subject and negation."""

    verb: Verb
    object: Phrase = NOTHING
    place: Phrase = NOTHING
    """Where or how; it precedes the verb in Chinese and follows the object in English."""
    company: Phrase = NOTHING
    """With whom; it precedes `place` in Chinese and follows it in English."""

    def phrase(self, form: int, aspect: str = "", helper: str = "") -> Phrase:
        """Return the action as a phrase.

        Args:
            form: index of the verb's English form, such as `PAST`.
            aspect: Chinese particle after the verb: 了, 过, or none.
            helper: English auxiliary before the verb, such as have.
        """
        return swap(self.company, swap(self.place, verb_phrase(self.verb, form, aspect, helper) + self.object))


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A tense and form of statements, such as habitual, negated or future, which turns an action into a sentence.

    Triples are for the subjects "I", "he" and "they".
    """

    marker: str = ""
    """Chinese words before the verb that express the frame, such as 不 or 经常; empty: none."""
    english: tuple[str, str, str] = ("", "", "")
    """English words for the marker."""
    links: str = ""
    """Alignment of the marker and its English words, as in `phrase`."""
    forms: Forms = (BASE, BASE, BASE)
    """Index of the verb's English form."""
    aspect: str = ""
    """Chinese particle after the verb: 了, 过, or none."""
    helper: tuple[str, str, str] = ("", "", "")
    """English auxiliary before the verb, such as "have"."""
    after: Phrase = NOTHING
    """Words after the object, such as "before"."""
    times: Times = ()
    """Times that the frame can be combined with."""
    timed: bool = False
    """Whether a time is required."""
    some: bool = False
    """Whether an object may have a number (three apples)."""
    definite: bool = False
    """Whether an object may be definite (this apple)."""
    adjuncts: bool = True
    """Whether a place or a companion may be added."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A tense and form of questions, which turns an action into a sentence; fields are as in `Frame`."""

    front: tuple[str, str, str]
    """English auxiliary before the subject, such as "did", for the subjects "I", "he" and "they"."""
    marker: str = ""
    by_particle: bool = True
    """If true, `front` translates 吗 (did), and `rest` translates the marker (want to).

    If false, `front` translates the marker (can).
    """
    rest: str = ""
    """English words between subject and verb, such as "want to"."""
    form: int = BASE
    aspect: str = ""
    helper: str = ""
    times: Times = ()
    timed: bool = False
    some: bool = False
    definite: bool = False
    adjuncts: bool = True


def _same(word: str) -> tuple[str, str, str]:
    return (word, word, word)


def _to(verb: str) -> tuple[str, str, str]:
    return (f"{verb} to", f"{verb}s to", f"{verb} to")


def _do_not(verb: str) -> tuple[str, str, str]:
    return (f"do not {verb}", f"does not {verb}", f"do not {verb}")


HABIT = Frame(forms=FINITE, times=HABITUAL_TIMES)
EVERY_TIME = Frame(forms=FINITE, times=HABITUAL_TIMES, timed=True)
OFTEN = Frame(marker="经常", english=_same("often"), forms=FINITE)
ALWAYS = Frame(marker="总是", english=_same("always"), forms=FINITE)
NEVER = Frame(marker="从来 不", english=_same("never"), forms=FINITE)
DOES_NOT = Frame(marker="不", english=_do_not(""))
HAS_NOT = Frame(marker="没", english=_do_not(""))
ALSO = Frame(marker="也", english=_same("also"), forms=FINITE)
ALL = Frame(marker="都", english=_same("all"), forms=FINITE)
BOTH = Frame(marker="都", english=_same("both"), forms=FINITE)
DID = Frame(forms=(PAST, PAST, PAST), aspect="了", times=PAST_TIMES, some=True, definite=True)
# With a past time and a place, 了 is not needed: 昨天他在公司工作.
WAS_DOING = Frame(forms=(PAST, PAST, PAST), times=PAST_TIMES, timed=True)
# Before a second verb with 了, the first takes none: 昨天我去商店买了苹果.
WENT = Frame(forms=(PAST, PAST, PAST), times=PAST_TIMES)
DID_NOT = Frame(marker="没", english=_same("did not"), times=PAST_TIMES, definite=True)
IS_DOING = Frame(
    marker="正在", english=BE, forms=(GERUND, GERUND, GERUND), times=PRESENT_TIMES, definite=True, adjuncts=False
)
HAS_DONE = Frame(
    forms=(PARTICIPLE, PARTICIPLE, PARTICIPLE), aspect="过", helper=HAVE, after=phrase("", "before"), adjuncts=False
)
HAS_NEVER = Frame(
    marker="没",
    english=("have never", "has never", "have never"),
    forms=(PARTICIPLE, PARTICIPLE, PARTICIPLE),
    aspect="过",
    adjuncts=False,
)
WILL = Frame(marker="会", english=_same("will"), times=FUTURE_TIMES, timed=True, some=True, definite=True)
WILL_NOT = Frame(
    marker="不 会", english=_same("will not"), links="0-1 1-0", times=FUTURE_TIMES, timed=True, definite=True
)
GOING_TO = Frame(
    marker="要",
    english=("am going to", "is going to", "are going to"),
    times=FUTURE_TIMES,
    timed=True,
    some=True,
    definite=True,
)
WANTS = Frame(marker="想", english=_to("want"), times=FUTURE_TIMES, some=True, definite=True)
DOES_NOT_WANT = Frame(
    marker="不 想",
    english=_do_not("want to"),
    links="0-0 0-1 1-2 1-3",
    times=FUTURE_TIMES,
    definite=True,
)
LIKES = Frame(marker="喜欢", english=_to("like"))
DOES_NOT_LIKE = Frame(
    marker="不 喜欢",
    english=_do_not("like to"),
    links="0-0 0-1 1-2 1-3",
)
CAN = Frame(marker="能", english=_same("can"), times=FUTURE_TIMES, definite=True)
CANNOT = Frame(marker="不 能", english=_same("cannot"), times=FUTURE_TIMES, definite=True)
MAY = Frame(marker="可以", english=_same("may"), definite=True, some=True)
SHOULD = Frame(marker="应该", english=_same("should"), definite=True)
SHOULD_NOT = Frame(marker="不 应该", english=_same("should not"), links="0-1 1-0", definite=True)
MUST = Frame(marker="必须", english=_same("must"), times=FUTURE_TIMES, definite=True)
# 会 without a time means a learned skill.
KNOWS_HOW = Frame(marker="会", english=_same("can"))
DOES_NOT_KNOW_HOW = Frame(marker="不 会", english=_same("cannot"))
ALSO_KNOWS_HOW = Frame(marker="也 会", english=_same("can also"), links="0-1 1-0")

DOES_ONE = Question(front=DO)
DID_ONE = Question(front=_same("did"), aspect="了", times=PAST_TIMES, definite=True, some=True)
DID_NOT_ONE = Question(front=_same("did"), definite=True)
WANTS_ONE = Question(marker="想", front=DO, rest="want to", times=FUTURE_TIMES, some=True)
LIKES_ONE = Question(marker="喜欢", front=DO, rest="like to")
HAS_ONE = Question(front=HAVE, form=PARTICIPLE, aspect="过", helper="ever", adjuncts=False)
IS_ONE = Question(marker="正在", front=BE, by_particle=False, form=GERUND, definite=True, adjuncts=False)
WILL_ONE = Question(marker="会", front=_same("will"), by_particle=False, times=FUTURE_TIMES, timed=True, definite=True)
CAN_ONE = Question(marker="能", front=_same("can"), by_particle=False, times=FUTURE_TIMES, definite=True)
MAY_ONE = Question(marker="可以", front=_same("may"), by_particle=False, definite=True)
SHOULD_ONE = Question(marker="应该", front=_same("should"), by_particle=False, definite=True)
KNOWS_HOW_ONE = Question(marker="会", front=_same("can"), by_particle=False)


@cache
def verb_phrase(verb: Verb, form: int, aspect: str = "", helper: str = "") -> Phrase:
    """Return a verb in a form as a phrase in both languages, such as 吃 了 / ate, 吃 过 / have eaten."""
    return phrase(f"{verb.source} {aspect}", f"{helper} {verb.form(form)}")


def declarative(subject: Nominal, frame: Frame, action: Action, time: Phrase = NOTHING, early: bool = True) -> Phrase:
    """Return a statement; its time precedes (`early`) or follows the subject in Chinese, and comes last in English."""
    who = subject.agreement
    does = action.phrase(frame.forms[who], frame.aspect, frame.helper[who]) + frame.after
    marker = phrase(frame.marker, frame.english[who], frame.links)
    return at_time(subject.subject, marker + does, time, early)


def at_time(subject: Phrase, predicate: Phrase, time: Phrase, early: bool) -> Phrase:
    """Join a subject, a predicate and a time, which is last in English and before the subject in Chinese if `early`."""
    if early:
        return swap(time, subject + predicate)
    return subject + swap(time, predicate)


def whether(subject: Nominal, question: Question, action: Action, time: Phrase = NOTHING, early: bool = True) -> Phrase:
    """Return a yes/no question in both languages, such as 你昨天吃了苹果吗 / did you eat apples yesterday."""
    does = action.phrase(question.form, question.aspect, question.helper)
    front = question.front[subject.agreement]
    if question.by_particle:
        asked = at_time(subject.subject, phrase(question.marker, question.rest) + does, time, early)
        return swap(asked, phrase("吗", front)) + QUESTION_MARK
    # Only an early time fits: "you tomorrow will go" / "will you go tomorrow" (2413) is no combination of both joins.
    return swap(time, swap(subject.subject, phrase(question.marker, front)) + does) + particle()


def what(
    word: Phrase, subject: Nominal, question: Question, action: Action, time: Phrase = NOTHING, early: bool = True
) -> Phrase:
    """Return a question about the object of an action, such as 你吃什么 / what do you eat; `word` is 什么 / what."""
    does = action.phrase(question.form, question.aspect, question.helper)
    front = question.front[subject.agreement]
    if question.by_particle:
        asked = at_time(subject.subject, phrase(question.marker, question.rest) + does, time, early)
        return swap(asked, word + phrase("", front)) + QUESTION_MARK
    asked = swap(subject.subject, phrase(question.marker, front)) + does
    return swap(time, swap(asked, word)) + QUESTION_MARK


def why(
    word: Phrase, subject: Nominal, question: Question, action: Action, negation: str = "", time: Phrase = NOTHING
) -> Phrase:
    """Return a question for a reason or manner; `word` is 为什么 / why or 怎么 / how; `negation` is 不 or 没."""
    front = word + phrase("", question.front[subject.agreement])
    does = action.phrase(question.form, question.aspect, question.helper)
    middle = phrase(negation, "not" if negation else "") + phrase(question.marker, question.rest)
    return swap(time, swap(subject.subject, front) + middle + does) + QUESTION_MARK


def where(subject: Nominal, question: Question, action: Action, time: Phrase = NOTHING) -> Phrase:
    """Return a question in both languages that asks where an action takes place: 你在哪里吃饭 / where do you eat."""
    front = phrase("在 哪里", "where") + phrase("", question.front[subject.agreement])
    wanted = subject.subject + phrase(question.marker, question.rest)
    does = action.phrase(question.form, question.aspect, question.helper)
    return swap(time, swap(wanted, front) + does) + QUESTION_MARK


def particle() -> Phrase:
    """Return the question particle 吗 aligned with the question mark, for questions without an English auxiliary."""
    return phrase("吗 ？", "?")
