"""Test that conversations are written by a model's chat template, and answered, as transformers does."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import transduce
from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.exchange.export import export
from transduce.exchange.import_folder import import_model_folder
from transduce.inference.generator import Generator, load_generator
from transduce.interop.hugging_face.imported_tokenizer import ChatTemplate
from transduce.search.settings import SearchSettings
from transduce.tasks.train import train

MakeFolder = Callable[..., Path]
GREEDY = SearchSettings(beam_size=1, max_length=12)
TURNS = """{% for message in messages %}
    {%- if loop.first and message.role != 'system' %}
<|turn|>system
be kind.<|end|>
{%- endif %}
{{ '<|turn|>' + message['role'] + '\\n' + message['content'] + '<|end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|turn|>assistant\\n' }}
{%- endif %}"""
STARTS = """{% set ns = namespace(count=0) %}{% for m in messages %}
{% set content = m['role'] ~ ': ' ~ m['content'] | trim ~ eos_token %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
{% set ns.count = ns.count + 1 %}
{{ content }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant ' ~ ns.count ~ ': ' }}{% endif %}"""
ALTERNATING = """{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\\n\\n' %}
{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate, user first') }}{% endif %}
{% if m.role == 'user' %}{{ '[Q] ' + (first if loop.first else '') + m.content.strip() + ' [/Q]' }}
{%- else %}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"""
FEATURES = """{%- macro shown(text) -%}<{{ text | upper }}>{%- endmacro -%}
{{ messages | map(attribute='content') | list | tojson }} {{ {'b': '<é>', 'a': [1, none]} | tojson(indent=1) }}
{{ strftime_now('%Y') }} {{ tools is none }} {{ documents is defined }} {{ cls_token or 'no' }}
{%- for m in messages[::-1] %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
    {%- if loop.index > 2 %}{% break %}{% endif %}
    {{- shown(m.content.split(' ')[-1].rstrip('.')) }}
{%- endfor %}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '\\n(no thoughts)\\n' }}{% endif %}"""
ALL = {"turns": TURNS, "starts": STARTS, "alternating": ALTERNATING, "features": FEATURES}
USER = [{"role": "user", "content": " I like tea. "}]
LONG = [
    {"role": "system", "content": "You are a fish."},
    {"role": "user", "content": "nobody eats"},
    {"role": "assistant", "content": "the <|end|> cat\nis  big "},
    {"role": "user", "content": "Wer heißt 'Zoë'? 我 😀"},
]


def peers() -> Any:
    return pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")


def with_template(folder: Path, template: str) -> Path:
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    return folder


def opened(folder: Path) -> Generator:
    return load_generator(folder, precision="fp32", device="cpu", threads=1)


def their_ids(folder: Path, messages: Any, **options: Any) -> Any:
    tokenizer = peers().AutoTokenizer.from_pretrained(folder)
    options = {"add_generation_prompt": True} | options
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_prompts_and_answers_equal_those_of_transformers(
    name: str, begins: bool, make_decoder: MakeFolder, tmp_path: Path
) -> None:
    folder = with_template(make_decoder("Qwen2ForCausalLM", begins=begins), ALL[name])
    import_model_folder(folder, tmp_path / "ours")
    model = peers().AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = peers().AutoTokenizer.from_pretrained(folder)
    for generator in (opened(folder), opened(tmp_path / "ours")):
        for messages in (USER, LONG):
            expected = their_ids(folder, messages)
            prompt = generator.chat_prompt(messages)
            assert generator.prompt_ids(prompt) == expected
            assert prompt == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            found = model.generate(torch.tensor([expected]), max_new_tokens=12, do_sample=False, pad_token_id=2)[0]
            answer = generator.chat(messages, search=GREEDY).answer
            assert answer == tokenizer.decode(found[len(expected) :], skip_special_tokens=True)
            assert "".join(generator.stream(prompt, GREEDY)) == answer
        batch = generator([generator.chat_prompt(each) for each in (USER, LONG)], search=GREEDY)
        assert [each.answer for each in batch] == [generator.chat(each, search=GREEDY).answer for each in (USER, LONG)]
        # A prompt that is no conversation keeps its start symbol.
        assert generator.prompt_ids("tea")[:1] == ([0] if begins else generator.vocabulary.encode("tea")[:1])


def test_a_final_message_is_continued_only_on_request(make_decoder: MakeFolder) -> None:
    folder = make_decoder("Qwen2ForCausalLM")
    messages = [*LONG, {"role": "assistant", "content": "the cat "}]
    for template in (TURNS, STARTS):
        generator = opened(with_template(folder, template))
        continued = {"continue_final_message": True, "add_generation_prompt": False}
        assert generator.prompt_ids(generator.chat_prompt(messages)) == their_ids(folder, messages)
        prompt = generator.chat_prompt(messages, continue_final_message=True)
        assert generator.prompt_ids(prompt) == their_ids(folder, messages, **continued)
        assert prompt.endswith("the cat " if template is TURNS else "the cat")
    generator = opened(with_template(folder, "{{ messages[0].content }}"))
    with pytest.raises(TransduceError, match="leaves out the final message"):
        generator.chat_prompt(messages, continue_final_message=True)
    with pytest.raises(TransduceError, match="`content` is a text"):
        generator.chat_prompt([{"role": "user", "content": None}], continue_final_message=True)


def test_variables_reach_a_template_but_do_not_replace_the_messages(make_decoder: MakeFolder) -> None:
    folder = with_template(make_decoder("Qwen2ForCausalLM"), FEATURES)
    generator = opened(folder)
    for variables in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        prompt = generator.chat_prompt(LONG, template_variables=variables)
        assert generator.prompt_ids(prompt) == their_ids(folder, LONG, **variables)
        assert ("(no thoughts)" in prompt) == (variables == {"enable_thinking": False})
        assert str(datetime.now().year) in prompt
    assert generator.chat_prompt(LONG, template_variables={"messages": USER}) == generator.chat_prompt(LONG)
    assert generator.chat_prompt("I like tea.") == generator.chat_prompt([{"role": "user", "content": "I like tea."}])


@pytest.mark.parametrize("file", ["tokenizer_config.json", "named", "chat_template.json", "additional"])
def test_a_template_is_found_wherever_a_folder_stores_it_and_exported(
    file: str, make_decoder: MakeFolder, tmp_path: Path
) -> None:
    folder = make_decoder("LlamaForCausalLM")
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    if file == "additional":
        with_template(folder, TURNS)
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools", "utf-8")
    elif file == "chat_template.json":
        (folder / file).write_text(json.dumps({"chat_template": TURNS}), "utf-8")
    else:
        named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": TURNS}]
        settings["chat_template"] = named if file == "named" else TURNS
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    (note,) = import_model_folder(folder, tmp_path / "ours").notes
    assert note.startswith(f"{folder} has a chat template: ")
    expected = ChatTemplate(source=TURNS).render(LONG)
    export(tmp_path / "ours", tmp_path / "back", to="huggingface")
    for each in ("theirs", "ours", "back"):
        assert opened(tmp_path / each).chat_prompt(LONG) == expected
    if file != "chat_template.json":  # only processors of transformers read this file
        assert their_ids(tmp_path / "back", LONG) == their_ids(folder, LONG)
    if file in ("additional", "named"):
        theirs = peers().AutoTokenizer.from_pretrained(tmp_path / "back").chat_template
        assert theirs == {"tool_use": "tools", "default": TURNS}


def test_templates_outside_of_a_folder_are_not_copied(make_decoder: MakeFolder, tmp_path: Path) -> None:
    folder = make_decoder("LlamaForCausalLM")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "notes.jinja").write_text("private", "utf-8")
    (folder / "additional_chat_templates").symlink_to(tmp_path / "private")
    with pytest.raises(TransduceError, match="additional_chat_templates is a link that leads out of its folder"):
        import_model_folder(folder, tmp_path / "ours")


def test_a_saved_copy_of_a_model_keeps_its_template_and_exports_it(make_decoder: MakeFolder, tmp_path: Path) -> None:
    generator = opened(with_template(make_decoder("GPT2LMHeadModel"), TURNS))
    transduce.save(generator.model, tmp_path / "saved", tokenizer=generator.tokenizer)
    export(tmp_path / "saved", tmp_path / "back", to="huggingface")
    for folder in (tmp_path / "saved", tmp_path / "back"):
        assert opened(folder).chat_prompt(USER) == generator.chat_prompt(USER)
    tokenizer = peers().AutoTokenizer.from_pretrained(tmp_path / "back")
    assert tokenizer.apply_chat_template(USER, tokenize=False, add_generation_prompt=True) == generator.chat_prompt(
        USER
    )


def test_a_template_changes_neither_ids_nor_the_fingerprint(make_decoder: MakeFolder) -> None:
    folder = make_decoder("LlamaForCausalLM")
    plain: Any = opened(folder).tokenizer
    templated: Any = opened(with_template(folder, TURNS)).tokenizer
    assert plain.record != templated.record
    assert plain.fingerprint == templated.fingerprint
    assert not Generator(opened(folder).model, templated.line_by_line(), context=90).has_chat_template


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('Only one question') }}", "refuses the messages (Only one question)"),
        ("{% for m in %}", "is not valid (line 1: "),
        ("{{ messages[0].nothing.at_all }}", "refuses the messages ('dict object' has no attribute 'nothing')"),
        ("{{ 1 // 0 }}", "refuses the messages ("),
        ("{{ messages.append(1) }}", "refuses the messages ("),
        ("{{ ''.__class__.__mro__ }}", "refuses the messages ("),
        ("{% include 'file' %}", "refuses the messages ("),
        ("{{ messages | nonsense }}", "is not valid (line 1: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses the messages (maximum recursion"),
        ("{{ messages | tojson(indent=messages) }}", "refuses the messages ("),
        ("{{ 'x'.ljust(10**18) }}", "refuses the messages (MemoryError)"),
        ("{% for m in messages %}" * 25 + "{% endfor %}" * 25, "refuses the messages (too many statically nested"),
    ],
)
def test_a_template_that_fails_is_reported_in_a_sentence(template: str, message: str) -> None:
    with pytest.raises(TransduceError, match=re.escape(f"The model's chat template {message}")):
        ChatTemplate(source=template).render(USER)


