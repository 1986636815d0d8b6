"""Every method reports on its way, and the bar appears on a terminal only."""

import jax
import jax.numpy as jnp
import pytest

import determinax as dx
from determinax import progress
from determinax.operators import Products


@pytest.mark.parametrize(
    ("method", "n", "what", "steps"),
    [
        (dx.Exact(), 600, "Exact", [256, 512, 600]),
        (dx.Lanczos(20, 2), 5, "Lanczos", [8, 16, 20]),
        (dx.MonteCarlo(20, chunk_size=10), 5, "Monte Carlo", [10, 20]),
        (dx.Auto(4), 20, "Monte Carlo", [4]),
    ],
    ids=str,
)
def test_methods_report(method, n, what, steps):
    started, done = [], []
    report = progress.Report(lambda *a: started.append(a), lambda *a: done.append(a[0]))
    operator = dx.as_operator(lambda x: 2 * x, jnp.zeros(n))
    e = method.estimate(operator, jax.random.key(0), spent=Products(), progress=report)
    assert started == [(steps[-1], what)]
    assert done == steps
    assert abs(e.log_abs_det - n * jnp.log(2)) < 1e-9


@pytest.mark.parametrize(("patience", "shown"), [(-1.0, True), (60.0, False)])
def test_the_bar_appears_when_patience_is_over(patience, shown, monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", patience)
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich a terminal
    with progress.reporting(True) as report:
        report.start(1000, "Monte Carlo")
        report.advance(500, "half")
    out, err = capsys.readouterr()
    assert out == ""
    for word in ("Monte Carlo", "500 of 1,000", "half"):
        assert (word in err) == shown


def test_nobody_is_told_in_a_pipe(capsys):
    with progress.reporting() as report:
        assert report is None
    assert capsys.readouterr() == ("", "")
