"""Represent clients' requests as jobs: the sentences of one request for one model, which decoding threads decode."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, Self, TypedDict, Unpack, cast, runtime_checkable

import msgspec

from transduce.documents.markup import protected_spans
from transduce.inference.batching import Documents
from transduce.inference.translation import Translation
from transduce.search.scorer import Observer
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary
from transduce.text.text_settings import TextSettings
from transduce.text.word_spans import Span


class QueuedModel(Protocol):
    """An interface: what the queue of requests needs of a translation or language model."""

    search: SearchSettings
    """Search settings for requests that specify none."""

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        """Return a list with the number of tokens of each sentence (or prompt), including a sentence's end symbol."""

    @property
    def max_source_tokens(self) -> int:
        """The maximum number of tokens of a sentence, without the end symbol; longer ones are translated in parts."""


class JobOptions(TypedDict):
    """The keyword arguments of `Model.translate`, besides the sentences and the search settings."""

    indices: Sequence[int]
    """Index of each sentence in the client's request, on which the sentence's random draws depend."""
    observer: Observer
    """Called after every decoding step, with indices in the batch; it reports progress and drops sentences."""
    glossary: Glossary | None
    """Terms to use; None: none."""
    text_settings: TextSettings
    """How lines and texts are divided into sentences."""
    protected: Sequence[Sequence[Span]] | None
    """The spans of each sentence that translation must not change; None: placeholders, URLs and others that are found
    in the sentences."""
    documents: Documents | None
    """The documents that the sentences belong to, for a model that reads context; None: each is one."""


class Model(QueuedModel, Protocol):
    """An interface: what the server needs of a translation model for one language pair."""

    source_language: str
    """Code of the source language, as the model spells it."""
    target_language: str
    """Code of the target language, as the model spells it."""
    glossary: Glossary | None
    """Glossary for requests without a glossary; None: no terms."""
    context_before: int
    """The number of earlier sentences of a document that the model reads before each sentence; 0: none."""

    def check(self, glossary: Glossary, search: SearchSettings) -> None:
        """Refuse a glossary whose terms the model cannot write.

        Args:
            glossary: the terms.
            search: the search settings with which the glossary is to be used.

        Raises:
            TransduceError: a term is refused.
        """

    def translate(
        self, sentences: list[str], search: SearchSettings, **options: Unpack[JobOptions]
    ) -> list[Translation]:
        """Return a list with the translation of each item of a batch.

        Each item of `sentences` is a line or a text, which may have several sentences.
        """

    def is_plain_sentence(self, text: str, text_settings: TextSettings) -> bool:
        """Return whether a text is translated as one sentence, without layout around it or protected spans in it.

        The progress of such a text can be reported from its tokens alone while the translation grows.

        Args:
            text: the text.
            text_settings: how texts are divided into sentences, and what is protected.
        """

    def align_spans(
        self, translations: Sequence[Translation], spans: Sequence[Sequence[Span]], glossary: Glossary | None
    ) -> list[list[Span]]:
        """Locate spans of source sentences in the sentences' best translations.

        For example, the spans are the words in inline HTML elements.

        Args:
            translations: the translations of the sentences.
            spans: for each sentence, a sequence of spans of the source.
            glossary: the glossary that the translations were made with; None: none.

        Returns:
            For each translation, a list with the character span that corresponds to each source span.
        """

    def encode_target(self, text: str) -> list[int]:
        """Return the list of token ids of a text in the target language, without special tokens."""

    def decode_start(self, ids: Sequence[int], source: str) -> str:
        """Return the text of a translation's first tokens, formatted as at the start of the finished translation.

        Args:
            ids: the first token ids of the translation.
            source: the sentence that is translated.
        """

    def unknown_characters(self, sentence: str) -> str:
        """Return the characters of a source sentence that the vocabulary lacks, joined in order; "" without any."""


HypothesisCallback = Callable[[int, Sequence[int], int], None]
"""The type of a callback for a line's progress. It takes the line's index in the job, the token ids of the best
hypothesis so far, and the number of these ids that are final."""


