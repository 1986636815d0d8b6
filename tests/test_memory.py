"""What cannot fit is refused in one sentence before it is tried; what can takes what it says it does."""

import os
import subprocess
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator

import determinax as dx
from determinax import _checks, flows, sphere
from determinax._revealed import probing, reveal
from determinax.methods._sampling import MOST_ENTRIES
from determinax.methods.auto import _figures
from determinax.operators import COPIES, traits
from determinax.operators._traits import HostCalls
from determinax.training.broyden import tracking_update
from determinax.training.secant import secant_update

KEY = jax.random.key(0)


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A machine of 8 GiB whose control groups are files under a folder of ours."""
    monkeypatch.setattr(_checks, "_GROUPS", tmp_path)
    monkeypatch.setattr(_checks, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 2**21))
    _checks.physical_memory.cache_clear()
    yield tmp_path
    _checks.physical_memory.cache_clear()


def test_memory_is_the_machines_without_control_groups(groups):
    assert _checks.physical_memory() == 2**33


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1000\n"}, 1000),
        ("0::/\n", {"memory.max": "2000\n"}, 2000),
        ("0::/\n", {"memory.max": "99999999999999\n"}, 2**33),
        ("3:cpu:/\n4:cpuset,memory:/in\n", {"memory/in/memory.limit_in_bytes": "3000\n"}, 3000),
        # inside of a container the path is that of the host, and the limit is at the root
        ("4:memory:/docker/x\n", {"memory/memory.limit_in_bytes": "4000\n"}, 4000),
        ("4:cpu:/in\n", {"cpu/in/memory.max": "5\n", "in/memory.max": "5\n"}, 2**33),
    ],
)
def test_a_control_group_may_have_less(groups, own, limits, expected):
    (groups / "own").write_text(own)
    for name, text in limits.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    assert _checks.physical_memory() == expected


def test_a_system_that_does_not_tell_refuses_nothing(groups, monkeypatch):
    monkeypatch.delattr(os, "sysconf")  # as on Windows
    assert _checks.physical_memory() == sys.maxsize


def operator(n):
    """2x + x shifted, which holds no array of its own."""
    example = jax.ShapeDtypeStruct((n,), jnp.float64)
    return dx.as_operator(lambda x: 2 * x + jnp.roll(x, 1), example, check_linear=False)


def estimate(method):
    return lambda operator: dx.log_abs_det(operator, method, key=KEY)


def layer(channels, side):
    return dx.operators.convolution(np.ones((channels, channels, 3, 3)), (side, side))


REFUSED = {
    "Lanczos": (estimate(dx.Lanczos(1, 10**6)), "vectors of 10,000,000 numbers.*lower depth"),
    "full frames": (estimate(dx.MonteCarlo(10**7, "frames")), "take independent directions"),
    "one frame": (estimate(dx.MonteCarlo(10**5, "frames")), "100,000 directions in 10,000,000 dim"),
    "one chunk": (estimate(dx.MonteCarlo(10**7, chunk_size=10**5)), "lower chunk_size"),
    "deflated": (estimate(dx.Deflated(10**4)), "6 arrays of 10,000,000x10,000.*num_directions"),
    "deflated, smallest": (
        estimate(dx.Deflated(100, which="smallest")),
        "36 arrays of 10,000,000x100",
    ),
    "exact": (estimate(dx.Exact()), "dense 10000000x10000000 array"),
    "probed, a band": (
        estimate(dx.Probed(pattern=(5000, 5000))),
        "99,984,995,000 entries of a pattern and 10,001 products.*give a narrower pattern",
    ),
    "probed, a convolution": (
        lambda a: dx.log_abs_det(layer(64, 400), dx.Probed(), key=KEY),
        "entries of a pattern and 576 products",
    ),
    "a probed fit": (
        lambda a: dx.fit_linear(layer(64, 400), key=KEY, structure="probe"),
        "entries of a pattern and 576 products",
    ),
    "fit_linear": (lambda a: dx.fit_linear(a, key=KEY), "four arrays of 10,000,000x10,000,000"),
    "a family": (
        lambda a: dx.fit_linear(a, key=KEY, structure=flows.Diagonal(10**7)),
        "four arrays of 10,000,000x10,000,000",
    ),
    "triangular": (lambda a: flows.projective_linear(a.in_size()), "take Diagonal"),
    "gradient": (
        lambda a: dx.log_abs_det_gradient(
            lambda t: a, jnp.ones(()), dx.MonteCarlo(10**7, "frames"), key=KEY
        ),
        "take independent directions",
    ),
    "jacobians": (
        lambda a: dx.jacobian_log_abs_det(
            a.mv, jnp.ones((2, 10**7)), key=KEY, num_samples=10**4, directions="frames"
        ),
        "2 times 10,000 directions in 10,000,000 dimensions",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_fit_is_refused_in_a_sentence(name, monkeypatch):
    monkeypatch.setattr(_checks, "physical_memory", lambda: 2**34)
    run, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence) as error:
        run(operator(10**7))
    assert "GiB that this machine has" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_tracker_says_so_too(monkeypatch):
    tracker = dx.Tracker(dx.Proposal(flows.ProjectiveLinear(flows.Dense(jnp.eye(20)))))
    monkeypatch.setattr(_checks, "physical_memory", lambda: 20 * 20 * 8)
    with pytest.raises(ValueError, match="Tracker needs four arrays of 20x20"):
        tracker.step(jnp.eye(20), KEY)


def numbers(f, *args) -> float:
    """How many 64-bit numbers a compiled program has in memory, its arguments and results too."""
    m = jax.jit(f).lower(*args).compile().memory_analysis()
    sizes = m.temp_size_in_bytes, m.output_size_in_bytes, m.argument_size_in_bytes
    return sum(sizes) / 8


def tagged(n):
    return lx.TaggedLinearOperator(operator(n), lx.positive_semidefinite_tag)


def value(method, make=operator, n=3000):
    return lambda key: dx.log_abs_det(make(n), method, key=key).log_abs_det


def pilot(key):
    images = dx.operators.columns(operator(N), sphere.frame(key, N, 8))
    return _figures(images, N)


N = 3000
# a program of one random key, and the arrays of n numbers that its method says it takes
STATED = {
    "Lanczos": (value(dx.Lanczos(4, 20)), 3 * 4 * 2 * 20 + 3 * 4),
    "Lanczos, definite": (value(dx.Lanczos(4, 20), tagged), 3 * 4 * 20 + 3 * 4),
    "Lanczos, one probe": (value(dx.Lanczos(1, 60)), 3 * 2 * 60 + 3),
    "one frame": (value(dx.MonteCarlo(100, "frames")), 4 * 100),
    "independent": (value(dx.MonteCarlo(10_000)), 4 * 128),
    "frames": (value(dx.MonteCarlo(3 * N, "frames")), 4 * N),
    "deflated": (value(dx.Deflated(100, dx.MonteCarlo(10))), 6 * 100),
    "deflated, smallest": (value(dx.Deflated(20, dx.MonteCarlo(10), which="smallest")), 36 * 20),
    "pilot": (lambda key: pilot(key), 6 * 8),
}


@pytest.mark.parametrize("name", STATED)
def test_memory_is_within_what_is_stated(name):
    program, columns = STATED[name]
    used = numbers(program, KEY) / N
    assert used < columns
    assert used > columns / 10  # or it would be no statement


@pytest.mark.parametrize("k", [8, 250, 1000])
def test_memory_of_the_updates_is_within_what_is_stated(k):
    n = 1000
    square, frame = jnp.eye(n), jax.eval_shape(lambda key: sphere.frame(key, n, k), KEY)
    a = operator(n)
    for update in (
        lambda m, z: secant_update(a, a.transpose(), m, 0.0, z),
        lambda m, z: secant_update(a, None, m, 0.0, z),
        lambda m, z: tracking_update(a, m, 0.0, z),
    ):
        assert numbers(update, square, frame) < 4 * n * n + 10 * n * k


@pytest.mark.parametrize("make", [layer, lambda c, side: operator(c * side**2)])
def test_memory_of_probing_is_within_what_is_stated(make):
    """NumPy's and SciPy's, where the pattern and the entries are."""
    a = make(6, 24)
    band = None if make is layer else (25, 25)
    stated = probing(a, band).bytes
    reveal(a, band)  # compiled
    tracemalloc.start()
    found = reveal(a, band)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.matrix.nnz == probing(a, band).entries
    assert found.num_products == probing(a, band).num_products
    assert stated / 10 < peak < stated


SPARSE = """
import resource, sys
import jax, numpy as np, scipy.sparse
import determinax as dx

