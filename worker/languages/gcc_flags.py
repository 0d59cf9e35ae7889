"""The g++ flags that a C++ candidate may set, as patterns: optimisation, arithmetic, instruction set, diagnostics."""

from __future__ import annotations

from worker.languages.flags import DEFINE, STANDARD, WARNING

_MATH = (
    "fast-math", "math-errno", "trapping-math", "signed-zeros", "finite-math-only", "associative-math",
    "reciprocal-math", "unsafe-math-optimizations", "rounding-math", "signaling-nans", "cx-limited-range",
)  # fmt: skip
_LOOPS = (
    "unroll-loops", "unroll-all-loops", "peel-loops", "split-loops", "unswitch-loops", "tree-vectorize",
    "tree-loop-vectorize", "tree-slp-vectorize", "tree-loop-distribution", "loop-interchange", "loop-unroll-and-jam",
    "prefetch-loop-arrays", "ivopts", "tree-loop-im", "modulo-sched", "gcse", "gcse-after-reload", "ipa-cp-clone",
    "inline-functions", "inline", "early-inlining", "omit-frame-pointer", "strict-aliasing", "strict-overflow",
    "schedule-insns", "schedule-insns2", "rename-registers", "web", "tree-partial-pre", "tree-pre", "rtti",
    "exceptions", "openmp", "openmp-simd", "wrapv", "version-loops-for-strides",
)  # fmt: skip
_INSTRUCTIONS = r"avx|avx2|avx512\w+|avxvnni|fma|f16c|bmi|bmi2|lzcnt|popcnt|sse[\d.]*|ssse3|amx-\w+|vzeroupper"

ALLOWED = (
    r"-O[0-3]|-Ofast|-g0|-pthread|-lm|-fPIC",
    rf"-f(no-)?({'|'.join(_MATH + _LOOPS)})",
    r"-f(vect|simd)-cost-model=(unlimited|dynamic|cheap|very-cheap)|-ffp-contract=(fast|on|off)",
    r"-finline-limit=\d{1,6}|-falign-(loops|functions)(=\d{1,4})?|-fmax-errors=\d{1,3}|-ftemplate-depth=\d{1,4}",
    r"--param=[a-z0-9-]{1,60}=\d{1,7}",
    rf"-m(no-)?({_INSTRUCTIONS})|-mprefer-vector-width=(128|256|512)|-mveclibabi=svml",
    r"-m(arch|tune)=(native|x86-64(-v[234])?)",
    DEFINE,
    WARNING,
    STANDARD,
)
