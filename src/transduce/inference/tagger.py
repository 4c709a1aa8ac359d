"""Tag the words of sentences with a trained encoder: parts of speech, names and other spans.

Legend: B rows of tokens, S tokens of a row, C tags.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import overload

import msgspec
import torch
from typing_extensions import Unpack

from transduce.argument_checks import as_texts
from transduce.data.batches import WordTokens
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import TextEncoder
from transduce.model.transformer import Encoder
from transduce.model_folder.load import LoadOptions, load_task_model, summary
from transduce.model_folder.read import read_encoder_folder
from transduce.text.tagged import TaggedSpan, spans_of
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary, special_tokens_of


class Tagging(msgspec.Struct, frozen=True):
    """The words of a sentence with the most probable tag of each."""

    words: tuple[str, ...]
    """The words of the sentence."""
    tags: tuple[str, ...]
    """The most probable tag of each word, in the order of `words`."""
    probabilities: tuple[float, ...]
    """The probability of each word's tag, from 0 to 1."""

    @property
    def spans(self) -> list[TaggedSpan]:
        """A list of the spans that tags such as B-PER and I-PER describe.

        Each `TaggedSpan` has its kind, the index of its first word, and the index of the word after its last.
        """
        return spans_of(self.tags)

    def __str__(self) -> str:
        """Return a line `word TAB tag` for each word."""
        return "\n".join(f"{word}\t{tag}" for word, tag in zip(self.words, self.tags, strict=True))


@explain_wrong_types
class Tagger(TextEncoder):
    """An encoder that tags each word of a sentence. Call it with a sentence of space-separated words or with a list."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, tags: Sequence[str], *, length: int) -> None:
        """Create a tagger.

        Args:
            model: an encoder with a label of each token for every tag.
            tokenizer: the tokenizer that the model was trained with.
            tags: names of the tags, in the model's order.
            length: maximum number of tokens read at once, including special tokens; longer sentences are read in parts.

        Raises:
            TransduceError: the numbers of tags and labels differ, or the vocabulary lacks the special tokens.
        """
        super().__init__(model, tokenizer, length=length)
        if not model.config.token_labels or len(tags) != model.config.num_labels:
            raise TransduceError(
                f"A tagger needs a label of each token for {len(tags)} tags, but its model has "
                f"{model.config.num_labels}: the folder's files are of different models."
            )
        self.tags = tuple(tags)

    def __repr__(self) -> str:
        return summary("Tagger", self.model, f"{len(self.tags)} tags")

    @overload
    def __call__(self, sentence: str) -> Tagging: ...
    @overload
    def __call__(self, sentence: list[str] | tuple[str, ...]) -> list[Tagging]: ...
    def __call__(self, sentence: str | list[str] | tuple[str, ...]) -> Tagging | list[Tagging]:
        """Tag the words, separated by spaces, of a sentence or of each in a list.

        Returns:
            The `Tagging` of one sentence; for a list or tuple of sentences, a list of `Tagging`s in order.

        Raises:
            TransduceError: the argument is neither a text nor a list of texts.
        """
        taggings = self.tag([text.split() for text in as_texts(sentence)])
        return taggings[0] if isinstance(sentence, str) else taggings

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[Tagging]:
        """Tag the words of sentences that are lists of words, and return a list with a `Tagging` for each, in order.

        Raises:
            TransduceError: a sentence is not a list of texts.
        """
        if isinstance(sentences, str) or any(isinstance(words, str) for words in sentences):
            raise TransduceError(
                "`tag` takes sentences that are lists of words, but one is a text: call the tagger itself with texts, "
                'or write [["The", "cat"], …].'
            )
        sentences = [as_texts(list(words)) for words in sentences]
        tags = [[""] * len(words) for words in sentences]
        probabilities = [[0.0] * len(words) for words in sentences]
        rows = encode_words(self.tokenizer.source, sentences, self.length)
        for batch, _, states in self._encode_by_length([row.ids for row in rows]):
            with torch.inference_mode():
                logits = self.model.label_tokens(states).float()  # (B, S, C)
            best, labels = logits.softmax(dim=-1).cpu().max(dim=-1)  # (B, S) each
            for number, row in enumerate(rows[index] for index in batch):
                for word, position in enumerate(row.positions, row.first_word):
                    tags[row.sentence][word] = self.tags[int(labels[number, position])]
                    probabilities[row.sentence][word] = float(best[number, position])
        return [
            Tagging(tuple(words), tuple(found), tuple(sure))
            for words, found, sure in zip(sentences, tags, probabilities, strict=True)
        ]


def encode_words(vocabulary: Vocabulary, sentences: Sequence[Sequence[str]], length: int) -> list[WordTokens]:
    """Tokenize each word of sentences separately, and return a list of `WordTokens`.

    Each `WordTokens` is a sequence of at most `length` token ids, including special tokens. A longer sentence is
    divided between words into several sequences. A sentence without words has none. A word that is longer than a
    sequence is cut to its first tokens. A word without tokens, such as one of control characters, becomes the unknown
    token.
    """
    special_tokens, capacity = special_tokens_of(vocabulary), length - 2
    distinct = list(dict.fromkeys(word for words in sentences for word in words))
    prefix = _word_prefix(vocabulary)
    read = [prefix + vocabulary.readable(word) for word in distinct]
    ids_of = dict(zip(distinct, vocabulary.encode_batch(read), strict=True))
    rows = []
    for sentence, words in enumerate(sentences):
        ids, positions, first = list[int](), list[int](), 0
        for number, word in enumerate(words):
            tokens = (ids_of[word] or [vocabulary.unk_id])[:capacity]
            if len(ids) + len(tokens) > capacity:
                rows.append(WordTokens(sentence, first, special_tokens.frame(ids, length), positions))
                ids, positions, first = [], [], number
            positions.append(1 + len(ids))  # after the token that starts the row
            ids += tokens
        if words:
            rows.append(WordTokens(sentence, first, special_tokens.frame(ids, length), positions))
    return rows


def _word_prefix(vocabulary: Vocabulary) -> str:
    """Return a space, or empty text: what to put before a word to tokenize it alone as it would be inside a sentence.

    Some vocabularies add a space to a text by themselves; those of characters and of RoBERTa do not.
    """
    both = vocabulary.encode("x x")
    return next(
        (prefix for prefix in ("", " ") if vocabulary.encode("x") + vocabulary.encode(f"{prefix}x") == both), ""
    )


def load_tagger(folder: str | Path, **options: Unpack[LoadOptions]) -> Tagger:
    """Load a model folder as a `Tagger`: trained with `--task tagging`, or a BERT or RoBERTa that labels tokens.

    The options are those of `load`.

    Raises:
        TransduceError: the folder holds no tagger, or an option is invalid.
    """
    card, content = load_task_model(read_encoder_folder, folder, "tagging", use="Tagging", **options)
    return Tagger(content.model, content.tokenizer, card.labels, length=card.length)
