"""Matrices from files: .npy, .npz (dense or SciPy sparse), .mtx, .csv, .txt; none is unpickled.

A file may lie about its size, so sizes are checked against the file before anything is allocated.
"""

import itertools
import pathlib
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import numpy as np
import scipy.sparse

_CURE = "say --header (header=True in Python) if the first row holds names"
_INDEX = "save the table without its index (index=False in pandas)"


class FileError(ValueError):
    """What is wrong with a file, in one sentence."""


def read_matrix(
    path: str | pathlib.Path, *, header: bool | None = None, skip_rows: int = 0
) -> np.ndarray | Any:
    """The matrix in the file: a NumPy array or a SciPy sparse array.

    **Arguments:**

    - `header`: of text files, whether the first row holds names, which are left out. A row of text
        is refused unless this is True; a row 0, 1, 2, ... on top of a square matrix, which may be
        either, unless this is said.
    - `skip_rows`: of text files, how many lines to leave out before anything is looked at.
    """
    path = pathlib.Path(path)
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise FileError(f"{path}: unknown kind of file; these are read: {', '.join(READERS)}")
    layout = {}
    if READERS[suffix] is _read_text:
        layout = {"header": header, "skip_rows": _require_count(skip_rows)}
    elif header is not None or skip_rows != 0:
        raise FileError(f"{path}: header and skip_rows are for text, .csv or .txt: leave them out")
    try:
        if not path.exists():
            raise FileError(f"{path}: no such file")
        if not path.is_file():
            raise FileError(f"{path}: not a file")
        if path.stat().st_size == 0:
            raise FileError(f"{path}: the file is empty")
        matrix = READERS[suffix](path, **layout)
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(f"{path}: does not fit into memory") from error
    except Exception as error:  # readers of damaged files raise whatever they stumble over
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(f"{path}: cannot be read as {suffix}: {_short(reason)}") from error
    if matrix.dtype.kind not in "biufc":
        raise FileError(f"{path}: holds {_short(str(matrix.dtype))} where there should be numbers")
    _require_filled(path, matrix)
    return matrix


def _require_filled(path: pathlib.Path, matrix: Any) -> None:
    """A few entries in billions of rows: nobody's matrix, and later steps would make room for it."""
    if scipy.sparse.issparse(matrix) and max(matrix.shape) > 1000 * (matrix.data.size + 1000):
        size = "x".join(map(str, matrix.shape))
        raise FileError(f"{path}: its header lies: {size} with {matrix.data.size:,} entries")


def _require_count(skip_rows: Any) -> int:
    if isinstance(skip_rows, bool) or int(skip_rows) != skip_rows or skip_rows < 0:
        raise ValueError(f"skip_rows must be a whole number, 0 or more, not {skip_rows!r}")
    return int(skip_rows)


def _short(text: str, most: int = 200) -> str:
    """Text for a message: on one line, without a terminal's escapes, and not for ever."""
    return repr(text[:most])[1:-1] + ("..." if len(text) > most else "")


# --- NumPy's formats --------------------------------------------------------------------------


def _read_npy(path: pathlib.Path) -> np.ndarray:
    with path.open("rb") as file:
        return _array_from(file, path.stat().st_size, str(path))


