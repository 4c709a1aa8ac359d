"""Complete prompts for the APIs of OpenAI and Ollama: translation models translate, language models continue.

A translation model is named by its language pair, such as `zh-en`; a language model by its folder.
"""

import asyncio
import secrets
import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from transduce.inference.generator import Continuation, ContinuousGeneration, batch_settings
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.serving.batching import call_in_loop
from transduce.serving.jobs import ContinuousDecoder, Job, JobSentence, Model
from transduce.serving.messages import LineProgress, RequestError, invalid_request, refusing_errors
from transduce.serving.models import ServedGenerator
from transduce.serving.responses import EventFormatter, json_response, stream_response, watching_disconnect
from transduce.serving.service import (
    Answer,
    Report,
    Service,
    TokenProbability,
    TranslationRequest,
    language_headers,
    token_probabilities,
    warning_headers,
)
from transduce.serving.settings import ServingSettings

FinishReason = Literal["stop", "length"]
"""Reason why a completion ends: `stop` (it is complete or reached a stop sequence) or `length` (it was truncated)."""

_MAX_SHOWN = 64  # characters of an unknown model name that an error quotes
_SEEDS = 2**31
MAX_STOPS = 16
"""Maximum number of stop sequences in a request."""
_MAX_STOP_CHARACTERS = 500
_JOINER = "\u200d"  # joins emoji to one
_SKIN_TONES = "🏻🏼🏽🏾🏿"
_LATEST = ":latest"  # the tag that Ollama's clients add to a name


class CompletionRequest(NamedTuple):
    """A request to complete prompts, in a form that is the same for OpenAI's and Ollama's API."""

    model: str
    """The name of a served model."""
    prompts: list[str]
    choices: int = 1
    """Number of completions for each prompt."""
    max_tokens: int | None = None
    """Maximum number of tokens of a completion; None: the model's own limit."""
    stop: tuple[str, ...] = ()
    """Texts before which a completion ends (stop sequences); they are not part of it."""
    sampling: Mapping[str, float | None] = {}
    """Values of `temperature`, `top_p`, … and `seed` by name, which only language models use; None: the default."""
    penalties: Mapping[str, float | None] = {}
    """Values of `frequency_penalty` and `presence_penalty` by name, which only language models use; None: the
    default."""
    with_tokens: bool = False
    """True if the completions should contain their tokens with log-probabilities."""
    before: Sequence[tuple[str, str]] = ()
    """Earlier turns of the conversation, for a model that reads context: pairs of a user's text and the answer to
    it."""


class CompletionChoice(NamedTuple):
    """One completion of a prompt, cut at a stop sequence or at the maximum length."""

    text: str
    finish_reason: FinishReason
    tokens: tuple[TokenProbability, ...] = ()
    """The tokens of the completion's text with their log-probabilities; empty if the request did not ask for them."""
    num_tokens: int = 0
    """The number of tokens of the completion's text."""


class Completion(NamedTuple):
    """The completions of all prompts of a request, with the numbers of tokens."""

    choices: list[CompletionChoice]
    """One list: the completions of the first prompt, then those of the second, and so on."""
    prompt_tokens: int
    """The number of tokens of all prompts together."""
    headers: Mapping[str, str] = {}
    """HTTP headers of the response by name, with warnings about the language of the prompts; empty without warnings."""

    @property
    def completion_tokens(self) -> int:
        """The number of tokens of all completions together."""
        return sum(choice.num_tokens for choice in self.choices)


