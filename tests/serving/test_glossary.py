"""Test glossary terms over HTTP: the server's own glossary, and glossaries in requests."""

from pathlib import Path
from typing import Any

import pytest

from transduce.commands.serve import read_glossaries
from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.serving.jobs import TranslationJob
from transduce.serving.models import ServedModel
from transduce.text.glossary import Glossary, Term, contains_phrase

OWN = Glossary([Term("Hund", ("dog",))])


def test_the_servers_glossary_applies_to_all_requests(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(glossary=OWN)) as live:
        assert live.translate("ein Hund").json["translatedText"] == "EIN HUND dog"
        asked = {"text": ["ein Hund"], "source_lang": "DE", "target_lang": "EN"}
        reply = live.ask("POST", "/v2/translate", asked)
        assert reply.json["translations"][0]["text"] == "EIN HUND dog"


def test_the_terms_of_a_request_replace_the_servers_glossary(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(glossary=OWN)) as live:
        asked = {"glossary": {"Satz": "phrase", "ein": ["a", "one"]}}
        assert live.translate("ein Satz, ein Hund", **asked).json["translatedText"] == "EIN SATZ, EIN HUND a phrase"
        assert live.translate("ein Hund", glossary={}).json["translatedText"] == "EIN HUND"
        assert live.translate("ein Hund", glossary=None).json["translatedText"] == "EIN HUND dog"


def test_a_missing_glossary_term_causes_a_quality_warning(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(glossary=Glossary([Term("Hund", ("dog", "dogs"))]))) as live:
        assert live.translate("ein Hund", quality_warnings=True).json["qualityWarnings"] == []
    model = gated_model(glossary=OWN)
    model.translate = lambda *rest, **options: gated_model().translate(*rest, **options | {"glossary": None})
    with serve(model) as live:
        found = live.translate("ein Hund", quality_warnings=True).json["qualityWarnings"]
    assert {"kind": "terms", "found": "`Hund` as `dog`"} in found


@pytest.mark.parametrize(
    ("glossary", "sentence"),
    [
        ({"Satz": ""}, "Invalid request: A term needs a text for the source and at least one for the translation"),
        ({"": "phrase"}, "Invalid request: A term needs a text for the source"),
        ({"Satz": []}, "Invalid request: A term needs a text for the source"),
        ({"Satz": "☃"}, "Invalid request: this model cannot write ☃"),
        ({"Satz": 5}, "Invalid request: expected `str | array`, got `int` in `glossary[...]`"),
        (["Satz"], "Invalid request: expected `object | null`, got `array` in `glossary`"),
        ({f"Satz{n}": "x" for n in range(501)}, "Invalid request: glossary (501 terms) exceeds limit (500)"),
        ({"Satz": "x" * 20_000}, "Invalid request: request (20012) exceeds text limit (20000 characters)"),
    ],
)
def test_malformed_glossaries_are_refused(serve: Any, gated_model: Any, glossary: Any, sentence: str) -> None:
    with serve(gated_model()) as live:
        reply = live.translate("ein Satz", glossary=glossary)
    assert reply.status == 400
    assert reply.error.startswith(sentence)


def test_sentences_with_other_glossaries_are_not_decoded_together(gated_model: Any) -> None:
    model, search = gated_model(), SearchSettings(beam_size=1)
    first, same, other, none = (
        TranslationJob(model, ["a"], search, seconds=9, glossary=glossary)
        for glossary in (OWN, OWN, Glossary(OWN.terms), None)
    )
    assert first.is_compatible_with(same)
    assert not first.is_compatible_with(other)
    assert not first.is_compatible_with(none)


def test_sentences_with_terms_stream_only_their_final_translation(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(glossary=OWN, steps=5)) as live:
        body = live.translate("ein Hund\nein Satz", stream=True).body.decode()
    assert '"line":1' in body
    assert '"line":0' not in body
    assert body.endswith('data: {"translatedText":"EIN HUND dog\\nEIN SATZ"}\n\n')


def test_a_real_model_answers_as_it_does_offline(serve: Any, translator: Translator) -> None:
    glossary, lines = {"鱼": "milk"}, ["我吃鱼。", "我们喝水。"]
    offline = [found.text for found in translator.translate(lines, translator.search, glossary=glossary)]
    with serve(ServedModel(translator, languages=("zh", "en"))) as live:
        assert live.translate(lines, source="zh", glossary=glossary).json["translatedText"] == offline
        assert contains_phrase(offline[0], "milk")
        reply = live.translate(lines, source="zh", glossary={"鱼": "☃"})
        assert (reply.status, reply.error[:45]) == (400, "Invalid request: A translation cannot contain")


def test_a_model_that_cannot_write_a_term_is_reported_when_it_is_named(translator: Translator) -> None:
    model = ServedModel(translator, languages=("zh", "en"))
    with pytest.raises(TransduceError, match="A translation cannot contain `☃`"):
        model.use(Glossary([Term("鱼", ("☃",))]))


def test_files_are_named_with_languages_where_there_are_several_models(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("Hund\tdog\n", encoding="utf-8")
    assert [term.source for term in read_glossaries([str(path)], 1)[None].terms] == ["Hund"]
    assert set(read_glossaries([f"de:en={path}", f"en:de={path}"], 2)) == {("de", "en"), ("en", "de")}
    for named in ([str(path)], [f"de:en={path}"] * 2, [str(path), f"de:en={path}"]):
        with pytest.raises(TransduceError, match=r"the model of `.*` is ambiguous: set its languages, as in zh:en="):
            read_glossaries(named, 2)
    # Codes that lead to one model are one pair.
    assert set(read_glossaries([f"zh-CN:en={path}"], 2)) == set(read_glossaries([f"zh:EN={path}"], 2))
    with pytest.raises(TransduceError, match="the model of `zh_Hans:en="):
        read_glossaries([f"zh-CN:en={path}", f"zh_Hans:en={path}"], 2)
