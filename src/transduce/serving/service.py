"""Translate the texts of requests of all APIs: divide them into sentences, choose the model, decode and assemble."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from transduce.documents.formats import read_document
from transduce.documents.limits import Limits
from transduce.documents.markup import MarkupPlan, join_plans, markup_plan, plan_text, with_source_language
from transduce.documents.markup_tokens import MarkupSettings
from transduce.documents.translate import UNIT_MARKUP
from transduce.documents.units import DocumentSettings
from transduce.errors import TransduceError
from transduce.inference.batching import Documents
from transduce.inference.generator import Continuation
from transduce.inference.quality_estimation import QualityWarning, describe_wrong_language, find_quality_warnings
from transduce.inference.translation import Alternative
from transduce.search.settings import SearchSettings
from transduce.serving.batching import Engine, call_in_loop
from transduce.serving.glossaries import GlossaryStore
from transduce.serving.jobs import AlignedTranslation, Model, TranslationJob
from transduce.serving.languages import AUTO, Detector, Routes
from transduce.serving.limits import ApiKeys
from transduce.serving.messages import (
    DetectedLanguage,
    LineProgress,
    PageSettings,
    check_characters,
    invalid_request,
    refusing_errors,
)
from transduce.serving.metrics import Metrics
from transduce.serving.models import ServedGenerator
from transduce.serving.settings import ServingSettings
from transduce.text.glossary import Glossary
from transduce.text.languages import (
    LanguageProfiles,
    common_profiles,
    is_long_enough,
    is_unspaced_language,
    merge_profiles,
    sentence_script,
)
from transduce.text.text_settings import TextSettings

_MAX_CHECKED_CHARACTERS = 2000  # of a text whose language is checked
_MAX_WARNINGS = 3  # in a header
_MAX_TERMS = 500  # in a request's glossary, which the event loop searches while other requests wait


TextFormat = Literal["text", "html", "xml", "markdown"]


class TranslationRequest(NamedTuple):
    """A request to translate texts, in a form that is the same for all APIs."""

    texts: list[str]
    source: str
    """A language code as the client spells it, or `auto` to detect the language of each text."""
    target: str
    """A language code as the client spells it."""
    format: TextFormat = "text"
    alternatives: int = 0
    """The number of translations of each text besides the best one."""
    timeout_seconds: float | None = None
    """The client's own time limit, which can only shorten the server's deadline; None: the server's."""
    quality_warnings: bool = False
    """True if the client asks for quality warnings."""
    glossary: Glossary | None = None
    """Glossary that replaces the models' own glossaries; if it is empty, no terms are used. None: the models' own."""
    text_settings: TextSettings = TextSettings()
    """Settings of the texts: how they are divided into sentences."""
    with_tokens: bool = False
    """True if the answers contain the tokens of the translations."""
    markup: MarkupSettings | None = None
    """Settings of how texts in HTML or XML are divided, and which elements stay unchanged; None: defaults."""
    is_document: bool = False
    """True for consecutive texts of an uploaded document, which has limits of its own."""
    before: Sequence[tuple[str, str]] = ()
    """Context before the first text of the request: pairs of an earlier text and its translation or, in a conversation,
    the answer to it. Models that read no context ignore the pairs."""

    def glossary_for(self, model: Model) -> Glossary | None:
        """Return the glossary for a model: the request's, or the model's own if the request has none.

        The result is None if there is no glossary, or if the glossary has no terms.
        """
        chosen = model.glossary if self.glossary is None else self.glossary
        return chosen or None

    @property
    def characters(self) -> int:
        """The number of characters in the texts, their context (`before`) and the request's own glossary."""
        terms = () if self.glossary is None else self.glossary.terms
        others = sum(len(text) for term in terms for text in (term.source, *term.targets))
        return sum(map(len, self.texts)) + others + sum(len(text) for turn in self.before for text in turn)


class TokenProbability(NamedTuple):
    """A token of a translation or of generated text, with its log-probability."""

    text: str
    """The text that the token adds, with the space before a word."""
    log_probability: float
    """The model's log-probability of the token, in nats."""


