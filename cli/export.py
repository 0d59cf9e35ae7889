"""`kernelwright export`: what the service holds, in the forms that others read."""

from __future__ import annotations

import typer

from cli.commands.dataset import dataset
from cli.commands.flashinfer import flashinfer
from cli.commands.package import package

export_app = typer.Typer(
    help="Take candidates and winners away, in formats that others read.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
export_app.command("dataset")(dataset)
export_app.command("flashinfer")(flashinfer)
export_app.command("package")(package)