class Completions:
    """The part of the server that completes prompts with its models, for the APIs of OpenAI and Ollama.

    A translation model translates a prompt, and a language model continues it.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    @property
    def names(self) -> list[str]:
        """A list of the names of all models: language pairs such as "zh-en", then folder names of language models."""
        return [*self.service.routes.by_name, *self.service.generators]

    def find(self, name: str) -> str:
        """Return the name of the served model that a client means; case and the tag `:latest` do not matter.

        Raises:
            RequestError: status 404, no model has this name.
        """
        wanted = name.removesuffix(_LATEST).lower()
        found = next((each for each in self.names if each.lower() == wanted), None)
        if found is None:
            raise RequestError(404, f"There is no model `{name[:_MAX_SHOWN]}`: GET /v1/models lists what is served.")
        return found

    async def complete(
        self, request: CompletionRequest, disconnected: asyncio.Future[None], report: Report | None = None
    ) -> Completion:
        """Return the completions of a request's prompts: their translations, or continuations by a language model.

        Args:
            request: what the client asks for.
            disconnected: future that is done once the client has disconnected.
            report: called in the event loop with the final part of the growing completion, for a request of one
                completion; None: no progress is reported.

        Raises:
            RequestError: the request is invalid, names no served model, exceeds a limit or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        if len(request.stop) > MAX_STOPS or any(not 0 < len(stop) <= _MAX_STOP_CHARACTERS for stop in request.stop):
            raise invalid_request(
                f"`stop` must have at most {MAX_STOPS} texts of 1 to {_MAX_STOP_CHARACTERS} characters"
            )
        max_choices = self.service.settings.max_alternatives + 1
        if request.choices > max_choices:
            raise invalid_request(f"`n` must be at most {max_choices}, but is {request.choices}")
        name = self.find(request.model)
        generator = self.service.generators.get(name)
        if generator is not None:
            return await self._generate(generator, request, disconnected, report)
        return await self._translate(self.service.routes.by_name[name], request, disconnected, report)

    async def respond(
        self,
        request: Request,
        wanted: CompletionRequest,
        render: Callable[[Completion], msgspec.Struct],
        formatter: EventFormatter | None,
    ) -> Response:
        """Return the HTTP response to a request: its completions in one JSON object, or a stream of events.

        Args:
            request: the client's request.
            wanted: what the client asks for.
            render: makes the JSON object of completions.
            formatter: formats the events of a stream; None: the response is not streamed.

        Raises:
            RequestError: the request is invalid, exceeds a limit or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        if formatter is not None:
            response = await stream_response(request, partial(self.complete, wanted), formatter)
            response.headers.update(self._language_headers(wanted))
            return response
        with watching_disconnect(request) as disconnected:
            completion = await self.complete(wanted, disconnected)
        return json_response(render(completion), headers=completion.headers)

    def _language_headers(self, request: CompletionRequest) -> dict[str, str]:
        """Return a dict with an HTTP header that warns of prompts in an unexpected language.

        The dict is empty if all prompts seem to be in the translation model's source language. A language model has no
        such header.
        """
        model = self.service.routes.by_name.get(self.find(request.model))
        return {} if model is None else language_headers(request.prompts, model.source_language)

    # --- translation ---

    async def _translate(
        self, model: Model, request: CompletionRequest, disconnected: asyncio.Future[None], report: Report | None
    ) -> Completion:
        if request.with_tokens and request.choices > 1:
            raise invalid_request("`logprobs` are known for one translation only: leave `n` out")
        translation = TranslationRequest(
            request.prompts,
            source=model.source_language,
            target=model.target_language,
            alternatives=request.choices - 1,
            with_tokens=True,
            before=request.before,
        )

        def report_final(progress: LineProgress) -> None:
            """Report the part of a growing translation that neither a stop sequence nor the maximum length can cut."""
            assert report is not None
            text = progress.text[: _safe_length(progress.text, request.stop)]
            # A part may have slightly other tokens than the whole text has, so the second half comes at the end.
            if request.max_tokens is None or len(model.encode_target(text)) <= request.max_tokens // 2:
                report(LineProgress(index=progress.index, line=progress.line, text=text, draft=text))

        answers = await self.service.translate(translation, disconnected, None if report is None else report_final)
        choices_by_prompt = [_choices_of(answer, request, model) for answer in answers]
        if len(choices_by_prompt) > 1:  # clients find a prompt's choices by their number, but equal ones are left out
            choices_by_prompt = [[*each, *each[-1:] * (request.choices - len(each))] for each in choices_by_prompt]
        choices = [choice for each in choices_by_prompt for choice in each]
        lines = [line for prompt in request.prompts for line in prompt.splitlines() if line.strip()]
        return Completion(choices, sum(count - 1 for count in model.count_tokens(lines)), warning_headers(answers))

    # --- generation ---

    async def _generate(
        self,
        model: ServedGenerator,
        request: CompletionRequest,
        disconnected: asyncio.Future[None],
        report: Report | None,
    ) -> Completion:
        settings = self.service.settings
        characters = sum(map(len, request.prompts))
        if len(request.prompts) > settings.max_texts or characters > settings.max_characters:
            raise invalid_request(
                f"a request may have {settings.max_texts} prompts with {settings.max_characters} characters"
            )
        job = GenerationJob(model, request, settings)
        loop = asyncio.get_running_loop()
        if report is not None:
            job.report = lambda text: call_in_loop(loop, report, LineProgress(index=0, line=0, text=text, draft=text))
        self.service.metrics.characters.inc(characters)
        (generations,) = await self.service.engine.decode([job], disconnected)
        choices = [_choice_of(each, request) for generation in generations for each in generation.continuations]
        return Completion(choices, sum(job.tokens))


def _generator_search(model: ServedGenerator, request: CompletionRequest, most_tokens: int) -> SearchSettings:
    """Return the settings with which a language model generates text for a request: sampling, or greedy search.

    Temperature 0 means greedy search. Without a seed in the request, a random one is used.

    Args:
        model: the language model, whose own settings apply where the request sets none.
        request: the request.
        most_tokens: maximum number of new tokens that the server allows.

    Raises:
        RequestError: a setting is out of range, or several texts are requested at temperature 0.
    """
    if request.max_tokens is not None and request.max_tokens > most_tokens:
        raise invalid_request(
            f"the maximum number of tokens must be at most {most_tokens}, but is {request.max_tokens}"
        )
    changes: dict[str, Any] = {"seed": secrets.randbelow(_SEEDS)}
    changes |= {name: value for name, value in request.sampling.items() if value is not None}
    changes["seed"] %= _SEEDS
    is_greedy = changes.get("temperature") == 0
    if is_greedy and request.choices > 1:
        raise invalid_request("`n` must be 1 if `temperature` is 0, since all texts would be the same")
    with refusing_errors():
        sampling = (
            None if is_greedy else msgspec.structs.replace(model.search.sampling or SamplingSettings(), **changes)
        )
        return msgspec.structs.replace(
            model.search,
            sampling=sampling,
            beam_size=1,
            n_best=request.choices,
            max_length=min(request.max_tokens or most_tokens, most_tokens),
            **{name: value for name, value in request.penalties.items() if value is not None},
        )


class GenerationJob(Job):
    """A job of the decoding queue with the prompts of one client's request to a language model.

    Prompts of several such jobs may be decoded in one batch.
    """

    model: ServedGenerator
    may_overtake = False

    def __init__(self, model: ServedGenerator, request: CompletionRequest, settings: ServingSettings) -> None:
        """Count the prompts' tokens and start the clock of the deadline.

        Args:
            model: the language model.
            request: the prompts and their settings.
            settings: the server's limits on new tokens and time.

        Raises:
            RequestError: a setting of the request is out of range.
        """
        search = _generator_search(model, request, settings.max_new_tokens)
        super().__init__(model, request.prompts, search, seconds=settings.deadline_seconds)
        self.stop = request.stop
        self.report: Callable[[str], None] | None = None
        """Receives the final part of the only continuation while it grows, in a decoding thread; None: unreported."""

    def is_compatible_with(self, other: Job) -> bool:
        """Return whether prompts of both jobs may be in one batch.

        They need the same model and the same search settings, except for the maximum length and the seed.
        """
        return (
            isinstance(other, GenerationJob)
            and self.model is other.model
            and batch_settings(self.search) == batch_settings(other.search)
        )

    @override
    def continuous_decoder(self) -> ContinuousDecoder:
        return _PromptDecoder(self.model)

    @override
    def expected_steps(self, number: int) -> int:
        return self.search.max_length or self.tokens[number]

    @override
    def can_join(self, other: Job) -> bool:
        return isinstance(other, GenerationJob) and self.model is other.model

    @property
    def is_followed(self) -> bool:
        """True if continuations are read while they grow, to report them or to find a stop sequence."""
        return self.report is not None or bool(self.stop)

    def follow(self, prompt: str, tokens: Sequence[Sequence[int]]) -> bool:
        """Report the progress of a prompt, and return whether its decoding can end.

        Decoding can end when all continuations have reached a stop sequence. The first continuation is reported, as far
        as it is final. For a job without a report or stop sequences, nothing happens and the result is False.

        Args:
            prompt: the text of the prompt.
            tokens: the token ids so far of each continuation.
        """
        if not self.is_followed:
            return False
        texts = [self.model.generator.continuation_text(prompt, ids) for ids in tokens]
        if self.report is not None:
            self.report(texts[0][: _safe_length(texts[0], self.stop)])
        return all(_find_stop(text, self.stop) is not None for text in texts)


class _PromptDecoder(ContinuousDecoder):
    """A decoder that continues the prompts of several requests to one language model together, step by step."""

    def __init__(self, served: ServedGenerator) -> None:
        self._running = ContinuousGeneration(served.generator)
        self._sentences: dict[int, JobSentence] = {}  # by number in `_running`

    @property
    @override
    def free_texts(self) -> int:
        return self._running.free_texts

    @override
    def join(self, sentences: Sequence[JobSentence]) -> None:
        numbers = self._running.join([each.sentence for each in sentences], [each.job.search for each in sentences])
        self._sentences |= zip(numbers, sentences, strict=True)

    @override
    def step(self) -> list[tuple[JobSentence, Any]]:
        self._running.step()
        jobs = {number: cast(GenerationJob, sentence.job) for number, sentence in self._sentences.items()}
        if any(job.is_followed for job in jobs.values()):
            growing = self._running.texts().items()
            ended = [n for n, tokens in growing if jobs[n].follow(self._sentences[n].sentence, tokens)]
            self._running.abandon(ended)
        finished = self._running.take_finished().items()
        return [(self._sentences.pop(number), found) for number, found in finished if number in self._sentences]

    @override
    def abandon(self, job: Job) -> None:
        numbers = [number for number, sentence in self._sentences.items() if sentence.job is job]
        self._running.abandon(numbers)
        for number in numbers:
            del self._sentences[number]


# --- stop sequences and maximum lengths ---


def _composed(text: str) -> str:
    """Return a stop sequence in composed form (Unicode NFC), as models write texts."""
    return unicodedata.normalize("NFC", text)


def _find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return the character offset at which the first stop sequence in a text begins; None without one."""
    return min((position for stop in map(_composed, stops) if (position := text.find(stop)) >= 0), default=None)


