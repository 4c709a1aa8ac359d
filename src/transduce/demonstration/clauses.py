"""Build phrases and clauses of the demonstration's grammar, in Chinese and English at once.

The phrases stand for people and things; the clauses are statements and questions about people and things.
"""

from functools import cache
from itertools import permutations
from random import Random

import msgspec

from transduce.demonstration import lexicon
from transduce.demonstration.lexicon import BASE, GERUND, PARTICIPLE, PAST, THIRD_PERSON, Adjective, Noun, Verb

# --- bilingual phrases ---
# Phrases in two languages at once, and the two ways to join them.
# An inversion transduction grammar (Wu 1997, "Stochastic Inversion Transduction Grammars and Bilingual Parsing of
# Parallel Corpora") builds a sentence and its translation together. Two phrases are joined either in the same order
# in both languages, `a + b`, or in opposite orders, `swap(a, b)`. Word alignments follow directly. Joining with
# NOTHING changes nothing.


Links = tuple[tuple[int, int], ...]

# Articles have no counterpart in Chinese, so they are linked only if a rule defines that.
_ARTICLES = frozenset({"a", "an", "the"})


class Phrase(msgspec.Struct, frozen=True):
    """A bilingual phrase: words in Chinese (source) and English (target), with links between translated words.

    A link is a pair (source index, target index).
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: Links

    def __add__(self, following: "Phrase") -> "Phrase":
        """Return this phrase and a following one joined, in the same order in both languages.

        Joining with NOTHING changes nothing.
        """
        if following is NOTHING:
            return self
        if self is NOTHING:
            return following
        return Phrase(
            self.source + following.source,
            self.target + following.target,
            self.links + _shifted(following.links, len(self.source), len(self.target)),
        )


NOTHING = Phrase((), (), ())


def swap(first: Phrase, second: Phrase) -> Phrase:
    """Return two phrases joined in this order in Chinese (source), and in the opposite order in English.

    Joining with NOTHING changes nothing.
    """
    if first is NOTHING:
        return second
    return Phrase(
        first.source + second.source,
        second.target + first.target,
        _shifted(first.links, 0, len(second.target)) + _shifted(second.links, len(first.source), 0),
    )


@cache
def phrase(source: str, target: str, links: str = "") -> Phrase:
    """Create a bilingual `Phrase` from source words and target words, each separated by spaces.

    `links` has the form "0-1 1-0", source index first; if it is empty, every source word is linked to every target word
    that is not an article. Without words, the result is NOTHING.
    """
    left, right = tuple(source.split()), tuple(target.split())
    if not left and not right:
        return NOTHING
    if links:
        pairs = [link.split("-") for link in links.split()]
        return Phrase(left, right, tuple((int(i), int(j)) for i, j in pairs))
    linked = [j for j, word in enumerate(right) if word not in _ARTICLES]
    return Phrase(left, right, tuple((i, j) for i in range(len(left)) for j in linked))


QUESTION_MARK = phrase("？", "?")
PARTICLE = phrase("吗 ？", "?")
"""吗 and the question mark, for questions whose English auxiliary translates another Chinese word than 吗."""


def _shifted(links: Links, sources: int, targets: int) -> Links:
    if not sources and not targets:
        return links
    return tuple([(i + sources, j + targets) for i, j in links])


# --- heads and modifiers ---


# Agreement of an English verb with its subject: am, is, are.
FIRST, THIRD, OTHER = range(3)


class Nominal(msgspec.Struct, frozen=True):
    """A noun phrase for a person or thing in both languages, with its forms as subject and object.

    `agreement` (`FIRST`, `THIRD` or `OTHER`) selects the English verb form after the phrase as subject.
    """

    subject: Phrase
    object: Phrase
    agreement: int
    plural: bool = False
    referents: frozenset[str] = frozenset()
    """The people that the phrase refers to, which avoids sentences such as "Tom knows Tom" or "I know us"."""
    owners: frozenset[str] = frozenset()
    """The owners in the phrase, such as 我 (I) of my mother, so that "I know my mother" is avoided."""


def inanimate(words: Phrase, agreement: int = THIRD, owner: str = "") -> Nominal:
    """Return a bilingual `Nominal` for a thing, whose words are equal as subject and as object.

    Args:
        words: the phrase in both languages.
        agreement: `FIRST`, `THIRD` or `OTHER`, which selects the verb form after the phrase as subject.
        owner: the Chinese name of the thing's owner, which is added to the people that the phrase refers to; empty: no
            owner.
    """
    return Nominal(words, words, agreement, referents=frozenset({owner} if owner else ()))


def article(word: str) -> str:
    """Return the indefinite English article before a word of the lexicon: "an" before a vowel letter, else "a"."""
    return "an" if word[0] in "aeiou" else "a"


# --- people ---


_POSSESSIVES = {pronoun[0]: pronoun[3] for pronoun in lexicon.PRONOUNS}


def _pronoun(source: str, subject: str, as_object: str) -> Nominal:
    agreement = {"我": FIRST, "他": THIRD, "她": THIRD}.get(source, OTHER)
    meant = frozenset({source.removesuffix("们")})
    return Nominal(phrase(source, subject), phrase(source, as_object), agreement, source.endswith("们"), meant)


def _person(words: Phrase, referent: str, owner: str = "") -> Nominal:
    named = owner in dict(lexicon.NAMES)
    meant = frozenset({referent, owner} if named else {referent})
    return Nominal(words, words, THIRD, referents=meant, owners=frozenset({owner.removesuffix("们")} if owner else ()))


def owner_phrase(source: str) -> Phrase:
    """Return a possessive phrase as a bilingual `Phrase` for a pronoun or name, such as 我 的 / my, 汤姆 的 / Tom's."""
    return phrase(f"{source} 的", _POSSESSIVES.get(source) or f"{dict(lexicon.NAMES)[source]}'s")


