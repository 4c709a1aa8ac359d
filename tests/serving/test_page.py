"""Test the page of `transduce serve`: the server's answers, and its use in a real browser."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from transduce.commands.serve import inspection_views
from transduce.inference.translator import Translator
from transduce.inspection.interventions import Head, Intervention, intervene
from transduce.inspection.page import read_part
from transduce.inspection.sentence import inspect_sentence
from transduce.serving.messages import PageSettings
from transduce.serving.models import ServedModel

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SENTENCE = "今天老师喜欢苹果。"
OTHER = "我吃鱼。"


@pytest.fixture(scope="module")
def live(serve: Any, translator: Translator) -> Iterator[Any]:
    """Yield a server with two directions, both with the same model."""
    models = [ServedModel(translator, languages=pair) for pair in (("zh", "en"), ("en", "zh"))]
    with serve(*models, views=inspection_views()) as server:
        yield server


class Opened:
    """A function that opens the page, and records script errors and requests to other addresses."""

    def __init__(self, browser: "Browser") -> None:
        self.browser = browser
        self.errors: list[str] = []
        self._contexts: list[Any] = []

    def __call__(self, url: str, **options: Any) -> "Page":
        context = self.browser.new_context(
            **({"locale": "en-US", "viewport": {"width": 1100, "height": 900}} | options)
        )
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(url) else self.errors.append(asked.url))
        page.goto(url)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        assert self.errors == []


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[Opened]:
    opener = Opened(browser)
    yield opener
    opener.close()


@pytest.fixture
def page(open_page: Opened, live: Any) -> "Page":
    return open_page(live.url)


def until(page: "Page", expression: str, arg: Any = None) -> None:
    """Wait until an expression is true in the page, by polling, because the page's policy forbids evaluation inside."""
    deadline = time.monotonic() + 20
    while not page.evaluate(expression, arg):
        assert time.monotonic() < deadline, f"it did not come about in time: {expression}"
        page.wait_for_timeout(20)


def until_output(page: "Page", text: str) -> None:
    until(page, "text => document.getElementById('output').innerText === text", text)


def write(page: "Page", text: str) -> None:
    """Type a text, and wait until it is translated and its first line is inspected."""
    page.locator("#text").fill(text)
    until(
        page, "line => found.inspection?.source === line && !document.querySelector('.stale')", text.split("\n", 1)[0]
    )
    page.locator("#output[aria-busy=false]").wait_for()


def shown(pieces: Any) -> list[str]:
    return [piece.replace("▁", "_") for piece in pieces]


def outcome(page: "Page", number: int) -> str:
    """Wait for the translation before (0) or after (1) a change, and return it."""
    return page.locator(".outcome .translation").nth(number).inner_text()


# --- what is sent ---


