"""Test the part of OpenAI's chat API that clients need for translation."""

import http.client
import json
from contextlib import closing
from typing import Any

import pytest

from transduce.inference.batching import Documents
from transduce.inference.generator import load_generator
from transduce.serving.models import ServedGenerator

ADDRESS = "/v1/chat/completions"
GREEDY = {"temperature": 0, "max_tokens": 8}


def ask(live: Any, content: Any = "ein Satz", **fields: Any) -> Any:
    """Return the answer of the model de-en to a user message."""
    return live.ask("POST", ADDRESS, {"model": "de-en", "messages": [{"role": "user", "content": content}]} | fields)


def fault(reply: Any) -> str:
    """Return the message of an error in this API's form."""
    error = reply.json["error"]
    assert set(reply.json) == {"error"}
    assert error["type"] == ("server_error" if reply.status >= 500 else "invalid_request_error")
    sentence: str = error["message"]
    return sentence


def chunks(live: Any, content: str, **fields: Any) -> list[Any]:
    """Return the data of a stream's events, without the end marker."""
    body = {"model": "de-en", "messages": [{"role": "user", "content": content}], "stream": True} | fields
    with closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=20)) as connection:
        connection.request("POST", ADDRESS, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200
        assert reply.getheader("Content-Type") == "text/event-stream; charset=utf-8"
        events = reply.read().decode().split("\n\n")
    assert events[-1] == ""
    data = [event.removeprefix("data: ") for event in events[:-1]]
    return [json.loads(each) if each != "[DONE]" else each for each in data]


def text_of(found: list[Any]) -> str:
    return "".join(each["choices"][0]["delta"].get("content", "") for each in found)


def test_a_users_last_words_are_translated(live: Any) -> None:
    said = [
        {"role": "system", "content": "translate well"},
        {"role": "user", "content": "eins"},
        {"role": "assistant", "content": "ONE"},
        {"role": "user", "content": "zwei\n\ndrei"},
    ]
    reply = live.ask("POST", ADDRESS, {"model": "de-en", "messages": said, "temperature": 0.7})
    assert reply.status == 200
    assert reply.json["object"] == "chat.completion"
    assert reply.json["model"] == "de-en"
    assert reply.json["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ZWEI\n\nDREI", "refusal": None},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert reply.json["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}


def test_models_with_context_read_earlier_messages_and_lines(serve: Any, gated_model: Any) -> None:
    class Reader(gated_model):  # type: ignore[misc]
        def __init__(self, context_before: int) -> None:
            super().__init__()
            self.context_before, self.documents = context_before, list[Any]()

        def translate(self, *args: Any, documents: Any = None, **options: Any) -> Any:
            self.documents.append(documents)
            return super().translate(*args, **options)

    messages = [
        {"role": "assistant", "content": "Welcome!"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},  # too early to be read
        {"role": "user", "content": "Ich bin Rosa."},
        {"role": "assistant", "content": "Hello, Rosa!"},
        {"role": "user", "content": "Danke."},
        {"role": "user", "content": "Wie heiße ich?\n\nUnd du?"},
    ]
    before = [("Ich bin Rosa.", "Hello, Rosa!"), ("Danke.", "")]
    model, other = Reader(2), Reader(0)
    for served, expected in ((model, Documents([True, True], before)), (other, None)):
        with serve(served) as live:
            reply = ask(live, messages=messages)
            assert reply.json["choices"][0]["message"]["content"] == "WIE HEISSE ICH?\n\nUND DU?"
            live.ask("POST", "/api/chat", {"model": "de-en", "messages": messages, "stream": False})
        assert served.documents == [expected] * 2
    with serve(model) as live:
        long = [{"role": "user", "content": "x" * 100_000}, *messages]
        assert ask(live, messages=[long[0], long[-1]]).status == 400  # the limit on characters counts the context
        assert ask(live, messages=long).status == 200
        model.documents.pop()
        assert live.translate(["eins\nzwei", "drei"]).json["translatedText"] == ["EINS\nZWEI", "DREI"]
        live.translate(["eins", "zwei"])  # no text has two lines, so batches may have other requests' texts
    assert model.documents[2:] == [Documents([False, True, False]), None]


def test_parts_of_text_are_one_text(live: Any) -> None:
    parts = [{"type": "text", "text": "eins "}, {"type": "text", "text": "zwei"}]
    assert ask(live, parts).json["choices"][0]["message"]["content"] == "EINS ZWEI"


def test_the_models_are_named_by_their_languages(live: Any) -> None:
    reply = live.ask("GET", "/v1/models")
    assert reply.json["object"] == "list"
    assert [model["id"] for model in reply.json["data"]] == ["de-en", "zh-en", "en-pt_BR"]
    for name in ("zh-en", "EN-PT_br"):
        assert ask(live, "tee", model=name).json["choices"][0]["message"]["content"] == "TEE"


def test_several_choices_are_the_alternatives(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(beam_size=4)) as live:
        found = ask(live, "eins", n=3).json["choices"]
        wanted = live.translate("eins", alternatives=2).json
    assert [choice["index"] for choice in found] == list(range(len(found)))
    assert [choice["message"]["content"] for choice in found] == [wanted["translatedText"], *wanted["alternatives"]]
    assert len(found) > 1


def test_a_stream_adds_up_to_the_answer(serve: Any, gated_model: Any) -> None:
    model = gated_model(steps=5)
    model.decode_start = lambda ids, _: "EIN"[: len(ids)]
    with serve(model) as live:
        *found, end = chunks(live, "ein Satz")
        several = chunks(live, "eins\nzwei")
    assert end == "[DONE]"
    assert {each["object"] for each in found} == {"chat.completion.chunk"}
    assert len({each["id"] for each in found}) == 1
    assert [each["choices"][0]["delta"].get("role") for each in found][:2] == ["assistant", None]
    assert [each["choices"][0]["finish_reason"] for each in found][-2:] == [None, "stop"]
    assert several[-1] == "[DONE]"
    assert text_of(several[:-1]) == "EINS\nZWEI"


def test_final_text_is_streamed_immediately(serve: Any, gated_model: Any) -> None:
    model = gated_model(steps=4, is_open=False)
    body = {"model": "de-en", "messages": [{"role": "user", "content": "ein Satz"}], "stream": True}
    with serve(model) as live, closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=10)) as connection:
        model.let_through(1)
        connection.request("POST", ADDRESS, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        for words in ("word0", " word1", " word2"):
            event, _ = reply.readline().decode(), reply.readline()
            assert json.loads(event.removeprefix("data: "))["choices"][0]["delta"]["content"] == words
            model.let_through(1)
        reply.read()


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"model": "gpt"}, 404, "There is no model `gpt`: GET /v1/models lists what is served."),
        ({"model": "x" * 99}, 404, f"There is no model `{'x' * 64}`: GET /v1/models lists what is served."),
        ({"messages": []}, 400, "Invalid request: there must be a message of the role `user`"),
        ({"messages": [{"role": "system", "content": "a"}]}, 400, "there must be a message of the role `user`"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "of the type `image_url`"),
        ({"messages": "eins"}, 400, "Invalid request: expected `array`, got `str` in `messages`"),
        ({"n": 5}, 400, "`n` must be at most 4, but is 5"),
        ({"n": 2, "stream": True}, 400, "only one text can be streamed: leave `n` out"),
        ({"n": 0}, 400, "Invalid request: expected `int` >= 1 in `n`"),
    ],
)
def test_invalid_requests_are_reported_in_openais_error_format(
    fields: dict[str, Any], status: int, sentence: str, live: Any
) -> None:
    reply = ask(live, **fields)
    assert reply.status == status
    assert sentence in fault(reply)


