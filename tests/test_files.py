"""Files that are fine, and files that are not."""

import io
import pickle
import zipfile

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from determinax.files import FileError, read_matrix

MATRIX = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 0.5], [0.0, 0.0, -1.0]])


def dense(matrix):
    return matrix.toarray() if scipy.sparse.issparse(matrix) else matrix


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128, np.int64, ">f8"])
def test_npy(tmp_path, dtype, order):
    np.save(tmp_path / "a.npy", np.asarray(MATRIX, dtype=dtype, order=order))
    np.testing.assert_array_equal(read_matrix(tmp_path / "a.npy"), MATRIX.astype(dtype))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_dense_npz(tmp_path, save):
    save(tmp_path / "a.npz", MATRIX)
    np.testing.assert_array_equal(read_matrix(tmp_path / "a.npz"), MATRIX)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
def test_sparse_npz(tmp_path, kind):
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.coo_array(MATRIX).asformat(kind))
    np.testing.assert_array_equal(dense(read_matrix(tmp_path / "a.npz")), MATRIX)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.coo_array])
def test_mtx(tmp_path, make):
    scipy.io.mmwrite(tmp_path / "a.mtx", make(MATRIX))
    np.testing.assert_allclose(dense(read_matrix(tmp_path / "a.mtx")), MATRIX)


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.txt", " "), ("a.csv", ";")])
def test_text(tmp_path, name, delimiter):
    np.savetxt(tmp_path / name, MATRIX, delimiter=delimiter, header="a comment")
    np.testing.assert_allclose(read_matrix(tmp_path / name), MATRIX)


def test_complex_text(tmp_path):
    (tmp_path / "a.txt").write_text("1+2i 0\n0 1-1j\n")
    np.testing.assert_array_equal(read_matrix(tmp_path / "a.txt"), [[1 + 2j, 0], [0, 1 - 1j]])


def npy_bytes(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def lie(data, old, new):
    """A header that claims another shape, of the same length as before."""
    assert old in data
    padding = len(new) - len(old)
    return data.replace(old + b", }" + b" " * padding, new + b", }")


BAD = {
    "missing.npy": (None, "no such file"),
    "matrix.xlsx": (b"abc", "unknown kind of file"),
    "empty.npy": (b"", "the file is empty"),
    "garbage.npy": (b"not an array at all", "cannot be read as .npy"),
    "truncated.npy": (npy_bytes(MATRIX)[:-8], "truncated, or its header lies"),
    "headless.npy": (npy_bytes(MATRIX)[:20], "cannot be read as .npy"),
    "lying.npy": (
        lie(npy_bytes(MATRIX), b"(3, 3)", b"(9000000, 9000000)"),
        "648,000,000,000,000 b",
    ),
    "objects.npy": (npy_bytes(MATRIX.astype(object), allow_pickle=True), "pickled Python objects"),
    "pickled.npy": (pickle.dumps(MATRIX), "cannot be read as .npy"),
    "garbage.npz": (b"PK not a zip", "cannot be read as .npz"),
    "empty.csv": (b"\n\n", "holds no numbers"),
    "hole.csv": (b"1,,2\n3,,4\n", "'' is not a number"),
    "cut.mtx": (
        b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 2.5\n2 2 5E-",
        "cannot be read as .mtx",
    ),
    "ragged.csv": (b"1,2\n3\n", "row 2 has 1 entries where the first has 2"),
    "words.csv": (b"a,b\nc,d\n", "only numbers"),
    "binary.txt": (b"\x00\x01\x02", "not a text file"),
    "latin.txt": (b"\xff\xfe1 2", "cannot be read as .txt"),
    "garbage.mtx": (b"hello", "cannot be read as .mtx"),
    "lying.mtx": (
        b"%%MatrixMarket matrix array real general\n90000000 90000000\n1.0\n",
        "truncated, or its header lies",
    ),
    "truncated.mtx": (
        b"%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1.0\n2 2 1.0\n",
        "cannot be read as .mtx",
    ),
    "pattern.mtx": (
        b"%%MatrixMarket matrix coordinate pattern general\n1 1 1\n1 1\n",
        "pattern without values",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_one_sentence(tmp_path, name):
    content, sentence = BAD[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError) as caught:
        read_matrix(tmp_path / name)
    assert sentence in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_archives(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=MATRIX, b=MATRIX)
    with pytest.raises(FileError, match=r"holds 2 arrays \(a, b\)"):
        read_matrix(path)
    np.savez(path, MATRIX.astype(object))
    with pytest.raises(FileError, match="pickled Python objects"):
        read_matrix(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", BAD["lying.npy"][0])
    with pytest.raises(FileError, match="header lies"):
        read_matrix(path)
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(MATRIX))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FileError, match=r"cannot be read as \.npz"):
        read_matrix(path)


def test_sparse_indices_are_checked(tmp_path):
    csr = scipy.sparse.csr_array(MATRIX)
    np.savez(
        tmp_path / "a.npz",
        format=b"csr",
        shape=(3, 3),
        data=csr.data,
        indices=csr.indices + 7,
        indptr=csr.indptr,
    )
    with pytest.raises(FileError, match="cannot be read"):
        read_matrix(tmp_path / "a.npz")


def test_a_folder_is_not_a_file(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(FileError, match="not a file"):
        read_matrix(tmp_path / "folder.npy")
