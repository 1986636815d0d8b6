"""Every Python snippet of the README runs, top to bottom, in one namespace."""

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


@pytest.mark.slow
def test_the_training_loop_page_runs():
    text = (ROOT / "docs" / "training_loop.md").read_text()
    blocks = [code for code, _ in BLOCK.findall(text)]
    assert len(blocks) >= 6
    namespace = {}
    for code in blocks:
        exec(compile(code, "training_loop.md", "exec"), namespace)
