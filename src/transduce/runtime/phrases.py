"""Words into pieces: phrases that a translation must contain, and texts that it must not."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.search.constraints import Edges, Phrase
from transduce.search.rules import Forbid, Rule
from transduce.text.mentions import in_spaced_word
from transduce.text.vocabulary import Vocabulary

_WORD_START = "▁"
_LONGEST_CHARACTER = 4  # bytes in UTF-8


def spell_phrase(phrase: str, vocabulary: Vocabulary) -> Phrase:
    """The ways to write a phrase in pieces.

    In a script with spaces it begins a word; elsewhere it may also stand directly behind what comes before it.

    Raises:
        TransduceError: it is empty, or the vocabulary cannot write it.
    """
    ids = vocabulary.encode(phrase)
    if not ids or not phrase.strip():
        raise TransduceError("A phrase that a translation must contain has a word at least, but one is empty.")
    if in_spaced_word(phrase.strip()[0]) and not vocabulary.surface(ids[0]).startswith(b" "):
        ids = vocabulary.encode(f" {phrase.strip()}")  # a vocabulary that writes no space before the first word
    if vocabulary.unk_id in ids:
        raise TransduceError(
            f"A translation cannot contain `{phrase}`: the model's vocabulary has no pieces for all of its characters."
        )
    first = vocabulary.piece(ids[0])
    spellings = [tuple(ids)]
    if not in_spaced_word(phrase.strip()[0]) and first.startswith(_WORD_START):
        bare = first.removeprefix(_WORD_START)
        joined = [vocabulary.id(character) for character in bare]
        whole = [vocabulary.id(bare)] if bare else []
        spelling = whole if vocabulary.unk_id not in whole else joined
        if vocabulary.unk_id not in spelling:
            spellings.append((*spelling, *ids[1:]))
    return tuple(spelling for spelling in spellings if spelling)


@lru_cache(maxsize=16)
def word_edges(vocabulary: Vocabulary) -> Edges:
    """Which pieces go on with a word, and which end in one, in scripts with spaces."""
    texts = [vocabulary.surface(id).decode("utf-8", "replace") for id in range(vocabulary.size)]
    return Edges(
        going_on=frozenset(id for id, text in enumerate(texts) if text and in_spaced_word(text[0])),
        within=frozenset(id for id, text in enumerate(texts) if text and in_spaced_word(text[-1])),
    )


def spell_prefix(prefix: str, vocabulary: Vocabulary) -> list[int]:
    """The pieces of what a translation begins with; none of an empty one.

    Raises:
        TransduceError: the vocabulary cannot write it.
    """
    ids = vocabulary.encode(prefix)
    if vocabulary.unk_id in ids:
        raise TransduceError(
            f"A translation cannot begin with `{prefix}`: the model's vocabulary has no pieces for all of its "
            "characters."
        )
    return ids


@lru_cache(maxsize=16)
def forbid_texts(texts: tuple[str, ...], vocabulary: Vocabulary) -> tuple[Rule, ...]:
    """The rules that keep these texts out of translations; the unknown piece is forbidden by its own name.

    Raises:
        TransduceError: one is empty.
    """
    if not all(text.strip() for text in texts):
        raise TransduceError("A forbidden text has a character at least, but one is empty.")
    unknown = vocabulary.piece(vocabulary.unk_id)
    words = [vocabulary.as_seen(text) for text in texts if text != unknown]
    rules: list[Rule] = [Forbid([vocabulary.unk_id])] if unknown in texts else []
    return (*rules, ForbiddenTexts(words, vocabulary)) if words else tuple(rules)


class ForbiddenTexts:
    """No hypothesis contains any of these texts, however it is cut into pieces. Implements `search.rules.Rule`.

    Words of scripts with spaces are looked for as whole words; a piece that completes one is forbidden unless it goes
    on with the word itself, as "▁apples" does where "apple" is forbidden. Upper and lower case are different.
    """

    def __init__(self, texts: Sequence[str], vocabulary: Vocabulary) -> None:
        special = {vocabulary.pad_id: b"", vocabulary.unk_id: " ⁇ ".encode(), vocabulary.eos_id: b"\n"}
        self.surfaces = [
            special[id] if id in special else vocabulary.surface(id) for id in range(vocabulary.size)
        ]  # where a language model's lines end, a text goes on
        self.words = [_ForbiddenWord(" ".join(text.split()), self.surfaces) for text in texts]
        self.reach = max(len(word.content) for word in self.words) + _LONGEST_CHARACTER

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Forbids the pieces that would complete one."""
        for row, hypotheses in enumerate(pieces[..., -self.reach :].tolist()):
            for beam, newest in enumerate(hypotheses):
                written = b"".join(self.surfaces[piece] for piece in newest)
                for word in self.words:
                    for completing in word.completing(written):
                        logits[row, beam, completing.to(logits.device)] = float("-inf")
        return logits


class _ForbiddenWord:
    """One text as bytes, and which pieces complete it after how much of it."""

    def __init__(self, text: str, surfaces: Sequence[bytes]) -> None:
        self.content = text.encode("utf-8", "replace")
        self.starts_word = in_spaced_word(text[0])
        self.ends_word = in_spaced_word(text[-1])
        self.within = self._ids(surfaces, self._is_within)
        self.after = [
            self._ids(surfaces, partial(self._completes, rest=self.content[begun:]))
            for begun in range(len(self.content))
        ]

    def completing(self, written: bytes) -> list[Tensor]:
        """The pieces that must not follow what is written."""
        found = [self.within]
        for begun, ids in enumerate(self.after):
            head = self.content[:begun]
            if len(ids) and written.endswith(head) and self._may_start(written[: len(written) - begun]):
                found.append(ids)
        return found

    def _completes(self, surface: bytes, rest: bytes) -> bool:
        return surface.startswith(rest) and self._may_end(surface[len(rest) :])

    def _is_within(self, surface: bytes) -> bool:
        """Whether the text begins and ends within a piece."""
        place = surface.find(self.content, 1)
        while place > 0:
            if self._may_start(surface[:place]) and self._may_end(surface[place + len(self.content) :]):
                return True
            place = surface.find(self.content, place + 1)
        return False

    def _may_start(self, before: bytes) -> bool:
        tail = before[-_LONGEST_CHARACTER:].decode("utf-8", "replace")
        return not (self.starts_word and tail and in_spaced_word(tail[-1]))

    def _may_end(self, behind: bytes) -> bool:
        head = behind[:_LONGEST_CHARACTER].decode("utf-8", "replace")
        return not (self.ends_word and head and in_spaced_word(head[0]))

    @staticmethod
    def _ids(surfaces: Sequence[bytes], holds: Callable[[bytes], bool]) -> Tensor:
        return torch.tensor(
            [id for id, surface in enumerate(surfaces) if surface and holds(surface)], dtype=torch.int64
        )
