import json
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import near_isometry

import determinax as dx
from determinax import Estimate
from determinax._diagnostics import (
    STATUSES,
    THRESHOLDS,
    Bar,
    Plain,
    Pooled,
    Quadrature,
    Rounding,
    Weights,
)
from determinax.operators import Products

KEY = jax.random.key(0)


class Figures(NamedTuple):
    log_abs_det: float
    standard_error: float
    num_draws: int = 0
    equal_weights: bool = False
    effective_sample_size: float = math.nan
    max_weight_share: float = math.nan
    spread: float = math.nan
    pareto_k: float = math.nan
    num_tail: int = 0
    is_linear: bool = True
    rounding: float | None = None
    bar: float | None = None

    def diagnostics(self):
        if self.rounding is not None:
            return Rounding(jnp.asarray(1.0))
        return Weights(
            num_draws=jnp.asarray(self.num_draws),
            effective_sample_size=jnp.asarray(self.effective_sample_size),
            max_weight_share=jnp.asarray(self.max_weight_share),
            spread=jnp.asarray(self.spread),
            pareto_k=jnp.asarray(self.pareto_k),
            are_equal=jnp.asarray(self.equal_weights),
            num_tail=self.num_tail,
            is_linear=self.is_linear,
        )


def judge(figures):
    """Status and reasons; the traced code says the same."""
    error = figures.standard_error if figures.rounding is None else figures.rounding
    bar = Bar(None if figures.bar is None else jnp.asarray(figures.bar))
    estimate = Estimate(
        jnp.asarray(figures.log_abs_det), jnp.asarray(error), figures.diagnostics(), Products()
    )
    judged = estimate.judged(bar)
    assert jax.jit(lambda e: e.judged(bar).code)(estimate) == judged.code
    assert STATUSES[int(judged.code)] == judged.status
    # what has nothing to say is fine, and what is fine has nothing to say
    assert bool(judged.reasons) == (judged.status in ("warn", "unreliable"))
    return judged.status, judged.reasons


GOOD = Figures(
    log_abs_det=1.0,
    standard_error=0.01,
    num_draws=10_000,
    effective_sample_size=8000.0,
    max_weight_share=0.001,
    spread=0.3,
    pareto_k=0.1,
)


def test_good_figures_are_ok():
    assert judge(GOOD) == ("ok", ())


@pytest.mark.parametrize(
    "name",
    ["pareto_k", "effective_sample_size", "max_weight_share", "standard_error", "num_draws"],
)
def test_each_threshold_decides_alone(name):
    limit = THRESHOLDS[name]
    # numbers are whole, and sample sizes have slack for rounding
    step = {"num_draws": 1, "effective_sample_size": 1e-3}.get(name, 1e-6)
    up = 1 if limit.unreliable > limit.warn else -1
    for bound, expected in ((limit.warn, "warn"), (limit.unreliable, "unreliable")):
        status, reasons = judge(GOOD._replace(**{name: bound + up * step}))
        assert status == expected
        assert len(reasons) == 1
        assert judge(GOOD._replace(**{name: bound - up * step}))[0] != expected


def test_broad_weights_want_more_draws_than_narrow_ones():
    few = GOOD._replace(num_draws=1000, spread=0.5)
    assert judge(few)[0] == "warn"
    assert judge(few._replace(spread=0.3))[0] == "ok"
    assert judge(few._replace(num_draws=2000))[0] == "ok"
    assert judge(GOOD._replace(spread=1.7))[0] == "warn"


def test_a_tail_that_is_not_known_well_is_not_ok_unless_the_spread_rules_it_out():
    def status(k, num_tail, spread):
        figures = GOOD._replace(pareto_k=k, num_tail=num_tail, spread=spread, num_draws=10_000)
        return judge(figures)[0]

    assert status(0.3, 192, 0.5) == "warn"
    assert status(0.2, 192, 0.5) == "ok"
    assert status(0.3, 1024, 0.5) == "ok"
    assert status(0.3, 192, 0.3) == "ok"
    # a flow's spread says little about its tail
    flow = GOOD._replace(pareto_k=0.3, num_tail=192, num_draws=10_000, is_linear=False)
    assert judge(flow._replace(spread=0.3))[0] == "warn"
    assert judge(flow._replace(spread=0.05))[0] == "ok"


