"""Search policies at equal budgets: replay of recorded pools, live searches as far as recorded, ablation of levers.

    python -m benchmarks.policy --out figures.json                       # 20 seeds, budgets 30 and 100: 15 minutes
    python -m benchmarks.policy --quick --out figures.json               # under five minutes
    python -m benchmarks.policy --out figures.json --plots docs/img --tables tables.md

Nothing is compiled or timed here: replay reads `benchmarks/data/policy`, and live searches are retraced from what
`benchmarks.policy.live` has recorded. Pools are recorded by `benchmarks.policy.record`. Runs depend on nothing but the
seeds, so another machine gets the same figures to the last digit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import structlog

from benchmarks.policy import grid, live_figures, plots, pool, summary, table
from benchmarks.policy.contenders import USUAL, ablations, default_name, policies
from benchmarks.policy.live import QUICK_SEEDS, SEEDS

log = structlog.get_logger()


def main() -> int:
    """Measure, write the figures, print the tables."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    options = _options()
    problems = list(pool.packed())
    if not problems:
        log.error("pools.missing", record="python -m benchmarks.policy.record")
        return 1
    figures = measure(problems, quick=options.quick, jobs=options.jobs)
    options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    text = report(figures)
    sys.stdout.write(text)
    if options.tables is not None:
        options.tables.write_text(text, encoding="utf-8")
    if options.plots is not None:
        try:
            log.info("plots.drawn", files=[path.name for path in plots.draw(figures, options.plots)])
        except ImportError:
            log.warning("plots.skipped", why="matplotlib is not installed: pip install matplotlib")
    return 0


def measure(problems: list[str], *, quick: bool, jobs: int | None = None) -> dict[str, Any]:
    """All figures. Quick: fewer problems, seeds, and one budget for the ablation."""
    started = time.monotonic()
    chosen = problems[: grid.QUICK_PROBLEMS] if quick else problems
    seeds = grid.QUICK_SEEDS if quick else grid.SEEDS
    figures: dict[str, Any] = {
        "quick": quick,
        "seeds": seeds,
        "ours": default_name(),
        "pools": {name: summary.pool_facts(pool.load(name)) for name in chosen},
    }
    names = list(policies())
    figures["replay"] = summary.compared(grid.replay(names, chosen, seeds, jobs=jobs), default_name())
    log.info("replay.done", wall_s=round(time.monotonic() - started))
    budgets = grid.BUDGETS[:1] if quick else grid.BUDGETS
    figures["ablation"] = summary.compared(grid.replay(list(ablations()), chosen, seeds, budgets, jobs), USUAL)
    log.info("ablation.done", wall_s=round(time.monotonic() - started))
    live = live_figures.figures(QUICK_SEEDS if quick else SEEDS)
    if live is not None:
        figures["live"] = live
    return figures


def report(figures: dict[str, Any]) -> str:
    """The tables as Markdown."""
    ours = figures["ours"]
    parts = [f"default: {ours}; {figures['seeds']} seeds\n", "## Pools\n", table.pools(figures["pools"])]
    for budget, rows in figures["replay"].items():
        parts += [f"\n## Replay, budget {budget}\n", table.compared(rows, ours)]
    for budget, rows in figures["ablation"].items():
        parts += [f"\n## Levers, budget {budget}\n", table.ablated(rows)]
    if "live" in figures:
        parts += ["\n## Live\n", table.live(figures["live"])]
    return "\n".join(parts) + "\n"


def _options() -> Any:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the figures, as JSON")
    parser.add_argument("--quick", action="store_true", help="three problems, eight seeds, under five minutes")
    parser.add_argument("--jobs", type=int, help="processes; default: one a core")
    parser.add_argument("--tables", type=Path, help="write the tables here too")
    parser.add_argument("--plots", type=Path, help="draw SVG files into this folder (needs matplotlib)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
