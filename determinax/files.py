"""Matrices from files: .npy, .npz (dense or SciPy sparse), .mtx, .csv, .txt; none is unpickled.

A file may lie about its size, so sizes are checked against the file before anything is allocated.
"""

import io
import pathlib
import zipfile
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

SUFFIXES = (".npy", ".npz", ".mtx", ".csv", ".txt")


class FileError(ValueError):
    """What is wrong with a file, in one sentence."""


def read_matrix(path: str | pathlib.Path) -> Any:
    """The matrix in the file: a NumPy array or a SciPy sparse array."""
    path = pathlib.Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise FileError(f"{path}: unknown kind of file; these are read: {', '.join(SUFFIXES)}")
    reader = {".npy": _read_npy, ".npz": _read_npz, ".mtx": _read_mtx}.get(
        path.suffix.lower(), _read_text
    )
    try:
        if not path.exists():
            raise FileError(f"{path}: no such file")
        if not path.is_file():
            raise FileError(f"{path}: not a file")
        if path.stat().st_size == 0:
            raise FileError(f"{path}: the file is empty")
        return reader(path)
    except FileError:
        raise
    except Exception as error:  # readers of damaged files raise whatever they stumble over
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(f"{path}: cannot be read as {path.suffix}: {reason}") from error


def _read_npy(path: pathlib.Path) -> np.ndarray:
    with path.open("rb") as file:
        return _array_from(file, path.stat().st_size, path.name)


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
    if need > have:
        raise FileError(
            f"{name}: truncated, or its header lies: shape {shape} of {dtype} needs {need:,} bytes "
            f"and the file has {have:,}"
        )
    data = file.read(need)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _read_npz(path: pathlib.Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        arrays = {}
        for name, info in entries.items():
            with archive.open(info) as file:
                arrays[name] = _array_from(file, info.file_size, f"{path.name}/{name}")
    if {"format", "shape", "data"} <= arrays.keys():
        return _sparse_from(arrays, path)
    if len(arrays) != 1:
        raise FileError(
            f"{path}: holds {len(arrays)} arrays ({', '.join(sorted(arrays)) or 'none'}); "
            "save the one matrix alone"
        )
    return next(iter(arrays.values()))


def _sparse_from(arrays: dict[str, np.ndarray], path: pathlib.Path) -> Any:
    kind = arrays["format"].item()
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    shape = tuple(int(size) for size in arrays["shape"])
    if kind in ("csr", "csc", "bsr"):
        maker = {
            "csr": scipy.sparse.csr_array,
            "csc": scipy.sparse.csc_array,
            "bsr": scipy.sparse.bsr_array,
        }[kind]
        matrix = maker((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
        matrix.check_format(full_check=True)
        return matrix
    if kind == "coo":
        return scipy.sparse.coo_array((arrays["data"], (arrays["row"], arrays["col"])), shape=shape)
    if kind == "dia":
        return scipy.sparse.dia_array((arrays["data"], arrays["offsets"]), shape=shape)
    raise FileError(f"{path}: sparse format {kind!r} is not read; save it as csr")


def _read_mtx(path: pathlib.Path) -> Any:
    # SciPy's reader crashes the process on a number cut short at the very end: end the last line
    text = path.read_bytes() + b"\n"
    rows, columns, entries, _, field, _ = scipy.io.mminfo(io.BytesIO(text))
    if field == "pattern":
        raise FileError(f"{path}: holds a pattern without values")
    # an entry takes at least two bytes of text: "1" and a separator
    if entries * 2 > path.stat().st_size + 2:
        raise FileError(
            f"{path}: truncated, or its header lies: {rows}x{columns} with {entries:,} entries in "
            f"{path.stat().st_size:,} bytes"
        )
    complex(text.split()[-1].decode())  # it would read "5E-" as 5
    return scipy.io.mmread(io.BytesIO(text), spmatrix=False)


def _read_text(path: pathlib.Path) -> np.ndarray:
    text = path.read_text(encoding="utf-8-sig")
    if "\0" in text:
        raise FileError(f"{path}: not a text file")
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    mark = next((m for m in ",;" if any(m in line for line in lines)), None)
    rows = [[cell.strip() for cell in line.split(mark)] for line in lines if line]
    if not rows:
        raise FileError(f"{path}: holds no numbers")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise FileError(
                f"{path}: row {number} has {len(row)} entries where the first has {len(rows[0])}"
            )
    try:
        return np.array([[_number(cell) for cell in row] for row in rows])
    except ValueError as error:
        raise FileError(f"{path}: {error}; only numbers can be read, without a header") from error


def _number(cell: str) -> float | complex:
    if not cell or "_" in cell:
        raise ValueError(f"{cell!r} is not a number")
    try:
        return float(cell)
    except ValueError:
        return complex(cell.replace("i", "j"))
