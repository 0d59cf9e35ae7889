"""`kernelwright dump JOB` and `kernelwright load [FILE...]`: take a finished job away, bring it into another database.

With the job go its problem, its candidates with what the judge found, its kernel and its certificate; where it is
loaded it is taught like a job that ended there, so later jobs are shown its kernel and its lessons. `load` without
files loads the kernels that come with Kernelwright. Loading again changes nothing.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import DBAPIError

from cli import show
from cli.database import database
from cli.errors import CliError
from cli.options import JsonOption
from db.dumps import NotAJob, dump_job, known_jobs, load_job, read_header
from problems.kernels import bundled_kernels

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The id of a job that has ended.")]
Out = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="Write it here; compressed where the name ends in .gz.")
]
Files = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", help="Dumps; left out: the kernels that come with this.")
]


_BROKEN = (UnicodeDecodeError, EOFError, zlib.error, OSError)


class NothingToDump(CliError):
    """{why}: `kernelwright jobs` lists the jobs, and one that runs can be waited for with `kernelwright watch`."""

    exit_code = 2


class UnusableDump(CliError):
    """{path}: {why}"""

    exit_code = 2


def dump(job: JobId, out: Out, json: JsonOption = False) -> None:
    """Write a finished job with its kernel and all evidence to a file."""
    with database("kernelwright dump") as session:
        try:
            lines = "".join(f"{line}\n" for line in dump_job(session, job)).encode()
        except LookupError as error:
            raise NothingToDump(why=error.args[0]) from error
    # Without a time in it, so that the same job is the same bytes.
    out.write_bytes(gzip.compress(lines, mtime=0) if out.suffix == ".gz" else lines)
    if json:
        show.put_json({"job_id": job, "path": str(out), "bytes": out.stat().st_size})
    else:
        show.say(f"{out}: {out.stat().st_size:,} bytes")


def load(files: Files = None, json: JsonOption = False) -> None:
    """Bring finished jobs in, or the kernels that come with Kernelwright."""
    loaded = load_files(files if files else bundled_kernels())
    for path, new in loaded:
        if json:
            show.put_json({"path": str(path), "loaded": new})
        elif files:
            show.say(f"{path}: {'loaded' if new else 'here already'}")
    if not json and not files:
        show.say(f"{sum(new for _, new in loaded)} kernels loaded, {sum(not new for _, new in loaded)} were here")


def load_files(files: Sequence[Path]) -> list[tuple[Path, bool]]:
    """Load each in a transaction of its own; whether it was new. Raises UnusableDump, NoDatabase."""
    headers = {path: _job_id(path) for path in files}
    if not headers:
        return []
    with database("kernelwright load") as session:
        here = known_jobs(session, headers.values())
    return [(path, job_id not in here and _load(path)) for path, job_id in headers.items()]


def _job_id(path: Path) -> str:
    try:
        with _lines(path) as lines:
            return read_header(next(lines, ""))
    except (NotAJob, *_BROKEN) as error:
        raise UnusableDump(path=path, why=error) from error


def _load(path: Path) -> bool:
    try:
        with _lines(path) as lines, database("kernelwright load") as session:
            return load_job(session, lines)
    except (NotAJob, *_BROKEN) as error:
        raise UnusableDump(path=path, why=error) from error
    except DBAPIError as error:
        raise UnusableDump(path=path, why=str(error.orig).partition("\n")[0]) from error


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        plain = gzip.GzipFile(fileobj=file) if compressed else file
        yield iter(io.TextIOWrapper(plain, encoding="utf-8", newline="\n"))
