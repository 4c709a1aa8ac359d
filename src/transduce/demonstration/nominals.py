"""People and things of the demonstration's grammar as bilingual phrases: pronouns, names, that new book."""

from functools import cache
from itertools import permutations
from random import Random

import msgspec

from transduce.demonstration.lexicon import (
    CHILDREN,
    COMPANIONS,
    FAMILY,
    NAMES,
    NOT_OWNED,
    NUMBERS,
    OCCUPATIONS,
    PRONOUNS,
    THING_ADJECTIVES,
    THINGS,
    Adjective,
    Noun,
)

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
    """Words in both languages with their alignment links (source index, target index)."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: Links

    def __add__(self, following: "Phrase") -> "Phrase":
        """Join two phrases in the same order in both languages."""
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
    """Join two phrases in this order in the source language, and in the opposite order in the target language."""
    if first is NOTHING:
        return second
    return Phrase(
        first.source + second.source,
        second.target + first.target,
        _shifted(first.links, 0, len(second.target)) + _shifted(second.links, len(first.source), 0),
    )


@cache
def phrase(source: str, target: str, links: str = "") -> Phrase:
    """Create a phrase in both languages from source words and target words, each separated by spaces.

    ``links`` has the form "0-1 1-0", source index first; without links, every source word is linked to every target
    word that is not an article.
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


def _shifted(links: Links, sources: int, targets: int) -> Links:
    if not sources and not targets:
        return links
    return tuple([(i + sources, j + targets) for i, j in links])


# --- heads and modifiers ---


# Agreement of an English verb with its subject: am, is, are.
FIRST, THIRD, OTHER = range(3)


class Nominal(msgspec.Struct, frozen=True):
    """A noun phrase for a person or thing, with its forms as subject and object."""

    subject: Phrase
    object: Phrase
    agreement: int
    plural: bool = False
    referents: frozenset[str] = frozenset()
    """The people that the phrase refers to, which avoids sentences such as "Tom knows Tom" or "I know us"."""
    owners: frozenset[str] = frozenset()
    """The owners of the person or thing."""


def inanimate(words: Phrase, agreement: int = THIRD, owner: str = "") -> Nominal:
    """Return a noun phrase for a thing: words whose subject and object forms are equal.

    Args:
        words: the phrase in both languages.
        agreement: `FIRST`, `THIRD` or `OTHER`, which selects the verb form after the phrase as subject.
        owner: the name of the owner, who then counts as a person that the phrase refers to.
    """
    return Nominal(words, words, agreement, referents=frozenset({owner} if owner else ()))


def article(word: str) -> str:
    """Return the indefinite article for a word of the lexicon."""
    return "an" if word[0] in "aeiou" else "a"


# --- people --------------------------------------------------------------------------------------------------


def _pronoun(source: str, subject: str, as_object: str) -> Nominal:
    agreement = {"我": FIRST, "他": THIRD, "她": THIRD}.get(source, OTHER)
    meant = frozenset({source.removesuffix("们")})
    return Nominal(phrase(source, subject), phrase(source, as_object), agreement, source.endswith("们"), meant)


def _person(words: Phrase, referent: str, owner: str = "") -> Nominal:
    named = owner in dict(NAMES)
    meant = frozenset({referent, owner} if named else {referent})
    return Nominal(words, words, THIRD, referents=meant, owners=frozenset({owner.removesuffix("们")} if owner else ()))


def owner_phrase(source: str) -> Phrase:
    """Return a possessive phrase in both languages, such as 我 的 / my, 汤姆 的 / Tom's."""
    pronouns = {pronoun[0]: pronoun[3] for pronoun in PRONOUNS}
    return phrase(f"{source} 的", pronouns.get(source) or f"{dict(NAMES)[source]}'s")


def _relative(owner: str, noun: Noun) -> Nominal:
    """Return a relative of a person in both languages, such as 我 妈妈 / my mother."""
    pronouns = {pronoun[0]: pronoun[3] for pronoun in PRONOUNS}
    possessor = phrase(owner, pronouns[owner]) if owner in pronouns else owner_phrase(owner)
    return _person(possessor + phrase(noun.source, noun.one), owner + noun.source, owner)


def _companion(owner: str, noun: Noun) -> Nominal:
    """Return an acquaintance of a person in both languages, such as 汤姆 的 朋友 / Tom's friend."""
    return _person(owner_phrase(owner) + phrase(noun.source, noun.one), owner + noun.source, owner)


def _demonstrative_person(noun: Noun) -> tuple[Nominal, ...]:
    """Return three noun phrases, such as 这 位 老师 / this teacher, with "this", "that" and "these"."""
    near = phrase(f"这 {noun.measure}", "this") + phrase(noun.source, noun.one)
    far = phrase(f"那 {noun.measure}", "that") + phrase(noun.source, noun.one)
    these = phrase("这些", "these") + phrase(noun.source, noun.many)
    many = Nominal(these, these, OTHER, plural=True, referents=frozenset({noun.source}))
    return _person(near, noun.source), _person(far, noun.source), many


def _together(first: Nominal, second: Nominal) -> Nominal:
    """Return two people as one noun phrase in both languages, such as 汤姆 和 玛丽 / Tom and Mary."""
    words = first.subject + phrase("和", "and") + second.subject
    return Nominal(words, words, OTHER, plural=True, referents=first.referents | second.referents)


