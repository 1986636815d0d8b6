"""Every Python snippet of the README and of some pages runs, top to bottom, in one namespace."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)


def test_the_readme_runs_and_prints_what_it_says(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    assert len(blocks) >= 4
    namespace = {}
    for code, expected in blocks:
        exec(compile(code, "README.md", "exec"), namespace)
        printed = capsys.readouterr().out
        if expected:
            assert printed.strip() == expected.strip()


@pytest.mark.parametrize(
    ("page", "least"),
    [
        pytest.param("training_loop.md", 6, marks=pytest.mark.slow),
        ("troubleshooting.md", 1),
        ("own_method.md", 3),
        ("start/sphere.md", 6),
    ],
)
def test_the_page_runs(page, least, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text())
    assert len(blocks) >= least
    namespace = {}
    for code, expected in blocks:
        exec(compile(code, page, "exec"), namespace)
        printed = capsys.readouterr().out
        if expected:
            assert printed.strip() == expected.strip()