def test_every_reason_has_a_direction_and_a_cure():
    cases = [GOOD._replace(log_abs_det=math.nan), GOOD._replace(log_abs_det=-math.inf)]
    cases += [
        GOOD._replace(**{name: limit.unreliable + (1 if limit.unreliable > limit.warn else -1)})
        for name, limit in THRESHOLDS.items()
        if name in Figures._fields
    ]
    for figures in cases:
        assert judge(figures)[1]
        for reason in judge(figures)[1]:
            assert any(word in reason for word in ("too large", "too small", "either side"))
            assert any(cure in reason for cure in ("take", "increase", "use", "proposal"))


@pytest.mark.parametrize("bar", [0.02, 0.5, 22.0])
def test_the_callers_bar_replaces_the_default_one_and_nothing_else(bar):
    within = GOOD._replace(standard_error=0.99 * bar, bar=bar)
    assert judge(within) == ("ok", ())
    above = judge(within._replace(standard_error=1.01 * bar))
    assert above[0] == "warn"
    assert f"above the {bar:.2g} asked for" in above[1][0]
    assert judge(within._replace(standard_error=4.01 * bar))[0] == "unreliable"
    # the other rules stay
    assert judge(within._replace(pareto_k=0.8))[0] == "unreliable"
    assert judge(within._replace(num_draws=10))[0] == "unreliable"


def test_a_bar_below_rounding_is_not_met_and_a_high_one_excuses_no_rounding():
    exact = Figures(log_abs_det=1.0, standard_error=1e-6, rounding=1e-6)
    assert judge(exact)[0] == judge(exact._replace(bar=1e-5))[0] == "exact"
    assert judge(exact._replace(bar=1e-7))[0] == "warn"
    assert judge(exact._replace(rounding=0.5, bar=10.0))[0] == "unreliable"
    equal = GOOD._replace(equal_weights=True, standard_error=1e-4)
    assert judge(equal)[0] == "exact"
    assert judge(equal._replace(bar=1e-5))[0] == "warn"


def test_a_large_log_determinant_is_judged_by_its_share():
    # many probes, a broad spectrum: an error of nats that is a small share of the value
    a = np.diag(np.exp(np.linspace(0, 3, 400)))
    method = dx.Lanczos(num_probes=20, depth=40)
    plain = dx.log_abs_det(a, method, key=KEY)
    assert plain.standard_error > 1
    assert plain.status == "unreliable"
    content = dx.log_abs_det(a, method, key=KEY, rtol=0.05)
    assert content.log_abs_det == plain.log_abs_det
    assert content.status == "ok"
    assert content.interval is not None
    assert content.to_dict()["bar"] == pytest.approx(0.05 * abs(float(content.log_abs_det)))
    assert dx.log_abs_det(a, method, key=KEY, tolerance=1e-3).status == "unreliable"
    # of both, the larger counts
    both = dx.log_abs_det(a, method, key=KEY, tolerance=1e-3, rtol=0.05)
    assert both.to_dict()["bar"] == content.to_dict()["bar"]


@pytest.mark.parametrize("bar", [0, -1.0, math.nan, math.inf, "0.5", True])
def test_a_bar_that_is_no_positive_number_is_refused(bar):
    for name in ("tolerance", "rtol"):
        with pytest.raises(ValueError, match=f"{name} is a positive number"):
            dx.log_abs_det(np.eye(2), **{name: bar})


def test_a_bar_passes_through_jit():
    a = near_isometry(10)
    found = jax.jit(lambda a: dx.log_abs_det(a, dx.MonteCarlo(2000), key=KEY, tolerance=1e-4))(a)
    assert found.status == "unreliable"
    assert "asked for" in found.reasons[0]


def test_the_text_says_each_thing_once_and_rightly():
    estimate = dx.log_abs_det(np.array([[0.0, 1.0], [2.0, 0.0]]))
    text = str(estimate)
    assert "[exact, LU]" in text
    assert "sign of the determinant: -1" in text
    volume = str(dx.log_volume(np.array([[3.0], [4.0]])))
    assert volume.startswith("log-volume = 1.609")
    assert "[exact, QR]" in volume
    assert "1 product; 1 product would give A itself" in volume


def test_nan_is_unreliable_whatever_else_is_said():
    assert judge(GOOD._replace(log_abs_det=math.nan))[0] == "unreliable"
    assert judge(GOOD._replace(standard_error=math.nan))[0] == "unreliable"


