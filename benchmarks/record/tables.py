"""The record as Markdown: what it is to show, a line for each operator, where we lose and why, and a table for each.

`notes.json` beside the results, if there is one, has the reasons that somebody looked up: `{"operator": "reason"}`, or
`{"operator": {"workload": "reason"}}`. Where a winner was profiled, its bottleneck in words is told too.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.record.figures import LIBRARY, Suite, figures, suite_of
from benchmarks.record.results import (
    Document,
    Result,
    Row,
    geomean,
    hardware_of,
    missing,
    not_run,
    read_documents,
    read_results,
)

NAME = "README.md"
NOTES = "notes.json"
_LONGEST = 240
"""Characters of a reason that a program wrote."""

Notes = Mapping[str, str | Mapping[str, str]]


def write_tables(folder: Path, drawn: Sequence[Path] = ()) -> None:
    """Write the tables beside the results, and show the plots that were drawn of them."""
    documents, results = read_documents(folder), read_results(folder)
    suite = suite_of(hardware_of(documents), results, missing(folder, results), not_run(folder))
    parts = [
        _where(results),
        summary(suite),
        (f"![{path.stem.replace('-', ' ')}]({Path(os.path.relpath(path, folder)).as_posix()})" for path in drawn),
        operators(results),
        losses(results, read_notes(folder)),
        without_kernel(suite, results, documents, read_notes(folder)),
        *(_operator(result) for result in results),
    ]
    pieces = ["\n".join(part) for part in parts]
    (folder / NAME).write_text("\n\n".join(piece for piece in pieces if piece) + "\n")


def read_notes(folder: Path) -> Notes:
    """The reasons that somebody looked up. Raises ValueError for a file of another form."""
    path = folder / NOTES
    notes: Notes = json.loads(path.read_text()) if path.exists() else {}
    for name, note in notes.items():
        texts = note.values() if isinstance(note, dict) else [note]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f'{path}: "{name}" has neither a reason nor one for each workload')
    return notes


def summary(suite: Suite) -> Iterator[str]:
    """The figures of the whole suite, each next to what it is to be, and what else there is to know of them."""
    yield "| figure | to be | seen | outcome |"
    yield "|---|---|---|---|"
    for each in figures(suite):
        outcome = f"{each.outcome}: {each.why}" if each.why else str(each.outcome)
        yield f"| {each.what} | {each.wanted} | {each.seen} | {outcome} |"
    yield ""
    yield (
        "Figures of the suite count an operator with its certified kernel, and as its fastest baseline, 1x, where its "
        "jobs have ended without one."
    )
    stated = [each.stated.speedup for each in suite.certified if each.stated and each.stated.speedup]
    if stated:
        yield (
            f"What the {len(stated)} certificates state, the smaller of two measurements of the kernel alone, is "
            f"{geomean(stated):.2f}x in geometric mean."
        )


def operators(results: Sequence[Result]) -> Iterator[str]:
    """A line for each operator."""
    if not results:
        return
    names = sorted({name for each in results for name in each.over if not name.startswith(LIBRARY)}, key=_rank)
    library = any(name.startswith(LIBRARY) for each in results for name in each.over)
    yield (
        "*Stated* is the certificate's figure: the smaller of two measurements of the kernel alone. The columns after "
        "*alone* are the same against one baseline each (`...` is `compile`), geometric mean over the workloads. The "
        "speed of light is the median over the workloads, of all inputs and outputs; it is more than 1 where a cache "
        "holds what is moved, where not all of it is needed (places beyond the end of a sequence), or where a kernel "
        "leaves out products that the reference makes (causal attention)."
    )
    yield ""
    head = ["operator", "language", "proposer", "stated", "after dispatch", "alone"]
    head += [name.replace("compile_", "..._") for name in names] + ["library"] * library
    head += ["worst workload", "speed of light", "own kernels", "reservations"]
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for each in results:
        stated = each.stated
        worst = min(each.rows, key=lambda row: row.speedup)
        cells = [each.problem if each.certified else f"{each.problem} (not certified)", each.language, each.proposer]
        cells += [_gain(stated.speedup, stated.ci95) if stated else "", f"{each.dispatched:.2f}x"]
        cells += [_gain(each.speedup, each.ci95), *(_gain(each.over.get(name)) for name in names)]
        cells += [_library(each)] * library
        cells += [f"{worst.workload} {_gain(worst.speedup, worst.ci95)}", _share(each.sol_fraction)]
        cells += [_share(each.own_share), "; ".join(_checks(each))]
        yield f"| {' | '.join(cells)} |"


def losses(results: Sequence[Result], notes: Notes) -> Iterator[str]:
    """Workloads on which the kernel alone is slower, and those whose interval leaves it open, with what is known of
    why."""
    rows = sorted(((each, row) for each in results for row in each.rows), key=lambda pair: pair[1].speedup)
    lost = [f"- {_lost(each, row, notes)}" for each, row in rows if row.loses]
    undecided = [f"- {_lost(each, row, notes)}" for each, row in rows if not row.loses and not row.wins]
    if lost:
        yield from ("Where the kernel alone is slower than the fastest baseline:", "", *lost)
    if lost and undecided:
        yield ""
    if undecided:
        yield from ("Where the interval leaves it open:", "", *undecided)


def without_kernel(
    suite: Suite, results: Sequence[Result], documents: Mapping[str, Sequence[Document]], notes: Notes
) -> Iterator[str]:
    """Operators that have been judged, and have no certified kernel."""
    names = sorted((*suite.failed, *suite.judged))
    if not names:
        return
    yield from ("Where no kernel is certified:", "")
    found = {each.problem: each for each in results}
    for name in names:
        result, note = found.get(name), notes.get(name)
        if result is None:
            why = _verdicts(documents[name])
        else:
            refused = f"refused: {result.stated.reason}" if result.stated else "judged, no certificate yet"
            why = f"{_gain(result.dispatched)} after dispatch, {refused}"
        yield f"- `{name}`: {_short(why)}{_sentence(note) if isinstance(note, str) else ''}"


def _where(results: Sequence[Result]) -> Iterator[str]:
    devices = Counter(each.device for each in results if each.device)
    if devices:
        yield f"Measured on: {'; '.join(f'{name} ({count} operators)' for name, count in sorted(devices.items()))}."


def _lost(result: Result, row: Row, notes: Notes) -> str:
    return (
        f"`{result.problem}` {row.workload}: {_gain(row.speedup, row.ci95)} of {row.baseline}{_why(result, row, notes)}"
    )


def _why(result: Result, row: Row, notes: Notes) -> str:
    note = notes.get(result.problem, "")
    said = note if isinstance(note, str) else note.get(row.workload, "")
    seen, looked_at = result.profile.get("primary", ""), result.profile.get("workload")
    other = "" if looked_at == row.workload else f" of {looked_at}"
    return _sentence(said) + (_sentence(f"The profile{other} says: {_short(seen)}") if seen else "")


def _verdicts(documents: Sequence[Document]) -> str:
    """How the candidates of jobs ended that found nothing, with a reason of each kind."""
    candidates = [each for document in documents for each in document["candidates"] if each["verdict"]]
    counts = Counter(each["verdict"] for each in candidates)
    reasons = {each["verdict"]: _short(each["reason"] or "", 100) for each in candidates}
    parts = [
        f"{count} {verdict}" + (f" ({reasons[verdict]})" * bool(reasons[verdict])) for verdict, count in counts.items()
    ]
    return ", ".join(parts) or "no candidate was judged"


def _operator(result: Result) -> Iterator[str]:
    names = sorted({name for row in result.rows for name in row.panel_us})
    yield f"### {result.problem}"
    yield ""
    yield f"| workload, us | {' | '.join(names)} | ours | over the fastest | speed of light |"
    yield "|---" * (len(names) + 4) + "|"
    for row in result.rows:
        panel = " | ".join(_us(row.panel_us.get(name)) for name in names)
        gain = f"{_gain(row.speedup, row.ci95)} ({row.baseline})"
        yield f"| {row.workload} | {panel} | **{_us(row.ours_us)}** | {gain} | {_share(row.sol_fraction)} |"
    absent = [f"- {name} could not be made: {_short(why)}" for name, why in sorted(result.unmade.items())]
    reserved = [f"- reservation: {_short(each)}" for each in (result.stated.reservations if result.stated else ())]
    if absent or reserved:
        yield from ("", *absent, *reserved)


def _library(result: Result) -> str:
    """The strongest of a library's kernels."""
    found = {name: value for name, value in result.over.items() if name.startswith(LIBRARY)}
    if not found:
        return ""
    name = min(found, key=found.__getitem__)
    return f"{_gain(found[name])} ({name.removeprefix(LIBRARY)})"


def _checks(result: Result) -> list[str]:
    """The checks that a certificate has reservations about; in what words is told with the operator's table."""
    return [each.partition(":")[0] for each in (result.stated.reservations if result.stated else ())]


def _rank(baseline: str) -> tuple[bool, str]:
    return not baseline.startswith("eager"), baseline


def _gain(value: float | None, ci95: tuple[float, float] | None = None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}x" + (f" [{ci95[0]:.2f}, {ci95[1]:.2f}]" if ci95 else "")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _sentence(text: str) -> str:
    return f". {text[0].upper()}{text[1:].rstrip('.')}" if text else ""


def _short(text: str, longest: int = _LONGEST) -> str:
    """One line, for a table or a list."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= longest else f"{line[: longest - 3]}..."
