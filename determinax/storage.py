"""Proposals on disk: safetensors with a readable JSON header. No pickle, no half-written files.

The header describes the architecture (classes of `determinax.flows` and their settings), so that a
file is all it takes to rebuild a proposal. Own code, since equinox' serialisation stores no
architecture: it wants an equal module to pour the numbers into.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from determinax import flows, proposals
from determinax._interrupts import writing
from determinax.proposals import AbstractProposal, Proposal

FORMAT = "determinax.proposal"
FORMAT_VERSION = 1

# what a file may name: nothing else is ever built
_CLASSES = {
    name: cls
    for name, cls in (vars(flows) | vars(proposals)).items()
    if isinstance(cls, type) and issubclass(cls, eqx.Module) and not name.startswith("Abstract")
}


class StorageError(ValueError):
    """What is wrong with a stored proposal or checkpoint, in one sentence.

    !!! example

        ```python
        try:
            dx.load("missing.safetensors")
        except dx.StorageError as error:
            print(error)
        ```
    """


def save(proposal: AbstractProposal, path: str | os.PathLike[str]) -> None:
    """Write a proposal to a file, all or nothing: a crash leaves the old file or the new one.

    !!! example

        ```python
        dx.save(dx.fit_linear(A, key=key).proposal, "q.safetensors")
        ```
    """
    _require_proposal(proposal)
    tensors: dict[str, np.ndarray] = {}
    # a flow as in 0.1.0; every other density with the name of its class
    is_flow = isinstance(proposal, Proposal)
    architecture = _describe(proposal.flow if is_flow else proposal, "flow", tensors)
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "architecture": json.dumps(architecture),
        "checksum": _checksum(architecture, tensors),
    }
    write_atomically(pathlib.Path(path), safetensors.numpy.save(tensors, metadata=header))


def load(path: str | os.PathLike[str]) -> AbstractProposal:
    """Rebuild the proposal that `save` wrote; format, version, shapes and checksum are verified.

    !!! example

        ```python
        dx.save(q, "q.safetensors")
        dx.load("q.safetensors").log_density(points)
        ```
    """
    path = pathlib.Path(path)
    header, tensors = read_tensors(path)
    if header.get("format") != FORMAT:
        raise StorageError(f"{path}: a safetensors file, but not a determinax proposal")
    if header.get("format_version") != str(FORMAT_VERSION):
        raise StorageError(
            f"{path}: written in format version {header.get('format_version')}, and this is "
            f"version {FORMAT_VERSION}: load it with the determinax that wrote it"
        )
    try:
        architecture = json.loads(header["architecture"])
        intact = header["checksum"] == _checksum(architecture, tensors)
    except (KeyError, ValueError, RecursionError) as error:
        raise StorageError(f"{path}: its header is damaged ({_short(error)})") from error
    if not intact:
        raise StorageError(f"{path}: the checksum does not match: the file was changed or damaged")
    wide = {t.dtype.name for t in tensors.values() if t.dtype.itemsize == 8}
    if wide and not jax.config.read("jax_enable_x64"):
        raise StorageError(
            f"{path}: holds {', '.join(sorted(wide))}: enable 64-bit with "
            'jax.config.update("jax_enable_x64", True)'
        )
    try:
        built = _build(architecture, tensors)
    except (KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{path}: describes an architecture unknown here ({_short(error)})"
        ) from error
    if isinstance(built, AbstractProposal):
        return built
    if not isinstance(built, flows.AbstractSphereMap):
        raise StorageError(f"{path}: describes a {type(built).__name__}, not a flow")
    return Proposal(built)


def read_tensors(path: pathlib.Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Header and arrays of a safetensors file."""
    if not path.exists():
        raise StorageError(f"{path}: no such file")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return file.metadata() or {}, tensors
    except Exception as error:  # readers of damaged files raise whatever they stumble over
        raise StorageError(
            f"{path}: truncated, corrupted, or not a safetensors file ({_short(error)})"
        ) from error


def _short(error: Exception, most: int = 200) -> str:
    """What it says, on one line and not for ever: it may quote the file."""
    text = str(error) or type(error).__name__
    return repr(text[:most])[1:-1] + ("..." if len(text) > most else "")


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    """Write to a neighbour, make sure that it is on the disk, then rename it over the target."""
    try:
        with writing():
            _write(path, data)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(f"{path}: cannot be written: {reason}") from error


def _write(path: pathlib.Path, data: bytes) -> None:
    path = path.resolve()  # a link stays, and leads to what is written
    if path.exists() and not path.is_file():  # a device or a pipe, which renaming would remove
        raise OSError("it is no ordinary file")
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _require_proposal(value: Any) -> None:
    cure = "only a density such as determinax.Proposal can be saved"
    if isinstance(value, flows.AbstractSphereMap):
        cure = "save(Proposal(flow), path)"
    elif isinstance(getattr(value, "proposal", None), AbstractProposal):
        cure = "save its .proposal"
    if not isinstance(value, AbstractProposal):
        raise StorageError(f"a {type(value).__name__} is not a proposal: {cure}")


def _describe(value: Any, name: str, tensors: dict[str, np.ndarray]) -> Any:
    """A JSON description; arrays go to `tensors` under their place in the tree."""
    if isinstance(value, eqx.Module):
        kind = type(value).__name__
        if kind not in _CLASSES or _CLASSES[kind] is not type(value):
            raise StorageError(
                f"a {kind} cannot be stored: only maps and densities of determinax can"
            )
        fields = {
            f.name: _describe(getattr(value, f.name), f"{name}.{f.name}", tensors)
            for f in dataclasses.fields(value)
        }
        return {"class": kind, "fields": fields}
    if isinstance(value, jax.Array | np.ndarray):
        tensors[name] = np.array(value, order="C")
        return {"tensor": name, "shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, list | tuple):
        items = [_describe(v, f"{name}.{i}", tensors) for i, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise StorageError(f"{name}: a {type(value).__name__} cannot be stored")


def _build(description: Any, tensors: dict[str, np.ndarray]) -> Any:
    if not isinstance(description, dict):
        return description
    if "tensor" in description:
        array = tensors[description["tensor"]]
        if [list(array.shape), str(array.dtype)] != [description["shape"], description["dtype"]]:
            raise TypeError(f"{description['tensor']} has another shape or dtype than described")
        return jnp.asarray(array)
    if "list" in description:
        return [_build(item, tensors) for item in description["list"]]
    if "tuple" in description:
        return tuple(_build(item, tensors) for item in description["tuple"])
    cls = _CLASSES[description["class"]]
    fields = {f.name for f in dataclasses.fields(cls)}
    if fields != description["fields"].keys():
        raise TypeError(f"{description['class']} has other fields here")
    module = object.__new__(cls)
    for name, value in description["fields"].items():
        object.__setattr__(module, name, _build(value, tensors))
    return module


def _checksum(architecture: Any, tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(architecture, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()