@pytest.mark.parametrize("messages", [[], None, [None], [{}], [{"role": 3}], ["hi"], {"role": "user"}, "hi"])
def test_messages_that_are_none_are_refused(messages: Any) -> None:
    with pytest.raises(TransduceError, match="A conversation must be a list of messages"):
        ChatTemplate(source=TURNS).render(messages)


def test_messages_hold_plain_values_only() -> None:
    with pytest.raises(TransduceError, match="texts, numbers, lists and dicts only"):
        ChatTemplate(source=TURNS).render([{"role": "user", "content": object()}])


def test_a_conversation_must_leave_space_in_the_context(make_decoder: MakeFolder) -> None:
    folder = with_template(make_decoder("GPT2LMHeadModel"), "{% for m in messages %}{{ m.content }}{% endfor %}")
    generator = opened(folder)
    assert generator.context == 90
    with pytest.raises(TransduceError, match="fewer tokens than the model's context of 90, but has 90: "):
        generator.chat("\n" * 90)
    whole = generator.chat("\n" * 80, max_length=50, temperature=0)
    (found,) = whole.continuations
    assert len(found.token_log_probabilities) <= 10
    assert found.text == generator.chat("\n" * 80, max_length=10, temperature=0).answer
    assert whole.text == "\n" * 80 + whole.answer


