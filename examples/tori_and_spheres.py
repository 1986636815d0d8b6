"""Five flows on S^2 fitted to the four-mode target of Rezende et al. (2020), their Table 1.

Run with `python examples/tori_and_spheres.py` (about ten minutes on two cores); `--models` picks
some, `--steps` shortens. The table and the picture go to docs/results/.

The target is p(x) ~ sum_k exp(10 <x, mu_k>); its normaliser is known, so the divergence is exact up
to the noise of 20,000 evaluation samples. Settings as published: Adam, batches of 256, 20,000 steps;
the learning rate is ours (published: 2e-4, constant), since the exponential maps need more.

References: Rezende et al. (2020), arXiv:2002.02428, section 4.1.
"""

import argparse
import json
import math
import pathlib
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

from determinax import flows, plots
from determinax.training import divergence, fit_density

MODES = jnp.array(
    [
        [0.0541, 0.7629, -0.6442],
        [0.2919, 0.4546, 0.8415],
        [0.2341, -0.7914, -0.5646],
        [-0.4999, -0.5788, 0.6442],
    ]
)
# of the sum of exponentials, relative to the uniform measure: 4 sinh(10)/10 for unit modes
LOG_NORMALISER = math.log(4 * math.sinh(10) / 10)

# model: recipe, and (KL, effective sample size in per cent) as published and as reproduced
MODELS = {
    "Moebius-spline, 1 flow, 12 centres, 32 bins": (
        lambda key: flows.cylinder(
            3,
            key=key,
            num_flows=1,
            num_centres=12,
            num_bins=32,
            conditioning="autoregressive",
            rotations=False,
        ),
        ((0.05, 90), (0.03, 96)),
    ),
    "exponential map, polynomial, 1": (
        lambda key: flows.exponential_polynomial(3, key=key),
        ((0.50, 43), (0.59, 42)),
    ),
    "exponential map, sum of radials, 1 x 12": (
        lambda key: flows.exponential_radial(3, key=key, num_flows=1, num_centres=12),
        ((0.82, 42), (0.81, 48)),
    ),
    "exponential map, sum of radials, 6 x 5": (
        lambda key: flows.exponential_radial(3, key=key, num_flows=6, num_centres=5),
        ((0.19, 75), (0.19, 82)),
    ),
    "exponential map, sum of radials, 24 x 1": (
        lambda key: flows.exponential_radial(3, key=key, num_flows=24, num_centres=1),
        ((0.10, 85), (0.16, 84)),
    ),
}


def log_target(x: jax.Array) -> jax.Array:
    """The unnormalised log-density at one point."""
    return jax.nn.logsumexp(10 * MODES @ x)


def run(
    name: str, steps: int, seed: int, learning_rate: float, schedule: str
) -> tuple[dict, object]:
    """Fit one model; its row of the table, and the fit."""
    make, (published, reproduced) = MODELS[name]
    key = jax.random.key(seed)
    rate = (
        optax.cosine_decay_schedule(learning_rate, steps) if schedule == "cosine" else learning_rate
    )
    started = time.perf_counter()
    fit = fit_density(
        log_target,
        make(jax.random.fold_in(key, 0)),
        key=jax.random.fold_in(key, 1),
        steps=steps,
        batch_size=256,
        learning_rate=rate,
    )
    d = divergence(fit.proposal, log_target, key=jax.random.fold_in(key, 2))
    # by the known normaliser: E_q[log q - log p]
    kl = d.kl - d.log_normaliser + LOG_NORMALISER
    row = {
        "model": name,
        "kl": kl,
        "ess": 100 * d.effective_sample_size,
        "log_normaliser_error": d.log_normaliser - LOG_NORMALISER,
        "published": published,
        "reproduced": reproduced,
        "steps": steps,
        "seed": seed,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "seconds": time.perf_counter() - started,
        "num_skipped": fit.num_skipped,
    }
    return row, fit


def table(rows: list[dict]) -> str:
    """The rows in Markdown."""
    lines = [
        "| model | KL, ESS here | published | other reproductions | learning rate | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        pair = "{:.2f}, {:.0f} %"
        lines.append(
            f"| {r['model']} | **{r['kl']:.3f}, {r['ess']:.1f} %** "
            f"| {pair.format(*r['published'])} | {pair.format(*r['reproduced'])} "
            f"| {r['learning_rate']:g}, {r['schedule']} "
            f"| {r['seconds']:.0f} |"
        )
    return "\n".join(lines)


@plots.style()
def picture(fits: dict, path: pathlib.Path) -> None:
    """The target and the best fit, side by side."""
    figure = plt.figure(figsize=(9, 4.6))
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1.3))
    name, fit = next(iter(fits.items()))
    every, options = [], {"n": 3, "view": (-30.0, 80.0), "vmin": 0, "colorbar": False}
    for row, projection in enumerate(("mollweide", "orthographic")):
        for column, source in enumerate((log_target, fit.proposal)):
            kind = projection if projection == "mollweide" else None
            axes = figure.add_subplot(grid[row, column], projection=kind)
            plots.density(source, projection=projection, axes=axes, **options)
            every.append(axes)
            # the target's colours for all
            options["vmax"] = float(every[0].collections[0].get_clim()[1])
    every[0].set_title("target")
    every[1].set_title(name.split(",")[0])
    drawn = every[0].collections[0]
    figure.colorbar(drawn, ax=every, label="density / uniform", extend="max", shrink=0.7)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--schedule", choices=("constant", "cosine"), default="cosine")
    parser.add_argument("--models", type=int, nargs="*", default=range(len(MODELS)))
    parser.add_argument("--out", type=pathlib.Path, default="docs/results")
    arguments = parser.parse_args()
    rows, fits = [], {}
    for index in arguments.models:
        name = list(MODELS)[index]
        row, fit = run(
            name, arguments.steps, arguments.seed, arguments.learning_rate, arguments.schedule
        )
        print(
            f"{name}: KL {row['kl']:.3f}, ESS {row['ess']:.1f} %, {row['seconds']:.0f} s",
            flush=True,
        )
        rows.append(row)
        fits[name] = fit
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "tori_and_spheres.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    picture(fits, arguments.out / "tori_and_spheres.png")
    print(table(rows))


if __name__ == "__main__":
    main()
