"""`torch.utils.cpp_extension.load_inline` in a runner: what it would compile here, the judge's build broker compiles.

    install(build)         # build(language, source, flags) -> path of the artefact

A build takes 20 to 60 s, since it reads torch's headers, and a certificate has a dozen runners: so built once, outside,
and loaded from then on. What the broker does not do (other libraries, folders, SYCL) torch still does here itself.
Standard library and torch only: `worker.runner.drive` has a copy of this file.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

LANGUAGE = "extension"
C_FLAG, CUDA_FLAG = "c:", "cuda:"
"""What a flag in a request begins with: whose it is."""

OF_THE_BUILD = frozenset({"functions", "with_cuda", "with_pytorch_error_handling", "no_implicit_headers"})
"""Arguments that say what is to be built."""
_WITHOUT_EFFECT = frozenset({"verbose", "keep_intermediates", "use_pch"})
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""Of the module."""


def wanted(source: str) -> bool:
    """Whether a candidate may use extensions: importing what builds them takes half a second."""
    return "cpp_extension" in source


def install(build: Callable[[str, str, Sequence[str]], str]) -> None:
    """From now on `load_inline` asks `build`."""
    from torch.utils import cpp_extension

    by_torch = getattr(cpp_extension.load_inline, "_by_torch", cpp_extension.load_inline)

    def load_inline(
        name: str, cpp_sources: str | Sequence[str], cuda_sources: str | Sequence[str] | None = None, **options: Any
    ) -> types.ModuleType:
        """As torch's; the broker refuses flags that no kernel needs."""
        request = _request(name, cpp_sources, cuda_sources, options)
        if request is None:
            found: types.ModuleType = by_torch(name, cpp_sources, cuda_sources, **options)
            return found
        return _loaded(name, build(LANGUAGE, *request))

    load_inline._by_torch = by_torch  # type: ignore[attr-defined]
    vars(cpp_extension)["load_inline"] = load_inline


def _request(
    name: str, cpp_sources: Any, cuda_sources: Any, options: dict[str, Any]
) -> tuple[str, tuple[str, ...]] | None:
    """Source and flags of the broker's build; None for what it does not build."""
    flags = [
        *(f"{C_FLAG}{flag}" for flag in options.get("extra_cflags") or ()),
        *(f"{CUDA_FLAG}{flag}" for flag in options.get("extra_cuda_cflags") or ()),
    ]
    known = OF_THE_BUILD | _WITHOUT_EFFECT | {"extra_cflags", "extra_cuda_cflags"}
    if not NAME.fullmatch(name) or any(value for option, value in options.items() if option not in known):
        return None
    what = {"name": name, "cpp_sources": _texts(cpp_sources), "cuda_sources": _texts(cuda_sources)}
    what |= {option: options[option] for option in sorted(OF_THE_BUILD & options.keys())}
    return json.dumps(what, sort_keys=True), tuple(flags)


def _texts(sources: str | Sequence[str] | None) -> list[str]:
    return [sources] if isinstance(sources, str) else list(sources or ())


def _loaded(name: str, path: str) -> types.ModuleType:
    """The built module. Raises ImportError."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no extension module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