@runtime_checkable
class TextProgress(Protocol):
    """A callback for the progress of lines, as token ids or as text.

    It receives token ids for a line that is one sentence, and text for a line with several sentences.
    """

    def __call__(self, number: int, ids: Sequence[int], certain: int) -> None:
        """Receive the progress of a line that is one sentence.

        Args:
            number: the line's index in its job.
            ids: the token ids of the line's best hypothesis so far.
            certain: how many of these ids are final, counted from the first.
        """

    def report_text(self, number: int, final: str, draft: str) -> None:
        """Receive the progress of a line with several sentences or layout.

        Args:
            number: the line's index in its job.
            final: the start of the line's translation, which does not change any more.
            draft: the translation so far, with the best guess for its rest.
        """


class ContinuousDecoder(Protocol):
    """A decoder of one batch that sentences (or prompts) of other requests may join after any step."""

    @property
    def free_texts(self) -> int:
        """The number of further hypotheses that the decoder can take.

        A sentence needs as many as its beam size. A prompt needs one for each requested sample.
        """

    def join(self, sentences: Sequence["JobSentence"]) -> None:
        """Add sentences (or prompts); the next steps decode them together with those that are being decoded."""

    def step(self) -> list[tuple["JobSentence", Any]]:
        """Run one decoding step, and return a list of pairs: each sentence that has finished, and its result."""

    def abandon(self, job: "Job") -> None:
        """Stop decoding the sentences of a job (a client's request), which then get no results."""


class AlignedTranslation(NamedTuple):
    """A sentence's translation, with the positions of the words of its inline HTML elements (marks)."""

    translation: Translation
    mark_spans: Sequence[Sequence[Span]] = ()
    """For each alternative translation, a list with the character span of each mark; empty if the sentence has no
    marks."""


class Job:
    """The sentences of one client's request for one model, with their results, deadline and settings.

    Several threads use a job. They may change it only while they hold the lock of the `Batcher`, the queue of all jobs.
    """

    may_overtake = True
    """True if a further thread may decode the job while all workers decode much longer batches."""
    is_sequential = False
    """True if the sentences are decoded in one batch, in order, without those of other jobs."""

    def __init__(self, model: QueuedModel, sentences: Sequence[str], search: SearchSettings, *, seconds: float) -> None:
        """Count the sentences' tokens and start the clock of the deadline.

        Args:
            model: the model to decode with.
            sentences: the sentences to decode.
            search: search settings.
            seconds: the server's time limit, counted from now.
        """
        self.model = model
        self.sentences = sentences
        self.search = search
        self.progress: HypothesisCallback | None = None
        """Called by the decoding thread after each step; None: no progress is reported."""
        self.accepted_at = time.monotonic()
        self.deadline = self.accepted_at + seconds
        self.timeout: float | None = None
        """The request's own time limit in seconds; None if the server's time limit is the deadline."""
        self.tokens = model.count_tokens(sentences)
        """Number of tokens of each sentence, including the end symbol."""
        self.total_tokens = sum(self.tokens)
        self.work = estimate_work([self.expected_steps(number) for number in range(len(sentences))])
        """The estimated work of decoding all sentences, in decoding steps times sentences."""
        # Longest first: a batch starts with the longest sentence and fills up with slightly shorter ones.
        self.waiting = sorted(range(len(sentences)), key=lambda index: -self.tokens[index])
        """Indices of the sentences that have not gone into a batch yet, the longest sentence first."""
        self.results: list[Any] = [None] * len(sentences)
        """Result of each sentence, or None until it is decoded."""
        self.num_batches = 0
        """Number of batches being decoded that contain sentences of this job."""
        self.started_at: float | None = None
        """Time (`time.monotonic`) at which the first sentence went into a batch; None before."""
        self.abandoned = False
        """True once no client waits for the results."""
        self.future: Future[list[Any]] = Future()
        """Future of the results of all sentences, or of an error, on which the request waits."""
        # A running future cannot be canceled, so a worker may always set its result, even if the client has gone.
        self.future.set_running_or_notify_cancel()

    def limit(self, timeout: float | None) -> Self:
        """Shorten the deadline to the request's own time limit, and return this job.

        Args:
            timeout: the limit in seconds since the request was accepted. None, or a limit that is longer than the
                server's, has no effect.
        """
        if timeout is not None and self.accepted_at + timeout < self.deadline:
            self.deadline, self.timeout = self.accepted_at + timeout, timeout
        return self

    @property
    def is_expired(self) -> bool:
        """True if no client waits for the answer any more, because it was abandoned or its deadline passed."""
        return self.abandoned or time.monotonic() >= self.deadline

    def expected_steps(self, number: int) -> int:
        """Return the expected number of decoding steps of the sentence at index `number`, to estimate the job's work.

        It is the sentence's number of tokens, unless a subclass overrides it.
        """
        return self.tokens[number]

    def is_compatible_with(self, other: "Job") -> bool:
        """Return whether sentences of this job and of another may be decoded in one batch.

        The model and the search settings must be the same. A sequential job shares no batch.
        """
        if self.is_sequential or other.is_sequential:
            return self is other
        return self.model is other.model and self.search == other.search

    def continuous_decoder(self) -> ContinuousDecoder | None:
        """Return a decoder for a batch that sentences of other jobs may join later.

        The result is None for a job whose batches are decoded as a whole by `decode`.
        """
        return None

    def can_join(self, other: "Job") -> bool:  # noqa: ARG002
        """Return whether this job's sentences may join a batch that another job's continuous decoder decodes.

        The result is False for a job whose batches are decoded as a whole.
        """
        return False

    def decode(self, batch: Sequence["JobSentence"], observer: Observer) -> list[Any]:
        """Decode a batch, and return a list with the result of each sentence, in order.

        A job with a continuous decoder does not need this method.

        Args:
            batch: sentences of this job and of jobs that are compatible with it.
            observer: called after every decoding step; it reports progress and drops sentences.
        """
        raise NotImplementedError