class Answer(NamedTuple):
    """The translation of one text, with the additional results that the request asked for."""

    text: str
    """The best translation."""
    alternatives: list[str]
    """Other translations, the best first; without duplicates, unless the model's search samples."""
    source: str
    """Canonical code of the source language, named or detected."""
    detected: DetectedLanguage | None
    """The detected source language with its confidence; None if the request named the language."""
    quality_warnings: tuple[QualityWarning, ...] = ()
    """Quality warnings for all sentences of the text; empty if the request did not ask for them."""
    language_warning: str | None = None
    """A reason such as "looks English, not German" if the text seems to be in another language; else None."""
    tokens: tuple[TokenProbability, ...] = ()
    """The tokens of the best translation with log-probabilities; empty if the request did not ask for them."""
    is_complete: bool = True
    """False if the model's maximum length truncated the translation."""
    alternative_tokens: tuple[tuple[str, ...], ...] = ()
    """The token texts of each alternative translation; empty if the request did not ask for them."""
    complete_alternatives: tuple[bool, ...] = ()
    """For each alternative, False if the model's maximum length truncated it."""


class PlannedText(NamedTuple):
    """A text of a request that is prepared for translation: divided into sentences, with its model and language."""

    text: str
    plan: MarkupPlan
    """The sentences (or lines) to translate, with a function that assembles the translated text from their
    translations."""
    model: Model | None
    """The model that translates the text; None if the text is in the target language already."""
    source: str
    """Canonical code of the source language."""
    detected: DetectedLanguage | None
    """The detected source language with its confidence; None if the request named the language."""


Report = Callable[[LineProgress], None]


class ModelCatalog(NamedTuple):
    """The models and API keys of a server, which it can load again while it runs."""

    models: Sequence[Model]
    """Translation models, each for a different language pair."""
    generators: Sequence[ServedGenerator] = ()
    """Language models, each with a different name."""
    profiles: LanguageProfiles | None = None
    """Language profiles of the models for language detection; None: only those of the package."""
    api_keys: Sequence[str] | None = None
    """Valid API keys; if there are none, requests need no key. None: the keys of the server's settings."""


class Served(NamedTuple):
    """The translation models of a server, all of which are replaced when the server loads its models again."""

    routes: Routes
    """The models by their language pairs."""
    detector: Detector
    """The detector of the languages that the models read and write."""


