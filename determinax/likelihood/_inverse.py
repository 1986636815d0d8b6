r"""$g(z) = x$ solved for z, and $J_g^\top y = w$ for y, by an encoder that is only about the inverse."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg
from jaxtyping import Array, Bool, Float, Int

from determinax.likelihood.loss import Map

# steps with the encoder alone, then Newton steps, each with so many products of J_f J_g
_PLAIN, _NEWTON, _KRYLOV = 30, 20, 20
# a step that makes the residual larger is halved; this small it has failed
_SMALLEST = 2.0**-8
# iterations of a transposed solve at most, each with two products of either Jacobian
TRANSPOSED = 50


class Solved(NamedTuple):
    r"""A point z, $|g(z) - x|$ as a share of $|x|$ (or of $\sqrt n$, if larger), whether it is within."""

    point: Float[Array, " n"]
    residual: Float[Array, ""]
    is_solved: Bool[Array, ""]


class _Search(NamedTuple):
    point: Float[Array, " n"]
    image: Float[Array, " n"]
    residual: Float[Array, ""]
    size: Float[Array, ""]  # of the next step, 1 at most
    num: Int[Array, ""]


def solved(f: Map, g: Map, x: Float[Array, " n"], tolerance: float) -> Solved:
    r"""$z \leftarrow z + f(x) - f(g(z))$; where that stalls, Newton steps with f as a preconditioner."""
    scale = jnp.maximum(jnp.linalg.norm(x), x.size**0.5)
    target = f(x)

    def of(z: Array) -> tuple[Array, Array]:
        image = g(z)
        return image, jnp.linalg.norm(image - x) / scale

    def encoder(now: _Search) -> Array:
        return target - f(now.image)

    def newton(now: _Search) -> Array:
        push = jax.linearize(g, now.point)[1]
        pull = jax.linearize(f, now.image)[1]
        step, _ = jax.scipy.sparse.linalg.bicgstab(
            lambda v: pull(push(v)), pull(x - now.image), maxiter=_KRYLOV, tol=1e-3
        )
        return step

    def search(direction, most: int, now: _Search) -> _Search:
        def going(now: _Search):
            return (now.residual > tolerance) & (now.size >= _SMALLEST) & (now.num < most)

        def body(now: _Search) -> _Search:
            z = now.point + now.size * direction(now)
            image, residual = of(z)
            # NaN is no improvement
            better = residual < now.residual
            moved = _Search(z, image, residual, jnp.minimum(1, 2 * now.size), now.num + 1)
            halved = now._replace(size=now.size / 2, num=now.num + 1)
            return jax.tree.map(lambda a, b: jnp.where(better, a, b), moved, halved)

        start = now._replace(size=jnp.ones_like(now.residual), num=jnp.zeros_like(now.num))
        return jax.lax.while_loop(going, body, start)

    image, residual = of(target)
    start = _Search(target, image, residual, jnp.ones_like(residual), jnp.zeros((), jnp.int32))
    end = search(newton, _NEWTON, search(encoder, _PLAIN, start))
    return Solved(end.point, end.residual, end.residual <= tolerance)


def transposed_solve(
    f: Map,
    g: Map,
    x: Float[Array, " n"],
    z: Float[Array, " n"],
    w: Float[Array, "n num"],
) -> tuple[Float[Array, "n num"], Float[Array, ""]]:
    r"""$y = J_g(z)^{-\top}w$, a column each, by a Krylov method with $J_f^\top$ as its preconditioner.

    Also by how much one more refinement would change a column at most, as a share of it.
    """
    encode, decode = jax.vjp(f, x)[1], jax.vjp(g, z)[1]

    def by_f(v: Array) -> Array:
        return encode(v)[0]

    def by_g(v: Array) -> Array:
        return decode(v)[0]

    def one(w: Array) -> tuple[Array, Array]:
        y, _ = jax.scipy.sparse.linalg.bicgstab(
            lambda y: by_f(by_g(y)), by_f(w), maxiter=TRANSPOSED, tol=1e-3 / x.size
        )
        change = by_f(w - by_g(y))
        return y, jnp.linalg.norm(change) / jnp.linalg.norm(y)

    y, changes = jax.vmap(one, in_axes=-1, out_axes=(-1, -1))(w)
    return y, jnp.max(changes)
