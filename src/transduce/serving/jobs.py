"""The sentences of one request on their way through the decoder."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import msgspec

from transduce.inference.translation import Translation
from transduce.search.scorer import Observer
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary
from transduce.text.word_spans import Span


class Model(Protocol):
    """What serving needs of a model."""

    source_language: str
    target_language: str
    search: SearchSettings
    """How it translates where a request says nothing."""
    glossary: Glossary | None
    """How it translates terms where a request brings none."""

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        """The pieces of each sentence, end symbol included."""

    @property
    def longest_source(self) -> int:
        """Pieces of the longest sentence that is translated in one part, without the end symbol."""

    def check(self, glossary: Glossary, search: SearchSettings) -> None:
        """Raises TransduceError where it cannot write what stands for a term, or not with this search."""

    def translate(
        self,
        sentences: list[str],
        search: SearchSettings,
        places: Sequence[int],
        observer: Observer,
        glossary: Glossary | None,
    ) -> list[Translation]:
        """Translations of a batch, in order. The observer sees every step, by the sentences' places in the list; what
        is drawn for a sentence depends on its place in its own request, which `places` has.
        """

    def locate(
        self, translations: Sequence[Translation], spans: Sequence[Sequence[Span]], glossary: Glossary | None
    ) -> list[list[Span]]:
        """Where parts of sentences are in the best alternatives of their translations."""

    def text(self, ids: Sequence[int]) -> str:
        """The target text that pieces spell."""

    def unread(self, sentence: str) -> str:
        """The characters of a source that no piece spells."""


# The place of a sentence in its request, the pieces of its best hypothesis so far, and how many of them are certain.
Progress = Callable[[int, Sequence[int], int], None]


class Translated(NamedTuple):
    """A sentence's translation, and where the marks of the sentence are in it."""

    translation: Translation
    places: Sequence[Sequence[Span]] = ()
    """In each alternative, the place of each mark; of none where nothing is marked."""


class Job:
    """What one request wants of a model: mostly, translations. The batcher's lock guards what changes."""

    def __init__(
        self,
        model: Model,
        sentences: Sequence[str],
        search: SearchSettings,
        *,
        seconds: float,
        progress: Progress | None = None,
        glossary: Glossary | None = None,
        marks: Mapping[int, Sequence[Span]] | None = None,
    ) -> None:
        """`seconds` from now the answer is of no use any more; `progress` is called by the decoding thread; `glossary`
        says how terms are translated, and `marks` which parts are to be found in the translation, by the sentences'
        numbers.
        """
        self.model = model
        self.sentences = sentences
        self.search = search
        self.progress = progress
        self.glossary = glossary
        self.marks = marks or {}
        self.accepted_at = time.monotonic()
        self.deadline = self.accepted_at + seconds
        self.tokens = model.count_tokens(sentences)
        self.total_tokens = sum(self.tokens)
        # The longest first, for they fill a batch best when they are its head.
        self.waiting = sorted(range(len(sentences)), key=lambda place: -self.tokens[place])
        self.results: list[Any] = [None] * len(sentences)
        self.in_batches = 0
        self.started_at: float | None = None
        self.abandoned = False
        self.future: Future[list[Any]] = Future()
        # Whoever waits may go away; that does not cancel what a worker is about to put here.
        self.future.set_running_or_notify_cancel()

    @property
    def is_late(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.abandoned or time.monotonic() >= self.deadline

    def goes_with(self, other: "Job") -> bool:
        """Whether sentences of both may be decoded together."""
        return self.model is other.model and self.search == other.search and self.glossary is other.glossary

    def decode(self, batch: Sequence["Place"], observer: Observer) -> list[Any]:
        """The results of some sentences, its own and those of jobs that go with it."""
        sentences, places = [place.sentence for place in batch], [place.number for place in batch]
        found = self.model.translate(sentences, self.search, places, observer, self.glossary)
        located: dict[int, list[list[Span]]] = {}
        for number, place in enumerate(batch):
            if place.marks and not place.job.is_late:  # what takes long is done for those alone who still wait
                located[number] = self._locate(found[number], place.marks)
        return [Translated(each, located.get(number, ())) for number, each in enumerate(found)]

    def _locate(self, translation: Translation, marks: Sequence[Span]) -> list[list[Span]]:
        """The places of the marks in each alternative."""
        each = [msgspec.structs.replace(translation, alternatives=(one,)) for one in translation.alternatives]
        return self.model.locate(each, [marks] * len(each), self.glossary)


class Place(NamedTuple):
    """A sentence of a job."""

    job: Job
    number: int

    @property
    def sentence(self) -> str:
        """Its text."""
        return self.job.sentences[self.number]

    @property
    def tokens(self) -> int:
        """Its length."""
        return self.job.tokens[self.number]

    @property
    def marks(self) -> Sequence[Span]:
        """Its parts that are to be found in the translation."""
        return self.job.marks.get(self.number, ())


class Study(Job):
    """A look into how one sentence is translated. It is a batch by itself."""

    def __init__(
        self,
        model: Model,
        sentence: str,
        search: SearchSettings,
        *,
        seconds: float,
        work: Callable[[Observer], Any],
    ) -> None:
        """`work` is done by a decoding thread; its result is the job's only one."""
        super().__init__(model, [sentence], search, seconds=seconds)
        self._work = work

    def goes_with(self, other: Job) -> bool:
        """It goes with nothing but itself."""
        return self is other

    def decode(self, batch: Sequence["Place"], observer: Observer) -> list[Any]:  # noqa: ARG002
        """The result of the work."""
        return [self._work(observer)]
