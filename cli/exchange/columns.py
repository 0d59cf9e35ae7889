"""The columns of a data set of candidates: what each is called, holds and means, and how it is read from a candidate.

The first eighteen have the names, types and units of the archive of Sakana AI's AI CUDA Engineer, so that what reads
that reads this; they are filled as far as the service measures the same thing, and null where it does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

Json = Mapping[str, Any]
Kind = Literal["string", "int64", "float64", "bool", "usd", "time", "json", "strings", "figures", "workloads"]
"""`usd` is a decimal, `time` a moment in UTC, `json` any value as text, `figures` numbers by name."""

LEVEL_LABEL: Final = "kernelbench.level"
TASK_LABEL: Final = "kernelbench.task"
"""What `kernelwright import kernelbench` labels its jobs with."""

_NOT_JUDGED: Final = (None, "infra_error")


@dataclass(frozen=True, slots=True)
class Record:
    """A candidate as `GET /v1/candidates` answers it, with its problem's source where that is wanted."""

    candidate: Json
    problem_source: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    kind: Kind
    meaning: str
    read: Callable[[Record], Any]
    unit: str = ""


def _of(name: str) -> Callable[[Record], Any]:
    """A field as the API has it."""
    return lambda record: record.candidate[name]


def _in(outer: str, name: str, scale: float = 1.0) -> Callable[[Record], Any]:
    """A field of a field, where there is one; a number is multiplied."""

    def read(record: Record) -> Any:
        value = (record.candidate[outer] or {}).get(name)
        return value * scale if value is not None and scale != 1.0 else value

    return read


def _end(place: int) -> Callable[[Record], Any]:
    return lambda record: record.candidate["ci95"][place] if record.candidate["ci95"] else None


def _runtime_ms(record: Record) -> float | None:
    latency_us = record.candidate["latency_us"]
    return None if latency_us is None else latency_us / 1e3


def _number(label: str) -> Callable[[Record], int | None]:
    def read(record: Record) -> int | None:
        text = str(record.candidate["labels"].get(label, ""))
        return int(text) if text.isdecimal() and text.isascii() else None

    return read


def _correct(record: Record) -> bool | None:
    verdict = record.candidate["verdict"]
    return None if verdict in _NOT_JUDGED else verdict == "ok"


def _error(record: Record) -> str | None:
    candidate = record.candidate
    if candidate["verdict"] == "ok":
        return None
    said = [candidate["verdict"] or candidate["failure"], candidate["reason"] or candidate["failure_detail"]]
    return ": ".join(word for word in said if word) or None


def _profile(rung: str) -> Callable[[Record], Any]:
    def read(record: Record) -> Any:
        found = record.candidate["profile"]
        return found if found and found.get("rung") == rung else None

    return read


def _moment(name: str) -> Callable[[Record], datetime | None]:
    def read(record: Record) -> datetime | None:
        at = record.candidate[name]
        return None if at is None else datetime.fromisoformat(at)

    return read


def _workloads(record: Record) -> list[dict[str, Any]] | None:
    rows = record.candidate["workloads"]
    if rows is None:
        return None
    return [
        {
            "name": row["name"],
            "latency_us": row["latency_us"],
            "baseline": row["baseline"],
            "speedup": row["speedup"],
            "ci95_low": row["ci95"][0],
            "ci95_high": row["ci95"][1],
            "sol_fraction": row.get("sol_fraction"),
            "baselines_us": row["baselines_us"],
            "samples_us": row["samples_us"],
        }
        for row in rows
    ]


def _nothing(_record: Record) -> None:
    """The service measures nothing of the kind."""


ARCHIVE: Final = (
    Column("Op_Name", "string", "name of the problem", _in("problem", "name")),
    Column("Level_ID", "int64", "KernelBench level, of jobs that were imported from it", _number(LEVEL_LABEL)),
    Column("Task_ID", "int64", "KernelBench problem number, of jobs that were imported from it", _number(TASK_LABEL)),
    Column("Kernel_Name", "string", "id of the candidate", _of("id")),
    Column("CUDA_Runtime", "float64", "latency of the candidate, in whatever language it is written; geometric mean "
           "over workloads", _runtime_ms, "ms"),
    Column("PyTorch_Native_Runtime", "float64", "latency of the reference in eager mode; geometric mean over workloads",
           _in("baselines_us", "eager", 1e-3), "ms"),
    Column("PyTorch_Compile_Runtime", "float64", "latency of the reference under torch.compile in its default mode; "
           "geometric mean over workloads", _in("baselines_us", "compile", 1e-3), "ms"),
    Column("CUDA_Speedup_Native", "float64", "speedup over eager mode", _in("speedups", "eager")),
    Column("CUDA_Speedup_Compile", "float64", "speedup over torch.compile in its default mode",
           _in("speedups", "compile")),
    Column("CUDA_Code", "string", "source of the candidate: one Python file with the kernel in it", _of("source")),
    Column("PyTorch_Code_Module", "string", "source of the problem: the reference module and its inputs",
           lambda record: record.problem_source),
    Column("PyTorch_Code_Functional", "string", "always null: problems are modules", _nothing),
    Column("Correct", "bool", "whether the judge accepted it; null where it was not judged", _correct),
    Column("Max_Diff", "float64", "always null: the judge bounds relative errors, see max_relative_error", _nothing),
    Column("Error", "string", "why it was not accepted, or not proposed", _error),
    Column("NCU_Profile", "json", "profile made from Nsight Compute's counters", _profile("ncu")),
    Column("Torch_Profile", "json", "profile made from torch's profiler", _profile("torch profiler")),
    Column("Clang_Tidy", "string", "always null: sources are not linted", _nothing),
)  # fmt: skip

