"""Starting: the command line loads no JAX before it needs it, and the package imports lazily."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import determinax as dx

SOURCE = pathlib.Path(dx.__file__)


def python(*arguments, **options):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["estimate", "--help"], 0),
        (["fit", "-h"], 0),
        (["--version"], 0),
        (["estimate"], 2),
        (["estimate", "a.npy", "--method", "magic"], 2),
        (["estimate", "a.npy", "--samples", "9"], 2),
        (["estimate", "a.npy", "--method", "mc", "--samples", "2.5"], 2),
        (["estimate", "a.npy", "--method", "vde", "--proposal", "missing"], 2),
        (["estimate", "missing.npy"], 2),
        (["estimate", "bad.csv"], 2),
        (["estimate", "tall.csv"], 2),
        (["fit", "missing.npy", "--save", "q"], 2),
        (["fit", "a.npy", "--save", "missing/q"], 2),
        (["fit", "a.npy", "--save", "q", "--steps", "9"], 2),
        (["demo", "--out", "a.npy/x"], 2),
        (["density", "missing.csv", "--lonlat"], 2),
        (["sample", "missing.safetensors"], 2),
    ],
    ids=str,
)
def test_no_jax_is_loaded_for(arguments, code, tmp_path):
    (tmp_path / "a.npy").write_bytes(b"anything")
    (tmp_path / "bad.csv").write_text("1,2\n3\n")
    (tmp_path / "tall.csv").write_text("1,2\n3,4\n5,6\n")
    ended = python("-X", "importtime", "-m", "determinax.cli", *arguments, cwd=tmp_path)
    assert ended.returncode == code
    imported = {line.rsplit("|", 1)[-1].strip() for line in ended.stderr.splitlines()}
    assert "determinax.cli.commands" in imported
    assert not imported & {"jax", "equinox", "matplotlib", "scipy.stats", "arviz_stats"}


def test_an_estimate_does_without_what_is_slow_to_import():
    code = (
        "import sys, determinax as dx, jax\n"
        "float(dx.log_abs_det([[1.0, 2.0], [3.0, 4.0]]))\n"
        "slow = {'scipy.stats', 'scipy.special', 'scipy.spatial', 'arviz_stats', 'matplotlib', 'rich'}\n"
        "print(*slow & set(sys.modules))"
    )
    ended = python("-c", code)
    assert (ended.returncode, ended.stdout.strip()) == (0, ""), ended.stderr


def test_submodules_are_attributes_as_the_docs_have_them():
    code = (
        "import determinax\n"
        "determinax.plots.density, determinax.flows.cylinder, determinax.paper.MATRICES\n"
        "determinax.training.fit, determinax.files.read_matrix, determinax.estimate.Estimate\n"
        "print('jax' in __import__('sys').modules)"
    )
    ended = python("-c", code)
    assert ended.stdout.strip() == "True", ended.stderr
    with pytest.raises(AttributeError, match="has no attribute 'log_abs_dett'"):
        dx.log_abs_dett  # noqa: B018


def test_a_star_imports_all_names():
    names = {}
    exec("from determinax import *", names)
    assert set(dx.__all__) <= names.keys()
    assert set(dx.__all__) | set(dx._HOMES) <= set(dir(dx))


def test_types_table_and_all_name_the_same():
    """What type checkers see is what there is."""
    tree = ast.parse(SOURCE.read_text())
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {}
    for node in block.body:
        if node.module == "typing":
            continue
        home = node.module.removeprefix("determinax").removeprefix(".")
        seen |= {alias.name: home or alias.name for alias in node.names}
    table = {home: home for home in dx._HOMES} | dx._HOME_OF
    assert seen == table
    assert set(dx.__all__) <= seen.keys()
    assert dx._HOME_OF.keys() <= set(dx.__all__)


def test_the_version_is_printed():
    ended = python("-m", "determinax.cli", "--version")
    assert re.fullmatch(r"determinax \d+\.\d+\.\d+\S*\n", ended.stdout)
    assert ended.stderr == ""
