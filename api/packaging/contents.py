"""What is in the package of a kernel: the candidate and the reference untouched, their evidence, and what runs them.

The part that is the same in every package lies in `worker/packaged` as plain modules, which are copied; what differs is
data (`package.json`, the certificates) and a dozen generated lines.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from api.packaging.naming import Names, module_name, names_of
from api.packaging.readme import readme
from problems.catalog import outline, source_hash

_WORKER: Final = Path(__file__).resolve().parents[2] / "worker"
_COPIED: Final = ("facts.py", "table.py", "kernels.py", "ops.py", "baselines.py", "dispatch.py")
_TESTS: Final = (
    "__init__.py",
    "conftest.py",
    "tolerances.py",
    "test_package.py",
    "test_kernel.py",
    "test_gradients.py",
    "test_baselines.py",
)
_MODES: Final = re.compile(r"training|dropout|rrelu|transformer|(batch|instance)_?norm", re.IGNORECASE)
"""Words of references that may compute something else after eval()."""


class CannotPackage(Exception):
    """A certificate does not hold what a package is made of. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Winner:
    """A certified candidate."""

    candidate_id: str
    hardware: str
    language: str
    document: Mapping[str, Any]
    """Its certificate, with `certified` true."""
    page: str
    """The certificate as HTML."""
    module: str = ""
    """Its name in the package; given by `make_package`."""

    @property
    def source(self) -> str:
        """What was certified."""
        return str(self.document["candidate"]["source"])

    @property
    def device(self) -> str:
        """The kind of device that torch calls it by."""
        return "cpu" if self.hardware == "cpu" else "cuda"

    @property
    def machine(self) -> str:
        """What the dispatch compares with the machine that it runs on."""
        environment = self.document["environment"]
        return str(environment["cpu" if self.device == "cpu" else "arch"])


@dataclass(frozen=True, slots=True)
class Package:
    """A package before it is an archive."""

    names: Names
    version: str
    made_at: datetime
    """When the newest certificate was issued: the date of every file, so that equal packages have equal bytes."""
    files: Mapping[str, str]
    """By path below the import package's folder."""
    readme: str
    requires: tuple[str, ...]
    summary: str


def make_package(problem_name: str, problem_source: str, winners: Sequence[Winner]) -> Package:
    """The package of one problem's certified kernels.

    Raises:
        CannotPackage: a certificate lacks what the package is about.
    """
    named = _named(winners)
    for winner in named:
        _check(winner, problem_source)
    names = names_of(problem_name)
    issued = max(datetime.fromisoformat(winner.document["issued_at"]).astimezone(UTC) for winner in named)
    version = _version(issued, named)
    about = outline(problem_source, problem_name)
    # A gradient that was judged on other hardware only is the reference's in a package for all of it.
    trained = all(about.spec.trains_on(winner.hardware) for winner in named)
    facts = {
        "version": version,
        "problem": problem_name,
        "backward": trained,
        "mode_matters": bool(_MODES.search(problem_source)),
        "tf32": about.spec.precision.tf32,
        "library": dict(about.spec.library),
        "kernels": [
            {
                "name": winner.module,
                "language": winner.language,
                "hardware": winner.hardware,
                "device": winner.device,
                "machine": winner.machine,
            }
            for winner in named
        ],
    }
    files = {
        "__init__.py": _init(names, about.summary or problem_name),
        "package.json": json.dumps(facts, indent=1, sort_keys=True) + "\n",
        "reference.py": problem_source,
        **{name: _packaged(name) for name in _COPIED},
        **{f"tests/{name}": _packaged(f"tests/{name}") for name in _TESTS},
    }
    for winner in named:
        files[f"{winner.module}.py"] = winner.source
        # As ASCII, because a source may hold what is JSON but no UTF-8; in the judge's order, which its hash ignores.
        files[f"certificates/{winner.module}.json"] = json.dumps(winner.document) + "\n"
        files[f"certificates/{winner.module}.html"] = winner.page
    if any(winner.language in ("cpp", "cuda") for winner in named):
        files["_loader.py"] = (_WORKER / "runner" / "kernelwright.py").read_text(encoding="utf-8")
    return Package(
        names=names,
        version=version,
        made_at=issued,
        files=files,
        readme=readme(names, version, about, named, trained=trained),
        requires=("torch>=2.11", *(("triton>=3.6",) if any(each.language == "triton" for each in named) else ())),
        summary=about.summary or f"Certified kernels for {problem_name}",
    )


def _check(winner: Winner, problem_source: str) -> None:
    """Raises CannotPackage."""
    document = winner.document
    machine = "cpu" if winner.device == "cpu" else "arch"
    needed = {
        "candidate": ("source", "sha256"),
        "problem": ("sha256", "workloads"),
        "timing": ("workloads",),
        "environment": (machine,),
    }
    for part, keys in needed.items():
        for key in keys:
            if not (document.get(part) or {}).get(key):
                raise CannotPackage(
                    f"the certificate of {winner.candidate_id} has no {part}.{key}: rerun the job for another"
                )
    if document["problem"]["sha256"] != source_hash(problem_source):
        raise CannotPackage(f"the certificate of {winner.candidate_id} is for another text of the problem")


def _named(winners: Sequence[Winner]) -> list[Winner]:
    named: list[Winner] = []
    for winner in winners:
        plain = module_name(f"kernel_{winner.hardware}_{winner.language}")
        same = sum(each.module.partition("__")[0] == plain for each in named)
        named.append(replace(winner, module=f"{plain}__{same + 1}" if same else plain))
    return named


def _version(issued: datetime, winners: Sequence[Winner]) -> str:
    """The day and the second of the newest certificate, and which certificates: a later one is a later version."""
    digest = hashlib.sha256("".join(winner.document["sha256"] for winner in winners).encode()).hexdigest()
    clock = issued.hour * 10_000 + issued.minute * 100 + issued.second
    return f"{issued.year}.{issued.month}.{issued.day}.{clock}+{digest[:8]}"


def _packaged(name: str) -> str:
    return (_WORKER / "packaged" / name).read_text(encoding="utf-8")


def _init(names: Names, summary: str) -> str:
    text = summary.replace("\\", "\\\\").replace('"', "'").strip()
    return f'''"""{text}: certified kernels where they were certified and faster, there the fastest baseline where they
were not, and the reference everywhere else.

    from {names.module} import {names.class_name}, {names.function}
    print({names.class_name}(...).explain(...))          # which of them a call gets, and why
"""

from .dispatch import DropIn, NotCovered, use
from .dispatch import functional as {names.function}
from .facts import VERSION as __version__

__all__ = ["NotCovered", "{names.class_name}", "__version__", "{names.function}", "use"]


class {names.class_name}(DropIn):
    __doc__ = DropIn.__doc__
'''