def test_diagnostics_without_weights_are_judged_by_what_they_know():
    def status(diagnostics, error, **fields):
        return Estimate(jnp.asarray(1.0), jnp.asarray(error), diagnostics, Products()).status

    assert status(Plain(), 0.1) == "ok"
    assert status(Plain(), 0.3) == "warn"
    assert status(Plain(), math.nan) == "unreliable"
    many, few = jnp.asarray(500.0), jnp.asarray(10.0)
    assert status(Pooled(many, jnp.asarray(0.1)), 0.1) == "ok"
    assert status(Pooled(few, jnp.asarray(0.1)), 0.1) == "unreliable"
    assert status(Quadrature(jnp.asarray(30), jnp.asarray(0.1)), 0.1) == "ok"
    assert status(Quadrature(jnp.asarray(30), jnp.asarray(3.0)), 0.1) == "unreliable"
    assert status(Rounding(jnp.asarray(10.0)), 1e-9) == "exact"


def test_the_code_is_the_status_under_jit_vmap_and_scan():
    batch = jnp.stack(
        [jnp.eye(6), jnp.asarray(near_isometry(6)), jnp.diag(jnp.r_[1e-6, jnp.ones(5)])]
    )
    method = dx.MonteCarlo(2000)

    def code(a):
        return dx.log_abs_det(a, method, key=KEY).code

    expected = [dx.log_abs_det(a, method, key=KEY).status for a in batch]
    assert expected[0] == "exact"
    assert expected[2] == "unreliable"
    for codes in (
        [jax.jit(code)(a) for a in batch],
        jax.vmap(code)(batch),
        jax.lax.scan(lambda c, a: (c, code(a)), None, batch)[1],
        [code(a) for a in batch],
    ):
        assert [STATUSES[int(c)] for c in codes] == expected


def test_a_hard_operator_is_called_unreliable_and_gives_no_interval():
    hard = np.diag([1.0] * 9 + [1e-6])
    e = dx.log_abs_det(hard, dx.MonteCarlo(10_000), key=KEY)
    assert e.status == "unreliable"
    assert e.interval is None
    assert "too large" in e.reasons[0]
    assert e.log_abs_det > np.linalg.slogdet(hard)[1]
    with pytest.raises(dx.UnreliableEstimateError, match="unreliable"):
        float(e)
    assert e.value(allow_unreliable=True) == float(e.log_abs_det)
    allowed = dx.log_abs_det(hard, dx.MonteCarlo(10_000), key=KEY, allow_unreliable=True)
    assert float(allowed) == float(e.log_abs_det)


@pytest.mark.parametrize("rank", [0, 1, 9])
@pytest.mark.parametrize(
    "method", [dx.MonteCarlo(10_000), dx.Exact(), dx.Lanczos(100, 10)], ids=str
)
def test_singular_operators_never_look_fine(rank, method):
    rng = np.random.default_rng(0)
    singular = rng.standard_normal((10, rank)) @ rng.standard_normal((rank, 10))
    e = dx.log_abs_det(singular, method, key=KEY)
    assert e.status == "unreliable"
    assert e.interval is None


def test_exact_knows_when_the_digits_are_gone():
    hilbert = 1 / (1 + np.arange(14)[:, None] + np.arange(14))
    assert dx.log_abs_det(hilbert, dx.Exact()).status == "unreliable"
    assert dx.log_abs_det(hilbert[:6, :6], dx.Exact()).status == "exact"
    single = dx.log_abs_det(hilbert[:6, :6].astype(np.float32), dx.Exact())
    assert single.status in ("warn", "unreliable")
    tall = np.vander(np.linspace(0, 1, 30), 25)
    assert dx.log_volume(tall, dx.Exact()).status == "unreliable"


def test_a_singular_direction_among_a_million_is_not_exact():
    for seed in range(3):
        e = dx.log_abs_det(
            lambda x: x.at[0].set(0),
            dx.MonteCarlo(30),
            key=jax.random.key(seed),
            example=jax.ShapeDtypeStruct((10**5,), np.float32),
        )
        assert e.status in ("warn", "unreliable")


def test_exact_counts_the_rounding_of_a_long_sum_of_logarithms():
    values = np.random.default_rng(0).uniform(1e-30, 2e-30, 2000).astype(np.float32)
    e = dx.log_abs_det(np.diag(values), dx.Exact())
    assert abs(e.log_abs_det - np.log(values.astype(float)).sum()) < e.standard_error


def test_rows_of_rounding_are_as_good_as_zero_where_products_gave_them():
    e = dx.log_abs_det(
        lambda x: jax.scipy.fft.dct(x - x.mean(), norm="ortho"), dx.Exact(), example=np.zeros(20)
    )
    assert e.status == "unreliable"


