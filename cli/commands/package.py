"""`kernelwright export package`: a pip-installable package with certified kernels of one problem.

kernelwright export package JOB --out dist/             a pip-installable package with the job's best kernel
kernelwright export package CANDIDATE OTHER_JOB ...     several kernels of one problem, for other hardware say
"""

from __future__ import annotations

import io
import re
import tarfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli import show
from cli.service import DEFAULT_URL, JsonOption, ServiceFailed, UnusableInput, UrlOption, service

_FILENAME = re.compile(r"[\w+-][\w.+-]*")


class Format(StrEnum):
    """What pip installs."""

    SDIST = "sdist"
    WHEEL = "wheel"


Ids = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB_OR_CANDIDATE...", help="Whose kernel; further ones of the same problem go in beside it."
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the archive is written.")]
Kind = Annotated[Format, typer.Option("--format", help="A wheel installs without setuptools.")]
Unpack = Annotated[bool, typer.Option("--unpack", help="Write the files of the source distribution, not the archive.")]


def package(
    ids: Ids,
    out: Out = Path(),
    format: Kind = Format.SDIST,
    unpack: Unpack = False,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Export certified kernels of one problem as a pip-installable package, its certificate and tests inside."""
    if unpack and format is Format.WHEEL:
        raise UnusableInput(problem="--unpack is for a source distribution: leave --format wheel out")
    with service(url) as client:
        take = client.package_candidate if ids[0].startswith("cand_") else client.package_job
        name, data = take(ids[0], also=ids[1:], format=format.value)
    if not _FILENAME.fullmatch(name):
        raise ServiceFailed(url=url, problem=f"it gave the archive no usable name: {name!r}")
    written = _unpacked(out, name, data) if unpack else _stored(out, name, data)
    if json:
        show.put_json({"package": str(written), "bytes": len(data)})
    else:
        typer.echo(written)
    if not unpack:
        show.note(f"{len(data)} bytes; install it with: pip install {written}")


def _stored(out: Path, name: str, data: bytes) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    except OSError as error:
        raise UnusableInput(problem=f"cannot write {out / name}: {error.strerror or error}") from error
    return out / name


def _unpacked(out: Path, name: str, data: bytes) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(out, filter="data")
    except OSError as error:
        raise UnusableInput(problem=f"cannot write below {out}: {error.strerror or error}") from error
    return out / name.removesuffix(".tar.gz")
