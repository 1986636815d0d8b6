"""Run by test_devices.py with eight virtual devices: what is printed is compared there."""

import json
import math
import pathlib
import re
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from methods import CASES, KINDS, A, proposal

import determinax as dx
from determinax import _engine

jax.config.update("jax_enable_x64", True)
# many chunks each, the last round a short one
MANY = {
    "MonteCarlo": lambda: dx.MonteCarlo(3100, chunk_size=100),
    "MonteCarlo, rest": lambda: dx.MonteCarlo(1137, chunk_size=100),
    "MonteCarlo, frames": lambda: dx.MonteCarlo(1600, "frames", chunk_size=64),
    "Variational": lambda: dx.Variational(proposal(), 1300, chunk_size=100),
    "Deflated": lambda: dx.Deflated(3, dx.MonteCarlo(1100, chunk_size=100)),
    "Lanczos": lambda: dx.Lanczos(72, 4),
}


def _tilted(x):
    return 2 * x[0]


def _tanh(x):
    return jnp.tanh(jnp.asarray(A) @ x)


def _points(key, num):
    return 0.1 * jax.random.normal(key, (num, len(A)))


def _fit():  # no key while this is imported: processes have to find each other before JAX starts
    return {"key": jax.random.key(1), "steps": 3, "batch_size": 32}


FITS = {
    **{
        f"fit, {kind}": lambda mesh, kind=kind: dx.fit(
            A, proposal().flow, gradient=kind, mesh=mesh, **_fit()
        )
        for kind in ("path", "total", "forward")
    },
    "fit_density": lambda mesh: dx.fit_density(_tilted, proposal().flow, mesh=mesh, **_fit()),
    "fit_jacobian": lambda mesh: dx.fit_jacobian(
        _tanh, _points, proposal().flow, mesh=mesh, num_directions=2, **_fit()
    ),
    # held-out points are looked at once
    "fit_samples": lambda mesh: dx.fit_samples(
        np.asarray(dx.sphere.uniform(jax.random.key(2), 3, 100).T),
        dx.flows.projective_linear(3),
        mesh=mesh,
        weights=np.arange(100.0),
        jitter=0.1,
        **_fit() | {"steps": 101},
    ),
}


def mesh_of(num, kind=AxisType.Auto):
    """The first so many devices."""
    return jax.make_mesh((num,), ("x",), axis_types=(kind,), devices=jax.devices()[:num])


def digits(estimate):
    """Every bit of an estimate, as text."""
    leaves = jax.tree.leaves(estimate)
    return [np.atleast_1d(np.asarray(leaf)).tobytes().hex() for leaf in leaves]


def samples(names, nums):
    """The same bits for each number of devices, on both kinds of mesh; without a mesh first."""
    for name in names:
        make = MANY.get(name) or CASES[name].make
        meshes = [None, *map(mesh_of, nums), mesh_of(max(nums), AxisType.Explicit)]
        rows = [
            digits(dx.log_abs_det(A, make(), key=jax.random.key(0), mesh=mesh)) for mesh in meshes
        ]
        print(json.dumps([name, [row == rows[0] for row in rows]]), flush=True)


def fits(names, nums):
    """The same bits of fits for each number of devices, on both kinds of mesh."""
    for name in names:
        meshes = [mesh_of(num) for num in nums] + [mesh_of(max(nums), AxisType.Explicit)]
        found = [FITS[name](mesh) for mesh in meshes]
        rows = [digits((fit.proposal, fit.history)) for fit in found]
        print(json.dumps([name, [row == rows[0] for row in rows]]), flush=True)


def together(names, path, coordinator, num, number):
    """The bits of each method on all devices of all processes; the first one writes them down."""
    if num > 1:
        dx.distributed.initialize(coordinator, num, number)
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    found = {}
    for name in names:
        if name in FITS:
            fit = FITS[name](mesh)
            found[name] = digits((fit.proposal, fit.history))
            continue
        make = MANY.get(name) or CASES[name].make
        found[name] = digits(dx.log_abs_det(A, make(), key=jax.random.key(0), mesh=mesh))
    if dx.distributed.is_first():
        pathlib.Path(path).write_text(json.dumps([jax.device_count(), found]))
    if num > 1:
        dx.distributed.shutdown()


def kinds(names):
    """All kinds of operators on a mesh."""
    for name in names:
        alone = dx.log_abs_det(KINDS[name](A), MANY["MonteCarlo"](), key=jax.random.key(0))
        apart = dx.log_abs_det(
            KINDS[name](A), MANY["MonteCarlo"](), key=jax.random.key(0), mesh=mesh_of(8)
        )
        print(json.dumps([name, digits(apart) == digits(alone)]), flush=True)


