"""Draw the pictures of the READMEs: plots, and screenshots of both web pages. Needs `transduce[plot,serve]`.

    make demo
    .venv/bin/python docs/make_pictures.py models/demo

Pictures of other models need the folders bert, gpt and lstm beside the demonstration's, which docs/views.md trains.
The screenshots also need playwright and Chromium; without these, existing pictures stay unchanged.
"""

import argparse
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.commands.serve import inspection_views
from transduce.inference.load import load, open_translator
from transduce.inference.translator import Translator
from transduce.inspection.attention import attention_maps
from transduce.inspection.causal import ablate, patch_activations
from transduce.inspection.plots import save_chart
from transduce.inspection.plots_runs import (
    plot_activations,
    plot_attention,
    plot_masks,
    plot_positions,
    plot_rotation,
    plot_schedules,
    plot_training,
)
from transduce.inspection.sentence import inspect_sentence
from transduce.search.settings import SearchSettings
from transduce.serving.app import Application
from transduce.serving.models import ServedModel
from transduce.serving.server import Server, address_of, open_socket
from transduce.serving.service import Service
from transduce.serving.settings import ServingSettings

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES = Path(__file__).parent / "pictures"
SENTENCE = "昨天我吃了苹果"
CORRUPTED_SENTENCE = "昨天我吃了米饭"
ENGLISH_SENTENCE = "I bought apples yesterday"
LONGER_SENTENCE = "你的老师为什么喜欢在书店买小说？"
LANGUAGES = ("zh", "en")
BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
PAGE_PIXELS = (1000, 1105)
SERVED_PIXELS = (1000, 1000)
MAX_BYTES = 150_000


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the folder of the demonstration's model")
    folder = Path(parser.parse_args().model)
    translator = open_translator(folder, precision="fp32", device="cpu")
    PICTURES.mkdir(exist_ok=True)
    draw_insides(translator, folder.parent)
    save_chart(
        plot_attention(attention_maps(translator, SENTENCE), kind="memory", layer=None), PICTURES / "attention.png"
    )
    save_chart(plot_positions(length=100, d_model=128), PICTURES / "positions.png")
    save_chart(plot_rotation(length=40, d_k=64), PICTURES / "rotation.png")
    save_chart(plot_masks(length=12, padding=3), PICTURES / "masks.png")
    save_chart(plot_activations(), PICTURES / "activations.png")
    save_chart(plot_training([folder]), PICTURES / "training.png")
    schedules = plot_schedules(schedules=["inverse-sqrt"], warmups=[2000, 4000, 8000], widths=[512], steps=20_000)
    save_chart(schedules, PICTURES / "schedule.png")
    longer = inspect_sentence(translator, LONGER_SENTENCE, search=SearchSettings(), attributions=True)
    take_screenshots(longer.to_html(), translator)
    for picture in sorted(PICTURES.glob("*.png")):
        size = picture.stat().st_size
        print(f"{picture}: {size:,} bytes{' (too large)' if size > MAX_BYTES else ''}")


def draw_insides(translator: Translator, models: Path) -> None:
    """Draw the results of the causal tools, and the attention of the models bert, gpt and lstm if a folder has them."""
    save_chart(ablate(translator, SENTENCE).chart(), PICTURES / "ablation.png")
    save_chart(patch_activations(translator, SENTENCE, CORRUPTED_SENTENCE).chart(), PICTURES / "patching.png")
    for name, text in (("bert", ENGLISH_SENTENCE), ("gpt", ENGLISH_SENTENCE), ("lstm", SENTENCE)):
        if (models / name).is_dir():
            maps = attention_maps(load(models / name, precision="fp32", device="cpu"), text)
            save_chart(plot_attention(maps, kind=None, layer=None), PICTURES / f"attention-{name}.png")


def take_screenshots(inspected: str, translator: Translator) -> None:
    """Take screenshots of the page of one translation, and of a server's page."""
    browser = next((each for each in BROWSERS if Path(each).exists()), None)
    if browser is None or find_spec("playwright") is None:
        sys.stderr.write("No screenshots: they need playwright and Chromium. Existing screenshots stay unchanged.\n")
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright, served(translator) as address:
        path = Path(folder) / "page.html"
        path.write_text(inspected, encoding="utf-8")
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for url, name, (width, height), prepare in (
            (path.as_uri(), "page.png", PAGE_PIXELS, point_at_word),
            (address, "serve.png", SERVED_PIXELS, try_another_word),
        ):
            opened = chromium.new_page(
                viewport={"width": width, "height": height}, color_scheme="light", locale="en-US"
            )
            opened.goto(url)
            prepare(opened)
            opened.screenshot(path=PICTURES / name)
        chromium.close()


@contextmanager
def served(translator: Translator) -> Iterator[str]:
    """Run a server with this model like `transduce serve` within the context, and yield its address."""
    settings = ServingSettings(port=0)
    opened = open_socket(settings.host, settings.port)
    service = Service([ServedModel(translator, languages=LANGUAGES)], settings)
    server = Server(Application(service, inspection_views()), settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        yield address_of(opened)
    finally:
        server.should_exit = True
        thread.join()


def point_at_word(page: "Page") -> None:
    """Move the pointer to a word."""
    page.locator(".word").nth(2).hover()


def try_another_word(page: "Page") -> None:
    """Translate a sentence, and show the translation with another verb."""
    page.locator("#text").fill(SENTENCE)
    page.locator(".piece").nth(1).click()
    page.locator(".candidates tr").nth(1).get_by_role("button").click()
    page.locator(".comparison").wait_for()
    page.locator(".word").nth(2).hover()


if __name__ == "__main__":
    main()
