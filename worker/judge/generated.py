"""The generated code of an accepted candidate as text: what its source became on the way to the device.

    kind        C++   CUDA   Triton   where it comes from
    assembly     x                    the library that was judged, by objdump
    ptx                 x      x      the same source compiled again up to there; Triton's own
    sass                x      x      the cubin that was judged, by nvdisasm; of Triton's
    ttgir, llvm                x      Triton's stages before PTX

Libraries and cubins of C++ and CUDA are the build broker's own. What Triton compiled lies in the candidate's process
and comes from there: it may be forged, is taken as text of limited size, and serves people alone. Disassemblers run in
the sandbox of builds (`worker.languages.machine_code`).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from worker.judge.lease import DeviceLease
from worker.judge.report import EvaluationRequest
from worker.judge.runners.bench import Workbench
from worker.judge.runners.builder import cuda_arch
from worker.judge.runners.sessions import Runner
from worker.judge.trial import SUBJECT
from worker.judge.verdict import Fault
from worker.languages import BuildError
from worker.languages.cache import BuildCache, BuildProcessFailed
from worker.languages.machine_code import MAX_BYTES
from worker.profile.loops import plain

log = structlog.get_logger()

COMMENTS = {"assembly": "#", "ptx": "//", "sass": "//", "ttgir": "//", "llvm": ";"}
"""How a comment begins in each kind of code."""
_STAGES = ("ptx", "ttgir", "llvm")
_MOST_KERNELS, _MOST_NAME = 32, 200
_LINE_END = "\n"
_BUILD_LIMIT_S, _ANSWER_LIMIT_S = 20.0, 30.0


@dataclass(slots=True)
class _Kernel:
    """What Triton compiled for some workloads, as the runner says."""

    name: str
    workloads: list[str]
    texts: dict[str, str] = field(default_factory=dict)
    cubin: bytes | None = None

    @property
    def title(self) -> str:
        return f"kernel {self.name}, for {', '.join(self.workloads)}"


class CodeReader:
    """Reads the generated code of accepted candidates on one device."""

    def __init__(self, build_root: Path, lease: DeviceLease, *, on_gpu: bool) -> None:
        self._cache = BuildCache(build_root, timeout_s=_BUILD_LIMIT_S)
        self._lease, self._arch = lease, cuda_arch(on_gpu=on_gpu)

    def read(self, request: EvaluationRequest, runner: Runner, benches: Mapping[str, Workbench]) -> dict[str, str]:
        """The code by kind. `benches`: of the workloads, with the candidate's models made.

        Never raises: no verdict may be lost for what people may want to read.
        """
        parts: dict[str, list[tuple[str, str]]] = defaultdict(list)
        try:
            for kind, title, text in self._parts(request, runner, benches):
                parts[kind].append((title, text))
        except Exception:  # noqa: BLE001 - the boundary between what may be read and verdicts
            log.exception("code.failed", candidate=request.candidate_id)
        return {kind: _joined(kind, found) for kind, found in parts.items()}

    def _parts(
        self, request: EvaluationRequest, runner: Runner, benches: Mapping[str, Workbench]
    ) -> Iterator[tuple[str, str, str]]:
        """(kind, title, text), part by part."""
        for number, (language, source, flags, path) in enumerate(runner.builds, 1):
            title = " ".join([f"{language} source {number} of {len(runner.builds)}, flags:", *(flags or ["none"])])
            if language == "cuda":
                yield from self._made("ptx", title, "cuda_ptx", source, flags)
            if language in ("cpp", "cuda"):
                yield from self._disassembled("sass" if language == "cuda" else "assembly", title, Path(path))
        if request.language != "triton":
            return
        for kernel in self._kernels(runner, benches):
            for kind, text in kernel.texts.items():
                yield kind, kernel.title, text
            if kernel.cubin is not None:
                with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                    file.write(kernel.cubin)
                    file.flush()
                    yield from self._disassembled("sass", kernel.title, Path(file.name))

    def _made(self, kind: str, title: str, tool: str, source: str, flags: list[str]) -> Iterator[tuple[str, str, str]]:
        with _told(kind):
            yield kind, title, _text_of(self._cache.build(tool, source, flags, self._arch).path)

    def _disassembled(self, kind: str, title: str, path: Path) -> Iterator[tuple[str, str, str]]:
        with _told(kind):
            yield kind, title, _text_of(self._cache.read("machine_code", path).path)

    def _kernels(self, runner: Runner, benches: Mapping[str, Workbench]) -> list[_Kernel]:
        """What Triton compiled for a call on each workload, each kernel once."""
        found: dict[str, _Kernel] = {}
        deadline_s = time.monotonic() + _ANSWER_LIMIT_S

        def ask(operation: str, **message: Any) -> dict[str, Any]:
            return runner.ask({"op": f"code.{operation}", **message}, deadline_s - time.monotonic())

        with self._lease.shared(counted=False), _told("triton"):
            for workload, bench in benches.items():
                bench.write(0, 0)
                answer = ask("kernels", subject=SUBJECT, workload=bench.name, inputs=bench.encoded(0))
                for number, name in enumerate(list(answer["kernels"])[:_MOST_KERNELS]):
                    ptx = _text(ask("part", kernel=number, stage="ptx"))
                    key = hashlib.sha256(f"{name}\0{ptx}".encode(errors="replace")).hexdigest()
                    if key in found:
                        found[key].workloads.append(workload)
                    elif len(found) < _MOST_KERNELS:
                        found[key] = kernel = _Kernel(plain(str(name))[:_MOST_NAME], [workload])
                        texts = {stage: _text(ask("part", kernel=number, stage=stage)) for stage in _STAGES}
                        kernel.texts = {stage: text for stage, text in texts.items() if text}
                        kernel.cubin = _data(ask("part", kernel=number, stage="cubin"))
        return list(found.values())


@contextlib.contextmanager
def _told(kind: str) -> Iterator[None]:
    """A kind that cannot be had here leaves the others."""
    try:
        yield
    except (BuildError, BuildProcessFailed, Fault) as why:
        log.warning("code.missing", kind=kind, why=str(why)[:300])


def _text_of(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1).decode(errors="replace").rstrip("\0")


def _text(answer: Mapping[str, Any]) -> str:
    """The runner's text, as far as it is one that can be written down."""
    return str(answer.get("text") or "")[: MAX_BYTES + 1].encode(errors="replace").decode()


def _data(answer: Mapping[str, Any]) -> bytes | None:
    with contextlib.suppress(binascii.Error, ValueError):
        return base64.b64decode(str(answer.get("data") or ""), validate=True) or None
    return None


def _joined(kind: str, parts: list[tuple[str, str]]) -> str:
    text = "\n".join(f"{COMMENTS[kind]} {title}\n{part.strip(_LINE_END)}\n" for title, part in parts)
    return shortened(text, f"{COMMENTS[kind]} ... cut here: of each kind {MAX_BYTES >> 20} MiB is kept\n")


def shortened(text: str, note: str) -> str:
    """The text, or as many whole lines as `MAX_BYTES` hold and the note."""
    encoded = text.encode()
    if len(encoded) <= MAX_BYTES:
        return text
    kept = encoded[: MAX_BYTES - len(note.encode())]
    return kept[: kept.rfind(b"\n") + 1].decode(errors="replace") + note
