"""Make the tokenizer of a run: learned from its text, the user's own, or a base model's with more tokens."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random

import msgspec

from transduce.data.prepared import write_sample
from transduce.data.text_noise import TextNoiseSettings, noise_pair
from transduce.errors import TransduceError, count_noun
from transduce.interop.vocabulary_files import extend_tokenizer, learn_words, open_vocabulary
from transduce.tasks.prepared_folder import check_vocabulary, tokenizer_settings_of
from transduce.tasks.settings.presets import has_preset_vocabulary_size
from transduce.tasks.settings.structs import Settings, VocabularySettings
from transduce.text.corpus import CorpusFiles, Pair, PairReader, read_pairs
from transduce.text.files import is_decodable, read_lines
from transduce.text.protected import PLACEHOLDER_TOKENS
from transduce.text.sentencepiece_model import MAX_TRAINING_LINES, TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import fallback_ids
from transduce.training.choices import CorpusSize
from transduce.training.display import ProgressDisplay

_MANY_ODD_TOKENS = 0.2  # share of a side's tokens that are bytes or unknown, above which the user gets a notice
_MIN_OCCURRENCES = 2  # how often a word must occur to enter a vocabulary of whole words


def learn_tokenizer(
    files: CorpusFiles,
    size: CorpusSize,
    settings: Settings,
    choose: Callable[[CorpusSize], TokenizerSettings],
    folder: Path,
    display: ProgressDisplay,
    *,
    special_tokens: tuple[str, ...] = (),
) -> tuple[Tokenizer, TokenizerSettings]:
    """Learn a vocabulary from the corpus (a sample, if it is large), or open the user's own, and save it in `folder`.

    Args:
        files: the training text.
        size: the size of the corpus.
        settings: the user's settings.
        choose: chooses the tokenizer's settings from the size of the corpus.
        folder: the folder that receives the tokenizer's files.
        display: shows notices.
        special_tokens: special tokens that the task needs.

    Returns:
        The tokenizer and its settings.

    Raises:
        TransduceError: the settings contradict each other or the vocabulary that they name.
    """
    if settings.tokenizer.vocabulary:
        return _adopt_vocabulary(settings.tokenizer, special_tokens, files, folder, display)
    tokenizer_settings, is_open = choose(size), settings.tokenizer.vocabulary_size is None
    adjust = is_open or has_preset_vocabulary_size(settings)
    if files.is_text_alone and not tokenizer_settings.joint:
        raise TransduceError(
            "`tokenizer.joint` = false is for separate vocabularies, but here is only one text: leave it out."
        )
    # A chosen size covers the words only; the task's special tokens are added to it.
    special_tokens = (*special_tokens, *PLACEHOLDER_TOKENS[: tokenizer_settings.placeholders])
    special_tokens = tuple(dict.fromkeys((*special_tokens, *settings.tokenizer.user_symbols)))
    num_special = len(special_tokens) + tokenizer_settings.line_feeds if is_open else 0
    tokenizer_settings = msgspec.structs.replace(
        tokenizer_settings,
        vocabulary_size=tokenizer_settings.vocabulary_size + num_special,
        user_symbols=special_tokens,
    )
    folder.mkdir(parents=True, exist_ok=True)
    max_lines = MAX_TRAINING_LINES // (2 if tokenizer_settings.joint else 1)
    sample = folder / ".sample.jsonl"
    try:
        text = write_sample(files, size.pairs, max_lines, sample) if size.pairs > max_lines else files
        read = partial(_vocabulary_text, text, settings.tokenizer.text, settings.data.noise)
        tokenizer = (
            _learn_words(read, tokenizer_settings)
            if tokenizer_settings.kind == "word"
            else Tokenizer.train(read, tokenizer_settings, adjust=adjust)
        )
    finally:
        sample.unlink(missing_ok=True)
    counts_words = tokenizer_settings.kind in ("character", "word")
    if tokenizer.source.size != tokenizer_settings.vocabulary_size and not counts_words:
        found, wanted = tokenizer.source.size, tokenizer_settings.vocabulary_size
        display.say(f"The text {'allows only' if found < wanted else 'needs'} {found:,} tokens, not {wanted:,}.")
        tokenizer_settings = msgspec.structs.replace(tokenizer_settings, vocabulary_size=tokenizer.source.size)
    if tokenizer_settings.kind == "word":
        display.say(f"The words that occur at least {_MIN_OCCURRENCES} times are {tokenizer.source.size:,} tokens.")
        remedy = "use `tokenizer.kind` = bpe, or raise `tokenizer.vocabulary_size`"
        for line in vocabulary_notices(tokenizer, files, "the text", both=True, remedy=remedy):
            display.say(line)
    tokenizer.save(folder)
    return tokenizer, tokenizer_settings


def _adopt_vocabulary(
    specified: VocabularySettings,
    special_tokens: tuple[str, ...],
    files: CorpusFiles,
    folder: Path,
    display: ProgressDisplay,
) -> tuple[Tokenizer, TokenizerSettings]:
    """Open the user's own vocabulary, add `special_tokens` and symbols that it lacks, and save it in `folder`.

    Returns the tokenizer and its settings.
    """
    if specified.text:
        raise TransduceError(
            "`tokenizer.text` is for a vocabulary that is learned, but `tokenizer.vocabulary` names one: leave one of "
            "them out."
        )
    name = " and ".join(specified.vocabulary)
    special_tokens = (*special_tokens, *PLACEHOLDER_TOKENS[: specified.placeholders or 0])
    symbols = dict.fromkeys((*special_tokens, *specified.symbols))
    tokenizer, notes = open_vocabulary(specified.vocabulary, symbols=tuple(symbols), nfc=specified.nfc)
    for note in notes:
        display.say(note)
    check_vocabulary(specified, tokenizer, name)
    size = specified.vocabulary_size
    if size not in (None, tokenizer.source.size):
        raise TransduceError(
            f"`tokenizer.vocabulary_size` is {size:,}, but {name} has {tokenizer.source.size:,} tokens: leave it out."
        )
    sizes = dict.fromkeys((tokenizer.source.size, tokenizer.target.size))
    display.say(f"The vocabulary of {name} has {' and '.join(f'{each:,}' for each in sizes)} tokens.")
    for line in vocabulary_notices(tokenizer, files, name, both=True, remedy="check that the texts are of its form"):
        display.say(line)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    return tokenizer, tokenizer_settings_of(tokenizer)


def _learn_words(read: Callable[[], Iterable[Pair]], settings: TokenizerSettings) -> Tokenizer:
    """Return a tokenizer with learned vocabularies of whole words, one for both sides or one for each.

    `read` yields all pairs of the text at each call.

    Raises:
        TransduceError: a setting does not fit a vocabulary of words.
    """
    for name, value in (("byte_fallback", settings.byte_fallback), ("nfc", settings.nfc)):
        if value:
            raise TransduceError(
                f"`tokenizer.{name}` is true, but a word that `tokenizer.kind` = word does not know stays unknown: "
                "leave it out."
            )
    if settings.character_coverage is not None:
        raise TransduceError(
            "`tokenizer.character_coverage` means nothing where `tokenizer.kind` is word: leave it out."
        )
    sources, targets = (pair.source for pair in read()), (pair.target for pair in read())
    symbols = (*settings.user_symbols, *("\n" for _ in range(settings.line_feeds)))
    sides = [chain(sources, targets)] if settings.joint else [sources, targets]
    decodable = [filter(is_decodable, side) for side in sides]
    return learn_words(decodable, settings.vocabulary_size, min_count=_MIN_OCCURRENCES, symbols=symbols)


def extend_base_tokenizer(
    tokenizer: Tokenizer, settings: Settings, special_tokens: tuple[str, ...], display: ProgressDisplay
) -> Tokenizer:
    """Return the base model's tokenizer with the settings' symbols added that it lacks.

    A notice states how many tokens were added.

    Raises:
        TransduceError: the vocabulary lacks a special token that the task needs.
    """
    extended = extend_tokenizer(tokenizer, settings.tokenizer.symbols)
    lacking = [mark for mark in special_tokens if not extended.target.has_special_token(mark)]
    if lacking:
        raise TransduceError(
            f"The vocabulary of {settings.init_from} lacks the token {lacking[0]}, which `task.kind` "
            f"{settings.task.kind} needs for this text: start from another model, or from none."
        )
    added = extended.target.size - tokenizer.target.size
    if added:
        display.say(
            f"{count_noun(added, 'token')} added to the vocabulary of {settings.init_from}, each with the mean of the "
            "embeddings of the tokens that spelled it before."
        )
    return extended


def _vocabulary_text(files: CorpusFiles, more: tuple[str, ...], noise: TextNoiseSettings) -> Iterator[Pair]:
    """Yield pairs of the text that a vocabulary is learned from.

    These are the pairs of the corpus, with noise if that is set, and then the lines of the files `more`. A pair has an
    empty target if its text is a line of `more` or of a corpus without targets.
    """
    alone, random = files.is_text_alone, Random(0)  # so that each reading yields the same text
    for pair in read_pairs(files):
        if noise.is_active:
            source, target = noise_pair(pair.source, pair.target, noise, random.random)
            pair = pair._replace(source=source, target=target)
        yield Pair(pair.source, "", pair.line, pair.path) if alone else pair
    for path in more:
        for line, text in enumerate(read_lines(path, keep_undecodable=True), 1):
            yield Pair(text, "", line, path)


def vocabulary_notices(
    tokenizer: Tokenizer,
    files: CorpusFiles,
    name: str,
    *,
    both: bool,
    remedy: str = "start from a model whose vocabulary has them, or omit --init-from",
) -> list[str]:
    """Return a list of sentences for the user, one for each side of the text that the vocabulary hardly covers.

    A side is hardly covered if many tokens of its first lines are bytes or unknown.

    Args:
        tokenizer: the tokenizer.
        files: the text.
        name: the place that the vocabulary comes from.
        both: whether to examine the target side, too; otherwise only the source.
        remedy: what the user can do.

    Raises:
        TransduceError: a file is missing or invalid.
    """
    block = next(iter(PairReader(files)))
    notices = []
    sides = ((tokenizer.source, block.sources, "source"), (tokenizer.target, block.targets, "target"))
    units = "words" if tokenizer_settings_of(tokenizer).kind == "word" else "characters"
    for vocabulary, lines, side in sides[: 2 if both and not files.is_text_alone else 1]:
        odd, ids = fallback_ids(vocabulary), [id for line in vocabulary.encode_batch(lines) for id in line]
        share = sum(id in odd for id in ids) / max(1, len(ids))
        if share > _MANY_ODD_TOKENS:
            notices.append(
                f"{share:.0%} of the {side}'s tokens are bytes or unknown, because the vocabulary of {name} lacks "
                f"many of their {units}: {remedy}."
            )
    return notices
