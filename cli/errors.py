"""Errors of the command line. The docstring of a class is its message; it tells the reader what to do.

    CliError
    ├── LaunchError              a child program could not be started
    ├── EmbeddedError            a private Postgres or Valkey cannot run     (cli.embedded.errors)
    └── UpError                  `kernelwright up` cannot go on              (cli.instance, cli.preflight)

`cli.main` prints the message of a CliError as one line on stderr and leaves with its `exit_code`; what the codes mean
is in `cli.examples.EXIT_CODES`, and those of calls to the service are drawn in `cli.service`.
"""

from __future__ import annotations

import inspect
from typing import ClassVar


class CliError(Exception):
    """Kernelwright cannot go on."""

    exit_code: ClassVar[int] = 1

    def __init__(self, **facts: object) -> None:
        """Fill `facts` into the placeholders of the class's docstring."""
        template = " ".join((inspect.getdoc(type(self)) or "").split())
        super().__init__(template.format(**facts))
        self.facts = facts
