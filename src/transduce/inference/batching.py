"""Prepare sentences for decoding: tokenize them, add document context, batch them by length, decode in parallel."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import chain
from typing import Any, NamedTuple, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from transduce.acceleration import encode_fast, select_decoder
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.segmentation import SegmentedText
from transduce.model.build import EncoderDecoder
from transduce.model.transformer import Encoder
from transduce.model_folder.load import check_parts
from transduce.search.constraints import Phrase
from transduce.search.settings import SearchSettings
from transduce.text.sentences import find_sentences
from transduce.text.text_settings import TrainingLines
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import CONTEXT_SEPARATOR, Vocabulary, special_tokens_of
from transduce.text.word_spans import Span

# --- parts of texts ---


_PART_STRIDE = 999_999_937
"""A large number that, times a part's index within its text, is added to the text's index to seed sampling, so
that the parts of a text draw different random numbers.
"""


class History(NamedTuple):
    """The context of a sentence for a model that reads earlier sentences of the document, in token ids."""

    source: Sequence[int] = ()
    """Source token ids of earlier sentences of the document, each with a separator; empty: no context."""
    target: Sequence[int] = ()
    """Token ids of the translations of the earlier sentences, each with a separator; empty if the model does not read
    them.
    """


class TextPart(NamedTuple):
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
    history: History = History()
    """The context of the part: earlier sentences of the document that the model reads before the part."""

    @property
    def source_ids(self) -> list[int]:
        """A list of the token ids that the encoder reads: those of earlier sentences, then the part's own."""
        return [*self.history.source, *self.ids]

    @property
    def key(self) -> tuple[int, int]:
        """The pair that identifies the part in dicts of results: its text's index, and its index within the text."""
        return (self.text_index, self.sentence_index)

    @property
    def is_empty(self) -> bool:
        """True if the part contains nothing to translate: at most one token (the end symbol), or only whitespace."""
        return len(self.ids) < 2 or not self.text.strip()

    def seed_index(self, indices: Sequence[int] | None) -> int:
        """Return the index that seeds the random numbers with which this part (sentence of a text) is sampled.

        The result is the index of the text, plus the part's index within the text times a large constant. `indices`
        holds the index of each text in the whole input, so that a text is sampled alike in any batch. None means that
        the texts of this call are the whole input.
        """
        index = self.text_index if indices is None else indices[self.text_index]
        return index + self.sentence_index * _PART_STRIDE


def encode_parts(texts: Sequence[SegmentedText], vocabulary: Vocabulary) -> list[TextPart]:
    """Tokenize segmented texts; return a flat list with a `TextPart` for each sentence or part of a long sentence."""
    sentences = [
        (each, text, number) for text, segmented in enumerate(texts) for number, each in enumerate(segmented.sentences)
    ]
    encoded = vocabulary.encode_batch([each.text for each, _, _ in sentences])
    parts = []
    for (each, text, number), ids in zip(sentences, encoded, strict=True):
        special = vocabulary.with_special_tokens(ids) if ids else [vocabulary.eos_id]
        parts.append(TextPart(each.text, text, number, special, protected=each.protected))
    return parts


# --- document context ---
# Some models read earlier sentences of a document, and their translations, with each sentence.


class DocumentContext(NamedTuple):
    """The context that a model reads of a document: how many earlier sentences, and whether their translations, too."""

    before: int
    """Maximum number of earlier sentences of the document that are read with each sentence."""
    on_target: bool = False
    """True if the decoder also reads the translations of the earlier sentences, before it writes the next translation.
    """


