"""What a runner, which is untrusted, may ask of the builder of extensions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker.languages import BuildError, language
from worker.languages.flags import FlagRefused

EXTENSION = language("extension")
PLAIN = {"name": "twice", "cpp_sources": ["int twice(int x) { return 2 * x; }"], "cuda_sources": []}


def test_flags_are_those_that_each_compilers_kernels_may_have() -> None:
    flags = ("c:-O3", "cuda:--use_fast_math", "cuda:-lineinfo")
    assert EXTENSION.check_flags(flags) == flags
    for refused in ("c:-fplugin=x.so", "cuda:-include=/etc/passwd", "c:-Wl,-rpath,here"):
        with pytest.raises(FlagRefused, match="not allowed"):
            EXTENSION.check_flags([refused])
    with pytest.raises(FlagRefused, match="whose flags are these: -O3"):
        EXTENSION.check_flags(["-O3"])


@pytest.mark.parametrize(
    "more",
    [
        {"extra_ldflags": ["-lcublas"]},
        {"extra_include_paths": ["/etc"]},
        {"build_directory": "/tmp"},
        {"name": "../twice"},
        {"name": "twice\n"},
        {"name": 3},
        {"cpp_sources": [3]},
        {"cuda_sources": None},
    ],
)
def test_nothing_else_than_sources_and_what_to_bind_is_taken(more: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no arguments of load_inline"):
        EXTENSION.build(json.dumps(PLAIN | more), (), "sm_90a", tmp_path)
    with pytest.raises(BuildError, match="no arguments of load_inline"):
        EXTENSION.build("[1]", (), "sm_90a", tmp_path)


def test_what_it_takes_is_described() -> None:
    described = EXTENSION.describe()
    assert described["available"] and "torch" in described["compiler"]
