"""Every public name has an example, and every example runs."""

import importlib
import inspect
import pathlib
import pkgutil
import re
import textwrap

import numpy as np
import pytest

import determinax
from determinax import flows

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
# joins other processes, before JAX has done anything
NOT_RUN = {"determinax.distributed.initialize"}
SLOW = {"determinax.densities.tests.uniformity", "determinax.sweeps.sweep"}


def examples(thing):
    text = inspect.getdoc(thing) or ""
    return [textwrap.dedent(code) for _, code in BLOCK.findall(text)]


def documented():
    """Every module, function, class and method of ours whose docstring has an example."""
    found = {}
    for info in pkgutil.walk_packages(determinax.__path__, "determinax."):
        if ".cli" in info.name or info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        found[info.name] = module
        for name, thing in vars(module).items():
            if getattr(thing, "__module__", None) != info.name:
                continue
            found[f"{info.name}.{name}"] = thing
            if inspect.isclass(thing):
                members = inspect.getmembers(thing, inspect.isfunction)
                own = {m: f for m, f in members if f.__qualname__ == f"{thing.__name__}.{m}"}
                found |= {f"{info.name}.{name}.{m}": f for m, f in own.items()}
    return {name: thing for name, thing in found.items() if examples(thing)}


DOCUMENTED = documented()


def test_every_public_name_has_an_example():
    assert [n for n in determinax.__all__ if not examples(getattr(determinax, n))] == []


def _family(thing):
    return thing.__module__.removeprefix("determinax.flows.").split(".")[0]


def test_every_family_of_flows_has_an_example():
    """A family is a file or a folder; those that hold parts of maps are shown by the maps they make up."""
    public = [f for n, f in vars(flows).items() if not n.startswith("_") and callable(f)]
    families = {_family(f) for f in public}
    shown = {_family(f) for f in public if examples(f)}
    parts = {"base", "conditioners", "splines"}
    assert families - shown - parts == set()


@pytest.fixture(scope="module")
def names():
    """What the reference's first page defines for its examples."""
    (_, code), *_ = BLOCK.findall((ROOT / "docs" / "api" / "index.md").read_text())
    namespace = {}
    exec(compile(code, "docs/api/index.md", "exec"), namespace)
    return namespace


@pytest.mark.xdist_group("docstrings")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in sorted(set(DOCUMENTED) - NOT_RUN)
    ],
)
def test_the_example_runs(name, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.stack([names["longitude"], names["latitude"]], axis=1)
    np.savetxt("events.csv", rows, "%.4f", ",", header="longitude,latitude", comments="")
    for code in examples(DOCUMENTED[name]):
        exec(compile(code, name, "exec"), dict(names))
