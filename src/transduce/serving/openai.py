"""Answer OpenAI's clients: chat completions, text completions and models.

A translation model translates the last message of the role `user`, and ignores instructions. If it was trained with
document context, it reads earlier messages of the user and the answers to them as context. A language model with a chat
template answers the conversation. A language model without one continues the text of all messages.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from transduce.inference.translation import token_bytes
from transduce.serving.completions import (
    MAX_STOPS,
    Completion,
    CompletionChoice,
    CompletionRequest,
    Completions,
    FinishReason,
    TextFormatter,
    token_offsets,
)
from transduce.serving.messages import (
    LIMITED_TEXT,
    Operation,
    RequestError,
    check_characters,
    decoding_operation,
    invalid_request,
    refusing_errors,
    unsupported_field,
)
from transduce.serving.request_bodies import RequestChecks, as_list
from transduce.serving.responses import json_response, openai_error

# --- messages ---

Stop = str | Annotated[list[str], Meta(max_length=MAX_STOPS)]
Choices = Annotated[int, Meta(ge=1, le=1000, description="Number of completions, best first.")]
MaxTokens = Annotated[int, Meta(ge=1, le=1_000_000, description="Maximum number of tokens of a completion.")]
Ignored = Annotated[Any, Meta(description="Accepted without effect.")]
Refused = Annotated[Any, Meta(description="Refused unless it has its default value.")]


class ChatPart(msgspec.Struct, kw_only=True, frozen=True):
    """A part of a chat message whose content is a list of parts; only text parts are accepted."""

    type: Annotated[str, Meta(max_length=64, description="`text`; other types are refused.")]
    text: Annotated[str, LIMITED_TEXT] = ""


class ChatMessage(msgspec.Struct, kw_only=True, frozen=True):
    """A message of a conversation in the body of `POST /v1/chat/completions`: its role and its text."""

    role: Annotated[str, Meta(max_length=64, description="The last message of a `user` is translated.")]
    content: Annotated[str | list[ChatPart] | None, LIMITED_TEXT] = None

    @property
    def text(self) -> str:
        """The text of the message, with parts joined; "" if it has no content.

        Raises:
            RequestError: a part of the message is not text.
        """
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        if other_type := next((part.type for part in self.content if part.type != "text"), None):
            raise invalid_request(f"a message must be text, but a part of one is of the type `{other_type}`")
        return "".join(part.text for part in self.content)


class StreamOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of a streamed response of OpenAI's API: whether a last event reports the numbers of tokens."""

    include_usage: bool | None = False
    """True if a last event has the numbers of tokens."""
    include_obfuscation: bool | None = None
    """OpenAI's option, which is accepted without effect."""


class _OpenAIFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields that OpenAI's requests for chat completions and for text completions have in common."""

    model: Annotated[str, Meta(description="An `id` from `GET /v1/models`.")]
    stream: Annotated[
        bool | None, Meta(description="Answer with server-sent events that add text once it is final.")
    ] = False
    stream_options: StreamOptions | None = None
    n: Choices | None = 1
    stop: Annotated[Stop, Meta(description="Texts before which a completion ends.")] | None = None
    max_tokens: MaxTokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=1000, description="Of language models only.")] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1, description="Of language models only.")] | None = None
    seed: Annotated[int, Meta(description="Of language models only; translations are not random.")] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2, description="Of language models only.")] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2, description="Of language models only.")] | None = None
    logit_bias: Refused = None
    user: Ignored = None


class ChatRequest(_OpenAIFields, kw_only=True, frozen=True):
    """The body of `POST /v1/chat/completions`: the model, the messages of a conversation, and options.

    Fields that OpenAI does not document are ignored.
    """

    messages: list[ChatMessage]
    continue_final_message: Annotated[
        bool | None, Meta(description="Continue the last message (chat templates only).")
    ] = False
    chat_template_kwargs: Annotated[dict[str, Any], Meta(description="Variables of the chat template.")] | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: Annotated[bool, Meta(description="Return the log-probability of each token.")] | None = False
    top_logprobs: Annotated[int, Meta(description="Refused unless 0: other tokens are not known.")] | None = None
    response_format: Refused = None
    tools: Refused = None
    tool_choice: Refused = None
    functions: Refused = None
    function_call: Refused = None
    modalities: Refused = None
    audio: Refused = None
    web_search_options: Refused = None
    parallel_tool_calls: Ignored = None
    metadata: Ignored = None
    moderation: Ignored = None
    prediction: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    reasoning_effort: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    store: Ignored = None
    verbosity: Ignored = None


