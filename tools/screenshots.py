"""Pictures of the home page, a report and a sphere in a headless Chromium, at two widths: docs/gallery.

    python tools/screenshots.py        # after `make docs`

WebP keeps each picture below 60 kB.
"""

import io
import pathlib
import shutil

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = pathlib.Path(__file__).resolve().parent.parent
SITE, OUT = ROOT / "site", ROOT / "docs" / "gallery"
PAGES = {"home": "index.html", "report": "gallery/report.html", "sphere": "gallery/sphere.html"}
HEIGHTS = {1280: 800, 390: 844}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def shoot(browser: Browser, name: str, width: int) -> pathlib.Path:
    """The top of a page, as a reader sees it first."""
    page = browser.new_page(viewport={"width": width, "height": HEIGHTS[width]})
    page.goto((SITE / PAGES[name]).as_uri())
    page.wait_for_timeout(500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    page.close()
    path = OUT / f"{name}-{width}.webp"
    picture.save(path, quality=85, method=6)
    return path


def main() -> None:
    """All pages at all widths."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium: install one, such as Debian's package `chromium`")
    if not (SITE / "index.html").exists():
        raise SystemExit("the site is not built: make docs")
    with sync_playwright() as run:
        browser = run.chromium.launch(executable_path=chromium, args=FLAGS)
        for name in PAGES:
            for width in HEIGHTS:
                path = shoot(browser, name, width)
                print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
