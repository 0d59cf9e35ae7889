"""Builds a candidate's Triton kernels ahead of time, for a GPU that is not here.

    with triton_record.recording("sm_90a") as record:
        ModelNew(*init)(*inputs)              # on CPU tensors; kernels are compiled for sm_90a, none is run
    record.report()                           # {"target", "kernels": [{name, registers, …}], "error", …}

Every launch goes through Triton's own argument binding and compiler, down to ptxas, with the launch itself left out:
outputs are whatever the buffers held. So control flow that depends on results may take another path than on a GPU.

By hand: python -m worker.runner.triton_record --arch sm_90a --problem PROBLEM.py CANDIDATE.py
Runs inside the sandbox: standard library, torch and triton only. Not in one process with `triton_interpret`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MAX_CONFIGS = 4
"""Autotune configurations built per kernel and set of arguments: each costs up to a second."""
_MAX_ERROR_CHARS = 6000
# Dynamic shared memory that one block may have, in bytes, by compute capability (CUDA programming guide, table of
# technical specifications). A kernel that wants more compiles, and fails at its launch.
_SHARED_LIMITS = {80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 103: 232448, 120: 101376}
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One compiled variant of one kernel."""

    name: str
    num_warps: int
    num_stages: int
    shared_bytes: int
    registers: int | None
    """Per thread; None where cuobjdump is missing."""
    stack_bytes: int | None
    """Local memory per thread: spills and indexed arrays."""
    ptx_bytes: int
    cubin_bytes: int


@dataclass(slots=True)
class Record:
    """What was built."""

    target: str
    kernels: dict[str, Kernel] = field(default_factory=dict)
    compiled: list[tuple[str, Any]] = field(default_factory=list)
    """Name and compiled form of each of them."""
    launches: int = 0
    notes: list[str] = field(default_factory=list)
    error: str | None = None

    def report(self) -> dict[str, Any]:
        """JSON-able; `error` is the first kernel's compile error, even if the candidate caught it."""
        return {
            "target": self.target,
            "kernels": [asdict(kernel) for kernel in self.kernels.values()],
            "launches": self.launches,
            "notes": list(dict.fromkeys(self.notes)),
            "error": self.error,
        }


def capability(arch: str) -> int:
    """90 for sm_90a. Raises ValueError for what is no CUDA arch."""
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    if match is None:
        raise ValueError(f"{arch!r} is no CUDA arch: use sm_90a, sm_100a, sm_80, ...")
    return int(match[1])


@contextlib.contextmanager
def recording(arch: str) -> Iterator[Record]:
    """Within, launches of Triton kernels compile for `arch` and run nothing. Raises RuntimeError in the interpreter."""
    from triton import knobs
    from triton.runtime import autotuner, driver, jit

    if knobs.runtime.interpret:
        raise RuntimeError("Triton is in interpreter mode in this process: record in another one")
    record = Record(target=arch)
    run, tune, active = jit.JITFunction.run, autotuner.Autotuner.run, driver._active
    jit.JITFunction.run = _recorded(run, record, capability(arch))
    autotuner.Autotuner.run = _every_config(record)
    driver.set_active(_target_driver(capability(arch)))
    try:
        yield record
    finally:
        jit.JITFunction.run, autotuner.Autotuner.run = run, tune
        driver._active = active


def _target_driver(sm: int) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class TargetDriver(DriverBase):  # type: ignore[misc]  # triton has no types
        """Answers what a compile asks of a driver, for a device that is not here."""

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", sm, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _device: int) -> int:
            return 0

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cpu")

        def get_benchmarker(self) -> Any:
            raise RuntimeError("nothing is timed in an ahead-of-time build")

    return TargetDriver()


