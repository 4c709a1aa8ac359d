"""Prepare texts for decoding: split long sentences, collect document context, batch by length, decode in parallel."""

import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from transduce.acceleration import encode_fast, select_decoder
from transduce.errors import TransduceError
from transduce.inference.segmentation import LayoutWriter, SegmentedText
from transduce.inference.translation import Translation, agreed_length, empty_alternative, join_parts
from transduce.model.build import EncoderDecoder
from transduce.model.transformer import Encoder
from transduce.search.constraints import Phrase
from transduce.search.scorer import Observer, TextObserver
from transduce.search.settings import SearchSettings
from transduce.text.sentences import find_sentences, split_text
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import CONTEXT_SEPARATOR, Vocabulary
from transduce.text.word_spans import Span

# --- parts of long texts ---
# Long sentences are split into parts, and the translations of the parts are joined.


_PART_STRIDE = 999_999_937
"""A large number that, times a part's index within its text, is added to the text's index to seed sampling, so
that the parts of a text draw different random numbers.
"""


class Part(NamedTuple):
    """A sentence of a text, tokenized for decoding, or a part of a sentence that is too long for the model."""

    text: str
    """The text of the sentence or part."""
    text_index: int
    """Index of the text that the part belongs to."""
    sentence_index: int
    """Index of this sentence or part within its text, from 0."""
    ids: list[int]
    """Token ids of the text with special tokens; only the end symbol if the text has no token."""
    prefix: Sequence[int] = ()
    """Target token ids that the translation starts with; empty: a free start."""
    phrases: tuple[Phrase, ...] = ()
    """Phrases that the translation must contain, each as a tuple of the alternative token sequences that spell it."""
    protected: tuple[Span, ...] = ()
    """Character spans (start, end) of the part's text that translation must not change, in order and disjoint."""
    history: tuple[int, ...] = ()
    """Source token ids of earlier sentences of the document, each with a separator, that the model reads before the
    part.
    """
    target_history: tuple[int, ...] = ()
    """Target token ids of the translations of earlier sentences, each with a separator; empty if not read."""

    @property
    def source_ids(self) -> list[int]:
        """The token ids that the encoder reads: a list of those of earlier sentences, then the part's own."""
        return [*self.history, *self.ids]

    @property
    def context(self) -> "History":
        """The context of the part: the token ids of earlier sentences and, if they are read, of their translations."""
        return History(self.history, self.target_history)

    @property
    def key(self) -> tuple[int, int]:
        """The pair that identifies the part in dicts of results: its text's index, and its index within the text."""
        return (self.text_index, self.sentence_index)

    @property
    def is_empty(self) -> bool:
        """True if the part contains nothing to translate: at most one token (the end symbol), or only whitespace."""
        return len(self.ids) < 2 or not self.text.strip()

    def seed_index(self, indices: Sequence[int] | None) -> int:
        """Return the index that seeds the random numbers of this part (sentence of a text) in sampling.

        The index is that of the text, plus the part's index within the text times a large constant. `indices` holds
        the index of each text in the whole input, so that a text is sampled alike in any batch; None: the index within
        this call.
        """
        index = self.text_index if indices is None else indices[self.text_index]
        return index + self.sentence_index * _PART_STRIDE


def encode_parts(texts: Sequence[SegmentedText], vocabulary: Vocabulary) -> list[Part]:
    """Tokenize segmented texts; return one flat list with a `Part` for each sentence (or part of a long sentence)."""
    sentences = [
        (each, text, number) for text, segmented in enumerate(texts) for number, each in enumerate(segmented.sentences)
    ]
    encoded = vocabulary.encode_batch([each.text for each, _, _ in sentences])
    return [
        Part(
            each.text,
            text,
            number,
            vocabulary.with_special_tokens(ids) if ids else [vocabulary.eos_id],
            protected=each.protected,
        )
        for (each, text, number), ids in zip(sentences, encoded, strict=True)
    ]


class DocumentContext(NamedTuple):
    """The context that a model reads of a document: how many earlier sentences, and whether their translations, too."""

    before: int
    """Maximum number of earlier sentences of the document that are read with each sentence."""
    on_target: bool = False
    """True if the decoder also reads the translations of the earlier sentences, before it writes the next translation.
    """


