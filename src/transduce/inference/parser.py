"""Parse sentences into constituency trees with a trained Transformer (section 6.3; Vinyals et al. 2015).

Search is restricted to trees over the sentence's words (`BalancedBrackets`), and open brackets are closed at the
maximum length. Every output is thus a valid tree over exactly the words of the input.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, overload

import msgspec
import torch
from torch import Tensor
from typing_extensions import Unpack

from transduce.argument_checks import as_text, as_texts
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import batch_token_budget, batches_by_length, check_evaluation_mode, pad
from transduce.inference.decoding import make_search, max_model_positions
from transduce.inference.scorers import EncoderDecoderScorer
from transduce.model.transformer import Transformer
from transduce.model_folder.load import LoadOptions, check_parts, load_task_model, read_search_settings, summary
from transduce.model_folder.read import read_model_folder
from transduce.search.beam import BeamOptions
from transduce.search.rules import Rule
from transduce.search.scorer import Hypothesis, SequenceLimits, run_search
from transduce.search.selection import IMPOSSIBLE
from transduce.search.settings import SearchSettings
from transduce.text.sentencepiece_model import PieceType, read_pieces
from transduce.text.tokenizer import Tokenizer
from transduce.text.trees import CLOSE, MARK, OPENING, TAG, Tree, build_tree, draw, plain, split_symbols, unescape_word
from transduce.text.vocabulary import Vocabulary

# An upper limit of the output length; treebanks have two or three symbols for each word.
_SYMBOLS_A_WORD, _MORE_SYMBOLS = 6, 12


class Parse(msgspec.Struct, frozen=True):
    """A parser's result for a sentence: the constituency tree, with its probability."""

    words: tuple[str, ...]
    """The words of the sentence."""
    tree: Tree | None
    """The constituency tree; None for a sentence without words."""
    log_probability: float
    """Log-probability of the whole output, including the tokens of the words, in nats."""
    ended: bool
    """False if the maximum length truncated the tree, whose open brackets were then closed."""

    def __str__(self) -> str:
        """Return the tree in bracket notation; an empty text for a sentence without words."""
        return "" if self.tree is None else str(self.tree)

    def draw(self) -> str:
        """Return the tree as indented lines; an empty text for a sentence without words."""
        return "" if self.tree is None else draw(self.tree)


class _TokenizedSentence(NamedTuple):
    """A tokenized sentence (words, source token ids) and its index in the input, from 0."""

    number: int
    words: list[str]
    ids: list[int]


