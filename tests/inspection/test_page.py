"""Test the page of a translation: the figures of its payload, the beam's tree, and that the page is self-contained."""

import base64
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.inspection.attention import attention_maps, shaded_table, small_heat_maps, word_attention
from transduce.inspection.attribution import Method
from transduce.inspection.page import render_page
from transduce.inspection.sentence import inspect_sentence, sample_sentences
from transduce.inspection.sentence_view import (
    AttentionBytes,
    Inspection,
    InspectionPage,
    TextInspection,
    TextInspectionPage,
    WordAttribution,
    draw_bar,
    draw_inspection,
    to_bytes,
)
from transduce.model.build import build_model
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.ui_language_choice import use_ui_language

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

SENTENCE = "今天老师喜欢苹果。"
BEAM = SearchSettings(beam_size=3)


def from_bytes(attention: AttentionBytes) -> npt.NDArray[np.float32]:
    """Return attention weights, float32 (layers, heads, queries, keys), from their bytes, as the page's script does."""
    quantized = np.frombuffer(base64.b64decode(attention.weights), dtype=np.uint8)
    return np.asarray(quantized.reshape(attention.shape) / np.float32(255.0), dtype=np.float32)


@pytest.fixture(scope="module")
def inspection(translator: Translator) -> Inspection:
    return inspect_sentence(translator, SENTENCE, search=BEAM)


def test_an_inspection_holds_the_translation_and_its_probabilities(
    translator: Translator, inspection: Inspection
) -> None:
    translation = translator(SENTENCE, search=BEAM)
    assert inspection.translation == translation.text
    assert inspection.score == pytest.approx(translation.score, abs=1e-5)
    expected = [math.exp(value) for value in translation.alternatives[0].token_log_probabilities]
    assert [step.probability for step in inspection.steps] == pytest.approx(expected, abs=1e-5)
    assert [step.token for step in inspection.steps] == list(inspection.target_tokens)


def test_candidates_are_the_likeliest_first(inspection: Inspection) -> None:
    for step in inspection.steps:
        values = [candidate.probability for candidate in step.candidates]
        assert values == sorted(values, reverse=True)
        assert len(values) == 6
        assert step.probability <= values[0]
        assert all(step.probability == each.probability for each in step.candidates if each.token == step.token)


def test_attention_is_the_models_own_to_half_a_byte(translator: Translator, inspection: Inspection) -> None:
    maps = attention_maps(translator, SENTENCE, inspection.translation)
    for packed, exact in (
        (inspection.encoder, maps.encoder),
        (inspection.decoder, maps.decoder),
        (inspection.memory, maps.memory),
    ):
        assert np.abs(from_bytes(packed) - exact).max() <= 0.5 / 255 + 1e-4


def test_attention_weights_survive_conversion_to_bytes() -> None:
    weights = np.array([[[[0.0, 1.0], [0.25, 0.75]]]], dtype=np.float32)
    assert np.abs(from_bytes(to_bytes(weights)) - weights).max() <= 0.5 / 255
    assert from_bytes(to_bytes(weights))[0, 0, 0].tolist() == [0.0, 1.0]


# --- the tree ---


def paths_of(inspection: Inspection) -> list[tuple[str, ...]]:
    paths: list[tuple[str, ...]] = [()]
    for node in inspection.tree[1:]:
        paths.append((*paths[node.parent], node.token))
    return paths


def test_the_trees_best_path_is_the_translation(inspection: Inspection) -> None:
    paths = paths_of(inspection)
    best = [path for path, node in zip(paths, inspection.tree, strict=True) if node.best]
    assert best[-1] == inspection.target_tokens
    assert best == [inspection.target_tokens[:length] for length in range(len(inspection.target_tokens) + 1)]
    last = inspection.tree[paths.index(inspection.target_tokens)]
    assert last.ended
    assert last.score == pytest.approx(inspection.score, abs=1e-4)
    assert max(node.score for node in inspection.tree if node.score is not None) == last.score


