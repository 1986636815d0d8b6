"""Longitudes and latitudes from a text file, its columns found by their names."""

import csv
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from determinax.files import FileError

_NAMES = {
    "longitude": ("longitude", "lon", "long", "lng"),
    "latitude": ("latitude", "lat"),
}


def read_lonlat(
    path: str | pathlib.Path, *, columns: Sequence[str] | None = None
) -> tuple[Float[np.ndarray, " num"], Float[np.ndarray, " num"]]:
    """Longitudes and latitudes in degrees of a file with commas, an event a row.

    Columns named longitude (lon, long, lng) and latitude (lat) are found by themselves, in any case and
    order; `columns` names others, longitude first, by name or by number from 1. Lines that begin with
    `#` and empty ones are passed over.

    !!! example

        ```python
        longitude, latitude = dx.places.read_lonlat("events.csv")
        points = dx.sphere.from_lonlat(longitude, latitude)
        ```
    """
    path = pathlib.Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read as text") from error
    numbered = [
        (i, [cell.strip() for cell in next(csv.reader([line]))])
        for i, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not numbered:
        raise FileError(f"{path}: the file is empty")
    names = [name.lower() for name in numbered[0][1]]
    places = _places(path, names, columns)
    body = numbered if all(_is_number(names[i]) for i in places) else numbered[1:]
    if not body:
        raise FileError(f"{path}: names, and no events below them")
    values = np.array([_numbers(path, line, row, places) for line, row in body])
    return values[:, 0], values[:, 1]


def _places(path: pathlib.Path, names: list[str], columns: Sequence[str] | None) -> list[int]:
    """Which columns hold longitude and latitude."""
    if columns is None:
        found = [[i for i, name in enumerate(names) if name in known] for known in _NAMES.values()]
        if any(len(hits) != 1 for hits in found):
            raise FileError(
                f"{path}: no columns are named longitude and latitude: say which, such as "
                'columns=("lon", "lat") or, by number, ("1", "2") (--columns 1,2)'
            )
        return [hits[0] for hits in found]
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


def _numbers(path: pathlib.Path, line: int, row: list[str], places: list[int]) -> list[float]:
    for i in places:
        if i >= len(row) or not _is_number(row[i]):
            cell = row[i] if i < len(row) else ""
            raise FileError(f"{path}: line {line}, column {i + 1} holds {cell!r}, not degrees")
    return [float(row[i]) for i in places]


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False