def _relative(owner: str, noun: Noun) -> Nominal:
    """Return a relative of a person as a bilingual `Nominal`, such as 我 妈妈 / my mother."""
    possessor = phrase(owner, _POSSESSIVES[owner]) if owner in _POSSESSIVES else owner_phrase(owner)
    return _person(possessor + phrase(noun.source, noun.one), owner + noun.source, owner)


def _companion(owner: str, noun: Noun) -> Nominal:
    """Return an acquaintance of a person as a bilingual `Nominal`, such as 汤姆 的 朋友 / Tom's friend."""
    return _person(owner_phrase(owner) + phrase(noun.source, noun.one), owner + noun.source, owner)


def _demonstrative_person(noun: Noun) -> tuple[Nominal, ...]:
    """Return three bilingual `Nominal`s for a noun, such as "this teacher", "that teacher", "these teachers"."""
    near = phrase(f"这 {noun.measure}", "this") + phrase(noun.source, noun.one)
    far = phrase(f"那 {noun.measure}", "that") + phrase(noun.source, noun.one)
    these = phrase("这些", "these") + phrase(noun.source, noun.many)
    many = Nominal(these, these, OTHER, plural=True, referents=frozenset({noun.source}))
    return _person(near, noun.source), _person(far, noun.source), many


def _together(first: Nominal, second: Nominal) -> Nominal:
    """Return a bilingual `Nominal` of two people, such as 汤姆 和 玛丽 / Tom and Mary."""
    words = first.subject + phrase("和", "and") + second.subject
    return Nominal(words, words, OTHER, plural=True, referents=first.referents | second.referents)