def _array_from(file: Any, size: int, name: str) -> np.ndarray:
    """One .npy stream of `size` bytes; its header is compared with that before it is believed."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise FileError(f"{name}: written by an unknown version {version} of the .npy format")
    if dtype.hasobject:
        raise FileError(
            f"{name}: holds pickled Python objects, which are never loaded; "
            "save a numeric array instead"
        )
    need = int(np.prod(shape, dtype=object)) * dtype.itemsize
    have = size - file.tell()
    # a copy, since an array over bytes cannot be written to
    data = bytearray(file.read(need)) if need == have else b""
    if need != have or len(data) != need or file.read(1):
        raise FileError(
            f"{name}: truncated, or its header lies: shape {shape} of {dtype} needs {need:,} bytes "
            f"and the file has {have:,}"
        )
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _read_npz(path: pathlib.Path) -> Any:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in arrays:
                raise FileError(f"{path}: holds '{_short(name)}' twice")
            with archive.open(info) as file:
                arrays[name] = _array_from(file, info.file_size, f"{path}/{_short(name)}")
    if {"format", "shape", "data"} <= arrays.keys():
        return _sparse_from(arrays, path)
    if len(arrays) != 1:
        names = _short(", ".join(sorted(arrays)) or "none")
        raise FileError(f"{path}: holds {len(arrays)} arrays ({names}); save the one matrix alone")
    return next(iter(arrays.values()))


# what a sparse matrix is made of, beside its data
_PARTS = {
    "csr": ("indices", "indptr"),
    "csc": ("indices", "indptr"),
    "bsr": ("indices", "indptr"),
    "coo": ("row", "col"),
    "dia": ("offsets",),
}


def _sparse_from(arrays: dict[str, np.ndarray], path: pathlib.Path) -> Any:
    kind = arrays["format"].item()
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    if kind not in _PARTS:
        raise FileError(f"{path}: sparse format '{_short(kind)}' is not read; save it as csr")
    for name in ("shape", *_PARTS[kind]):
        if name not in arrays or arrays[name].dtype.kind not in "iu" or arrays[name].ndim != 1:
            raise FileError(f"{path}: a sparse matrix without a list of whole numbers {name!r}")
    shape = tuple(arrays["shape"].tolist())
    if len(shape) != 2 or min(shape) < 0:
        raise FileError(f"{path}: its header lies: a matrix of shape {shape}")
    data, parts = arrays["data"], [arrays[name] for name in _PARTS[kind]]
    # SciPy does not look at these, and what is wrong with them crashes the process later
    if kind == "dia" and np.any((parts[0] <= -shape[0]) | (parts[0] >= shape[1])):
        raise FileError(f"{path}: its header lies: a diagonal outside of {shape[0]}x{shape[1]}")
    if "indptr" in _PARTS[kind] and np.any(parts[1][1:] < parts[1][:-1]):
        raise FileError(f"{path}: its header lies: a row that ends before it begins")
    if kind == "coo":
        return scipy.sparse.coo_array((data, tuple(parts)), shape=shape)
    matrix = getattr(scipy.sparse, f"{kind}_array")((data, *parts), shape=shape)
    if kind != "dia":
        matrix.check_format(full_check=True)
    return matrix


# --- MatrixMarket -----------------------------------------------------------------------------

_FIELDS = {
    "real": [("value", float)],
    "double": [("value", float)],
    "integer": [("value", np.int64)],
    "unsigned-integer": [("value", np.uint64)],
    "complex": [("value", float), ("imaginary", float)],
}
_PLACE = [("row", np.int64), ("column", np.int64)]
_MIRRORS: dict[str, Callable] = {
    "symmetric": np.asarray,
    "skew-symmetric": np.negative,
    "hermitian": np.conj,
}


def _read_mtx(path: pathlib.Path) -> Any:
    """Not by SciPy's reader: it crashes the process on damaged files, and reads "5E-" as 5."""
    with path.open(encoding="utf-8", errors="replace") as file:
        banner = file.readline().lower().split()
        if banner[:2] != ["%%matrixmarket", "matrix"] or len(banner) != 5:
            raise FileError(f"{path}: cannot be read as .mtx: its first line is no MatrixMarket's")
        layout, field, symmetry = banner[2:]
        if field == "pattern":
            raise FileError(f"{path}: holds a pattern without values")
        if (
            layout not in ("array", "coordinate")
            or field not in _FIELDS
            or symmetry not in ("general", *_MIRRORS)
        ):
            raise FileError(f"{path}: a MatrixMarket {_short(' '.join(banner[1:]))} is not read")
        sparse = layout == "coordinate"
        lines = (line for line in file if line.strip() and not line.startswith("%"))
        words = next(lines, "").split()
        sizes = [int(word) for word in words if word.isascii() and word.isdigit()]
        if not len(sizes) == len(words) == 2 + sparse:
            raise FileError(f"{path}: truncated: it does not say how large the matrix is")
        first = next(lines, None)
        dtype = np.dtype((_PLACE if sparse else []) + _FIELDS[field])
        body = np.zeros(0, dtype)
        if first is not None:
            body = np.loadtxt(itertools.chain([first], file), dtype, comments="%", ndmin=1)
    return _assemble(path, sizes, symmetry, body)


def _assemble(path: pathlib.Path, sizes: list[int], symmetry: str, body: np.ndarray) -> Any:
    rows, columns, *entries = sizes
    claims = entries[0] if entries else _num_stored(rows, columns, symmetry)
    if len(body) != claims:
        raise FileError(
            f"{path}: truncated, or its header lies: {rows}x{columns} with {claims:,} entries, and "
            f"it has {len(body):,}"
        )
    values = body["value"]
    if "imaginary" in (body.dtype.names or ()):
        values = values + 1j * body["imaginary"]
    if not entries and symmetry == "general":
        return values.reshape((rows, columns), order="F")
    if symmetry != "general" and rows != columns:
        raise FileError(f"{path}: {symmetry}, it says, but {rows}x{columns} is not square")
    if entries:
        i, j = body["row"] - 1, body["column"] - 1
        _require_inside(path, i, j, rows, columns)
    else:
        j, i = np.triu_indices(rows, k=1 if symmetry == "skew-symmetric" else 0)
    if symmetry != "general":
        i, j, values = _mirrored(path, symmetry, i, j, values)
    matrix = scipy.sparse.coo_array((values, (i, j)), shape=(rows, columns))
    return matrix if entries else matrix.toarray()


def _num_stored(rows: int, columns: int, symmetry: str) -> int:
    """How many entries an array's file has: of a symmetric one the lower triangle's."""
    if symmetry == "general":
        return rows * columns
    return rows * (rows - 1 if symmetry == "skew-symmetric" else rows + 1) // 2


def _require_inside(path: pathlib.Path, i, j, rows: int, columns: int) -> None:
    outside = (i < 0) | (i >= rows) | (j < 0) | (j >= columns)
    if outside.any():
        k = int(np.argmax(outside))
        raise FileError(
            f"{path}: entry {k + 1} is at ({i[k] + 1}, {j[k] + 1}), outside of {rows}x{columns}"
        )


