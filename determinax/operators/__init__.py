"""Operators: what comes in through the door, and what may be asked of it.

```python
layer = dx.operators.convolution(jnp.array([[0.0, 0.1], [0.1, 1.0]]), (8, 8))
dx.log_abs_det(layer)
```
"""

from determinax.operators._callable import (
    FlatLinearOperator,
    TracedLinearOperator,
    TransposedLinearOperator,
)
from determinax.operators._combined import (
    CompressedLinearOperator,
    PreconditionedLinearOperator,
    Reflector,
    reflector,
)
from determinax.operators._complex import RealEmbedding
from determinax.operators._convolution import ConvolutionLinearOperator, convolution
from determinax.operators._door import Admitted, admit, as_operator, is_compiling
from determinax.operators._factorise import Prepared, factorise, prepare, sparse_matrix
from determinax.operators._host import HostLinearOperator
from determinax.operators._layout import neutral, num_parts, on_auto_meshes, on_one_device
from determinax.operators._probing import (
    Outline,
    banded_outline,
    banded_pattern,
    colour,
    colours,
    outline,
    probe,
)
from determinax.operators._sparse import SparseLinearOperator
from determinax.operators._traits import (
    COPIES,
    NO_PRODUCTS,
    AbstractOwnOperator,
    HostCalls,
    OperatorError,
    Products,
    Traits,
    columns,
    compiled_columns,
    has_transpose,
    host_calls,
    own_kind,
    pattern,
    require_not_wide,
    require_square,
    require_transpose,
    traits,
    untagged,
    user_shape,
)

__all__ = [
    "COPIES",
    "NO_PRODUCTS",
    "AbstractOwnOperator",
    "Admitted",
    "CompressedLinearOperator",
    "ConvolutionLinearOperator",
    "FlatLinearOperator",
    "HostCalls",
    "HostLinearOperator",
    "OperatorError",
    "Outline",
    "PreconditionedLinearOperator",
    "Prepared",
    "Products",
    "RealEmbedding",
    "Reflector",
    "SparseLinearOperator",
    "TracedLinearOperator",
    "Traits",
    "TransposedLinearOperator",
    "admit",
    "as_operator",
    "banded_outline",
    "banded_pattern",
    "colour",
    "colours",
    "columns",
    "compiled_columns",
    "convolution",
    "factorise",
    "has_transpose",
    "host_calls",
    "is_compiling",
    "neutral",
    "num_parts",
    "on_auto_meshes",
    "on_one_device",
    "outline",
    "own_kind",
    "pattern",
    "prepare",
    "probe",
    "reflector",
    "require_not_wide",
    "require_square",
    "require_transpose",
    "sparse_matrix",
    "traits",
    "untagged",
    "user_shape",
]
