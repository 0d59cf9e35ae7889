"""Writes docs/cli.md from the commands themselves: `python -m cli.generate.reference`.

To be run when a command, an option or its help changed; tests/unit/cli/test_reference.py fails while the page is not
current.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command

from cli.examples import EXAMPLES, EXIT_CODES
from cli.main import COMMANDS

PATH: Final = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
_HEAD: Final = """# The command line

Written by `python -m cli.generate.reference` from the commands; `kernelwright COMMAND --help` says the same.

- **stdout is the answer**: text for people, with `--json` JSON and nothing else, a document or one object a line. What
  is said beside it (counts, hints, progress) goes to stderr.
- On a terminal lists are tables and `watch` is a live picture; piped they are lines with tabs. Colours are for
  terminals; `NO_COLOR=1` turns them off there.
- `KERNELWRIGHT_URL` names the service in place of `--url`, `KERNELWRIGHT_KEY` holds the API key.
- Reading stops a command at once and quietly (`kernelwright jobs | head -3`); Ctrl-C ends it with status 130, and never
  the job that it watches.
"""
_COMPLETION: Final = """## Shell completion

`kernelwright --install-completion` sets it up for the shell that it is called from (bash, zsh, fish);
`kernelwright --show-completion` prints the script. Beside commands, options and their words it completes the names of
problems, hardware, targets and the ids of the newest 20 jobs, by asking the service for at most a second; where none
answers it offers what it knows without one.
"""


def reference() -> str:
    """The whole page."""
    firsts: dict[str, str] = {}  # a group has no section of its own
    for name, _command in every_command():
        firsts.setdefault(name.split()[0], name.replace(" ", "-"))
    rows = "\n".join(f"| [`{name}`](#{firsts[name]}) | {lazy.summary} |" for name, lazy in COMMANDS.items())
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    parts = [
        _HEAD,
        f"| exit status | means |\n|---|---|\n{codes}\n",
        f"| command | what it does |\n|---|---|\n{rows}\n",
        _COMPLETION,
        *("\n".join(_section(name, command)) for name, command in every_command()),
    ]
    return "\n".join(parts)


def every_command() -> Iterator[tuple[str, TyperCommand]]:
    """Each command with its name; of a group, its commands: `export package`."""
    for name, lazy in COMMANDS.items():
        command: Any = get_command(lazy.load(name))
        parts = command.commands.items() if isinstance(command, TyperGroup) else ()
        yield from ((f"{name} {part}", cast(TyperCommand, each)) for part, each in parts)
        if not parts:
            yield name, command


def _section(name: str, command: TyperCommand) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{_text(command.help or '')}\n"
    if name in EXAMPLES:
        yield f"```sh\n{EXAMPLES[name]}\n```\n"
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    options = [each for each in command.params if each not in arguments and not getattr(each, "hidden", False)]
    if arguments:
        yield from _rows("argument", [(f"`{each.metavar or each.name}`", _about(each)) for each in arguments])
    if options:
        yield from _rows("option", [(_names(each, command), _about(each)) for each in options])


def _rows(head: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"| {head} | |\n|---|---|"
    for name, about in rows:
        yield f"| {name} | {about} |"
    yield ""


def _names(option: Any, command: TyperCommand) -> str:
    flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
    return flags if option.is_flag else f"{flags} `{_cell(option.display_type_rich(ctx=_context(command)))}`"


def _about(parameter: Any) -> str:
    about = [_text(getattr(parameter, "help", None) or "")]
    if getattr(parameter, "envvar", None):
        about.append(f"Variable: `{parameter.envvar}`.")
    default = parameter.default
    if not getattr(parameter, "is_flag", False) and default not in (None, "", []) and not callable(default):
        about.append(f"Default: `{_default(parameter)}`.")
    return _cell(" ".join(part for part in about if part))


def _default(parameter: Any) -> str:
    # A path below the reader's home is not this machine's.
    shown = parameter.show_default
    return shown if isinstance(shown, str) else str(parameter.default).replace(str(Path.home()), "~")


def _context(command: TyperCommand) -> Any:
    return command.make_context(command.name, [], resilient_parsing=True)


def _text(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PATH.write_text(reference(), encoding="utf-8")
