"""Where arrays lie: on one device, or split over the devices of a mesh.

JAX knows two kinds of meshes. On Auto ones XLA lays out what is computed; on Explicit ones, the default
of `jax.make_mesh`, layouts are types, which QR, LU and loops refuse. Inside of this library all are Auto.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from determinax.operators._traits import OperatorError


def on_auto_meshes(tree: Any) -> Any:
    """The tree with arrays of explicit meshes as those of Auto ones: nothing is copied or moved."""

    def settle(leaf: Any) -> Any:
        if _is_converted(leaf):
            return _settled(leaf)
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding) or not _is_explicit(sharding.mesh):
            return leaf
        if isinstance(leaf, Tracer):
            return leaf  # `neutral` sees to it
        mesh: Any = sharding.mesh
        auto = Mesh(mesh.devices, mesh.axis_names)
        return jax.device_put(leaf, NamedSharding(auto, sharding.spec))

    return jax.tree.map(settle, tree, is_leaf=_is_converted)


def _is_converted(node: Any) -> bool:
    """Whether it is a function that equinox has closed over its arrays, as those of Jacobians are."""
    return hasattr(node, "in_dynamic_struct")


def _settled(function: Any) -> Any:
    """The function on Auto meshes: it knows the layouts that it was made with, and refuses any other."""
    copied = copy.copy(function)
    for name in ("in_dynamic_struct", "out_dynamic_struct"):
        if hasattr(function, name):
            leaves, structure = getattr(function, name)
            bare = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
            object.__setattr__(copied, name, (bare, structure))
    if hasattr(function, "consts"):
        object.__setattr__(copied, "consts", on_auto_meshes(function.consts))
    return copied


def neutral(function: Callable) -> Callable:
    """The function, inside of which traced arrays of explicit meshes are like those of Auto ones."""

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        arrays, static = eqx.partition(args, eqx.is_array)
        meshes = {jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(arrays)}
        mesh = next((mesh for mesh in meshes if _is_explicit(mesh)), None)
        if mesh is None:
            return function(*args)

        def inside(arrays: Any) -> Any:
            return function(*eqx.combine(arrays, static))

        whole = NamedSharding(mesh, PartitionSpec())
        return jax.sharding.auto_axes(inside, axes=mesh.axis_names, out_sharding=whole)(arrays)

    return wrapped


def num_parts(tree: Any) -> int:
    """Over how many devices the most divided of the arrays is split; 1 where each device has all of it."""
    return max((_num_parts(leaf) for leaf in jax.tree.leaves(tree)), default=1)


def on_one_device(tree: Any) -> Any:
    """The tree with its arrays whole, on the first of their devices."""

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
            return leaf
        if leaf.is_fully_replicated:  # on many devices, perhaps, each of which has all of it
            return leaf.addressable_shards[0].data
        if not leaf.is_fully_addressable:
            raise OperatorError(
                "the operator is split over several processes, none of which can have the whole of it: "
                "use MonteCarlo, Lanczos or Deflated, which take products only"
            )
        return jax.device_put(leaf, leaf.addressable_shards[0].device)

    return jax.tree.map(whole, tree)


def _num_parts(leaf: Any) -> int:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return 1
    return 1 if leaf.is_fully_replicated else len(leaf.sharding.device_set)


def _is_explicit(mesh: Any) -> bool:
    return AxisType.Explicit in mesh.axis_types