@explain_wrong_types
class Parser:
    """A model that writes linearized parse trees. Call it with a sentence of space-separated words, or with a list."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, *, search: SearchSettings | None = None) -> None:
        """Create a parser.

        Args:
            model: a model trained on linearized trees.
            tokenizer: the tokenizer that the model was trained with.
            search: search settings, of which only `beam_size` and `length_penalty` are used; None: the defaults.

        Raises:
            TransduceError: the vocabulary has no tree symbols.
        """
        check_parts("Parser", ("transformer", "recurrent"), (model,), tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.search = search or SearchSettings()
        self._meanings = bracket_tokens(tokenizer.target)

    def __repr__(self) -> str:
        return summary("Parser", self.model, f"beam of {self.search.beam_size}")

    @overload
    def __call__(self, sentence: str) -> Parse: ...
    @overload
    def __call__(self, sentence: list[str] | tuple[str, ...]) -> list[Parse]: ...
    def __call__(self, sentence: str | list[str] | tuple[str, ...]) -> Parse | list[Parse]:
        """Parse a sentence of space-separated words, or a list of sentences.

        Brackets may be escaped as in treebanks, such as `-LRB-`.

        Returns:
            The `Parse` of the sentence, or a list of those of several sentences.

        Raises:
            TransduceError: a sentence has more tokens than the model has learned positions, or the model is in training
                mode.
        """
        sentences = as_texts(sentence)
        parses = self.parse([list(map(unescape_word, each.split())) for each in sentences])
        return parses[0] if isinstance(sentence, str) else parses

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Parse]:
        """Parse sentences that are lists of words; return a list of `Parse`s.

        The tree of a sentence without words is None.

        Raises:
            TransduceError: a sentence is not a list of words, a word is empty or contains a space, a sentence has more
                tokens than the model has learned positions, or the model is in training mode.
        """
        for words in sentences:
            _check_words(words)
        parses = [Parse(tuple(words), None, 0.0, ended=True) for words in sentences]
        encoded = self._encode(sentences)
        lengths = [len(sentence.ids) for sentence in encoded]
        max_tokens = batch_token_budget(self.model.source_weight.device) // self.search.beam_size
        for indices in batches_by_length(lengths, max_tokens):
            batch = [encoded[index] for index in indices]
            for sentence, (best, *_) in zip(batch, self._search(batch), strict=True):
                parses[sentence.number] = self._parse(sentence, best)
        return parses

    def linearize(self, sentence: str) -> tuple[list[int], list[int], Parse]:
        """Return a sentence's source token ids, the target token ids that the parser writes for it, and its parse.

        Raises:
            TransduceError: the sentence has no words, or more tokens than the model has learned positions. Or the model
                is in training mode.
        """
        encoded = self._encode([list(map(unescape_word, as_text(sentence).split()))])
        if not encoded:
            raise TransduceError("The sentence to parse is empty: pass some words.")
        best = self._search(encoded)[0][0]
        return encoded[0].ids, list(best.ids), self._parse(encoded[0], best)

    def _encode(self, sentences: Sequence[Sequence[str]]) -> list[_TokenizedSentence]:
        """Tokenize sentences (lists of words); return a list of those with words, each with its index in the input.

        Raises:
            TransduceError: a sentence has more tokens than the model has learned positions.
        """
        filled = [(index, list(words)) for index, words in enumerate(sentences) if words]
        ids = self.tokenizer.source.encode_batch([" ".join(map(plain, words)) for _, words in filled])
        eos, max_positions = self.tokenizer.source.eos_id, max_model_positions([self.model])
        encoded = [
            _TokenizedSentence(index, words, [*tokens, eos]) for (index, words), tokens in zip(filled, ids, strict=True)
        ]
        for sentence in encoded:
            if len(sentence.ids) > max_positions:
                raise TransduceError(
                    f"A sentence to parse must have at most {max_positions} tokens (`model.max_positions`), but "
                    f"sentence {sentence.number + 1:,} has {len(sentence.ids)}: shorten or divide it."
                )
        return encoded

    @torch.inference_mode()
    def _search(self, batch: Sequence[_TokenizedSentence]) -> list[list[Hypothesis]]:
        """Search for the parse trees of tokenized sentences; return a list with the best hypothesis for each sentence.

        Raises:
            TransduceError: the model is in training mode.
        """
        check_evaluation_mode(self.model)
        config, device, search = self.model.config, self.model.source_weight.device, self.search
        scorer = EncoderDecoderScorer(self.model, pad([sentence.ids for sentence in batch], config.pad_id, device))
        target = self.tokenizer.target
        words = [target.encode_batch(_words_with_spaces(sentence.words)) for sentence in batch]
        max_positions = max_model_positions([self.model])
        max_lengths = [
            min(sum(map(len, each)) + _SYMBOLS_A_WORD * len(each) + _MORE_SYMBOLS, max_positions) for each in words
        ]
        limits = SequenceLimits(config.start_id, config.eos_id, torch.tensor(max_lengths, device=device))
        rules = [BalancedBrackets(self._meanings, words, vocabulary_size=target.size, eos_id=config.eos_id)]
        beam = BeamOptions(beam_size=search.beam_size, alpha=search.length_penalty)
        return run_search(make_search(scorer, limits, beam, rules=rules))

    def _parse(self, sentence: _TokenizedSentence, best: Hypothesis) -> Parse:
        tokens = self.tokenizer.target.tokens([id for id in best.ids if id in self._meanings])
        symbols = [symbol for token in tokens for symbol in split_symbols(token)]
        tree = build_tree(symbols, sentence.words)
        return Parse(tuple(sentence.words), tree, best.log_probability, best.ended)


def _check_words(words: Sequence[str]) -> None:
    if isinstance(words, str):
        raise TransduceError(
            f"A sentence is a list of words here, but `{words}` is a text, whose words would be its characters: split "
            "it, or call the parser with it."
        )
    for word in words:
        if word.split() != [word]:
            raise TransduceError(f"A word of a sentence has a character and no space, but one is {word!r}: split it.")


def _words_with_spaces(words: Sequence[str]) -> list[str]:
    """Return a list of a sentence's words in plain spelling, with a space before each word but the first."""
    return [" " * (index > 0) + plain(word) for index, word in enumerate(words)]


