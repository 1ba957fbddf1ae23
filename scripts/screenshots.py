"""Pictures of the report and the playground for docs/, taken by a headless Chromium.

    python scripts/screenshots.py demo-out

Reads what `compoclip demo --out demo-out` wrote; needs playwright (extra "dev") and chromium.
Writes docs/report.png (1280 pixels wide), docs/report-phone.png (390) and docs/play.png.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from compoclip.models.checkpoint import load_model
from compoclip.web import Playground, Server, play_site
from compoclip_world.dataset import examples

DOCS = Path(__file__).resolve().parents[1] / "docs"
PARTS = ("#summary", "#skills", "#invariance", "#tradeoff", "#examples", "#coverage")


def main(folder: Path) -> None:
    """Take all pictures."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        report = (folder / "report.html").resolve().as_uri()
        save(DOCS / "report.png", page(browser, report, 1280, 3400))
        phone = [page(browser, report + part, 390, 1600) for part in PARTS]
        save(DOCS / "report-phone.png", side_by_side(phone))
        save(DOCS / "play.png", playground(browser, folder))
        browser.close()


def page(browser: Browser, address: str, width: int, height: int) -> Image.Image:
    """The page from its address's part on, in light colours."""
    opened = browser.new_page(viewport={"width": width, "height": height})
    opened.set_default_timeout(300_000)
    opened.goto(address)
    picture = Image.open(io.BytesIO(opened.screenshot())).convert("RGB")
    opened.close()
    return picture


def playground(browser: Browser, folder: Path) -> Image.Image:
    """The base and FSC-CLIP on the first example, pointing at its last word."""
    models = {
        "base": load_model("bundled"),
        "fsc-clip": load_model(folder / "runs" / "fsc-clip" / "model"),
    }
    size = models["base"].preprocess.size[0]
    shown = Playground(models, examples(size))
    with Server(play_site(shown), "127.0.0.1", 0).in_thread() as server:
        opened = browser.new_page(viewport={"width": 1280, "height": 1300})
        opened.set_default_timeout(300_000)
        opened.goto(server.url)
        opened.locator("#words button").last.click()
        opened.locator(".map[src^='data:']").nth(1).wait_for()
        picture = Image.open(io.BytesIO(opened.screenshot())).convert("RGB")
        opened.close()
    return picture


def side_by_side(pictures: list[Image.Image]) -> Image.Image:
    """One row of pictures of one height."""
    wide = sum(each.width + 16 for each in pictures) - 16
    row = Image.new("RGB", (wide, pictures[0].height), "#8a8f98")
    left = 0
    for each in pictures:
        row.paste(each, (left, 0))
        left += each.width + 16
    return row


def save(path: Path, picture: Image.Image) -> None:
    """As a PNG of 256 colours, spread over all that are there."""
    picture.quantize(256, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path} ({path.stat().st_size // 1000} kB)")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
