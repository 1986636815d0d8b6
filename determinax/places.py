"""Longitudes and latitudes from a text file, its columns found by their names."""

import csv
import io
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from determinax.files import FileError

_NAMES = {
    "longitude": ("longitude", "lon", "long", "lng"),
    "latitude": ("latitude", "lat"),
}
_DELIMITERS = ",;\t"
# what a cell may hold in place of a number that is not known
_MISSING = ("", "na", "n/a", "nan", "null", "none", "-", "?")


class Places(NamedTuple):
    """Degrees, an event a row, and how many rows were dropped since they hold no place."""

    longitude: Float[np.ndarray, " num"]
    latitude: Float[np.ndarray, " num"]
    num_dropped: int


def read_lonlat(
    path: str | pathlib.Path,
    *,
    columns: Sequence[str] | None = None,
    drop_missing: bool = False,
) -> tuple[Float[np.ndarray, " num"], Float[np.ndarray, " num"]]:
    """Longitudes and latitudes in degrees of a text file, an event a row.

    Commas, semicolons or tabs stand between the cells: the first line says which. Columns named
    longitude (lon, long, lng) and latitude (lat) are found by themselves, in any case and order. `columns`
    names others, longitude first, by name or by number from 1. Lines that begin with `#` and empty ones
    are passed over. A row without a place is refused, or passed over by `drop_missing`. The path `-` is
    standard input.

    !!! example

        ```python
        longitude, latitude = dx.places.read_lonlat("events.csv")
        points = dx.sphere.from_lonlat(longitude, latitude)
        ```
    """
    found = read_places(path, columns=columns, drop_missing=drop_missing)
    return found.longitude, found.latitude


def read_places(
    path: str | pathlib.Path, *, columns: Sequence[str] | None = None, drop_missing: bool = False
) -> Places:
    """What `read_lonlat` gives, and how many rows were dropped."""
    text = _text(path)
    path = "standard input" if str(path) == "-" else path
    delimiter = _delimiter(text)
    numbered = list(_rows(path, text, delimiter))
    if not numbered:
        raise FileError(f"{path}: the file is empty")
    names = [name.lower() for name in numbered[0][1]]
    places = _places(path, names, columns)
    body = numbered if all(_is_number(names[i]) for i in places) else numbered[1:]
    if not body:
        raise FileError(f"{path}: names, and no events below them")
    kept = [one for one in body if not (drop_missing and _is_missing(one[1], places))]
    if not kept:
        raise FileError(f"{path}: none of {len(body)} rows holds a place")
    values = np.array([_numbers(path, line, row, places) for line, row in kept])
    return Places(values[:, 0], values[:, 1], len(body) - len(kept))


def _text(path: str | pathlib.Path) -> str:
    if str(path) == "-":
        return sys.stdin.read().removeprefix("\ufeff")
    try:
        return pathlib.Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read as text") from error


def _delimiter(text: str) -> str:
    """What stands between the cells of the first line that is no comment."""
    lines = (line for line in text.splitlines() if line.strip() and not _is_comment(line))
    first = next(lines, "")
    return max(_DELIMITERS, key=first.count)


def _rows(path: str | pathlib.Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Cells with the number of their line; one that is quoted may go over many."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        line = 1
        for row in reader:
            cells = [_plain(cell.strip(), delimiter) for cell in row]
            if (len(cells) > 1 or any(cells)) and not _is_comment(cells[0]):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise FileError(f"{path}: cannot be read as a table: {error}") from error


def _plain(cell: str, delimiter: str) -> str:
    """Between semicolons or tabs a number may have a comma for its point."""
    pointed = cell.replace(",", ".")
    return pointed if delimiter != "," and _is_number(pointed) else cell


def _is_comment(text: str) -> bool:
    return text.lstrip().startswith("#")


def _places(path: str | pathlib.Path, names: list[str], columns: Sequence[str] | None) -> list[int]:
    """Which columns hold longitude and latitude."""
    if columns is None:
        return [_named(path, names, what) for what in _NAMES]
    if len(columns) != 2:
        raise FileError(f"{path}: columns are two, longitude and latitude, not {list(columns)}")
    chosen = []
    for column in (str(c).strip().lower() for c in columns):
        if column.isdigit() and 1 <= int(column) <= len(names):
            chosen.append(int(column) - 1)
        elif column in names:
            chosen.append(names.index(column))
        else:
            raise FileError(f"{path}: no column {column!r}: there are {', '.join(names)}")
    return chosen


def _named(path: str | pathlib.Path, names: list[str], what: str) -> int:
    hits = [i for i, name in enumerate(names) if name in _NAMES[what]]
    if len(hits) > 1:
        several = " and ".join(names[i] for i in hits)
        raise FileError(
            f"{path}: more than one column is named {what}: {several}: say which by columns= (--columns)"
        )
    if not hits:
        raise FileError(
            f"{path}: no columns are named longitude and latitude: say which, such as "
            'columns=("lon", "lat") or, by number, ("1", "2") (--columns 1,2)'
        )
    return hits[0]


def _is_missing(row: list[str], places: list[int]) -> bool:
    return any(i >= len(row) or row[i].lower() in _MISSING for i in places)


def _numbers(path: str | pathlib.Path, line: int, row: list[str], places: list[int]) -> list[float]:
    for i in places:
        if i >= len(row) or not _is_number(row[i]):
            cell = row[i] if i < len(row) else ""
            cure = ": drop such rows by drop_missing=True (--drop-missing)"
            raise FileError(
                f"{path}: line {line}, column {i + 1} holds {cell!r}, not degrees"
                + (cure if _is_missing(row, [i]) else "")
            )
    return [float(row[i]) for i in places]


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False
