"""Every method of the registry x kinds of input x properties."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from methods import CASES, KINDS, A, N
from registry import near_isometry, rest_slow

import determinax as dx
from determinax import _engine
from determinax.operators import traits

KEY = jax.random.key(3)
TRUTH = np.linalg.slogdet(A)[1]
IN_JIT = [name for name, case in CASES.items() if case.in_jit]
FEW = ("MonteCarlo, one frame", "Deflated", "Auto, few")  # an error bar of few draws says little


def key_for(name):
    return KEY if CASES[name].needs_key else None


def run(name, operator=A, key=KEY, **options):
    method = CASES[name].make()
    return dx.log_abs_det(operator, method, key=key if CASES[name].needs_key else None, **options)


# a method's first settings with every kind, its other settings with arrays; the rest is slow
FIRST = {case.name: name for name, case in reversed(CASES.items())}.values()
CROSSED = [
    pytest.param(name, kind, marks=[] if name in FIRST or kind == "dense" else pytest.mark.slow)
    for name in CASES
    for kind in KINDS
]


@pytest.mark.parametrize(("name", "kind"), CROSSED)
def test_the_value_is_right_for_every_kind_and_a_second_call_compiles_nothing(
    name, kind, compilations
):
    operator = KINDS[kind](A)
    e = run(name, operator)
    slack = 12 if name in FEW else 4
    assert abs(float(e.log_abs_det) - TRUTH) < slack * float(e.standard_error) + 1e-9
    assert e.num_matvecs_dense == N
    first = len(compilations)
    again = run(name, operator)
    assert len(compilations) == first
    assert again.log_abs_det == e.log_abs_det


@pytest.mark.parametrize("name", rest_slow(CASES, FIRST))
def test_complex_operators(name, compilations):
    a = near_isometry(N, 0.1) + 0.1j * near_isometry(N, 0.1, seed=5)
    if name.startswith("Variational"):
        method = dx.Variational(dx.Proposal(dx.flows.projective_linear(2 * N)), 300)
    else:
        method = CASES[name].make()
    if name == "Probed":
        with pytest.raises(dx.OperatorError, match="probing takes real operators only"):
            dx.log_abs_det(a, method, key=KEY)
        return
    e = dx.log_abs_det(a, method, key=KEY)
    first = len(compilations)
    again = dx.log_abs_det(a, method, key=KEY)
    assert len(compilations) == first
    assert again.log_abs_det == e.log_abs_det
    slack = 12 if name in FEW else 4
    assert (
        abs(float(e.log_abs_det) - np.linalg.slogdet(a)[1]) < slack * float(e.standard_error) + 1e-9
    )
    assert e.num_matvecs_dense == N


@pytest.mark.parametrize("name", rest_slow(CASES, FIRST))
def test_tall_operators(name, compilations):
    tall, method = np.concatenate([A, 0.1 * near_isometry(N, seed=4)]), CASES[name].make()
    if name == "Probed":
        with pytest.raises(
            dx.OperatorError, match="16x8: probing factorises square operators only"
        ):
            dx.log_volume(tall, method, key=KEY)
        return
    e = dx.log_volume(tall, method, key=KEY)
    first = len(compilations)
    again = dx.log_volume(tall, method, key=KEY)
    assert len(compilations) == first
    assert again.log_abs_det == e.log_abs_det
    truth = 0.5 * np.linalg.slogdet(tall.T @ tall)[1]
    slack = 12 if name in FEW else 4
    assert abs(float(e.log_abs_det) - truth) < slack * float(e.standard_error) + 1e-9


@pytest.mark.parametrize("name", rest_slow([n for n in CASES if n != "Auto, few"], FIRST))
def test_convolutions(name, compilations):
    operator = dx.operators.convolution(
        np.array([[0.0, 0.1, 0.0], [-0.1, 1.5, 0.1], [0.0, 0.1, 0.0]]), (2, 4)
    )
    truth = np.linalg.slogdet(np.asarray(operator.as_matrix()))[1]
    e = run(name, operator)
    first = len(compilations)
    again = run(name, operator)
    assert len(compilations) == first
    assert again.log_abs_det == e.log_abs_det
    slack = 12 if name in FEW else 4
    assert abs(float(e.log_abs_det) - truth) < slack * float(e.standard_error) + 1e-9


@pytest.mark.parametrize("name", rest_slow(IN_JIT, FIRST))
def test_the_same_under_jit_as_an_argument_and_closed_over(name):
    method, key = CASES[name].make(), key_for(name)
    if name.startswith("Auto, few"):
        pytest.skip("looks at values outside of jit, and goes by the budget alone inside")
    plain = run(name)
    as_argument = jax.jit(lambda a: dx.log_abs_det(a, method, key=key))(jnp.asarray(A))
    closed_over = jax.jit(lambda: dx.log_abs_det(A, method, key=key))()
    for other in (as_argument, closed_over):
        np.testing.assert_allclose(other.log_abs_det, plain.log_abs_det, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(
            other.standard_error, plain.standard_error, rtol=1e-6, atol=1e-13
        )
        assert other.status == plain.status
        assert int(other.code) == int(plain.code)
        assert other.num_matvecs == plain.num_matvecs


@pytest.mark.parametrize("name", rest_slow(IN_JIT, FIRST))
def test_vmap_over_keys_and_matrices_is_a_loop(name):
    method = CASES[name].make()
    batch, keys = jnp.stack([jnp.asarray(A), 2 * jnp.asarray(A).T]), jax.random.split(KEY, 2)

    def one(a, key):
        return dx.log_abs_det(a, method, key=key)

    both = jax.vmap(one)(batch, keys)
    for i in range(2):
        single = jax.jit(one)(batch[i], keys[i])
        # draws are of float32, and XLA may round their norms differently in another program
        np.testing.assert_allclose(both.log_abs_det[i], single.log_abs_det, rtol=1e-5, atol=1e-6)
        assert both[i].status == single.status
    with pytest.raises(ValueError, match="batch of estimates"):
        _ = both.status


@pytest.mark.parametrize("name", rest_slow([n for n in IN_JIT if CASES[n].has_gradient], FIRST))
def test_the_gradient_knows_how_a_scale_acts(name):
    """log|det cA| = n log c + log|det A|, whatever the draws: so <gradient, A> = n."""
    method, key = CASES[name].make(), key_for(name)
    gradient = jax.grad(lambda a: dx.log_abs_det(a, method, key=key).log_abs_det)(jnp.asarray(A))
    np.testing.assert_allclose(jnp.sum(gradient * A), N, rtol=1e-8)


@pytest.mark.parametrize("name", rest_slow(CASES, FIRST))
def test_float32_and_float64(name):
    single = run(name, A.astype(np.float32))
    assert single.log_abs_det.dtype in (np.float32, np.float64)
    slack = 12 if name in FEW else 4
    assert abs(float(single.log_abs_det) - TRUTH) < slack * float(single.standard_error) + 1e-4


@pytest.mark.parametrize("make", ["dense", "sparse", "diagonal", "tridiagonal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_exact_value_has_the_dtype_of_its_matrix(make, dtype):
    tridiagonal = scipy.sparse.diags_array([1.0, 3, 1], offsets=[-1, 0, 1], shape=(5, 5))
    matrix = {
        "dense": A,
        "sparse": scipy.sparse.csr_array(A),
        "diagonal": 2 * scipy.sparse.eye_array(5, format="csr"),
        "tridiagonal": tridiagonal.tocsr(),
    }[make].astype(dtype)
    for method in (dx.Exact(), dx.Auto()):
        e = dx.log_abs_det(matrix, method, key=KEY)
        assert e.log_abs_det.dtype == e.standard_error.dtype == dtype
        truth = np.linalg.slogdet(matrix.toarray() if make != "dense" else matrix)[1]
        assert abs(float(e.log_abs_det) - truth) <= 4 * float(e.standard_error) + 1e-12


def test_a_tolerance_may_be_an_array_traced_or_not():
    method = dx.MonteCarlo(2000)

    def error(bar):
        return dx.log_abs_det(A, method, key=KEY, tolerance=bar).standard_error

    for bar in (jnp.asarray(0.1), np.float32(0.1), np.asarray(0.1)):
        assert error(bar) == pytest.approx(float(error(0.1)), rel=1e-6)
    assert jax.jit(error)(0.1) == pytest.approx(float(error(0.1)), rel=1e-6)
    with pytest.raises(ValueError, match="tolerance is a positive number"):
        error(jnp.asarray(-0.1))


def python_calls(run):
    """How many Python functions a second call enters: unlike milliseconds, always the same."""
    num = 0

    def note(frame, event, argument):
        nonlocal num
        num += event == "call"

    run()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return num


@pytest.mark.parametrize("name", [name for name in FIRST if name not in ("Probed", "Auto")])
def test_the_shell_adds_little_to_a_second_call(name):
    """900 Python calls take 0.6 ms (docs/results/overhead.md); Probed and Auto look at values."""
    method, operator = CASES[name].make(), dx.as_operator(A)
    whole = python_calls(lambda: dx.log_abs_det(A, method, key=KEY))
    core = python_calls(lambda: _engine.compiled_run(method, operator, KEY))
    assert 0 < whole - core < 1300


def test_draws_and_frames_compile_once(compilations):
    for _ in range(2):
        first = len(compilations)
        dx.sphere.uniform(KEY, 7, 3)
        dx.sphere.frame(KEY, 7, 3)
    assert len(compilations) == first


def test_functions_that_are_written_again_are_compiled_once(compilations):
    def f(matrix):
        return lambda x: jnp.asarray(matrix) @ x

    method = dx.MonteCarlo(100)
    values = [
        float(dx.log_abs_det(f(c * A), method, key=KEY, example=jnp.zeros(N)).log_abs_det)
        for c in (1.0, 1.0)
    ]
    first = len(compilations)
    doubled = dx.log_abs_det(f(2 * A), method, key=KEY, example=jnp.zeros(N)).log_abs_det
    assert len(compilations) == first
    # the arrays that it closes over are arguments: never those of an earlier call
    assert values[0] == values[1]
    np.testing.assert_allclose(doubled - values[0], N * np.log(2), rtol=1e-12)


def test_what_an_inner_function_closes_over_is_never_mistaken():
    """The text of a traced program does not show the arrays inside of a jitted function."""

    def f(matrix):
        inner = jax.jit(lambda x: jnp.asarray(matrix) @ x)
        return lambda x: inner(x)

    method = dx.MonteCarlo(100)
    values = [
        float(dx.log_abs_det(f(c * A), method, key=KEY, example=jnp.zeros(N)).log_abs_det)
        for c in (1.0, 2.0, 1.0)
    ]
    np.testing.assert_allclose(values[1] - values[0], N * np.log(2), rtol=1e-12)
    assert values[2] == values[0]


class Counting(scipy.sparse.linalg.LinearOperator):
    """Counts its products, and raises on the `bad`-th block of them if asked to."""

    def __init__(self, bad=None):
        super().__init__(A.dtype, A.shape)
        self.forward = self.transposed = self.calls = 0
        self.bad = bad

    def _matmat(self, x):
        self.calls += 1
        if self.bad is not None and self.forward + x.shape[1] >= self.bad:
            raise RuntimeError("the licence has expired")
        self.forward += x.shape[1]
        return A @ x

    def _matvec(self, x):
        return self._matmat(x.reshape(-1, 1))

    def _rmatmat(self, x):
        self.transposed += x.shape[1]
        return A.T @ x

    def _rmatvec(self, x):
        return self._rmatmat(x.reshape(-1, 1))


@pytest.mark.parametrize("name", rest_slow(CASES, FIRST))
def test_products_reported_are_products_counted(name):
    operator = Counting()
    e = run(name, operator)
    assert (e.num_matvecs - e.num_transposed, e.num_transposed) == (
        operator.forward,
        operator.transposed,
    )


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("Probed",)])
def test_the_cost_is_known_before_anything_is_spent(name):
    method = CASES[name].make()
    if name.startswith("Auto"):
        pytest.skip("decides by a pilot run")
    operator = dx.as_operator(A)
    cost, spent = method.cost(traits(operator)), run(name).cost
    assert (int(cost.forward), int(cost.transposed)) == (int(spent.forward), int(spent.transposed))


@pytest.mark.parametrize("name", rest_slow(CASES, FIRST))
def test_an_operator_that_raises_on_its_fifth_product_is_one_sentence(name):
    operator = Counting(bad=5)
    with pytest.raises(dx.OperatorError, match="raised while computing a product") as caught:
        run(name, operator, check_linear=False)
    assert "licence" in str(caught.value.__cause__)
    # and is not blamed for what comes later
    operator.bad = None
    run(name, operator, check_linear=False)


def test_a_bar_stops_the_sampling_and_says_so():
    method = dx.MonteCarlo(10**6)
    e = dx.log_abs_det(A, method, key=KEY, tolerance=0.01)
    assert e.standard_error <= 0.01
    assert e.num_matvecs < 10**6
    assert "Stopped after" in e.reasons[-1]
    assert e.status == "ok"
    within = jax.jit(lambda a: dx.log_abs_det(a, method, key=KEY, tolerance=0.01))(A)
    assert within.log_abs_det == pytest.approx(float(e.log_abs_det), rel=1e-12)
    assert within.num_matvecs == e.num_matvecs
    assert within.reasons[-1] == e.reasons[-1]
    all_of_them = dx.log_abs_det(A, dx.MonteCarlo(2000), key=KEY, tolerance=1e-9)
    assert all_of_them.num_matvecs == 2000
    assert all_of_them.status == "unreliable"
    assert "Stopped" not in str(all_of_them)


def test_a_bar_that_skips_the_last_odd_chunk_says_so():
    method = dx.MonteCarlo(601, chunk_size=100)
    error = float(dx.log_abs_det(A, dx.MonteCarlo(600, chunk_size=100), key=KEY).standard_error)
    earlier = float(dx.log_abs_det(A, dx.MonteCarlo(500, chunk_size=100), key=KEY).standard_error)
    assert error < earlier
    said = "Stopped after 600 of 601 draws: the standard error had reached what was asked for."

    def run(a):
        return dx.log_abs_det(a, method, key=KEY, tolerance=error * (1 + 1e-9))

    for found in (run(A), jax.jit(run)(A), jax.vmap(run)(A[None])[0]):
        assert found.num_matvecs == 600
        assert found.reasons[-1] == said


def test_a_long_estimate_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    from determinax import _checkpoint, _shell

    path = tmp_path / "run.ck"
    method = dx.MonteCarlo(5000, chunk_size=100)
    whole = dx.log_abs_det(A, method, key=KEY)
    monkeypatch.setattr(_checkpoint, "_SECONDS", 0.0)
    writes, real = [], _checkpoint.write

    class Killed(Exception):
        pass

    def kill(*args):
        real(*args)
        writes.append(args)
        if len(writes) == 2:
            raise Killed

    monkeypatch.setattr(_checkpoint, "write", kill)
    with pytest.raises(Killed):
        dx.log_abs_det(A, method, key=KEY, checkpoint=path)
    monkeypatch.setattr(_checkpoint, "write", real)
    numbers = []
    advance = _shell._engine.compiled_advance
    monkeypatch.setattr(
        _shell._engine,
        "compiled_advance",
        lambda *args: numbers.append(int(args[5])) or advance(*args),
    )
    resumed = dx.log_abs_det(A, method, key=KEY, checkpoint=path, resume=True)
    assert numbers[0] > 0
    for a, b in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(dx.StorageError, match="another run"):
        dx.log_abs_det(2 * A, method, key=KEY, checkpoint=path, resume=True)
    with pytest.raises(ValueError, match="checkpoint="):
        dx.log_abs_det(A, method, key=KEY, resume=True)
