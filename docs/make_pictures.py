"""Makes the pictures of the READMEs: three plots, and a screenshot of the page. Needs `transduce[plot]`.

    make demo
    .venv/bin/python docs/make_pictures.py models/demo

The screenshot needs playwright and a Chromium besides; without them it is left as it is, and a line says so.
"""

import argparse
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from transduce.inspection.plots_files import save_chart
from transduce.inspection.plots_runs import plot_attention
from transduce.inspection.plots_tutorial import plot_positions, plot_schedules
from transduce.inspection.sentence import inspect_sentence
from transduce.runtime.translator import load
from transduce.search.settings import SearchSettings

PICTURES = Path(__file__).parent / "pictures"
SENTENCE = "昨天我吃了苹果"
LONGER_SENTENCE = "你的老师为什么喜欢在书店买小说？"
BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
PAGE_PIXELS = (1000, 1105)
MOST_BYTES = 150_000


def main() -> None:
    """Draws all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the folder of the demonstration's model")
    translator = load(parser.parse_args().model, precision="fp32", device="cpu")
    PICTURES.mkdir(exist_ok=True)
    inspection = inspect_sentence(translator, SENTENCE, search=SearchSettings())
    save_chart(plot_attention(inspection, kind="memory", layer=None), PICTURES / "attention.png")
    save_chart(plot_positions(length=100, d_model=128), PICTURES / "positions.png")
    schedules = plot_schedules(schedules=["inverse-sqrt"], warmups=[2000, 4000, 8000], widths=[512], steps=20_000)
    save_chart(schedules, PICTURES / "schedule.png")
    longer = inspect_sentence(translator, LONGER_SENTENCE, search=SearchSettings())
    take_screenshot(longer.to_html(), PICTURES / "page.png")
    for picture in sorted(PICTURES.glob("*.png")):
        size = picture.stat().st_size
        print(f"{picture}: {size:,} bytes{' (too large)' if size > MOST_BYTES else ''}")


def take_screenshot(page: str, picture: Path) -> None:
    """The page as a person sees it, with a word pointed at."""
    browser = next((each for each in BROWSERS if Path(each).exists()), None)
    if browser is None or find_spec("playwright") is None:
        sys.stderr.write(f"No screenshot: it needs playwright and Chromium. {picture} is as it was.\n")
        return
    from playwright.sync_api import sync_playwright

    width, height = PAGE_PIXELS
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_text(page, encoding="utf-8")
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        opened = chromium.new_page(viewport={"width": width, "height": height}, color_scheme="light", locale="en-US")
        opened.goto(path.as_uri())
        opened.locator(".word").nth(2).hover()
        opened.screenshot(path=picture)
        chromium.close()


if __name__ == "__main__":
    main()