class TrainedOptions(TypedDict, total=False):
    """Types of the keyword arguments of `Translator` that describe how the model was trained.

    The constructor of `Translator` explains the arguments.
    """

    training_lines: TrainingLines | None
    document_context: DocumentContext | None
    directions: Iterable[tuple[str, str]]


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

    def add_history(self, part: TextPart) -> TextPart:
        """Return a copy of a part (sentence) with the recorded sentences as context.

        The context includes the recorded translations, if the model reads them. The oldest sentences are left out until
        the source context and the part have at most `max_tokens` tokens, the maximum that the model reads. The
        translations may have at most half as many, so that the part's own translation fits, too.
        """
        sources, targets, max_tokens = self._sources, self._targets, self._max_tokens
        while sources and (
            sum(map(len, sources)) + len(part.ids) > max_tokens or sum(map(len, targets)) > max_tokens // 2
        ):
            sources, targets = sources[1:], targets[1:]
        return part._replace(history=History(tuple(chain(*sources)), tuple(chain(*targets))))

    def append(self, part: TextPart, translation: str = "") -> None:
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

    def append_text(self, parts: Sequence[TextPart], translation: str, target_language: str | None) -> None:
        """Record the parts (sentences) of a text, each with its translation.

        The text's translation is divided into sentences, one for each part in order. If the numbers of parts and
        sentences differ, the text and its translation are recorded as one sentence. The rules of `target_language`
        divide the translation; None: the language is unknown.
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
    """A provider of document context: for texts translated together, it gives each sentence the preceding sentences."""

    def __init__(
        self, memory: DocumentMemory | None, continues: Sequence[bool], *, is_sequential: bool = False
    ) -> None:
        """Create the provider for some texts.

        Args:
            memory: a record of the document's sentences before the first text; None: the model reads no context.
            continues: one boolean for each text: True if it continues the document of the text before it.
            is_sequential: True if the model also reads the translations of earlier sentences.
        """
        self._memory, self._continues = memory, continues
        self.is_sequential = is_sequential
        """True if the model reads translations of earlier sentences, so that the sentences of a document are translated
        in order.
        """

    def with_history(self, parts: Sequence[TextPart]) -> list[TextPart]:
        """Return a list of the parts (sentences), each with the preceding sentences of its document as context.

        The parts are unchanged if the model reads no context. They are also unchanged if the model reads the
        translations of the preceding sentences, because these do not exist yet; `waves` adds them.
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

    def waves(self, parts: Sequence[TextPart], translations: Mapping[tuple[int, int], Any]) -> Iterator[list[TextPart]]:
        """Yield lists of parts (sentences) that can be translated together, with their context.

        If the model reads translations as context, each list holds at most one sentence of a document. The caller must
        translate each list, and add the results to `translations`, before it asks for the next list. Otherwise, one
        list holds all parts unchanged.

        Args:
            parts: the parts of all texts, without empty ones, in order.
            translations: a mapping from the keys of parts to their translations (`Translation`) so far.
        """
        if self._memory is None or not self.is_sequential:
            yield list(parts)
            return
        chains = list[tuple[DocumentMemory, list[TextPart]]]()
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

    def _in_order(self, parts: Sequence[TextPart]) -> Iterator[tuple[bool, TextPart]]:
        """Yield a pair for each part (sentence): True if a document begins with the part, else False; and the part."""
        text = -1
        for part in parts:
            # Texts without parts may end a document, too.
            is_first = not all(self._continues[text + 1 : part.text_index + 1])
            text = max(text, part.text_index)
            yield is_first, part


def pair_histories(
    memory: DocumentMemory | None, tokenizer: Tokenizer, pairs: Iterable[tuple[str, str, bool]]
) -> Iterator[History]:
    """Yield the context (`History`) that a model reads for each sentence pair.

    The context is the same as in the translation of the documents that the pairs form.

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
        part = memory.add_history(TextPart(source, 0, 0, tokenizer.source.with_special_tokens(ids)))
        yield part.history
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

        `before` holds earlier texts with their translations, which are the start of the first line's document. If it is
        empty, a document begins with the first line.
        """
        follows = [bool(before), *(bool(line.strip()) for line in lines[:-1])]
        return cls([one and bool(line.strip()) for one, line in zip(follows, lines, strict=False)], before)


# --- batches of similar length ---
# Similar lengths leave little padding in a batch.


def batch_token_budget(device: torch.device) -> int:
    """Return the maximum of a batch's padded source tokens × hypotheses per sentence: 2,048 on a CPU, else 32,768.

    On a CPU, a small batch stays in the cache. On a GPU, a step takes as long for few tokens as for many, so batches
    are large; their logits take about 200 MB.
    """
    return 2_048 if device.type == "cpu" else 32_768


_Item = TypeVar("_Item")


