"""A headless Chromium of the system, a server on this machine, and what a page asked for and said."""

import functools
import http.server
import pathlib
import shutil
import threading

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: pip install '.[release]'"
    )
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium: install one, such as Debian's package `chromium`")
    with playwright.sync_playwright() as run:
        browser = run.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="session")
def site():
    """The address of the built site."""
    if not (ROOT / "site" / "index.html").exists():
        pytest.skip("the site is not built: make docs")
    handler = functools.partial(Quiet, directory=str(ROOT / "site"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


class Watched:
    """A page that remembers what it asked for elsewhere and what went wrong in it."""

    def __init__(self, browser, width=1280, height=900, **options):
        self.page = browser.new_page(viewport={"width": width, "height": height}, **options)
        self.faults, self.foreign = [], []
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url):
        if not url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:")):
            self.foreign.append(url)

    def open(self, url):
        self.page.goto(url)  # until everything that it names has come
        self.page.wait_for_timeout(150)  # and what its scripts ask for
        return self.page


@pytest.fixture
def watched(chromium):
    made = []

    def make(**options):
        made.append(Watched(chromium, **options))
        return made[-1]

    yield make
    for one in made:
        one.page.close()
