"""Factorisations of one matrix: as JAX's, with all derivatives, and never batched on a CPU."""

import ast
import pathlib
import re

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from registry import near_isometry, rest_slow

import determinax as dx
from determinax import _linalg, sphere
from determinax.training.secant import secant_update

KEY = jax.random.key(0)
SQUARE = jax.random.normal(KEY, (2, 3, 5, 5))
TALL = jax.random.normal(KEY, (2, 3, 7, 4))
COMPLEX = SQUARE + 1j * SQUARE[::-1, ::-1]
SYMMETRIC = SQUARE + SQUARE.mT
RIGHT = jax.random.normal(jax.random.key(1), (2, 3, 5, 2))

# name: ours, JAX's, arguments with two axes in front
CASES = {
    "solve": (_linalg.solve, jnp.linalg.solve, (SQUARE, RIGHT)),
    "solve one": (_linalg.solve, jnp.linalg.solve, (SQUARE, RIGHT[..., 0])),
    "solve 1x1": (_linalg.solve, jnp.linalg.solve, (SQUARE[..., :1, :1], RIGHT[..., :1, :])),
    "solve complex": (_linalg.solve, jnp.linalg.solve, (COMPLEX, 1j * RIGHT)),
    "log_abs_det": (_linalg.log_abs_det, lambda a: jnp.linalg.slogdet(a)[1], (SQUARE,)),
    "log_abs_det 1x1": (
        _linalg.log_abs_det,
        lambda a: jnp.linalg.slogdet(a)[1],
        (SQUARE[..., :1, :1],),
    ),
    "log_abs_det complex": (_linalg.log_abs_det, lambda a: jnp.linalg.slogdet(a)[1], (COMPLEX,)),
    "upper": (
        _linalg.solve_triangular,
        jax.scipy.linalg.solve_triangular,
        (SQUARE, RIGHT),
    ),
    "lower": (
        lambda a, b: _linalg.solve_triangular(a, b, lower=True),
        lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
        (COMPLEX, 1j * RIGHT[..., 0]),
    ),
    "qr": (_linalg.qr, lambda a: tuple(jnp.linalg.qr(a)), (SQUARE,)),
    "qr tall": (_linalg.qr, lambda a: tuple(jnp.linalg.qr(a)), (TALL,)),
    "qr complex": (_linalg.qr, lambda a: tuple(jnp.linalg.qr(a)), (COMPLEX[..., :4],)),
    "eigh": (_linalg.eigh, lambda a: tuple(jnp.linalg.eigh(a)), (SYMMETRIC,)),
    "svd": (_linalg.svd, lambda a: tuple(jnp.linalg.svd(a)), (SQUARE,)),
    "svd tall": (_linalg.svd, lambda a: tuple(jnp.linalg.svd(a, full_matrices=False)), (TALL,)),
    "svd wide": (_linalg.svd, lambda a: tuple(jnp.linalg.svd(a, full_matrices=False)), (TALL.mT,)),
}


def curved(f):
    """A number of all that f gives, whose second derivatives depend on all as well."""

    def total(*args):
        leaves = jax.tree.leaves(f(*args))
        return sum(jnp.sum(jnp.cos(leaf.real) + jnp.sin(2 * leaf.imag)) for leaf in leaves)

    return total


def first(args):
    return tuple(a[0, 0] for a in args)


