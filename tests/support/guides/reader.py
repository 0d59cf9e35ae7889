"""A reader who types what a page says, in a bash of their own, and compares what they see with what it says.

The reader has a home, an empty folder in it to stand in, PATH with `kernelwright` on it, and the network of the test.
Nothing else is set up: what a page needs it must say, or say that its reader has it (`sh yours`).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.guides.matching import difference
from tests.support.guides.pages import NOT_RUN, Page, Step
from tests.support.people import ROOT, processes_in

PATIENCE_S = 600.0
"""For one block of commands: a search of a candidate takes 70 s on two cores that have nothing else to do."""
# A command that fails is noted and the next one is typed, as a person would; `set -m` gives each server a group of
# processes of its own, so that it can be sent what Ctrl-C sends.
_PROLOGUE = 'set -m; set -o pipefail; trap \'echo "line $LINENO: status $?" >> "$FAILED"\' ERR\n'


class PageIsWrong(AssertionError):
    """A page says something that does not happen."""


class Reader:
    """One bash. Use it as a context manager: at its end servers are stopped, and must say that all went well."""

    def __init__(self, home: Path, network: Sequence[str], yours: Mapping[str, str] | None = None) -> None:
        self.home = home
        self._yours = yours or {}
        self._folder = Path(tempfile.mkdtemp(prefix="at-", dir=home))
        self._scripts = self._folder / ".typed"
        self._scripts.mkdir()
        self._servers: list[str] = []
        inherited = {name: os.environ[name] for name in ("LANG", "OMP_WAIT_POLICY") if name in os.environ}
        self._bash = subprocess.Popen(
            [*network, "bash", "--noprofile", "--norc"],
            cwd=self._folder,
            env={
                **inherited,
                "HOME": str(home),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "FAILED": str(self._scripts / "failed"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._type(_PROLOGUE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            statuses = [self._stop(server) for server in reversed(self._servers)]
        finally:
            self._bash.kill()
            self._bash.communicate()
            for left in processes_in(self._folder):  # what a page was doing when it took too long
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(left.split()[0]), signal.SIGKILL)
        if error is None and set(statuses) - {"0"}:
            raise PageIsWrong(f"servers ended with status {statuses} after Ctrl-C")

    def read(self, page: Page) -> None:
        """Type everything on the page that is to be typed here."""
        for step in page.steps():
            role, where = step.commands.role, f"{page.name}:{step.commands.line}"
            if role in NOT_RUN:
                continue
            if role == "yours":
                self._run(self._with_own_values(step.commands.text, where), where)
            elif role == "server":
                self._serve(step, where)
            else:
                self._compare(step, self._run(step.commands.text, where), where)

    def _with_own_values(self, text: str, where: str) -> str:
        names = re.findall(r"^(?:export )?(\w+)=\S*(?: +# .*)?$", text, flags=re.MULTILINE)
        unknown = set(names) - set(self._yours)
        if unknown or len(names) != len(text.splitlines()):
            raise PageIsWrong(f"{where}: only assignments, and only of {sorted(self._yours)}, may be the reader's own")
        return "".join(f"export {name}='{self._yours[name]}'\n" for name in names)

    def _run(self, text: str, where: str) -> str:
        script, output = self._script(text)
        failed = self._scripts / "failed"
        failed.unlink(missing_ok=True)
        self._type(f". {script} </dev/null >{output} 2>&1; echo done\n")
        self._hear(where, output)
        printed = output.read_text()
        if "urn:kernelwright:error:" in printed:
            raise PageIsWrong(f"{where}: the API refused\n{printed}")
        if failed.exists():
            raise PageIsWrong(f"{where}: {failed.read_text().strip()}\n--- printed ---\n{printed}")
        return printed

    def _serve(self, step: Step, where: str) -> None:
        script, output = self._script(step.commands.text)
        self._type(f"{{ . {script}; }} </dev/null >{output} 2>&1 & echo $!\n")
        self._servers.append(self._hear(where, output))
        deadline = time.monotonic() + PATIENCE_S
        while step.printed and (wrong := difference(step.printed.text, output.read_text(), str(self.home))):
            if time.monotonic() > deadline:
                raise PageIsWrong(f"{where}: {wrong}")
            time.sleep(0.1)

    def _compare(self, step: Step, printed: str, where: str) -> None:
        wrong = step.printed and difference(step.printed.text, printed, str(self.home))
        if wrong:
            raise PageIsWrong(f"{where}: {wrong}")

    def _script(self, text: str) -> tuple[Path, Path]:
        script = self._scripts / f"{len(list(self._scripts.glob('*.sh')))}.sh"
        script.write_text(text)
        output = script.with_suffix(".out")
        output.touch()
        return script, output

    def _type(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text)
        self._bash.stdin.flush()

    def _hear(self, where: str, output: Path) -> str:
        line = self._answer()
        if not line:
            raise PageIsWrong(f"{where}: the shell ended, or {PATIENCE_S:.0f} s were over\n{output.read_text()}")
        return line

    def _answer(self) -> str:
        """The shell's next line; empty when it has ended, which it is made to when it takes too long."""
        assert self._bash.stdout is not None
        watch = threading.Timer(PATIENCE_S, self._bash.kill)
        watch.start()
        try:
            return self._bash.stdout.readline().strip()
        finally:
            watch.cancel()

    def _stop(self, server: str) -> str:
        """What Ctrl-C does, to the server's whole group; its exit status."""
        with suppress(ProcessLookupError):
            os.killpg(int(server), signal.SIGINT)
        with suppress(BrokenPipeError):
            self._type(f"wait {server}; echo $?\n")
        return self._answer()