POINTERS = (("这", "this"), ("那", "that"), ("这些", "these"), ("那些", "those"))
OWNERS = (*(pronoun[0] for pronoun in lexicon.PRONOUNS), *(source for source, _ in lexicon.NAMES))
PRONOMINALS = tuple(_pronoun(*pronoun[:3]) for pronoun in lexicon.PRONOUNS)
NAMED = tuple(_person(phrase(*name), name[0]) for name in lexicon.NAMES)
RELATIVES = tuple(_relative(owner, noun) for owner in OWNERS if not owner.endswith("们") for noun in lexicon.FAMILY)
ACQUAINTANCES = tuple(_companion(owner, noun) for owner in OWNERS for noun in lexicon.COMPANIONS)
STRANGERS = tuple(
    person for noun in (*lexicon.OCCUPATIONS, *lexicon.CHILDREN) for person in _demonstrative_person(noun)
)
ME, YOU, WE = PRONOMINALS[0], PRONOMINALS[1], PRONOMINALS[4]
PAIRS = tuple(_together(first, second) for first, second in permutations(NAMED, 2))
WHO = Nominal(phrase("谁", "who"), phrase("谁", "who"), THIRD)
WHAT = phrase("什么", "what")

Groups = tuple[tuple[Nominal, ...], ...]
_SUBJECTS: Groups = (PRONOMINALS, NAMED, RELATIVES, ACQUAINTANCES, STRANGERS, PAIRS)
_OBJECTS: Groups = (PRONOMINALS, NAMED, RELATIVES, ACQUAINTANCES, STRANGERS)


def a_subject(random: Random, excluded: frozenset[str] = frozenset()) -> Nominal:
    """Return a random person, or several people, as a bilingual `Nominal` for the subject of a sentence.

    Nobody of the `excluded` people is among them.
    """
    return _anybody(random, _SUBJECTS, (42, 58, 78, 86, 96, 100), excluded)


def asked(random: Random) -> Nominal:
    """Return a random person as a bilingual `Nominal` for the subject of a question.

    It is most often 你 (you), never 我 (I).
    """
    return YOU if random.random() < 0.45 else a_subject(random, YOU.referents | {"我"})


def somebody(random: Random, but: Nominal) -> Nominal:
    """Return a random person as a bilingual `Nominal` for the object of a sentence.

    It is none of the people that the subject `but` refers to.
    """
    return _anybody(random, _OBJECTS, (46, 64, 78, 88, 100), but.referents)


def _anybody(random: Random, groups: Groups, cumulative: tuple[int, ...], excluded: frozenset[str]) -> Nominal:
    while True:
        (group,) = random.choices(groups, cum_weights=cumulative)
        person = random.choice(group)
        if not person.referents & excluded:
            return person


# --- things ---

NOUNS = {noun.source: noun for noun in lexicon.THINGS}
_ATTRIBUTES = {
    noun: tuple(a for a in lexicon.THING_ADJECTIVES if a.attributive and noun in a.nouns.split()) for noun in NOUNS
}


@cache
def bare(noun: Noun) -> Nominal:
    """Return a noun phrase without article as a bilingual `Nominal`, such as 苹果 / apples, 茶 / tea."""
    return inanimate(phrase(noun.source, noun.many), _bare_agreement(noun))


@cache
def counted(noun: Noun, number: tuple[str, str], adjective: Adjective | None = None) -> Nominal:
    """Return a counted noun phrase as a bilingual `Nominal`, such as 一 本 书 / a book.

    Another example is 三 杯 茶 / three cups of tea.

    Args:
        noun: the noun, which has a measure word.
        number: the number in Chinese and in English; empty English stands for "a".
        adjective: an adjective before the noun; None: none.
    """
    source, english = number
    described = _described(noun, adjective, plural=bool(english))
    if noun.container:
        container = noun.container[1] if english else noun.container[0]
        amount = phrase(f"{source} {noun.measure}", f"{english or 'a'} {container} of", "0-0 1-1 1-2")
    elif english:
        amount = phrase(f"{source} {noun.measure}", english)
    else:
        amount = phrase(f"{source} {noun.measure}", article(described.target[0]), "0-0 1-0")
    return inanimate(amount + described, OTHER if english else THIRD)


@cache
def many(noun: Noun) -> Nominal:
    """Return a noun phrase with "a lot of" as a bilingual `Nominal`, such as 很多 书 / a lot of books."""
    return inanimate(phrase("很多", "a lot of") + bare(noun).object, _bare_agreement(noun))


