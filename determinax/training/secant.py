r"""The secant update: fit a projective linear proposal by linear algebra instead of gradients.

With an orthonormal frame $Z$ of $k$ directions, $B = AM$, $W = BZ$, $S = W^\top W$ and
$Y = B^\top W$ (products with $A^\top$), or $Y = ZS$ (forward products only), both over the geometric
mean of $S$'s eigenvalues,

$$M \leftarrow M + MZ\,(S^{-1/2} Z^\top - S^{-1} Y^\top)$$

is a block BFGS step on $B^\top B$: the new $BZ$ is orthonormal up to scale. As $Z^\top Y = S$, the
update multiplies $\det M$ by $\det S^{-1/2} = 1$: $\log|\det M|$ never changes.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from determinax import _checks, _linalg, flows, sphere
from determinax._linalg import log_norm, mm
from determinax.operators import OperatorError, Products, columns
from determinax.proposals import Proposal
from determinax.training._base import AbstractFitter, History, Record

# so many fresh log-weights must agree before we stop, four times as well as asked: few tell roughly
_MIN_FRESH, _MARGIN = 16, 0.25


class SecantState(NamedTuple):
    """What goes from step to step; `fresh` holds the last log-weights, each fresh when drawn."""

    matrix: Float[Array, "n n"]
    log_abs_det: Float[Array, ""]
    fresh: Float[Array, " fresh"]
    is_over: Bool[Array, ""]


class SecantFitter(AbstractFitter):
    """Secant updates of a dense M until fresh log-weights agree."""

    operator: lx.AbstractLinearOperator
    transpose: lx.AbstractLinearOperator | None
    start: Float[Array, "n n"]
    log_abs_det: Float[Array, ""]
    block_size: int = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    what: str = eqx.field(static=True, default="secant updates")

    def init(self) -> SecantState:
        """See `AbstractFitter`."""
        fresh = no_fresh(self.block_size, self.start.dtype)
        return SecantState(self.start, self.log_abs_det, fresh, jnp.asarray(False))

    def step(
        self, state: SecantState, key: PRNGKeyArray, index: Int[Array, ""]
    ) -> tuple[SecantState, Record]:
        """See `AbstractFitter`: fresh log-weights come before the update."""
        del index
        z = sphere.frame(key, len(state.matrix), self.block_size, state.matrix.dtype)
        matrix, log_w = secant_update(
            self.operator, self.transpose, state.matrix, state.log_abs_det, z
        )
        fresh = jnp.concatenate([log_w, state.fresh])[: len(state.fresh)]
        record = Record.of(log_w, finite=jnp.all(jnp.isfinite(matrix)))
        over = agree(fresh, self.tolerance) | ~record.finite
        return SecantState(matrix, state.log_abs_det, fresh, over), record

    def proposal(self, state: SecantState) -> Proposal:
        """See `AbstractFitter`."""
        return Proposal(flows.ProjectiveLinear(flows.Dense(state.matrix, state.log_abs_det)))

    def products(self) -> Products:
        """See `AbstractFitter`."""
        return products_of(self.block_size, self.transpose)

    def is_done(self, state: SecantState) -> Bool[Array, ""]:
        """See `AbstractFitter`."""
        return state.is_over

    def has_converged(self, state: SecantState, history: History) -> bool:
        """See `AbstractFitter`."""
        return bool(agree(state.fresh, self.tolerance)) or bool(
            history["spread"][-1] < _MARGIN * self.tolerance
        )

    def has_stalled(self, history: History) -> bool:
        """Whether rounding is all that is left: small, and not halved when it should long have been."""
        eps = float(jnp.finfo(self.start.dtype).eps)
        # steps that see every direction once; without a transpose only one in so many of them counts
        once = max(len(self.start) // self.block_size, 1)
        window = once * (16 if self.transpose is not None else max(16, 4 * once))
        spread = history["spread"]
        if self.block_size == 1 and len(spread) >= _MIN_FRESH:  # one log-weight has no spread
            recent = np.lib.stride_tricks.sliding_window_view(history["loss"], _MIN_FRESH)
            spread = np.std(recent, axis=1)
        if len(spread) < 2 * window or np.nanmedian(spread[-once:]) > math.sqrt(eps):
            return False
        late, early = np.nanmedian(spread[-window:]), np.nanmedian(spread[-2 * window : -window])
        return bool(late > early / 2)

    def require_finite(self, history: History, steps: int) -> None:
        """See `AbstractFitter`."""
        require_finite_updates(history)


def require_memory(operator: lx.AbstractLinearOperator, k: int, who: str) -> None:
    """Refuse an M that does not fit, with what an update on a frame of k directions takes."""
    n, size = operator.in_size(), max(operator.in_size(), operator.out_size())
    _checks.require_memory(
        (4 * n * n + 10 * size * k) * operator.in_structure().dtype.itemsize,
        f"{who} needs four arrays of {n:,}x{n:,} and ten of {size:,}x{k:,}",
        "use Auto(max_matvecs=...), MonteCarlo or Lanczos, which need no n x n",
    )


def agree(fresh: Array, tolerance: float) -> Array:
    """Whether fresh log-weights spread by less than asked; not before enough of them have come."""
    return jnp.std(fresh) < _MARGIN * tolerance


def no_fresh(block_size: int, dtype: Any) -> Float[Array, " fresh"]:
    """Room for the last log-weights, which are unknown yet."""
    return jnp.full(block_size * math.ceil(_MIN_FRESH / block_size), jnp.nan, dtype)


def products_of(block_size: int, transpose: Any) -> Products:
    """Of one update."""
    return Products(block_size, 0 if transpose is None else block_size)


def require_finite_updates(history: History) -> None:
    """Name the first update that was not finite."""
    if not history["finite"].all():
        raise OperatorError(
            f"update {int(np.argmin(history['finite']))} is not finite: the operator maps a "
            "direction to zero, or a product is not finite; check that it is not singular"
        )


def secant_update(
    operator: lx.AbstractLinearOperator,
    transpose: lx.AbstractLinearOperator | None,
    matrix: Float[Array, "n n"],
    log_abs_det: Float[Array, ""],
    z: Float[Array, "n k"],
) -> tuple[Float[Array, "n n"], Float[Array, " k"]]:
    """The updated M, and the log-weights of the frame under the M before it."""
    moved = mm(matrix, z)
    images = images_of(operator, moved)
    values, vectors = images.values, images.vectors
    if transpose is not None:
        y = mm(matrix.T, columns(transpose, images.scaled) / images.scale)
        change = change_of(images, z, y)
    elif images.scaled.shape == z.shape == matrix.shape:
        # all is known: of the equally good M that differ by a rotation, A^{-1} up to scale
        left = mm(images.scaled, vectors / values)
        change = mm(vectors / values, left.T) - z.T
    else:
        change = change_of(images, z)
    return matrix + mm(moved, change), log_abs_det - z.shape[0] * images.log_norms


class Images(NamedTuple):
    """Products with a frame: log-norms, and what they are over the geometric mean of their size."""

    log_norms: Float[Array, " k"]
    scaled: Float[Array, "m k"]
    scale: Float[Array, ""]
    values: Float[Array, " k"]  # singular values of `scaled`
    vectors: Float[Array, "k k"]  # its right singular vectors


def images_of(operator: lx.AbstractLinearOperator, moved: Float[Array, "n k"]) -> Images:
    """Products with moved directions, and their singular values."""
    images = columns(operator, moved)
    log_norms = log_norm(images)
    # first without their size, whose square may overflow; then over the geometric mean
    size = jnp.exp(jnp.mean(log_norms))
    values, vectors = _singular(images / size)
    mean = jnp.exp(jnp.mean(jnp.log(values)))
    scale = size * mean
    return Images(log_norms, images / scale, scale, values / mean, vectors)


def change_of(images: Images, z: Array, y: Array | None = None) -> Float[Array, "k n"]:
    r"""$S^{-1/2}Z^\top - S^{-1}Y^\top$, with $Y = ZS$ where no transpose gives it."""
    return mm(power_of(images, -1), z.T) - (z.T if y is None else mm(power_of(images, -2), y.T))


def power_of(images: Images, power: int) -> Float[Array, "k k"]:
    r"""$S^{p/2}$ of the images' Gram matrix S."""
    return mm(images.vectors * images.values**power, images.vectors.T)


def _singular(images: Array) -> tuple[Array, Array]:
    """Singular values and right singular vectors; by the small matrix S where that is accurate."""
    m, k = images.shape
    if 2 * k <= m:
        return _singular_by_gram(images)
    _, values, vt = _linalg.svd(images)
    # LAPACK gives up at times where singular values are all but equal, and there S is accurate
    return jax.lax.cond(
        jnp.all(jnp.isfinite(values)), lambda: (values, vt.T), lambda: _singular_by_gram(images)
    )


def _singular_by_gram(images: Array) -> tuple[Array, Array]:
    squares, vectors = _linalg.eigh(mm(images.T, images))
    return jnp.sqrt(squares), vectors
