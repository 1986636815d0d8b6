"""What the maps of a flow cost beside its networks.

A training step of the paper's flow (n = 10, batch 1024, 8 layers of coupling, 12 centres, 16 bins)
is timed against the same step with every spline and circle map replaced by a plain sum of its
parameters, which leaves the conditioner networks, the change of coordinates and the optimiser. Then
compile times, in seconds of processor time, at 8 and at 32 layers.

    python benchmarks/flow_step.py [--paper-networks]

Timings alternate between the two in one process, and the median of their ratios is printed: other
load on the machine then falls on both alike.
"""

import argparse
import statistics
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from determinax import flows, sphere

N, BATCH = 10, 1024


class SumInterval(flows.AbstractIntervalMap):
    """No map at all, but every parameter is used."""

    size: int = eqx.field(static=True)

    @property
    def num_parameters(self) -> int:
        """As many as the map it stands for."""
        return self.size

    def forward(self, h, params):
        """A sum in place of a spline."""
        total = jnp.sum(params, axis=0) * 1e-3
        return h + total, total, total

    def inverse(self, h, params):
        """The same."""
        return self.forward(h, params)


class SumCircle(flows.AbstractCircleMap):
    """No map at all, but every parameter is used."""

    size: int = eqx.field(static=True)

    @property
    def num_parameters(self) -> int:
        """As many as the map it stands for."""
        return self.size

    def forward(self, z, params):
        """A sum in place of a circle map."""
        total = jnp.sum(params, axis=0) * 1e-3
        return z + total, total

    def inverse(self, z, params):
        """The same."""
        return self.forward(z, params)


def without_maps(flow: flows.Chain) -> flows.Chain:
    """The same networks, with sums in place of the maps."""

    def is_map(x):
        return isinstance(x, flows.AbstractIntervalMap | flows.AbstractCircleMap)

    def replace(x):
        if isinstance(x, flows.AbstractIntervalMap):
            return SumInterval(x.num_parameters)
        return SumCircle(x.num_parameters) if is_map(x) else x

    return jax.tree.map(replace, flow, is_leaf=is_map)


def make_step(flow, matrix):
    """One step of Adam on E[n log|A f(s)| - log|det Df(s)|], and the forward pass alone."""
    params, rest = eqx.partition(flow, flows.trainable(flow))
    optimiser = optax.adam(1e-3)

    def loss(params, s):
        y, log_det = eqx.combine(params, rest).forward(s)
        return jnp.mean(N * jnp.log(jnp.linalg.norm(matrix @ y, axis=0)) - log_det)

    def step(params, state, key):
        s = sphere.uniform(key, N, BATCH, jnp.float32)
        value, gradient = jax.value_and_grad(loss)(params, s)
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    def forward(params, state, key):
        return params, state, loss(params, sphere.uniform(key, N, BATCH, jnp.float32))

    args = (params, optimiser.init(params), jax.random.key(1))
    return step, forward, args


def compiled(function, args):
    """The compiled function and the seconds it took."""
    start = time.process_time()
    program = jax.jit(function).lower(*args).compile()
    return program, time.process_time() - start


def seconds(program, args, repeats: int) -> float:
    start = time.perf_counter()
    params, state, key = args
    for _ in range(repeats):
        params, state, _ = program(params, state, key)
    jax.block_until_ready(params)
    return (time.perf_counter() - start) / repeats


def compare(name: str, with_maps, without, rounds: int, repeats: int) -> None:
    (f, f_args), (g, g_args) = with_maps, without
    for program, args in (with_maps, without):
        seconds(program, args, repeats)
    pairs = [(seconds(f, f_args, repeats), seconds(g, g_args, repeats)) for _ in range(rounds)]
    a, b = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(x / y for x, y in pairs)
    least = min(x for x, _ in pairs) / min(y for _, y in pairs)
    print(
        f"{name:14s} {a:8.2f} ms   networks only {b:8.2f} ms   ratio {ratio:.2f} (best {least:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of maps beside networks.")
    parser.add_argument("--paper-networks", action="store_true", help="(128,) and (64,) units")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--no-compile", action="store_true", help="skip the compile times")
    options = parser.parse_args()
    hidden, circle_hidden = ((128,), (64,)) if options.paper_networks else ((64, 64), (64, 64))
    matrix = jax.random.normal(jax.random.key(2), (N, N), jnp.float32)

    def flow(num_flows):
        return flows.cylinder(
            N,
            key=jax.random.key(0),
            num_flows=num_flows,
            hidden=hidden,
            circle_hidden=circle_hidden,
            dtype=jnp.float32,
        )

    print(f"n = {N}, batch {BATCH}, 8 flows, float32, networks {hidden} and {circle_hidden}")
    full = make_step(flow(8), matrix)
    bare = make_step(without_maps(flow(8)), matrix)
    for name, i in (("training step", 0), ("forward", 1)):
        f, _ = compiled(full[i], full[2])
        g, _ = compiled(bare[i], bare[2])
        compare(name, (f, full[2]), (g, bare[2]), options.rounds, options.repeats)
    if not options.no_compile:
        times = {}
        for num_flows in (8, 32, 8, 32):
            step, _, args = make_step(flow(num_flows), matrix)
            jax.clear_caches()
            times.setdefault(num_flows, []).append(compiled(step, args)[1])
        best = {k: min(v) for k, v in times.items()}
        print(f"compile time  8 flows {best[8]:.2f} s, 32 flows {best[32]:.2f} s")


if __name__ == "__main__":
    main()