class DocumentMemory:
    """A record of a document's last sentences, in token ids, which a model reads before the next sentence.

    The translations of the sentences are recorded, too, if the model's decoder reads them.
    """

    def __init__(self, context: DocumentContext, tokenizer: Tokenizer, max_tokens: int) -> None:
        """Start a record of a document without sentences.

        Args:
            context: how many earlier sentences the model reads, and whether also their translations.
            tokenizer: the model's tokenizer, whose vocabularies have the separator.
            max_tokens: maximum number of tokens that the model reads at a time.
        """
        self._context, self._tokenizer, self._max_tokens = context, tokenizer, max_tokens
        self._separators = tuple(side.id(CONTEXT_SEPARATOR) for side in (tokenizer.source, tokenizer.target))
        self._sources: list[list[int]] = []
        self._targets: list[list[int]] = []

    def clear(self) -> None:
        """Remove all recorded sentences and translations, because another document begins."""
        self._sources, self._targets = [], []

    def add_history(self, part: Part) -> Part:
        """Return a copy of a part (sentence) with the recorded sentences, and any recorded translations, as context.

        The oldest sentences are left out until the source context and the part have at most `max_tokens` tokens (the
        maximum that the model reads), and the translations at most half as many, so that the part's own translation
        fits, too.
        """
        sources, targets, max_tokens = self._sources, self._targets, self._max_tokens
        while sources and (
            sum(map(len, sources)) + len(part.ids) > max_tokens or sum(map(len, targets)) > max_tokens // 2
        ):
            sources, targets = sources[1:], targets[1:]
        return part._replace(history=tuple(chain(*sources)), target_history=tuple(chain(*targets)))

    def append(self, part: Part, translation: str = "") -> None:
        """Record a part as the document's newest sentence; also its translation, if the model reads translations.

        An empty part is ignored. Sentences that are too old for the model's context are dropped.
        """
        if part.is_empty:
            return
        max_sentences = self._context.before
        source = part.ids[: len(part.ids) - len(self._tokenizer.source.after)]
        self._sources = [*self._sources, [*source, self._separators[0]]][-max_sentences:]
        if self._context.on_target:
            target = self._tokenizer.target.encode(translation)
            self._targets = [*self._targets, [*target, self._separators[1]]][-max_sentences:]

    def append_text(self, parts: Sequence[Part], translation: str, target_language: str | None) -> None:
        """Record the parts (sentences) of a text, each with the sentence of the text's translation at its position.

        If the translation has another number of sentences than the text has parts, the text is recorded as one
        sentence. `target_language`, None if unknown, decides how the translation is divided into sentences.
        """
        sentences = [translation] * len(parts)
        if len(parts) > 1 and self._context.on_target:
            sentences = [translation[slice(*each)] for each in find_sentences(translation, target_language)]
        if len(sentences) != len(parts):
            source = self._tokenizer.source
            start, end = len(source.before), len(source.after)
            texts = (part.ids[start : len(part.ids) - end] for part in parts)
            parts, sentences = [parts[0]._replace(ids=source.with_special_tokens([*chain(*texts)]))], [translation]
        for part, sentence in zip(parts, sentences, strict=True):
            self.append(part, sentence)


