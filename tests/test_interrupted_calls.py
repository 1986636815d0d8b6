"""Every long call from Python heeds an interrupt that comes while XLA compiles for it."""

import concurrent.futures
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_interrupts import interrupt, interrupt_the_garbage_collector, swallowed

import determinax as dx
from determinax import densities, flows, sphere

KEY = jax.random.key(0)

# XLA's compiler, with an interrupt within; a name and a file as JAX has them
WITHIN = """
def backend_compile_and_load(*args, **options):
    if not presses:
        presses.append("pressed")
        interrupt()
        presses.append("went on")
    return real(*args, **options)
"""


@pytest.fixture
def interrupted_compiler(monkeypatch):
    """What became of an interrupt that came while XLA compiled the first program."""
    from jax._src import compiler

    presses = []
    names = {"presses": presses, "interrupt": interrupt, "real": compiler.backend_compile_and_load}
    exec(compile(WITHIN, "jax", "exec"), names)
    monkeypatch.setattr(compiler, "backend_compile_and_load", names["backend_compile_and_load"])
    return presses


def square(x):
    """A function that no other test has compiled."""
    return x * x + x[::-1]


# made here, so that the calls compile nothing before they are made
POINTS = np.asarray(sphere.uniform(KEY, 3, 43).T)
X, TRACKER = np.ones(9), dx.Tracker(dx.Proposal(flows.projective_linear(9)))
LONG_CALLS = {
    "block_proposals": lambda: dx.block_proposals(
        [square], lambda key, num: jax.random.normal(key, (num, 9)), key=KEY
    ),
    "goodness_of_fit": lambda: dx.goodness_of_fit(
        dx.Uniform(3), POINTS, key=KEY, num_simulations=17
    ),
    "jacobian_log_abs_det": lambda: dx.jacobian_log_abs_det(square, X, key=KEY, num_samples=3),
    "judge": lambda: dx.judge(dx.Uniform(3), POINTS[:13], POINTS[13:], key=KEY),
    "log_abs_det_gradient": lambda: dx.log_abs_det_gradient(
        lambda t: t * jnp.eye(9), 2.0, dx.MonteCarlo(31), key=KEY
    ),
    "log_likelihood": lambda: dx.log_likelihood(square, None, X, TRACKER.proposal, key=KEY),
    "marginals": lambda: densities.questions.marginals(
        dx.Uniform(3), key=KEY, num_samples=119, num_bins=3
    ),
    "region": lambda: dx.region(dx.Uniform(3), key=KEY, num_samples=117),
    "Tracker.step": lambda: TRACKER.step(np.eye(9), KEY, 6),
    "uniformity": lambda: dx.uniformity(POINTS, key=KEY, num_simulations=17),
}


@pytest.mark.parametrize("name", LONG_CALLS)
def test_every_call_lets_xla_finish_what_it_compiles(name, interrupted_compiler):
    jax.clear_caches()
    with pytest.raises(KeyboardInterrupt):
        LONG_CALLS[name]()
    assert interrupted_compiler == ["pressed", "went on"]


def test_an_error_does_not_lose_the_interrupt(interrupted_compiler):
    jax.clear_caches()
    with pytest.raises(KeyboardInterrupt):
        dx.log_abs_det(lambda x: x + 1, dx.MonteCarlo(10), key=KEY, example=X)
    assert interrupted_compiler == ["pressed", "went on"]


class Inline(concurrent.futures.Executor):
    """Interrupts where JAX swallows it, and says that all is done."""

    def submit(self, fn, /, *args, **kwargs):
        interrupt_the_garbage_collector()
        future = concurrent.futures.Future()
        future.set_result((None, "nothing", 0.0))
        return future


@swallowed
def test_a_sweep_ends_with_the_interrupt():
    with pytest.raises(KeyboardInterrupt):
        dx.sweep([jnp.eye(4)], dx.MonteCarlo(10), key=KEY, executor=Inline())


INTERRUPTED = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp
import determinax as dx
from determinax import _interrupts

def press():
    seen = 0
    while seen < 20:  # so long that it is no small one
        frame = sys._current_frames()[threading.main_thread().ident]
        seen = seen + 1 if _interrupts._is_compiling(frame) else 0
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

def slow(x):
    for _ in range(200):
        x = jnp.sin(x) @ jnp.cos(x) + jnp.linalg.qr(x)[0]
    return x

x, key = jnp.eye(5), jax.random.key(0)
q = dx.Proposal(dx.flows.projective_linear(5))
threading.Thread(target=press, daemon=True).start()
CALL
"""
CALLS = [
    "dx.Tracker(q).step(lambda v: slow(x) @ v, key, example=x[0])",
    pytest.param(
        "dx.log_likelihood(lambda v: slow(x * v) @ v, None, x, q, key=key)", marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize("call", CALLS)
def test_the_interpreter_ends_well_after_an_interrupt(call):
    command = [sys.executable, "-c", INTERRUPTED.replace("CALL", call)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.stderr.strip().endswith("KeyboardInterrupt")
    assert ended.returncode == -signal.SIGINT
