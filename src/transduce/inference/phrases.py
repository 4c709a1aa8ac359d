"""Tokenize phrases that a translation must contain, and build rules that forbid texts."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.search.constraints import Phrase, WordContinuations
from transduce.search.rules import Forbid, Rule
from transduce.text.glossary import is_spaced_word_character
from transduce.text.vocabulary import Vocabulary

_WORD_START = "▁"
_LONGEST_CHARACTER = 4  # bytes in UTF-8


def tokenize_phrase(phrase: str, vocabulary: Vocabulary) -> Phrase:
    """Return the alternative token sequences that spell a phrase in a translation.

    In scripts with spaces, the phrase starts a word. In other scripts, it may also follow the previous character
    directly.

    Raises:
        TransduceError: the phrase is empty or has characters that are not in the vocabulary.
    """
    ids = vocabulary.encode(phrase)
    if not ids or not phrase.strip():
        raise TransduceError("A phrase that a translation must contain needs at least one word, but one is empty.")
    if is_spaced_word_character(phrase.strip()[0]) and not vocabulary.surface(ids[0]).startswith(b" "):
        ids = vocabulary.encode(f" {phrase.strip()}")  # for vocabularies that add no space before the first word
    if vocabulary.unk_id in ids:
        raise TransduceError(
            f"A translation cannot contain `{phrase}`: some of its characters are not in the model's vocabulary."
        )
    first = vocabulary.token(ids[0])
    spellings = [tuple(ids)]
    if not is_spaced_word_character(phrase.strip()[0]) and first.startswith(_WORD_START):
        bare = first.removeprefix(_WORD_START)
        characters = [vocabulary.id(character) for character in bare]
        single = [vocabulary.id(bare)] if bare else []
        spelling = single if vocabulary.unk_id not in single else characters
        if vocabulary.unk_id not in spelling:
            spellings.append((*spelling, *ids[1:]))
    return tuple(spelling for spelling in spellings if spelling)


@lru_cache(maxsize=16)
def word_continuations(vocabulary: Vocabulary) -> WordContinuations:
    """Return the token ids that continue a word, and those after which a word may continue, in scripts with spaces.

    Search uses them so that a required phrase is not written inside a longer word.
    """
    texts = [vocabulary.surface(id).decode("utf-8", "replace") for id in range(vocabulary.size)]
    return WordContinuations(
        continuing=frozenset(id for id, text in enumerate(texts) if text and is_spaced_word_character(text[0])),
        within=frozenset(id for id, text in enumerate(texts) if text and is_spaced_word_character(text[-1])),
    )


def tokenize_prefix(prefix: str, vocabulary: Vocabulary) -> list[int]:
    """Return the target token ids of a prefix that translations must start with; spaces at its ends are dropped.

    Raises:
        TransduceError: the prefix has characters that are not in the vocabulary.
    """
    ids = vocabulary.encode(prefix.strip())
    if vocabulary.unk_id in ids:
        raise TransduceError(
            f"A translation cannot begin with `{prefix}`: some of its characters are not in the model's vocabulary."
        )
    return ids


@lru_cache(maxsize=16)
def forbid_texts(texts: tuple[str, ...], vocabulary: Vocabulary) -> tuple[Rule, ...]:
    """Return rules that keep texts out of translations; the unknown token's spelling as a text forbids that token.

    Raises:
        TransduceError: a text is empty.
    """
    if not all(text.strip() for text in texts):
        raise TransduceError("A forbidden text needs at least one character, but one is empty.")
    unknown = vocabulary.token(vocabulary.unk_id)
    words = [vocabulary.normalize(text) for text in texts if text != unknown]
    rules: list[Rule] = [Forbid([vocabulary.unk_id])] if unknown in texts else []
    return (*rules, ForbiddenTexts(words, vocabulary)) if words else tuple(rules)


class ForbiddenTexts:
    """A search rule (`search.rules.Rule`) that forbids texts in hypotheses, however they are tokenized.

    In scripts with spaces, texts match whole words only. If "apple" is forbidden, "▁apples" is allowed, because the
    token continues the word. Matching is case-sensitive.
    """

    def __init__(self, texts: Sequence[str], vocabulary: Vocabulary) -> None:
        special = {vocabulary.pad_id: b"", vocabulary.unk_id: " ⁇ ".encode(), vocabulary.eos_id: b"\n"}
        self.surfaces = [special[id] if id in special else vocabulary.surface(id) for id in range(vocabulary.size)]
        self.words = [_ForbiddenWord(" ".join(text.split()), self.surfaces) for text in texts]
        self.reach = max(len(word.content) for word in self.words) + _LONGEST_CHARACTER

    def apply(self, logits: Tensor, tokens: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Set the logits (B, W, V) of tokens that would complete a forbidden text to minus infinity, in place.

        `tokens`, (B, W, t), are the hypotheses so far.
        """
        for row, hypotheses in enumerate(tokens[..., -self.reach :].tolist()):
            for beam, newest in enumerate(hypotheses):
                written = b"".join(self.surfaces[token] for token in newest)
                for word in self.words:
                    for completing in word.completing(written):
                        logits[row, beam, completing.to(logits.device)] = float("-inf")
        return logits


class _ForbiddenWord:
    """A forbidden text as bytes, with the tokens that would complete it after each of its prefixes."""

    def __init__(self, text: str, surfaces: Sequence[bytes]) -> None:
        self.content = text.encode("utf-8", "replace")
        self.starts_word = is_spaced_word_character(text[0])
        self.ends_word = is_spaced_word_character(text[-1])
        self.within = self._ids(surfaces, self._is_within)
        self.after = [
            self._ids(surfaces, partial(self._completes, rest=self.content[prefix_length:]))
            for prefix_length in range(len(self.content))
        ]

    def completing(self, written: bytes) -> list[Tensor]:
        """Return the token ids (several tensors) that would complete the forbidden text after the bytes written so far.

        In scripts with spaces, only whole words count.
        """
        completing = [self.within]
        for prefix_length, ids in enumerate(self.after):
            head = self.content[:prefix_length]
            if len(ids) and written.endswith(head) and self._may_start(written[: len(written) - prefix_length]):
                completing.append(ids)
        return completing

    def _completes(self, surface: bytes, rest: bytes) -> bool:
        return surface.startswith(rest) and self._may_end(surface[len(rest) :])

    def _is_within(self, surface: bytes) -> bool:
        """Return whether the forbidden text occurs as whole words in the bytes of a token, after its first byte."""
        offset = surface.find(self.content, 1)
        while offset > 0:
            if self._may_start(surface[:offset]) and self._may_end(surface[offset + len(self.content) :]):
                return True
            offset = surface.find(self.content, offset + 1)
        return False

    def _may_start(self, before: bytes) -> bool:
        tail = before[-_LONGEST_CHARACTER:].decode("utf-8", "replace")
        return not (self.starts_word and tail and is_spaced_word_character(tail[-1]))

    def _may_end(self, after: bytes) -> bool:
        head = after[:_LONGEST_CHARACTER].decode("utf-8", "replace")
        return not (self.ends_word and head and is_spaced_word_character(head[0]))

    @staticmethod
    def _ids(surfaces: Sequence[bytes], holds: Callable[[bytes], bool]) -> Tensor:
        return torch.tensor(
            [id for id, surface in enumerate(surfaces) if surface and holds(surface)], dtype=torch.int64
        )