class Service:
    """The part of a server that all APIs share: its models, settings, glossaries and decoding threads.

    It translates texts; the APIs only convert requests and answers.
    """

    def __init__(self, catalog: ModelCatalog, settings: ServingSettings, *, threads: int | None = None) -> None:
        """Set up the service; nothing runs until the decoding threads of its engine are started.

        Args:
            catalog: the models and API keys until they are replaced by `use`.
            settings: the server's settings, with all limits.
            threads: compute threads of all decoding threads together; None: PyTorch's current number.

        Raises:
            TransduceError: two models have the same language pair or the same name, or the folder of glossaries cannot
                be used.
        """
        self.settings = settings
        self.metrics = Metrics()
        self.use(catalog)
        self.glossaries = GlossaryStore(None if settings.glossary_folder is None else Path(settings.glossary_folder))
        self.engine = Engine(settings, self.metrics, threads=threads)

    def use(self, catalog: ModelCatalog) -> None:
        """Use the models, language profiles and API keys of a catalog for all further requests.

        Requests that have been accepted keep their models.

        Raises:
            TransduceError: two models have the same language pair or the same name.
        """
        routes = Routes(catalog.models)
        generators = {generator.name: generator for generator in catalog.generators}
        if len(generators) < len(catalog.generators):
            raise TransduceError("Two language models have the same folder name: rename one of the folders.")
        known = [common_profiles()] if catalog.profiles is None else [catalog.profiles, common_profiles()]
        self.served = Served(routes, Detector(routes.codes, merge_profiles(known)))
        self.generators = generators
        """Language models by the name of their folder."""
        self.keys = ApiKeys(self.settings.api_keys if catalog.api_keys is None else catalog.api_keys)

    @property
    def routes(self) -> Routes:
        """The translation models that new requests are answered with, by their language pairs."""
        return self.served.routes

    @property
    def detector(self) -> Detector:
        """The detector of the languages that the models of `routes` read and write."""
        return self.served.detector

    def page_settings(self) -> PageSettings:
        """Return the settings that the server writes into its web page: languages, example sentences and limits."""
        return PageSettings(
            pairs=self.routes.pairs,
            samples=self.routes.samples,
            max_characters=self.settings.max_characters,
            max_alternatives=self.settings.max_alternatives,
            needs_key=self.keys.are_required,
        )

    async def translate(
        self,
        request: TranslationRequest,
        disconnected: asyncio.Future[None],
        report: Report | None = None,
        served: Served | None = None,
    ) -> list[Answer]:
        """Return a list with an `Answer`, the translation of one text, for each text of a request.

        Args:
            request: what the client asks for.
            disconnected: done once the client has disconnected.
            report: receives the progress of each line, in the event loop; None: no progress is reported.
            served: the models to translate with; None: those that new requests are answered with.

        Raises:
            RequestError: the request is invalid, exceeds a limit or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        if not request.is_document:
            self._check_limits(request)
        planned_texts = _plan_texts(request, served or self.served)
        self.metrics.characters.inc(sum(map(len, request.texts)))
        models = dict.fromkeys(planned.model for planned in planned_texts if planned.model and planned.plan.sentences)
        jobs = [self._job(model, planned_texts, request, report) for model in models]
        results = await self.engine.decode(jobs, disconnected)
        translations = dict(zip(models, map(iter, results), strict=True))
        return [_answer(planned, request, translations) for planned in planned_texts]

    def _check_limits(self, request: TranslationRequest) -> None:
        settings, characters = self.settings, request.characters
        if len(request.texts) > settings.max_texts:
            raise invalid_request(f"request ({len(request.texts)} texts) exceeds text limit ({settings.max_texts})")
        check_characters(characters, settings.max_characters)
        if request.glossary is not None and len(request.glossary) > _MAX_TERMS:
            raise invalid_request(f"glossary ({len(request.glossary)} terms) exceeds limit ({_MAX_TERMS})")
        if request.alternatives > settings.max_alternatives:
            raise invalid_request(f"alternatives ({request.alternatives}) exceeds limit ({settings.max_alternatives})")

    def _job(
        self, model: Model, planned_texts: Sequence[PlannedText], request: TranslationRequest, report: Report | None
    ) -> TranslationJob:
        """Return a job for the queue with all sentences of a request that one model translates.

        Args:
            model: the model.
            planned_texts: the texts of the request, divided into sentences.
            request: the request, with its options and time limit.
            report: receives the progress of each line; None, or a format other than plain text: nothing is reported.

        Raises:
            RequestError: the model cannot write the terms of the request's glossary.
        """
        positions = [
            (index, line)
            for index, planned in enumerate(planned_texts)
            if planned.model is model
            for line in range(len(planned.plan.sentences))
        ]
        plans = [(planned_texts[index].plan, line) for index, line in positions]
        sentences = [plan.sentences[line] for plan, line in plans]
        glossary = request.glossary_for(model)
        seconds, timeout = self.settings.deadline_seconds, request.timeout_seconds
        if request.is_document:  # no client set its `timeout_seconds`: they are what is left of the document's time
            seconds, timeout = timeout or self.settings.document_seconds, None
        search = with_alternatives(model.search, request.alternatives)
        if request.glossary is not None:
            with refusing_errors():
                model.check(request.glossary, search)
        job = TranslationJob(
            model,
            sentences,
            search,
            seconds=seconds,
            glossary=glossary,
            text_settings=request.text_settings,
            marks={number: plan.marks[line] for number, (plan, line) in enumerate(plans) if line in plan.marks},
            elements={
                number: plan.protected[line] for number, (plan, line) in enumerate(plans) if line in plan.protected
            },
        )
        if report is not None and request.format == "text":
            job.progress = _Reporter(job, positions, report)
        if model.context_before and (request.before or len(positions) > 1):
            continues = [
                line > 0 or (index > 0 and request.is_document) or (index == 0 and bool(request.before))
                for index, line in positions
            ]
            if any(continues):
                job.keep_together(Documents(continues, request.before))
        return job.limit(timeout)


def _plan_texts(request: TranslationRequest, served: Served) -> list[PlannedText]:
    """Return a list with a `PlannedText` for each text of a request: its sentences, its model and its language.

    Raises:
        RequestError: a language of the request is not served, or no served language fits a text.
    """
    routes, target = served.routes, served.routes.find(request.target)
    spaced = not is_unspaced_language(target)
    requested_source = None if request.source.lower() == AUTO else routes.find(request.source)
    plans = [_plan(text, request, spaced=spaced) for text in request.texts]
    texts_by_script = _texts_by_script(plans) if requested_source is None else {}
    planned_texts = []
    for text, text_plan in zip(request.texts, plans, strict=True):
        detected = None if requested_source else _identify(text_plan, texts_by_script, target, served)
        source = requested_source or (detected.language if detected else target)
        planned_texts.append(PlannedText(text, text_plan, routes.model(source, target), source, detected))
    return planned_texts


def _identify(
    text_plan: MarkupPlan, texts_by_script: Mapping[str | None, str], target: str, served: Served
) -> DetectedLanguage:
    """Return the detected language of a text, with its confidence.

    A short text is judged together with the request's other texts of its script.

    Args:
        text_plan: the text, divided into sentences.
        texts_by_script: the request's texts joined by script.
        target: canonical code of the target language.
        served: the models, one of which must translate the language into the target.

    Raises:
        RequestError: no served language that is translated into the target fits the text.
    """
    text = " ".join(text_plan.sentences)
    if not is_long_enough(text):
        text = texts_by_script[sentence_script(text)]
    return served.routes.identify_source(text, target, served.detector)


def _texts_by_script(plans: Iterable[MarkupPlan]) -> dict[str | None, str]:
    """Return a dict from each script to all texts of a request in this script, joined to one text.

    The language of a short text is detected on the joined text of its script. The key None has the texts of all
    scripts, joined. It is for short texts without letters.
    """
    texts: dict[str | None, list[str]] = {None: []}
    for plan in plans:
        text = " ".join(plan.sentences)
        texts[None].append(text)
        if (script := sentence_script(text)) is not None:
            texts.setdefault(script, []).append(text)
    return {script: " ".join(each) for script, each in texts.items()}


def _plan(text: str, request: TranslationRequest, *, spaced: bool) -> MarkupPlan:
    """Return a plan for the translation of a request's text, divided by its format into lines or other units.

    Args:
        text: the text.
        request: the request, with the format and the settings of markup and lines.
        spaced: the target language puts spaces between words.

    Returns:
        The units, with the function that assembles the translated text from their translations.
    """
    source = None if request.source.lower() == AUTO else request.source
    if request.format == "text":
        return plan_text(text, joins_lines=request.text_settings.lines == "join")
    if request.format == "markdown":
        return _plan_document(text, "text.md", source, spaced=spaced)
    settings = request.markup or MarkupSettings(kind=request.format)
    return markup_plan(text, with_source_language(settings, source), spaced=spaced)


def _plan_document(text: str, name: str, source: str | None, *, spaced: bool) -> MarkupPlan:
    """Return a plan for the translation of a text document, such as Markdown.

    Args:
        text: the content of the document.
        name: a file name, whose suffix shows the format.
        source: code of the source language; None: unknown.
        spaced: the target language puts spaces between words.

    Returns:
        The units of text to translate, with the function that assembles the translated document from their
        translations.

    Raises:
        TransduceError: the package that reads the format is not installed, or the text cannot be read.
    """
    document = read_document(name, text.encode("utf-8", "surrogatepass"), DocumentSettings(), Limits())
    plans = [
        plan_text(unit.text)
        if unit.kind == "text"
        else markup_plan(unit.text, with_source_language(UNIT_MARKUP[unit.kind], source), spaced=spaced)
        for unit in document.units
    ]
    return join_plans(plans, lambda texts: document.write(texts).decode("utf-8", "surrogatepass"))


def with_alternatives(search: SearchSettings, alternatives: int) -> SearchSettings:
    """Return search settings that find a number of alternatives besides the best translation of a sentence.

    The settings are a copy of `search` with another number of results and, if necessary, a wider beam. Settings that
    already find this number are returned unchanged.

    Args:
        search: the settings to change.
        alternatives: number of translations besides the best.
    """
    n_best = alternatives + 1
    if n_best == search.n_best:
        return search
    groups = search.diverse_groups
    beam_size = (
        search.beam_size if search.sampling is not None else max(search.beam_size, -(-n_best // groups) * groups)
    )
    return msgspec.structs.replace(search, n_best=n_best, beam_size=beam_size)


class _Reporter:
    """A job's progress callback, which passes the growing text of each line from decoding threads to the event loop."""

    def __init__(self, job: TranslationJob, positions: Sequence[tuple[int, int]], report: Report) -> None:
        """Create a reporter in a running event loop.

        Args:
            job: the job, whose sentences are lines. A line with a term of its glossary may be decoded twice, so nothing
                of it is reported before the end.
            positions: for each line, the index of its text in the request and the line's index in the text.
            report: receives the progress in the event loop.
        """
        self._job = job
        self._positions = positions
        self._report = report
        self._loop = asyncio.get_running_loop()
        glossary = job.glossary
        self._unreported = {number for number, line in enumerate(job.sentences) if glossary and glossary.find(line)}
        self._is_plain = [job.model.is_plain_sentence(line, job.text_settings) for line in job.sentences]

    def __call__(self, number: int, ids: Sequence[int], certain: int) -> None:
        """Report the progress of a line that is one plain sentence; other lines use `report_text`.

        Args:
            number: the line's index in its job.
            ids: the token ids of the line's best hypothesis so far.
            certain: how many of these ids do not change any more.
        """
        if self._is_plain[number]:
            model, line = self._job.model, self._job.sentences[number]
            self._put(number, model.decode_start(ids[:certain], line), model.decode_start(ids, line))

    def report_text(self, number: int, final: str, draft: str) -> None:
        """Report the progress of a line that has several sentences, layout around its text, or protected spans.

        Args:
            number: the line's index in its job.
            final: the start of the line's translation, which does not change any more.
            draft: the translation so far, with the best guess for its rest.
        """
        if not self._is_plain[number]:
            self._put(number, final, draft)

    def _put(self, number: int, text: str, draft: str) -> None:
        index, line = self._positions[number]
        if number not in self._unreported:
            call_in_loop(self._loop, self._report, LineProgress(index=index, line=line, text=text, draft=draft))


