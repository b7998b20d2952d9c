"""The `relight` command."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    from relight.cli.main import run  # imported here, so that `import relight.cli` costs nothing

    run()
