"""Fifty calls of everything in one process, eager, under `jit` and under `vmap`.

`test_fifty_calls.py` runs it on two cores with a time limit: a hang shows as the last line printed.

    python tests/fifty_calls.py 50 Lanczos exact     # all names without any
    python tests/fifty_calls.py 50 Lanczos eager     # in one way of eager, jit, vmap
"""

import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.sparse

import determinax as dx
from determinax import flows
from determinax.methods import METHODS

jax.config.update("jax_enable_x64", True)
RNG = np.random.default_rng(0)


def near_isometry(n):
    return jnp.asarray(np.linalg.qr(RNG.normal(size=(n, n)))[0] + 0.2 * RNG.normal(size=(n, n)) / n)


def grid(side):
    """The Laplacian of a square grid + I/10, tagged as what it is."""
    line = scipy.sparse.diags_array([-1.0, 2, -1], offsets=[-1, 0, 1], shape=(side, side))
    both = scipy.sparse.kronsum(line, line) + 0.1 * scipy.sparse.eye_array(side**2)
    operator = dx.as_operator(scipy.sparse.csr_array(both))
    return lx.TaggedLinearOperator(operator, lx.positive_semidefinite_tag)


SMALL, LARGE, GRID = near_isometry(10), near_isometry(40), grid(30)
DEFINITE = lx.MatrixLinearOperator(LARGE @ LARGE.T, lx.positive_semidefinite_tag)
POINTS = jnp.asarray(RNG.normal(size=(16, 10)))
CONVOLUTION = dx.operators.convolution(0.1 * jnp.ones((3, 3)).at[1, 1].set(10.0), (4, 4))


ESTIMATED = set()


def estimate(operator, method) -> Callable:
    ESTIMATED.add(type(method))

    def call(key):
        e = dx.log_abs_det(operator, method, key=key)
        return e.log_abs_det + (0 if e.lower_bound is None else e.lower_bound)

    return call


def dense(n) -> dx.Proposal:
    return dx.Proposal(flows.ProjectiveLinear(flows.Dense(jnp.eye(n))))


def track(key):
    tracker = dx.Tracker(dense(40))
    for i in range(2):
        tracker, e = tracker.step(LARGE, jax.random.fold_in(key, i))
    return e.log_abs_det


def scaled(t):
    return t * LARGE


def gradient(key):
    method = dx.Variational(dense(40), 80, "frames")
    return dx.log_abs_det_gradient(scaled, jnp.ones(()), method, key=key).value


def network(x):
    return x + 0.1 * jnp.tanh(SMALL @ x)


def jacobian(q=None):
    def call(key):
        e = dx.jacobian_log_abs_det(network, POINTS, q, key=key, num_samples=4)
        return e.log_abs_det

    return call


def differentiated(operator_of, method):
    def call(key):
        return jax.grad(lambda t: dx.log_abs_det(operator_of(t), method, key=key).log_abs_det)(1.5)

    return call


def losses(fit, *args, **settings):
    """Those of a few steps."""

    def call(key):
        return fit(*args, key=key, steps=3, batch_size=16, progress=False, **settings).history[
            "loss"
        ]

    return call


def log_density(s):
    return 2 * s[0]


def draw(key, num):
    return jax.random.normal(key, (num, 10))


def surrogate(key):
    found = dx.jacobian_surrogate(BLOCKS, POINTS, BY_BLOCK, key=key, num_samples=2)
    return found.log_abs_det


def same(z):
    return z


def free_form(key):
    options = {"key": key, "reconstruction": 1.0}
    return dx.free_form_loss(network, same, POINTS, CONDITIONAL, **options)[0]


def likelihood(key):
    e = dx.log_likelihood(network, same, POINTS[:4], CONDITIONAL, key=key, num_samples=8)
    return e.log_likelihood


def density(key):
    """Of the quick candidates alone."""
    return dx.density(
        UNIT[:, :3] / jnp.linalg.norm(UNIT[:, :3], axis=1, keepdims=True),
        key=key,
        seconds=0,
        progress=False,
    ).log_density(jnp.eye(3))