def load_parser(folder: str | Path, **options: Unpack[LoadOptions]) -> Parser:
    """Load the folder of a model trained with `--task parsing` as a `Parser`.

    The options are those of `load`.

    Raises:
        TransduceError: the folder holds no parser, or an option is invalid.
    """
    _, content = load_task_model(read_model_folder, folder, "parsing", use="Parsing", **options)
    return Parser(content.model, content.tokenizer, search=read_search_settings(Path(folder)))


# --- restriction of search to trees ---
# Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, K kinds of tokens, t tokens so far.


# Limit on nested constituents that begin at one word; no treebank has more.
_MAX_OPENED = 12


class BracketToken(NamedTuple):
    """The effect of a token of a linearized parse tree, as numbers: constituents closed and opened, words tagged."""

    closed: int = 0
    opened: int = 0
    words: int = 0


def bracket_tokens(vocabulary: Vocabulary) -> dict[int, BracketToken]:
    """Return a dict from the ids of tree-symbol tokens to the constituents they open and close and the words they tag.

    Each value is a `BracketToken` of three counts; other tokens are not in the dict.

    Raises:
        TransduceError: the vocabulary has no tree symbols.
    """
    meanings = {
        id: BracketToken(
            *(sum(symbol.endswith(sign) for symbol in split_symbols(token.text)) for sign in (CLOSE, OPENING, TAG))
        )
        for id, token in enumerate(read_pieces(vocabulary.model_bytes))
        if token.type == PieceType.USER_DEFINED and token.text.startswith(MARK)
    }
    if any(not sum(meaning[part] for meaning in meanings.values()) for part in range(3)):
        raise TransduceError(
            "A parser writes the symbols of trees, but this vocabulary has none: train it with `--task parsing`."
        )
    return meanings


