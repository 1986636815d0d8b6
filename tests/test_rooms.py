"""Imports point up the list of rooms only: a room knows those before it, never those after it."""

import ast
import pathlib

import determinax

ROOT = pathlib.Path(determinax.__file__).parent
ROOMS = [
    "_checks",
    "distributed",
    "_interrupts",
    "progress",
    "_workers",
    "_lines",
    "_keys",
    "_shapes",
    "_digest",
    "_linalg",
    "sphere",
    "_drawing",
    "_spheres",
    "operators",
    "flows",
    "proposals",
    "storage",
    "_checkpoint",
    "_objective",
    "_states",
    "_trace",
    "_pareto",
    "_diagnostics",
    "_bounds",
    "_text",
    "_advice",
    "_terminal",
    "_report",
    "estimate",
    "_revealed",
    "methods",
    "_engine",
    "_devices",
    "_shell",
    "api",
    "gradients",
    "jacobians",
    "blocks",
    "surrogates",
    "likelihood",
    "training",
    "densities",
    "_style",
    "_globe",
    "_nearby",
    "_outlines",
    "_pairs",
    "plots",
    "files",
    "places",
    "sweeps",
    "paper",
    "cli",
]


def imported_modules(path: pathlib.Path) -> set[str]:
    """Dotted names below the package, relative imports resolved."""
    package = path.relative_to(ROOT.parent).with_suffix("").parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            # a name may be a module itself
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def imported_rooms(path: pathlib.Path) -> set[str]:
    parts = [name.split(".") for name in imported_modules(path)]
    return {p[1] for p in parts if p[0] == "determinax" and len(p) > 1 and p[1] in ROOMS}


def room_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_file_has_a_room():
    names = {room_of(p) for p in ROOT.rglob("*.py")}
    assert names - {"__init__"} == set(ROOMS)


def test_imports_point_up_the_list_only():
    silent = []
    for path in ROOT.rglob("*.py"):
        room = room_of(path)
        if room == "__init__":
            continue
        others = imported_rooms(path)
        silent += [] if others else [path.name]
        for other in others:
            assert ROOMS.index(other) <= ROOMS.index(room), f"{path} must not know {other}"
    # relative imports are seen too: these few know nobody
    assert len(silent) < 30


def test_relative_imports_are_resolved(tmp_path):
    assert "flows" in imported_rooms(ROOT / "flows" / "chain.py")
    assert {"sphere", "flows"} <= imported_rooms(ROOT / "flows" / "recipes.py")


def test_the_contributing_page_lists_the_rooms_in_this_order():
    text = (ROOT.parent / "CONTRIBUTING.md").read_text()
    positions = [text.find(f"`{room}{'/' if (ROOT / room).is_dir() else '.py'}`") for room in ROOMS]
    assert -1 not in positions
    assert positions == sorted(positions)


def unannotated(path: pathlib.Path) -> list[str]:
    """Public functions of a module and of its public classes that leave a type unsaid."""

    def functions(body: list[ast.stmt]) -> list[ast.FunctionDef]:
        inside = [c.body for c in body if isinstance(c, ast.ClassDef) and c.name[0] != "_"]
        own = [f for f in body if isinstance(f, ast.FunctionDef) and f.name[0] != "_"]
        return own + [f for b in inside for f in functions(b)]

    def is_silent(function: ast.FunctionDef) -> bool:
        a = function.args
        said = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
        unsaid = [x.arg for x in said if x is not None and x.annotation is None]
        return function.returns is None or not set(unsaid) <= {"self", "cls"}

    tree = ast.parse(path.read_text())
    where = path.relative_to(ROOT)
    return [f"{where}:{f.lineno} {f.name}" for f in functions(tree.body) if is_silent(f)]


def test_every_public_function_is_annotated():
    assert [one for path in sorted(ROOT.rglob("*.py")) for one in unannotated(path)] == []


def test_no_file_is_above_400_lines():
    folder = ROOT.parent
    rooms = [folder / name for name in ("determinax", "tests", "benchmarks", "examples", "tools")]
    lengths = {p: p.read_text().count("\n") for room in rooms for p in room.rglob("*.py")}
    assert {str(p): n for p, n in lengths.items() if n > 400} == {}, "would two read better?"


def test_no_function_is_written_in_several_files():
    """Private functions and classes of more than a line, that are the same but for their texts' words."""
    found: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and len(ast.unparse(node).splitlines()) > 2:
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        inner.value = ""
                found.setdefault(ast.dump(node), []).append(f"{path.relative_to(ROOT)} {node.name}")
    assert [places for places in found.values() if len(places) > 1] == []
