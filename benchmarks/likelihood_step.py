"""Milliseconds of a training step of likelihoods, in turn in one process, and their ratios.

    python benchmarks/likelihood_step.py                      # digits: contractive, and free-form
    python benchmarks/likelihood_step.py --patches 4 8 16     # patches of n = 48, 192 and 768

A step is the library's own: loss, gradient, Adam and the running average. The ways of a group take turns,
two hundred steps each, so that a busy machine is as busy for all of them. Rows go to
docs/results/likelihood_step.jsonl.
"""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples"))

import digits_flow
import free_form_digits
import patches_flow
import rivals
from digits import Digits, Logits

import determinax as dx
from determinax.training import fit_model
from determinax.training.models import FreeFormObjective

Fit = Callable[[int], float]
STEPS = 200  # of a turn: what begins and ends a fit is a small part of it


def fit_of(loss: Callable, models: Any, sample: Callable, batch: int, optimiser: Any = None) -> Fit:
    """Seconds a step of so many; what is compiled is compiled in the first call."""
    optimiser = optax.adam(1e-3) if optimiser is None else optimiser

    def run(steps: int) -> float:
        fit = fit_model(
            loss,
            models,
            sample,
            key=jax.random.key(1),
            steps=steps,
            batch_size=batch,
            optimiser=optimiser,
            progress=False,
        )
        return fit.seconds / steps

    return run


def contractive() -> dict[str, Fit]:
    """The ways of `digits_flow` but the exact one; the power series with just four terms, too."""
    data = Logits()
    models, optimiser = digits_flow.start(data), digits_flow.optimiser(1000)

    def four_terms(blocks, _, x, key):
        return rivals.series(blocks, x, key, 4)

    alone = models[0], None
    ways = {
        name: (digits_flow.WAYS[name][0], models) for name in ("VDE, 1 product", "VDE, 4 products")
    } | {
        "power series, 4 products in the mean": (rivals.power_series, alone),
        "power series, 4 products": (four_terms, alone),
    }
    return {
        name: fit_of(digits_flow.Loss(way), own, data.sample, digits_flow.BATCH, optimiser)
        for name, (way, own) in ways.items()
    }


def free_form(make: Callable, data: Any, batch: int, weight: float) -> dict[str, Fit]:
    """Encoder and decoder with a proposal, and free-form flows."""
    recipe = FreeFormObjective(weight, 1, dx.likelihood.standard_normal)
    losses = {"fit_free_form": recipe, "free-form flows": rivals.FreeFormFlow(weight)}
    return {name: fit_of(loss, make(), data.sample, batch) for name, loss in losses.items()}


def groups(sides: list[int]) -> dict[str, Callable[[], dict[str, Fit]]]:
    """What is compared, by name."""
    if not sides:
        return {
            "digits, contractive, n = 64": contractive,
            "digits, free-form, n = 64": lambda: free_form(
                lambda: free_form_digits.start(64, 0), Digits(64), 128, 30.0
            ),
        }

    def patches(side: int) -> Callable[[], dict[str, Fit]]:
        batch, weight = patches_flow.BATCH, patches_flow.RECONSTRUCTION
        return lambda: free_form(
            lambda: patches_flow.start(side), patches_flow.Patches(side), batch, weight
        )

    return {f"patches, free-form, n = {3 * side**2}": patches(side) for side in sides}


def main() -> None:
    parser = argparse.ArgumentParser(description="What a training step takes.")
    parser.add_argument("--patches", type=int, nargs="*", default=[], metavar="SIDE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a turn")
    parser.add_argument("--out", type=pathlib.Path, default="docs/results/likelihood_step.jsonl")
    arguments = parser.parse_args()
    for group, make in groups(arguments.patches).items():
        ways = make()
        for run in ways.values():
            run(arguments.steps)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        began = time.perf_counter()
        for _ in range(arguments.rounds):
            for name, run in ways.items():
                seconds[name].append(run(arguments.steps))
        last = np.array(list(seconds.values())[-1])
        for name, taken in seconds.items():
            row = {
                "group": group,
                "way": name,
                "milliseconds": 1e3 * float(np.median(taken)),
                "least": 1e3 * min(taken),
                "over": list(seconds)[-1],
                "ratio": float(np.median(np.array(taken) / last)),
            }
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{group}: {name:26s} {row['milliseconds']:7.1f} ms (least {row['least']:.1f}), "
                f"{row['ratio']:.2f} of {row['over']}",
                flush=True,
            )
        print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
