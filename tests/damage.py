"""Broken files by the thousand, and what a reader may make of them: the truth, or one sentence.

Used by the tests for some hundreds and by `benchmarks/soak.py` for as many as one likes.
"""

import functools
import io
import math
import pathlib
import re
import tempfile
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import scipy.io
import scipy.sparse
from forgery import forged_npy, forged_npz, forged_proposal

from determinax import _checkpoint as checkpoint
from determinax import flows, storage
from determinax.files import FileError, read_matrix
from determinax.proposals import Proposal

HUGE = (b"0", b"-1", b"99999999999", b"18446744073709551615", b"1e400", b"nan", b"4", b"2147483648")
PIECES = (*HUGE, b"\n", b" ", b",", b";", b"#", b"E", b"-", b"\0", b"\r", b"\xff", b"%", b'"', b"{")


# --- good files -------------------------------------------------------------------------------


def saved(write, array, **options) -> bytes:
    buffer = io.BytesIO()
    write(buffer, array, **options)
    return buffer.getvalue()


def good_matrices() -> dict[str, list[bytes]]:
    """Files of each kind, by suffix."""
    rng = np.random.default_rng(0)
    real = np.round(rng.standard_normal((4, 4)), 3)
    arrays = [real, real + 1j * real.T, (10 * real).astype(int), (real + real.T).astype("f4")]
    sparse = [scipy.sparse.coo_array(a * (rng.random((4, 4)) < 0.7)) for a in arrays]
    files: dict[str, list[bytes]] = {suffix: [] for suffix in (".npy", ".npz", ".mtx", ".csv")}
    for a, s in zip(arrays, sparse, strict=True):
        files[".npy"] += [saved(np.save, a), saved(np.save, np.asfortranarray(a))]
        files[".npz"] += [saved(np.savez, a), saved(np.savez_compressed, a)]
        files[".mtx"] += [saved(scipy.io.mmwrite, a), saved(scipy.io.mmwrite, s)]
        files[".csv"] += [saved(np.savetxt, a, delimiter=d) for d in ",; "]
    for kind in ("csr", "csc", "coo", "bsr", "dia"):
        made = sparse[0].asformat(kind)
        files[".npz"] += [saved(scipy.sparse.save_npz, made, compressed=c) for c in (True, False)]
    files[".csv"].append(b"a,b\n1,2\n3,4\n")
    files[".txt"] = files[".csv"]
    return files


def good_proposals() -> list[bytes]:
    small = {"num_bins": 4, "num_centres": 3, "hidden": (4,), "dtype": "float32"}
    key = jax.random.key(0)
    made = [flows.projective_linear(3, dtype="float32"), flows.cylinder(4, key=key, **small)]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "q.safetensors"
        return [(storage.save(Proposal(flow), path), path.read_bytes())[1] for flow in made]


# a checkpoint's state, and the run that it belongs to
STATE = (np.arange(6.0).reshape(2, 3), {"m": np.ones(2, np.float32), "count": np.int32(3)})
RUN = "f" * 64