def test_unknown_addresses_are_reported_in_openais_error_format(live: Any) -> None:
    assert (
        fault(live.ask("POST", "/v1/embeddings", {}))
        == "There is nothing at this address: GET /spec lists what there is."
    )
    other = live.ask("GET", ADDRESS)
    assert (other.status, other.headers["allow"]) == (405, "POST")
    assert fault(other)


def test_an_error_during_streaming_is_an_event(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(is_open=False, steps=10), deadline_seconds=0.4) as live:
        live.service.routes.model("de", "en").let_through(1)
        found = chunks(live, "ein Satz")
    assert found[-1]["error"]["type"] == "server_error"


def test_chat_requests_respect_limits_and_api_keys(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(), api_keys=("secret",), max_characters=10) as live:
        assert ask(live).status == 403
        assert fault(ask(live))
        key = {"Authorization": "Bearer secret"}
        body = {"model": "de-en", "messages": [{"role": "user", "content": "eins"}]}
        assert live.ask("POST", ADDRESS, body, key).status == 200
        body["messages"] = [{"role": "user", "content": "e" * 11}]
        assert "exceeds text limit" in fault(live.ask("POST", ADDRESS, body, key))


def test_the_openai_client_library_translates(serve: Any, gated_model: Any) -> None:
    openai = pytest.importorskip("openai")
    model = gated_model()
    model.decode_start = lambda ids, _: "EIN"[: len(ids)]
    with serve(model, api_keys=("secret",)) as live:
        client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="secret", max_retries=0)
        assert [model.id for model in client.models.list()] == ["de-en"]
        said: Any = [{"role": "user", "content": "ein süßer Tee"}]
        answer = client.chat.completions.create(model="de-en", messages=said)
        assert answer.choices[0].message.content == "EIN SÜSSER TEE"
        said = [{"role": "user", "content": "ein süßer\nTee"}]
        stream = client.chat.completions.create(model="de-en", messages=said, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "EIN SÜSSER\nTEE"
        with pytest.raises(openai.NotFoundError, match="There is no model `gpt`"):
            client.chat.completions.create(model="gpt", messages=said)
        client.close()


# --- chat templates ---

TEMPLATE = """{% for m in messages %}{{ '<|turn|>' + m.role + ': ' + m.content + '<|end|>' }}{% endfor %}
{%- if messages[-1].content == 'refuse' %}{{ raise_exception('This is too hard') }}{% endif %}
{%- if enable_thinking is false %}{{ 'briefly ' }}{% endif %}
{%- if add_generation_prompt %}{{ '<|turn|>assistant: ' }}{% endif %}"""


@pytest.fixture
def templated(make_decoder: Any, serve: Any) -> Any:
    """Yield a server with a language model that has a chat template, and the model."""
    folder = make_decoder("Qwen2ForCausalLM", max_position_embeddings=150)
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    generator = load_generator(folder, precision="fp32", device="cpu", threads=1)
    with serve(generators=[ServedGenerator("talker", generator)]) as live:
        yield live, generator


def test_a_chat_template_writes_the_prompt(templated: Any) -> None:
    live, generator = templated
    said = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]

    def answer(messages: Any, **options: Any) -> str:
        answered: str = generator.chat(messages, max_length=8, temperature=0, **options).answer
        return answered

    def openai(messages: Any, **fields: Any) -> Any:
        return live.ask("POST", ADDRESS, {"model": "talker", "messages": messages, **GREEDY, **fields})

    def ollama(path: str, **fields: Any) -> Any:
        options = {"temperature": 0, "num_predict": 8}
        return live.ask("POST", path, {"model": "talker", "stream": False, "options": options, **fields})

    reply = openai(said).json
    assert reply["choices"][0]["message"]["content"] == answer(said)
    assert reply["usage"]["prompt_tokens"] == len(generator.prompt_ids(generator.chat_prompt(said)))
    assert openai([{"role": "developer", "content": "be kind"}, *said[1:]]).json["choices"] == reply["choices"]
    parts = [{"type": "text", "text": "th"}, {"type": "text", "text": "ree"}]
    assert openai([*said[:3], {"role": "user", "content": parts}]).json["choices"] == reply["choices"]
    assert text_of(chunks(live, "three", model="talker", **GREEDY)[:-1]) == answer("three")
    # The final message of the assistant is answered, or continued on request.
    assert openai(said[:3]).json["choices"][0]["message"]["content"] == answer(said[:3])
    continued = openai(said[:3], continue_final_message=True).json["choices"][0]["message"]["content"]
    assert continued == answer(said[:3], continue_final_message=True)
    brief = {"enable_thinking": False}
    briefly = answer(said, template_variables=brief)
    assert openai(said, chat_template_kwargs=brief).json["choices"][0]["message"]["content"] == briefly
    assert ollama("/api/chat", messages=said).json["message"]["content"] == answer(said)
    assert ollama("/api/chat", messages=said, think=False).json["message"]["content"] == briefly
    assert ollama("/api/chat", messages=said[:3], continue_final_message=True).json["message"]["content"] == continued
    assert ollama("/api/generate", prompt="three").json["response"] == answer("three")
    system = [said[0], said[3]]
    assert ollama("/api/generate", prompt="three", system="be kind").json["response"] == answer(system)
    plain = generator("three", max_length=8, temperature=0).continuations[0].text
    assert ollama("/api/generate", prompt="three", raw=True).json["response"] == plain
    completed = live.ask("POST", "/v1/completions", {"model": "talker", "prompt": "three", **GREEDY})
    assert completed.json["choices"][0]["text"] == plain


