"""Which kernel language runs on which hardware: what a submission's target is checked against."""

from __future__ import annotations

import re

from db.vocabulary import CPU, Language

# `cpu`, or the lower-cased device name with dashes: what a worker calls its own device.
HARDWARE_PATTERN = r"^(cpu|(nvidia|amd|intel)-[a-z0-9][a-z0-9-]{0,62})$"

_RUNS_ON = {Language.CPP: "cpu", Language.TRITON: "cpu or a GPU", Language.CUDA: "an NVIDIA GPU"}


def is_hardware(hardware: str) -> bool:
    """Whether this has the shape of a hardware id: `cpu`, `nvidia-h100`, ..."""
    return re.fullmatch(HARDWARE_PATTERN, hardware) is not None


def languages_for(hardware: str) -> tuple[Language, ...]:
    """The languages that run there. On `cpu`, Triton is only built ahead of time and checked in the interpreter."""
    if hardware == CPU:
        return (Language.CPP, Language.TRITON)
    if hardware.startswith("nvidia-"):
        return (Language.TRITON, Language.CUDA)
    return (Language.TRITON,)


def hardware_for(language: Language) -> str:
    """In words, the hardware that a language runs on."""
    return _RUNS_ON[language]
