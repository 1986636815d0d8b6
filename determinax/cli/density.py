"""`determinax density` and `determinax sample`."""

import io
import json
import pathlib
import sys
from typing import Annotated, Any

import typer

from determinax import _interrupts
from determinax._checks import counted
from determinax.cli import common
from determinax.cli.common import Count
from determinax.progress import Report, reporting

_MAPS = (".png", ".svg", ".pdf", ".html")
_SAVED, _DRAWN = ("", ".safetensors"), ("", ".csv", ".txt", ".npy")


def density(
    file: Annotated[
        pathlib.Path,
        typer.Argument(help="Points, one a row: .csv .txt .npy, or - with --lonlat."),
    ],
    lonlat: Annotated[
        bool,
        typer.Option("--lonlat", help="Columns of a table are longitude and latitude in degrees."),
    ] = False,
    columns: Annotated[
        str | None,
        typer.Option(help="With --lonlat: which columns, by name or number: LON,LAT."),
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="With --lonlat: pass over rows without a place.")
    ] = False,
    map_to: Annotated[
        pathlib.Path | None,
        typer.Option("--map", help="Draw a map: .png .svg .pdf, or .html for a globe to turn."),
    ] = None,
    save: Annotated[
        pathlib.Path | None, typer.Option(help="Where the density goes (.safetensors).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    seconds: Annotated[
        float, typer.Option(help="The time for flows; below 30 there are none.", min=0.0)
    ] = 240.0,
    floor: Annotated[float, typer.Option(help="The least width of a kernel, in degrees.")] = 0.01,
    header: common.Header = None,
    skip_rows: common.SkipRows = 0,
    seed: common.Seed = 0,
) -> None:
    """Fit a density to points on a sphere, and say what it is worth.

    Kernels, von Mises-Fisher bumps and flows are stacked by the likelihood of points that were held out.
    Without `--lonlat` every row is a unit vector.

    **Examples**

        determinax density events.csv --lonlat
        determinax density events.csv --lonlat --map map.png --save q.safetensors --json
        determinax density vectors.npy --seconds 0
        determinax sample q.safetensors 1000 --lonlat
    """
    with common.bad_input_exits():
        if columns is not None and not lonlat:
            raise ValueError("--columns names longitude and latitude: say --lonlat, too")
        if drop_missing and not lonlat:
            raise ValueError("--drop-missing is for longitude and latitude: say --lonlat, too")
        if str(file) == "-" and not lonlat:
            raise ValueError("standard input is a table of places: say --lonlat, too")
        if save is not None and save.suffix.lower() not in _SAVED:
            raise ValueError(f"{save}: densities are saved as .safetensors")
        if map_to is not None and map_to.suffix.lower() not in _MAPS:
            raise ValueError(f"{map_to}: maps are {' '.join(_MAPS)}")
        if map_to is not None:
            common.require_matplotlib("--map", "plots")
        if not floor > 0:
            raise ValueError(f"--floor is a width above 0, in degrees, not {floor:g}")
        for path in (map_to, save):
            if path is not None:
                common.require_writable(path)
                common.require_apart(path, file)
        with reporting() as report:
            about: dict[str, Any] = {"file": str(file), "seed": seed}
            if lonlat:
                *values, dropped = _read_places(
                    file, columns, drop_missing, header, skip_rows, report
                )
                about["num_dropped"] = dropped
            else:
                values = common.read(file, header, skip_rows, report)
            found = _fit(values, lonlat, map_to, save, seconds, floor, seed, report)
        if drop_missing:
            rows = counted(about["num_dropped"], "row")
            print(f"dropped: {rows} without a place", file=sys.stderr)
        print(json.dumps(about | found.to_dict(), indent=2) if as_json else found, flush=True)