def _answer(
    planned: PlannedText, request: TranslationRequest, translations: Mapping[Model, Iterator[AlignedTranslation]]
) -> Answer:
    """Return the answer for one text of a request, from the translations of its sentences.

    A text that is in the target language already has no model. Its answer is the text itself.

    Args:
        planned: the text, divided into sentences.
        request: the request, with the results that the client asks for.
        translations: for each model, an iterator over the translations of all sentences that the model translated, in
            order. The translations of this text are taken from the iterator of its model.
    """
    if planned.model is None:
        return Answer(planned.text, [], planned.source, planned.detected)
    source_text = " ".join(planned.plan.sentences)[:_MAX_CHECKED_CHARACTERS]
    wrong = describe_wrong_language(source_text, planned.source) if planned.detected is None else None
    sentence_translations = [next(translations[planned.model]) for _ in planned.plan.sentences]
    translations_of_lines = [translated.translation for translated in sentence_translations]
    texts = [_assemble(planned.plan, sentence_translations, rank) for rank in range(request.alternatives + 1)]
    # Equal alternatives of a search are one, but samples are as many as were drawn.
    is_sampled = planned.model.search.sampling is not None
    ranks = [rank for rank, text in enumerate(texts) if is_sampled or text not in texts[:rank]]
    best, *alternatives = (texts[rank] for rank in ranks)
    quality_warnings = tuple(
        warning
        for translation in translations_of_lines
        if request.quality_warnings
        for warning in find_quality_warnings(
            translation,
            source_language=planned.source,
            target_language=request.target,
            unknown_characters=planned.model.unknown_characters(translation.source),
            glossary=request.glossary_for(planned.model),
        )
    )
    # The tokens of several sentences in a line are known for each of them.
    chosen = [each.alternatives[0] for line in translations_of_lines for each in (line.sentences or (line,))]
    tokens = token_probabilities(chosen) if request.with_tokens else ()
    is_complete = all(alternative.ended for alternative in chosen)
    others = [
        [each.alternatives[rank if rank < len(each.alternatives) else 0] for each in translations_of_lines]
        for rank in ranks[1:]
    ]
    return Answer(
        best,
        alternatives,
        planned.source,
        planned.detected,
        quality_warnings,
        wrong,
        tokens,
        is_complete,
        alternative_tokens=tuple(
            tuple(_shown_token(token) for line in lines for token in line.tokens) if request.with_tokens else ()
            for lines in others
        ),
        complete_alternatives=tuple(all(line.ended for line in lines) for lines in others),
    )


