"""The curves as SVG, by matplotlib: it is no dependency of the project, and without it there are only tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.policy.contenders import USUAL

_COLOURS = ("#0b6e4f", "#c8553d", "#3d5a80", "#8d6a9f", "#e09f3e", "#5c677d", "#111111", "#9e2a2b")


def draw(figures: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what there is: best-so-far curves by budget, win rates, the ablation, live curves. Raises ImportError
    without matplotlib."""
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "kernelwright", "font.size": 9, "axes.spines.right": False})
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    if "replay" in figures:
        for budget, rows in figures["replay"].items():
            title = f"Replay, budget {budget}: mean of the best so far"
            drawn.append(_curves(rows, title, folder / f"policy-replay-{budget}.svg"))
    if "ablation" in figures:
        drawn.append(_levers(figures["ablation"], folder / "policy-ablation.svg"))
    if "live" in figures:
        drawn.append(_curves(figures["live"]["policies"], "Live: mean of the best so far", folder / "policy-live.svg"))
    return drawn


def _curves(rows: Mapping[str, Any], title: str, path: Path) -> Path:
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    ranked = sorted(rows.items(), key=lambda item: -item[1]["curve"][-1])
    for colour, (name, row) in zip(_COLOURS, ranked, strict=False):
        places = range(1, len(row["curve"]) + 1)
        axes.plot(places, row["curve"], label=name, color=colour, linewidth=1.8)
    axes.set(title=title, xlabel="candidates judged", ylabel="share of the scale of log-speedup")
    axes.legend(frameon=False, fontsize=8)
    return _saved(figure, path)


def _levers(ablation: Mapping[str, Any], path: Path) -> Path:
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    figure, axes = plt.subplots(figsize=(6.4, 3.0))
    for shift, (budget, rows) in enumerate(ablation.items()):
        names = [name for name in rows if name != USUAL]
        changes = [rows[name]["area_difference"] for name in names]
        places = [place + 0.25 * (shift - 0.5) for place in range(len(names))]
        low = [change[0] - change[1] for change in changes]
        high = [change[2] - change[0] for change in changes]
        values = [change[0] for change in changes]
        axes.errorbar(values, places, xerr=[low, high], fmt="o", color=_COLOURS[shift], label=f"budget {budget}")
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set(title="Change of the area under the curve with one lever switched", xlabel="below 0: right as it is")
    axes.legend(frameon=False, fontsize=8)
    return _saved(figure, path)


def _saved(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