@cache
def how_many(noun: Noun) -> Phrase:
    """Return a question phrase for a number as a bilingual `Phrase`, such as 几 本 书 / how many books.

    With a container it is 几 杯 茶 / how many cups of tea.
    """
    if noun.container:
        amount = phrase(f"几 {noun.measure}", f"how many {noun.container[1]} of", "0-0 0-1 1-2 1-3")
    else:
        amount = phrase(f"几 {noun.measure}", "how many")
    return amount + phrase(noun.source, noun.many)


@cache
def demonstrative(noun: Noun, pointer: tuple[str, str], adjective: Adjective | None = None) -> Nominal:
    """Return a definite noun phrase as a bilingual `Nominal`, such as 这 本 新 书 / this new book.

    With a container it is 那 杯 茶 / that cup of tea.

    `pointer` is 这, 那, 这些 or 那些 with its English word; the adjective is optional.
    """
    source, english = pointer
    plural = source.endswith("些")
    if plural:
        words = phrase(source, english)
    elif noun.container:
        words = phrase(f"{source} {noun.measure}", f"{english} {noun.container[0]} of", "0-0 1-1 1-2")
    else:
        words = phrase(f"{source} {noun.measure}", english)
    return inanimate(words + _described(noun, adjective, plural), OTHER if plural else THIRD)


@cache
def owned(noun: Noun, owner: str) -> Nominal:
    """Return a noun phrase with an owner as a bilingual `Nominal`, such as 我 的 书 / my book."""
    words = owner_phrase(owner) + phrase(noun.source, noun.one)
    agreement = _bare_agreement(noun) if noun.container else THIRD
    return inanimate(words, agreement, owner if owner in dict(lexicon.NAMES) else "")


def _bare_agreement(noun: Noun) -> int:
    return OTHER if noun.many.endswith("s") else THIRD


def _described(noun: Noun, adjective: Adjective | None, plural: bool) -> Phrase:
    words = phrase(noun.source, noun.many if plural else noun.one)
    return words if adjective is None else phrase(adjective.attributive, adjective.english) + words


def a_noun(random: Random, nouns: str) -> Noun:
    """Return a random one of the things with these Chinese names, which are separated by spaces."""
    return NOUNS[random.choice(nouns.split())]


def some(random: Random, noun: Noun) -> Nominal:
    """Return a noun phrase with a random number as a bilingual `Nominal`, such as 三 本 书 / three books.

    The number may be 很多 / a lot of.
    """
    if random.random() < 0.12:
        return many(noun)
    if random.random() < 0.45:
        return counted(noun, lexicon.NUMBERS[0], _attribute(random, noun))
    return counted(noun, random.choice(lexicon.NUMBERS))


def definite(random: Random, noun: Noun, but: Nominal = WHO) -> Nominal:
    """Return a random definite noun phrase as a bilingual `Nominal`, such as 这本书 / this book or 我的书 / my book.

    If a person in `but` would be the owner, the owner is 他 / his.
    """
    if noun.source not in lexicon.NOT_OWNED and random.random() < 0.4:
        owner = random.choice(OWNERS)
        return owned(noun, "他" if owner in but.referents else owner)
    pointer = random.choice(POINTERS[:2] if noun.container else POINTERS)
    return demonstrative(noun, pointer, _attribute(random, noun))


def _attribute(random: Random, noun: Noun) -> Adjective | None:
    fitting = _ATTRIBUTES[noun.source]
    return random.choice(fitting) if fitting and random.random() < 0.5 else None


Times = tuple[tuple[str, str, str], ...]
Triple = tuple[str, str, str]
"""English words for the subjects "I", "he" and "they"."""

BE = ("am", "is", "are")
WAS = ("was", "was", "were")
DO = ("do", "does", "do")
HAVE = ("have", "has", "have")
FINITE = (BASE, THIRD_PERSON, BASE)


