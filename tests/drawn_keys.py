"""The keys that runs draw with and split, a line of JSON a run, where nothing was compiled before."""

import functools
import json
import sys

import jax
import numpy as np
from methods import CASES, A, N

import determinax as dx

jax.config.update("jax_enable_x64", True)

DRAWN, SPLIT = [], []
# without `bits`: the sphere's are asked what is always true, and are no part of what it draws
DRAWS = ("normal", "uniform", "randint", "permutation", "choice", "rademacher", "beta")


def noting(real, where):
    def take(data):
        where.extend(np.asarray(data).reshape(-1, 2).tolist())

    @functools.wraps(real)
    def noted(key, *args, **kwargs):
        jax.debug.callback(take, jax.random.key_data(key))  # inside of `vmap` once for each
        return real(key, *args, **kwargs)

    return noted


for name in DRAWS:
    setattr(jax.random, name, noting(getattr(jax.random, name), DRAWN))
jax.random.split = noting(jax.random.split, SPLIT)

KEY = jax.random.key(3)


def fit():
    dx.fit(A, dx.flows.projective_linear(N), key=KEY, steps=3, batch_size=8, progress=False)


def fit_linear():
    dx.fit_linear(A, key=KEY, progress=False)


def estimate(name):
    case = CASES[name]
    dx.log_abs_det(A, case.make(), key=KEY if case.needs_key else None, check_linear=False)


for name in sys.argv[1:]:
    DRAWN.clear()
    SPLIT.clear()
    {"fit": fit, "fit_linear": fit_linear}.get(name, functools.partial(estimate, name))()
    jax.effects_barrier()
    own = np.asarray(jax.random.key_data(KEY)).tolist()
    print(json.dumps({"run": name, "own": own, "drawn": DRAWN, "split": SPLIT}), flush=True)
