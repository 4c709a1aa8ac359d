"""Answer Ollama's clients: the part of its API by which programs have texts translated or continued."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from transduce.serving.completions import Completion, CompletionRequest, Completions, FinishReason, TextFormatter
from transduce.serving.messages import (
    LIMITED_TEXT,
    Operation,
    RequestError,
    decoding_operation,
    invalid_request,
    refuse_fields,
)
from transduce.serving.openai import ChatMessage, Ignored, Refused, Stop, has_chat_template, read_conversation
from transduce.serving.request_bodies import RequestChecks, as_list
from transduce.serving.responses import json_response

# --- messages ---


class OllamaOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The options of a completion in Ollama's API, such as its length and sampling; unlisted ones have no effect."""

    num_predict: Annotated[int, Meta(description="Maximum number of tokens; not positive: no limit.")] | None = None
    stop: Stop | None = None
    temperature: Annotated[float, Meta(ge=0, le=1000, description="Of language models only.")] | None = None
    top_k: Annotated[int, Meta(ge=0, description="Of language models only.")] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1, description="Of language models only.")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1, description="Of language models only.")] | None = None
    seed: Annotated[int, Meta(description="Of language models only.")] | None = None


class OllamaMessage(ChatMessage, kw_only=True, frozen=True):
    """A message of a conversation in the body of `POST /api/chat`: its role and its text."""

    images: Annotated[list[Any] | None, Meta(description="Refused unless empty.")] = None
    tool_calls: Ignored = None
    tool_name: Ignored = None
    thinking: Ignored = None


class _OllamaFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields that the requests to Ollama's `/api/chat` and `/api/generate` have in common."""

    model: Annotated[str, Meta(description="A `name` from `GET /api/tags`.")]
    stream: bool | None = True
    options: OllamaOptions | None = None
    format: Refused = None
    think: Annotated[Any, Meta(description="Refused unless false, which is `enable_thinking` of templates.")] = None
    logprobs: Refused = None
    top_logprobs: Refused = None
    keep_alive: Ignored = None


class OllamaChatRequest(_OllamaFields, kw_only=True, frozen=True):
    """The body of `POST /api/chat`: the model, the messages of a conversation, and options."""

    messages: list[OllamaMessage]
    continue_final_message: Annotated[
        bool | None, Meta(description="Continue the last message (chat templates only).")
    ] = False
    tools: Refused = None


class OllamaGenerateRequest(_OllamaFields, kw_only=True, frozen=True):
    """The body of `POST /api/generate`: the model, a text to translate or continue, and options."""

    prompt: Annotated[str, LIMITED_TEXT] = ""
    suffix: Refused = None
    images: Refused = None
    system: Annotated[str | None, Meta(description="Accepted; only models with a chat template follow it.")] = None
    template: Refused = None
    context: Ignored = None
    raw: Annotated[bool | None, Meta(description="Do not apply the model's chat template.")] = None


class OllamaAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """The message of the assistant in a response of `/api/chat`: new text of the answer."""

    content: str
    role: Literal["assistant"] = "assistant"


class OllamaResponse(msgspec.Struct, kw_only=True, frozen=True):
    """A line of a streamed response of `/api/chat` or `/api/generate`, or the whole response without streaming."""

    model: str
    created_at: str
    """Time of the line, in UTC, in ISO 8601."""
    message: OllamaAnswer | UnsetType = UNSET
    """The new text of the answer to `/api/chat`; unset in other answers."""
    response: str | UnsetType = UNSET
    """The new text of the answer to `/api/generate`; unset in other answers."""
    done: bool
    """True in the last line of an answer, which alone has durations and numbers of tokens."""
    done_reason: FinishReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    """Nanoseconds from the request to the answer."""
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaDetails(msgspec.Struct, kw_only=True, frozen=True):
    """Technical details of a model in Ollama's format; those that do not apply here are empty."""

    format: str = "transduce"
    family: str = "transformer"
    families: tuple[str, ...] = ("transformer",)
    parent_model: str = ""
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(msgspec.Struct, kw_only=True, frozen=True):
    """A model in the response of `GET /api/tags` and `GET /api/ps`: its name, with the tag `:latest`, and details."""

    name: str
    model: str
    modified_at: str
    size: int = 0
    digest: str = ""
    details: OllamaDetails = OllamaDetails()


