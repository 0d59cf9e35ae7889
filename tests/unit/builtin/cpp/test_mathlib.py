"""The vectorised functions are accurate over their whole range, in both forms, and keep NaN and infinity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from worker.builtin.cpp import mathlib
from worker.runner.kernelwright import load_cpp

Function = Callable[[torch.Tensor], torch.Tensor]

NEAR = torch.cat([torch.linspace(-12, 12, 200_003), torch.logspace(-30, 0, 5_000), -torch.logspace(-30, 0, 5_000)])
POSITIVE = torch.cat([torch.logspace(-44, 38, 200_003), torch.linspace(0.5, 2, 50_000)])
# function: (torch's, inputs, units in the last place allowed)
FUNCTIONS: dict[str, tuple[Function, torch.Tensor, float]] = {
    "exp": (torch.exp, torch.linspace(-86, 88, 200_003), 1.5),
    "expm1": (torch.expm1, torch.cat([NEAR, torch.linspace(-80, 80, 20_000)]), 4.0),
    "log": (torch.log, POSITIVE, 1.5),
    "log1p": (torch.log1p, torch.cat([POSITIVE, -torch.linspace(0, 0.999, 50_000)]), 2.0),
    "sigmoid": (torch.sigmoid, NEAR, 3.0),
    "tanh": (torch.tanh, NEAR, 2.0),
    "erf": (torch.erf, NEAR, 3.0),
    "sin": (torch.sin, NEAR, 4.0),
    "cos": (torch.cos, NEAR, 4.0),
    "floor": (torch.floor, NEAR, 0.0),
    "round": (torch.round, NEAR, 0.0),
    "abs": (torch.abs, NEAR, 0.0),
    "sign": (torch.sign, NEAR, 0.0),
    "rsqrt": (torch.rsqrt, POSITIVE, 1.5),
}

_LOOP = """
extern "C" void loop_{name}(const float* __restrict x, float* __restrict y, int64_t n) {{
    typedef float F;
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) {{ const F v = x[i]; y[i] = {form}; }}
}}
extern "C" void vector_{name}(const float* __restrict x, float* __restrict y, int64_t n) {{
    typedef vf F;
    for (int64_t i = 0; i + LANES <= n; i += LANES) {{ const F v = load(x + i); store(y + i, {form}); }}
}}
"""


@pytest.fixture(scope="module", params=[8, 16])
def library(request: pytest.FixtureRequest) -> Any:
    code = "".join(_LOOP.format(name=name, form=mathlib.expression(name, ["v"])) for name in FUNCTIONS)
    flags = ("-fno-math-errno", "-fno-trapping-math", f"-DLANES={request.param}")
    return load_cpp(mathlib.helpers_for(code) + code, flags)


def run(library: Any, form: str, name: str, x: torch.Tensor) -> torch.Tensor:
    padded = torch.cat([x, torch.ones(-len(x) % 16)])
    y = torch.empty_like(padded)
    getattr(library, f"{form}_{name}")(padded, y, len(padded))
    return y[: len(x)]


def ulps(found: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest error in units in the last place of the true value."""
    nearest = truth.float().abs().clamp_min(2.0**-126)
    unit = torch.nextafter(nearest, torch.tensor(float("inf"))).double() - nearest.double()
    return float(((found.double() - truth).abs() / unit).max())


@pytest.mark.parametrize("form", ["loop", "vector"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_accurate(library: Any, form: str, name: str) -> None:
    function, x, allowed = FUNCTIONS[name]
    x = x.float()
    assert ulps(run(library, form, name, x), function(x.double())) <= allowed


@pytest.mark.parametrize("form", ["loop", "vector"])
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"sign"}))
def test_function_keeps_special_values(library: Any, form: str, name: str) -> None:
    nans = torch.tensor([0x7FC00000, 0x7FFFFFFF, -0x00400000, -1, 0x7F800001], dtype=torch.int32).view(torch.float32)
    x = torch.cat([nans, torch.tensor([float("inf"), float("-inf"), 0.0, -0.0, 3e38, -3e38, 1e-40])])
    wanted = FUNCTIONS[name][0](x)
    assert torch.allclose(run(library, form, name, x), wanted, rtol=1e-5, atol=1e-44, equal_nan=True)


def test_exp_reaches_subnormal_results(library: Any) -> None:
    x = torch.linspace(-103, -88, 1_000)
    assert torch.allclose(run(library, "loop", "exp", x).double(), x.double().exp(), rtol=0, atol=3e-45)


def test_only_what_is_called_is_written() -> None:
    assert "kw_erf" not in mathlib.helpers_for("kw_exp(x)")
    assert "kw_exp" in mathlib.helpers_for("kw_erf(x)")


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5f"), (3.0, "3.0f"), (1e-20, "1e-20f"), (float("-inf"), "-INF")])
def test_literals_are_floats(value: float, text: str) -> None:
    assert mathlib.literal(value) == text
