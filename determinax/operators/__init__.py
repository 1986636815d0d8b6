"""Operators: what comes in through the door, and the products with it."""

from determinax.operators.door import (
    admit,
    as_operator,
    convolution,
    require_not_wide,
    require_square,
)
from determinax.operators.kinds import (
    NO_PRODUCTS,
    ConvolutionLinearOperator,
    HostLinearOperator,
    OperatorError,
    Products,
    RealEmbedding,
    SparseLinearOperator,
    columns,
    host_operators,
    is_traced,
    log_det_factor,
    rows_columns,
)

__all__ = [
    "NO_PRODUCTS",
    "ConvolutionLinearOperator",
    "HostLinearOperator",
    "OperatorError",
    "Products",
    "RealEmbedding",
    "SparseLinearOperator",
    "admit",
    "as_operator",
    "columns",
    "convolution",
    "host_operators",
    "is_traced",
    "log_det_factor",
    "require_not_wide",
    "require_square",
    "rows_columns",
]
