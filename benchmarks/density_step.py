"""The density direction of the flow on S^2: seconds of a value, of a gradient, and of compiling it.

    python benchmarks/density_step.py

Six layers, 32 bins or 12 centres, batches of 512, float32. Processor seconds for compiling, the best of
several wall-clock times for running.
"""

import argparse
import time

import equinox as eqx
import jax
import jax.numpy as jnp

from determinax import flows, sphere
from determinax.proposals import Proposal

BATCH = 512


def programs(circle: str, n: int):
    flow = flows.cylinder(
        n,
        key=jax.random.key(0),
        num_flows=6,
        circle=circle,  # pyright: ignore[reportArgumentType]
        num_bins=32,
        conditioning="autoregressive" if n == 3 else "coupling",
        dtype=jnp.float32,
    )
    params, rest = eqx.partition(flow, flows.trainable(flow))

    def loss(params, points):
        return -jnp.mean(Proposal(eqx.combine(params, rest)).log_density_columns(points))

    moved = jax.tree.map(lambda a: a + 0.1, params)
    args = moved, sphere.uniform(jax.random.key(1), n, BATCH, jnp.float32)
    return {"value": loss, "gradient": jax.grad(loss)}, args


def compiled(function, args):
    start = time.process_time()
    program = jax.jit(function).lower(*args).compile()
    return program, time.process_time() - start


def milliseconds(program, args, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready([program(*args) for _ in range(5)])
        best = min(best, (time.perf_counter() - start) / 5)
    return 1e3 * best


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of densities of flows.")
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    for circle, n in (("spline", 3), ("moebius", 3), ("spline", 8)):
        functions, args = programs(circle, n)
        for name, function in functions.items():
            program, seconds = compiled(function, args)
            print(
                f"{circle:8s} n = {n} {name:9s} {milliseconds(program, args, rounds):7.2f} ms   "
                f"compiled in {seconds:5.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
