"""`kernelwright code CANDIDATE`: what a candidate's source became on the way to the device."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from cli import show
from cli.client import Client
from cli.service import DEFAULT_URL, UrlOption, service


class Kind(StrEnum):
    """What can be asked for."""

    TTGIR = "ttgir"
    LLVM = "llvm"
    PTX = "ptx"
    SASS = "sass"
    ASSEMBLY = "assembly"


CandidateArgument = Annotated[str, typer.Argument(metavar="CANDIDATE", help="The id of a candidate, cand_… .")]
KindOption = Annotated[
    Kind | None, typer.Option("--kind", help="Left out, the machine code: sass of a GPU kernel, assembly of C++.")
]


def _reader(client: Client, kind: Kind) -> Callable[[str], str]:
    return {
        Kind.TTGIR: client.ttgir,
        Kind.LLVM: client.llvm,
        Kind.PTX: client.ptx,
        Kind.SASS: client.sass,
        Kind.ASSEMBLY: client.assembly,
    }[kind]


def code(candidate: CandidateArgument, kind: KindOption = None, url: UrlOption = DEFAULT_URL) -> None:
    """Print the generated code of a candidate that the judge accepted: PTX, SASS, assembly, Triton's stages."""
    with service(url) as client:
        kept = [each["kind"] for each in client.candidate(candidate)["code"]]
        # Where nothing is kept any kind will do: the service says why.
        wanted = kind if kind is not None else Kind(kept[-1]) if kept else Kind.ASSEMBLY
        text = _reader(client, wanted)(candidate)
    show.say_source(text)
    if kind is None and len(kept) > 1:
        show.note(f"this is {wanted}; with --kind there are {', '.join(kept[:-1])}")
