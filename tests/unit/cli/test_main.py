"""The command's front: what it lists, what it imports, how it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cli import main
from cli.errors import CliError

HEAVY = ("torch", "sqlalchemy", "psycopg", "celery", "fastapi", "redis", "alembic", "litellm", "optuna")


def test_help_lists_every_command_and_imports_none() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from cli import main;"
        "print(CliRunner().invoke(main.app, ['--help']).output);"
        f"print('HEAVY', [name for name in {HEAVY} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "HEAVY []" in said
    for name in main.COMMANDS:
        assert name in said


@pytest.mark.parametrize("name", [name for name in main.COMMANDS if name != "evaluate"])
def test_each_command_has_its_own_help(name: str) -> None:
    result = CliRunner().invoke(main.app, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert name in result.output


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cli.migrate", None)
    result = CliRunner().invoke(main.app, ["migrate"])
    assert isinstance(result.exception, main.MissingPackage)
    assert "pip install" in str(result.exception)


def test_an_error_is_a_sentence_on_stderr_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refused(CliError):
        """The {thing} is
        refused."""

        exit_code = 7

    def refuse(prog_name: str) -> None:
        raise Refused(thing="{door}")

    monkeypatch.setattr(main, "app", refuse)
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 7
    assert capsys.readouterr().err == "kernelwright: The {door} is refused.\n"