def sample(
    proposal: Annotated[pathlib.Path, typer.Argument(help="A density that was saved.")],
    num: Annotated[Count, typer.Argument(help="How many points.")] = 1000,
    lonlat: Annotated[
        bool, typer.Option("--lonlat", help="Longitude and latitude in degrees (n = 3).")
    ] = False,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="A .csv or .npy file; standard output by default."),
    ] = None,
    seed: common.Seed = 0,
) -> None:
    """Draw points from a density that was saved, as comma-separated text.

    Columns are x1 to xn, or longitude and latitude.

    **Examples**

        determinax sample q.safetensors 1000
        determinax sample q.safetensors 1e5 --lonlat --out new.csv

    The same seed draws the same points.
    """
    with common.bad_input_exits():
        count = common.whole(num, "num") or 1
        if not proposal.exists():
            raise ValueError(f"{proposal}: no such file")
        if out is not None:
            if out.suffix.lower() not in _DRAWN:
                raise ValueError(f"{out}: points are written as .csv, .txt or .npy")
            common.require_writable(out)
            common.require_apart(out, proposal)
        with reporting() as report:
            names, rows = _drawn(proposal, count, lonlat, seed, report)
        if out is None:
            sys.stdout.write(_as_text(names, rows))
            return
        _write(out, names, rows)
        print(f"{count:,} points in {out}", flush=True)


def _as_text(names: list[str], rows: Any) -> str:
    lines = (",".join(f"{x:.9g}" for x in row) for row in rows.tolist())
    return "\n".join([",".join(names), *lines]) + "\n"


def _write(path: pathlib.Path, names: list[str], rows: Any) -> None:
    """All or nothing, as the name asks: NumPy's own format has no room for names."""
    from determinax.storage import write_atomically

    if path.suffix.lower() != ".npy":
        write_atomically(path, _as_text(names, rows).encode())
        return
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, rows)
    write_atomically(path, buffer.getvalue())


def _read_places(
    file: pathlib.Path,
    columns: str | None,
    drop_missing: bool,
    header: bool | None,
    skip_rows: float,
    report: Report | None,
) -> Any:
    if header is not None or skip_rows:
        raise ValueError("--lonlat finds the header by itself: leave --header and --skip-rows out")
    if str(file) != "-" and not file.exists():  # said before NumPy is there
        raise ValueError(f"{file}: no such file")
    common.say(report, f"reading {file.name}")
    from determinax.places import read_places

    chosen = None if columns is None else columns.split(",")
    return read_places(file, columns=chosen, drop_missing=drop_missing)


def _fit(
    values: Any,
    lonlat: bool,
    map_to: pathlib.Path | None,
    save: pathlib.Path | None,
    seconds: float,
    floor: float,
    seed: int,
    report: Report | None,
) -> Any:
    jax = common.set_up_jax(report)
    import numpy as np

    import determinax as dx
    from determinax._keys import stream
    from determinax.proposals import cast

    points = dx.sphere.from_lonlat(*values) if lonlat else dx.sphere.unit_matrix(values)
    if map_to is not None and points.shape[1] != 3:
        raise ValueError(f"--map is for n = 3, and these points have n = {points.shape[1]}")
    key = stream(jax.random.key(seed), "density")
    found = dx.density(points, key=key, seconds=seconds, floor=float(np.deg2rad(floor)))
    _interrupts.conclude()
    if save is not None:
        # 32 bits, so that a session without 64 loads it: more digits than any data give
        dx.save(cast(found.proposal, np.float32), save)
    if map_to is not None:
        common.say(report, "drawing")
        from determinax import plots

        plots.save_map(found, map_to, points=points)
    return found


def _drawn(
    path: pathlib.Path, num: int, lonlat: bool, seed: int, report: Report | None
) -> tuple[list[str], Any]:
    jax = common.set_up_jax(report)
    import numpy as np

    import determinax as dx
    from determinax._keys import stream

    q = dx.load(path)
    if lonlat and q.n != 3:
        raise ValueError(f"--lonlat is for n = 3, and {path} has n = {q.n}: leave it out")
    if q.context_size:
        raise ValueError(f"{path}: depends on a context: draw from it in Python")
    common.say(report, "drawing points")
    points = q.sample(stream(jax.random.key(seed), "sample"), num)
    if not lonlat:
        return [f"x{i + 1}" for i in range(q.n)], np.asarray(points)
    return ["longitude", "latitude"], np.stack(dx.sphere.to_lonlat(points), axis=1)
