"""Data sets of candidates: the columns, what is written, and pages that must be asked for more than once."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pyarrow import parquet

from api.archive_examples import ARCHIVED
from cli.client import ApiError, Unreachable
from cli.exchange import archive, files
from cli.exchange.archive import PATIENCE_S, patiently, records
from cli.exchange.columns import ARCHIVE, COLUMNS, Record, row_of
from cli.exchange.files import NoPyarrow, writing
from cli.service import UnusableInput
from tests.unit.cli.wire import Wire, answered

ROOT = Path(__file__).resolve().parents[4]
TIMED = {
    "name": "small",
    "latency_us": 41.7,
    "baseline": "compile",
    "speedup": 2.31,
    "ci95": [2.25, 2.36],
    "baselines_us": {"eager": 118.2, "compile": 96.4},
    "samples_us": {"candidate": [41.0, 42.5], "compile": [96.0]},
    "sol_fraction": 0.4,
}
FOUND = ARCHIVED | {
    "workloads": [TIMED],
    "profile": {"rung": "ncu", "bound": "memory"},
    "labels": {"kernelbench.level": "2", "kernelbench.task": "76", "team": "ranking"},
    "cost_usd": "0.013",
}
WRONG = ARCHIVED | {"verdict": "incorrect", "reason": "row 3 is NaN", "ci95": None, "latency_us": None, "speedups": {}}
REJECTED = WRONG | {
    "verdict": None,
    "reason": None,
    "failure": "no_code",
    "failure_detail": "said no",
    "baselines_us": {},
    "environment": None,
    "certificate": None,
    "evaluated_at": None,
}


def test_the_archives_columns_are_those_that_its_readers_know() -> None:
    assert [column.name for column in ARCHIVE] == [
        "Op_Name",
        "Level_ID",
        "Task_ID",
        "Kernel_Name",
        "CUDA_Runtime",
        "PyTorch_Native_Runtime",
        "PyTorch_Compile_Runtime",
        "CUDA_Speedup_Native",
        "CUDA_Speedup_Compile",
        "CUDA_Code",
        "PyTorch_Code_Module",
        "PyTorch_Code_Functional",
        "Correct",
        "Max_Diff",
        "Error",
        "NCU_Profile",
        "Torch_Profile",
        "Clang_Tidy",
    ]


def test_a_candidate_becomes_a_row() -> None:
    row = row_of(Record(FOUND, "class Model: ..."))
    assert list(row) == [column.name for column in COLUMNS]
    assert (row["Op_Name"], row["Level_ID"], row["Task_ID"]) == ("softmax", 2, 76)
    times = ("CUDA_Runtime", "PyTorch_Native_Runtime", "PyTorch_Compile_Runtime")
    assert [row[name] for name in times] == pytest.approx([0.0417, 0.1182, 0.0964])
    assert (row["CUDA_Speedup_Native"], row["CUDA_Speedup_Compile"]) == (2.83, 2.31)
    assert (row["Correct"], row["Error"]) == (True, None)
    assert json.loads(row["NCU_Profile"]) == FOUND["profile"]
    assert row["Torch_Profile"] is None
    assert (row["PyTorch_Code_Module"], row["CUDA_Code"]) == ("class Model: ...", ARCHIVED["source"])
    assert (row["ci95_low"], row["ci95_high"]) == (2.25, 2.36)
    assert row["cost_usd"] == Decimal("0.013")
    assert row["created_at"] == datetime(2026, 11, 21, 13, 4, 31, 450_000, tzinfo=UTC)


def test_what_was_not_accepted_says_why_and_what_was_not_judged_is_neither_right_nor_wrong() -> None:
    wrong, rejected = row_of(Record(WRONG)), row_of(Record(REJECTED))
    assert (wrong["Correct"], wrong["Error"]) == (False, "incorrect: row 3 is NaN")
    assert (rejected["Correct"], rejected["Error"]) == (None, "no_code: said no")
    assert row_of(Record(WRONG | {"verdict": "infra_error"}))["Correct"] is None
    assert (rejected["certificate_id"], rejected["environment"], rejected["Level_ID"]) == (None, None, None)


def test_parquet_reads_back_with_types_and_what_each_column_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_OF_A_GROUP", 2)
    rows = [row_of(Record(each, "class Model: ...")) for each in (FOUND, WRONG, REJECTED)]
    path = tmp_path / "all.parquet"
    with writing(path, "parquet", {"source": "kernelwright"}) as sink:
        for row in rows:
            sink.write(row)
    read = parquet.ParquetFile(path)
    assert read.num_row_groups == 2
    assert read.schema_arrow.metadata[b"source"] == b"kernelwright"
    for column in COLUMNS:
        told = read.schema_arrow.field(column.name).metadata
        assert told[b"meaning"].decode() == column.meaning
        assert told.get(b"unit", b"").decode() == column.unit
    back = read.read().to_pylist(maps_as_pydicts="strict")
    assert back == [row | _maps(row) for row in rows]


def _maps(row: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(row[name]) for name in ("baselines_us", "speedups")}


def test_json_lines_read_back(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    with writing(path, "jsonl", {}) as sink:
        sink.write(row_of(Record(FOUND)))
    (line,) = path.read_text().splitlines()
    back = json.loads(line)
    assert (back["cost_usd"], back["created_at"]) == ("0.013", "2026-11-21T13:04:31.450000+00:00")
    assert back["workloads"][0]["samples_us"] == TIMED["samples_us"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_that_was_not_finished_leaves_nothing_and_the_one_before_stays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "all"
    path.write_text("before")
    with pytest.raises(Unreachable), writing(path, kind, {}) as sink:
        sink.write(row_of(Record(FOUND)))
        raise Unreachable("http://api.example", "gone")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="cannot write"), writing(tmp_path / "no" / "x", "jsonl", {}):
        pass


def test_without_pyarrow_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NoPyarrow, match="--format jsonl"), writing(tmp_path / "x.parquet", "parquet", {}):
        pass
    assert list(tmp_path.iterdir()) == []
    with writing(tmp_path / "x.jsonl", "jsonl", {}) as sink:
        sink.write(row_of(Record(FOUND)))


def page(*candidates: Any, cursor: str | None = None) -> httpx2.Response:
    return answered({"data": list(candidates), "next_cursor": cursor, "has_more": cursor is not None})


def judging(source: str) -> httpx2.Response:
    return answered({"problem": {"source": source}})


def test_a_page_that_does_not_come_is_asked_for_again_and_a_problem_once() -> None:
    other = FOUND | {"problem": {"name": "layernorm", "hash": "ff"}}
    busy = answered({"title": "Too many requests"}, 429)
    wire = Wire(
        page(FOUND, WRONG, cursor="one"),
        judging("softmax.py"),
        httpx2.ReadError("reset"),
        busy,
        page(other, cursor="two"),
        httpx2.ConnectError("refused"),
        judging("layernorm.py"),
        page(),
    )
    waits: list[float] = []
    with wire.client() as client:
        found = list(records(client, {"include": ["source"], "verdict": "ok"}, wait=waits.append))
    assert [each.problem_source for each in found] == ["softmax.py", "softmax.py", "layernorm.py"]
    assert wire.unused == 0
    asked = [request.url.params for request in wire.requests if request.url.path == "/v1/candidates"]
    assert [each.get("cursor") for each in asked] == [None, "one", "one", "one", "two"]
    assert {each["include"] for each in asked} == {"source"}
    assert waits == [0.5, 1.0, 0.5]


def test_patience_ends_and_a_refusal_is_not_repeated() -> None:
    waits: list[float] = []
    tries = 0

    def gone() -> None:
        nonlocal tries
        tries += 1
        raise Unreachable("http://api.example", "refused")

    with pytest.raises(Unreachable):
        patiently(gone, waits.append)
    assert PATIENCE_S <= sum(waits) <= PATIENCE_S + 20
    assert tries == len(waits) + 1
    with Wire(answered({"title": "Invalid"}, 422)).client() as client, pytest.raises(ApiError):
        list(records(client, {}, wait=waits.append))


def test_no_more_problems_are_kept_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_PROBLEMS", 1)
    other = FOUND | {"problem": {"name": "layernorm", "hash": "ff"}}
    wire = Wire(page(FOUND, other, FOUND), judging("a"), judging("b"), judging("c"))
    with wire.client() as client:
        assert [each.problem_source for each in records(client, {})] == ["a", "b", "c"]


def test_the_page_of_documentation_has_every_column() -> None:
    told = (ROOT / "docs/exchange.md").read_text()
    for column in COLUMNS:
        unit = f" ({column.unit})" if column.unit else ""
        assert f"| `{column.name}` | {column.kind}{unit} | {column.meaning} |" in told
