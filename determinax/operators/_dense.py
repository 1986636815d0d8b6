"""The kind "dense": arrays, and lists of rows."""

from typing import Any

import jax
import lineax as lx
import numpy as np
from jax.core import Tracer

from determinax.operators._door import Entered, enter, inexact, narrowing_note
from determinax.operators._traits import OperatorError


# isinstance(tracer, jax.Array) holds by a metaclass, which dispatch does not see
@enter.register(Tracer)
@enter.register(jax.Array)
@enter.register(np.ndarray)
@enter.register(np.generic)
@enter.register(list)
@enter.register(tuple)
def enter_array(array: Any, example: Any = None) -> Entered:
    """A matrix."""
    del example
    matrix = inexact(array, "operator")
    if matrix.ndim != 2:
        raise OperatorError(
            f"operator has shape {matrix.shape}: a matrix has two axes "
            "(for a batch of matrices use jax.vmap)"
        )
    notes = narrowing_note(getattr(array, "dtype", matrix.dtype), matrix.dtype)
    return Entered(lx.MatrixLinearOperator(matrix), notes=notes)