class CompletionsRequest(_OpenAIFields, kw_only=True, frozen=True):
    """The body of `POST /v1/completions`: the model, one or several texts to translate or continue, and options."""

    prompt: Annotated[str | list[str], LIMITED_TEXT, Meta(description="A text, or several.")]
    logprobs: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="0: return each token's log-probability; refused above.")
    ] = None
    echo: Annotated[bool, Meta(description="Refused unless false.")] | None = False
    best_of: Annotated[int, Meta(description="Refused unless it equals `n`.")] | None = None
    suffix: Annotated[str, Meta(description="Refused unless empty.")] | None = None


class Usage(msgspec.Struct, kw_only=True, frozen=True):
    """The numbers of tokens of a request and its answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenLogProbability(msgspec.Struct, kw_only=True, frozen=True):
    """A token of the answer with its log-probability."""

    token: str
    """The text that the token adds."""
    logprob: float
    """The log-probability, in nats."""
    bytes: list[int]
    """A list of the UTF-8 bytes that the token adds; a byte token such as <0xE6> is one byte of a character."""
    top_logprobs: list[Any] = []
    """Empty, as other tokens are not known."""


class ChatLogProbabilities(msgspec.Struct, kw_only=True, frozen=True):
    """The log-probabilities of a chat completion's tokens."""

    content: list[TokenLogProbability]
    refusal: None = None


class ChatAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """The text of a chat completion, as a message of the assistant."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True, frozen=True):
    """One completion in the response of `POST /v1/chat/completions`, by its index."""

    index: int
    message: ChatAnswer
    finish_reason: FinishReason
    logprobs: ChatLogProbabilities | None = None


class ChatCompletion(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `POST /v1/chat/completions` without streaming."""

    id: str
    created: int
    """Time of the response, in seconds since 1970."""
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class TextLogProbabilities(msgspec.Struct, kw_only=True, frozen=True):
    """The log-probabilities of a text completion's tokens, in the format of `POST /v1/completions`."""

    tokens: list[str]
    """The text that each token adds."""
    token_logprobs: list[float]
    """The log-probability of each token, in nats."""
    text_offset: list[int]
    """The offset in the text, in characters, at which each token begins."""
    top_logprobs: None = None


class TextChoice(msgspec.Struct, kw_only=True, frozen=True):
    """One completion in the response of `POST /v1/completions`, by its index."""

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: TextLogProbabilities | None = None


