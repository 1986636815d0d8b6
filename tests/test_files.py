"""Files that are fine, and files that are not."""

import io
import pickle
import zipfile

import damage
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from determinax import files
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


SYMMETRIC = {
    "general": MATRIX,
    "symmetric": MATRIX + MATRIX.T,
    "skew-symmetric": MATRIX - MATRIX.T,
    "hermitian": MATRIX + MATRIX.T + 1j * (MATRIX - MATRIX.T),
}


@pytest.mark.parametrize("symmetry", SYMMETRIC)
@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.coo_array])
def test_mtx(tmp_path, make, symmetry):
    scipy.io.mmwrite(tmp_path / "a.mtx", make(SYMMETRIC[symmetry]))
    assert symmetry.encode() in (tmp_path / "a.mtx").read_bytes()
    matrix = read_matrix(tmp_path / "a.mtx")
    assert scipy.sparse.issparse(matrix) == (make is not np.asarray)
    np.testing.assert_array_equal(dense(matrix), SYMMETRIC[symmetry])


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.complex128])
def test_mtx_of_other_numbers(tmp_path, dtype):
    matrix = np.array([[2, 1], [0, 3]]).astype(dtype)
    scipy.io.mmwrite(tmp_path / "a.mtx", scipy.sparse.coo_array(matrix))
    back = read_matrix(tmp_path / "a.mtx")
    assert back.dtype == dtype
    np.testing.assert_array_equal(back.toarray(), matrix)


def test_an_empty_mtx_is_zero(tmp_path):
    text = "%%MatrixMarket matrix coordinate real general\n2 2 0\n"
    (tmp_path / "a.mtx").write_text(text)
    np.testing.assert_array_equal(dense(read_matrix(tmp_path / "a.mtx")), np.zeros((2, 2)))


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.txt", " "), ("a.csv", ";")])
def test_text(tmp_path, name, delimiter):
    np.savetxt(tmp_path / name, MATRIX, delimiter=delimiter, header="a comment")
    np.testing.assert_allclose(read_matrix(tmp_path / name), MATRIX)


def test_complex_text(tmp_path):
    (tmp_path / "a.txt").write_text("1+2i 0\n0 1-1j\n")
    np.testing.assert_array_equal(read_matrix(tmp_path / "a.txt"), [[1 + 2j, 0], [0, 1 - 1j]])


