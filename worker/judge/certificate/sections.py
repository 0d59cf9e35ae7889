"""The sections of the certificate's page. Each returns HTML, or nothing when the document has nothing to say there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from worker.judge.certificate import plots
from worker.judge.certificate.plots import duration, number
from worker.judge.certificate.svg import clean


class Markup(str):
    """HTML of our own making, which is not cleaned again."""


_STATES = {
    "passed": ("good", "✓ passed"),
    "failed": ("bad", "✗ failed"),
    "reservation": ("warn", "! reservation"),
    "not applicable": ("note", "– not applicable"),
}
_KEY = (
    ('<circle cx="13" cy="7" r="4.5" class="found"/>', "candidate"),
    ('<line x1="13" y1="2" x2="13" y2="12" class="honest"/>', "honest arithmetic"),
    ('<rect x="1" y="3.5" width="24" height="7" class="allowed"/>', "allowed"),
    ('<line x1="13" y1="0" x2="13" y2="14" class="limit"/>', "threshold"),
    ('<line x1="13" y1="0" x2="13" y2="14" class="limit blind"/>', "threshold that guards logic only"),
    ('<line x1="9" y1="3" x2="17" y2="11" class="reject"/><line x1="9" y1="11" x2="17" y2="3" class="reject"/>',
     "one precision lower (must fail)"),
)  # fmt: skip


def errors(document: Mapping[str, Any]) -> str:
    """Every comparison with the fp64 truth."""
    rows = [row for layer in document["layers"] if layer["id"] == "numerics" for row in layer["rows"]]
    drawing = plots.errors(rows)
    if not drawing:
        return ""
    drawn = (f'<svg viewBox="0 0 26 14" aria-hidden="true">{mark}</svg>{name}' for mark, name in _KEY)
    key = "".join(f'<span class="key">{entry}</span>' for entry in drawn)
    words = (
        "The largest relative error over rows, columns and blocks. The threshold lies between the error of honest "
        "arithmetic and that of the reference one precision lower, both measured on the same inputs."
    )
    return f"<p class='note'>{words}</p><figure><figcaption>{key}</figcaption>{drawing}</figure>"


def timing(document: Mapping[str, Any]) -> str:
    """Every sample, and the medians in a table."""
    part = document["timing"]
    if not part:
        return ""
    drawn = []
    for row in part["workloads"]:
        low, high = row["ci95"]
        title = f"{row['name']}: {number(row['speedup']):.2f}x over {row['baseline']} ({low:.2f} to {high:.2f})"
        drawn.append(f"<h3>{clean(title)}</h3><figure>{plots.timings(row)}</figure>")
    words = (
        "Each dot is one call (on a GPU, the mean of one chain of calls) on fresh values and cold caches. Candidate "
        "and baselines take turns within each round, and ratios are taken within rounds; the box holds the middle half."
        " On a GPU a baseline that is plainly slower than the fastest one is timed in three rounds only."
    )
    return f"<p class='note'>{words}</p>{''.join(drawn)}{_medians(part)}{_repeated(part)}"


def _medians(part: Mapping[str, Any]) -> str:
    names = sorted({name for row in part["workloads"] for name in row["baselines_us"]})
    head = ["workload", "candidate", *names, "speedup", "95 % interval", "rounds"]
    body = []
    for row in part["workloads"]:
        low, high = row["ci95"]
        rounds = max((len(values) for values in row["samples_us"].values()), default=0)
        cells = [duration(number(row["latency_us"]))]
        cells += [duration(number(row["baselines_us"][name])) if name in row["baselines_us"] else "–" for name in names]
        body.append([row["name"], *cells, f"{number(row['speedup']):.3f}x", f"{low:.3f} – {high:.3f}", str(rounds)])
    return _table(head, body, numeric=range(1, len(head)))


def _repeated(part: Mapping[str, Any]) -> str:
    found = []
    again, control = part["again"], part["control"]
    if again:
        low, high = number(again["ci95_low"]), number(again["ci95_high"])
        found.append(
            f"Measured again in fresh processes with new values: {number(again['speedup']):.3f}x ({low:.3f} to "
            f"{high:.3f}). The smaller of both is certified."
        )
    if control:
        said = ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in control.items())
        found.append(f"A/A control, the reference against itself: {said}.")
    return "".join(f"<p>{clean(text)}</p>" for text in found)


def roofline(document: Mapping[str, Any]) -> str:
    """Where each workload lies below the measured ceilings."""
    part = document["roofline"]
    if not part or not part["points"]:
        return ""
    head = ["workload", "bytes", "operations", "floor", "time", "speed of light", "bound"]
    rows = [
        [
            point["name"],
            _amount(number(point["bytes_moved"]), "B"),
            _amount(number(point["flops"]), ""),
            duration(number(point["floor_us"])),
            duration(number(point["latency_us"])),
            f"{number(point['sol_fraction']):.1%}",
            point["bound"],
        ]
        for point in part["points"]
    ]
    words = (
        "Bytes and operations are the least that the reference needs, so the fractions are lower bounds. "
        + part["note"]
    )
    drawing = f"<figure>{plots.roofline(part)}</figure>"
    return f"<p class='note'>{clean(words)}</p>{drawing}{_table(head, rows, numeric=range(1, 6))}"


def training(document: Mapping[str, Any]) -> str:
    """The training-dynamics check, where the problem has one."""
    part = document["dynamics"]
    if not part:
        return ""
    said = f"<p>{clean(part['sentence'])}</p>" if part.get("sentence") else ""
    drawn = "".join(_training_run(run) for run in part.get("runs", []))
    legend = "<p class='note'>Line: the candidate's loss. Band: honest variants of the reference.</p>" if drawn else ""
    others = {key: value for key, value in part.items() if key not in ("sentence", "runs")}
    return said + legend + drawn + (_facts(others) if others else "")


def _training_run(run: Mapping[str, Any]) -> str:
    drawing = plots.training(run)
    curves = {"steps", "candidate", "null_low", "null_high", "name"}
    figures = ", ".join(f"{key.replace('_', ' ')} {_short(value)}" for key, value in run.items() if key not in curves)
    figure = f"<figure>{drawing}</figure>" if drawing else ""
    return f"<h3>{clean(run.get('name', 'training'))}</h3>{figure}<p class='note'>{clean(figures)}</p>"


def system(document: Mapping[str, Any]) -> str:
    """What only a finalist is put through, each with its outcome in words."""
    rows = [row for layer in document["layers"] if layer["id"] == "system" for row in layer["rows"]]
    return _rows_table(rows) if rows else ""


def checks(document: Mapping[str, Any]) -> str:
    """Every check of the judgement by layer, folded; a layer with something to see is open."""
    return "".join(_layer(layer) for layer in document["layers"] if layer["id"] != "system")


def _layer(layer: Mapping[str, Any]) -> str:
    rows = layer["rows"]
    made = [row for row in rows if row["outcome"] != "not applicable"]
    passed = sum(row["outcome"] == "passed" for row in made)
    is_open = " open" if any(row["outcome"] in ("failed", "reservation") for row in rows) else ""
    tone = "good" if passed == len(made) else "bad" if any(row["outcome"] == "failed" for row in rows) else "warn"
    count = f"{passed} of {len(made)} passed" if made else "not applicable"
    head = f"<b>{clean(layer['title'])}</b> <span class='note'>{clean(layer['catches'])}</span>"
    return (
        f'<details class="layer"{is_open}><summary>{head} <span class="count {tone}">{count}</span></summary>'
        f"{_rows_table(rows)}</details>"
    )


def _rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    body = [
        [row["name"].removeprefix("system: "), _state(row), _figure(row), _limit(row), row["detail"] or _rest(row)]
        for row in rows
    ]
    return _table(["check", "outcome", "statistic", "threshold", "detail"], body, numeric=(2, 3))


def environment(document: Mapping[str, Any]) -> str:
    """What it was measured on, by which judge, and where each group of figures comes from."""
    about = {**document["environment"], "judge code SHA-256": document["judge"].get("code_sha256", "")}
    about |= {"problem SHA-256": document["problem"]["sha256"], "candidate SHA-256": document["candidate"]["sha256"]}
    workloads = [[row["name"], ", ".join(row["inputs"])] for row in document["problem"]["workloads"]]
    origin = [[key, value] for key, value in document["provenance"].items()]
    return (
        _facts(about)
        + f"<h3>Workloads</h3>{_table(['workload', 'inputs'], workloads)}"
        + f"<h3>Where the figures come from</h3>{_table(['figures', 'origin'], origin)}"
    )


def source(document: Mapping[str, Any]) -> str:
    """The candidate itself. Control and direction characters are shown as what they are."""
    text = document["candidate"]["source"]
    count = text.count("\n") + 1
    return f"<details><summary>The candidate, {count} lines</summary><pre>{clean(text)}</pre></details>"


# --- tables -----------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """A table; every cell that is not Markup is cleaned."""
    right = set(numeric)
    kinds = [
        "num" if index in right else "state" if name == "outcome" else "say" if index else "name"
        for index, name in enumerate(head)
    ]
    heads = "".join(
        f'<th scope="col" class="{kind}">{clean(name)}</th>' for name, kind in zip(head, kinds, strict=True)
    )
    body = "".join(f"<tr>{_cells(row, kinds)}</tr>" for row in rows)
    named = f"<thead><tr>{heads}</tr></thead>" if any(head) else ""
    return f'<div class="scroll"><table>{named}<tbody>{body}</tbody></table></div>'


def _cells(row: Sequence[str], kinds: Sequence[str]) -> str:
    shown = (cell if isinstance(cell, Markup) else clean(cell) for cell in row)
    return "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(shown, kinds, strict=True))


def _facts(facts: Mapping[str, Any]) -> str:
    rows = [[str(key).replace("_", " "), _short(value)] for key, value in facts.items() if value not in (None, {}, [])]
    return _table(["", ""], rows)


def _state(row: Mapping[str, Any]) -> Markup:
    tone, words = _STATES[row["outcome"]]
    return Markup(f'<span class="{tone}">{words}</span>')


def _figure(row: Mapping[str, Any]) -> str:
    if row["statistic"] is None:
        return ""
    return f"{_short(row['statistic'])} {row['unit'] if row['unit'] != 'relative error' else ''}".strip()


def _limit(row: Mapping[str, Any]) -> str:
    return "" if row["threshold"] is None else _short(row["threshold"])


def _rest(row: Mapping[str, Any]) -> str:
    """The figures that the columns do not show."""
    shown = {"error", "threshold", "statistic", "unit", "outcome"}
    said = [f"{key.replace('_', ' ')} {_short(value)}" for key, value in row["figures"].items() if key not in shown]
    return "; ".join(said)


def _short(value: Any) -> str:
    if isinstance(value, bool | str) or value is None:
        return str(value)
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_short(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_short(item) for item in value)
    figure = number(value)
    if figure == int(figure) and abs(figure) < 1e15:
        return f"{int(figure):,}"
    return f"{figure:.3e}" if abs(figure) < 1e-3 or abs(figure) >= 1e6 else f"{figure:.4g}"


def _amount(value: float, unit: str) -> str:
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}".strip()
    return f"{value:.0f} {unit}".strip()