def _safe_length(text: str, stops: Sequence[str]) -> int:
    """Return the number of characters at the start of a growing text that no stop sequence can cut off.

    If the text contains a stop sequence, these are the characters before it. Otherwise, if the text ends with the start
    of a stop sequence, they are the characters before that end. Otherwise all characters count.
    """
    stops = list(map(_composed, stops))
    position = _find_stop(text, stops)
    if position is not None:
        return position
    max_length = max(map(len, stops), default=1) - 1
    starts = range(max(0, len(text) - max_length), len(text))
    return next((start for start in starts if any(stop.startswith(text[start:]) for stop in stops)), len(text))


class TextFormatter(EventFormatter):
    """A base class of formatters of a streamed completion.

    Each part of the completion's text is sent as soon as it is final.
    """

    _sent: str | None = None
    """The text of the stream that was sent so far; None: no event was sent."""

    @abstractmethod
    def text(self, text: str, *, is_first: bool) -> bytes:
        """Return the bytes of an event with new text of the completion.

        Args:
            text: the new text; it may be empty.
            is_first: True for the first event of the stream.
        """

    @abstractmethod
    def end(self, answer: Completion) -> bytes:
        """Return the bytes of the events that end the stream: why the text ended, and the numbers of tokens."""

    @override
    def progress(self, progress: LineProgress) -> bytes:
        # Progress of later lines of the text than the first is not sent before the end.
        return b"" if progress.line else self._new_text(progress.text)

    @override
    def result(self, answer: Completion) -> bytes:
        text = answer.choices[0].text
        if not text.startswith(self._sent or ""):
            return self.error(
                RequestError(500, "The text changed after a part of it was sent: send the request again.")
            )
        return self._new_text(text) + self.end(answer)

    def _new_text(self, text: str) -> bytes:
        """Return the bytes of an event with the part of `text` that was not sent yet.

        The result is b"" if there is no new part, or if `text` does not begin with what was sent.
        """
        before = self._sent or ""
        if text == self._sent or not text.startswith(before):
            return b""
        is_first, self._sent = self._sent is None, text
        return self.text(text[len(before) :], is_first=is_first)