_FIXED_COST = 4  # of a decoding step, in sentences


def estimate_work(steps: Sequence[int]) -> int:
    """Return the estimated work of decoding sentences in one batch, in units of one decoding step of one sentence.

    It is the sum of all sentences' steps, plus four times the longest sentence's steps for the fixed cost of a step. It
    is 0 without sentences.

    Args:
        steps: number of decoding steps of each sentence.
    """
    return sum(steps) + _FIXED_COST * max(steps, default=0)


class JobSentence(NamedTuple):
    """A reference to one sentence of a job (a client's request), by its index."""

    job: Job
    number: int

    @property
    def sentence(self) -> str:
        """The text of the sentence."""
        return self.job.sentences[self.number]

    @property
    def tokens(self) -> int:
        """The number of tokens of the sentence, including the end symbol."""
        return self.job.tokens[self.number]

    @property
    def steps(self) -> int:
        """The expected number of decoding steps of the sentence, by which work is estimated."""
        return self.job.expected_steps(self.number)


class TranslationJob(Job):
    """A job of the queue with the sentences of a request for translation."""

    model: Model

    def __init__(
        self,
        model: Model,
        sentences: Sequence[str],
        search: SearchSettings,
        *,
        seconds: float,
        glossary: Glossary | None = None,
        text_settings: TextSettings = TextSettings(),  # noqa: B008 - immutable
        marks: Mapping[int, Sequence[Span]] | None = None,
        elements: Mapping[int, Sequence[Span]] | None = None,
    ) -> None:
        """Count the sentences' tokens and start the clock of the deadline.

        Args:
            model: the model to translate with.
            sentences: the sentences to translate.
            search: search settings.
            seconds: the server's time limit, counted from now.
            glossary: terms to use in the translation; None: none.
            text_settings: how each item of `sentences`, which is a line or a text, is divided into sentences.
            marks: character spans of inline HTML elements, which are located in the translation, by the index of their
                sentence.
            elements: character spans of protected HTML elements, which the translation must not change, by the index of
                their sentence.
        """
        super().__init__(model, sentences, search, seconds=seconds)
        self.glossary = glossary
        self.text_settings = text_settings
        self.marks = marks or {}
        self.elements = elements or {}
        self.documents: Documents | None = None
        """The documents that the sentences belong to, for a model that reads context, set by `keep_together`; None:
        each sentence is translated by itself."""

    def keep_together(self, documents: Documents) -> None:
        """Translate the sentences as parts of documents: in order, in one batch, without other jobs.

        Args:
            documents: the documents that the sentences belong to; earlier sentences are context of later ones.
        """
        self.documents, self.is_sequential = documents, True

    def is_compatible_with(self, other: Job) -> bool:
        """Return whether sentences of this job and of another may be translated in one batch.

        The model and the settings of search, glossary and texts must be the same. A job with documents, whose sentences
        are context of others, shares no batch.
        """
        return (
            isinstance(other, TranslationJob)
            and super().is_compatible_with(other)
            and self.glossary is other.glossary
            and self.text_settings == other.text_settings
        )

    def decode(self, batch: Sequence["JobSentence"], observer: Observer) -> list[Any]:
        """Translate a batch, and return a list with an `AlignedTranslation` of each sentence, in order.

        Args:
            batch: sentences of this job and of jobs that are compatible with it.
            observer: called after every decoding step; it reports progress and drops sentences.
        """
        sentences, indices = [entry.sentence for entry in batch], [entry.number for entry in batch]
        jobs = [cast(TranslationJob, entry.job) for entry in batch]
        marks, elements = (
            [spans.get(number, ()) for spans, number in zip(each, indices, strict=True)]
            for each in ([job.marks for job in jobs], [job.elements for job in jobs])
        )
        protected = None
        if any(elements):
            protected = [
                protected_spans(text, spans, self.text_settings)
                for text, spans in zip(sentences, elements, strict=True)
            ]
        translations = self.model.translate(
            sentences,
            self.search,
            indices=indices,
            observer=observer,
            glossary=self.glossary,
            text_settings=self.text_settings,
            protected=protected,
            documents=self.documents,
        )
        return [
            # Locating marks is slow, so it is left out if no client waits.
            AlignedTranslation(
                translation, self._align_marks(translation, spans) if spans and not job.is_expired else ()
            )
            for job, translation, spans in zip(jobs, translations, marks, strict=True)
        ]

    def _align_marks(self, translation: Translation, marks: Sequence[Span]) -> list[list[Span]]:
        """Locate a sentence's inline HTML elements (marks) in each alternative translation.

        Args:
            translation: the sentence's translation.
            marks: the character spans of the elements' words in the source sentence.

        Returns:
            For each alternative, a list with the character span of each mark.
        """
        single_alternatives = [
            msgspec.structs.replace(translation, alternatives=(alternative,))
            for alternative in translation.alternatives
        ]
        return self.model.align_spans(single_alternatives, [marks] * len(single_alternatives), self.glossary)


class FunctionJob(Job):
    """A job of the queue that runs a function, such as an inspection, on a decoding thread.

    The job is alone in its batch.
    """

    may_overtake = False
    is_sequential = True

    def __init__(
        self,
        model: QueuedModel,
        sentence: str,
        search: SearchSettings,
        *,
        seconds: float,
        work: Callable[[Observer], Any],
    ) -> None:
        """Create a job whose only result is what a function returns.

        Args:
            model: the model that the function uses, which counts the sentence's tokens.
            sentence: the sentence that the function works on; the job's work is estimated by its number of tokens.
            search: search settings.
            seconds: the server's time limit, counted from now.
            work: the function, called on a decoding thread with the observer of a search.
        """
        super().__init__(model, [sentence], search, seconds=seconds)
        self._work = work

    def decode(self, batch: Sequence["JobSentence"], observer: Observer) -> list[Any]:  # noqa: ARG002
        """Run the job's function with the observer, and return a list with its result, the only one of the batch."""
        return [self._work(observer)]