def test_exact_is_not_fooled_by_scales():
    e = dx.log_abs_det(np.diag([1e-150, 1.0, 1e150, 3.0]), dx.Exact())
    assert e.status == "exact"
    assert np.isclose(e.log_abs_det, np.log(3.0), rtol=1e-12)
    # rows alone: no scaling of columns mends that
    rows = np.diag(10.0 ** np.arange(0, -30, -5)) @ np.random.default_rng(0).normal(size=(6, 6))
    assert dx.log_abs_det(rows, dx.Exact()).status == "exact"


def test_a_quadrature_that_has_not_converged_is_unreliable():
    values = np.geomspace(1e-6, 1, 300)
    e = dx.log_abs_det(np.diag(values), dx.Lanczos(40, 6), key=KEY)
    truth = np.sum(np.log(values))
    assert e.status == "unreliable"
    assert "quadrature" in e.reasons[0]
    assert e.log_abs_det > truth


def test_the_error_bar_of_a_quadrature_has_its_bias_in_it():
    values = np.geomspace(1e-2, 1, 40)
    e = dx.log_abs_det(np.diag(values), dx.Lanczos(200, 5), key=KEY)
    off = e.log_abs_det - np.sum(np.log(values))
    assert 10 < off < 2 * e.standard_error


def test_one_lanczos_step_has_nothing_to_be_compared_with():
    e = dx.log_abs_det(near_isometry(10), dx.Lanczos(400, 1), key=KEY)
    assert e.log_abs_det > np.linalg.slogdet(near_isometry(10))[1] + 0.3
    assert e.status == "unreliable"
    assert "increase depth" in e.reasons[0]


@pytest.mark.parametrize(("num_probes", "status"), [(3, "unreliable"), (4, "warn"), (20, "ok")])
def test_few_probes_have_no_error_bar(num_probes, status):
    e = dx.log_abs_det(near_isometry(10, 0.1), dx.Lanczos(num_probes, 10), key=KEY)
    assert e.status == status
    assert any("probes are too few" in reason for reason in e.reasons) == (status != "ok")


def test_text_and_json_and_repr():
    e = dx.log_abs_det(near_isometry(10), dx.MonteCarlo(20_000), key=KEY)
    text = str(e)
    assert len(text.splitlines()) <= 6
    for word in ("log|det|", "ok", "95 % interval", "20,000 products", "10 products would give"):
        assert word in text
    data = json.loads(json.dumps(e.to_dict(), allow_nan=False))
    assert data["status"] == "ok"
    assert data["num_matvecs"] == 20_000
    assert data["log_abs_det"] == float(e.log_abs_det)
    singular = dx.log_abs_det(np.zeros((3, 3)), dx.MonteCarlo(100), key=KEY)
    assert json.loads(json.dumps(singular.to_dict(), allow_nan=False))["log_abs_det"] is None
    assert "unreliable" in str(singular)
    assert "nan" not in str(singular)


@pytest.mark.parametrize("delta", [0, 1, -0.1, math.nan, "0.05"])
def test_certificates_need_a_probability(delta):
    e = dx.log_abs_det(near_isometry(4), dx.MonteCarlo(100), key=KEY)
    with pytest.raises(ValueError, match="probability"):
        e.certified_upper(delta)


def test_a_batch_has_a_certificate_each():
    batch = jax.vmap(lambda k: dx.log_abs_det(near_isometry(4), dx.MonteCarlo(100), key=k))(
        jax.random.split(KEY, 3)
    )
    each = [batch[i].certified_upper(0.1) for i in range(3)]
    np.testing.assert_allclose(batch.certified_upper(0.1), each, rtol=1e-12)
    assert all(isinstance(bound, float) for bound in each)


def test_methods_without_weights_have_no_certificate():
    with pytest.raises(ValueError, match="no certificate"):
        dx.log_abs_det(near_isometry(4), dx.Exact()).certified_upper()


def test_certificates_hold_without_a_central_limit():
    """Heavy tails: violations of the 80 % certificate stay below 20 %, in standard errors."""
    matrix = np.diag([1.0, 1.0, 1.0, 0.05])
    run = jax.jit(jax.vmap(lambda k: dx.log_abs_det(matrix, dx.MonteCarlo(64), key=k)))
    batch = jax.device_get(run(jax.random.split(KEY, 1000)))
    truth = np.log(0.05)
    violations = np.mean([batch[i].certified_upper(0.2) < truth for i in range(1000)])
    assert violations < 0.2 + 4 * np.sqrt(0.2 * 0.8 / 1000)
