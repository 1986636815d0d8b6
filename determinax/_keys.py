"""One key policy: named streams, then numbers. Nobody splits a key that somebody else folds."""

import zlib

import jax
from jaxtyping import ArrayLike, Int, PRNGKeyArray


def stream(key: PRNGKeyArray | None, name: str, index: Int[ArrayLike, ""] = 0) -> PRNGKeyArray:
    """Key number `index` of the stream `name`.

    A name's 32-bit digest keeps clear of the small integers that callers fold in themselves, and of
    `split`, whose keys under threefry are those of `fold_in` with 0, 1, ....

    ```python
    dx.methods.stream(key, "probes", 3)    # in chunk 3 of a method of your own
    ```
    """
    assert key is not None  # a method that draws has asked for one
    return jax.random.fold_in(jax.random.fold_in(key, zlib.crc32(name.encode())), index)
