"""Sanitizers: the candidate in a confined process of its own, watched while it computes what the judge then compares.

On a GPU compute-sanitizer's memcheck, initcheck and racecheck; for C++ on a CPU AddressSanitizer and UBSan, the source
compiled again with -fsanitize. Torch's allocations go through malloc there, so each tensor has its own red zones.

A report travels through the sandboxed process. So a finding counts, while silence is evidence about honest code only.
"""

from __future__ import annotations

import os
import re
import shutil
from itertools import takewhile
from pathlib import Path
from typing import Any

from worker.judge.certificate.stage import NotApplicable, SystemCheck, bench_of, judge_outputs, reserve, unable
from worker.judge.trial import Trial
from worker.judge.verdict import Fault, Verdict

_LIMIT_S = 240.0
"""compute-sanitizer slows a kernel 10 to 50 times, and importing torch under it takes tens of seconds."""
_UNSTOPPED_S = 45.0
"""compute-sanitizer, stopped while others were timed, hung in four of 31 runs on an H100: its processes waited for each
other until the limit. It takes 5 to 15 s; whoever takes longer is stopped."""
_FOUND, _CANNOT = 86, (Verdict.LAUNCH_ERROR, Verdict.BUILD_ERROR, Verdict.TIMEOUT)
"""The exit code that the tools are told to end with when they found something."""
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error)|(?:RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error)")
_HEADLINE, _ASAN = re.compile(r"^========= (?!COMPUTE-SANITIZER|ERROR|RACECHECK)\S"), re.compile("AddressSanitizer")
_WHERE = re.compile(r"^=========     (?=\S)")
"""compute-sanitizer indents what belongs to a finding: frames, threads, allocations."""
_EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception|Exit|Interrupt)(?::|$)", re.MULTILINE)
_AFTERWARDS = re.compile(r"^Exception ignored in", re.MULTILINE)
_ON_A_CPU = {
    "memcheck": "compute-sanitizer watches a GPU; on a CPU AddressSanitizer does this",
    "initcheck": "compute-sanitizer watches a GPU; on a CPU fresh memory was full of NaN in every verified call",
    "racecheck": "compute-sanitizer watches a GPU; on a CPU ThreadSanitizer takes OpenMP's own barriers for races",
}
_ASAN_NAME = "AddressSanitizer and UBSan"
_PADDING_BYTES = 4096
"""Between device allocations, which otherwise may touch: the first element behind a tensor would be the next one's."""
_DEVICE_ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""One allocation per tensor, so that an overrun leaves its allocation and is seen."""


def memcheck(trial: Trial) -> None:
    """Accesses out of bounds. Raises Fault `illegal_access`."""
    _on_device(trial, "memcheck", Verdict.ILLEGAL_ACCESS)


def initcheck(trial: Trial) -> None:
    """Reads of device memory that nobody wrote: a reservation, as padding is sometimes read and never used."""
    _on_device(trial, "initcheck", None)


def racecheck(trial: Trial) -> None:
    """Hazards in shared memory: a reservation, since compiled Triton barriers can look like one."""
    _on_device(trial, "racecheck", None)


def asan(trial: Trial) -> None:
    """AddressSanitizer and UBSan for C++. Raises Fault `illegal_access` for the former; the latter reserves."""
    if trial.device != "cpu":
        raise NotApplicable("host code of a GPU candidate is torch's own and the launcher's")
    if not any(language == "cpp" for language, *_rest in bench_of(trial).runner.builds):
        raise NotApplicable("no C++ of the candidate's own was built")
    answer = _watched(trial, _ASAN_NAME, ["asan"], {})
    if answer is None:
        return
    if "AddressSanitizer" in answer["report"]:
        raise trial.refuse(_ASAN_NAME, Verdict.ILLEGAL_ACCESS, _finding(answer, _ASAN), unit="findings")
    undefined = [line for line in answer["summary"] if "runtime error:" in line]
    if undefined:
        reserve(trial, _ASAN_NAME, f"undefined behaviour: {undefined[0]}", statistic=len(undefined), threshold=0)
        return
    _judge(trial, _ASAN_NAME, answer)


def _on_device(trial: Trial, tool: str, verdict: Verdict | None) -> None:
    name = f"compute-sanitizer {tool}"
    if trial.device == "cpu":
        raise NotApplicable(_ON_A_CPU[tool])
    command = _compute_sanitizer()
    if command is None:  # not "not applicable": nobody has looked
        reserve(trial, name, "compute-sanitizer is not installed on this machine: accesses were not watched")
        return
    options = ["--tool", tool, "--error-exitcode", str(_FOUND), "--log-file", "report.txt", "--print-limit", "20"]
    if tool == "memcheck":
        # Errors that the driver's interface returns are not accesses; a loader may ask until it gets one.
        options += ["--padding", str(_PADDING_BYTES), "--report-api-errors", "no"]
    trial.runner.give_way()
    with trial.unstopped(_UNSTOPPED_S):
        answer = _watched(trial, name, [command, *options], _DEVICE_ENVIRONMENT)
    if answer is None:
        return
    errors = _errors(answer["summary"])
    if errors is None:
        reserve(trial, name, f"no summary from the tool (exit code {answer['code']}): {answer['report'][-300:]}")
    elif errors and verdict is not None:
        raise trial.refuse(name, verdict, _finding(answer, _HEADLINE), statistic=errors, threshold=0, unit="errors")
    elif errors:
        reserve(trial, name, _finding(answer, _HEADLINE), statistic=errors, threshold=0, unit="errors")
    else:
        _judge(trial, name, answer)


def _watched(trial: Trial, name: str, tool: list[str], environment: dict[str, str]) -> dict[str, Any] | None:
    """Run under a tool; None, with a reservation recorded, when that could not be done."""
    bench = bench_of(trial)
    bench.write(0, 0)
    message = bench.job() | {"tool": tool, "name": "run", "environment": environment}
    message |= {"source": trial.request.candidate_source, "limit_s": _LIMIT_S}
    try:
        with bench.runner.handed_builds() as (builds, descriptors):
            answer = bench.examine("sanitize", _LIMIT_S + 60, fds=descriptors, builds=builds, **message)
    except ValueError as too_many:
        reserve(trial, name, f"not made: {too_many}")
        return None
    except Fault as fault:
        if fault.verdict not in _CANNOT or trial.runner.dead:
            raise
        reserve(trial, name, unable(name, fault))
        return None
    return _checked(answer)


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The untrusted answer with the types that it must have."""
    code, report, summary = answer.get("code"), answer.get("report"), answer.get("summary")
    return {
        "code": code if isinstance(code, int) else -1,
        "saved": answer.get("saved") is True,
        "report": str(report)[:16_384],
        "summary": [str(line)[:300] for line in summary[:20]] if isinstance(summary, list) else [],
    }


