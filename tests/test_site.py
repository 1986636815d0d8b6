"""The site: every link, anchor and picture leads somewhere, and every public name is in the reference."""

import html.parser
import pathlib
import re
import subprocess
import tomllib
import urllib.parse

import build_site
import pytest

import determinax
from determinax import flows

ROOT = pathlib.Path(__file__).parent.parent
pytestmark = pytest.mark.xdist_group("site")  # which is built once


class Page(html.parser.HTMLParser):
    """What a page points to, and the anchors that it has."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        self.targets += [found[name] for name in ("href", "src") if found.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("zensical", reason="the site is built by zensical: pip install '.[docs]'")
    out = tmp_path_factory.mktemp("built") / "site"
    build_site.build(out, formulas=False)
    return out


def broken(site):
    """Links of all pages that lead nowhere, and those that leave for another host."""
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    nowhere, foreign = [], []
    for path, page in pages.items():
        for target in page.targets:
            parts = urllib.parse.urlsplit(target)
            if parts.scheme in ("http", "https"):
                foreign.append(target)
                continue
            if parts.scheme:
                continue
            # the page for what is missing has absolute links
            start = site if parts.path.startswith("/") else path.parent
            there = (start / urllib.parse.unquote(parts.path).lstrip("/")).resolve()
            there = path if not parts.path else there / "index.html" if there.is_dir() else there
            anchor = urllib.parse.unquote(parts.fragment)
            is_page = there in pages
            if not there.exists() or (
                anchor and anchor != "__" and is_page and anchor not in pages[there].anchors
            ):
                nowhere.append(f"{path.relative_to(site)}: {target}")
    return nowhere, foreign


def test_every_link_anchor_and_picture_is_there(site):
    nowhere, _ = broken(site)
    missing_katex = "assets/katex/katex.min.css"  # `make docs` fetches it
    assert [line for line in nowhere if not line.endswith(missing_katex)] == []


def test_a_missing_picture_a_missing_anchor_and_a_link_out_of_the_site_are_seen(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><img src="no.png"><a href="#here">1</a><a href="#there">2</a>'
        '<a href="../README.md">3</a><a href="b.html#x">4</a><a href="https://a.org">5</a>'
    )
    (tmp_path / "b.html").write_text("<p>")
    nowhere, foreign = broken(tmp_path)
    assert [line.split(": ")[1] for line in nowhere] == [
        "no.png",
        "#there",
        "../README.md",
        "b.html#x",
    ]
    assert foreign == ["https://a.org"]


def test_every_public_name_is_in_the_reference(site):
    places = build_site.inventory(site / "objects.inv")
    assert {f"determinax.{name}" for name in determinax.__all__} <= set(places)
    of_flows = {name for name in vars(flows) if not name.startswith("_") and name[0].isupper()}
    assert {f"determinax.flows.{name}" for name in of_flows} <= set(places)
    assert all((site / place.split("#")[0]).exists() for place in places.values())


def test_what_a_method_of_your_own_is_made_of_is_in_the_reference():
    page = (ROOT / "docs" / "own_method.md").read_text()
    (imported,) = re.findall(r"^from determinax\.methods import (.*)$", page, re.MULTILINE)
    reference = (ROOT / "docs" / "api" / "methods.md").read_text().splitlines()
    assert {f"::: determinax.methods.{name}" for name in imported.split(", ")} <= set(reference)
    assert "fold_in(key, index)" not in page  # small numbers are the caller's


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if page not in menu} == set()


def test_names_in_backticks_are_linked():
    places = {"determinax.Auto": "api/methods.html#determinax.Auto"}
    linked = build_site.linked
    page = "<p><code>Auto(9)</code> <code>auto</code></p><pre><code>Auto</code></pre>"
    wanted = '<a href="../api/methods.html#determinax.Auto"><code>Auto(9)</code></a>'
    assert linked(page, places, "../") == page.replace("<code>Auto(9)</code>", wanted)
    assert linked("<a href=''><code>dx.Auto</code></a>", places, "") == (
        "<a href=''><code>dx.Auto</code></a>"
    )


def test_a_class_is_one_entry_of_the_search_and_titles_are_names():
    items = [
        {"location": f"a.html#{anchor}", "title": "x", "text": words}
        for anchor, words in {
            "determinax.log_abs_det": "1",
            "determinax.flows.Dense": "2",
            "determinax.flows.Dense.log_abs_det": "3",
            "which-method": "4",
        }.items()
    ]
    found = build_site.findable(items)
    assert [item["title"] for item in found] == ["log_abs_det", "flows.Dense", "x"]
    assert found[1]["text"] == "2<p>log_abs_det</p>3"


def test_the_gallery_is_what_its_tool_writes_and_every_picture_is_there():
    import gallery

    assert (ROOT / "docs" / "gallery.md").read_text() == gallery.page()
    for one in [one for group in gallery.GROUPS.values() for one in group]:
        assert (ROOT / "docs" / one.path).stat().st_size < 450_000
        if one.command.startswith("python "):
            assert (ROOT / one.command.split()[1]).exists()


def test_the_links_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", text) if not t.startswith("http")]
    assert len(targets) > 20
    for target in targets:
        path, _, anchor = target.partition("#")
        assert (ROOT / path).exists(), target
        heads = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(errors="ignore"), re.MULTILINE)
        named = {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}
        assert not anchor or anchor in named, target


def test_the_source_distribution_has_all_that_the_root_has():
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode:
        pytest.skip("not a git repository")
    roots = {name.split("/")[0] for name in tracked.stdout.splitlines()}
    roots = {name for name in roots if not name.startswith(".")} - {"pyproject.toml"}
    assert roots == {name.lstrip("/") for name in included}
    versions = {c[-4:] for c in project["project"]["classifiers"] if " :: 3." in c}
    assert versions == {"3.11", "3.12", "3.13", "3.14"}
