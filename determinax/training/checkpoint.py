"""Where a run was when it was killed: written atomically, two kept, verified when read.

A checkpoint holds arrays only, in safetensors, and the fingerprint of the run that wrote it: another
flow, operator, key, optimiser or schedule is refused, never resumed from by mistake.
"""

import hashlib
import os
import pathlib
import re
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from determinax.storage import StorageError, read_tensors, write_atomically

FORMAT = "determinax.checkpoint"


def fingerprint(*trees: Any) -> str:
    """A digest of every array in the trees, and of how they are put together."""
    # addresses of functions differ from process to process
    structure = re.sub(r" at 0x[0-9a-f]+", "", str(jax.tree.structure(trees)))
    digest = hashlib.sha256(structure.encode())
    for leaf in jax.tree.leaves(trees):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if eqx.is_array_like(leaf):
            array = np.asarray(leaf)
            digest.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
        elif isinstance(leaf, str):
            digest.update(leaf.encode())
    return digest.hexdigest()


def write(
    path: pathlib.Path, run: str, state: Any, history: dict[str, np.ndarray], seconds: float
) -> None:
    """Write the checkpoint of run `run`; the one before it is kept beside it."""
    tensors = {f"state.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    tensors |= {f"history.{name}": values for name, values in history.items()}
    tensors["seconds"] = np.asarray(seconds)
    header = {"format": FORMAT, "run": run, "checksum": fingerprint(tensors)}
    data = safetensors.numpy.save(tensors, metadata=header)
    if path.exists():
        os.replace(path, _previous(path))
    write_atomically(path, data)


def read(
    path: pathlib.Path, run: str, like: Any
) -> tuple[Any, dict[str, np.ndarray], float] | None:
    """State, history and seconds as `write` stored them; None where there is no checkpoint yet.

    A damaged file is passed over, with a warning, for the one before it.
    """
    for stale in path.parent.glob(f".{path.name}.*"):  # half-written by a run that was killed
        stale.unlink()
    for candidate in (path, _previous(path)):
        if not candidate.exists():
            continue
        try:
            header, tensors = read_tensors(candidate)
            if header.get("format") != FORMAT:
                raise StorageError(f"{candidate}: not a determinax checkpoint")
            if header.get("checksum") != fingerprint(tensors):
                raise StorageError(f"{candidate}: the checksum does not match")
        except StorageError as error:
            warnings.warn(f"passed over a damaged checkpoint: {error}", stacklevel=2)
            continue
        leaves, tree = jax.tree.flatten(like)
        stored = [tensors.get(f"state.{i}") for i in range(len(leaves))]
        fits = all(
            s is not None and s.shape == leaf.shape for s, leaf in zip(stored, leaves, strict=True)
        )
        if header.get("run") != run or not fits:
            raise StorageError(
                f"{candidate}: of another run (operator, flow, key, steps or another setting "
                "differ): delete it, or give this run a file of its own"
            )
        state = jax.tree.unflatten(tree, [jnp.asarray(leaf) for leaf in stored])
        history = {n[8:]: t for n, t in tensors.items() if n.startswith("history.")}
        return state, history, float(tensors["seconds"])
    return None


def remove(path: pathlib.Path) -> None:
    """Delete the checkpoint of a run that has ended, and the one before it."""
    for stale in (path, _previous(path)):
        stale.unlink(missing_ok=True)


def _previous(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + ".previous")
