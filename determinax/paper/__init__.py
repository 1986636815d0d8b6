"""The paper: its matrices, and what it reports about them."""

from determinax.paper.matrices import (
    FILTER,
    MATRICES,
    MONTE_CARLO_ERROR,
    SAMPLES,
    VARIATIONAL_ERROR,
    PaperMatrix,
    matrix_named,
)

__all__ = [
    "FILTER",
    "MATRICES",
    "MONTE_CARLO_ERROR",
    "SAMPLES",
    "VARIATIONAL_ERROR",
    "PaperMatrix",
    "matrix_named",
]
