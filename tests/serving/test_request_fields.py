"""Test that the table of request fields in docs/serving.md agrees with the messages and the protocols."""

import re
from pathlib import Path

import msgspec
import pytest

from transduce.serving import deepl, messages, ollama, openai

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
MESSAGES: dict[str, type] = {
    "LibreTranslate `/translate`": messages.TranslateRequest,
    "LibreTranslate `/detect`": messages.DetectRequest,
    "LibreTranslate `/translate_file`": messages.TranslateFileRequest,
    "LibreTranslate `/suggest`": messages.SuggestRequest,
    "DeepL `/v2/translate`": deepl.DeepLRequest,
    "DeepL `/v2/document`": deepl.DeepLDocumentRequest,
    "DeepL `/v2/document/ID`": deepl.DeepLDocumentKey,
    "DeepL `/v2/glossaries`": deepl.DeepLGlossaryRequest,
    "DeepL `/v2/languages`": deepl.DeepLLanguagesRequest,
    "OpenAI `/v1/chat/completions`": openai.ChatRequest,
    "OpenAI `/v1/completions`": openai.CompletionsRequest,
    "Ollama `/api/chat`": ollama.OllamaChatRequest,
    "Ollama `/api/generate`": ollama.OllamaGenerateRequest,
    "Ollama `/api/show`": ollama.OllamaShowRequest,
}
# The fields in the protocols' own documentation and in their official clients.
DOCUMENTED = {
    "LibreTranslate `/translate`": "q source target format alternatives api_key",
    "LibreTranslate `/detect`": "q api_key",
    "LibreTranslate `/translate_file`": "file source target api_key",
    "LibreTranslate `/suggest`": "q s source target",
    "DeepL `/v2/translate`": """text source_lang target_lang context show_billed_characters split_sentences
        preserve_formatting formality model_type glossary_id glossary_ids style_id custom_instructions tag_handling
        tag_handling_version outline_detection non_splitting_tags splitting_tags ignore_tags translation_memory_id
        translation_memory_threshold enable_beta_languages""",
    "DeepL `/v2/document`": """source_lang target_lang file filename output_format formality glossary_id glossary_ids
        style_id translation_memory_id translation_memory_threshold enable_beta_languages
        enable_document_minification""",
    "DeepL `/v2/document/ID`": "document_key",
    "DeepL `/v2/glossaries`": "name source_lang target_lang entries entries_format",
    "DeepL `/v2/languages`": "type",
    "Ollama `/api/chat`": "model messages tools format options stream think keep_alive logprobs top_logprobs",
    "Ollama `/api/generate`": """model prompt suffix images think format options system template context stream raw
        keep_alive logprobs top_logprobs""",
    "Ollama `/api/show`": "model verbose",
}


def table() -> dict[str, list[set[str]]]:
    """Return the fields of each request that the page lists as implemented, accepted and refused."""
    section = PAGE.read_text("utf-8").partition("### Request fields")[2].partition("\n## ")[0]
    rows = [line.strip("| \n") for line in section.split("\n") if line.startswith("| ") and "`/" in line]
    cells = [re.split(r" ?\| ?", row) for row in rows]
    return {
        name: [set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", cell))) for cell in (*rest, "", "")[:3]]
        for name, *rest in cells
    }


@pytest.mark.parametrize("name", MESSAGES)
def test_the_table_and_the_messages_agree(name: str) -> None:
    implemented, accepted, refused = table()[name]
    fields = [field.encode_name for field in msgspec.structs.fields(MESSAGES[name])]
    assert sorted([*implemented, *accepted, *refused]) == sorted(fields)


def test_the_table_is_complete() -> None:
    assert set(table()) == set(MESSAGES)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_documented_field_is_in_the_table(name: str) -> None:
    assert set(DOCUMENTED[name].split()) <= set.union(*table()[name])


@pytest.mark.parametrize(
    ("name", "path"), [("OpenAI `/v1/chat/completions`", "chat"), ("OpenAI `/v1/completions`", "completions")]
)
def test_every_field_of_openais_client_is_in_the_table(name: str, path: str) -> None:
    import inspect

    client = pytest.importorskip("openai").OpenAI(api_key="any")
    create = (client.chat.completions if path == "chat" else client.completions).create
    parameters = set(inspect.signature(create).parameters)
    transport = {"extra_headers", "extra_query", "extra_body", "timeout"}
    assert parameters - transport <= set.union(*table()[name])
    client.close()
