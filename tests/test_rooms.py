"""Imports point up the list of rooms only: a room knows those before it, never those after it."""

import ast
import pathlib

import determinax

ROOT = pathlib.Path(determinax.__file__).parent
ROOMS = [
    "sphere",
    "operators",
    "flows",
    "proposals",
    "storage",
    "moments",
    "weights",
    "verdict",
    "estimate",
    "progress",
    "methods",
    "training",
    "plots",
    "files",
    "paper",
    "cli",
]


def room_of(module: str) -> str:
    return module.split(".")[1]


def imported_rooms(path: pathlib.Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "determinax":
            found |= {alias.name for alias in node.names if alias.name in ROOMS}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("determinax."):
            found.add(room_of(node.module))
        elif isinstance(node, ast.Import):
            found |= {room_of(a.name) for a in node.names if a.name.startswith("determinax.")}
    return found


def test_every_file_has_a_room():
    names = {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in ROOT.rglob("*.py")}
    assert names - {"__init__"} <= set(ROOMS)


def test_imports_point_up_the_list_only():
    seen = 0
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for other in imported_rooms(path):
            seen += 1
            assert ROOMS.index(other) <= ROOMS.index(room), f"{path.name} must not know {other}"
    assert seen > 20


def test_the_contributing_page_lists_the_rooms_in_this_order():
    text = (ROOT.parent / "CONTRIBUTING.md").read_text()
    positions = [text.find(f"| `{room}") for room in ROOMS if room_exists(room)]
    assert -1 not in positions
    assert positions == sorted(positions)


def room_exists(room: str) -> bool:
    return (ROOT / room).is_dir() or (ROOT / f"{room}.py").exists()