def _choices_of(answer: Answer, request: CompletionRequest, model: Model) -> list[CompletionChoice]:
    """Return the translations of a prompt as a list of completions, the best first.

    Each translation is cut at the first stop sequence and at the maximum length.

    Args:
        answer: the best translation and its alternatives.
        request: the request, which has stop sequences and the maximum length.
        model: the model, which counts tokens if the answer lacks them.
    """
    choices = []
    best = answer.text, tuple(token.text for token in answer.tokens), answer.is_complete
    others = zip(answer.alternatives, answer.alternative_tokens, answer.complete_alternatives, strict=True)
    for whole, whole_tokens, is_complete in (best, *others):
        reason: FinishReason = "stop" if is_complete else "length"
        text, position = whole, _find_stop(whole, request.stop)
        if position is not None:
            text, reason = whole[:position], "stop"
        if whole_tokens:
            offsets = token_offsets(whole_tokens, whole)
            num_tokens = sum(offset < len(text) for offset in offsets) if text != whole else len(offsets)
            if request.max_tokens is not None and num_tokens > request.max_tokens:
                num_tokens = request.max_tokens
                text, reason = text[: _character_start(text, offsets[num_tokens])], "length"
        else:
            num_tokens = len(model.encode_target(text))
            if request.max_tokens is not None and num_tokens > request.max_tokens:
                text, reason = _longest_start(text, request.max_tokens, model), "length"
                num_tokens = request.max_tokens
        tokens = answer.tokens[:num_tokens] if request.with_tokens else ()
        choices.append(CompletionChoice(text, reason, tokens, num_tokens))
    return choices