TRANSFORMS = {
    "itself": lambda f: lambda *args: f(*first(args)),
    "vmap": lambda f: jax.vmap(jax.vmap(f)),
    "jvp": lambda f: lambda *args: jax.jvp(f, first(args), jax.tree.map(jnp.cos, first(args)))[1],
    "grad": lambda f: lambda *args: jax.grad(curved(f), argnums=_all(args))(*first(args)),
    "vmap of grad": lambda f: (
        lambda *args: jax.vmap(jax.vmap(jax.grad(curved(f), argnums=_all(args))))(*args)
    ),
    "grad of vmap": lambda f: (
        lambda *args: jax.grad(curved(jax.vmap(jax.vmap(f))), argnums=_all(args))(*args)
    ),
    "second derivative": lambda f: (
        lambda *args: jax.grad(curved(jax.grad(curved(f), argnums=_all(args))), argnums=0)(
            *first(args)
        )
    ),
    "jvp of vmap of grad": lambda f: (
        lambda *args: jax.jvp(
            jax.vmap(jax.vmap(jax.grad(curved(f), argnums=_all(args)))),
            args,
            jax.tree.map(jnp.cos, args),
        )[1]
    ),
    "batched right-hand sides": lambda f: (
        lambda *args: jax.vmap(f, (None,) * (len(args) - 1) + (0,))(*first(args)[:-1], args[-1][0])
    ),
}


# of one kind each; the others are slow
QUICK_CASES = ("solve", "log_abs_det", "lower", "qr", "eigh", "svd tall")
QUICK_TRANSFORMS = ("vmap", "vmap of grad", "batched right-hand sides")


def _all(args):
    return tuple(range(len(args)))


def lapack_batches(f, *args) -> list[str]:
    """The LAPACK calls in f's program, those with a batch marked."""
    text = jax.jit(f).lower(*args).compile().as_text()
    calls = re.findall(r"= (.*?) custom-call\(.*custom_call_target=\"(lapack_\w+)\"", text)
    ranks = [
        (name, max(shape.count(",") + 1 for shape in re.findall(r"\w\d+\[([\d,]+)\]", shapes)))
        for shapes, name in calls
    ]
    return [f"{name}{' batched' if rank > 2 else ''}" for name, rank in ranks]


@pytest.mark.parametrize("transform", rest_slow(TRANSFORMS, QUICK_TRANSFORMS))
@pytest.mark.parametrize("name", rest_slow(CASES, QUICK_CASES))
def test_values_and_derivatives_are_those_of_jax(name, transform):
    ours, theirs, args = CASES[name]
    change = TRANSFORMS[transform]
    found, expected = jax.jit(change(ours))(*args), jax.jit(change(theirs))(*args)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        size = jnp.max(jnp.abs(y))
        assert jnp.isfinite(size)
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-9 * float(size))


@pytest.mark.parametrize("transform", rest_slow(TRANSFORMS, QUICK_TRANSFORMS))
@pytest.mark.parametrize("name", rest_slow(CASES, QUICK_CASES))
def test_no_lapack_call_has_a_batch(name, transform):
    """A batched call waits for XLA's own threads from one of them, and hangs on few cores."""
    ours, _, args = CASES[name]
    calls = lapack_batches(TRANSFORMS[transform](ours), *args)
    assert calls or "1x1" in name
    assert not [call for call in calls if "batched" in call]


def test_the_batches_that_hang_are_told():
    """So that the test above can fail."""
    assert "lapack_dgeqrf_ffi batched" in lapack_batches(jax.vmap(jax.vmap(jnp.linalg.qr)), SQUARE)


