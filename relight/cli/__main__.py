"""`python -m relight.cli`."""

from relight.cli import main

main()
