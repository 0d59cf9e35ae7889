"""The reader of pages notices what a page gets wrong. Real bash, no service, no network."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.guides.pages import read
from tests.support.guides.reader import PageIsWrong, Reader


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kw-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def type_in(home: Path, text: str, **yours: str) -> None:
    with Reader(home, [], yours) as reader:
        reader.read(read("page.md", text))


SERVER = "```sh server\ntrap 'exit {status}' INT; echo up; while true; do sleep 0.05; done\n```\n```output\nup\n```\n"


def test_a_page_is_typed_in_order_in_one_shell_and_one_folder(home: Path) -> None:
    first = "```sh\nNAME=world; echo 1 > file\n```\n"
    then = "```sh\necho hello $NAME\ncat file\n```\n```output\nhello world\n1\n```\n"
    type_in(home, first + then + SERVER.format(status=0) + "```sh\ntest $HOME != $PWD\n```\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```sh\necho 1\n```\n```output\n2\n```\n", "not printed: 2"),
        ("```sh\nfalse\ntrue\n```\n", "line 1: status 1"),
        ("```sh\nfalse | true\n```\n", "line 1: status 1"),
        ("```sh\nnothing-like-this\n```\n", "status 127"),
        ("```sh\nexit 0\n```\n", "the shell ended"),
        ("```sh\necho urn:kernelwright:error:invalid\n```\n", "the API refused"),
        ("```sh yours\nexport OTHER=1\n```\n", "may be the reader's own"),
        ("```sh yours\nexport URL=1\nrm -r x\n```\n", "may be the reader's own"),
        (SERVER.format(status=3), "servers ended with status"),
    ],
)
def test_what_a_page_gets_wrong_is_said(home: Path, text: str, says: str) -> None:
    with pytest.raises(PageIsWrong, match=says):
        type_in(home, text, URL="http://127.0.0.1:1")


def test_the_reader_has_values_of_their_own_and_none_of_the_machine(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWRIGHT_URL", "http://elsewhere")
    text = "```sh yours\nexport URL=http://example  # yours\n```\n```sh\necho $URL ${KERNELWRIGHT_URL:-none}\n```\n"
    type_in(home, text + "```output\nhttp://mine none\n```\n", URL="http://mine")


def test_what_a_page_says_is_not_run_here_is_not_run(home: Path) -> None:
    type_in(home, "```sh gpu\nexit 1\n```\n```sh network\nexit 1\n```\n")
