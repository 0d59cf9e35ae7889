"""Where the rows of a data set go: JSON lines or Parquet, whole under its name at the end or not there at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cli.errors import CliError
from cli.exchange.columns import COLUMNS, Column
from cli.service import UnusableInput

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_OF_A_GROUP: Final = 10_000
BYTES_OF_A_GROUP: Final = 64 << 20
"""Whichever comes first makes a row group: it is what the writer holds in memory."""

Row = Mapping[str, Any]


class NoPyarrow(CliError):
    """Parquet needs the Python package pyarrow, which is not installed: pip install 'kernelwright[dataset]', or write
    JSON lines with --format jsonl."""


class Sink(Protocol):
    """Takes rows one by one; `close` writes what is still held."""

    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


@contextmanager
def writing(path: Path, kind: str, about: Mapping[str, str]) -> Iterator[Sink]:
    """A sink of that kind: `jsonl` or `parquet`. The file appears under its name when the block ends well.

    `about` is stored in a Parquet file: where the rows come from. Raises NoPyarrow and UnusableInput.
    """
    if kind == "parquet":
        _pyarrow()
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UnusableInput(problem=f"cannot write {path}: {error.strerror or error}") from error
    os.close(handle)
    partial = Path(name)
    try:
        sink: Sink = ParquetSink(partial, about) if kind == "parquet" else JsonlSink(partial)
        try:
            yield sink
        finally:
            sink.close()
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        raise UnusableInput(problem=f"cannot write {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


class JsonlSink:
    """One JSON object a line. Money is a decimal string, a moment RFC 3339."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, row: Row) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")

    def close(self) -> None:
        self._file.close()


class ParquetSink:
    """Row groups of a bounded size; each field of the schema says what it means and in which unit."""

    def __init__(self, path: Path, about: Mapping[str, str]) -> None:
        pa = _pyarrow()
        from pyarrow import parquet

        self._schema = schema(about)
        self._batch = pa.RecordBatch
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Row] = []
        self._bytes = 0

    def write(self, row: Row) -> None:
        self._rows.append(row)
        self._bytes += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(self._rows) >= ROWS_OF_A_GROUP or self._bytes >= BYTES_OF_A_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_batch(self._batch.from_pylist(self._rows, schema=self._schema))
        self._rows, self._bytes = [], 0


def schema(about: Mapping[str, str] | None = None) -> pa.Schema:
    """The columns as Arrow knows them."""
    pa = _pyarrow()
    fields = [pa.field(column.name, _type(column), metadata=_metadata(column)) for column in COLUMNS]
    return pa.schema(fields, metadata=dict(about or {}))


def _metadata(column: Column) -> dict[str, str]:
    return {"meaning": column.meaning} | ({"unit": column.unit} if column.unit else {})


def _type(column: Column) -> pa.DataType:
    pa = _pyarrow()
    figures = pa.map_(pa.string(), pa.float64())
    timing = {
        **dict.fromkeys(("name", "baseline"), pa.string()),
        **dict.fromkeys(("latency_us", "speedup", "ci95_low", "ci95_high", "sol_fraction"), pa.float64()),
        "baselines_us": figures,
        "samples_us": pa.map_(pa.string(), pa.list_(pa.float64())),
    }
    types = {
        "string": pa.string(),
        "json": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "usd": pa.decimal128(18, 6),
        "time": pa.timestamp("us", tz="UTC"),
        "strings": pa.list_(pa.string()),
        "figures": figures,
        "workloads": pa.list_(pa.struct(list(timing.items()))),
    }
    return types[column.kind]


def _pyarrow() -> Any:
    """Raises NoPyarrow."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise NoPyarrow from error
    return pa


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    raise TypeError(f"{type(value).__name__} is no value of a column")