def test_a_model_without_template_is_reported(make_decoder: MakeFolder) -> None:
    generator = opened(make_decoder("GPT2LMHeadModel"))
    assert not generator.has_chat_template
    with pytest.raises(TransduceError, match="The model has no chat template: write a prompt"):
        generator.chat("hello")


def test_the_command_answers_messages_and_holds_a_conversation(
    make_decoder: MakeFolder,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = str(with_template(make_decoder("Qwen2ForCausalLM"), TURNS))
    generator = opened(Path(folder))
    options = ["--chat", "--greedy", "--max-length", "12", "--precision", "fp32", "--device", "cpu", "--threads", "1"]

    def printed(*arguments: str, lines: str = "") -> str:
        (tmp_path / "in").write_text(lines, "utf-8")
        with (tmp_path / "in").open() as file:
            monkeypatch.setattr("sys.stdin", file)
            assert main(["generate", folder, *arguments, *options]) == 0
        return capfdbinary.readouterr().out.decode()

    first = generator.chat("I like tea.", search=GREEDY).answer
    assert printed("I like tea.") == first + "\n"
    assert printed("-", lines="\n") == generator.chat("", search=GREEDY).answer + "\n"  # not without the template
    system = [{"role": "system", "content": "Be a fish."}, {"role": "user", "content": "I like tea."}]
    assert printed("I like tea.", "--system", "Be a fish.") == generator.chat(system, search=GREEDY).answer + "\n"
    (tmp_path / "questions").write_text("I like tea.\nnobody eats\n", "utf-8")
    other = generator.chat("nobody eats", search=GREEDY).answer
    assert printed("--prompts", str(tmp_path / "questions")) == f"{first}\n---\n{other}\n"
    messages = [
        {"role": "user", "content": "I like tea."},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "nobody eats"},
    ]
    second = generator.chat(messages, search=GREEDY).answer
    assert printed(lines="I like tea.\n\nnobody eats\n") == f"{first}\n{second}\n"
    typed = iter(["I like tea.", "nobody eats", "", "never read"])
    monkeypatch.setattr("builtins.input", lambda *_: next(typed))
    with monkeypatch.context() as terminal:
        terminal.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
        assert main(["generate", folder, *options]) == 0
    assert capfdbinary.readouterr().out.decode() == f"{first}\n{second}\n"
    report = json.loads(printed("I like tea.", "--json", "-"))
    assert report["prompt"] == generator.chat_prompt("I like tea.")
    assert [each["text"] for each in report["continuations"]] == [first]
    reports = json.loads(printed("--prompts", str(tmp_path / "questions"), "--json", "-"))["generations"]
    assert [each["continuations"][0]["text"] for each in reports] == [first, other]
    for arguments, message in (
        (["--json", "-"], b"A conversation goes on with one answer"),
        (["--n-best", "2"], b"--greedy finds one text"),
    ):
        assert main(["generate", folder, *arguments, *options]) == 2
        assert message in capfdbinary.readouterr().err
    assert main(["generate", folder, "--system", "x"]) == 2
    assert b"`--system` begins a conversation: add --chat" in capfdbinary.readouterr().err


def test_a_fine_tuned_model_reads_lines_and_so_has_no_template(
    make_decoder: MakeFolder, tmp_path: Path, toy_corpus: Path
) -> None:
    folder = with_template(make_decoder("Qwen2ForCausalLM"), TURNS)
    settings = {"task.kind": "language-model", "task.context": 16, "training.steps": 2, "training.precision": "fp32"}
    text = str(toy_corpus / "train.en")
    train(out=tmp_path / "run", init_from=folder, source=text, settings=settings, device="cpu", threads=1)
    assert not opened(tmp_path / "run").has_chat_template