def good_checkpoints() -> list[bytes]:
    """Two of one run, the later first."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "c"
        for step in (100, 200):
            state = jax.tree.map(lambda leaf, step=step: leaf + np.asarray(step, leaf.dtype), STATE)
            history = {"loss": np.arange(float(step)), "finite": np.ones(step, bool)}
            checkpoint.write(path, RUN, state, history, float(step))
        return [path.read_bytes(), path.with_name("c.previous").read_bytes()]


# --- damage -----------------------------------------------------------------------------------


def somewhere(rng, data) -> int:
    return int(rng.integers(len(data) + 1))


def truncate(rng, data, donor):
    return data[: somewhere(rng, data)]


def flip(rng, data, donor):
    data = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        if data:
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def insert(rng, data, donor):
    at, piece = somewhere(rng, data), PIECES[int(rng.integers(len(PIECES)))]
    return data[:at] + piece + data[at:]


def insert_noise(rng, data, donor):
    at = somewhere(rng, data)
    return data[:at] + rng.bytes(int(rng.integers(1, 40))) + data[at:]


def cut_out(rng, data, donor):
    at = somewhere(rng, data)
    return data[:at] + data[at + int(rng.integers(1, 30)) :]


def repeat(rng, data, donor):
    a, b = sorted((somewhere(rng, data), somewhere(rng, data)))
    return data[:b] + data[a:b] + data[b:]


def swap(rng, data, donor):
    a, b, c = sorted(somewhere(rng, data) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def splice(rng, data, donor):
    return data[: somewhere(rng, data)] + donor[somewhere(rng, donor) :]


def overwrite(rng, data, donor):
    """Four or eight bytes by a whole number that no size should be."""
    size = int(rng.choice([4, 8]))
    value = int(rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1])) << int(rng.choice([0, 31]))
    at = somewhere(rng, data)
    return data[:at] + (value % 256**size).to_bytes(size, "little") + data[at + size :]


def another_number(rng, data, donor):
    """One number in the text, or in a header, becomes a huge one."""
    found = list(re.finditer(rb"\d+", data))
    if not found:
        return data
    at = found[int(rng.integers(len(found)))]
    return data[: at.start()] + HUGE[int(rng.integers(len(HUGE)))] + data[at.end() :]


def noise(rng, data, donor):
    return rng.bytes(int(rng.integers(1, 300)))


def other_file(rng, data, donor):
    return donor


def nothing(rng, data, donor):
    return b""


DAMAGES = (
    *(truncate, flip, insert, insert_noise, cut_out, repeat, swap, splice, overwrite),
    *(another_number, another_number, noise, other_file, nothing),
)


def damaged(rng, data: bytes, donor: bytes) -> bytes:
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        data = DAMAGES[int(rng.integers(len(DAMAGES)))](rng, data, donor)
    return data


# --- what a reader may answer -----------------------------------------------------------------


def read_or_sentence(read, path, kind):
    """The value and None, or None and a sentence of the one kind; anything else is a fault."""
    try:
        return read(path), None
    except kind as refusal:
        error = refusal
    text = str(error)
    assert not isinstance(error.__cause__, MemoryError), f"asked for too much memory: {text}"
    assert text.isprintable(), f"more than one line, or unprintable: {text!r}"
    assert path.name in text, f"does not name the file: {text!r}"
    assert len(text) < 600 + len(str(path)), f"{len(text)} characters: {text[:200]!r}"
    return None, text


def check_matrix(path) -> bool:
    """Read the file and compare with a slower reader; whether it could be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning is a second sentence
        matrix, sentence = read_or_sentence(read_matrix, path, FileError)
    if sentence is not None:
        return False
    assert matrix.dtype.kind in "biufc"
    if path.suffix in (".csv", ".txt"):
        np.testing.assert_array_equal(matrix, plain_text(path))
    elif path.suffix == ".mtx":
        assert plain_entries(matrix) == plain_mtx(path)
    elif scipy.sparse.issparse(matrix):
        matrix.sum()  # indices out of bounds would crash here
        if math.prod(matrix.shape) < 1e6:
            same = scipy.sparse.load_npz(archive_in(path)).toarray()
            np.testing.assert_array_equal(matrix.toarray(), same)
    else:
        same = np.load(path if path.suffix == ".npy" else archive_in(path), allow_pickle=False)
        same = same if path.suffix == ".npy" else same[same.files[0]]
        np.testing.assert_array_equal(matrix, same, strict=True)
    return True


def archive_in(path) -> io.BytesIO:
    """NumPy minds what stands before an archive, which zip does not."""
    data = path.read_bytes()
    return io.BytesIO(data[data.index(b"PK\x03\x04") :])


def plain_text(path):
    """What Python's own numbers say."""
    rows = []
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        text = line.split("#")[0].strip()
        if text:
            mark = ";" if ";" in text else "," if "," in text else None
            rows.append([complex(c.strip().replace("i", "j")) for c in text.split(mark)])
    return np.array(rows)


def plain_mtx(path):
    """Shape and entries by Python's own numbers."""
    text = path.read_bytes().decode("utf-8", "replace").replace("\r", "\n")
    banner, *lines = text.split("\n")
    _, _, layout, field, symmetry = banner.lower().split()
    lines = [line.split("%")[0].split() for line in lines]
    (rows, columns, *_), *body = [line for line in lines if line]
    rows, columns = int(rows), int(columns)
    skew = symmetry == "skew-symmetric"
    stored = [
        (i, j)
        for j in range(columns)
        for i in range(0 if symmetry == "general" else j + skew, rows)
        if layout == "array"
    ]
    entries: dict = {}
    for k, line in enumerate(body):
        i, j = (int(line[0]) - 1, int(line[1]) - 1) if layout == "coordinate" else stored[k]
        parts = [float(word) for word in line[2 if layout == "coordinate" else 0 :]]
        value = complex(*parts) if field == "complex" else parts[0]
        entries[i, j] = entries.get((i, j), 0) + value
        if symmetry != "general" and i != j:
            mirrored = value.conjugate() if symmetry == "hermitian" else -value if skew else value
            entries[j, i] = entries.get((j, i), 0) + mirrored
    return (rows, columns), {at: str(v) for at, v in entries.items() if v != 0}


