"""log|det A| from matrix-vector products alone: with an error bar, a bound and a verdict."""

__version__ = "0.1.0"