KEY = jax.random.key(0)
TALL = jnp.asarray(RNG.normal(size=(50, 10)))
UNIT = POINTS / jnp.linalg.norm(POINTS, axis=1, keepdims=True)
CALLABLE = dx.as_operator(lambda x: SMALL @ x, jnp.zeros(10))
CYLINDER = dx.Proposal(flows.cylinder(10, key=KEY, num_flows=1, hidden=(8,), num_bins=4))
EXPONENTIAL = dx.Proposal(flows.exponential_polynomial(10, key=KEY, num_flows=2))
BLOCKS = [network, network]
BY_BLOCK = dx.block_proposals(BLOCKS, draw, key=KEY, family="low rank", hidden=(8,))
CONDITIONAL = dx.Proposal(flows.conditional_linear(10, key=KEY, hidden=(8,)))
CALLS = {
    "Monte Carlo": estimate(SMALL, dx.MonteCarlo(100)),
    "frames, n = 10": estimate(SMALL, dx.MonteCarlo(100, "frames")),
    "frames, n = 40": estimate(LARGE, dx.MonteCarlo(400, "frames")),
    "one frame": estimate(GRID, dx.MonteCarlo(10, "frames")),
    "variational, linear": estimate(LARGE, dx.Variational(dense(40), 80, "frames")),
    "variational, exponential": estimate(CALLABLE, dx.Variational(EXPONENTIAL, 20)),
    "variational, cylinder": estimate(CALLABLE, dx.Variational(CYLINDER, 20)),
    "Lanczos": estimate(LARGE, dx.Lanczos(16, 30)),
    "Lanczos, definite": estimate(GRID, dx.Lanczos(5, 100)),
    "Lanczos, definite and dense": estimate(DEFINITE, dx.Lanczos(16, 40)),
    "deflated": estimate(LARGE, dx.Deflated(20, dx.MonteCarlo(20))),
    "deflated, smallest": estimate(LARGE, dx.Deflated(4, dx.Lanczos(4, 10), which="smallest")),
    "exact": estimate(LARGE, dx.Exact()),
    "exact, tall": lambda key: dx.log_volume(TALL, dx.Exact()).log_abs_det,
    "exact's gradient": differentiated(scaled, dx.Exact()),
    "Auto": estimate(LARGE, dx.Auto(36)),
    "tracker": track,
    "gradient": gradient,
    "Jacobians": jacobian(),
    "Jacobians, conditional": jacobian(CONDITIONAL),
}
# these compile anew in every call that is not traced
TRACED = {
    "variational, a flow's inverse": estimate(SMALL, dx.Variational(EXPONENTIAL, 20)),
    "Lanczos' gradient": differentiated(scaled, dx.Lanczos(16, 20)),
    "surrogates of blocks": surrogate,
    "free form": free_form,
}
# these look at values, so they are called as they are only
HOST = {
    "exact, sparse": estimate(GRID, dx.Exact()),
    "Auto, sparse": estimate(GRID, dx.Auto()),
    "probed": estimate(CONVOLUTION, dx.Probed()),
    "Auto, probing": estimate(CONVOLUTION, dx.Auto(20)),
    "fit_linear": lambda key: dx.fit_linear(SMALL, key=key).proposal.flow.factor.log_abs_det(),
    "fit_linear, blocks": lambda key: dx.fit_linear(
        LARGE, key=key, block_size=10, max_matvecs=200
    ).proposal.flow.factor.log_abs_det(),
    "fit_linear, a diagonal": lambda key: dx.fit_linear(
        SMALL, key=key, structure=flows.Diagonal(10), max_matvecs=40
    ).proposal.flow.factor.log_abs_det(),
    "fit": losses(dx.fit, SMALL, EXPONENTIAL.flow),
    "fit, total gradients": losses(dx.fit, SMALL, CYLINDER.flow, gradient="total"),
    "fit_density": losses(dx.fit_density, log_density, EXPONENTIAL.flow),
    "fit_samples": losses(dx.fit_samples, UNIT, EXPONENTIAL.flow),
    "likelihood": likelihood,
    "density": density,
    "fit_jacobian": losses(dx.fit_jacobian, network, draw, CONDITIONAL.flow),
}
assert set(METHODS.values()) == ESTIMATED


def ways(name: str):
    """How a call is made, and with which keys."""
    call = (CALLS | TRACED | HOST)[name]
    eager = {"eager": (call, lambda i: jax.random.fold_in(KEY, i))}
    traced = {
        "jit": (jax.jit(call), lambda i: jax.random.fold_in(KEY, i)),
        "vmap": (
            jax.jit(jax.vmap(call)),
            lambda i: jax.random.split(jax.random.fold_in(KEY, i), 2),
        ),
    }
    return (eager if name not in TRACED else {}) | (traced if name not in HOST else {})


def main(num: int, names: list[str], only: str | None = None) -> None:
    for name in names or [*CALLS, *TRACED, *HOST]:
        for way, (call, key) in ways(name).items():
            if only not in (None, way):
                continue
            print(f"{name}, {way}", end=" ", flush=True)
            began = time.perf_counter()
            for i in range(num):
                value = jax.block_until_ready(call(key(i)))
            assert np.isfinite(value).all(), name
            print(f"{time.perf_counter() - began:.1f} s", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    chosen = [argument for argument in sys.argv[2:] if argument not in ("eager", "jit", "vmap")]
    main(int(sys.argv[1]), chosen, *set(sys.argv[2:]) - set(chosen))