def plain_entries(matrix):
    coo = scipy.sparse.coo_array(matrix)
    entries: dict = {}
    for i, j, v in zip(*coo.coords, coo.data, strict=True):
        v = complex(v) if coo.dtype.kind == "c" else float(v)
        entries[int(i), int(j)] = entries.get((int(i), int(j)), 0) + v
    return coo.shape, {at: str(v) for at, v in entries.items() if v != 0}


def content(path) -> tuple:
    """Of a stored proposal; the order of its header is not always the same."""
    header, tensors = storage.read_tensors(path)
    return sorted(header.items()), [(n, tensors[n].tobytes()) for n in sorted(tensors)]


def check_proposal(path, originals: list[tuple] | None) -> bool:
    """What comes back is one of the proposals that were stored, bit for bit, if it is known."""
    proposal, sentence = read_or_sentence(storage.load, path, storage.StorageError)
    if sentence is not None:
        return False
    assert isinstance(proposal.flow, flows.AbstractSphereMap)
    if originals is not None:
        storage.save(proposal, path)
        assert content(path) in originals, "another proposal than was stored"
    return True


def check_checkpoint(path) -> bool:
    """What comes back is one of the two states that were stored, or nothing does, with a word."""
    like = jax.tree.map(jnp.asarray, STATE)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, sentence = read_or_sentence(
            lambda p: checkpoint.read(p, RUN, like), path, storage.StorageError
        )
    assert sentence is None, f"a damaged checkpoint is passed over: {sentence}"
    if found is None:
        assert said, "a checkpoint was dropped without a word"
        return False
    state, history, seconds = found
    assert seconds in (100.0, 200.0)
    assert len(history["loss"]) == seconds
    for leaf, stored in zip(jax.tree.leaves(state), jax.tree.leaves(STATE), strict=True):
        np.testing.assert_array_equal(leaf, stored + np.asarray(seconds, stored.dtype))
    return True


MATRICES = (".npy", ".npz", ".mtx", ".csv", ".txt")
KINDS = (*MATRICES, "proposal", "checkpoint")


class Files:
    """Broken files for every reader, by number: the same number gives the same file."""

    def __init__(self, folder: pathlib.Path, seed: int):
        self.folder, self.seed = folder, seed

    @functools.cached_property
    def matrices(self):
        return good_matrices()

    @functools.cached_property
    def proposals(self):
        """Bytes and content of stored proposals."""
        path, made = self.folder / "good", good_proposals()
        return [(path.write_bytes(data), data, content(path))[1:] for data in made]

    @functools.cached_property
    def checkpoints(self):
        return good_checkpoints()

    def check(self, kind: str, number: int) -> bool:
        """Write the file, read it, and say whether it could be read; a fault is raised."""
        rng = np.random.default_rng([self.seed, KINDS.index(kind), number])
        if kind == "checkpoint":
            return self._check_checkpoint(rng)
        if kind == "proposal":
            return self._check_proposal(rng)
        path, good = self.folder / f"a{kind}", self.matrices[kind]
        if kind == ".npy" and rng.random() < 0.3:
            data = forged_npy(rng)
        elif kind == ".npz" and rng.random() < 0.4:
            data = forged_npz(rng, good[-1 - int(rng.integers(10))])
        else:
            others = self.matrices[str(rng.choice(MATRICES))]
            donor = others[int(rng.integers(len(others)))]
            data = damaged(rng, good[int(rng.integers(len(good)))], donor)
        path.write_bytes(data)
        return check_matrix(path)

    def _check_proposal(self, rng) -> bool:
        data, donor = (self.proposals[int(rng.integers(2))][0] for _ in range(2))
        path, is_forged = self.folder / "q.safetensors", bool(rng.random() < 0.4)
        path.write_bytes(forged_proposal(rng, data) if is_forged else damaged(rng, data, donor))
        return check_proposal(path, None if is_forged else [p[1] for p in self.proposals])

    def _check_checkpoint(self, rng) -> bool:
        path = self.folder / "c"
        for at, data in zip((path, path.with_name("c.previous")), self.checkpoints, strict=True):
            hurt = at == path or rng.random() < 0.3
            at.write_bytes(damaged(rng, data, self.checkpoints[0]) if hurt else data)
        return check_checkpoint(path)
