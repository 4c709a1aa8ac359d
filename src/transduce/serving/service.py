"""What the protocols have in common: texts in some language → texts in another one, by whichever model does that."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from starlette.requests import Request

from transduce.errors import TransduceError
from transduce.inference.batching import is_unspaced
from transduce.inference.quality_estimation import QualityWarning, find_quality_warnings
from transduce.inference.translation import Translation
from transduce.search.settings import SearchSettings
from transduce.serving.batching import Engine
from transduce.serving.html_and_xml import Plan, plan
from transduce.serving.jobs import Job, Model, Translated
from transduce.serving.languages import AUTO, Detector, Routes
from transduce.serving.limits import ApiKeys, RateLimiter
from transduce.serving.messages import DetectedLanguage, PageSettings, Progress, invalid
from transduce.serving.metrics import Metrics
from transduce.serving.request_bodies import read_body, read_message
from transduce.serving.settings import ServingSettings
from transduce.text.glossary import Glossary
from transduce.text.languages import LanguageProfiles

_MOST_TERMS = 500  # of a request: they are looked at while others wait


class Wish(NamedTuple):
    """What is asked for."""

    texts: list[str]
    source: str
    target: str
    format: str = "text"
    alternatives: int = 0
    timeout_seconds: float | None = None
    """Where the client is in more of a hurry than the server's deadline."""
    doubts: bool = False
    glossary: Glossary | None = None
    """In place of the models' own; one without terms: no glossary at all."""

    def terms_of(self, model: Model) -> Glossary | None:
        """The glossary by which this model translates, if there is one."""
        chosen = model.glossary if self.glossary is None else self.glossary
        return chosen or None

    @property
    def characters(self) -> int:
        """Of all that it takes to grant it."""
        terms = () if self.glossary is None else self.glossary.terms
        return sum(map(len, self.texts)) + sum(len(text) for term in terms for text in (term.source, *term.targets))


class Answer(NamedTuple):
    """One text's translation."""

    text: str
    alternatives: list[str]
    source: str
    detected: DetectedLanguage | None
    """Where the source language was to be found out."""
    doubts: tuple[QualityWarning, ...] = ()
    """Of all its sentences, where they were asked for."""


class Task(NamedTuple):
    """One text on its way."""

    text: str
    plan: Plan
    model: Model | None
    source: str
    detected: DetectedLanguage | None


Report = Callable[[Progress], None]


class Service:
    """Translates and detects, for all protocols alike."""

    def __init__(
        self,
        models: Sequence[Model],
        settings: ServingSettings,
        *,
        profiles: LanguageProfiles | None = None,
        threads: int | None = None,
    ) -> None:
        """Nothing runs until the engine is started.

        Args:
            models: at least one, each for another pair of languages.
            settings: the limits.
            profiles: of all languages, by which texts are told apart.
            threads: to compute with; None: as many as PyTorch is set to.

        Raises:
            TransduceError: two models are for the same pair.
        """
        self.settings = settings
        self.metrics = Metrics()
        self.routes = Routes(models)
        self.detector = Detector(self.routes.codes, profiles)
        self.keys = ApiKeys(settings.api_keys)
        self.engine = Engine(settings, self.metrics, threads=threads)

    def page_settings(self) -> PageSettings:
        """What the page must know."""
        return PageSettings(
            pairs=self.routes.pairs,
            most_characters=self.settings.max_characters,
            most_alternatives=self.settings.max_alternatives,
            needs_key=self.keys.are_required,
        )

    async def translate(self, wish: Wish, gone: asyncio.Future[None], report: Report | None = None) -> list[Answer]:
        """Each text's translation, in order.

        Args:
            wish: what is asked for.
            gone: done when the client has gone.
            report: learns how far each line is, in the event loop.

        Raises:
            RequestError: the wish is not granted.
            ClientGoneError: the client went away first.
        """
        self._check_limits(wish)
        tasks = self._tasks(wish)
        self.metrics.characters.inc(sum(map(len, wish.texts)))
        models = list(dict.fromkeys(task.model for task in tasks if task.model is not None and task.plan.sentences))
        jobs = [self._job(model, tasks, wish, report) for model in models]
        found = await self.engine.decode(jobs, gone)
        translations = {id(model): iter(results) for model, results in zip(models, found, strict=True)}
        return [_answer(task, wish, translations.get(id(task.model), iter(()))) for task in tasks]

    def _check_limits(self, wish: Wish) -> None:
        limits, characters = self.settings, wish.characters
        if len(wish.texts) > limits.max_texts:
            raise invalid(f"request ({len(wish.texts)} texts) exceeds text limit ({limits.max_texts})")
        if characters > limits.max_characters:
            raise invalid(f"request ({characters}) exceeds text limit ({limits.max_characters} characters)")
        if wish.glossary is not None and len(wish.glossary) > _MOST_TERMS:
            raise invalid(f"glossary ({len(wish.glossary)} terms) exceeds limit ({_MOST_TERMS})")
        if wish.alternatives > limits.max_alternatives:
            raise invalid(f"alternatives ({wish.alternatives}) exceeds limit ({limits.max_alternatives})")

    def _tasks(self, wish: Wish) -> list[Task]:
        target = self.routes.find(wish.target)
        spaced = not is_unspaced(target)
        said = None if wish.source.lower() == AUTO else self.routes.find(wish.source)
        tasks = []
        for text in wish.texts:
            planned = plan(text, wish.format, spaced=spaced)
            detected = None if said else self._detect(planned, target)
            source = said or (detected.language if detected else target)
            tasks.append(Task(text, planned, self.routes.model(source, target), source, detected))
        return tasks

    def _detect(self, planned: Plan, target: str) -> DetectedLanguage:
        """The language of what is to be translated, among those that are translated to the target, and itself."""
        return self.detector.detect(" ".join(planned.sentences), self.routes.candidates(target))[0]

    def _job(self, model: Model, tasks: Sequence[Task], wish: Wish, report: Report | None) -> Job:
        """All sentences that one model is to translate."""
        places = [
            (index, line)
            for index, task in enumerate(tasks)
            if task.model is model
            for line in range(len(task.plan.sentences))
        ]
        sentences = [tasks[index].plan.sentences[line] for index, line in places]
        seconds, glossary = self.settings.deadline_seconds, wish.terms_of(model)
        search = with_alternatives(model.search, wish.alternatives)
        if wish.glossary is not None:
            _check_glossary(model, wish.glossary, search)
        return Job(
            model,
            sentences,
            search,
            seconds=min(seconds, wish.timeout_seconds or seconds),
            progress=None
            if report is None or wish.format == "html"
            else _reporter(model, places, report, _with_terms(sentences, glossary)),
            glossary=glossary,
            marks={
                number: tasks[index].plan.marks[line]
                for number, (index, line) in enumerate(places)
                if line in tasks[index].plan.marks
            },
        )


