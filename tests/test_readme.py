"""Every Python block of the README and of the pages runs, top to bottom, in one namespace a page."""

import ast
import pathlib
import re
import textwrap

import matplotlib as mpl
import pytest

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
SLOW = {"docs/training_loop.md"}
WITH_CODE = [name for name, text in PAGES.items() if "```python" in text]


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow if p in SLOW else ()) for p in WITH_CODE],
)
def test_the_page_runs_and_prints_what_it_says(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    namespace = {}
    for code, expected in BLOCK.findall(PAGES[page]):
        exec(compile(code, page, "exec"), namespace)
        printed = capsys.readouterr().out
        if expected:
            assert printed.strip() == expected.strip()


def indented_python(text):
    """Indented blocks that are Python, outside of fences: nothing would run these."""
    outside = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"\n\n((?:    .*\n)+)", outside)
    return [block for block in map(textwrap.dedent, blocks) if _is_python(block)]


def _is_python(block):
    if not re.search(r"\w\(.*\)|\bimport\b", block) or "->" in block:
        return False
    try:
        ast.parse(block)
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES)
def test_no_python_stands_where_nothing_runs_it(page):
    assert indented_python(PAGES[page]) == []


def test_indented_python_is_seen():
    assert indented_python("a\n\n    x = f(1)\n\nb\n") == ["x = f(1)\n"]
    assert indented_python("a\n\n    determinax demo --out x\n\nb\n") == []