def _cause(report: str) -> str:
    """The last exception in what a process printed, and what follows: CUDA's errors end in 300 characters of advice."""
    report = _AFTERWARDS.split(report, maxsplit=1)[0]  # what an interpreter says that ends
    exceptions = [found.start() for found in _EXCEPTION.finditer(report)]
    return report[exceptions[-1] :][:300] if exceptions else report[-300:]


def _judge(trial: Trial, name: str, answer: dict[str, Any]) -> None:
    """No finding: the values that came out must be right too, and the process must have ended well."""
    if answer["code"] != 0:
        reserve(trial, name, f"the watched process ended with code {answer['code']}: {_cause(answer['report'])}")
        return
    if not answer["saved"]:
        reserve(trial, name, f"the watched process left no results: {_cause(answer['report'])}")
        return
    bench = bench_of(trial)
    figures = judge_outputs(trial, name, bench.cases[0], bench.read())
    trial.record(name, True, "no finding, and right results under the tool", **{**figures, "findings": 0.0})


def _errors(summary: list[str]) -> int | None:
    """Errors in the tool's own summary lines, or None without one."""
    found = [match for line in summary if (match := _SUMMARY.search(line))]
    return sum(int(match.group(1) or match.group(2)) for match in found) if found else None


def _finding(answer: dict[str, Any], headline: re.Pattern[str]) -> str:
    """The first line of a report that says what was found, and those below that say where: of a race both accesses."""
    lines = [line.strip() for line in answer["report"].splitlines()]
    first = next((place for place, line in enumerate(lines) if headline.search(line)), None)
    if first is None:
        return str(answer["report"].strip()[:200])
    where = [_WHERE.sub("", line) for line in takewhile(_WHERE.match, lines[first + 1 :])]
    return "; ".join([lines[first], *where])[:300]


def _compute_sanitizer() -> str | None:
    """The tool's path, or None when the machine has none."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ] + [
        Path("/usr/local/cuda")
    ]
    places = [home / folder / "compute-sanitizer" for home in homes for folder in ("bin", "compute-sanitizer")]
    return shutil.which("compute-sanitizer") or next((str(place) for place in places if place.is_file()), None)


MEMCHECK = SystemCheck("compute-sanitizer memcheck", memcheck)
INITCHECK = SystemCheck("compute-sanitizer initcheck", initcheck)
RACECHECK = SystemCheck("compute-sanitizer racecheck", racecheck)
ASAN = SystemCheck(_ASAN_NAME, asan, unlimited=True)
CHECKS = (MEMCHECK, INITCHECK, RACECHECK, ASAN)
