"""The paper's experiments: a preset and a matrix -> rows of figures, one JSON object each.

Nothing here draws or prints; tables and figures are made from the rows alone.
"""

import dataclasses
import json
import math
import os
import pathlib
import platform
import time
from collections.abc import Iterator
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from determinax import flows, sphere, storage
from determinax._states import sums_of, tail_and_batch
from determinax.api import log_abs_det
from determinax.methods import Variational, estimate_from, log_weights
from determinax.operators import Products, traits
from determinax.paper.matrices import matrix_named
from determinax.proposals import Proposal
from determinax.training import Fit, fit, fit_linear
from determinax.training.gradients import GradientKind as Gradient

Preset = Literal["paper", "best", "quick"]

NUM_SAMPLES = (100, 316, 1_000, 3_162, 10_000, 31_623, 100_000)
NUM_KEYS = 10


@dataclasses.dataclass(frozen=True)
class Config:
    """One training run: what is fitted to which matrix, how, and with which seed.

    `flow` is the paper's kind (splines and circle maps on a cylinder), whose settings are from
    `num_flows` to `circle_hidden`, or a projective linear map, which has none. `learning_rate` None
    stands for the schedule that `determinax.fit` has by default.
    """

    preset: str
    matrix: str
    steps: int
    flow: Literal["cylinder", "projective"] = "cylinder"
    gradient: Gradient = "path"
    batch_size: int = 1024
    learning_rate: float | None = None
    weight_decay: float | None = None
    num_flows: int = 8
    circle: Literal["moebius", "spline"] = "moebius"
    num_centres: int = 12
    num_bins: int = 16
    conditioning: Literal["coupling", "autoregressive"] = "coupling"
    rotations: bool = True
    hidden: tuple[int, ...] = (64, 64)
    circle_hidden: tuple[int, ...] | None = None
    dtype: str = "float32"
    seed: int = 0

    @property
    def name(self) -> str:
        """What its files are called."""
        return f"{self.preset}-{self.matrix}"

    def settings(self) -> dict[str, Any]:
        """What the run depends on, as JSON has it."""
        of_cylinder = _CYLINDER if self.flow == "projective" else ()
        used = {k: v for k, v in dataclasses.asdict(self).items() if k not in of_cylinder}
        return json.loads(json.dumps(used))

    def made(self, rows: list[dict[str, Any]]) -> bool:
        """Whether these rows are of this run."""
        # those of before there was a choice of flows do not name it
        return {"flow": "cylinder"} | rows[0]["config"] == self.settings()


_CYLINDER = (
    "num_flows",
    "circle",
    "num_centres",
    "num_bins",
    "conditioning",
    "rotations",
    "hidden",
    "circle_hidden",
)
# the authors': from their public code. Two details differ, which make no difference (docs/variational.md):
# the circle sees all heights where theirs sees half of them, and centres are w/sqrt(1 + |w|^2) where theirs
# are w/(1 + |w|)
_PAPER: dict[str, Any] = {
    "steps": 10_000,
    "gradient": "total",
    "learning_rate": 1e-3,
    "weight_decay": 1e-2,
    "rotations": False,
    "hidden": (128,),
    "circle_hidden": (64,),
}
# what differs from matrix to matrix: A1..A5 follow path gradients, which leave less divergence than total
# ones; so might W, in twice the hour and a half that its 40,000 iterations take. n = 3 has no coupling
_PAPER_FOR: dict[str, dict[str, Any]] = {
    **{name: {"gradient": "path"} for name in ("A1", "A2", "A3", "A4", "A5")},
    "W": {"steps": 40_000},
    "cover": {
        "conditioning": "autoregressive",
        "circle": "spline",
        "num_flows": 6,
        "num_bins": 32,
    },
}
# the same objective; a map that holds the best density, so that path gradients lose all their noise
_BEST: dict[str, Any] = {
    "flow": "projective",
    "gradient": "path",
    "batch_size": 256,
    "dtype": "float64",
}


def configure(preset: Preset, matrix: str, seed: int = 0) -> Config:
    """The settings of a preset for one of the paper's matrices.

    `paper` has the authors' flow and settings, `best` is ours, `quick` is a third of the steps of `best`.
    """
    if preset == "paper":
        return Config("paper", matrix, seed=seed, **(_PAPER | _PAPER_FOR.get(matrix, {})))
    if preset == "best":
        return Config("best", matrix, 3_000, seed=seed, **_BEST)
    if preset == "quick":
        return Config("quick", matrix, 1_000, seed=seed, **_BEST)
    raise ValueError(f"preset is paper, best or quick, not {preset!r}")


def train(config: Config, **options: Any) -> Fit:
    """The training run; `options` go to `determinax.fit` (checkpoint, resume, progress)."""
    matrix = matrix_named(config.matrix).matrix.astype(config.dtype)
    flow_key, key = jax.random.split(jax.random.key(config.seed))
    return fit(
        matrix,
        _flow_of(config, len(matrix), flow_key),
        key=key,
        steps=config.steps,
        batch_size=config.batch_size,
        gradient=config.gradient,
        **_optimiser_of(config),
        **options,
    )


def _flow_of(config: Config, n: int, key: PRNGKeyArray) -> flows.AbstractSphereMap:
    if config.flow == "projective":
        return flows.projective_linear(n, dtype=config.dtype)
    return flows.cylinder(
        n,
        key=key,
        num_flows=config.num_flows,
        circle=config.circle,
        num_centres=config.num_centres,
        num_bins=config.num_bins,
        conditioning=config.conditioning,
        rotations=config.rotations,
        hidden=config.hidden,
        circle_hidden=config.circle_hidden,
        dtype=config.dtype,
    )