class DocumentHistories:
    """A provider of document context: for texts translated together, it gives each sentence those that precede it."""

    def __init__(
        self, memory: DocumentMemory | None, continues: Sequence[bool], *, is_sequential: bool = False
    ) -> None:
        self._memory, self._continues = memory, continues
        self.is_sequential = is_sequential
        """True if the model reads translations of earlier sentences, so that the sentences of a document are translated
        in order.
        """

    def with_history(self, parts: Sequence[Part]) -> list[Part]:
        """Return a list of the parts (sentences), each with the preceding sentences of its document as context.

        The parts are unchanged if the model reads no context, or if it also reads the translations of the preceding
        sentences, which do not exist yet.
        """
        memory = self._memory
        if memory is None or self.is_sequential:
            return list(parts)
        result = []
        for is_first, part in self._in_order(parts):
            if is_first:
                memory.clear()
            result.append(memory.add_history(part))
            memory.append(part)
        return result

    def waves(self, parts: Sequence[Part], translations: Mapping[tuple[int, int], Translation]) -> Iterator[list[Part]]:
        """Yield lists of parts (sentences), with their context, that can be translated together.

        If the model reads translations as context, each list holds at most one sentence of a document, and the next
        list needs the translations of the earlier ones. Otherwise, one list holds all parts unchanged.

        Args:
            parts: the parts of all texts, without empty ones, in order.
            translations: the translations so far by the parts' keys, which the caller completes after each list.
        """
        if self._memory is None or not self.is_sequential:
            yield list(parts)
            return
        chains = list[tuple[DocumentMemory, list[Part]]]()
        for is_first, part in self._in_order(parts):
            if is_first or not chains:
                memory = copy.copy(self._memory)
                if is_first:
                    memory.clear()
                chains.append((memory, []))
            chains[-1][1].append(part)
        for number in range(max((len(sentences) for _, sentences in chains), default=0)):
            active = [(memory, sentences[number]) for memory, sentences in chains if number < len(sentences)]
            yield [memory.add_history(part) for memory, part in active]
            for memory, part in active:
                memory.append(part, translations[part.key].text if part.key in translations else "")

    def _in_order(self, parts: Sequence[Part]) -> Iterator[tuple[bool, Part]]:
        """Yield a pair for each part (sentence): True if a document begins with the part, else False; and the part."""
        text = -1
        for part in parts:
            # Texts without parts may end a document, too.
            is_first = not all(self._continues[text + 1 : part.text_index + 1])
            text = max(text, part.text_index)
            yield is_first, part


class History(NamedTuple):
    """The context of a sentence for a model that reads earlier sentences of the document, in token ids."""

    source: Sequence[int] = ()
    """Source token ids of earlier sentences of the document, each with a separator; empty: no context."""
    target: Sequence[int] = ()
    """Token ids of the translations of the earlier sentences, each with a separator; empty if the model does not read
    them.
    """


def pair_histories(
    memory: DocumentMemory | None, tokenizer: Tokenizer, pairs: Iterable[tuple[str, str, bool]]
) -> Iterator[History]:
    """Yield the context (`History`) that a model reads for each sentence pair of documents, as if it translated them.

    Args:
        memory: an empty record of a document, to which the pairs are appended; None: the model reads no context, so
            every context is empty.
        tokenizer: the model's tokenizer.
        pairs: a sentence, its translation, and True if the pair continues the document of the pair before it.
    """
    for source, target, continues in pairs:
        if memory is None:
            yield History()
            continue
        if not continues:
            memory.clear()
        ids = tokenizer.source.encode(tokenizer.source.readable(source))
        part = memory.add_history(Part(source, 0, 0, tokenizer.source.with_special_tokens(ids)))
        yield History(part.history, part.target_history)
        memory.append(part, target)


class Documents(NamedTuple):
    """The division of consecutive texts into documents, for models that read earlier sentences as context."""

    continues: Sequence[bool]
    """One boolean for each text: True if it continues the document of the text before it."""
    before: Sequence[tuple[str, str]] = ()
    """Texts of the document before the first text to translate, as pairs of a text and its translation, which may be
    empty if the model has no context on the target side.
    """

    @classmethod
    def of_lines(cls, lines: Sequence[str], before: Sequence[tuple[str, str]] = ()) -> "Documents":
        """Return the division of a file's lines into documents: empty lines separate documents.

        The first line continues a document only if there are `before`, pairs of an earlier text and its translation.
        """
        follows = [bool(before), *(bool(line.strip()) for line in lines[:-1])]
        return cls([one and bool(line.strip()) for one, line in zip(follows, lines, strict=False)], before)


# One character of a private-use area stands for a protected span while a sentence is cut.
_MARKS = range(0xF0000, 0xFFFFE)