def _character_start(text: str, position: int) -> int:
    """Return the largest offset up to `position` at which a text can end without dividing a character.

    Combining marks, variation selectors, skin tones and joiners belong to the character before them, and a character
    after a joiner belongs to the joiner.
    """
    while 0 < position < len(text) and (
        unicodedata.category(text[position]) in {"Mn", "Me"}
        or text[position] == _JOINER
        or text[position - 1] == _JOINER
        or text[position] in _SKIN_TONES
    ):
        position -= 1
    return position


def token_offsets(tokens: Sequence[str], text: str) -> list[int]:
    """Return a list with the character offset in `text` at which each token begins.

    Spaces at the start of a token do not count if the text lacks them at this point. A token that is not in the text,
    such as a single byte of a character, gets the offset at which the token before it ends.
    """
    offsets, end = [], 0
    for token in tokens:
        # The first token of a text may have a space that the text lacks.
        inner = token if text.startswith(token, end) else token.strip()
        start = text.find(inner, end)
        if start < 0:
            offsets.append(end)
        else:
            offsets.append(start)
            end = start + len(inner)
    return offsets


def _longest_start(text: str, max_tokens: int, model: Model) -> str:
    """Return the longest start of a translation that has at most `max_tokens` tokens and ends with a whole character.

    The model's target vocabulary counts the tokens.
    """
    length, too_long = 0, len(text)
    while too_long - length > 1:
        middle = (length + too_long) // 2
        if len(model.encode_target(text[:middle])) <= max_tokens:
            length = middle
        else:
            too_long = middle
    return text[: _character_start(text, length)]


def _choice_of(continuation: Continuation, request: CompletionRequest) -> CompletionChoice:
    """Return a language model's continuation as a completion, cut at the first stop sequence of the request."""
    position = _find_stop(continuation.text, request.stop)
    tokens = token_probabilities([continuation])
    if position is None:
        reason: FinishReason = "stop" if continuation.ended else "length"
        return CompletionChoice(
            continuation.text, reason, tokens if request.with_tokens else (), len(continuation.tokens)
        )
    offsets = token_offsets([token.text for token in tokens], continuation.text)
    kept = tokens[: sum(offset < position for offset in offsets)]
    return CompletionChoice(continuation.text[:position], "stop", kept if request.with_tokens else (), len(kept))
