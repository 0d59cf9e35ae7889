"""`kernelwright import`: problems that others wrote, as problems and jobs of ours."""

from __future__ import annotations

import typer

from cli.commands.importing import flashinfer, kernelbench

import_app = typer.Typer(
    help="Bring problems of other suites in: KernelBench, FlashInfer Trace, SOL-ExecBench.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
import_app.command("kernelbench")(kernelbench)
import_app.command("flashinfer")(flashinfer)
