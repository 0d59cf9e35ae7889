"""The record: every bundled operator through the whole service on one device, and what came of it.

    python -m benchmarks.record run --out results                   # all of them: hours; again to go on
    python -m benchmarks.record run --out results --limit-s 540     # a slice; again, with --home, to go on
    python -m benchmarks.record run --out results --problems softmax,layernorm --evaluators 4
    python -m benchmarks.record run --out results --hardware cpu    # the C++ kernels, on this machine's CPU
    python -m benchmarks.record tables --out results                # what the results say, as Markdown
    python -m benchmarks.record tables --out results --plots        # and plots, if matplotlib is installed
    python -m benchmarks.record look --evaluators 8                 # all proposals on this GPU, without the judge
    python -m benchmarks.record look --problems sdpa_mlp:triton:warp_groups --with PAIR=1,EARLY=0 --with SKEW=0
    python -m benchmarks.record light --hardware nvidia-h200        # what each workload takes at least

`run` starts a service of its own (`kernelwright up`), submits a job for each operator and language that has proposals
in `benchmarks/record/proposals/<problem>/`, and answers its questions with them, as an outside agent does
(`ask/tell`). The service judges them beside its own seeds and recipes, tunes the best, and certifies the winner; with
`--tunes 0` it judges and certifies the proposals alone. `--out` gets a file for each job: the winner with its report,
its source and its certificate, every baseline of every workload, and the verdict on every candidate. Exit code 75:
the time was up, or the machine failed a job: run it again; 1: a job found no certified kernel.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.record.light import table
from benchmarks.record.look import changes_of, look, look_at_all
from benchmarks.record.plan import plan
from benchmarks.record.plots import draw
from benchmarks.record.run import run
from benchmarks.record.tables import write_tables
from benchmarks.service import home_of
from problems.catalog import bundled
from worker.profile.gpus import detect_hardware


def main() -> int:
    """Run jobs, or write tables."""
    options = _options()
    if options.what == "tables":
        write_tables(options.out, _plots(options))
        return 0
    hardware = options.hardware or next((name for name in detect_hardware() if name != "cpu"), "cpu")
    only, languages = ([word for word in words.split(",") if word] for words in (options.problems, options.languages))
    if options.what == "light":
        sys.stdout.writelines(f"{line}\n" for line in table(hardware))
        return 0
    if options.what == "look":
        home, wanted = home_of(options.home), only or list(bundled())
        one = look(wanted[0], hardware, home, options.changes) if len(wanted) == 1 else None
        for line in one or look_at_all(wanted, hardware, options.evaluators, home, options.changes):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        return 0
    entries = plan(hardware, only, languages)
    options.out.mkdir(parents=True, exist_ok=True)
    left = run(entries, hardware, options)
    for line in left:
        sys.stdout.write(f"{line}\n")
    return left.status if left else 0


def _plots(options: argparse.Namespace) -> list[Path]:
    """Those that were drawn: none unless asked for, and none without matplotlib."""
    if options.plots is None:
        return []
    try:
        return draw(options.out, Path(options.plots) if options.plots else options.out)
    except ImportError:
        sys.stderr.write("no plots: matplotlib is not installed: pip install matplotlib\n")
        return []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.record", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "tables", "look", "light"))
    parser.add_argument("--out", type=Path, default=Path("record"), help="the folder of the results")
    parser.add_argument(
        "--problems",
        default="",
        help="only these (or `name:language`, or `name:language:proposal`), separated by commas, in this order",
    )
    parser.add_argument("--languages", default="", help="only in these, separated by commas")
    parser.add_argument("--hardware", help="default: this machine's GPU")
    evaluators = "that share each device, and jobs at a time for it; two brought half as many certificates again as one"
    parser.add_argument("--evaluators", type=int, default=1, help=evaluators)
    parser.add_argument("--limit-s", type=float, help="stop after so many seconds, to go on later")
    parser.add_argument(
        "--home", type=Path, help="the service's home; kept, with its caches, its knowledge base and unfinished jobs"
    )
    tunes = "places in a job's budget for the service's own seeds and for tuning: 0 judges the proposals alone"
    parser.add_argument("--tunes", type=int, default=4, help=tunes)
    plots = "draw SVG files too, into this folder or beside the tables (needs matplotlib)"
    parser.add_argument("--plots", nargs="?", const="", metavar="FOLDER", help=plots)
    parser.add_argument("--no-profile", action="store_true", help="look for no bottlenecks, and read no generated code")
    parser.add_argument("--no-certify", action="store_true", help="leave the certificates out: a first look")
    changes = "look at the proposals that have these constants with other values too: BAND=4,SKEW=0; may be repeated"
    parser.add_argument("--with", dest="changes", action="append", default=[], metavar="NAME=VALUE", help=changes)
    options = parser.parse_args()
    try:
        [changes_of(change) for change in options.changes]
    except (ValueError, SyntaxError):
        parser.error(f"--with takes names with numbers, strings or booleans, as in BAND=4,SKEW=0: {options.changes}")
    return options


if __name__ == "__main__":
    sys.exit(main())
