"""Certificates of real C++ finalists, as the judge issued them: `softmax`, `rmsnorm_residual`, and `rmsnorm_train`,
which was judged forward and backward.

The roofline of `rmsnorm_train` counts one operation for each output: torch's counter fails in a call that holds a
backward.

The hash of the problem's text is that of the file in this checkout, and the document is signed anew: a comment in a
bundled problem must not make these useless.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from problems.catalog import bundled, source_hash
from worker.judge.certificate.document import document_hash

HERE = Path(__file__).parent


def problem_source(name: str) -> str:
    """The file of a finalist's problem."""
    own = HERE / f"{name}.py"
    return own.read_text(encoding="utf-8") if own.exists() else bundled()[name].source


def certificate(name: str, **other: Any) -> dict[str, Any]:
    """A finalist's certificate; `other` replaces whole parts of it."""
    document = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")) | other
    document["problem"]["sha256"] = source_hash(problem_source(name))
    return signed(document)


def signed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the hash that it must have."""
    return {**document, "sha256": document_hash(document)}


def elsewhere(source: str, language: str = "triton") -> dict[str, Any]:
    """The certificate that softmax might get for another source on an H200: softmax's own, with what must differ."""
    document = certificate("softmax")
    workloads = bundled()["softmax"].spec.workloads_for("nvidia-h200")
    document["candidate"] |= {"source": source, "sha256": source_hash(source), "language": language}
    document["hardware"] = "nvidia-h200"
    document["environment"] = {"arch": "sm_90", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0"}
    document["problem"]["workloads"] = [
        {"name": each.name, "params": dict(each.params), "inputs": ["{dtype} {rows} x {cols}".format(**each.params)]}
        for each in workloads
    ]
    timed = document["timing"]["workloads"][0]
    document["timing"]["workloads"] = [{**timed, "name": each.name, "samples_us": {}} for each in workloads]
    return signed(document)
