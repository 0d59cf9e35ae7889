"""`python -m cli` is `kernelwright`, also where the package is not installed."""

from __future__ import annotations

from cli.main import main

main()