class Action(msgspec.Struct, frozen=True):
    """An action of a sentence in both languages: a verb with its object, without time, subject and negation."""

    verb: Verb
    object: Phrase = NOTHING
    place: Phrase = NOTHING
    """A phrase for where or how the action is done; it precedes the verb in Chinese and follows the object in
    English."""
    company: Phrase = NOTHING
    """A phrase for with whom the action is done; it precedes `place` in Chinese and follows it in English."""

    def phrase(self, form: int, aspect: str = "", helper: str = "") -> Phrase:
        """Return the action as a bilingual `Phrase`, with the verb in one form.

        Args:
            form: index of the verb's English form, such as `PAST`.
            aspect: Chinese particle after the verb: 了, 过, or none.
            helper: English auxiliary before the verb, such as have.
        """
        return swap(self.company, swap(self.place, verb_phrase(self.verb, form, aspect, helper) + self.object))


class SentenceForm(msgspec.Struct, frozen=True, kw_only=True):
    """A tense and form of sentences, such as past or future, which turns an action into a sentence."""

    marker: str = ""
    """Chinese words before the verb that express the form, such as 不 or 经常; empty: none."""
    form: int = BASE
    """Index of the verb's English form, from `BASE` to `GERUND`."""
    aspect: str = ""
    """Chinese particle after the verb: 了, 过, or none."""
    times: Times = ()
    """Times that the sentence may have, each as Chinese words, English words and links; empty: none."""
    timed: bool = False
    """True if the sentence must have a time."""
    some: bool = False
    """True if an object may have a number (three apples)."""
    definite: bool = False
    """True if an object may be definite (this apple)."""
    adjuncts: bool = True
    """True if the sentence may have a place ("at school") or a companion ("with Tom")."""


class Frame(SentenceForm, frozen=True, kw_only=True):
    """A tense and form of statements, such as habitual, negated or future."""

    english: Triple = ("", "", "")
    """English words for the Chinese marker, for the subjects "I", "he" and "they"."""
    links: str = ""
    """Alignment of the marker and its English words, as in `phrase`."""
    finite: bool = False
    """True if the verb agrees with its subject in the present tense ("he eats"); `form` then has no effect."""
    helper: Triple = ("", "", "")
    """English auxiliary before the verb, such as "have", for the subjects "I", "he" and "they"."""
    after: Phrase = NOTHING
    """English and Chinese words after the object, such as "before"."""


class Question(SentenceForm, frozen=True, kw_only=True):
    """A tense and form of questions."""

    front: Triple
    """English auxiliary before the subject, such as "did", for the subjects "I", "he" and "they"."""
    by_particle: bool = True
    """True if `front` translates 吗 (did) and `rest` the marker (want to).

    False if `front` translates the marker (can).
    """
    rest: str = ""
    """English words between subject and verb, such as "want to"."""
    helper: str = ""
    """English word before the verb, such as "ever"."""


def _same(word: str) -> Triple:
    return (word, word, word)


def _to(verb: str) -> Triple:
    return (f"{verb} to", f"{verb}s to", f"{verb} to")


def _do_not(verb: str) -> Triple:
    return (f"do not {verb}", f"does not {verb}", f"do not {verb}")


