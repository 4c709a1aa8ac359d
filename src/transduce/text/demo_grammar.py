"""The demonstration's corpus: Chinese sentences with their English translations, written by a grammar.

Held-out sentences hold combinations of words that no training sentence holds, although training shows every word, and
every verb with each of its objects, many times. To get them right a model must put together what it has learnt.
"""

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from itertools import combinations as subsets
from itertools import islice
from random import Random

import msgspec

from transduce.text import demo_actions, demo_facts, demo_qualities, demo_questions
from transduce.text.demo_lexicon import (
    CHILDREN,
    COMPANIONS,
    FAMILY,
    FEELINGS,
    GIVE,
    GO,
    HAVE,
    HELPING_VERBS,
    INTRANSITIVE_VERBS,
    NAMES,
    OCCUPATIONS,
    PERSON_ADJECTIVES,
    PLACES,
    PRONOUNS,
    SKILLS,
    SPOKEN,
    TEACH,
    THING_ADJECTIVES,
    THINGS,
    VERBS,
    WISH,
)
from transduce.text.demo_phrase import Links, Phrase

# A predicate and two of those whom it is about, for example ("吃", "他", "苹果").
Combination = tuple[str, str, str]

TRAIN_SENTENCES, DEV_SENTENCES, TEST_SENTENCES = 50_000, 500, 1_000
MOST_CHARACTERS = 16
HELD_OUT_SHARE = 0.1
# How often training shows, at least, each word of a dev or test sentence, and each predicate of a held-out combination
# with each of its participants.
LEAST_OCCURRENCES, LEAST_COMPANY = 50, 20

PARTICIPANTS = frozenset(
    word[0] for table in (PRONOUNS, NAMES, FAMILY, COMPANIONS, OCCUPATIONS, CHILDREN, THINGS, PLACES) for word in table
)
PREDICATES = frozenset(
    word.source
    for table in (
        VERBS,
        HELPING_VERBS,
        INTRANSITIVE_VERBS,
        FEELINGS,
        SKILLS,
        (GO, GIVE, HAVE, SPOKEN, TEACH, WISH),
        PERSON_ADJECTIVES,
        THING_ADJECTIVES,
    )
    for word in table
)

RULES = (
    (demo_actions.statement, 30),
    (demo_actions.scene, 2),
    (demo_actions.experience, 3),
    (demo_actions.skill, 2),
    (demo_actions.animal, 2),
    (demo_actions.going, 6),
    (demo_actions.errand, 3),
    (demo_questions.going_question, 3),
    (demo_actions.giving, 4),
    (demo_questions.yes_no_question, 7),
    (demo_questions.what_question, 3),
    (demo_questions.how_many_question, 2),
    (demo_questions.whom_question, 1),
    (demo_questions.where_question, 3),
    (demo_questions.why_question, 3),
    (demo_questions.who_question, 3),
    (demo_questions.request, 3),
    (demo_qualities.feeling, 9),
    (demo_qualities.feeling_question, 4),
    (demo_qualities.quality, 7),
    (demo_qualities.quality_question, 3),
    (demo_qualities.comparison, 5),
    (demo_facts.identity, 4),
    (demo_facts.identity_question, 2),
    (demo_facts.location, 3),
    (demo_facts.location_question, 1),
    (demo_facts.existence, 2),
    (demo_facts.possession, 4),
    (demo_facts.possession_question, 2),
    (demo_facts.thought, 3),
)


class AlignedPair(msgspec.Struct, frozen=True):
    """A Chinese sentence, its English translation, and which words of them translate each other."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    # (source index, target index), sorted. Every Chinese word has a link; English words that Chinese does without
    # have none: articles, "to", "do" in a question that has no 吗, "is" beside an adverb or a comparison.
    alignment: Links

    @property
    def source(self) -> str:
        """The Chinese sentence, without spaces."""
        return "".join(self.source_words)

    @property
    def target(self) -> str:
        """The English sentence; a question mark follows its word directly."""
        return " ".join(self.target_words).replace(" ?", "?")


class DemoCorpus(msgspec.Struct, frozen=True):
    """Training, dev and test pairs, and the combinations that no training sentence holds."""

    train: tuple[AlignedPair, ...]
    dev: tuple[AlignedPair, ...]
    test: tuple[AlignedPair, ...]
    held_out: frozenset[Combination]


def pair_of(words: Phrase) -> AlignedPair:
    """A whole sentence as a pair."""
    return AlignedPair(words.source, words.target, tuple(sorted(words.links)))


def combinations(words: tuple[str, ...]) -> list[Combination]:
    """Every predicate of a Chinese sentence with every two different participants, in whatever roles."""
    predicates = sorted(PREDICATES.intersection(words))
    participants = sorted(PARTICIPANTS.intersection(words))
    return [(predicate, *two) for predicate in predicates for two in subsets(participants, 2)]


def generate(seed: int = 1) -> DemoCorpus:
    """Write the corpus. The same seed gives the same corpus everywhere.

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
    """Different Chinese sentences without end, each drawn from a rule."""
    seen = set()
    rules, weights = [rule for rule, _ in RULES], [weight for _, weight in RULES]
    while True:
        for rule in random.choices(rules, weights, k=1000):
            words = rule(random)
            sentence = "".join(words.source)
            if len(sentence) <= MOST_CHARACTERS and sentence not in seen:
                seen.add(sentence)
                yield words


class _Split:
    """Sentences for training, and those reserved because they hold a held-out combination."""

    def __init__(self, seed: int) -> None:
        self.train: list[AlignedPair] = []
        self.reserved: list[AlignedPair] = []
        self.held_out: dict[Combination, bool] = {}
        self._seed = seed

    def add(self, words: Phrase) -> None:
        part = self.reserved if self._held_out(words.source) else self.train
        part.append(pair_of(words))

    def _held_out(self, words: tuple[str, ...]) -> list[Combination]:
        """Those combinations of a sentence that training must not show."""
        found = combinations(words)
        for combination in found:
            if combination not in self.held_out:
                self.held_out[combination] = _chance(combination, self._seed) < HELD_OUT_SHARE
        return [combination for combination in found if self.held_out[combination]]

    def covered(self) -> Iterator[AlignedPair]:
        """Reserved pairs of words that training shows often, also two by two, with an English that is new."""
        seen = {pair.target_words for pair in self.train}
        chinese = Counter(word for pair in self.train for word in pair.source_words)
        english = Counter(word for pair in self.train for word in pair.target_words)
        company = Counter(two for pair in self.train for two in _company(combinations(pair.source_words)))
        for pair in self.reserved:
            if (
                pair.target_words not in seen
                and min(chinese[word] for word in pair.source_words) >= LEAST_OCCURRENCES
                and min(english[word] for word in pair.target_words) >= LEAST_OCCURRENCES
                and min(company[two] for two in _company(self._held_out(pair.source_words))) >= LEAST_COMPANY
            ):
                seen.add(pair.target_words)
                yield pair


def _company(found: list[Combination]) -> set[tuple[str, str]]:
    """Every predicate with every one of its participants."""
    return {(predicate, word) for predicate, *words in found for word in words}


def _chance(combination: Combination, seed: int) -> float:
    """A number in [0, 1) that hangs on nothing but the words and the seed."""
    digest = blake2b(f"{seed} {' '.join(combination)}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32
