"""What a reader sees: the site, a report and a sphere in a real browser."""

import hashlib
import pathlib

import jax
import numpy as np
import pytest

import determinax as dx
from determinax import plots

pytestmark = pytest.mark.browser
ROOT = pathlib.Path(__file__).parent.parent.parent
SITE = ROOT / "site"


def test_every_page_opens_without_a_fault_and_asks_nobody_else(watched, site):
    browser = watched()
    pages = sorted(str(p.relative_to(SITE)) for p in SITE.rglob("*.html"))
    assert len(pages) > 40
    wide = []
    for name in pages:
        page = browser.open(f"{site}/{name}")
        assert (browser.faults, browser.foreign) == ([], []), name
        if page.evaluate("document.documentElement.scrollWidth") > 1280:
            wide.append(name)
    assert wide == []


def test_the_tables_of_every_page_fit_into_their_place(watched, site):
    browser = watched()
    beyond = (
        "[...document.querySelectorAll('article table')]"
        ".map(t => t.closest('.md-typeset__scrollwrap') || t.parentElement)"
        ".map(w => w.scrollWidth - w.clientWidth)"
    )
    pages = [p for p in sorted(SITE.rglob("*.html")) if "<table" in p.read_text()]
    assert len(pages) > 20
    found = {}
    for path in pages:
        page = browser.open(f"{site}/{path.relative_to(SITE)}")
        found[str(path.relative_to(SITE))] = max(page.evaluate(beyond), default=0)
    assert {name: pixels for name, pixels in found.items() if pixels > 0} == {}


def test_pictures_have_a_frame_at_night(watched, site):
    page = watched(color_scheme="dark").open(f"{site}/index.html")
    hero = page.locator("img.hero.wide")
    assert hero.evaluate("i => parseFloat(getComputedStyle(i).paddingLeft)") > 5
    assert hero.evaluate("i => getComputedStyle(i).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".caption").is_visible()


@pytest.mark.parametrize("word", ["log_abs_det", "MonteCarlo", "fit_linear", "density", "Estimate"])
def test_the_first_hit_of_a_search_is_the_name_itself(watched, site, word):
    page = watched().open(f"{site}/index.html")
    for _ in range(20):  # until then letters are short cuts: `n` goes to the next page
        page.keyboard.press("Control+k")
        page.wait_for_timeout(1000)
        if page.evaluate("document.activeElement !== document.body"):
            break
    page.keyboard.type(word, delay=20)
    hits = page.locator(f"a[href*='?h={word}']")  # a hit's link says what was looked for
    hits.first.wait_for(timeout=60_000)
    assert hits.first.get_attribute("href").endswith(f"#determinax.{word}")


def test_formulas_are_set_and_the_search_has_no_latex(watched, site):
    page = watched().open(f"{site}/theory.html")
    assert page.locator(".katex").count() > 30
    assert "\\lvert" not in page.inner_text("article")
    assert "\\\\lvert" not in (SITE / "search.json").read_text()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    rng = np.random.default_rng(0)
    a = np.linalg.qr(rng.standard_normal((30, 30)))[0] + 0.04 * rng.standard_normal((30, 30))
    estimate = dx.log_abs_det(a, dx.MonteCarlo(5000), key=jax.random.key(0), trace=True)
    path = tmp_path_factory.mktemp("report") / "report.html"
    estimate.report(path, exact=float(np.linalg.slogdet(a)[1]), source="<b>a.npy</b>")
    return path, estimate.status


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_shows_its_verdict(watched, report, width, scheme):
    path, status = report
    browser = watched(width=width, color_scheme=scheme)
    page = browser.open(path.as_uri())
    verdict = page.locator(".verdict")
    assert verdict.inner_text() == status
    box = verdict.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert box["y"] < 700  # without scrolling
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # of every figure one is shown, and its letters are not shrunk
    shown = [f for f in page.locator("svg").all() if f.is_visible()]
    assert len(shown) == page.locator("svg").count() // 2
    letters = shown[0].locator("text").first.evaluate("t => t.getBoundingClientRect().height")
    assert letters > 11
    assert page.locator("b").count() == 0  # the source's markup is text
    assert (browser.faults, browser.foreign) == ([], [])


def test_the_cure_is_copied_by_a_button(watched, report):
    browser = watched()
    page = browser.open(report[0].as_uri())
    page.locator("button[data-copy]").first.click()
    page.wait_for_function("document.querySelector('button[data-copy]').textContent !== 'copy'")
    assert page.locator("button[data-copy]").first.inner_text() in (
        "copied",
        "select and copy it by hand",
    )
    assert browser.faults == []


def test_the_policy_stops_a_script_that_was_put_in(watched, report, tmp_path):
    """As a last line of defence, whatever the escaping does."""
    text = (
        report[0].read_text().replace("</main>", "<script>document.title='owned'</script></main>")
    )
    (tmp_path / "bad.html").write_text(text)
    page = watched().open((tmp_path / "bad.html").as_uri())
    assert page.title() != "owned"


NAMES = ("the flow", "the target")


def picture(page):
    return hashlib.sha256(page.locator("canvas.globe").first.screenshot()).hexdigest()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_sphere_turns_when_dragged_and_its_slider_changes_it(watched, tmp_path, width):
    flow = dx.flows.exponential_radial(3, key=jax.random.key(0), num_flows=2, num_centres=2)
    plots.sphere(dx.Proposal(flow), tmp_path / "s.html", beside=lambda s: 4 * s[0], names=NAMES)
    browser = watched(width=width)
    page = browser.open((tmp_path / "s.html").as_uri())
    page.wait_for_timeout(300)
    before = picture(page)
    assert picture(page) == before
    box = page.locator("canvas.globe").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 25, steps=4)
    page.mouse.up()
    page.wait_for_timeout(300)
    turned = picture(page)
    assert turned != before
    page.locator("#sphere-layer").fill("0")
    page.wait_for_timeout(300)
    assert picture(page) != turned
    assert page.locator("#sphere-named").inner_text() == "uniform"
    assert page.locator("figcaption").all_inner_texts() == list(NAMES)
    assert page.locator(".scale .numbers span").count() == 5
    left, right = page.evaluate(
        "[...document.querySelectorAll('.globes')].map(g => g.getBoundingClientRect())"
        ".flatMap(b => [b.left, innerWidth - b.right])"
    )
    assert abs(left - right) < 20  # a scroll bar
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (browser.faults, browser.foreign) == ([], [])