def cut_long_sentence(
    sentence: str, protected: Sequence[Span], *, vocabulary: Vocabulary, max_tokens: int, gathers: bool
) -> list[str]:
    """Split a sentence into parts of at most `max_tokens` tokens; return their texts. A short sentence is one part.

    Args:
        sentence: a sentence of any length.
        protected: character spans of the sentence that are never split, in order and disjoint. The model does not see
            them, so consecutive spans, with only spaces between, count as one token (a placeholder).
        vocabulary: the source vocabulary.
        max_tokens: maximum number of tokens in a part, without the end symbol.
        gathers: True if consecutive sentences form one part as far as they fit. Models trained on longer texts need the
            context; models trained on sentences translate single sentences best.
    """
    # A token has at least one byte, so short sentences need no counting, unless the tokenizer lengthens the text (ﷺ).
    is_short = (
        not vocabulary.may_lengthen and len(vocabulary.normalize(sentence).encode("utf-8", "replace")) < max_tokens
    )
    if is_short or not sentence.strip():
        return [sentence]
    used = set(sentence) if protected else ()
    mark = next((character for character in map(chr, _MARKS) if character not in used), "")
    protected = protected if mark else ()
    counter, run = _TokenCounter(vocabulary), re.compile(rf"{mark}[{mark}\s]*+")
    cut = partial(split_text, gathers=gathers)

    def fits(text: str, count: Callable[[str], int]) -> bool:
        visible, runs = run.subn(" ", text) if protected and mark in text else (text, 0)
        return count(visible.strip() if runs else text) + runs <= max_tokens

    edges = [0, *(edge for span in protected for edge in span), len(sentence)]
    masked = mark.join(sentence[start:end] for start, end in list(pairwise(edges))[::2])
    # Imported vocabularies may have space tokens, which the counter ignores, so the parts are checked exactly.
    parts = [
        exact
        for part in cut(masked, lambda text: fits(text, counter.count))
        for exact in cut(part, lambda text: fits(text, lambda visible: len(vocabulary.encode(visible))))
    ]
    spans = iter(protected)
    return [re.sub(mark, lambda _: sentence[slice(*next(spans))], part) if protected else part for part in parts]


class _TokenCounter:
    """A counter of a text's tokens that caches the count of each word, since no token crosses a space."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.known: dict[str, int] = {}

    def count(self, text: str) -> int:
        """Return the number of tokens in a text: the sum of its words' cached counts; for one word, without cache."""
        words = text.split(" ")
        if len(words) == 1:
            return len(self.vocabulary.encode(text))
        return sum(map(self._count_word, words))

    def _count_word(self, word: str) -> int:
        count = self.known.get(word)
        if count is None:
            count = self.known[word] = len(self.vocabulary.encode(word))
        return count


def batches(
    parts: Sequence[Part],
    max_tokens: int,
    *,
    kind: Callable[[Part], tuple[int, ...]] = lambda part: (),  # noqa: ARG005
    max_sentences: int | None = None,
) -> Iterator[list[Part]]:
    """Yield batches, lists of parts of the same kind and similar source length, the longest first within a kind.

    Args:
        parts: the parts (sentences) to decode.
        max_tokens: maximum number of source tokens in a batch, with context and padding; a longer part forms its own
            batch.
        kind: returns a value for a part; parts with different values are never in one batch.
        max_sentences: maximum number of parts in a batch; None: no such limit.
    """
    batch: list[Part] = []
    for part in sorted(parts, key=lambda part: (kind(part), -len(part.source_ids))):
        fits = (len(batch) + 1) * len((batch or [part])[0].source_ids) <= max_tokens and len(batch) != max_sentences
        if batch and (not fits or kind(part) != kind(batch[0])):
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def join_sentences(
    texts: Sequence[SegmentedText],
    parts: Sequence[Part],
    found: Mapping[tuple[int, int], Translation],
    *,
    abandoned: Collection[int],
    search: SearchSettings,
) -> list[Translation]:
    """Join the translations of parts (sentences), and return one `Translation` for each whole text, in order.

    Args:
        texts: the segmented texts, in order.
        parts: the parts of all texts.
        found: translations by the parts' keys; a missing part counts as an empty translation that has not ended.
        abandoned: indices of texts that the observer stopped; their translations are marked as stopped.
        search: the search settings that the parts were translated with.
    """
    missing = Translation("", (empty_alternative(ended=False),))
    by_text: list[list[Translation]] = [[] for _ in texts]
    for part in parts:
        translation = found.get(part.key, missing)
        by_text[part.text_index].append(msgspec.structs.replace(translation, stopped=part.text_index in abandoned))
    sampled = search.sampling is not None
    return [
        join_parts(segmented, translations, n_best=search.n_best, sampled=sampled)
        for segmented, translations in zip(texts, by_text, strict=True)
    ]


