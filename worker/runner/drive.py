"""One candidate in a plain process: `examine.sanitize` starts this under a sanitizer, in a folder that it prepared.

The folder holds candidate.py, copies of kernelwright.py, extensions.py and step.py, builds.json (what the build broker
had built) and job.pt (arguments, parameters, inputs). Writes outputs.pt. Uses the standard library and torch only.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

_CALLS = 2


def main() -> None:
    """Load, construct, call twice and save the outputs."""
    sys.path.insert(0, str(Path.cwd()))
    build = _builder(json.loads(Path("builds.json").read_text()))
    importlib.import_module("kernelwright")._set_builder(build)
    extensions = importlib.import_module("extensions")
    if extensions.wanted(Path("candidate.py").read_text(encoding="utf-8")):
        extensions.install(build)
    job = torch.load("job.pt", weights_only=False)
    candidate = importlib.import_module("candidate")
    with torch.device(job["device"]):
        model = candidate.ModelNew(*job["init"])
    model = model.to(device=job["device"])
    model.load_state_dict(job["state"], strict=True)
    model.train(job["training"])
    call = _call(model, job["backward"])
    with torch.no_grad():
        for _step in range(_CALLS - 1):
            call(*job["inputs"])
        with _recorded(job["device"]):
            result = call(*job["inputs"])
    torch.save([item.detach() for item in (result if isinstance(result, tuple | list) else [result])], "outputs.pt")


@contextlib.contextmanager
def _recorded(device: str) -> Iterator[None]:
    """What a profiler that was told to wait for it looks at. Nothing without one."""
    if device == "cpu":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    yield
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def _call(model: torch.nn.Module, trained: dict[str, Any] | None) -> Callable[..., Any]:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained is not None and name in trained["parameters"])
    if trained is None:
        return model
    step: Callable[..., Any] = importlib.import_module("step").Step(
        model, model, tuple(trained["parameters"]), trained["inputs"]
    )
    return step


def _builder(builds: list[list[Any]]) -> Callable[[str, str, Sequence[str]], str]:
    known = {(language, source, tuple(flags)): path for language, source, flags, path in builds}
    return lambda language, source, flags: str(known[language, source, tuple(flags)])


if __name__ == "__main__":
    main()
