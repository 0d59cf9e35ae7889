"""Options that commands share and that need neither a client nor a service."""

from __future__ import annotations

from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, and nothing else on stdout.")]