def test_parents_stand_before_children_and_log_probabilities_fall(inspection: Inspection) -> None:
    for number, node in enumerate(inspection.tree[1:], 1):
        assert 0 <= node.parent < number
        assert node.log_probability <= inspection.tree[node.parent].log_probability + 1e-4
        assert not inspection.tree[node.parent].ended


def test_no_step_keeps_more_than_the_beam(inspection: Inspection) -> None:
    live = [len(path) for path, node in zip(paths_of(inspection), inspection.tree, strict=True) if not node.ended]
    assert max(live.count(length) for length in live) <= BEAM.beam_size
    assert sum(node.ended for node in inspection.tree) == BEAM.beam_size


def test_a_nodes_log_probability_is_the_models(translator: Translator, inspection: Inspection) -> None:
    """Every path's sum, read again one path at a time."""
    config, tokenizer = translator.model.config, translator.tokenizer
    source = torch.tensor([[*tokenizer.source.encode(SENTENCE), config.eos_id]])
    for path, node in list(zip(paths_of(inspection), inspection.tree, strict=True))[1::5]:
        ids = [tokenizer.target.id(piece) for piece in path]
        with torch.inference_mode():
            logits = translator.model(source, torch.tensor([[config.start_id, *ids[:-1]]]))[0]
            logits[:, config.pad_id] = -torch.inf  # never written
            values = logits.log_softmax(dim=-1)
        expected = sum(float(values[place, id]) for place, id in enumerate(ids))
        assert node.log_probability == pytest.approx(expected, abs=1e-4)


def test_the_search_tree_of_greedy_search_is_one_path(translator: Translator) -> None:
    greedy = inspect_sentence(translator, SENTENCE, search=SearchSettings(beam_size=1))
    assert [node.parent for node in greedy.tree] == list(range(-1, len(greedy.tree) - 1))
    assert tuple(node.token for node in greedy.tree[1:]) == greedy.target_tokens


def test_a_search_that_is_cut_ends_without_the_end_symbol(translator: Translator) -> None:
    cut = inspect_sentence(translator, SENTENCE, search=SearchSettings(beam_size=2, max_length=2))
    assert len(cut.target_tokens) == len(cut.steps) == 2
    assert "</s>" not in cut.target_tokens
    nodes = dict(zip(paths_of(cut), cut.tree, strict=True))
    assert nodes[cut.target_tokens].score == round(cut.score, 4)  # found, though it did not end
    assert not nodes[cut.target_tokens].ended
    assert "".join(cut.words.target_words) == cut.translation.replace(" ", "")


def test_sampling_settings_are_ignored_by_an_inspection(translator: Translator) -> None:
    sampling = SearchSettings(beam_size=3, n_best=8, sampling=SamplingSettings(), frequency_penalty=-0.5)
    assert inspect_sentence(translator, SENTENCE, search=sampling) == inspect_sentence(
        translator, SENTENCE, search=BEAM
    )