def _shown_token(token: str) -> str:
    """Return a token's text, with a space in place of sentencepiece's `▁`."""
    return token.replace("▁", " ")


def token_probabilities(texts: Iterable[Alternative | Continuation]) -> tuple[TokenProbability, ...]:
    """Return a tuple of the tokens of translations or generated texts, one after the other, with log-probabilities.

    End symbols are left out.
    """
    return tuple(
        TokenProbability(_shown_token(token), log_probability)
        for text in texts
        # Behind the tokens, an ended text has the log-probability of its end symbol.
        for token, log_probability in zip(text.tokens, text.token_log_probabilities, strict=False)
    )


def _assemble(plan: MarkupPlan, sentence_translations: Sequence[AlignedTranslation], rank: int) -> str:
    """Return one translation of a text, made of the alternatives of its sentences at the same rank.

    Args:
        plan: holds the function that assembles the text, and the spans of tags and protected elements that it needs.
        sentence_translations: the translations of the text's sentences.
        rank: rank of the alternatives, from 0; a sentence that has fewer contributes its best.
    """
    ranks = [rank if rank < len(translated.translation.alternatives) else 0 for translated in sentence_translations]
    texts = [
        translated.translation.alternatives[sentence_rank].text
        for translated, sentence_rank in zip(sentence_translations, ranks, strict=True)
    ]
    return plan.assemble(
        texts,
        {number: sentence_translations[number].mark_spans[ranks[number]] for number in plan.marks},
        {number: sentence_translations[number].translation.protected for number in plan.protected},
    )


