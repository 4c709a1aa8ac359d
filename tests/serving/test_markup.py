"""Test HTML in requests, whose tags are aligned with the model of the request."""

import re
from types import SimpleNamespace
from typing import Any

from transduce.inference.translator import Translator
from transduce.serving.jobs import JobSentence, TranslationJob
from transduce.serving.models import ServedModel
from transduce.text.word_spans import Span


def test_tags_of_expired_requests_are_not_aligned(gated_model: Any) -> None:
    model = gated_model()
    spans = {0: [Span(0, 3)]}
    jobs = [TranslationJob(model, ["ein Satz"], model.search, seconds=seconds, marks=spans) for seconds in (60.0, 1e-9)]
    observer = SimpleNamespace(after_step=lambda *_: ())
    waited_for, expired = jobs[0].decode([JobSentence(job, 0) for job in jobs], observer)
    assert waited_for.mark_spans == [[Span(0, 3)]]
    assert expired.mark_spans == ()


def test_a_real_models_document_has_its_tags_around_words(serve: Any, translator: Translator) -> None:
    with serve(ServedModel(translator, languages=("zh", "en"))) as live:
        reply = live.translate("<p>我吃<b>鱼</b>。</p>", source="zh", format="html").json["translatedText"]
    plain = translator("我吃鱼。").text
    assert re.sub("</?b>", "", reply) == f"<p>{plain}</p>"
    assert re.search(r"<b>\w[^<]*</b>", reply)