def _mirrored(path: pathlib.Path, symmetry: str, i, j, values) -> tuple:
    mirror = _MIRRORS[symmetry]
    if np.any(i < j) and np.any(i > j):
        raise FileError(
            f"{path}: {symmetry}, it says, but it has entries on both sides of the diagonal: "
            "write it as general"
        )
    off = i != j
    if np.any(mirror(values[~off]) != values[~off]):
        raise FileError(f"{path}: {symmetry}, it says, but its diagonal is not")
    values = np.concatenate([values, mirror(values[off])])
    return np.concatenate([i, j[off]]), np.concatenate([j, i[off]]), values


# --- text -------------------------------------------------------------------------------------


def _read_text(path: pathlib.Path, header: bool | None, skip_rows: int) -> np.ndarray:
    """Split at commas, semicolons or white space; what follows a # is left out."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            _, first, mark = _begin(path, _rows(file, skip_rows), header, skip_rows)
            try:  # quick, but without words for what is wrong, and for real numbers only
                rest = itertools.chain([first], file)
                array = np.loadtxt(rest, delimiter=mark, ndmin=2)
            except ValueError:
                file.seek(0)
                array = _read_with_care(path, file, header, skip_rows)
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not a text file in UTF-8: save it as one") from error
    m = array.shape[1]
    if header is None and len(array) == m + 1 > 2 and np.array_equal(array[0], np.arange(m)):
        raise FileError(
            f"{path}: the first row is 0, 1, ..., {m - 1}, names or numbers, above a square "
            f"matrix: {_CURE}, --no-header (header=False) if not"
        )
    return array


def _rows(file: TextIO, skip_rows: int) -> Iterator[tuple[int, str]]:
    """Lines that hold something, each with its number in the file."""
    for number, line in enumerate(file, start=1):
        text = line.split("#")[0].strip()
        if text and number > skip_rows:
            if "\0" in text:
                raise FileError(f"{file.name}: not a text file")
            yield number, text


def _begin(
    path: pathlib.Path, rows: Iterator[tuple[int, str]], header: bool | None, skip_rows: int
) -> tuple[int, str, str | None]:
    """The first row of numbers: where it is, its text, and what its cells are split at."""
    top, names = next(rows, (0, "")) if header else (0, "")
    number, first = next(rows, (0, ""))
    if not first:
        raise FileError(f"{path}: holds no numbers")
    mark = next((m for m in ";," if m in first), None)
    if header:
        cells = [name.strip() for name in names.split(mark)]
        if top > skip_rows + 1 and all(_number(cell) is not None for cell in cells):
            raise FileError(
                f"{path}: row {top} holds numbers, below a comment, which is left out anyway: "
                f"leave --header out, or say --skip-rows {top} (skip_rows={top})"
            )
        _require_header(path, cells, number, len(first.split(mark)))
    return number, first, mark


def _require_header(path: pathlib.Path, names: list[str], number: int, width: int) -> None:
    if not names[0].strip("\"'"):
        raise FileError(f"{path}: the first column has no name, like an index: {_INDEX}")
    if len(names) != width:
        raise FileError(
            f"{path}: the header has {len(names)} names and row {number} has {width} entries: "
            f"say --skip-rows {number - 1} (skip_rows={number - 1}) to drop what is above, "
            "or, if a column is an index, save the table without it"
        )


def _read_with_care(
    path: pathlib.Path, file: TextIO, header: bool | None, skip_rows: int
) -> np.ndarray:
    """Cell by cell, complex numbers too; a cell that is no number is named."""
    rows = _rows(file, skip_rows)
    top, first, mark = _begin(path, rows, header, skip_rows)
    width = len(first.split(mark))
    array = []
    for number, text in itertools.chain([(top, first)], rows):
        cells = [cell.strip() for cell in text.split(mark)]
        values = [_number(cell) for cell in cells]
        if None in values:
            at = values.index(None)
            cure = _cure(cells[at], at, number == top and not header)
            text = _short(cells[at], 40)
            raise FileError(
                f"{path}: row {number}, column {at + 1} is '{text}', not a number{cure}"
            )
        if len(cells) != width:
            raise FileError(
                f"{path}: row {number} has {len(cells)} entries where the first has {width}"
            )
        array.append(np.array(values))
    return np.array(array)


def _number(cell: str) -> float | complex | None:
    if not cell or "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        pass
    try:
        return complex(cell.replace("i", "j"))
    except ValueError:
        return None


def _cure(cell: str, column: int, is_first_row: bool) -> str:
    if "," in cell:
        return ": write decimal points in place of commas"
    if is_first_row:
        return f": {_CURE}" + ("" if cell.strip("\"'") else f"; if it names an index, {_INDEX}")
    return f": if the first column is an index, {_INDEX}" if column == 0 else ""


READERS: dict[str, Callable[..., Any]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".mtx": _read_mtx,
    ".csv": _read_text,
    ".txt": _read_text,
}