POINTERS = (("这", "this"), ("那", "that"), ("这些", "these"), ("那些", "those"))
OWNERS = (*(pronoun[0] for pronoun in PRONOUNS), *(source for source, _ in NAMES))
PRONOMINALS = tuple(_pronoun(*pronoun[:3]) for pronoun in PRONOUNS)
NAMED = tuple(_person(phrase(*name), name[0]) for name in NAMES)
RELATIVES = tuple(_relative(owner, noun) for owner in OWNERS if not owner.endswith("们") for noun in FAMILY)
ACQUAINTANCES = tuple(_companion(owner, noun) for owner in OWNERS for noun in COMPANIONS)
STRANGERS = tuple(person for noun in (*OCCUPATIONS, *CHILDREN) for person in _demonstrative_person(noun))
ME, YOU, WE = PRONOMINALS[0], PRONOMINALS[1], PRONOMINALS[4]
PAIRS = tuple(_together(first, second) for first, second in permutations(NAMED, 2))
WHO = Nominal(phrase("谁", "who"), phrase("谁", "who"), THIRD)
WHAT = phrase("什么", "what")

Groups = tuple[tuple[Nominal, ...], ...]
_SUBJECTS: Groups = (PRONOMINALS, NAMED, RELATIVES, ACQUAINTANCES, STRANGERS, PAIRS)
_OBJECTS: Groups = (PRONOMINALS, NAMED, RELATIVES, ACQUAINTANCES, STRANGERS)


def a_subject(random: Random, excluded: frozenset[str] = frozenset()) -> Nominal:
    """Return a random person who acts, and who is not among the `excluded` people."""
    return _anybody(random, _SUBJECTS, (42, 58, 78, 86, 96, 100), excluded)


def asked(random: Random) -> Nominal:
    """Return a random person as the subject of a question: most often 你 (you), never 我 (I)."""
    return YOU if random.random() < 0.45 else a_subject(random, YOU.referents | {"我"})


def somebody(random: Random, but: Nominal) -> Nominal:
    """Return a random person as an object, other than the subject."""
    return _anybody(random, _OBJECTS, (46, 64, 78, 88, 100), but.referents)


def _anybody(random: Random, groups: Groups, cumulative: tuple[int, ...], excluded: frozenset[str]) -> Nominal:
    while True:
        (group,) = random.choices(groups, cum_weights=cumulative)
        person = random.choice(group)
        if not person.referents & excluded:
            return person


# --- things --------------------------------------------------------------------------------------------------

NOUNS = {noun.source: noun for noun in THINGS}
_ATTRIBUTES = {noun: tuple(a for a in THING_ADJECTIVES if a.attributive and noun in a.nouns.split()) for noun in NOUNS}


@cache
def bare(noun: Noun) -> Nominal:
    """Return a noun phrase without article in both languages, such as 苹果 / apples, 茶 / tea."""
    return inanimate(phrase(noun.source, noun.many), _bare_agreement(noun))


@cache
def counted(noun: Noun, number: tuple[str, str], adjective: Adjective | None = None) -> Nominal:
    """Return a counted noun phrase in both languages, such as 一 本 书 / a book, 三 杯 茶 / three cups of tea."""
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
    """Return a noun phrase with "a lot of" in both languages, such as 很多 书 / a lot of books."""
    return inanimate(phrase("很多", "a lot of") + bare(noun).object, _bare_agreement(noun))


@cache
def how_many(noun: Noun) -> Phrase:
    """Return the question phrase for a number, such as 几 本 书 / how many books, 几 杯 茶 / how many cups of tea."""
    if noun.container:
        amount = phrase(f"几 {noun.measure}", f"how many {noun.container[1]} of", "0-0 0-1 1-2 1-3")
    else:
        amount = phrase(f"几 {noun.measure}", "how many")
    return amount + phrase(noun.source, noun.many)


@cache
def demonstrative(noun: Noun, pointer: tuple[str, str], adjective: Adjective | None = None) -> Nominal:
    """Return a phrase such as 这 本 新 书 / this new book, 那 杯 茶 / that cup of tea, 这些 书 / these books."""
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
    """Return a noun phrase with an owner in both languages, such as 我 的 书 / my book, 汤姆 的 茶 / Tom's tea."""
    words = owner_phrase(owner) + phrase(noun.source, noun.one)
    agreement = _bare_agreement(noun) if noun.container else THIRD
    return inanimate(words, agreement, owner if owner in dict(NAMES) else "")


def _bare_agreement(noun: Noun) -> int:
    return OTHER if noun.many.endswith("s") else THIRD


def _described(noun: Noun, adjective: Adjective | None, plural: bool) -> Phrase:
    words = phrase(noun.source, noun.many if plural else noun.one)
    return words if adjective is None else phrase(adjective.attributive, adjective.english) + words


def some(random: Random, noun: Noun) -> Nominal:
    """Return a thing in a random quantity, such as one book, three books or a lot of books."""
    if random.random() < 0.12:
        return many(noun)
    if random.random() < 0.45:
        return counted(noun, NUMBERS[0], _attribute(random, noun))
    return counted(noun, random.choice(NUMBERS))


def definite(random: Random, noun: Noun, but: Nominal = WHO) -> Nominal:
    """Return a random definite noun phrase, such as 这本书 or 我的书; a person in `but` as owner is replaced by 他."""
    if noun.source not in NOT_OWNED and random.random() < 0.4:
        owner = random.choice(OWNERS)
        return owned(noun, "他" if owner in but.referents else owner)
    pointer = random.choice(POINTERS[:2] if noun.container else POINTERS)
    return demonstrative(noun, pointer, _attribute(random, noun))


def _attribute(random: Random, noun: Noun) -> Adjective | None:
    fitting = _ATTRIBUTES[noun.source]
    return random.choice(fitting) if fitting and random.random() < 0.5 else None