def language_warnings(answers: Sequence[Answer]) -> list[str]:
    """Return a list of warnings, one for each text that seems not to be in the language that the request names.

    Texts whose language was detected have none.
    """
    return [
        describe_warning(number, answer.language_warning)
        for number, answer in enumerate(answers, 1)
        if answer.language_warning is not None
    ]


def warning_headers(answers: Sequence[Answer]) -> dict[str, str]:
    """Return the HTTP header, as a dict, with warnings about texts in another language than the request names.

    The dict is empty without warnings. The header is for APIs whose responses have no field for warnings.
    """
    return warning_header(language_warnings(answers))


def language_headers(texts: Sequence[str], source: str) -> dict[str, str]:
    """Return the HTTP header, as a dict, that warns of texts in another language than the code `source` names.

    The dict is empty without warnings. No translations are needed, so a streamed response can begin with the header.
    """
    wrong = (describe_wrong_language(text[:_MAX_CHECKED_CHARACTERS], source) for text in texts)
    return warning_header([describe_warning(number, each) for number, each in enumerate(wrong, 1) if each is not None])


def describe_warning(number: int, warning: str) -> str:
    """Return the sentence that warns that a text seems to be in another language.

    Args:
        number: number of the text in the request, from 1.
        warning: the reason, such as "looks English, not German".
    """
    return f"Text {number} {warning}: its translation may be nonsense."


def warning_header(warnings: Sequence[str]) -> dict[str, str]:
    """Return the HTTP header `Transduce-Warning` with the first three warnings, as a dict; {} if there are none."""
    return {"Transduce-Warning": " ".join(warnings[:_MAX_WARNINGS])} if warnings else {}
