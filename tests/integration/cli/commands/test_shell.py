"""The command among the other programs of a shell: completion, closed pipes, Ctrl-C, nobody there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.client import Client, Job
from tests.integration.cli.commands.conftest import Kernelwright, command, environment

BASH = shutil.which("bash")
NOBODY = "http://127.0.0.1:9"
_TIMES = 5

# What bash does at <TAB>: the words so far and which of them is being typed, then the function that is registered.
TAB = """
eval "$(kernelwright --show-completion)"
complete_with=$(complete -p kernelwright | sed 's/.*-F \\([^ ]*\\).*/\\1/')
while read -r url words; do
    export KERNELWRIGHT_URL=$url
    COMP_WORDS=($words)
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    "$complete_with" kernelwright < /dev/null
    echo "${COMPREPLY[@]}"
done
"""


def offered(lines: list[str], tmp_path: Path) -> list[str]:
    """What a real bash offers for the last word of each line, which begins with the URL of a service."""
    program = tmp_path / "kernelwright"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cli "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [str(BASH), "--norc", "-c", TAB],
        env=environment(PATH=f"{tmp_path}:{os.environ['PATH']}", SHELL=str(BASH)),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
def test_bash_completes_commands_options_words_and_what_the_service_knows(url: str, job: Job, tmp_path: Path) -> None:
    lines = {
        f"{url} kernelwright ca": "candidates cancel",
        f"{url} kernelwright jobs --sta": "--state",
        f"{url} kernelwright jobs --state ca": "cancelling cancelled",
        f"{url} kernelwright watch job_": job["id"],
        f"{NOBODY} kernelwright watch job_": "",
        f"{NOBODY} kernelwright submit softm": "softmax",
    }
    # A shell gives the service a second; on a busy machine a person presses again.
    for _ in range(_TIMES):
        if (seen := offered(list(lines), tmp_path)) == list(lines.values()):
            break
    assert seen == list(lines.values())


def test_a_reader_that_has_seen_enough_is_no_error(url: str, job: Job) -> None:
    for arguments in (["problems", "--json"], ["watch", job["id"]]):
        process = subprocess.Popen(
            command(*arguments), env=environment(KERNELWRIGHT_URL=url), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        if arguments[0] == "watch":
            with Client(url) as client:
                client.cancel(job["id"])
        said = process.stderr.read()
        process.stderr.close()
        assert process.wait(30) in (0, 1, 3)
        assert b"Traceback" not in said and b"BrokenPipe" not in said, (arguments, said)


def test_ctrl_c_ends_it_with_130_and_leaves_the_job(url: str, client: Client, job: Job) -> None:
    process = subprocess.Popen(
        command("watch", job["id"], "--json"),
        env=environment(KERNELWRIGHT_URL=url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["job_id"] == job["id"]
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said and "goes on" in said
    assert all(json.loads(line) for line in rest.splitlines())
    assert client.job(job["id"])["state"] == "running"


@pytest.mark.parametrize("arguments", [["jobs"], ["submit", "softmax", "--target", "cpu:cpp"], ["summary", "--json"]])
def test_nobody_there_is_one_line_that_says_how_to_start_it(kernelwright: Kernelwright, arguments: list[str]) -> None:
    done = kernelwright(*arguments, KERNELWRIGHT_URL=NOBODY)
    assert (done.returncode, done.stdout) == (4, "")
    assert len(done.stderr.splitlines()) == 1
    assert "kernelwright up" in done.stderr


def test_piped_output_has_no_colours(kernelwright: Kernelwright, job: Job) -> None:
    for arguments in (["jobs"], ["jobs", "--limit", "none"]):
        done = kernelwright(*arguments)
        assert "\x1b" not in done.stdout + done.stderr


def test_no_color_is_heeded_on_a_terminal() -> None:
    with_colour, without = (_on_terminal(**variables) for variables in ({}, {"NO_COLOR": "1"}))
    assert b"\x1b[1m" in with_colour  # bold headings
    assert b"\x1b[3" not in without


def _on_terminal(**variables: str) -> bytes:
    """What `kernelwright jobs --help` shows on a terminal."""
    master, terminal = os.openpty()
    env = environment(TERM="xterm-256color", **variables)
    process = subprocess.Popen(command("jobs", "--help"), env=env, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:
        pass  # the other end is closed
    os.close(master)
    assert process.wait(30) == 0
    return shown
