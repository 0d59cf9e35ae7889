"""The page that comes with a package: what is in it, where it is used, what was measured, how to check all of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from api.packaging.naming import Names
from problems.catalog import Outline

if TYPE_CHECKING:
    from api.packaging.contents import Winner


def readme(names: Names, version: str, about: Outline, winners: Sequence[Winner], *, trained: bool) -> str:
    """README.md."""
    parts = [
        f"# {names.distribution} {version}",
        about.summary or f"Kernels for the problem {about.name}.",
        _rule(trained=trained),
        *_use(names, about),
        "## What was certified",
        *_tables(about, winners),
        "## Building",
        _how_built(winners),
        "## Verify",
        *_verify(names),
        "## Licence",
        _text(
            "The archive names none: candidate and reference are yours, and the package follows the licence of the",
            "project that you publish them with. The remaining files only run them and may go under the same licence.",
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _text(*lines: str) -> str:
    return textwrap.fill(" ".join(lines), 118, break_long_words=False, break_on_hyphens=False)


def _rule(*, trained: bool) -> str:
    covered = "forward and backward" if trained else "forward"
    gradients = "gradients under torch.compile" if trained else "whatever wants a gradient"
    return _text(
        f"The kernels in this package were certified for the workloads below ({covered}). A call that is one of them,",
        "on hardware on which the kernel was certified, runs the kernel where that was surely faster, and elsewhere",
        "the baseline that was fastest there, such as a mode of `torch.compile`. Every other call (other shapes, types",
        f"or memory layouts, other hardware, tensor subclasses, autocast, {gradients}) runs the reference in eager",
        "mode: what the kernels were judged against, which is in this package too.",
    )


def _use(names: Names, about: Outline) -> Iterator[str]:
    arguments = ", ".join(about.forward_args) or "*inputs"
    variable = f"{names.module.upper()}_USE"
    yield f"""```python
from {names.module} import {names.class_name}, {names.function}

module = {names.class_name}(...)  # the reference's constructor, parameters and state dict
out = module({arguments})
print(module.explain({arguments}))  # kernel, baseline or reference, and why
```"""
    yield _text(
        f"`{names.function}({arguments}, init=(...), state={{...}})` is the same as a function: `init` are the",
        "constructor's arguments and `state` the tensors of its state dict, where it has any.",
    )
    yield _text(
        f"`{variable}=reference` in the environment never uses a kernel or a compiled baseline; `{variable}=kernel`",
        "uses the kernel also on other machines and where it was not faster, and raises `NotCovered` where it cannot",
        "be used; `auto` is as above. `use()` says the same from Python. Hooks on modules inside the reference do not",
        "run where the kernel does.",
    )


def _verify(names: Names) -> Iterator[str]:
    yield f"""```
pip install pytest
python -m pytest -p no:cacheprovider --pyargs {names.module}
```"""
    yield _text(
        "runs the tests inside the package: every certified workload, and every baseline that is used, against the",
        "reference in float64 with the judge's tolerances, other calls on the reference, `torch.library.opcheck`,",
        "`torch.compile(fullgraph=True)`, gradients, the state dict, and that candidate, reference and certificate are",
        "those that were signed. Without",
        f"the hardware the kernels' tests are skipped. `{names.module}/certificates/` holds each certificate as JSON",
        "(its `sha256` is over everything else in it) and as a page.",
    )


def _tables(about: Outline, winners: Sequence[Winner]) -> Iterator[str]:
    for winner in winners:
        document = winner.document
        environment = document["environment"]
        versions = ", ".join(
            f"{name} {environment[name]}" for name in ("torch", "triton", "cuda") if environment.get(name)
        )
        threads = f", {environment['threads']} threads" if winner.device == "cpu" and environment.get("threads") else ""
        lines = [
            f"`{winner.module}`: {winner.language} on {winner.hardware} ({winner.machine}{threads}); {versions}; "
            f"certified {document['issued_at']}, SHA-256 `{document['sha256']}`; candidate {winner.candidate_id}.",
            "",
            "| workload | inputs | speedup | 95 % interval | over | latency |",
            "|---|---|---|---|---|---|",
        ]
        # After forward's own come the cotangents of a problem with a backward.
        own = len(about.forward_args) or None
        inputs = {each["name"]: each["inputs"][:own] for each in document["problem"]["workloads"]}
        for timed in document["timing"]["workloads"]:
            low, high = timed["ci95"]
            shown = "" if low > 1 else f" ({_instead(timed['baseline'], environment)} is used)"
            lines.append(
                f"| {timed['name']} | {', '.join(inputs.get(timed['name'], ()))} | {timed['speedup']:.2f}x{shown} "
                f"| {low:.2f} to {high:.2f} | {timed['baseline']} | {timed['latency_us']:.1f} us |"
            )
        yield "\n".join(lines)


def _instead(baseline: str, environment: Mapping[str, Any]) -> str:
    """What runs where the kernel was not surely faster than `baseline`."""
    inaccurate = baseline in (environment.get("baselines_missing") or {})
    return "reference" if baseline == "eager" or inaccurate else baseline


def _how_built(winners: Sequence[Winner]) -> str:
    languages = {winner.language for winner in winners}
    needs = {"cpp": "C++ needs `g++`", "cuda": "CUDA needs NVRTC or `nvcc`", "triton": "Triton compiles itself"}
    said = "; ".join(text for language, text in needs.items() if language in languages)
    return _text(
        "Nothing is compiled when the package is installed. A kernel is built at its first use, as the judge built it:",
        f"{said}. C++ and CUDA binaries are kept in `~/.cache/kernelwright` (or `$XDG_CACHE_HOME/kernelwright`). Where",
        "a kernel cannot be built, a warning says why, once, and the reference is used. A baseline is compiled at the",
        "first call that gets it, which takes seconds, and minutes in the modes that tune; results of modes with CUDA",
        "graphs are copied, so that the next call does not overwrite them.",
    )