@pytest.mark.parametrize("name", ["solve", "upper", "qr tall", "eigh", "svd"])
def test_other_devices_get_the_batched_call(name, monkeypatch):
    ours, theirs, args = CASES[name]
    args = tuple(a[0] for a in args)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args))
    assert any("batched" in call for call in lapack_batches(jax.vmap(ours), *args))
    for x, y in zip(
        jax.tree.leaves(jax.vmap(ours)(*args)), jax.tree.leaves(theirs(*args)), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def test_right_hand_sides_of_one_matrix_are_one_call():
    def solves(a, b):
        return jax.vmap(_linalg.solve_triangular, (None, 0))(a, b)

    # few columns are one call of LAPACK
    text = jax.jit(solves).lower(SQUARE[0, 0], SQUARE[0, :, :, :2]).compile().as_text()
    assert "while" not in text
    assert "f64[5,6]" in text
    # many none at all, since its threads would wait for XLA's: the rows one after the other
    compiled = jax.jit(solves).lower(SQUARE[0, 0], SQUARE[0]).compile()
    assert not re.search("lapack|triangular-solve", compiled.as_text())
    assert "f64[5,15]" in compiled.as_text()
    expected = jax.scipy.linalg.solve_triangular(SQUARE[0, 0], SQUARE[0])
    np.testing.assert_allclose(compiled(SQUARE[0, 0], SQUARE[0]), expected, rtol=1e-12)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n", [40, 300])
def test_many_right_hand_sides_are_solved_for(n, lower):
    a = jax.random.normal(KEY, (n, n)) / n + jnp.eye(n)
    b = jax.random.normal(jax.random.key(1), (n, 50))
    found = _linalg.solve_triangular(a, b, lower=lower)
    np.testing.assert_allclose(
        found, jax.scipy.linalg.solve_triangular(a, b, lower=lower), rtol=1e-11, atol=1e-13
    )


def test_known_factors_are_used():
    a, other = SQUARE[0, 0], _linalg.lu_factor(2 * SQUARE[0, 0])
    b, known = RIGHT[0, 0, :, 0], _linalg.lu_factor(a)
    np.testing.assert_allclose(_linalg.solve(a, b, other), _linalg.solve(2 * a, b))
    np.testing.assert_allclose(_linalg.lu_solve(known, b), jnp.linalg.solve(a, b))
    np.testing.assert_allclose(_linalg.lu_solve(known, b, adjoint=True), jnp.linalg.solve(a.T, b))


def test_a_singular_matrix_has_minus_infinity_and_nan_stays():
    assert _linalg.log_abs_det(jnp.zeros((3, 3))) == -jnp.inf
    assert jnp.isnan(_linalg.log_abs_det(SQUARE[0, 0].at[1, 1].set(jnp.nan)))
    assert not jnp.isfinite(_linalg.solve(jnp.zeros((3, 3)), jnp.ones(3))).any()


def test_singular_values_of_a_tall_array_take_no_square_of_its_height():
    tall = jnp.zeros((20_000, 8))
    program = jax.jit(_linalg.singular_values).lower(tall).compile().memory_analysis()
    assert program.temp_size_in_bytes < 10 * tall.nbytes
    np.testing.assert_allclose(
        _linalg.singular_values(TALL[0, 0]), jnp.linalg.svd(TALL[0, 0])[1], rtol=1e-12
    )


N = 40  # where frames are LAPACK's
A = jnp.asarray(near_isometry(N))
KEYS = jax.random.split(KEY, 2)


def estimate(method, tag=None):
    def run(scale, key):
        matrix = scale * (A if tag is None else A @ A.T)
        operator = lx.MatrixLinearOperator(matrix, () if tag is None else tag)
        e = dx.log_abs_det(operator, method, key=key)
        return e.log_abs_det + (0 if e.lower_bound is None else e.lower_bound)

    return run


def dense_proposal():
    return dx.Proposal(dx.flows.ProjectiveLinear(dx.flows.Dense(jnp.eye(N))))


def track(scale, key):
    return dx.Tracker(dense_proposal()).step(scale * A, key)[1].log_abs_det


def update(scale, key):
    operator = dx.as_operator(scale * A)
    frames = (sphere.frame(key, N, k) for k in (4, 30))
    transpose = operator.transpose()
    states = [secant_update(operator, transpose, A, 0.0, z)[0] for z in frames]
    return sum(jnp.sum(s) for s in states)


def flow(make):
    def run(scale, key):
        proposal = dx.Proposal(make(key))
        points, log_density = proposal.sample_and_log_density(key, 5)
        return jnp.sum(log_density + proposal.log_density(points)) * scale

    return run


def conditional(scale, key):
    map_ = dx.flows.conditional_linear(5, key=key)
    context = jax.random.normal(key, (5, 5))
    s = sphere.uniform(key, 5, 5)
    return scale * jnp.sum(map_.inverse(*(map_.forward(s, context)[0], context))[0])


def network(scale):
    return lambda x: scale * x + 0.1 * jnp.tanh(A[:5, :5] @ x)


def surrogate(scale, key):
    x, q = jax.random.normal(key, (2, 5)), dx.Proposal(dx.flows.conditional_linear(5, key=key))
    found = dx.jacobian_surrogate(network(scale), x, q, key=key, num_samples=2)
    return jnp.sum(found.log_abs_det + found.loss)


PROGRAMS = {
    "exact": estimate(dx.Exact()),
    "frames": estimate(dx.MonteCarlo(2 * N, "frames")),
    "one frame": estimate(dx.MonteCarlo(10, "frames")),
    "Lanczos": estimate(dx.Lanczos(9, 5)),
    "Lanczos, definite": estimate(dx.Lanczos(9, 5), lx.positive_semidefinite_tag),
    "deflated": estimate(dx.Deflated(4, dx.MonteCarlo(10))),
    "deflated, smallest": estimate(dx.Deflated(2, dx.MonteCarlo(10), which="smallest")),
    "variational": estimate(dx.Variational(dense_proposal(), 10)),
    "tracker": track,
    "secant": update,
    "exponential": flow(lambda key: dx.flows.exponential_polynomial(5, key=key)),
    "low rank": flow(
        lambda key: dx.flows.ProjectiveLinear(dx.flows.DiagonalLowRank(5, 2, key=key))
    ),
    "circulant": flow(lambda key: dx.flows.ProjectiveLinear(dx.flows.Circulant((3,), 2))),
    "conditional": conditional,
    "surrogate": surrogate,
}


QUICK_PROGRAMS = ("frames", "Lanczos", "deflated", "secant")


@pytest.mark.parametrize("name", rest_slow(PROGRAMS, QUICK_PROGRAMS))
def test_no_method_makes_a_batched_call(name):
    """Neither by itself, nor under the user's `vmap`, nor in gradients."""
    run = PROGRAMS[name]
    for f in (run, jax.vmap(run), jax.vmap(jax.value_and_grad(run))):
        scale, key = (1.5, KEY) if f is run else (jnp.array([1.0, 2.0]), KEYS)
        calls = lapack_batches(f, scale, key)
        assert not [call for call in calls if "batched" in call]
    assert calls


# what is no factorisation
HARMLESS = {"norm", "vector_norm", "matmul", "LinAlgError"}


def factorisations(text):
    """Calls of linear algebra in a module's text, under whatever names they were imported."""
    tree, spaces = ast.parse(text), {"jax": "jax", "jnp": "jax.numpy"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            spaces |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            whole = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            spaces |= whole
            for name in whole.values():
                if re.fullmatch(r"jax\..*linalg\.\w+", name):
                    yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            name = f"{spaces.get(head, head)}.{rest}"
            if re.fullmatch(r"jax\.[\w.]*linalg\.\w+", name):
                yield name


def test_all_that_is_factorised_goes_through_one_module():
    """Else a `vmap` somewhere makes a batch of it."""
    found = [
        f"{path.name}: {name}"
        for path in pathlib.Path(dx.__file__).parent.rglob("*.py")
        if path.name != "_linalg.py"
        for name in factorisations(path.read_text())
        # iterations, as those of `jax.scipy.sparse.linalg`, call no LAPACK
        if name.split(".")[-1] not in HARMLESS and ".sparse." not in name
    ]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "jnp.linalg.svd(a)",
        "import jax.scipy.linalg as jsl\njsl.cho_factor(a)",
        "from jax.scipy.linalg import lu_factor\nlu_factor(a)",
        "from jax.numpy import linalg\nlinalg.eigh(a)",
        "from jax.lax import linalg as ll\nll.qr(a)",
    ],
)
def test_a_factorisation_is_found_under_any_name(text):
    assert list(factorisations(text))
    assert not list(factorisations("from determinax import _linalg\n_linalg.svd(a)"))
