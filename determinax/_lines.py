"""Lines of JSON, one for each matrix of a sweep: written when it is done, whole or not at all."""

import json
import os
import pathlib
import platform
from importlib import metadata
from typing import Any

from determinax._interrupts import writing


def as_line(
    name: str, found: dict[str, Any] | None, error: str | None, seconds: float, **more: Any
) -> dict[str, Any]:
    """Who, what was found or what went wrong, how long it took, and by which versions."""
    what = {"status": "failed", "error": error} if found is None else found
    about = {"file": name, **more, "seconds": round(seconds, 4), "versions": versions()}
    return {**about, **what}


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    from determinax import __version__

    others = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy", "scipy")}
    return {"determinax": __version__, "python": platform.python_version(), **others}


def sentence(error: BaseException) -> str:
    """What an exception says, in a line."""
    text = next(iter(str(error).splitlines()), "")
    known = isinstance(error, ValueError | TypeError | ArithmeticError | RuntimeError) and text
    return text if known else f"{type(error).__name__}: {text}".removesuffix(": ")


class Lines:
    """A file of lines that grows; with `resume` what is there stays, but for a line that was cut short."""

    def __init__(self, path: pathlib.Path, same: dict[str, Any], *, resume: bool):
        if path.exists() and not resume:
            raise ValueError(
                f"{path}: is there already: say --resume to go on with it, or name another"
            )
        self.done = _read(path, same) if path.exists() else {}
        self._file = path.open("ab")
        if self.done or self._file.tell():
            self._file.truncate(sum(len(line) for line in _whole_lines(path)))

    def add(self, line: dict[str, Any]) -> None:
        """Write one more, by a single call of the system."""
        with writing():
            os.write(self._file.fileno(), json.dumps(line).encode() + b"\n")
        self.done[line["file"]] = line["status"]

    def close(self) -> None:
        """Nothing comes any more."""
        self._file.close()


def _whole_lines(path: pathlib.Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True)
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _read(path: pathlib.Path, same: dict[str, Any]) -> dict[str, str]:
    """The status of each file that has a line; all lines have to be of the same settings."""
    done = {}
    for number, text in enumerate(_whole_lines(path), 1):
        try:
            line = json.loads(text)
            name, status = line["file"], line["status"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: line {number} is no line of a sweep: name another file"
            ) from error
        for option, value in same.items():
            if line.get(option) != value:
                raise ValueError(
                    f"{path}: line {number} was made with {option} {line.get(option)!r}, not {value!r}: "
                    "name another file"
                )
        done[name] = status
    return done
