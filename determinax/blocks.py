"""Compositions of blocks: a proposal for each, since their log-determinants add up and are easier apart."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray

from determinax import _linalg, flows
from determinax._checks import require_key
from determinax._interrupts import heeded
from determinax._keys import stream
from determinax.operators import OperatorError
from determinax.proposals import BlockProposals, Proposal

# points at which the blocks' Jacobians are averaged
_POINTS = 32


@heeded()
def block_proposals(
    blocks: Sequence[Callable[[Float[Array, " n"]], Float[Array, " n"]]],
    sample_x: Callable[[PRNGKeyArray, int], Float[Array, "num n"]],
    *,
    key: PRNGKeyArray,
    family: Literal["triangular", "low rank"]
    | Callable[[PRNGKeyArray], flows.AbstractSphereMap] = "triangular",
    hidden: tuple[int, ...] = (64,),
) -> BlockProposals:
    r"""A proposal for each block of $f = f_L \circ \dots \circ f_1$, ready to be trained along.

    $\log|\det J_f(x)| = \sum_i \log|\det J_i(x_i)|$ with $x_i$ what goes into block i, which is the
    context of its proposal. Each starts from the inverse of its block's mean Jacobian at 32 points, for
    n products at each. Use them as `jacobian_surrogate(blocks, x, proposals, key=key)`.

    A block with a method `log_abs_det(x)`, as a scaling or a coupling has, is taken at its word: it has
    no proposal and costs no products.

    **Arguments:**

    - `blocks`: functions of one point, all of one dimension; the first acts first.
    - `sample_x`: key and number in, as many points out, one a row: what goes into the first.
    - `family`: `"triangular"` (any matrix, $n^2$ numbers from a network), `"low rank"` (a diagonal and
        8 directions), or a function of a key that makes the flow, such as
        `lambda key: flows.conditional_convolution((8, 8), 3, key=key)`, which starts as it is.
    - `hidden`: of the networks.

    !!! example

        ```python
        blocks = [f, f]
        sample_x = lambda key, num: jax.random.normal(key, (num, 10))
        proposals = dx.block_proposals(blocks, sample_x, key=key)  # two
        s = dx.jacobian_surrogate(blocks, x, proposals, key=key, num_samples=2)
        ```
    """
    key = require_key(key, "block_proposals")
    if isinstance(blocks, Callable) or not len(blocks):
        raise TypeError("blocks is a sequence of functions, such as [first, second]")
    x = jnp.asarray(sample_x(stream(key, "points"), _POINTS))
    n = x.shape[-1]
    segments = in_segments(blocks)[0]
    if not segments:
        raise ValueError(
            "every block has a log_abs_det of its own: add them up, there is nothing to estimate"
        )
    proposals = []
    for i, segment in enumerate(segments):
        own = stream(key, "block", i)
        for known in segment.known:
            x = jax.vmap(known)(x)
        block = segment.block
        if isinstance(family, str):
            x, base = _through(block, x)
            flow = flows.conditional_linear(
                n,
                key=own,
                rank={"triangular": None, "low rank": min(8, n)}[_family(family)],
                base=_inverse(base, i),
                hidden=hidden,
                dtype=x.dtype,
            )
        else:
            flow = family(own)
        proposals.append(Proposal(flow))
    return BlockProposals(proposals)


class Segment(eqx.Module):
    """A block that needs a proposal, behind those that know their own log-determinant."""

    known: tuple[Any, ...]
    block: Any


def in_segments(blocks: Sequence[Any]) -> tuple[list[Segment], tuple[Any, ...]]:
    """The segments of a composition, and what comes after the last of them."""
    segments, known = [], ()
    for block in blocks:
        if callable(getattr(block, "log_abs_det", None)):
            known = (*known, block)
        else:
            segments.append(Segment(known, block))
            known = ()
    return segments, known


def through_known(blocks: Sequence[Any], x: Array) -> tuple[Array, Array]:
    """A point through blocks that know their log-determinants, and the sum of these."""
    total = jnp.zeros((), x.dtype)
    for block in blocks:
        total += block.log_abs_det(x)
        x = block(x)
    return x, total


def stacked(blocks: Sequence[Any]) -> Any | None:
    """Blocks of one shape as one, with the block in front of every array; None where shapes differ."""
    parts = [eqx.partition(block, eqx.is_array) for block in blocks]
    arrays, rests = zip(*parts, strict=True)
    shapes = [jax.tree.map(lambda a: (a.shape, a.dtype), a) for a in arrays]
    if any(s != shapes[0] for s in shapes) or not all(
        eqx.tree_equal(r, rests[0]) is True for r in rests
    ):
        return None
    return eqx.combine(jax.tree.map(lambda *a: jnp.stack(a), *arrays), rests[0])


@eqx.filter_jit
def _through(block, x: Float[Array, "num n"]) -> tuple[Array, Array]:
    """The points after the block, and its mean Jacobian."""
    return jax.vmap(block)(x), jnp.mean(jax.vmap(jax.jacfwd(block))(x), axis=0)


def _inverse(mean: Float[Array, "n n"], number: int) -> flows.Triangular:
    """The inverse up to a rotation on its right, which is no part of a density: L^-1 of J = QL."""
    if isinstance(mean, Tracer):
        raise TypeError(
            "block_proposals looks at Jacobians: make the proposals outside of jit, and pass them in"
        )
    if not np.isfinite(mean).all():
        raise OperatorError(
            f"the Jacobian of block {number} is not finite: look at what sample_x gives it"
        )
    identity = jnp.eye(len(mean), dtype=mean.dtype)
    lower = jnp.flip(_linalg.qr(jnp.flip(mean, 1))[1])
    lower = lower * jnp.where(jnp.diagonal(lower) < 0, -1, 1)[:, None]
    inverse = _linalg.solve_triangular(lower, identity, lower=True)
    # signs that cancel in the mean are no place to start from
    usable = bool(np.isfinite(inverse).all() and (jnp.diagonal(inverse) > 0).all())
    return flows.Triangular.of(inverse if usable else identity)


def _family(family: str) -> str:
    if family not in ("triangular", "low rank"):
        raise ValueError(
            f'family is "triangular", "low rank" or a function that makes a flow, not {family!r}'
        )
    return family