class TextCompletion(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `POST /v1/completions` without streaming."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"


class OpenAIModel(msgspec.Struct, kw_only=True, frozen=True):
    """A model in the response of `GET /v1/models`.

    The id of a translation model is its language pair, such as `zh-en`, and that of a language model its folder's name.
    """

    id: str
    created: int
    """Time of the server's start, in seconds since 1970."""
    object: Literal["model"] = "model"
    owned_by: Literal["transduce"] = "transduce"


class OpenAIModels(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `GET /v1/models`: all models of the server."""

    data: list[OpenAIModel]
    object: Literal["list"] = "list"


# --- handlers ---

# Values of refused fields that change nothing.
_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
}


class OpenAIHandlers:
    """Handlers of the addresses under `/v1`, which answer OpenAI's clients."""

    def __init__(self, checks: RequestChecks, completions: Completions) -> None:
        self.checks = checks
        self.completions = completions
        self._started_at = int(time.time())

    @decoding_operation(
        "/v1/chat/completions",
        "Translate the user's last message, or continue a text, for OpenAI's clients.",
        ChatCompletion,
        ChatRequest,
        streams=True,
    )
    async def chat(self, request: Request) -> Response:
        """Answer `POST /v1/chat/completions` with completions of a conversation.

        A translation model translates the user's last message; a language model answers or continues the conversation.

        Raises:
            RequestError: the request is invalid, names no served model, exceeds a limit or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        message = await self.checks.read(request, ChatRequest)
        for field in ("continue_final_message", "chat_template_kwargs"):
            if getattr(message, field) and not has_chat_template(self.completions, message.model):
                raise unsupported_field(field)
        prompt, before = read_conversation(
            self.completions,
            message.model,
            message.messages,
            continue_final_message=bool(message.continue_final_message),
            template_variables=message.chat_template_kwargs or {},
        )
        max_tokens = message.max_completion_tokens or message.max_tokens
        order = self._completion_request(message, [prompt], max_tokens, with_tokens=bool(message.logprobs))
        return await self._answer(request, order._replace(before=before), message, is_chat=True)

    @decoding_operation(
        "/v1/completions",
        "Translate or continue texts, for OpenAI's clients.",
        TextCompletion,
        CompletionsRequest,
        streams=True,
    )
    async def text(self, request: Request) -> Response:
        """Answer `POST /v1/completions` with the translations of texts, or with a language model's continuations.

        Raises:
            RequestError: the request is invalid, names no served model, exceeds a limit or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        message = await self.checks.read(request, CompletionsRequest)
        if message.logprobs:
            raise invalid_request(f"`logprobs` must be 0, as other tokens are not known, but is {message.logprobs}")
        if message.best_of is not None and message.best_of != (message.n or 1):
            raise invalid_request(f"`best_of` must equal `n`, {message.n or 1}, but is {message.best_of}")
        with_tokens = message.logprobs is not None
        order = self._completion_request(message, as_list(message.prompt), message.max_tokens, with_tokens=with_tokens)
        return await self._answer(request, order, message, is_chat=False)

    def _completion_request(
        self, message: _OpenAIFields, prompts: list[str], max_tokens: int | None, *, with_tokens: bool
    ) -> CompletionRequest:
        """Convert a request of OpenAI's API to a `CompletionRequest`, the form that OpenAI's and Ollama's APIs share.

        Args:
            message: the fields of the request.
            prompts: the texts to translate or continue.
            max_tokens: maximum number of tokens of a completion; None: the model's own limit.
            with_tokens: the response has the log-probability of each token.

        Raises:
            RequestError: no model has the requested name, a field is set that would change the result and is not
                supported, or several texts or log-probabilities are to be streamed.
        """
        name = self.completions.find(message.model)
        for field, harmless in _NO_EFFECT.items():
            value = getattr(message, field, None)
            if value is not None and value not in harmless:
                raise unsupported_field(field)
        if message.stream and (len(prompts) != 1 or (message.n or 1) > 1):
            raise invalid_request("only one text can be streamed: leave `n` out, and send one prompt")
        if message.stream and with_tokens:
            raise invalid_request("`logprobs` cannot be streamed: leave `stream` out")
        return CompletionRequest(
            name,
            prompts,
            choices=message.n or 1,
            max_tokens=max_tokens,
            stop=tuple(as_list(message.stop or [])),
            sampling={"temperature": message.temperature, "top_p": message.top_p, "seed": message.seed},
            penalties={"frequency_penalty": message.frequency_penalty, "presence_penalty": message.presence_penalty},
            with_tokens=with_tokens,
        )

    async def _answer(
        self, request: Request, order: CompletionRequest, message: _OpenAIFields, *, is_chat: bool
    ) -> Response:
        """Return the response to a request for completions; it is streamed if the client wants that.

        Args:
            request: the HTTP request.
            order: the prompts and settings, in the form that OpenAI's and Ollama's APIs share.
            message: the request's body, which has the options of streams.
            is_chat: the response is a chat completion, not a text completion.

        Raises:
            RequestError: the request is invalid, exceeds a limit or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        name = f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        head: dict[str, Any] = {"id": name, "created": int(time.time()), "model": message.model}
        formatter = None
        if message.stream:
            with_usage = message.stream_options is not None and bool(message.stream_options.include_usage)
            formatter = OpenAIEventFormatter(head, is_chat=is_chat, with_usage=with_usage)

        def render(completion: Completion) -> msgspec.Struct:
            make_choice: Callable[..., Any] = _chat_choice if is_chat else _text_choice
            choices = [
                make_choice(index, choice, with_tokens=order.with_tokens)
                for index, choice in enumerate(completion.choices)
            ]
            return (ChatCompletion if is_chat else TextCompletion)(**head, choices=choices, usage=_usage(completion))

        return await self.completions.respond(request, order, render, formatter)

    @Operation("get", "/v1/models", "List the models.", OpenAIModels)
    async def models(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /v1/models` with all models of the server."""
        return json_response(OpenAIModels(data=[self._describe(name) for name in self.completions.names]))

    @Operation("get", "/v1/models/{id}", "Describe a model.", OpenAIModel)
    async def model(self, request: Request) -> Response:
        """Answer `GET /v1/models/{id}` with a description of the model.

        Raises:
            RequestError: status 404, there is no such model.
        """
        return json_response(self._describe(self.completions.find(request.path_params["id"])))

    def _describe(self, name: str) -> OpenAIModel:
        return OpenAIModel(id=name, created=self._started_at)


def has_chat_template(completions: Completions, model: str) -> bool:
    """Return whether the model with the name `model` is a language model with a chat template.

    Raises:
        RequestError: there is no such model.
    """
    served = completions.service.generators.get(completions.find(model))
    return served is not None and served.generator.has_chat_template


def read_conversation(
    completions: Completions,
    model: str,
    messages: Sequence[ChatMessage],
    *,
    continue_final_message: bool = False,
    template_variables: Mapping[str, Any] | None = None,
) -> tuple[str, list[tuple[str, str]]]:
    """Return the prompt for a conversation, and a list of earlier turns as pairs (user's text, answer).

    For a translation model, the prompt is the user's last message, and the turns are the context that the model reads.
    For a language model, the prompt is the whole conversation, formatted by the chat template if there is one. Its list
    of turns is empty.

    Args:
        completions: the models.
        model: the name of the model, as the client spells it.
        messages: the conversation.
        continue_final_message: let a model with a chat template continue the last message, instead of answering it.
        template_variables: further variables of the chat template; None: none.

    Raises:
        RequestError: there is no such model, no text to translate, a message has a part that is not text, the texts are
            too long, or the chat template refuses the messages.
    """
    name = completions.find(model)
    if has_chat_template(completions, name):
        generator = completions.service.generators[name].generator
        chat = [_template_message(message) for message in messages]
        max_characters = completions.service.settings.max_characters
        check_characters(sum(len(message["content"]) for message in chat), max_characters)
        with refusing_errors():
            prompt = generator.chat_prompt(
                chat,
                continue_final_message=continue_final_message,
                template_variables=template_variables,
                max_characters=max_characters,
            )
        return prompt, []
    if name in completions.service.generators:
        return "\n".join(text for message in messages if (text := message.text)), []  # the model knows no roles
    return last_user_message(messages), earlier_turns(messages, completions.service.routes.by_name[name].context_before)


_TEMPLATE_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def _template_message(message: ChatMessage) -> dict[str, str]:
    """Return a message as a dict that chat templates read, with `role` and `content`.

    The role `developer` becomes `system`, which is its older name.

    Raises:
        RequestError: the message is of another role, or has a part that is not text.
    """
    if message.role not in _TEMPLATE_ROLES:
        raise invalid_request(f"a message's role must be {', '.join(_TEMPLATE_ROLES)}, but one is `{message.role}`")
    return {"role": _TEMPLATE_ROLES[message.role], "content": message.text}


def last_user_message(messages: Sequence[ChatMessage]) -> str:
    """Return the text of the conversation's last message with the role `user`.

    Raises:
        RequestError: there is no such message, or it has no content or a part that is not text.
    """
    message = next((message for message in reversed(messages) if message.role == "user"), None)
    if message is None or message.content is None:
        raise invalid_request("there must be a message of the role `user`, whose content is translated")
    return message.text


def earlier_turns(messages: Sequence[ChatMessage], max_turns: int) -> list[tuple[str, str]]:
    """Return a list of pairs: a user message before the last one, and the assistant's answer to it.

    Only the last `max_turns` such messages count, and messages without text are left out. The answer is "" if there is
    none.

    Raises:
        RequestError: one of these messages has a part that is not text.
    """
    turns: list[tuple[ChatMessage, ChatMessage | None]] = []
    for message in messages:
        if message.role == "user":
            turns.append((message, None))
        elif message.role == "assistant" and turns:
            turns[-1] = (turns[-1][0], message)
    last = max(0, len(turns) - 1)
    read = turns[max(0, last - max_turns) : last]
    return [(user.text, "" if answer is None else answer.text) for user, answer in read if user.text]


def _usage(completion: Completion) -> Usage:
    prompt, answer = completion.prompt_tokens, completion.completion_tokens
    return Usage(prompt_tokens=prompt, completion_tokens=answer, total_tokens=prompt + answer)


def _chat_choice(index: int, choice: CompletionChoice, *, with_tokens: bool) -> ChatChoice:
    log_probabilities = [
        TokenLogProbability(token=token.text, logprob=token.log_probability, bytes=list(token_bytes(token.text)))
        for token in choice.tokens
    ]
    return ChatChoice(
        index=index,
        message=ChatAnswer(content=choice.text),
        finish_reason=choice.finish_reason,
        logprobs=ChatLogProbabilities(content=log_probabilities) if with_tokens else None,
    )


def _text_choice(index: int, choice: CompletionChoice, *, with_tokens: bool) -> TextChoice:
    tokens = [token.text for token in choice.tokens]
    log_probabilities = TextLogProbabilities(
        tokens=tokens,
        token_logprobs=[token.log_probability for token in choice.tokens],
        text_offset=token_offsets(tokens, choice.text),
    )
    return TextChoice(
        index=index,
        text=choice.text,
        finish_reason=choice.finish_reason,
        logprobs=log_probabilities if with_tokens else None,
    )


# --- streams ---


class StreamDelta(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The new text in an event of a streamed chat completion (OpenAI's `delta`)."""

    role: Literal["assistant"] | None = None
    """`assistant` in the first event; unset in others."""
    content: str | None = None
    """The new text; unset in the event with the finish reason."""


class StreamChoice(msgspec.Struct, kw_only=True, frozen=True):
    """The new part of the completion in an event of a stream, which has exactly one completion."""

    delta: StreamDelta | UnsetType = UNSET
    """The new text of a chat completion."""
    text: str | UnsetType = UNSET
    """The new text of a text completion."""
    index: Literal[0] = 0
    finish_reason: FinishReason | None = None
    """The reason why the completion ended, in the last event with a choice; None in others."""


class StreamChunk(msgspec.Struct, kw_only=True, frozen=True):
    """The data of an event of a streamed response of `/v1/chat/completions` or `/v1/completions`."""

    id: str
    created: int
    model: str
    object: Literal["chat.completion.chunk", "text_completion"]
    choices: list[StreamChoice]
    usage: Usage | UnsetType | None = UNSET
    """The numbers of tokens, in the last event, if the request asked for them."""


class OpenAIEventFormatter(TextFormatter):
    """A formatter of a streamed completion as OpenAI's server-sent events: chunks of text, then `[DONE]`."""

    def __init__(self, head: dict[str, Any], *, is_chat: bool, with_usage: bool) -> None:
        """Create a formatter for one streamed completion.

        Args:
            head: id, time and model of all events.
            is_chat: the stream is a chat completion, not a text completion.
            with_usage: send the numbers of tokens at the end.
        """
        self._is_chat = is_chat
        self._with_usage = with_usage
        self._chunk = StreamChunk(
            **head,
            object="chat.completion.chunk" if is_chat else "text_completion",
            choices=[],
            usage=None if with_usage else UNSET,
        )

    @override
    def text(self, text: str, *, is_first: bool) -> bytes:
        return self._event(self._choice(text, is_first=is_first))

    @override
    def end(self, answer: Completion) -> bytes:
        events = self._event(self._choice("", finish_reason=answer.choices[0].finish_reason))
        if self._with_usage:
            events += _event(msgspec.structs.replace(self._chunk, usage=_usage(answer)))
        return events + b"data: [DONE]\n\n"

    def error(self, error: RequestError) -> bytes:
        """Return the bytes of an event with the error that ends the stream, in OpenAI's format."""
        return _event(openai_error(error))

    def _choice(self, text: str, *, is_first: bool = False, finish_reason: FinishReason | None = None) -> StreamChoice:
        if not self._is_chat:
            return StreamChoice(text=text, finish_reason=finish_reason)
        content = text if finish_reason is None else None
        delta = StreamDelta(role="assistant" if is_first else None, content=content)
        return StreamChoice(delta=delta, finish_reason=finish_reason)

    def _event(self, choice: StreamChoice) -> bytes:
        return _event(msgspec.structs.replace(self._chunk, choices=[choice]))


def _event(data: Any) -> bytes:
    """Return the bytes of one server-sent event without a name, with `data` as JSON, which has no line breaks."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