def _optimiser_of(config: Config) -> dict[str, Any]:
    rate = config.learning_rate
    if config.weight_decay is None or rate is None:
        return {"learning_rate": rate}
    return {"optimiser": optax.adamw(rate, weight_decay=config.weight_decay)}


def run(config: Config, **options: Any) -> tuple[list[dict[str, Any]], Proposal]:
    """Train, then estimate with the frozen proposal and fresh keys, beside plain Monte Carlo.

    Its rows are of three kinds: `training` (one), `curve` (the loss along training), and `estimate`
    (a method, a number of samples, a key). Everything that they depend on is in the first.
    """
    item = matrix_named(config.matrix)
    result = train(config, **options)
    truth = item.log_abs_det
    # steps that were undone have no loss
    loss = np.where(result.history["finite"], result.history["loss"].astype(float), np.nan)
    products_per_step = result.num_matvecs / len(loss)
    about = {"matrix": config.matrix, "preset": config.preset}
    rows: list[dict[str, Any]] = [
        {
            "kind": "training",
            **about,
            "config": config.settings(),
            "truth": truth,
            "kl_gap": float(np.nanmean(loss[-max(1, len(loss) // 20) :]) - truth),
            "products": result.num_matvecs,
            "seconds": round(result.seconds, 1),
            "steps_undone": result.num_skipped,
            "versions": versions(),
            "machine": machine(),
        }
    ]
    for stop in range(100, len(loss) + 1, 100):
        # averaged over the steps before, or noise of a batch would count as progress
        gap = float(np.nanmean(loss[max(0, stop - 200) : stop]) - truth)
        products = round(stop * products_per_step)
        rows.append({"kind": "curve", **about, "step": stop, "products": products, "kl_gap": gap})
    operator = lx.MatrixLinearOperator(jnp.asarray(item.matrix))
    for method, proposal in (("vde", result.proposal), ("mc", None)):
        for i in range(NUM_KEYS):
            # fresh keys: none of them was seen in training
            key = jax.random.fold_in(jax.random.key(config.seed + 1), i)
            for row in evaluate(operator, proposal, key):
                error = abs(math.expm1(row["log_abs_det"] - truth))
                rows.append(
                    {"kind": "estimate", **about, "method": method, "key": i, "error": error, **row}
                )
    return rows, result.proposal


def run_projective(matrix: str, seed: int = 0) -> list[dict[str, Any]]:
    """The projective linear proposal, fitted by secant updates, then one sample of it: a row a key."""
    item = matrix_named(matrix)
    rows = []
    for i in range(NUM_KEYS):
        fit_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), i))
        began = time.perf_counter()
        found = fit_linear(item.matrix, key=fit_key, progress=False)
        method = Variational(found.proposal, num_samples=1)
        estimate = log_abs_det(item.matrix, method, key=key, progress=False)
        rows.append(
            {
                "kind": "projective",
                "matrix": matrix,
                "key": i,
                "error": abs(math.expm1(float(estimate.log_abs_det) - item.log_abs_det)),
                "products": found.num_matvecs + estimate.num_matvecs,
                "seconds": time.perf_counter() - began,
                "versions": versions(),
            }
        )
    return rows


def evaluate(
    operator: lx.AbstractLinearOperator, proposal: Proposal | None, key: PRNGKeyArray
) -> Iterator[dict[str, Any]]:
    """Estimates from the first 100, 316, ... of one stream of samples, as a table's row each."""
    log_w = _stream(operator, proposal, key)
    for num in NUM_SAMPLES:
        num_tail, batch = tail_and_batch(num)
        estimate = estimate_from(
            sums_of(log_w[:num, None], num_tail, batch),
            traits(operator),
            group_size=1,
            num_tail=num_tail,
            # of uniform directions, or of those of a linear map
            is_linear=proposal is None or proposal.flow.is_linear,
            name="stream",
            cost=Products(num),
        )
        names = ("log_abs_det", "standard_error", "effective_sample_size", "pareto_k", "status")
        figures = estimate.to_dict()
        yield {"num_samples": num} | {name: figures[name] for name in names}


@eqx.filter_jit
def _stream(operator, proposal: Proposal | None, key: PRNGKeyArray) -> Float[Array, " num"]:
    n, dtype, chunk = operator.in_size(), operator.in_structure().dtype, 1000
    num_chunks = math.ceil(NUM_SAMPLES[-1] / chunk)

    def one(key):
        points, log_q = sphere.uniform(key, n, chunk, dtype), jnp.zeros(chunk, dtype)
        if proposal is not None:
            points, log_q = (x.astype(dtype) for x in proposal.push(points))
        return log_weights(operator, points, log_q)

    return jax.lax.map(one, jax.random.split(key, num_chunks)).ravel()


def versions() -> dict[str, str]:
    """What the figures were computed with."""
    from determinax import __version__

    return {
        "determinax": __version__,
        "jax": jax.__version__,
        "optax": optax.__version__,
        "python": platform.python_version(),
    }


def machine() -> str:
    """What the seconds were measured on."""
    return f"{os.cpu_count()} cores, {_processor()}, JAX on {jax.default_backend()}"


def _processor() -> str:
    about = pathlib.Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_rows(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    """One JSON object a line, all or nothing."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    storage.write_atomically(path, text.encode())


def read_rows(paths: list[pathlib.Path]) -> list[dict[str, Any]]:
    """The rows of several files, one after the other."""
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]
