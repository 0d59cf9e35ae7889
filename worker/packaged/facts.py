"""What this package is about: `package.json`, and the certificates that it names."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Kernel:
    """A certified candidate and where it was certified."""

    name: str
    """Of its module in this package, of its certificate's files too."""
    language: str
    hardware: str
    device: str
    """`cpu` or `cuda`."""
    machine: str
    """The processor's model, or the GPU's architecture such as sm_90."""

    @property
    def path(self) -> Path:
        """The candidate's source, untouched."""
        return HERE / f"{self.name}.py"

    def certificate(self) -> dict[str, Any]:
        """The evidence, as the judge signed it with its hash."""
        return dict(json.loads((HERE / "certificates" / f"{self.name}.json").read_text(encoding="utf-8")))


_READ = json.loads((HERE / "package.json").read_text(encoding="utf-8"))

PACKAGE = str(__package__)
VERSION = str(_READ["version"])
PROBLEM = str(_READ["problem"])
BACKWARD = bool(_READ["backward"])
"""Whether the problem was judged and timed forward and backward."""
MODE_MATTERS = bool(_READ["mode_matters"])
"""Whether train() and eval() may differ: the reference names dropout, a running statistic or `training`."""
TF32 = bool(_READ["tf32"])
"""Whether the problem allows TF32, which its baselines on a GPU then use."""
LIBRARY: dict[str, str] = dict(_READ["library"])
"""What could be called in place of the reference: classes of the problem's file, by the name for each."""
KERNELS = tuple(Kernel(**kernel) for kernel in _READ["kernels"])


def document_hash(document: dict[str, Any]) -> str:
    """SHA-256 of a certificate's canonical JSON: of everything in it but the hash itself."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