class PartsObserver:
    """An `Observer` of a batch of sentences that reports each step of the search to an observer of whole texts."""

    def __init__(
        self,
        observer: Observer | None,
        texts: Sequence[SegmentedText] = (),
        decode: Callable[[Part, list[int]], str] | None = None,
        hidden: Collection[tuple[int, int]] = (),
    ) -> None:
        """Wrap an observer of whole texts, which may be None.

        Args:
            observer: the observer of texts, which is called with indices of texts; None: steps are not reported.
            texts: the texts that the parts (sentences) of the batches belong to.
            decode: returns the text of a part's first target tokens; None: no partial texts are reported.
            hidden: keys of parts whose text changes after the search (such as by glossary terms), so partial texts are
                not reported.
        """
        self.observer = observer
        self.abandoned: set[int] = set()  # indices of texts
        self.batch: Sequence[Part] = ()
        self._texts = texts
        self._decode = decode
        self._hidden = hidden
        self._found: dict[tuple[int, int], str] = {}
        self._drafts: dict[tuple[int, int], tuple[str, str]] = {}

    def waiting(self, batch: Sequence[Part]) -> list[Part]:
        """Return the parts of `batch` whose texts the observer has not stopped, as a list to decode next.

        The list is stored, so that `after_step` knows the part of each batch index.
        """
        self.batch = [part for part in batch if part.text_index not in self.abandoned]
        return self.batch

    def after_step(self, rows: Tensor, tokens: Tensor) -> Collection[int]:
        """Report a decoding step to the observer of texts; return the batch indices of parts whose texts it stopped.

        `rows` (B,) are the batch indices of unfinished parts, and `tokens` (B, W, t) their W hypotheses. A
        `TextObserver` also gets the text so far, if a text has several parts or layout. Without an observer, nothing
        stops.
        """
        if self.observer is None:
            return ()
        sentences = rows.new_tensor([self.batch[row].text_index for row in rows.tolist()])
        self.abandoned.update(self.observer.after_step(sentences, tokens))
        if isinstance(self.observer, TextObserver) and self._decode is not None:
            self._report_texts(self.observer, self._decode, rows.tolist(), tokens)
        return [row for row, part in enumerate(self.batch) if part.text_index in self.abandoned]

    def finish(self, translations: Mapping[tuple[int, int], Translation]) -> None:
        """Record the text of each translated part of a finished batch by its key, to compose partial texts later.

        Hidden parts, and all parts if the observer takes no partial texts, are not recorded.
        """
        if isinstance(self.observer, TextObserver):
            self._found |= {key: each.text for key, each in translations.items() if key not in self._hidden}

    def _report_texts(
        self, observer: TextObserver, decode: Callable[[Part, list[int]], str], rows: Sequence[int], tokens: Tensor
    ) -> None:
        texts = set()
        for number, row in enumerate(rows):
            text, part = self.batch[row].key
            segmented = self._texts[text]
            is_whole = len(segmented.sentences) == 1 and not any(gap.text for gap in segmented.gaps)
            if is_whole or (text, part) in self._hidden:
                continue
            ids, certain = tokens[number, 0].tolist(), agreed_length(tokens[number])
            self._drafts[text, part] = decode(self.batch[row], ids[:certain]), decode(self.batch[row], ids)
            texts.add(text)
        for text in sorted(texts):
            observer.after_text(text, *self._compose(text))

    def _compose(self, text: int) -> tuple[str, str]:
        """Return two texts: the start of a translation that can no longer change, and that start followed by a draft.

        The start consists of the translated parts before the first unfinished one, and of the tokens on which all
        hypotheses of that part agree. The draft is the rest of that part's best hypothesis.
        """
        segmented, final = self._texts[text], ""
        writer = LayoutWriter(segmented)
        for part in range(len(segmented.sentences)):
            final += writer.next_gap()
            if (text, part) not in self._found:
                certain, draft = self._drafts.get((text, part), ("", ""))
                written = writer.write(certain)
                rest = draft.removeprefix(certain) if draft.startswith(certain) else ""
                return final + written, final + written + (rest if certain else writer.write(rest))
            final += writer.write(self._found[text, part])
        return final, final