HABIT = Frame(finite=True, times=lexicon.HABITUAL_TIMES)
EVERY_TIME = Frame(finite=True, times=lexicon.HABITUAL_TIMES, timed=True)
OFTEN = Frame(marker="经常", english=_same("often"), finite=True)
ALWAYS = Frame(marker="总是", english=_same("always"), finite=True)
NEVER = Frame(marker="从来 不", english=_same("never"), finite=True)
DOES_NOT = Frame(marker="不", english=_do_not(""))
HAS_NOT = Frame(marker="没", english=_do_not(""))
ALSO = Frame(marker="也", english=_same("also"), finite=True)
ALL = Frame(marker="都", english=_same("all"), finite=True)
BOTH = Frame(marker="都", english=_same("both"), finite=True)
DID = Frame(form=PAST, aspect="了", times=lexicon.PAST_TIMES, some=True, definite=True)
# With a past time and a place, 了 is not needed: 昨天他在公司工作.
WAS_DOING = Frame(form=PAST, times=lexicon.PAST_TIMES, timed=True)
# Before a second verb with 了, the first takes none: 昨天我去商店买了苹果.
WENT = Frame(form=PAST, times=lexicon.PAST_TIMES)
DID_NOT = Frame(marker="没", english=_same("did not"), times=lexicon.PAST_TIMES, definite=True)
IS_DOING = Frame(marker="正在", english=BE, form=GERUND, times=lexicon.PRESENT_TIMES, definite=True, adjuncts=False)
HAS_DONE = Frame(form=PARTICIPLE, aspect="过", helper=HAVE, after=phrase("", "before"), adjuncts=False)
HAS_NEVER = Frame(
    marker="没", english=("have never", "has never", "have never"), form=PARTICIPLE, aspect="过", adjuncts=False
)
WILL = Frame(marker="会", english=_same("will"), times=lexicon.FUTURE_TIMES, timed=True, some=True, definite=True)
WILL_NOT = Frame(
    marker="不 会", english=_same("will not"), links="0-1 1-0", times=lexicon.FUTURE_TIMES, timed=True, definite=True
)
GOING_TO = Frame(
    marker="要",
    english=("am going to", "is going to", "are going to"),
    times=lexicon.FUTURE_TIMES,
    timed=True,
    some=True,
    definite=True,
)
WANTS = Frame(marker="想", english=_to("want"), times=lexicon.FUTURE_TIMES, some=True, definite=True)
DOES_NOT_WANT = Frame(
    marker="不 想", english=_do_not("want to"), links="0-0 0-1 1-2 1-3", times=lexicon.FUTURE_TIMES, definite=True
)
LIKES = Frame(marker="喜欢", english=_to("like"))
DOES_NOT_LIKE = Frame(marker="不 喜欢", english=_do_not("like to"), links="0-0 0-1 1-2 1-3")
CAN = Frame(marker="能", english=_same("can"), times=lexicon.FUTURE_TIMES, definite=True)
CANNOT = Frame(marker="不 能", english=_same("cannot"), times=lexicon.FUTURE_TIMES, definite=True)
MAY = Frame(marker="可以", english=_same("may"), definite=True, some=True)
SHOULD = Frame(marker="应该", english=_same("should"), definite=True)
SHOULD_NOT = Frame(marker="不 应该", english=_same("should not"), links="0-1 1-0", definite=True)
MUST = Frame(marker="必须", english=_same("must"), times=lexicon.FUTURE_TIMES, definite=True)
# 会 without a time means a learned skill.
KNOWS_HOW = Frame(marker="会", english=_same("can"))
DOES_NOT_KNOW_HOW = Frame(marker="不 会", english=_same("cannot"))
ALSO_KNOWS_HOW = Frame(marker="也 会", english=_same("can also"), links="0-1 1-0")

DOES_ONE = Question(front=DO)
DID_ONE = Question(front=_same("did"), aspect="了", times=lexicon.PAST_TIMES, definite=True, some=True)
DID_NOT_ONE = Question(front=_same("did"), definite=True)
WANTS_ONE = Question(marker="想", front=DO, rest="want to", times=lexicon.FUTURE_TIMES, some=True)
LIKES_ONE = Question(marker="喜欢", front=DO, rest="like to")
HAS_ONE = Question(front=HAVE, form=PARTICIPLE, aspect="过", helper="ever", adjuncts=False)
IS_ONE = Question(marker="正在", front=BE, by_particle=False, form=GERUND, definite=True, adjuncts=False)
WILL_ONE = Question(
    marker="会", front=_same("will"), by_particle=False, times=lexicon.FUTURE_TIMES, timed=True, definite=True
)
CAN_ONE = Question(marker="能", front=_same("can"), by_particle=False, times=lexicon.FUTURE_TIMES, definite=True)
MAY_ONE = Question(marker="可以", front=_same("may"), by_particle=False, definite=True)
SHOULD_ONE = Question(marker="应该", front=_same("should"), by_particle=False, definite=True)
KNOWS_HOW_ONE = Question(marker="会", front=_same("can"), by_particle=False)


