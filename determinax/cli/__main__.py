"""`python -m determinax.cli`."""

from determinax.cli import main

main()