def cut_batches(
    items: Iterable[_Item],
    lengths: Callable[[_Item], tuple[int, ...]],
    max_size: int,
    max_items: int | None = None,
    *,
    size: Callable[[tuple[int, ...]], int] = sum,
    kind: Callable[[_Item], Any] = lambda item: None,  # noqa: ARG005
) -> Iterator[list[_Item]]:
    """Divide items into batches of consecutive items, each as large as the limits allow, and yield the batches.

    Args:
        items: the items, in an order in which neighbors have similar lengths.
        lengths: returns the numbers of tokens of an item: one number for a text, or two for a source and its target.
        max_size: maximum of the padded size of a batch. This size is the number of items times the `size` of the
            greatest lengths in the batch. A larger item forms its own batch.
        max_items: maximum number of items in a batch; None: no such limit.
        size: returns the padded size of one item, given the greatest lengths in its batch; by default their sum.
        kind: returns a value for an item; items with different values are never in one batch.
    """
    batch: list[_Item] = []
    greatest: tuple[int, ...] = ()
    for item in items:
        own = lengths(item)
        padded = tuple(map(max, greatest, own)) if batch else own
        fits = (len(batch) + 1) * size(padded) <= max_size and len(batch) != max_items
        if batch and (not fits or kind(item) != kind(batch[0])):
            yield batch
            batch, padded = [], own
        batch.append(item)
        greatest = padded
    if batch:
        yield batch


def batches(
    parts: Sequence[TextPart],
    max_tokens: int,
    *,
    kind: Callable[[TextPart], tuple[int, ...]] = lambda part: (),  # noqa: ARG005
    max_sentences: int | None = None,
) -> Iterator[list[TextPart]]:
    """Yield batches: lists of parts that have the same kind and similar source lengths.

    Of each kind, the longest parts come first.

    Args:
        parts: the parts (sentences) to decode.
        max_tokens: maximum number of source tokens in a batch, with context and padding; a longer part forms its own
            batch.
        kind: returns a value for a part; parts with different values are never in one batch.
        max_sentences: maximum number of parts in a batch; None: no such limit.
    """
    order = sorted(parts, key=lambda part: (kind(part), -len(part.source_ids)))
    return cut_batches(order, lambda part: (len(part.source_ids),), max_tokens, kind=kind, max_items=max_sentences)


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches, lists of the indices of texts with similar lengths, shortest texts first.

    Args:
        lengths: number of tokens in each text.
        max_tokens: maximum number of tokens in a batch, including padding; a longer text forms its own batch.
    """
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    return cut_batches(order, lambda index: (lengths[index],), max_tokens)


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


@explain_wrong_types
class TextEncoder:
    """An encoder with its tokenizer, the base class of classifiers, taggers, fillers and embedders."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, *, length: int) -> None:
        check_parts(type(self).__name__, ("encoder",), (model,), tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.length = length
        self._special_tokens = special_tokens_of(tokenizer.source)

    def frame(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """Add special tokens to the token ids of each text, truncated so that at most `length` tokens remain in all."""
        return [self._special_tokens.frame(ids, self.length) for ids in rows]

    @torch.inference_mode()
    def _encode_by_length(self, rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Encode texts in batches of similar lengths; yield each batch as (text indices, token ids, states).

        The padded token ids (B, S) and the encoder's output states (B, S, D) are tensors on the model's device. `rows`
        are the token ids of each text, with special tokens.

        Raises:
            TransduceError: the model is in training mode.
        """
        check_evaluation_mode(self.model)
        for batch in batches_by_length([len(row) for row in rows], _ENCODED_TOKENS):
            ids = pad([rows[index] for index in batch], self.model.config.pad_id, self.model.source_weight.device)
            yield batch, ids, encode_fast(self.model, ids)


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
    """Return how many batches to decode in parallel.

    The result is the number of compute threads if compiled steps decode all models. It is 1 if other steps decode a
    model, because they hold Python's GIL. It is also 1 with `batch_invariant`.
    """
    are_compiled = all(select_decoder(model).backend == "compiled" for model in models)
    return torch.get_num_threads() if are_compiled and not search.batch_invariant else 1


def decode_in_parallel(
    decode: Callable[[_Batch], _Result], batches: Sequence[_Batch], threads: int
) -> Iterator[_Result]:
    """Decode batches in parallel threads, and yield the result of each batch, in order.

    Args:
        decode: decodes one batch.
        batches: batches of similar cost. If their number is not a multiple of `threads`, the last batches are decoded
            one at a time, each with all compute threads.
        threads: number of batches to decode in parallel, each in a thread of its own with one compute thread. 1: the
            calling thread decodes one batch after another. PyTorch's number of threads is restored afterwards.
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