def test_numbers_that_python_knows(tmp_path):
    """Quick and careful reading give the same; the byte order mark is Excel's."""
    quick = "\ufeff1, -2.5e-3 ,inf\r\n\r\n+.5,nan,1e400 # a comment, with a comma\r\n"
    for text in (quick, quick.replace("inf", "1+0i")):
        (tmp_path / "a.csv").write_bytes(text.encode())
        matrix = read_matrix(tmp_path / "a.csv")
        np.testing.assert_array_equal(matrix.ravel()[[0, 1, 3, 5]], [1, -2.5e-3, 0.5, np.inf])
        assert np.isnan(matrix[1, 1])


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("x,y\n1,2\n3,4\n", {"header": True}),
        ("0,1\n1,2\n3,4\n", {"header": True}),
        ("made by hand\n\nx;y\n1;2\n3;4\n", {"header": True, "skip_rows": 2}),
        ("# a comment\nx,y\n# another\n1,2\n3,4\n", {"header": True}),
        ("made by hand\nx y and z\n1 2\n3 4\n", {"skip_rows": 2}),
        ("1,2\n3,4\n", {"header": False}),
    ],
)
def test_headers_are_left_out_where_that_is_said(tmp_path, text, options):
    (tmp_path / "a.csv").write_text(text)
    np.testing.assert_array_equal(read_matrix(tmp_path / "a.csv", **options), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("name", "text", "options", "sentence"),
    [
        ("a.csv", ",x,y\n0,1,2\n1,3,4\n", {"header": True}, "first column has no name"),
        ("a.csv", '"","x"\n"1",2\n', {"header": True}, "no name.*index=False"),
        ("a.csv", "x,y\na,1,2\n", {"header": True}, "2 names and row 2 has 3 .*--skip-rows 1 "),
        ("a.csv", "x,y\nu,2\n", {"header": True}, "row 2, column 1 is 'u'.*index=False"),
        ("a.csv", "x,y\n", {"header": True}, "holds no numbers"),
        ("a.csv", "1,2\n3,4\n", {"skip_rows": 2}, "holds no numbers"),
        ("a.csv", "x,y\n1,2\n", {"header": False}, "row 1, column 1 is 'x'"),
        ("a.csv", "1,2\n", {"skip_rows": -1}, "skip_rows must be .* not -1"),
        ("a.csv", "1,2\n", {"skip_rows": 1.5}, "skip_rows must be a whole number"),
        ("a.npy", "1,2\n", {"header": True}, "header and skip_rows are for text"),
    ],
)
def test_headers_that_do_not_fit(tmp_path, name, text, options, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        read_matrix(tmp_path / name, **options)


def test_a_row_of_numbers_under_a_comment_is_no_header(tmp_path):
    """A header of np.savetxt is a comment; to drop the next row as well would lose data."""
    np.savetxt(tmp_path / "a.txt", MATRIX, header="x y z")
    with pytest.raises(FileError, match=r"row 2 holds numbers.*leave --header out"):
        read_matrix(tmp_path / "a.txt", header=True)


def npy_bytes(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def npz_bytes(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
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
    "hole.csv": (b"1,2,2\n3,,4\n", "row 2, column 2 is '', not a number"),
    "text.csv": (b"1,2\n3,abc\n", "row 2, column 2 is 'abc', not a number"),
    "header.csv": (
        b"x,y\n1,2\n3,4\n",
        "row 1, column 1 is 'x', not a number: say --header (header=True in Python) if the first "
        "row holds names",
    ),
    "pandas.csv": (b",x,y\n0,1,2\n1,3,4\n", "without its index (index=False in pandas)"),
    "columns.csv": (b"0,1\n1,2\n3,4\n", "the first row is 0, 1, ..., 1, names or numbers"),
    "decimal.csv": (b"1,5;2\n3;4\n", "'1,5', not a number: write decimal points in place of"),
    "long.csv": (b"1,2\n3," + b"x" * 10_000, "'" + 40 * "x" + "...', not a number"),
    "late.csv": (b"# a\n\n1,2\n\n3,x\n", "row 5, column 2 is 'x'"),
    "cut.mtx": (
        b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 2.5\n2 2 5E-",
        "could not convert string '5E-'",
    ),
    "outside.mtx": (
        b"%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 2.5\n",
        "entry 1 is at (3, 1), outside of 2x2",
    ),
    "twice.mtx": (
        b"%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n2 1 2.5\n1 2 2.5\n",
        "on both sides of the diagonal: write it as general",
    ),
    "skew.mtx": (
        b"%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n1 1 2.5\n",
        "its diagonal is not",
    ),
    "ragged.csv": (b"1,2\n3\n", "row 2 has 1 entries where the first has 2"),
    "words.csv": (b"a,b\nc,d\n", "row 1, column 1 is 'a', not a number"),
    "names.npy": (npy_bytes(np.array([["a", "b"]])), "holds <U1 where there should be numbers"),
    "longer.npy": (npy_bytes(MATRIX) + b"12345678", "truncated, or its header lies"),
    "diagonals.npz": (
        npz_bytes(format=b"dia", shape=(3, 3), data=np.ones((1, 3)), offsets=[2**40]),
        "a diagonal outside of 3x3",
    ),
    "backwards.npz": (
        npz_bytes(
            format=b"bsr", shape=(4, 4), data=np.ones((1, 4, 4)), indices=[0], indptr=[0, -1]
        ),
        "a row that ends before it begins",
    ),
    "huge.npz": (
        npz_bytes(format=b"coo", shape=(2**60, 2**60), data=[1.0], row=[0], col=[0]),
        "its header lies",
    ),
    "part.npz": (npz_bytes(format=b"csr", shape=(3, 3), data=[1.0]), "without a list"),
    "binary.txt": (b"\x00\x01\x02", "not a text file"),
    "latin.txt": (b"\xff\xfe1 2", "not a text file in UTF-8"),
    "garbage.mtx": (b"hello", "cannot be read as .mtx"),
    "lying.mtx": (
        b"%%MatrixMarket matrix array real general\n90000000 90000000\n1.0\n",
        "truncated, or its header lies",
    ),
    "truncated.mtx": (
        b"%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1.0\n2 2 1.0\n",
        "3x3 with 3 entries, and it has 2",
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


@pytest.mark.parametrize("kind", damage.MATRICES)
def test_broken_files_give_the_truth_or_one_sentence(tmp_path, kind):
    broken = damage.Files(tmp_path, seed=0)
    readable = sum(broken.check(kind, number) for number in range(200))
    assert 2 < readable < 100


def test_what_is_read_can_be_written_to(tmp_path):
    np.save(tmp_path / "a.npy", MATRIX)
    read_matrix(tmp_path / "a.npy")[0, 0] = 1


def test_large_text_is_not_read_cell_by_cell(tmp_path, monkeypatch):
    def fail(*_):
        raise AssertionError("slow")

    monkeypatch.setattr(files, "_read_with_care", fail)
    np.savetxt(tmp_path / "a.csv", MATRIX, delimiter=",", header="x,y,z", comments="")
    np.testing.assert_array_equal(read_matrix(tmp_path / "a.csv", header=True), MATRIX)