jax.config.update("jax_enable_x64", True)
n, rng = 60_000, np.random.default_rng(0)
places = np.repeat(np.arange(n), 3), rng.integers(0, n, 3 * n)
a = scipy.sparse.csr_array((rng.normal(size=3 * n), places), shape=(n, n))
a = (a + 5 * scipy.sparse.eye_array(n)).tocsr()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for method in (dx.Auto(max_matvecs=100), dx.MonteCarlo(10, "frames")):
    assert np.isfinite(dx.log_abs_det(a, method, key=jax.random.key(0)).log_abs_det)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""


@pytest.mark.slow
def test_a_large_sparse_matrix_takes_no_square_of_its_size():
    """n x n numbers would be 27 GiB."""
    run = subprocess.run(
        [sys.executable, "-c", SPARSE], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 2  # GiB, the compiler's included


def test_a_chunk_for_the_host_leaves_room_for_its_copies():
    """The host's arrays are copies, and twice as wide where JAX has 32 bits and SciPy 64."""
    n = 2**21
    identity = aslinearoperator(scipy.sparse.eye_array(n, format="csr"))
    host, method = traits(dx.as_operator(identity)), dx.MonteCarlo(10_000)
    here = host._replace(is_host=False, copies=COPIES)
    assert host.copies == COPIES + 3 * (2 if host.dtype == jnp.float32 else 1)
    size = method.plan(host).size
    assert size * host.copies * n <= MOST_ENTRIES * COPIES
    assert size < method.plan(here).size


def test_a_product_of_the_host_is_handed_on_without_one_more_copy():
    kept = np.ones((5, 3))
    calls = HostCalls(lambda x: kept, None, (5, 5), np.float64)
    assert np.shares_memory(calls(False, np.zeros((3, 5))), kept)
