"""Draw the pictures of the pages: plots by the pages' own commands, and screenshots of the page of `transduce serve`.

    make demo
    .venv/bin/python docs/make_pictures.py

It runs in the folder above `models`, needs `transduce[plot,serve]`, and draws every picture with English and with
Chinese labels, which need a font with Chinese characters. A plot of a model that is not there, such as those that
docs/views.md trains, stays unchanged. So do the screenshots without playwright and Chromium.
"""

import re
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from draw_pictures import DARK_STYLE, LANGUAGES, suffix_of

from transduce.commands.main import main as transduce
from transduce.commands.serve import inspection_views
from transduce.inference.load import open_translator
from transduce.serving.app import Application
from transduce.serving.models import ServedModel
from transduce.serving.server import Server, address_of, open_socket
from transduce.serving.service import ModelCatalog, Service
from transduce.serving.settings import ServingSettings

if TYPE_CHECKING:
    from playwright.sync_api import Page

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
PAGES = ("gallery.md", "views.md")
SENTENCE = "昨天我吃了苹果"
BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
LOCALES = {"en": "en-US", "zh": "zh-CN"}
PIXELS = (1000, 1000)
MAX_BYTES = 150_000


def main() -> None:
    """Draw all pictures."""
    for name, command in commands().items():
        model = next((word for word in command if word.startswith("models/")), None)
        if model is not None and not Path(model).is_dir():
            sys.stderr.write(f"{model} does not exist: the pictures {name} stay unchanged.\n")
            continue
        for language in LANGUAGES:
            draw(command, PICTURES / f"{name}{suffix_of(language)}.svg", language)
    take_screenshots()
    for picture in sorted(PICTURES.glob("*.*")):
        size = picture.stat().st_size
        print(f"{picture}: {size:,} bytes{' (too large)' if size > MAX_BYTES else ''}")


def commands() -> dict[str, list[str]]:
    """Return the words of the command of each plot that the pages show, without its output file, by picture."""
    text = "".join((DOCS / page).read_text("utf-8") for page in PAGES)
    shown = set(re.findall(r"\(pictures/([\w-]+)\.svg\)", text))
    lines = re.findall(r"^transduce (.+ --(?:output|picture)) ([\w-]+)\.png", text, re.MULTILINE)
    return {name: shlex.split(line) for line, name in reversed(lines) if name in shown}


def draw(command: list[str], path: Path, language: str) -> None:
    """Run a command that draws a plot to this path, with labels in a language."""
    settings = {"svg.fonttype": "none", "savefig.transparent": True}
    with mpl.rc_context(settings):
        status = transduce([*command, str(path), "--ui-language", language])
    if status != 0:
        raise SystemExit(status)
    path.write_text(for_pages(path.read_text("utf-8")), "utf-8", newline="\n")


def for_pages(svg: str) -> str:
    """Return a plot for both light and dark pages, in the fonts of the reader's system, without what no page shows."""
    svg = re.sub(r"(?s)<\?xml.*?(?=<svg)|\s*<metadata>.*?</metadata>", "", svg)
    svg = re.sub(r"font-family: [^;\"]+", "font-family: sans-serif", svg)
    svg = re.sub(r"(\d\.\d\d)\d+(?=[^<>]*>)", r"\1", svg)  # coordinates, not the numbers that are shown
    svg = re.sub(r"base64,[^\"]+", lambda image: re.sub(r"\s", "", image[0]), svg)
    svg = re.sub(r"\s*\n\s*(?=[^<\s])", " ", re.sub(r"\s*\n\s*(?=<)", "\n", svg))  # a line for each element
    return svg.replace("</style>", f"{DARK_STYLE}</style>", 1)


def take_screenshots() -> None:
    """Take screenshots of a server's page in each language."""
    browser = next((each for each in BROWSERS if Path(each).exists()), None)
    if browser is None or find_spec("playwright") is None:
        sys.stderr.write("No screenshots: they need playwright and Chromium. Existing screenshots stay unchanged.\n")
        return
    from playwright.sync_api import sync_playwright

    width, height = PIXELS
    with sync_playwright() as playwright, served() as address:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for language in LANGUAGES:
            page = chromium.new_page(
                viewport={"width": width, "height": height}, color_scheme="light", locale=LOCALES[language]
            )
            page.goto(address)
            try_another_word(page)
            page.screenshot(path=PICTURES / f"serve{suffix_of(language)}.png")
        chromium.close()


@contextmanager
def served() -> Iterator[str]:
    """Serve the demonstration's model like `transduce serve` within the context, and yield the server's address."""
    translator = open_translator(Path("models/demo"), precision="fp32", device="cpu")
    settings = ServingSettings(port=0)
    opened = open_socket(settings.host, settings.port)
    service = Service(ModelCatalog([ServedModel(translator, languages=("zh", "en"))]), settings)
    server = Server(Application(service, inspection_views()), settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        yield address_of(opened)
    finally:
        server.should_exit = True
        thread.join()


def try_another_word(page: "Page") -> None:
    """Translate a sentence, and show the translation with another verb."""
    page.locator("#text").fill(SENTENCE)
    page.locator(".token").nth(1).click()
    page.locator(".candidates tr").nth(1).get_by_role("button").click()
    page.locator(".comparison").wait_for()
    page.locator(".word").nth(2).hover()


if __name__ == "__main__":
    main()