def _check_glossary(model: Model, glossary: Glossary, search: SearchSettings) -> None:
    try:
        model.check(glossary, search)
    except TransduceError as error:
        raise invalid(str(error)) from None


def with_alternatives(search: SearchSettings, alternatives: int) -> SearchSettings:
    """The beam is made wider where it holds too few hypotheses."""
    n_best = alternatives + 1
    if n_best == search.n_best:
        return search
    groups = search.diverse_groups
    beam_size = (
        search.beam_size if search.sampling is not None else max(search.beam_size, -(-n_best // groups) * groups)
    )
    return msgspec.structs.replace(search, n_best=n_best, beam_size=beam_size)


def _with_terms(sentences: Sequence[str], glossary: Glossary | None) -> frozenset[int]:
    """The numbers of those that have a term: they may be searched for twice, so nothing of them is certain before."""
    return frozenset(number for number, sentence in enumerate(sentences) if glossary and glossary.find(sentence))


def _reporter(
    model: Model, places: Sequence[tuple[int, int]], report: Report, silent: frozenset[int]
) -> Callable[[int, Sequence[int], int], None]:
    """Progress of a decoding thread, told to the event loop in text, but for the silent sentences."""
    loop = asyncio.get_running_loop()

    def progress(number: int, ids: Sequence[int], certain: int) -> None:
        if number in silent:
            return
        index, line = places[number]
        # A character may have only some of its bytes yet.
        text, draft = (model.text(part).rstrip("\ufffd") for part in (ids[:certain], ids))
        with contextlib.suppress(RuntimeError):  # the server has ended and so has its loop
            loop.call_soon_threadsafe(report, Progress(index=index, line=line, text=text, draft=draft))

    return progress


def _answer(task: Task, wish: Wish, translations: Iterator[Translated]) -> Answer:
    """A text's answer; its sentences' translations are the next ones."""
    if task.model is None:
        return Answer(task.text, [], task.source, task.detected)
    found = [next(translations) for _ in task.plan.sentences]
    best, *others = dict.fromkeys(_assemble(task.plan, found, rank) for rank in range(wish.alternatives + 1))
    doubts = _doubts([each.translation for each in found], task, wish, task.model) if wish.doubts else ()
    return Answer(best, others, task.source, task.detected, doubts)


def _doubts(translations: Iterable[Translation], task: Task, wish: Wish, model: Model) -> tuple[QualityWarning, ...]:
    """What speaks against a text's translations, one after the other."""
    return tuple(
        doubt
        for each in translations
        for doubt in find_quality_warnings(
            each,
            source_language=task.source,
            target_language=wish.target,
            unread=model.unread(each.source),
            glossary=wish.terms_of(model),
        )
    )


def _assemble(plan: Plan, found: Sequence[Translated], rank: int) -> str:
    """The text with each sentence's alternative of this rank; where there are fewer, with the best one."""
    ranks = [rank if rank < len(each.translation.alternatives) else 0 for each in found]
    texts = [each.translation.alternatives[own].text for each, own in zip(found, ranks, strict=True)]
    return plan.assemble(texts, {number: found[number].places[ranks[number]] for number in plan.marks})


# --- gate ---
# What a request passes before anything is done for it: the rate limit, room, the body's limits, its form, the key.


_Message = TypeVar("_Message")


class Gate:
    """The way in."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.limiter = RateLimiter(service.settings.client_rate)

    async def read(self, request: Request, message: type[_Message]) -> _Message:
        """What a client asks for that may ask, while there is room.

        Raises:
            RequestError: one of these is not so.
        """
        self.limiter.take(request.client.host if request.client else "")
        self.service.engine.check_room()
        return await self.read_message(request, message)

    async def read_message(self, request: Request, message: type[_Message]) -> _Message:
        """The same for what costs next to nothing to answer."""
        body = await read_body(request, self.service.settings)
        query = request.scope["query_string"].decode("latin-1")
        return read_message(body, request.headers.get("content-type", ""), query, message)

    def check_key(self, request: Request, said: str | None = None) -> None:
        """Raises RequestError where the key is missing or wrong."""
        self.service.keys.check(request.headers, said)


def watch(request: Request) -> asyncio.Future[None]:
    """Is done when the client has gone; the request's body must have been read. Cancel it in the end."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return asyncio.ensure_future(disconnected())
