"""One key policy: named streams of the caller's key, and no key is used twice."""

import ast
import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from methods import CASES

import determinax as dx
from determinax import _keys

KEY = jax.random.key(3)
ROOT = pathlib.Path(dx.__file__).parent
# who splits a key that is no stream of theirs, and why no other may use that key
SPLITTERS = {
    **dict.fromkeys(
        ["flows/cylinder.py", "flows/recipes.py", "flows/conditioners.py"],
        "a constructor splits the key that it is given, from one level to the next, and never folds",
    ),
    "paper/experiments.py": "a run's own keys, of a seed",
    "paper/demo.py": "a run's own keys, of a seed",
    "proposals/bumps.py": "the key of a stream, handed on",
    "densities/tests.py": "the key of a stream, handed on",
    "training/_likelihood.py": "a step's key, which is a stream's",
}


QUICK = ("MonteCarlo, frames", "Deflated, smallest")


@pytest.mark.parametrize(
    "runs", [QUICK, pytest.param((*CASES, "fit", "fit_linear"), marks=pytest.mark.slow)], ids=len
)
def test_no_key_of_a_run_is_used_twice(runs):
    script = pathlib.Path(__file__).with_name("drawn_keys.py")
    ended = subprocess.run(
        [sys.executable, script, *runs], capture_output=True, text=True, timeout=600, check=True
    )
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [one["run"] for one in found] == list(runs)
    for one in found:
        drawn, split = ({tuple(key) for key in one[kind]} for kind in ("drawn", "split"))
        # a dense matrix is factorised without any
        assert drawn or one["run"] in ("Exact", "Auto")
        assert len(drawn) == len(one["drawn"]), f"{one['run']} draws with a key twice"
        assert not drawn & split, f"{one['run']} splits a key and draws with it"
        assert tuple(one["own"]) not in drawn | split, f"{one['run']} uses the caller's key itself"


def test_streams_keep_clear_of_what_callers_split_and_fold():
    def data(key):
        return tuple(np.asarray(jax.random.key_data(key)).tolist())

    names = {name for path in ROOT.rglob("*.py") for name in stream_names(path)}
    assert {"directions", "probes", "steps", "pilot"} <= names
    streams = [data(_keys.stream(KEY, name, i)) for name in sorted(names) for i in range(4)]
    assert len(set(streams)) == len(streams)
    others = [jax.random.fold_in(KEY, i) for i in range(50)] + list(jax.random.split(KEY, 50))
    assert not set(streams) & {data(key) for key in others}


def calls_in(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def stream_names(path):
    """What a module calls its streams."""
    for call in calls_in(ast.parse(path.read_text())):
        if ast.unparse(call.func) == "stream" and isinstance(call.args[1], ast.Constant):
            yield str(call.args[1].value)


def foreign_splits(path):
    """Calls of `split` and `fold_in` with anything but a stream's own key, by line."""
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            own = {
                target.id
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and is_stream(node.value)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for call in calls_in(function):
                name = ast.unparse(call.func)
                if name.split(".")[-1] in ("split", "fold_in") and "random" in name:
                    key = call.args[0]
                    if not (is_stream(key) or (isinstance(key, ast.Name) and key.id in own)):
                        yield call.lineno


def is_stream(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "stream"


def test_nobody_splits_or_folds_a_key_that_is_not_a_streams_own():
    found = {
        str(path.relative_to(ROOT)): sorted(set(lines))
        for path in ROOT.rglob("*.py")
        if path.name != "_keys.py" and (lines := list(foreign_splits(path)))
    }
    assert found.keys() == SPLITTERS.keys(), found
    # and neither is imported by its bare name, where this would not see it
    for path in ROOT.rglob("*.py"):
        assert "from jax.random import" not in path.read_text(), path