OWN: Final = (
    Column("candidate_id", "string", "id of the candidate; sorts by when it was made", _of("id")),
    Column("job_id", "string", "the search that it belongs to", _of("job_id")),
    Column("ordinal", "int64", "its place in the job, from 1", _of("ordinal")),
    Column("parents", "strings", "ids of the candidates that it was made from", _of("parents")),
    Column("operator", "string", "how it was made from them: seed, repair, refine, ...", _of("operator")),
    Column("proposer", "string", "who made it: llm, builtin or ask/tell", _of("proposer")),
    Column("model", "string", "the language model, where one made it", _of("model")),
    Column("prompt_version", "string", "version of the prompt that asked for it", _of("prompt_version")),
    Column("retrieval", "bool", "whether its proposer was shown what is known", _of("retrieval")),
    Column("plan", "string", "what its proposer meant to do", _of("plan")),
    Column("params", "json", "values of its tunables", _of("params")),
    Column("state", "string", "where it is: evaluated, rejected, ...", _of("state")),
    Column("failure", "string", "why its proposer made nothing", _of("failure")),
    Column("duplicate_of", "string", "the candidate that it is again", _of("duplicate_of")),
    Column("verdict", "string", "what the judge found: ok, incorrect, build_error, ...", _of("verdict")),
    Column("reason", "string", "why, in a sentence", _of("reason")),
    Column("timed", "bool", "whether it was timed", _of("timed")),
    Column("problem_hash", "string", "SHA-256 of the problem's source", _in("problem", "hash")),
    Column("hardware", "string", "what it was judged on", _in("target", "hardware")),
    Column("language", "string", "language of the kernel", _in("target", "language")),
    Column("labels", "json", "labels of the job", _of("labels")),
    Column("latency_us", "float64", "latency; geometric mean over workloads", _of("latency_us"), "us"),
    Column("baseline", "string", "the fastest baseline", _of("baseline")),
    Column("speedup", "float64", "over each workload's fastest baseline; geometric mean", _of("speedup")),
    Column("ci95_low", "float64", "lower end of the 95 % interval of speedup", _end(0)),
    Column("ci95_high", "float64", "upper end of it", _end(1)),
    Column("baselines_us", "figures", "latencies of all baselines; geometric means", _of("baselines_us"), "us"),
    Column("speedups", "figures", "speedups over all baselines", _of("speedups")),
    Column("workloads", "workloads", "each workload's timings, with every sample", _workloads, "us"),
    Column("max_relative_error", "float64", "largest error over rows, columns and blocks against the fp64 truth, "
           "in any check", _of("max_relative_error")),
    Column("profile", "json", "what holds it back, with the instrument that was used", _of("profile")),
    Column("source_hash", "string", "SHA-256 of the normalised source", _of("source_hash")),
    Column("source_bytes", "int64", "length of the source in UTF-8", _of("source_bytes"), "bytes"),
    Column("log", "string", "the end of what compiler and runner said", _of("log")),
    Column("tokens_in", "int64", "tokens of the prompt", _of("tokens_in"), "tokens"),
    Column("tokens_out", "int64", "tokens of the answer", _of("tokens_out"), "tokens"),
    Column("cost_usd", "usd", "what its proposal cost", lambda record: Decimal(record.candidate["cost_usd"]), "USD"),
    Column("gpu_s", "float64", "time that the device was held to judge it", _of("gpu_s"), "s"),
    Column("wall_s", "float64", "time that judging took", _of("wall_s"), "s"),
    Column("environment", "json", "device, driver and library versions", _of("environment")),
    Column("certificate_id", "string", "its certificate", _in("certificate", "id")),
    Column("certified", "bool", "whether that says that it is certified", _in("certificate", "certified")),
    Column("created_at", "time", "when it was made", _moment("created_at")),
    Column("evaluated_at", "time", "when it was judged", _moment("evaluated_at")),
)  # fmt: skip

COLUMNS: Final = (*ARCHIVE, *OWN)


def row_of(record: Record) -> dict[str, Any]:
    """A candidate by column; `json` is text, as in every format."""
    return {column.name: _cell(column, record) for column in COLUMNS}


def _cell(column: Column, record: Record) -> Any:
    value = column.read(record)
    if column.kind == "json" and value is not None:
        return json.dumps(value, ensure_ascii=False)
    return value
