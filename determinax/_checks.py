"""Plain arguments in; a value, or a sentence that names the cure, out.

Imports nothing heavy, so that the command line can ask early.
"""

import functools
import math
import numbers
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

_GROUPS, _OWN_GROUPS = pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/proc/self/cgroup")


def whole_number(value: Any, name: str, *, least: int = 1) -> int:
    """A whole number of at least `least`, below 2^31; 1e4 counts as one, True and NaN do not."""
    # NumPy's numbers are registered as such
    valid = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    number = float(value) if valid else math.nan
    if not (number.is_integer() and least <= number < 2**31):
        raise ValueError(
            f"{name} must be a whole number from {least} to {2**31 - 1}, not {value!r}"
        )
    return int(number)


def positive_number(
    value: Any, name: str, *, or_zero: bool = False, most: float = sys.float_info.max
) -> float:
    """A number above 0, or also 0, up to `most`: a finite one by default; True and NaN are none."""
    valid = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if valid else math.nan
    if not (0 < number <= most or (or_zero and number == 0)):
        least = "of 0 or more" if or_zero else "above 0"
        raise ValueError(f"{name} is a number {least}, not {value!r}")
    return number


def counted(num: int, noun: str, *, be: bool = False) -> str:
    """A number of things in words, such as "1 product"; with `be` also what follows: "2 products are"."""
    is_one = num == 1
    verb = (" is" if is_one else " are") if be else ""
    return f"{num:,} {noun}{'' if is_one else 's'}{verb}"


def real_numbers(values: Any, what: str) -> Any:
    """A NumPy array of floats; `what` says in the refusal what it should have been."""
    import numpy as np

    try:
        return np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what}, not {values!r:.40}") from error


def not_finite(what: str) -> str:
    """The sentence for products that cannot be computed with, here and where faults are raised."""
    return f"{what} contains NaN or Inf: every product with a finite vector must be finite"


def require_key(key: Any, method: str) -> Any:
    """The key of a method that draws random directions."""
    import jax
    import jax.numpy as jnp

    if key is None:
        raise ValueError(f"{method} draws random directions: pass key=jax.random.key(0)")
    is_key = isinstance(key, jax.Array) and (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == jnp.uint32
    )
    if not is_key:
        raise TypeError(f"key is a JAX key such as jax.random.key(0), not {key!r}")
    return key


def require_bar(name: str, bar: Any) -> None:
    """Refuse a bar for the standard error that is no positive number; None is no bar."""
    if bar is None:
        return
    if getattr(bar, "shape", None) == () and not isinstance(bar, numbers.Real):  # of NumPy or JAX
        from jax.core import Tracer

        if isinstance(bar, Tracer):
            return
        bar = bar.item()
    number = isinstance(bar, numbers.Real) and not isinstance(bar, bool)
    if not (number and 0 < float(bar) < math.inf):
        raise ValueError(f"{name} is a positive number, the standard error to be met, not {bar!r}")


def require_writable(path: pathlib.Path) -> None:
    """Refuse a file that could not be written later, before anything long begins."""
    if path.is_dir():
        raise ValueError(f"{path}: is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: is no ordinary file, which could be replaced: name another")
    require_folder(path.parent, make=False)


def require_folder(folder: pathlib.Path, *, make: bool = True) -> None:
    """A folder that files can be written to; with `make`, it is made."""
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{folder}: nothing can be written there: {reason(error)}") from error


def cache_folder() -> pathlib.Path | None:
    """Where compiled code is kept; None where no folder can be had."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        folder = pathlib.Path(home) / "determinax"
        require_folder(folder)
    except (ValueError, RuntimeError):  # read-only, or nobody's home
        return None
    return folder


def reason(error: OSError) -> str:
    """What the system says, without its number."""
    return (error.strerror or str(error)).lower()


@functools.cache
def physical_memory() -> int:
    """What this process may have, in bytes: the machine's, or less where a control group says so.

    Where the system does not tell (Windows) it is all that can be addressed: nothing is refused.
    """
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        installed = -1
    return min([installed if installed > 0 else sys.maxsize, *_group_limits()])


def _group_limits() -> Iterator[int]:
    """The limits of this process' control groups and of those around them, versions 1 and 2."""
    try:
        lines = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in lines:
        if not controllers:
            root, name = _GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = root / path.strip("/")
        for folder in (own, *own.parents):
            if not folder.is_relative_to(root):
                break
            try:
                yield int((folder / name).read_text())
            except (OSError, ValueError):  # no such group from in here, or "max"
                continue


def require_memory(need: int, what: str, cure: str) -> None:
    """Refuse what cannot fit, before it is tried: `what` needs so many bytes; `cure` helps."""
    have = physical_memory()
    if need > have:
        raise ValueError(
            f"{what}, {need / 2**30:,.1f} GiB: more than the {have / 2**30:,.1f} GiB that this "
            f"machine has; {cure}"
        )
