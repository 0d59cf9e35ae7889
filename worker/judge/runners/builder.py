"""The build broker: compiles what a candidate asks for, outside its sandbox, into a cache that it can only read.

The compiler is confined too (its source is hostile), and no build holds an exclusive lease on a device.
"""

from __future__ import annotations

import torch

from worker.judge.runners.sessions import Builder, BuildFailed
from worker.judge.verdict import Fault, Verdict
from worker.languages import FORMS, LANGUAGES, BuildError, ToolchainMissing
from worker.languages.cache import BuildCache, BuildProcessFailed


def make_builder(cache: BuildCache, *, on_gpu: bool) -> Builder:
    """A builder into the cache, for this machine's processor and GPU."""
    arch_of_cuda = cuda_arch(on_gpu=on_gpu)

    def build(language: str, source: str, flags: list[str]) -> str:
        if language not in LANGUAGES + FORMS:
            raise BuildFailed(f"there is no kernel language {language!r}: use one of {', '.join(LANGUAGES)}")
        try:
            arch = arch_of_cuda if language in ("cuda", *FORMS) else "native"
            return str(cache.build(language, source, flags, arch).path)
        except (ToolchainMissing, BuildProcessFailed) as broken:
            raise Fault(Verdict.INFRA_ERROR, f"this machine cannot build {language}: {broken}") from broken
        except BuildError as refused:
            raise BuildFailed(str(refused)) from refused

    return build


def cuda_arch(*, on_gpu: bool) -> str:
    """What CUDA sources are built for: this machine's GPU; Hopper without one."""
    if not on_gpu:
        return "sm_90a"
    major, minor = torch.cuda.get_device_capability(0)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