class OllamaModels(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `GET /api/tags` and `GET /api/ps`: all models of the server."""

    models: list[OllamaModel]


class OllamaShowRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `POST /api/show`: the name of the model to describe."""

    model: str = ""
    name: Annotated[str, Meta(description="An older name of `model`.")] = ""
    verbose: Ignored = None


class OllamaShown(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `POST /api/show`: a description of the model, in which fields that do not apply are empty."""

    modified_at: str
    details: OllamaDetails = OllamaDetails()
    capabilities: tuple[str, ...] = ("completion",)
    model_info: dict[str, str] = {}
    template: str = "{{ .Prompt }}"
    modelfile: str = ""
    parameters: str = ""
    license: str = ""


class OllamaVersion(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `GET /api/version`: the version of transduce."""

    version: str


# --- handlers ---

_REFUSED = ("format", "think", "tools", "images", "suffix", "template", "logprobs", "top_logprobs")
_NDJSON = "application/x-ndjson"


class OllamaHandlers:
    """Handlers of the addresses under `/api`, which answer Ollama's clients."""

    def __init__(self, checks: RequestChecks, completions: Completions) -> None:
        self.checks = checks
        self.completions = completions
        self._started_at = _now()

    @decoding_operation(
        "/api/chat",
        "Translate the user's last message, for Ollama's clients.",
        OllamaResponse,
        OllamaChatRequest,
        streams=True,
        stream_type=_NDJSON,
    )
    async def chat(self, request: Request) -> Response:
        """Answer `POST /api/chat` with the next message of a conversation.

        A translation model translates the user's last message; a language model answers or continues the conversation.

        Raises:
            RequestError: the request is invalid, names no served model, exceeds a limit or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        message = await self.checks.read(request, OllamaChatRequest)
        for each in message.messages:
            refuse_fields(each, ["images"])
        if not has_chat_template(self.completions, message.model):
            refuse_fields(message, ["continue_final_message"])
        prompt, before = read_conversation(
            self.completions,
            message.model,
            message.messages,
            continue_final_message=bool(message.continue_final_message),
            template_variables=_template_variables(message),
        )
        return await self._answer(request, message, prompt, before, is_chat=True)

    @decoding_operation(
        "/api/generate",
        "Translate or continue a text, for Ollama's clients.",
        OllamaResponse,
        OllamaGenerateRequest,
        streams=True,
        stream_type=_NDJSON,
    )
    async def generate(self, request: Request) -> Response:
        """Answer `POST /api/generate` with the translation of a text, or with a language model's continuation of it.

        A language model with a chat template answers the text as a user's message, unless the request sets `raw`.

        Raises:
            RequestError: the request is invalid, names no served model, exceeds a limit or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        message = await self.checks.read(request, OllamaGenerateRequest)
        prompt = message.prompt
        if has_chat_template(self.completions, message.model) and not message.raw:
            texts = {"system": message.system, "user": message.prompt}
            messages = [ChatMessage(role=role, content=text) for role, text in texts.items() if text or role == "user"]
            variables = _template_variables(message)
            prompt, _ = read_conversation(self.completions, message.model, messages, template_variables=variables)
        return await self._answer(request, message, prompt, [], is_chat=False)

    async def _answer(
        self, request: Request, message: _OllamaFields, prompt: str, before: Sequence[tuple[str, str]], *, is_chat: bool
    ) -> Response:
        name = self.completions.find(message.model)
        refuse_fields(message, _REFUSED)
        options = message.options or OllamaOptions()
        order = CompletionRequest(
            name,
            [prompt],
            max_tokens=max(0, options.num_predict or 0) or None,
            stop=tuple(as_list(options.stop or [])),
            sampling={name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")},
            before=before,
        )
        formatter = _LineFormatter(message.model, is_chat=is_chat)
        streams = message.stream is None or message.stream
        response = await self.completions.respond(
            request,
            order,
            lambda completion: formatter.last_line(completion, completion.choices[0].text),
            formatter if streams else None,
        )
        if streams:
            response.headers["Content-Type"] = _NDJSON
        return response

    @Operation("get", "/api/tags", "List the models, for Ollama's clients.", OllamaModels)
    @Operation("get", "/api/ps", "List the models, all of which are loaded.", OllamaModels)
    async def tags(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /api/tags` and `GET /api/ps` with the names of all models of the server."""
        names = [f"{name}:latest" for name in self.completions.names]
        return json_response(
            OllamaModels(models=[OllamaModel(name=name, model=name, modified_at=self._started_at) for name in names])
        )

    @Operation("post", "/api/show", "Describe a model, for Ollama's clients.", OllamaShown, OllamaShowRequest)
    async def show(self, request: Request) -> Response:
        """Answer `POST /api/show` with a description of the named model.

        Raises:
            RequestError: there is no such model (status 404), or the request is invalid.
        """
        message = await self.checks.read_message(request, OllamaShowRequest)
        wanted = message.model or message.name
        if not wanted:
            raise invalid_request("missing model parameter")
        name = self.completions.find(wanted)
        return json_response(OllamaShown(modified_at=self._started_at, model_info={"general.name": name}))

    @Operation("get", "/api/version", "Version of the server.", OllamaVersion)
    async def version(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /api/version` with the version of transduce."""
        return json_response(OllamaVersion(version=version("transduce")))


def _template_variables(message: _OllamaFields) -> dict[str, bool]:
    """Return a dict of the variables that a request sets for a chat template.

    It has `enable_thinking` if the request sets `think`; otherwise it is empty.
    """
    return {} if message.think is None else {"enable_thinking": bool(message.think)}


def _now() -> str:
    return datetime.now(UTC).isoformat()


class _LineFormatter(TextFormatter):
    """A formatter of a streamed completion as Ollama's API has it: one JSON object per line."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        """Create a formatter for one answer, whose duration counts from now.

        Args:
            model: the name of the model, as the client named it.
            is_chat: the answer is of `/api/chat`, otherwise of `/api/generate`.
        """
        self._model = model
        self._is_chat = is_chat
        self._started_at = time.monotonic_ns()

    @override
    def text(self, text: str, *, is_first: bool) -> bytes:
        return _line(self._response(text, done=False)) if text else b""

    @override
    def end(self, answer: Completion) -> bytes:
        return _line(self.last_line(answer, ""))

    @override
    def error(self, error: RequestError) -> bytes:
        return _line({"error": error.sentence})

    def last_line(self, answer: Completion, text: str) -> OllamaResponse:
        """Return the last object of an answer: why it ended, its durations and numbers of tokens.

        Args:
            answer: the completion.
            text: the text in the object: "" at the end of a stream, which has sent it before; otherwise the whole text.
        """
        duration = time.monotonic_ns() - self._started_at
        return msgspec.structs.replace(
            self._response(text, done=True),
            done_reason=answer.choices[0].finish_reason,
            total_duration=duration,
            load_duration=0,
            prompt_eval_count=answer.prompt_tokens,
            prompt_eval_duration=0,
            eval_count=answer.completion_tokens,
            eval_duration=duration,
        )

    def _response(self, text: str, *, done: bool) -> OllamaResponse:
        return OllamaResponse(
            model=self._model,
            created_at=_now(),
            message=OllamaAnswer(content=text) if self._is_chat else UNSET,
            response=UNSET if self._is_chat else text,
            done=done,
        )


def _line(data: Any) -> bytes:
    return msgspec.json.encode(data) + b"\n"