# --- batches of similar length ---
# Similar lengths leave little padding in a batch.


def batch_token_budget(device: torch.device) -> int:
    """Return the maximum of padded source tokens times beam hypotheses in a batch: 2,048 on a CPU, else 32,768.

    On a CPU, a small batch stays in the cache. On a GPU, a step takes as long for few tokens as for many, so batches
    are large; their logits take about 200 MB.
    """
    return 2_048 if device.type == "cpu" else 32_768


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches, lists of the indices of texts with similar lengths, shortest texts first.

    Args:
        lengths: number of tokens in each text.
        max_tokens: maximum number of tokens in a batch, including padding; a longer text forms its own batch.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        if batch and lengths[index] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


_ENCODED_TOKENS = 8_192


def check_evaluation_mode(*models: nn.Module) -> None:
    """Refuse models in training mode, before results are computed by them.

    Raises:
        TransduceError: a model is in training mode, in which dropout makes its results random.
    """
    if any(model.training for model in models):
        raise TransduceError(
            "A model in training mode applies dropout, so its results are not reproducible: call `eval()` on it."
        )


@torch.inference_mode()
def encode_by_length(model: Encoder, rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Encode texts in batches of similar lengths; yield text indices, token ids (B, S) and states (B, S, D) of each.

    The padded token ids of a batch and the encoder's output states are tensors on the model's device.

    Args:
        model: an encoder.
        rows: the token ids of each text, with special tokens.

    Raises:
        TransduceError: the model is in training mode.
    """
    check_evaluation_mode(model)
    for batch in batches_by_length([len(row) for row in rows], _ENCODED_TOKENS):
        ids = pad([rows[index] for index in batch], model.config.pad_id, model.source_weight.device)
        yield batch, ids, encode_fast(model, ids)


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device, *, width: int = 0) -> Tensor:
    """Return sequences of token ids as an int64 tensor (B, S), padded on the right with `pad_id`.

    S is the length of the longest sequence, and at least `width`.
    """
    width = max(width, *(len(row) for row in rows))
    return torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], device=device)


# --- parallel batches ---
# Threads that share a batch synchronize several times in each layer; threads with their own batches do not
# (docs/results.md). The translations are the same either way.


_Batch = TypeVar("_Batch")
_Result = TypeVar("_Result")


def num_parallel_batches(models: Sequence[EncoderDecoder], search: SearchSettings) -> int:
    """Return how many batches to decode in parallel: the number of compute threads if compiled steps decode all models.

    The number is 1 if a model is decoded by other steps, which hold Python's GIL, or with `batch_invariant`.
    """
    are_compiled = all(select_decoder(model).backend == "compiled" for model in models)
    return torch.get_num_threads() if are_compiled and not search.batch_invariant else 1


def decode_in_parallel(
    decode: Callable[[_Batch], _Result], batches: Sequence[_Batch], threads: int
) -> Iterator[_Result]:
    """Decode batches in parallel threads, and yield the result of each batch, in order.

    Args:
        decode: decodes one batch.
        batches: batches of similar cost. The last ones, which would leave threads idle, are decoded one at a time, each
            with all threads.
        threads: number of batches to decode in parallel, each on a thread with one compute thread; 1: one after the
            other.
    """
    apart = len(batches) - len(batches) % threads if threads > 1 else 0
    if apart:
        num_threads = torch.get_num_threads()
        pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        try:
            # New threads have no context variables, such as the backend of a validation.
            context = copy_context()
            yield from pool.map(lambda batch: context.copy().run(decode, batch), batches[:apart])
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(num_threads)  # other new threads start with the last number set
    yield from map(decode, batches[apart:])
