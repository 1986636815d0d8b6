"""Longitudes and latitudes from tables of every kind, and what is wrong with them."""

import io

import pytest

from determinax import places


def test_columns_are_found_by_their_names(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("# a source\nid,Lat,LONG\n1,10,20\n\n2,-30.5,40\n")
    lon, lat = places.read_lonlat(file)
    assert (lon.tolist(), lat.tolist()) == ([20, 40], [10, -30.5])
    assert places.read_lonlat(file, columns=("3", "lat"))[0].tolist() == [20, 40]
    file.write_text("5,6\n7,8\n")
    assert places.read_lonlat(file, columns=("1", "2"))[1].tolist() == [6, 8]


@pytest.mark.parametrize(
    "text",
    [
        "lon\tlat\tname\n20\t10\ta, b\n40\t-30.5\tc\n",
        "name;lat;lon\na;10;20\nb;-30,5;40\n",
        'name,lat,lon\n"two\nlines, one ""cell""",10,20\n# said between\nc,-30.5,40\n',
    ],
)
def test_tables_of_every_kind(tmp_path, monkeypatch, text):
    (tmp_path / "a.csv").write_text(text)
    lon, lat = places.read_lonlat(tmp_path / "a.csv")
    assert (lon.tolist(), lat.tolist()) == ([20, 40], [10, -30.5])
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert places.read_lonlat("-")[1].tolist() == [10, -30.5]


def test_rows_without_a_place_are_dropped_and_counted(tmp_path):
    (tmp_path / "a.csv").write_text("lon,lat\n1,2\n,3\nNA,nan\n4\n5,6\n")
    found = places.read_places(tmp_path / "a.csv", drop_missing=True)
    assert (found.longitude.tolist(), found.num_dropped) == ([1, 5], 3)
    (tmp_path / "a.csv").write_text("lon,lat\n1,2\nx,3\n")
    with pytest.raises(ValueError, match=r"line 3, column 1 holds 'x', not degrees$"):
        places.read_places(tmp_path / "a.csv", drop_missing=True)


@pytest.mark.parametrize(
    ("text", "columns", "sentence"),
    [
        ("", None, "empty"),
        ("1,2\n", None, "no columns are named"),
        ("lon,lat\n", None, "no events"),
        ("lon,lat\n1,2\n3,x\n", None, "line 3, column 2 holds 'x'"),
        ("lon,lat\n1\n", None, "line 2, column 2 holds '', not degrees: drop such rows"),
        ("lon,lat,latitude\n1,2,3\n", None, "more than one column is named latitude: lat and"),
        ('lon,lat,x\n1,2,"a\nb"\n3,x,c\n', None, "line 4, column 2 holds 'x'"),
        ("a,b\n1,2\n", ("a", "c"), "no column 'c'"),
        ("a,b\n1,2\n", ("a",), "columns are two"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, text, columns, sentence):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        places.read_lonlat(tmp_path / "a.csv", columns=columns)