@pytest.mark.parametrize(
    ("sentence", "message"),
    [("", "is empty"), ("  ", "is empty"), ("我吃鱼" * 200, "at most 256 tokens, but"), (None, "Pass one text")],
)
def test_empty_and_too_long_sentences_are_refused(translator: Translator, sentence: str, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        inspect_sentence(translator, sentence)


def test_a_sentence_is_as_long_as_the_model_takes(translator: Translator) -> None:
    sentence = "我吃鱼" * 150
    longer = Translator(translator.model, translator.tokenizer, max_source_tokens=400)
    found = inspect_sentence(longer, sentence, search=SearchSettings(beam_size=1, max_length=2))
    assert len(found.source_tokens) > 257
    shorter = Translator(translator.model, translator.tokenizer, max_source_tokens=20)
    with pytest.raises(TransduceError, match="at most 20 tokens, but"):
        inspect_sentence(shorter, sentence)


def test_a_model_without_heads_is_refused(translator: Translator) -> None:
    config = msgspec.structs.replace(translator.model.config, kind="recurrent", positions="none")
    recurrent = Translator(build_model(config), translator.tokenizer)  # type: ignore[arg-type]
    with pytest.raises(
        TransduceError, match=r"Only a model with `model.kind` = transformer .* this one is `recurrent`"
    ):
        inspect_sentence(recurrent, SENTENCE)


# --- the page ---


def test_the_page_asks_for_nothing_from_outside(inspection: Inspection) -> None:
    page = inspection.to_html()
    assert "default-src 'none'" in page
    addresses = set(re.findall(r"https?://[^\"'\s<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a language of pictures, which nobody fetches
    assert not re.search(r"<(link|img|iframe)|\bsrc=|@import|url\(", page)


def test_a_sentence_with_html_is_escaped_in_the_payload(inspection: Inspection) -> None:
    hostile = "</script><script>alert('x')</script> <!-- {{style}} & 我"
    changed = msgspec.structs.replace(inspection, source=hostile)
    page = changed.to_html()
    found = re.search(r'<script type="application/json" id="payload">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert json.loads(found[1])["inspections"][0]["source"] == hostile
    assert msgspec.json.decode(found[1], type=InspectionPage) == InspectionPage(inspections=(changed,))
    assert page.count("<script") == 2


def test_the_page_opens_in_the_language_of_messages(inspection: Inspection) -> None:
    assert '"language":null' in inspection.to_html()
    with use_ui_language("zh"):
        assert '"language":"zh"' in inspection.to_html()


def test_titles_are_escaped() -> None:
    assert "<title>&lt;b&gt; → x</title>" in render_page("<b> → x", "{}")


def test_the_page_of_a_large_model_stays_within_its_size_limit(inspection: Inspection) -> None:
    """Use 6 + 6 layers of 8 heads, 31 tokens and the end symbol per side, and beam 4 at every step."""
    generator = np.random.default_rng(1)
    weights = to_bytes(generator.dirichlet(np.ones(32), size=(6, 8, 32)).astype(np.float32))
    pieces = (*(f"▁piece{number}" for number in range(31)), "</s>")
    nodes = [msgspec.structs.replace(inspection.tree[1], parent=max(0, number - 4)) for number in range(160)]
    large = msgspec.structs.replace(
        inspection,
        source_tokens=pieces,
        target_tokens=pieces,
        steps=inspection.steps[:1] * 32,
        encoder=weights,
        decoder=weights,
        memory=weights,
        tree=tuple(nodes),
    )
    assert len(large.to_html().encode()) < 500_000


def test_every_word_of_the_page_is_in_both_languages() -> None:
    script = (Path(__file__).parents[2] / "src/transduce/inspection/page/words.js").read_text("utf-8")
    unquoted = re.sub(r'"[^"]*"|`[^`]*`', '""', script)
    english, chinese = unquoted.split("\n  zh: {")
    names = [set(re.findall(r"[\s{,](\w+): ", part)) for part in (english, chinese)]
    assert names[0] - {"en"} == names[1]
    assert len(names[1]) > 25


# --- the terminal and the notebook ---


def test_the_terminal_shows_every_token_with_its_probability(translator: Translator, inspection: Inspection) -> None:
    words = word_attention(attention_maps(translator, SENTENCE, inspection.translation))
    drawn = draw_inspection(inspection, words)
    assert drawn.startswith(f"{SENTENCE}  →  {inspection.translation}\n")
    for step in inspection.steps:
        assert re.search(rf"^{re.escape(step.token)} +{100 * step.probability:.1f} %", drawn, re.MULTILINE)


@pytest.mark.parametrize(("share", "bar"), [(0.0, ""), (1.0, "████"), (0.5, "██"), (0.28, "█▏"), (2.0, "████")])
def test_draw_bar_rounds_to_eighths_of_a_cell(share: float, bar: str) -> None:
    assert draw_bar(share, 4) == bar


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(inspection: Inspection) -> None:
    shown = inspection._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts allow-downloads"')
    assert "<script" not in shown
    assert "&lt;script" in shown


def test_a_notebook_shows_attention(translator: Translator) -> None:
    maps = attention_maps(translator, SENTENCE)
    layers, heads = maps.memory.shape[:2]
    assert maps._repr_html_() == small_heat_maps(maps.memory)
    assert maps._repr_html_().count("<svg") == layers * heads
    words = word_attention(maps)
    assert words._repr_html_().count("<td") == words.weights.size


def test_a_table_escapes_what_it_shows() -> None:
    table = shaded_table(["<b>"], ["&"], [[0.5]])
    assert "<th style='text-align: right'>&lt;b&gt;</th>" in table
    assert "<th>&amp;</th>" in table
    assert "0.50" in table


# --- in a browser ---


@pytest.fixture(scope="module")
def page(inspection: Inspection, browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Page]":
    """Yield the page in Chromium, and fail on errors of its scripts and on requests to other addresses."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(inspection.to_html(), encoding="utf-8")
    opened = browser.new_page(locale="en-US")
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: errors.append(request.url) if not request.url.startswith("file:") else None)
    opened.goto(path.as_uri())
    yield opened
    opened.close()
    assert errors == []


def test_pointing_at_a_word_shades_the_words_that_it_attends_to(page: "Page", inspection: Inspection) -> None:
    words = page.locator(".word")
    assert words.all_inner_texts() == [*inspection.words.source_words, *inspection.words.target_words]
    words.nth(1).focus()
    shades = page.eval_on_selector_all(".word", "all => all.map(word => +word.style.getPropertyValue('--shade'))")
    assert max(shades) > 0.1
    assert page.locator(".word.from").count() == 1


def test_choosing_a_token_lists_its_candidates(page: "Page", inspection: Inspection) -> None:
    page.locator(".token").nth(2).click()
    rows = page.locator(".candidates tr th").all_inner_texts()
    assert rows[:6] == [each.token.replace("▁", "_") for each in inspection.steps[2].candidates]


def test_choosing_a_head_draws_its_attention(page: "Page", inspection: Inspection) -> None:
    layers, heads = inspection.memory.shape[:2]
    assert page.locator(".heads button").count() == layers * (heads + 1)
    page.get_by_label("layer 1, head 2", exact=True).click()
    assert page.locator(".heads button[aria-pressed=true]").get_attribute("aria-label") == "layer 1, head 2"
    weights = from_bytes(inspection.memory)[0, 1]
    assert page.locator("svg line").count() == int((weights >= 0.03).sum())


def test_arrow_keys_move_through_the_heat_map(page: "Page", inspection: Inspection) -> None:
    page.get_by_label("layer 1, head 2", exact=True).click()
    picture = page.locator(".attention canvas")
    picture.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        picture.press(key)
    weight = float(from_bytes(inspection.memory)[0, 1, 1, 1])
    said = page.locator(".attention .readout").inner_text()
    assert said.startswith(f"{inspection.target_tokens[1]} → {inspection.source_tokens[1]}: ".replace("▁", "_"))
    assert f"{100 * weight:.1f} %" in said or weight < 0.001


def test_the_tree_folds_hypotheses_without_results(page: "Page", inspection: Inspection) -> None:
    results = [node for node in inspection.tree if node.score is not None]
    assert page.locator(".results li").count() == len(results)
    assert page.locator(".results strong").inner_text() == inspection.translation
    shown = page.locator(".node").count()
    assert page.locator(".node.best").count() == sum(node.best for node in inspection.tree)
    if shown < len(inspection.tree):
        box = page.locator(".node.folded").first
        box.focus()
        box.press("Enter")
        assert page.locator(".node").count() > shown
        page.locator(".unfold").click()
    assert page.locator(".node.ended").count() == sum(node.ended for node in inspection.tree)
    page.locator(".node.best.ended").focus()
    assert inspection.translation in page.locator("section:last-child .readout").inner_text()


@pytest.fixture(scope="module")
def two_sentences(translator: Translator, inspection: Inspection) -> InspectionPage:
    with_methods = inspect_sentence(translator, SENTENCE, search=BEAM, attributions=True)
    assert msgspec.structs.replace(with_methods, attributions=()) == inspection
    second = inspect_sentence(translator, "我吃鱼。", search=BEAM, attributions=True)
    return InspectionPage(inspections=(with_methods, second), language="en")


@pytest.fixture
def two_sentences_page(two_sentences: InspectionPage, browser: "Browser", tmp_path: Path) -> "Iterator[Page]":
    """Yield the page that compares two sentences, in a browser with Chinese as its language."""
    path = tmp_path / "page.html"
    path.write_text(two_sentences.to_html(), encoding="utf-8")
    opened = browser.new_page(locale="zh-CN", accept_downloads=True)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(path.as_uri())
    yield opened
    opened.close()
    assert errors == []


def test_words_are_shaded_by_a_method_of_attribution(two_sentences_page: "Page", two_sentences: InspectionPage) -> None:
    first = two_sentences.inspections[0]
    assert [each.method for each in first.attributions] == list(get_args(Method))
    assert np.array(first.attributions[0].words.weights).sum(axis=1) == pytest.approx(1.0, abs=0.01)
    occlusion = first.attributions[1].words
    two_sentences_page.locator(".method").first.select_option("occlusion")
    row = int(np.array(occlusion.weights).max(axis=1).argmax())
    two_sentences_page.locator(".column").first.locator(".word").nth(len(occlusion.source_words) + row).click()
    said = two_sentences_page.locator(".column").first.locator("section").first.locator(".readout").inner_text()
    best = int(np.argmax(occlusion.weights[row]))
    assert said.startswith(f"{occlusion.target_words[row]} ← {occlusion.source_words[best]} ")


def test_two_sentences_stand_side_by_side(two_sentences_page: "Page", two_sentences: InspectionPage) -> None:
    assert (
        two_sentences_page.locator("h1").inner_text() == "How this translation was made"
    )  # the page's language, not the browser's
    assert two_sentences_page.locator(".column").count() == 2
    for column, inspection in zip(two_sentences_page.locator(".column").all(), two_sentences.inspections, strict=True):
        least = min(inspection.steps, key=lambda step: step.probability)
        assert column.locator(".token[aria-pressed=true] span").inner_text() == least.token.replace("▁", "_")
    two_sentences_page.get_by_label("Left:").select_option(index=1)
    assert (
        two_sentences_page.locator(".column").first.locator(".word").first.inner_text()
        == two_sentences.inspections[1].words.source_words[0]
    )
    two_sentences_page.get_by_role("button", name="Side by side").click()
    assert two_sentences_page.locator(".column").count() == 1


def test_the_page_is_saved_as_it_is_seen(two_sentences_page: "Page", tmp_path: Path) -> None:
    two_sentences_page.get_by_label("layer 1, head 2", exact=True).first.click()
    two_sentences_page.get_by_role("button", name="中文").click()
    with two_sentences_page.expect_download() as download:
        two_sentences_page.get_by_role("button", name="保存此页").click()
    saved = tmp_path / "saved.html"
    download.value.save_as(saved)
    assert saved.read_text("utf-8").count("<script") == 2
    two_sentences_page.goto(saved.as_uri())
    assert two_sentences_page.locator("h1").inner_text() == "这句译文是怎样产生的"
    assert (
        two_sentences_page.locator(".column").first.locator(".heads [aria-pressed=true]").get_attribute("aria-label")
        == "层 1, 头 2"
    )
    two_sentences_page.get_by_role("button", name="复制").click()
    two_sentences_page.get_by_role("button", name="已复制").wait_for()


@pytest.fixture(scope="module")
def tagger_inspection(inspection: Inspection) -> TextInspection:
    """Return an inspection of a tagger, with the numbers of a translation."""
    return TextInspection(
        model="Tagger: 2 layers",
        text="I eat fish",
        answer="I/PRP",
        outputs=tuple(f"word{number}" for number in range(len(inspection.steps))),
        steps=inspection.steps,
        attention="encoder",
        words=inspection.words,
        rows=inspection.target_tokens,
        columns=inspection.target_tokens,
        weights=inspection.decoder,
        attributions=(WordAttribution("value", inspection.words),),
    )


def test_the_page_shows_answers_of_taggers(
    browser: "Browser", tagger_inspection: TextInspection, tmp_path: Path
) -> None:
    other = msgspec.structs.replace(tagger_inspection, text="You sleep", answer="", steps=(), outputs=())
    path = tmp_path / "page.html"
    path.write_text(TextInspectionPage(inspections=(tagger_inspection, other)).to_html(), encoding="utf-8")
    opened = browser.new_page(locale="en-US")
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(path.as_uri())
    assert opened.locator(".answer").inner_text() == "I/PRP"
    assert opened.locator(".token span").first.inner_text().startswith("word0 → ")
    opened.locator(".token").first.click()
    assert opened.locator(".candidates .taken").count() == 1
    assert opened.locator(".method option:checked").inner_text() == "moved vectors (ALTI+)"
    opened.get_by_label("layer 1, head 2", exact=True).click()
    opened.locator("select").first.select_option("You sleep")
    assert opened.locator(".token").count() == opened.locator(".answer").count() == 0
    opened.get_by_role("button", name="中文").click()
    assert opened.locator("h1").inner_text() == "模型怎样读这段文字"
    opened.close()
    assert errors == []


@pytest.mark.skipif("AXE_CORE" not in os.environ, reason="AXE_CORE does not name axe.min.js of axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["two_sentences", "tagger_inspection"])
def test_axe_finds_no_accessibility_violations(
    browser: "Browser", request: pytest.FixtureRequest, tmp_path: Path, scheme: Any, kind: str
) -> None:
    path = tmp_path / "page.html"
    path.write_text(request.getfixturevalue(kind).to_html(), encoding="utf-8")
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    opened = context.new_page()
    opened.goto(path.as_uri())
    opened.evaluate(Path(os.environ["AXE_CORE"]).read_text("utf-8"))
    opened.locator(".word").last.focus()
    found = opened.evaluate("axe.run()")
    context.close()
    assert [each["id"] for each in found["violations"]] == []


def test_sample_sentences_are_those_of_the_last_validation(tmp_path: Path) -> None:
    assert sample_sentences(tmp_path) == []
    lines = ['{"event": "validation", "samples": [["a", "b", "c"]]}', '{"event": "train", "loss": 1.0}']
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"event": "tra']), encoding="utf-8")
    assert sample_sentences(tmp_path) == ["a"]  # the run writes its last line just now
    (tmp_path / "metrics.jsonl").write_text("{\n", encoding="utf-8")
    with pytest.raises(TransduceError, match="is not what a run writes"):
        sample_sentences(tmp_path)


@pytest.mark.parametrize("kind", [InspectionPage, TextInspectionPage])
def test_a_page_without_inspections_is_refused(kind: Any) -> None:
    with pytest.raises(TransduceError, match="A page needs an inspection"):
        kind(inspections=()).to_html()


def test_the_page_switches_to_chinese_and_to_dark_mode(page: "Page") -> None:
    page.get_by_role("button", name="中文").click()
    assert page.locator("h1").inner_text() == "这句译文是怎样产生的"
    page.get_by_role("button", name="深色 / 浅色").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_role("button", name="English").click()


@pytest.mark.parametrize("width", [360, 1100])
def test_the_page_never_scrolls_horizontally(page: "Page", width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.reload()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