@cache
def verb_phrase(verb: Verb, form: int, aspect: str = "", helper: str = "") -> Phrase:
    """Return a verb in one form as a bilingual `Phrase`, such as 吃 了 / ate, 吃 过 / have eaten.

    The arguments are those of `Action.phrase`.
    """
    return phrase(f"{verb.source} {aspect}", f"{helper} {verb.form(form)}")


def declarative(subject: Nominal, frame: Frame, action: Action, time: Phrase = NOTHING, early: bool = True) -> Phrase:
    """Return a statement as a bilingual `Phrase`: a subject does an action in a tense and form, the `frame`.

    The time precedes (`early`) or follows the subject in Chinese, and comes last in English.
    """
    who = subject.agreement
    does = action.phrase(FINITE[who] if frame.finite else frame.form, frame.aspect, frame.helper[who]) + frame.after
    marker = phrase(frame.marker, frame.english[who], frame.links)
    return at_time(subject.subject, marker + does, time, early)


def at_time(subject: Phrase, predicate: Phrase, time: Phrase, early: bool) -> Phrase:
    """Join a subject, a predicate and a time to one bilingual `Phrase`.

    The time is last in English; in Chinese it is before the subject if `early`, otherwise after it.
    """
    if early:
        return swap(time, subject + predicate)
    return subject + swap(time, predicate)


def whether(subject: Nominal, question: Question, action: Action, time: Phrase = NOTHING, early: bool = True) -> Phrase:
    """Return a yes/no question as a bilingual `Phrase`, such as 你昨天吃了苹果吗 / did you eat apples yesterday.

    `question` is the tense and form. In Chinese, the time is before the subject if `early`, otherwise after it.
    """
    does = action.phrase(question.form, question.aspect, question.helper)
    front = question.front[subject.agreement]
    if question.by_particle:
        asked = at_time(subject.subject, phrase(question.marker, question.rest) + does, time, early)
        return swap(asked, phrase("吗", front)) + QUESTION_MARK
    # Only an early time fits: "you tomorrow will go" / "will you go tomorrow" (2413) is no combination of both joins.
    return swap(time, swap(subject.subject, phrase(question.marker, front)) + does) + PARTICLE


def what(
    word: Phrase, subject: Nominal, question: Question, action: Action, time: Phrase = NOTHING, early: bool = True
) -> Phrase:
    """Return a question about the object of an action as a bilingual `Phrase`, such as 你吃什么 / what do you eat.

    `word` is the question word, 什么 / what, or a phrase such as 几 本 书 / how many books. Other arguments are as in
    `whether`.
    """
    does = action.phrase(question.form, question.aspect, question.helper)
    front = question.front[subject.agreement]
    if question.by_particle:
        asked = at_time(subject.subject, phrase(question.marker, question.rest) + does, time, early)
        return swap(asked, word + phrase("", front)) + QUESTION_MARK
    asked = swap(subject.subject, phrase(question.marker, front)) + does
    return swap(time, swap(asked, word)) + QUESTION_MARK


def why(word: Phrase, subject: Nominal, question: Question, action: Action, negation: str = "") -> Phrase:
    """Return a question for a reason or manner as a bilingual `Phrase`.

    `word` is 为什么 / why or 怎么 / how. `negation` is 不, 没 or, for none, empty.
    """
    front = word + phrase("", question.front[subject.agreement])
    does = action.phrase(question.form, question.aspect, question.helper)
    middle = phrase(negation, "not" if negation else "") + phrase(question.marker, question.rest)
    return swap(subject.subject, front) + middle + does + QUESTION_MARK


def where(subject: Nominal, question: Question, action: Action, time: Phrase = NOTHING) -> Phrase:
    """Return a question about an action's place as a bilingual `Phrase`, such as 你在哪里吃饭 / where do you eat."""
    front = phrase("在 哪里", "where") + phrase("", question.front[subject.agreement])
    wanted = subject.subject + phrase(question.marker, question.rest)
    does = action.phrase(question.form, question.aspect, question.helper)
    return swap(time, swap(wanted, front) + does) + QUESTION_MARK