def split(names, nums, axes):
    """How far operators that are split over devices are from whole ones."""
    for name in names:
        case = CASES[name]
        whole = dx.log_abs_det(A, case.make(), key=jax.random.key(0))
        for num in nums:
            for axis in axes:
                spec = PartitionSpec("x", None) if axis == "rows" else PartitionSpec(None, "x")
                for kind in (AxisType.Auto, AxisType.Explicit):
                    a = jax.device_put(jnp.asarray(A), NamedSharding(mesh_of(num, kind), spec))
                    found = dx.log_abs_det(a, case.make(), key=jax.random.key(0))
                    off = float(abs(found.log_abs_det - whole.log_abs_det))
                    print(json.dumps([name, num, axis, str(kind), off, found.notes]), flush=True)


IMAGE = (4, 2)
_rng = np.random.default_rng(0)
POINTS, GAINS = _rng.standard_normal(IMAGE), 1 + 0.1 * _rng.standard_normal(IMAGE)
WINDOW, MIXING = 0.1 * _rng.standard_normal((3, 3)), 0.2 * _rng.standard_normal((2, 2))
WINDOW[1, 1] += 1
MIXING += np.eye(2)


def _convolved(image, window):
    return jax.lax.conv_general_dilated(image[None, None], window[None, None], (1, 1), "SAME")[0, 0]


def _placed(x, mesh, *spec):
    x = jnp.asarray(x)
    return x if mesh is None else jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))


def _gained(mesh):
    gains = _placed(GAINS, mesh, "x", None)
    return dx.as_operator(
        lambda x: _convolved(x * gains, jnp.asarray(WINDOW)), jnp.zeros(IMAGE), check_linear=False
    )


def _of_image(mesh):
    x, window = _placed(POINTS, mesh, "x", None), _placed(WINDOW, mesh)
    return lx.JacobianLinearOperator(lambda x, _: x + 0.1 * jnp.tanh(_convolved(x, window)), x)


SPREAD = {
    "convolution": lambda mesh: dx.operators.convolution(_placed(WINDOW, mesh), IMAGE),
    "convolution, over the image": _gained,
    "Jacobian, over the image": _of_image,
    "Jacobian, over the batch": lambda mesh: lx.JacobianLinearOperator(
        lambda x, _: jnp.tanh(x @ jnp.asarray(MIXING)), _placed(POINTS, mesh, "x", None)
    ),
}


def spread(names, kinds):
    """How far convolutions and Jacobians on four devices are from those on one."""
    for kind in kinds:
        for name in names:
            make = CASES[name].make
            whole = dx.log_abs_det(SPREAD[kind](None), make(), key=jax.random.key(0))
            for axis in (AxisType.Auto, AxisType.Explicit):
                operator = SPREAD[kind](mesh_of(4, axis))
                found = dx.log_abs_det(operator, make(), key=jax.random.key(0))
                off = float(abs(found.log_abs_det - whole.log_abs_det))
                print(json.dumps([kind, name, str(axis), off]), flush=True)


# few columns at a time, so that the bytes are A's
THIN = {
    "MonteCarlo": lambda n: dx.MonteCarlo(32, chunk_size=8),
    "MonteCarlo, frames": lambda n: dx.MonteCarlo(8, "frames"),
    "Lanczos": lambda n: dx.Lanczos(4, 4),
    "Deflated": lambda n: dx.Deflated(4, dx.MonteCarlo(8)),
}


def compiled(names, n, nums, axes):
    """What the programs of split operators gather at most, in entries, and a device's bytes, over A's."""
    for name in names:
        for axis in axes:
            for num in nums:
                spec = PartitionSpec("x", None) if axis == "rows" else PartitionSpec(None, "x")
                a = jax.device_put(jnp.eye(n), NamedSharding(mesh_of(num), spec))
                program = _program(THIN[name](n), a)
                memory = program.memory_analysis()
                held = memory.argument_size_in_bytes + memory.temp_size_in_bytes
                row = [name, axis, num, _most_gathered(program), held / a.nbytes]
                print(json.dumps(row), flush=True)


def _program(method, operator):
    """What XLA makes of a run."""
    run = method, dx.as_operator(operator), jax.random.key(0)
    arrays, static = eqx.partition(run, eqx.is_array)
    compile_ = jax.jit(lambda x: _engine.run(*eqx.combine(x, static), _engine.NO_BAR))
    return compile_.lower(arrays).compile()


def _most_gathered(program):
    """Entries of the largest array that an all-gather of the program makes."""
    sizes = [
        math.prod(map(int, filter(None, shape.split(","))))
        for found in re.findall(r"= (.*?) all-gather", program.as_text())
        for shape in re.findall(r"\[([\d,]*)\]", found)
    ]
    return max(sizes, default=0)


def compiled_spread(kinds, names, rows):
    """The same of convolutions and Jacobians, of images with so many rows: and n."""
    global IMAGE, POINTS, GAINS
    IMAGE = (rows, 2)
    POINTS, GAINS = np.ones(IMAGE), np.ones(IMAGE)
    for kind in kinds:
        for name in names:
            program = _program(THIN[name](2 * rows), SPREAD[kind](mesh_of(4)))
            print(json.dumps([kind, name, 2 * rows, _most_gathered(program)]), flush=True)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    globals()[what](*map(json.loads, arguments))