def test_conversations_that_a_template_cannot_write_are_refused(templated: Any) -> None:
    live, _ = templated
    for message, sentence in (
        ({"role": "user", "content": "refuse"}, "The model's chat template refuses the messages (This is too hard)"),
        ({"role": "tool", "content": "7"}, "a message's role must be system, developer, user, assistant, but one is"),
        ({"role": "user", "content": "a" * 30_000}, "request (30000) exceeds text limit (20000 characters)"),
        ({"role": "user", "content": "a " * 90}, "fewer tokens than the model's context of 150, but has "),
    ):
        reply = live.ask("POST", ADDRESS, {"model": "talker", "messages": [message]})
        assert reply.status == 400
        assert sentence in fault(reply)
    # The prompt is not tokenized, which would keep other requests waiting.
    reply = live.ask("POST", ADDRESS, {"model": "talker", "messages": [{"role": "user"}] * 2000})
    assert reply.status == 400
    assert "at most 20,000 characters with the template's markers, but has 42,019: " in fault(reply)
    reply = live.ask("POST", ADDRESS, {"model": "talker", "messages": []})
    assert "A conversation must be a list of messages" in fault(reply)
    reply = live.ask("POST", "/api/chat", {"model": "talker", "messages": [{"role": "user", "content": "refuse"}]})
    assert reply.status == 400
    assert "This is too hard" in reply.json["error"]


def test_an_answer_ends_when_the_context_is_full(templated: Any) -> None:
    live, generator = templated
    content = "one " * 25
    count = len(generator.prompt_ids(generator.chat_prompt(content)))
    body = {"model": "talker", "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 500}
    reply = live.ask("POST", ADDRESS, body).json
    assert reply["usage"]["completion_tokens"] <= 150 - count
    assert reply["choices"][0]["message"]["content"] == generator.chat(content, max_length=500, temperature=0).answer


@pytest.mark.parametrize("field", [{"continue_final_message": True}, {"chat_template_kwargs": {"a": 1}}])
def test_fields_of_templates_need_a_template(live: Any, field: Any) -> None:
    reply = ask(live, **field)
    assert reply.status == 400
    assert "is not supported by this server: leave it out" in fault(reply)
    messages = [{"role": "user", "content": "eins"}]
    reply = live.ask("POST", "/api/chat", {"model": "de-en", "messages": messages, "continue_final_message": True})
    assert reply.status == 400
