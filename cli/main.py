"""The `kernelwright` command. Each subcommand's module is imported only when that subcommand runs.

So `kernelwright evaluate` needs nothing but torch, and `kernelwright submit` on a laptop needs neither torch nor a
database driver: keep this module free of imports of ours beside errors and examples.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from cli.errors import CliError
from cli.examples import EXAMPLES, EXIT_CODES

_SETTINGS = {"help_option_names": ["-h", "--help"]}


class MissingPackage(CliError):
    """`kernelwright {command}` needs the Python package {package}, which is not installed: pip install
    'kernelwright[all]' (or one of its extras: api, llm, gpu, embedded, mcp)."""


@dataclass(frozen=True, slots=True)
class _Lazy:
    """Where a subcommand lives, and its line in the list of commands."""

    place: str
    summary: str

    def load(self, name: str) -> typer.Typer:
        """The command itself, its module imported. Raises MissingPackage when that cannot be done here."""
        module, _, function = self.place.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as error:
            raise MissingPackage(command=name, package=error.name) from error
        if isinstance(found, typer.Typer):  # it has subcommands of its own
            for each in found.registered_commands:
                each.epilog = _example(f"{name} {each.name or getattr(each.callback, '__name__', '')}")
            return found
        command = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=_SETTINGS)
        command.command(name, epilog=_example(name))(found)
        return command


def _example(name: str) -> str | None:
    return f"Example: {EXAMPLES[name]}" if name in EXAMPLES else None


COMMANDS = {
    "up": _Lazy("cli.up:up", "Start everything on this machine: Postgres, Valkey, the API and the workers."),
    "demo": _Lazy("cli.demo:demo", "Watch one real search from a REST call to a verified faster kernel."),
    "submit": _Lazy("cli.commands.submit:submit", "Submit a problem: one of the bundled ones or a file of your own."),
    "request": _Lazy("cli.commands.requests:request", "Ask for a kernel in plain words, and see what is proposed."),
    "confirm": _Lazy("cli.commands.requests:confirm", "Submit the job that a request proposes."),
    "watch": _Lazy("cli.commands.watch:watch", "Follow a job until it ends."),
    "jobs": _Lazy("cli.commands.jobs:jobs", "List jobs."),
    "best": _Lazy("cli.commands.jobs:best", "Print a job's best kernel, or its evidence."),
    "certificate": _Lazy("cli.commands.jobs:certificate", "Show the certificate of a job's champion."),
    "candidates": _Lazy("cli.commands.jobs:candidates", "List a job's candidates with their verdicts."),
    "diff": _Lazy(
        "cli.commands.diff:diff", "Compare two candidates: timings side by side, and the diff of their sources."
    ),
    "code": _Lazy("cli.commands.code:code", "Print a candidate's generated code: PTX, SASS, assembly."),
    "cancel": _Lazy("cli.commands.jobs:cancel", "Cancel a job."),
    "rerun": _Lazy("cli.commands.submit:rerun", "Submit what a job asked for once more."),
    "ask": _Lazy("cli.commands.ask:ask", "Take open questions of a job, with their prompts, to answer them yourself."),
    "tell": _Lazy("cli.commands.ask:tell", "Bring back the answers to a job's questions."),
    "problems": _Lazy("cli.commands.catalog:problems", "List the problems that the service knows by name."),
    "leaderboard": _Lazy("cli.commands.catalog:leaderboard", "Show who is fastest at a problem, and who is not."),
    "knowledge": _Lazy("cli.commands.knowledge:knowledge", "Look up what earlier searches taught, and its worth."),
    "workers": _Lazy("cli.commands.fleet:workers", "List the workers and what they can do; drain or resume one."),
    "summary": _Lazy(
        "cli.commands.fleet:summary", "Show the whole service at a glance: jobs, queues, workers, spending."
    ),
    "webhooks": _Lazy("cli.commands.webhooks:webhooks", "Be told what became of jobs, by signed requests."),
    "evaluate": _Lazy("cli.evaluate:evaluate", "Judge candidates here, alone: no database, no network."),
    "admit": _Lazy("cli.admit:admit", "Say here whether a problem can be judged, and what would pass that must not."),
    "certify": _Lazy("cli.certify:certify", "Judge a finalist here and write its certificate: JSON and a page."),
    "replay": _Lazy("cli.replay:replay", "Judge a stored candidate again here, or run a job's search again."),
    "export": _Lazy("cli.export:export_app", "Take candidates and winners away, in formats that others read."),
    "import": _Lazy("cli.imports:import_app", "Bring problems of other suites in: KernelBench, FlashInfer Trace."),
    "worker": _Lazy("cli.worker:worker", "Run workers against a Postgres and a Redis of your own."),
    "keys": _Lazy("cli.keys:keys", "List API keys; make, change, rotate or revoke one."),
    "audit": _Lazy("cli.commands.audit:audit", "Read who submitted, cancelled and changed what."),
    "mcp": _Lazy("cli.mcp.command:mcp", "Serve the service's tools to a coding agent (Model Context Protocol)."),
    "dump": _Lazy("cli.dumps:dump", "Take a finished job away: its kernel, its certificate, its candidates."),
    "load": _Lazy("cli.dumps:load", "Bring finished jobs in, or the kernels that come with Kernelwright."),
    "migrate": _Lazy("cli.migrate:migrate", "Bring the database's schema up to date."),
    "health": _Lazy("cli.health:health", "Say whether this machine's workers live, for a container's health check."),
    "doctor": _Lazy("cli.doctor:doctor", "Say what this machine has and what it lacks."),
}


class _Commands(TyperGroup):
    """The commands; a shell that completes the arguments of one gets the real one, with its options."""

    # typer's own copy of click has other names for the same types.
    def get_command(self, context: typer.Context, name: str) -> TyperCommand | None:  # type: ignore[override]
        if context.resilient_parsing and name in COMMANDS:
            with suppress(MissingPackage):
                return cast(TyperCommand, get_command(COMMANDS[name].load(name)))
        return cast(TyperCommand | None, super().get_command(context, name))


app = typer.Typer(
    cls=_Commands,
    help="Kernelwright searches for a faster kernel for a PyTorch operation, and believes only its judge.",
    epilog="Exit status: " + ", ".join(f"{code} {meaning.partition(':')[0]}" for code, meaning in EXIT_CODES.items()),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        typer.echo(f"kernelwright {_version()}")
        raise typer.Exit


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("kernelwright")
    except metadata.PackageNotFoundError:
        return "(run from a checkout, not installed)"


def _hand_over(name: str, lazy: _Lazy) -> Callable[[typer.Context], None]:
    """A command that knows nothing but its name and hands all its arguments, --help too, to the real one."""

    def run(context: typer.Context) -> None:
        lazy.load(name)(args=context.args, prog_name=context.command_path)

    return run


for _name, _lazy in COMMANDS.items():
    app.command(
        _name,
        help=_lazy.summary,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
    )(_hand_over(_name, _lazy))


def main() -> None:
    """Entry point: a CliError becomes one sentence on stderr and its exit code."""
    try:
        app(prog_name="kernelwright")
    except CliError as error:
        from cli.show import note  # only now: it imports what draws tables

        note(f"kernelwright: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
