"""Whole files that lie: archives, arrays and proposals with headers that do not fit."""

import io
import json
import pathlib
import re
import tempfile

import numpy as np
import safetensors.numpy

from determinax import storage

DTYPES = ["<f8", ">c16", "|O", "|V8", "<U4", "|S0", "(2,)<f8", "<M8[s]", "|b1", "<f2", "<i8"]
SIZES = [0, 1, 3, 4, 5, -1, 2**31, 2**62, 2**63 - 1, 10**20]


def forged_npy(rng) -> bytes:
    """A header that claims a type and a shape at random."""
    shape = tuple(SIZES[i] for i in rng.integers(len(SIZES), size=int(rng.integers(4))))
    text = {"descr": DTYPES[int(rng.integers(len(DTYPES)))], "fortran_order": False, "shape": shape}
    head = repr(text).encode() + b"\n"
    version = bytes([int(rng.choice([1, 1, 1, 2, 3])), 0])
    length = len(head).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + length + head + rng.bytes(8 * int(rng.integers(20)))


def forged_npz(rng, data: bytes) -> bytes:
    """The arrays of a sparse matrix, one of them another, in an archive without a fault."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = dict(archive)
    name = str(rng.choice(sorted(arrays)))
    array = arrays[name]
    change = int(rng.integers(6))
    if change == 0 or array.dtype.kind not in "iufc" or array.size == 0:
        arrays.pop(name)
    elif change == 1:
        arrays[name] = array.astype(str(rng.choice(["f8", "i8", "u1", "c16", "S3", "?"])))
    elif change == 2:
        arrays[name] = np.resize(array, (int(rng.integers(9)),) * int(rng.integers(1, 3)))
    else:
        value = int(rng.choice([-1, 0, 3, 4, 2**31 - 1, 2**31, 2**62]))
        array = array.astype("i8") if array.dtype.kind in "iu" else array.copy()
        array.flat[int(rng.integers(array.size))] = value
        arrays[name] = array
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def forged_proposal(rng, data: bytes) -> bytes:
    """Another architecture, or another tensor, under a checksum that is right."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        pathlib.Path(file.name).write_bytes(data)
        header, tensors = storage.read_tensors(pathlib.Path(file.name))
    text = header["architecture"].encode()
    words = [b'"Chain"', b"[]", b"null", b"{}", b'"tensor"', b"-3", b"1e999", b'"flow"', b"true"]
    found = list(re.finditer(rb'"[^"]*"|\d+|null', text))
    at = found[int(rng.integers(len(found)))]
    new = text[: at.start()] + words[int(rng.integers(len(words)))] + text[at.end() :]
    if rng.random() < 0.3:
        name = str(rng.choice(sorted(tensors)))
        tensors[name] = np.resize(tensors[name], int(rng.integers(7)))
    try:
        header["checksum"] = storage._checksum(json.loads(new), tensors)
        header["architecture"] = new.decode()
    except ValueError:
        header["architecture"] = new.decode()
    return safetensors.numpy.save(tensors, metadata=header)