def test_the_page_is_one_file_and_connects_to_its_server_only(live: Any) -> None:
    reply = live.ask("GET", "/")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"] == "frame-ancestors 'none'"
    text = reply.body.decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "connect-src 'self'" in policy[1]
    assert re.search(r"script-src 'sha256-[\w+/]{43}='", policy[1])
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe)|\bsrc=|@import|url\(", text)
    assert len(reply.body) < 100_000


def test_the_page_contains_limits_and_models_of_the_server(serve: Any, translator: Translator) -> None:
    model = ServedModel(translator, languages=("zh", "en"), samples=("我吃鱼",))
    limits = {"max_characters": 500, "max_alternatives": 1, "api_keys": ("k",)}
    with serve(model, views=inspection_views(), **limits) as live:
        text = live.ask("GET", "/").body.decode()
    found = re.search(r'id="payload">(.*?)</script>', text)
    assert found is not None
    assert msgspec.json.decode(found[1], type=PageSettings) == PageSettings(
        pairs=[("zh-Hans", "en")],
        samples=[("我吃鱼",)],
        max_characters=500,
        max_alternatives=1,
        needs_key=True,
    )


def test_every_word_of_the_page_is_in_both_languages() -> None:
    unquoted = re.sub(r'"[^"]*"|`[^`]*`', '""', read_part("live_words.js"))
    english, chinese = unquoted.split("Object.assign(WORDS.zh")
    names = [set(re.findall(r"[\s{,](\w+): ", part)) for part in (english, chinese)]
    assert names[0] == names[1]
    assert len(names[0]) > 30
    scripts = "".join(map(read_part, ("live.js", "changes.js", "answers.js")))
    known = names[0] | set(re.findall(r"[\s{,](\w+): ", re.sub(r'"[^"]*"|`[^`]*`', '""', read_part("words.js"))))
    assert set(re.findall(r"(?<![.\w])words(?:\(\))?\.(\w+)", scripts)) <= known


# --- translating ---


def test_typed_text_is_translated(page: "Page", live: Any, translator: Translator) -> None:
    page.locator("#text").press_sequentially(SENTENCE)
    page.locator(".token").first.wait_for()
    answer = live.translate(SENTENCE, source="zh", alternatives=3).json
    assert page.locator("#output").inner_text() == answer["translatedText"]
    assert page.locator(".others li").all_inner_texts() == answer["alternatives"]
    inspection = inspect_sentence(translator, SENTENCE)
    assert page.locator(".token span").all_inner_texts() == shown(inspection.target_tokens)
    assert page.locator(".token small").first.inner_text() == f"{100 * inspection.steps[0].probability:.1f} %"
    assert page.locator(".counter").inner_text() == f"{len(SENTENCE)} / 20000"


def test_a_sample_is_translated_and_its_words_are_attributed(
    open_page: Opened, serve: Any, translator: Translator
) -> None:
    model = ServedModel(translator, languages=("zh", "en"), samples=(SENTENCE,))
    with serve(model, views=inspection_views()) as live:
        page = open_page(live.url, bypass_csp=True)
        page.get_by_role("button", name=SENTENCE).click()
        page.locator(".token").first.wait_for()
        assert page.locator("#text").input_value() == SENTENCE
        assert page.locator(".method option:checked").inner_text() == "moved vectors (ALTI+)"
        inspection = inspect_sentence(translator, SENTENCE, attributions=("value",))
        (found,) = inspection.attributions
        page.locator(".word").nth(len(found.words.source_words)).focus()  # the first word of the translation
        shades = page.eval_on_selector_all(".word", "all => all.map(word => +word.style.getPropertyValue('--shade'))")
        most = max(max(row) for row in found.words.weights)
        assert shades[: len(found.words.source_words)] == pytest.approx(
            [weight / most for weight in found.words.weights[0]], abs=0.01
        )
        page.locator("details.how summary").click()
        page.locator(".heads").wait_for()
        if "AXE_CORE" in os.environ:
            page.evaluate(Path(os.environ["AXE_CORE"]).read_text("utf-8"))
            assert [each["id"] for each in page.evaluate("axe.run()")["violations"]] == []
        page.close()


def test_the_translation_is_shown_as_it_is_decoded(open_page: Opened, serve: Any, gated_model: Any) -> None:
    model = gated_model(steps=4, is_open=False)
    with serve(model, views=inspection_views()) as live:
        page = open_page(live.url)
        page.locator("#text").fill("ein Satz")
        for words in ("word0", "word0 word1", "word0 word1 word2"):
            model.let_through(1)
            until(page, "words => document.getElementById('output').innerText.startsWith(words)", words)
            assert page.locator("#output").get_attribute("aria-busy") == "true"
        model.open()
        until_output(page, "EIN SATZ")
        # A model that cannot be inspected still translates.
        page.get_by_text("This model cannot be inspected: it can only translate.").wait_for()
        assert page.locator("#output").inner_text() == "EIN SATZ"
        page.close()


def test_typing_on_cancels_the_previous_request(
    open_page: Opened, serve: Any, gated_model: Any, wait_until: Any
) -> None:
    model = gated_model(steps=3, is_open=False)
    with serve(model, views=inspection_views()) as live:
        page = open_page(live.url)
        page.locator("#text").fill("eins")
        model.let_through(1)
        until(page, "document.getElementById('output').innerText.startsWith('word0')")
        page.locator("#text").fill("zwei")
        page.locator(".main").click()
        wait_until(lambda: live.service.metrics.value("transduce_disconnects_total") == 1)
        model.open()
        until_output(page, "ZWEI")
        page.close()


def test_each_line_is_inspected_separately(page: "Page") -> None:
    write(page, f"{SENTENCE}\n\n{OTHER}")
    first = page.locator(".token span").all_inner_texts()
    page.get_by_label("Line to inspect").select_option(f"2: {OTHER}")
    until(page, "source => found.inspection.source === source", OTHER)
    assert page.locator(".token span").all_inner_texts() != first
    assert len(page.locator("#output").inner_text().split("\n")) == 3


def test_another_pair_of_languages_can_be_chosen(page: "Page") -> None:
    write(page, SENTENCE)
    choice = page.get_by_label("Languages", exact=True)
    assert choice.locator("option").all_inner_texts() == [
        "Simplified Chinese → English",
        "English → Simplified Chinese",
    ]
    with page.expect_request("**/translate") as asked:
        choice.select_option(index=1)
    sent = asked.value.post_data_json
    assert sent is not None
    assert (sent["source"], sent["target"]) == ("en", "zh-Hans")
    page.locator("#output[aria-busy=false]").wait_for()
    english = page.locator("#output").inner_text()
    page.get_by_label("Swap languages").click()
    assert page.locator("#text").input_value() == english
    assert page.locator("#pair").input_value().startswith("Simplified Chinese")


def test_pointing_at_a_word_shades_the_words_that_it_attends_to(page: "Page") -> None:
    write(page, SENTENCE)
    page.locator(".word").nth(1).hover()
    shades = page.eval_on_selector_all(".word", "all => all.map(word => +word.style.getPropertyValue('--shade'))")
    assert max(shades) > 0.1
    assert page.locator(".word.from").count() == 1


# --- what goes wrong ---


def test_errors_are_sentences(page: "Page") -> None:
    page.evaluate("settings.maxCharacters = 1e9")
    page.locator("#text").fill("我" * 20_001)
    page.get_by_text("Invalid request: request (20001) exceeds text limit (20000 characters)").wait_for()
    page.evaluate("settings.maxCharacters = 20000")
    page.locator("#text").fill("我" * 20_002)
    page.get_by_text("The text has 20002 characters, but at most 20000 are allowed: shorten it.").wait_for()
    page.locator("#text").fill(OTHER * 200)
    page.get_by_text("must have at most 256 tokens to be inspected").wait_for()
    assert page.locator("#output").inner_text() != ""
    page.route("**/translate", lambda route: route.abort())
    page.locator("#text").fill(OTHER)
    page.get_by_text("The server does not respond: check that it is running, then try again.").wait_for()
    page.unroute("**/translate")
    write(page, OTHER)
    assert page.locator(".error").all_inner_texts() == ["", ""]


def test_a_key_is_asked_for_where_the_server_wants_one(open_page: Opened, serve: Any, translator: Translator) -> None:
    model = ServedModel(translator, languages=("zh", "en"))
    with serve(model, views=inspection_views(), api_keys=("secret",)) as live:
        page = open_page(live.url)
        page.locator("#text").fill(OTHER)
        page.get_by_text("An API key is needed here").wait_for()
        page.get_by_label("API key").fill("secret")
        page.keyboard.press("Enter")
        page.locator(".token").first.wait_for()
        page.close()


# --- seeing how it was made ---


def look_inside(page: "Page", text: str = SENTENCE) -> None:
    write(page, text)
    page.get_by_text("See how it was made").click()
    page.locator(".heads button").first.wait_for()


def test_the_inspection_shows_all_heads_and_the_search_tree(page: "Page", translator: Translator) -> None:
    look_inside(page)
    inspection = inspect_sentence(translator, SENTENCE)
    layers, heads = inspection.memory.shape[:2]
    for kind in ("Target → source", "Source → source", "Target → target before it"):
        page.get_by_role("button", name=kind, exact=True).click()
        assert page.locator(".heads button").count() == layers * (heads + 1)
        page.get_by_label("layer 1, head 2", exact=True).click()
        assert page.locator(".attention svg .row").count() > 3
        assert page.locator(".attention canvas").count() == 1
    if page.locator(".unfold").count():
        page.locator(".unfold").click()
    assert page.locator(".node").count() == len(inspection.tree)


def test_switching_a_head_off_shows_both_translations(page: "Page", translator: Translator) -> None:
    look_inside(page)
    page.get_by_label("layer 2, head 1", exact=True).click()
    page.get_by_role("button", name="Switch this head off").click()
    page.locator(".comparison").wait_for()
    change = Intervention(heads_off=(Head("memory", 1, 0),))
    both = intervene(translator, SENTENCE, change)
    assert (outcome(page, 0), outcome(page, 1)) == (both.before.translation, both.after.translation)
    assert page.locator(".heads button.off").count() == 1
    page.get_by_role("button", name="Undo: target → source: layer 2, head 1 is off").click()
    page.locator(".changes").wait_for(state="hidden")
    assert page.locator(".heads button.off").count() == 0


def test_a_whole_layer_can_be_switched_off(page: "Page", translator: Translator) -> None:
    look_inside(page)
    page.get_by_label("layer 2, mean", exact=True).click()
    page.get_by_role("button", name="Switch this layer's heads off").click()
    page.locator(".comparison").wait_for()
    count = translator.transformer.config.num_heads
    change = Intervention(heads_off=tuple(Head("memory", 1, head) for head in range(count)))
    assert outcome(page, 1) == intervene(translator, SENTENCE, change).after.translation
    assert page.locator(".chip").all_inner_texts() == ["target → source: layer 2 is off ✕"]


def test_a_token_can_be_forced_and_forbidden(page: "Page", translator: Translator) -> None:
    steps = inspect_sentence(translator, SENTENCE).steps
    others = [next(each.token for each in step.candidates if each.token != step.token) for step in steps]
    written = {step.token for step in steps}
    place = next(number for number, other in enumerate(others) if other not in written)
    step, other = steps[place], others[place]
    write(page, SENTENCE)
    page.locator(".token").nth(place).click()
    page.get_by_role("button", name="force this token").first.click()
    page.locator(".comparison").wait_for()
    forced = intervene(translator, SENTENCE, Intervention(step=place, force=other))
    assert outcome(page, 1) == forced.after.translation
    assert page.locator(".outcome").nth(1).locator(".new").first.inner_text().startswith(shown([other])[0])
    page.get_by_role("button", name="forbid this token").click()
    forbidden = intervene(translator, SENTENCE, Intervention(step=place, forbid=(step.token,)))
    until(
        page,
        "said => document.querySelectorAll('.outcome .translation')[1]?.innerText === said",
        forbidden.after.translation,
    )


def test_a_word_of_the_source_can_be_changed(page: "Page", translator: Translator) -> None:
    look_inside(page, OTHER)
    words = inspect_sentence(translator, OTHER).words.source_words
    place = next(number for number, word in enumerate(words) if "鱼" in word)
    page.locator(".replaceable .word").nth(place).click()
    page.keyboard.type("茶")
    page.keyboard.press("Enter")
    page.locator(".comparison").wait_for()
    changed = OTHER.replace(words[place], "茶")
    assert outcome(page, 1) == intervene(translator, OTHER, Intervention(source=changed)).after.translation
    page.locator(".replaceable .word").nth(0).click()
    page.keyboard.press("Escape")
    assert page.locator(".replacement").count() == 0
    assert page.locator("#output").inner_text() == outcome(page, 0)


def test_new_text_resets_interventions(page: "Page") -> None:
    write(page, SENTENCE)
    page.get_by_role("button", name="forbid this token").click()
    page.locator(".comparison").wait_for()
    write(page, OTHER)
    assert page.locator(".changes").is_hidden()


def test_a_sentence_of_200_tokens_can_be_inspected(page: "Page", translator: Translator) -> None:
    pieces = len(translator.tokenizer.source.encode(OTHER))
    text = OTHER * (200 // pieces + 1)
    count = len(translator.tokenizer.source.encode(text)) + 1
    assert 200 <= count <= 256
    look_inside(page, text)
    page.get_by_role("button", name="Source → source").click()
    assert page.locator(".attention svg .row").count() == count
    assert page.evaluate("document.documentElement.scrollWidth") <= 1100


# --- for everybody ---


def test_the_page_can_be_used_by_keyboard(page: "Page") -> None:
    keyboard = page.keyboard
    keyboard.insert_text(OTHER)  # the field has the focus initially
    keyboard.press("Control+Enter")
    page.locator(".token").first.wait_for()

    def go_to(selector: str) -> None:
        """Press Tab until an element is focused; each view is one stop."""
        for _ in range(15):
            keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"Tab does not lead to {selector}")

    go_to(".word")
    keyboard.press("ArrowRight")
    assert page.locator(".word.from").count() == 1
    go_to(".token")
    keyboard.press("Home")
    keyboard.press("ArrowRight")
    keyboard.press("Enter")
    assert page.locator(".token").nth(1).get_attribute("aria-pressed") == "true"
    assert page.locator(".token:focus").count() == 1
    go_to(".small")
    keyboard.press("Enter")
    page.locator(".comparison").wait_for()
    go_to("summary")
    keyboard.press("Enter")
    page.locator(".heads button").first.wait_for()
    go_to(".heads button")
    keyboard.press("Home")
    keyboard.press("ArrowDown")
    keyboard.press("Enter")
    assert page.locator(".heads button[aria-pressed=true]").get_attribute("aria-label") == "layer 2, head 1"
    go_to(".switch")
    keyboard.press("Space")
    page.locator(".heads button.off").wait_for()
    go_to(".node")
    keyboard.press("ArrowRight")
    assert page.locator(".node.best:focus").count() == 1
    go_to(".chip")
    keyboard.press("Enter")


def test_the_page_follows_the_browsers_language_and_can_switch_it(open_page: Opened, live: Any) -> None:
    page = open_page(live.url, locale="zh-CN")
    assert page.locator("html").get_attribute("lang") == "zh"
    assert page.get_by_role("button", name="翻译").is_visible()
    assert page.locator("#pair option").first.inner_text() == "简体中文 → 英语"
    write(page, SENTENCE)
    assert page.get_by_role("heading", name="逐词对照").first.is_visible()
    page.get_by_role("button", name="English", exact=True).click()
    assert page.get_by_role("heading", name="Word by word").first.is_visible()
    assert page.locator("#text").input_value() == SENTENCE


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_color_scheme_and_can_switch_it(open_page: Opened, live: Any, scheme: Any) -> None:
    page = open_page(live.url, color_scheme=scheme)
    brightness = "Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number))"
    assert (page.evaluate(brightness) > 128) == (scheme == "light")
    page.get_by_role("button", name="Dark / light").click()
    assert (page.evaluate(brightness) > 128) == (scheme == "dark")


@pytest.mark.parametrize("width", [340, 1400])
def test_the_page_never_scrolls_horizontally(open_page: Opened, live: Any, width: int) -> None:
    page = open_page(live.url, viewport={"width": width, "height": 800})
    look_inside(page)
    page.get_by_role("button", name="Switch this layer's heads off").click()
    page.locator(".comparison").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