def _recorded(run: Any, record: Record, sm: int) -> Any:
    limit = _SHARED_LIMITS.get(sm, max(_SHARED_LIMITS.values()))

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        from triton.runtime.errors import OutOfResources

        record.launches += 1
        try:
            kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
            if kernel.metadata.shared > limit:
                raise OutOfResources(kernel.metadata.shared, limit, "shared memory")
        except Exception as error:
            if record.error is None:
                record.error = f"{self.fn.__name__}: {type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
            raise
        if kernel.hash not in record.kernels:
            record.kernels[kernel.hash] = _describe(self.fn.__name__, kernel)
            record.compiled.append((self.fn.__name__, kernel))
        if callable(grid):  # a grid that cannot be computed fails here as it would at a launch
            grid({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        return kernel

    return compile_only


def _every_config(record: Record) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        from triton.runtime.errors import OutOfResources, PTXASError

        self.nargs = dict(zip(self.arg_names, args, strict=False))
        wanted = self.prune_configs(kwargs)
        if len(wanted) > MAX_CONFIGS:
            record.notes.append(f"autotune of {self.base_fn.__name__}: {MAX_CONFIGS} of {len(wanted)} were built")
        built, misfits = [], []
        for config in wanted[:MAX_CONFIGS]:
            before = record.error
            try:
                built.append(self.fn.run(*args, **kwargs, **config.all_kwargs()))
            except (OutOfResources, PTXASError) as misfit:  # the tuner passes over these on a GPU, too
                record.error = before
                misfits.append(f"{self.base_fn.__name__} ({config}): {misfit}")
        record.notes += misfits
        if not built:
            record.error = record.error or "; ".join(misfits)[:_MAX_ERROR_CHARS]
            raise RuntimeError(f"no configuration of {self.base_fn.__name__} could be built: {'; '.join(misfits)}")
        return built[0]

    return run


def _describe(name: str, kernel: Any) -> Kernel:
    cubin = kernel.asm["cubin"]
    registers, stack = _resources(cubin)
    return Kernel(
        name=name,
        num_warps=kernel.metadata.num_warps,
        num_stages=kernel.metadata.num_stages,
        shared_bytes=kernel.metadata.shared,
        registers=registers,
        stack_bytes=stack,
        ptx_bytes=len(kernel.asm["ptx"]),
        cubin_bytes=len(cubin),
    )


def _resources(cubin: bytes) -> tuple[int | None, int | None]:
    """Registers and stack bytes per thread, from the cuobjdump that Triton ships."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file, contextlib.suppress(OSError, RuntimeError):
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        dumped = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout
        found = _RESOURCES.search(dumped)
        if found:
            return int(found[1]), int(found[2])
    return None, None


# --- by hand ----------------------------------------------------------------------------------------------------------


def module_from(path: Path, name: str) -> Any:
    """A Python file as a module, from a real file because Triton reads kernels' source back."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def call_with_accepted(function: Any, params: dict[str, Any]) -> Any:
    """Call with those of the parameters that the function has, as workloads are applied."""
    accepted = inspect.signature(function).parameters
    return function(**{name: value for name, value in params.items() if name in accepted})


def main() -> int:
    """Build one candidate for one problem; prints the report. Exit code 1 when it did not build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidate", type=Path)
    parser.add_argument("--problem", type=Path, required=True)
    parser.add_argument("--params", type=json.loads, default={}, help="a workload's parameters, as JSON")
    parser.add_argument("--arch", default="sm_90a")
    options = parser.parse_args()
    sys.modules.setdefault("kernelwright", importlib.import_module("worker.runner.kernelwright"))
    problem = module_from(options.problem, "problem")
    candidate = module_from(options.candidate, "candidate")
    with recording(options.arch) as record:
        try:
            model = candidate.ModelNew(*call_with_accepted(problem.get_init_inputs, options.params))
            model(*call_with_accepted(problem.get_inputs, options.params))
        except Exception:  # noqa: BLE001 - the candidate's own code: whatever it raises is the report
            record.error = record.error or traceback.format_exc()[-_MAX_ERROR_CHARS:]
    sys.stdout.write(json.dumps(record.report(), indent=2) + "\n")
    return 0 if record.error is None else 1


if __name__ == "__main__":
    sys.exit(main())
