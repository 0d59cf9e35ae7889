"""`kernelwright certify`: judge one candidate, put it through the finalist's system checks, and write the evidence.

    kernelwright certify --problem softmax --target cpu --language cpp C.py --out evidence/

Writes certificate.json (the document) and certificate.html (a page made from it). Exit code 0 when the candidate is
certified, 3 when it is not, 1 when the machine failed, 2 for input that cannot be used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.evaluate import (
    Hardware,
    Home,
    KernelLanguage,
    Problem,
    Sandbox,
    UnusableInput,
    check_target,
    find_problem,
    local_judge,
    read_source,
)
from cli.show import note, put_json, say
from problems.catalog import ProblemError
from worker.judge.certificate.render import render
from worker.judge.report import EvaluationRequest
from worker.judge.verdict import ReferenceFailed

_REFUSED = 3


def certify(
    file: Annotated[Path, typer.Argument(metavar="CANDIDATE.py", show_default=False)],
    problem: Problem = "",
    target: Hardware = "cpu",
    language: KernelLanguage = "cpp",
    out: Annotated[Path, typer.Option(help="Folder for certificate.json and certificate.html.")] = Path(),
    home: Home = None,
    sandbox: Sandbox = "process",
    as_json: Annotated[bool, typer.Option("--json", help="The whole document as one JSON object.")] = False,
) -> None:
    """Judge a finalist and write its certificate: one JSON document, and a page made from it."""
    source, name = find_problem(problem)
    check_target(target, language)
    if not file.is_file():
        raise UnusableInput(what=f"{file}: no such file")
    request = EvaluationRequest(str(file), read_source(file), name, source, target, language)
    with local_judge(home, target, sandbox) as judge:
        try:
            document = judge.certify(request)
        except (ReferenceFailed, ProblemError) as refused:
            raise UnusableInput(what=f"{name}: {refused}") from refused
    if "schema" not in document:
        note(f"{file}: {document.get('verdict', 'infra_error')}: {document.get('reason', '')}")
        raise typer.Exit(1)
    _write(document, out)
    if as_json:
        put_json(document)
    else:
        say(document["summary"])
    note(f"{out / 'certificate.json'} and {out / 'certificate.html'}, SHA-256 {document['sha256']}")
    if not document["certified"]:
        raise typer.Exit(1 if document["verdict"] == "infra_error" else _REFUSED)


def _write(document: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
    (out / "certificate.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    (out / "certificate.html").write_text(render(document), encoding="utf-8")
