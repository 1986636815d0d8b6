"""Build the site: Zensical makes the pages, and this links names and sets formulas.

    python tools/build_site.py [--out site]

Zensical leaves `Estimate` in backticks as it is, and formulas to a script in the reader's browser, so that
a search shows raw LaTeX and a bad formula goes unseen. Here every name of the library becomes a link into
the reference, and KaTeX sets every formula while the site is built: a bad one ends the build.
"""

import argparse
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
KATEX = ROOT / "docs" / "assets" / "katex" / "katex.min.js"

# \(...\) and \[...\], as pymdownx.arithmatex leaves them
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)
_BARE = re.compile(r"\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]", re.DOTALL)
# a name in backticks; links, listings, headings and menus are passed over
_NAME = re.compile(
    r"<(?P<apart>a|pre|h[1-6]|nav|head|script)\b.*?</(?P=apart)>"
    r"|<code>(?:dx\.|determinax\.)?(?P<name>[A-Za-z_][\w.]*)(?:\([^<]*\))?</code>",
    re.DOTALL,
)


def build(out: pathlib.Path, *, formulas: bool = True) -> None:
    """The whole site in `out`; without `formulas` these stay raw, and no Node.js is needed."""
    zensical(out)
    places = inventory(out / "objects.inv")
    pages = sorted(out.rglob("*.html"))
    for page in pages:
        base = "../" * (len(page.relative_to(out).parts) - 1)
        page.write_text(linked(page.read_text(), places, base))
    search = out / "search.json"
    index = json.loads(search.read_text())
    index["items"] = findable(index["items"])
    search.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")))
    if formulas:
        set_formulas(out, pages)


def zensical(out: pathlib.Path) -> None:
    """Zensical's part, strictly: a warning ends it."""
    with tempfile.TemporaryDirectory() as folder:  # it writes below its configuration only
        config = pathlib.Path(folder) / "mkdocs.yml"
        shutil.copy(ROOT / "mkdocs.yml", config)
        shutil.copytree(ROOT / "docs", config.parent / "docs")
        command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", config]
        env = os.environ | {"PYTHONPATH": str(ROOT)}  # whose docstrings it reads
        ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        said = ended.stdout + ended.stderr
        if ended.returncode or "No issues found" not in said:
            raise SystemExit(f"the site was not built:\n{said}")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(config.parent / "site", out)


def inventory(path: pathlib.Path) -> dict[str, str]:
    """Where each name is: `determinax.Estimate` to `api/index.html#determinax.Estimate`."""
    packed = path.read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(packed).decode().splitlines()
    rows = [line.split(" ", 4) for line in lines]
    return {row[0]: row[3].replace("$", row[0]) for row in rows}


def linked(page: str, places: dict[str, str], base: str) -> str:
    """The page with names in backticks linked to the reference, from `base` on."""

    def link(found: re.Match) -> str:
        place = places.get(f"determinax.{found['name']}")
        return f'<a href="{base}{place}">{found[0]}</a>' if place else found[0]

    return _NAME.sub(link, page)


def findable(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the search looks through: a name is found before the pages and methods that mention it.

    The search prefers short entries. So a class and its members are one entry, and titles are names as they
    are typed: `log_abs_det`, `flows.Dense`.
    """
    kept: list[dict[str, Any]] = []
    owners: dict[str, dict[str, Any]] = {}
    for item in items:
        page, _, anchor = item["location"].partition("#")
        owner = owners.get(f"{page}#{anchor.rpartition('.')[0]}")
        if owner is not None:
            owner["text"] += f"<p>{anchor.rpartition('.')[2]}</p>{item['text']}"
            continue
        if anchor.startswith("determinax."):
            item["title"] = anchor.removeprefix("determinax.")
            if anchor.rpartition(".")[2][0].isupper():  # a class
                owners[item["location"]] = item
        kept.append(item)
    return kept


def set_formulas(out: pathlib.Path, pages: list[pathlib.Path]) -> None:
    """Formulas as KaTeX sets them; in the search, as plain characters."""
    search = out / "search.json"
    index = json.loads(search.read_text())
    wanted = {
        (m["latex"], m["open"] == "[") for p in pages for m in _FORMULA.finditer(p.read_text())
    }
    texts = [item[part] for item in index["items"] for part in ("title", "text")]
    wanted |= {(m["latex"], m["open"] == "[") for text in texts for m in _BARE.finditer(text)}
    made = katex(sorted(wanted))
    for page in pages:
        page.write_text(_FORMULA.sub(lambda m: _formula(m, made, "html"), page.read_text()))
    for item in index["items"]:
        for part in ("title", "text"):
            item[part] = _BARE.sub(lambda m: _formula(m, made, "text"), item[part])
    search.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")))


def _formula(found: re.Match, made: dict, kind: str) -> str:
    return made[found["latex"], found["open"] == "["][kind]


def katex(formulas: list[tuple[str, bool]]) -> dict[tuple[str, bool], dict[str, str]]:
    """Each formula's `html` and `text`, by one process of Node.js."""
    if not KATEX.exists():
        raise SystemExit("KaTeX is not there: `make docs` fetches it by npm")
    asked = json.dumps([{"latex": html.unescape(x), "display": block} for x, block in formulas])
    command = ["node", ROOT / "tools" / "formulas.cjs", KATEX]
    ended = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"a formula is wrong: {ended.stderr}")
    return dict(zip(formulas, json.loads(ended.stdout), strict=True))


def main() -> None:
    """Build the site where the command line says."""
    parser = argparse.ArgumentParser(description="Build the site.")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "site")
    out = parser.parse_args().out.resolve()
    build(out)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{len(list(out.rglob('*.html')))} pages, {size / 1e6:.1f} MB, in {out}")


if __name__ == "__main__":
    main()