class BalancedBrackets(Rule):
    """A rule that makes each hypothesis a parse tree of its sentence: brackets balance, and each word occurs once.

    A word's own tokens come before the constituents that follow it. For a sentence of one word, the tree may be the
    word alone. A hypothesis that reaches the maximum length may be an incomplete tree.
    """

    def __init__(
        self,
        meanings: Mapping[int, BracketToken],
        sentences: Sequence[Sequence[Sequence[int]]],
        *,
        vocabulary_size: int,
        eos_id: int,
    ) -> None:
        """Prepare the rule for a batch of sentences.

        Args:
            meanings: the effects of the tokens of linearized trees, by id.
            sentences: the tokens of each word of each sentence.
            vocabulary_size: the number V of tokens in the vocabulary.
            eos_id: the id of the end symbol.
        """
        self.eos_id = eos_id
        # Tokens with the same effect are allowed at the same positions, whatever label they write; there are few kinds.
        kinds = list(dict.fromkeys([BracketToken(), *meanings.values()]))
        self.kinds = torch.tensor(kinds).T  # (3, K)
        self.kind_of = torch.zeros(vocabulary_size, dtype=torch.int64)
        self.kind_of[list(meanings)] = torch.tensor([kinds.index(meaning) for meaning in meanings.values()])
        self.words = torch.tensor([len(words) for words in sentences])
        # An empty word follows the last one.
        max_length = max(len(word) for words in sentences for word in words)
        shape = (len(sentences), int(self.words.max()) + 1, max(1, max_length))
        self.spelling, self.spelling_lengths = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape[:2]).long()
        for row, words in enumerate(sentences):
            for word_index, word in enumerate(words):
                self.spelling[row, word_index, : len(word)] = torch.tensor(word)
                self.spelling_lengths[row, word_index] = len(word)

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:
        """Set the logits (B, W, V) of tokens that cannot continue a parse tree to minus infinity, in place.

        Hypotheses that have ended are unchanged. The logits are returned.
        """
        device = logits.device
        closes, opens, writes = self.kinds.to(device)  # (K,) each
        kind_of = self.kind_of.to(device)
        closed, opened, written = (each[kind_of[tokens]] for each in (closes, opens, writes))  # (B, W, t)
        words = self.words.to(device)[sentence_indices][:, None, None]
        depth = (opened - closed).sum(-1)[..., None]  # (B, W, 1)
        words_left = words - written.sum(-1)[..., None]  # (B, W, 1)
        started = ((opened + written) > 0).any(-1)[..., None]
        just_opened = _opened_at_once(opened, written)[..., None]
        closes_rightly = (closes == 0) | ((just_opened == 0) & (depth >= closes))
        # The root may close only after the last word, and nothing follows it.
        depth_left = depth - closes
        inside = (depth_left > 0) | ~started
        opens_rightly = (opens == 0) | (
            (words_left > 0) & inside & (torch.where(closes > 0, 0, just_opened) + opens <= _MAX_OPENED)
        )
        alone = (words == 1) & ~started
        writes_rightly = (writes == 0) | ((words_left > 0) & ((depth_left + opens > 0) | alone))
        last = (opens == 0) & (writes == 0)
        ends_rightly = ~last | (depth_left > 0) | (words_left == 0)
        follows = closes_rightly & opens_rightly & writes_rightly & ends_rightly & (closes + opens + writes > 0)
        allowed = follows.index_select(-1, kind_of)  # (B, W, V)
        self._spell(allowed, written, sentence_indices)
        allowed[..., self.eos_id] = (started & (depth == 0) & (words_left == 0))[..., 0]
        ended = (tokens == self.eos_id).any(-1)
        return logits.masked_fill_(~(allowed | ended[..., None]), IMPOSSIBLE)

    def _spell(self, allowed: Tensor, words_written: Tensor, sentence_indices: Tensor) -> None:
        """Exclude tokens that would interrupt the spelling of a word, by changing `allowed` in place.

        While a hypothesis lacks tokens of its current word, only the word's next token may follow.

        Args:
            allowed: True for tokens that may follow, (B, W, V).
            words_written: 1 for each token of a hypothesis that completes (tags) a word, else 0, (B, W, t).
            sentence_indices: each sentence's index in the input, (B,).
        """
        device = allowed.device
        # Index of the current word, (B, W); impossible hypotheses that fill up a beam may exceed the last word.
        word_index = words_written.sum(-1).clamp(max=self.spelling.shape[1] - 1)
        written = (words_written.flip(-1).cumsum(-1) == 0).sum(-1)  # tokens after the previous word, (B, W)
        of = (sentence_indices[:, None], word_index)
        lacks = (written < self.spelling_lengths.to(device)[of])[..., None]
        following = self.spelling.to(device)[(*of, written.clamp(max=self.spelling.shape[-1] - 1))][..., None]
        allowed.logical_and_(~lacks).scatter_(-1, following, allowed.gather(-1, following) | lacks)


def _opened_at_once(opened: Tensor, written: Tensor) -> Tensor:
    """Return the number of constituents that each hypothesis opens at its end, as a tensor (B, W).

    Counted are the tokens after the last one that writes a word or opens no constituent.

    Args:
        opened: the number of constituents that each token of a hypothesis opens, (B, W, t).
        written: the number of words that each token writes, (B, W, t).
    """
    is_newest = ((opened > 0) & (written == 0)).flip(-1).long().cumprod(-1).flip(-1)
    return (opened * is_newest).sum(-1)
