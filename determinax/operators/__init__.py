"""Operators: what comes in through the door, and the products with it."""

from determinax.operators.deflate import compiled_deflate, deflate
from determinax.operators.door import (
    admit,
    as_operator,
    convolution,
    require_not_wide,
    require_square,
    require_transpose,
)
from determinax.operators.kinds import (
    NO_PRODUCTS,
    CompressedLinearOperator,
    ConvolutionLinearOperator,
    HostLinearOperator,
    OperatorError,
    PreconditionedLinearOperator,
    Products,
    RealEmbedding,
    SparseLinearOperator,
    columns,
    host_operators,
    is_traced,
    log_det_factor,
    rows_columns,
)
from determinax.operators.probe import banded_pattern, colour, known_pattern, probe

__all__ = [
    "NO_PRODUCTS",
    "CompressedLinearOperator",
    "ConvolutionLinearOperator",
    "HostLinearOperator",
    "OperatorError",
    "PreconditionedLinearOperator",
    "Products",
    "RealEmbedding",
    "SparseLinearOperator",
    "admit",
    "as_operator",
    "banded_pattern",
    "colour",
    "columns",
    "compiled_deflate",
    "convolution",
    "deflate",
    "host_operators",
    "is_traced",
    "known_pattern",
    "log_det_factor",
    "probe",
    "require_not_wide",
    "require_square",
    "require_transpose",
    "rows_columns",
]
