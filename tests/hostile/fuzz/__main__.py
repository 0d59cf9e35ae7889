"""`python -m tests.hostile.fuzz --messages 100000`: forged messages for the judge; fail on a crash or a forgery."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.hostile.fuzz.listeners import LISTENERS, Tally
from tests.hostile.fuzz.messages import Forge
from worker.judge.runners import sessions

_WITH_DESCRIPTORS, _BELLS = 20, 50
"""Every so many messages one comes with descriptors, and one is an answer to the bell."""


def fuzz(messages: int, seed: int) -> tuple[Tally, int]:
    """What came of so many messages, and how many descriptors the judge has more than before."""
    with tempfile.TemporaryDirectory(prefix="hostile-fuzz-") as folder:
        artefact = Path(folder) / "artefact.so"
        artefact.write_bytes(b"\x7fELF")
        return _fuzz(messages, Forge(seed), Tally(artefact))


def _fuzz(messages: int, forge: Forge, tally: Tally) -> tuple[Tally, int]:
    names = list(LISTENERS)
    sessions._TAKING_S = 0.02  # nobody takes what was built, and 20 s for each is not for here
    before = _descriptors()
    for number in range(messages):
        if number % _BELLS == 0:
            early = forge.rng.choice((b"", b"", b"\x00", b"\x00\x00", b"\x07"))
            late = forge.rng.choice((b"", b"\x00", b"\x01", b"\x02", b"\xff", forge.rng.randbytes(9)))
            tally.rung(early, late, forge.message())
            continue
        handed = tuple([0] * forge.rng.randint(1, 12)) if number % _WITH_DESCRIPTORS == 1 else ()
        tally.told(names[number % len(names)], forge.message(), handed)
    return tally, _descriptors() - before


def _descriptors() -> int:
    return sum(1 for _each in Path("/proc/self/fd").iterdir())


def main() -> int:
    """Returns 1 on a crash, an accepted forgery or a descriptor that stayed open."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started = time.monotonic()
    tally, left_open = fuzz(arguments.messages, arguments.seed)
    for line in (*tally.crashes[:20], *tally.forgeries[:20]):
        sys.stdout.write(line.encode("ascii", "backslashreplace").decode() + "\n")
    ends = ", ".join(f"{count} {name}" for name, count in tally.verdicts.most_common())
    sys.stdout.write(
        f"{arguments.messages} messages in {time.monotonic() - started:.0f} s (seed {arguments.seed}): "
        f"{len(tally.crashes)} crashes, {len(tally.forgeries)} accepted forgeries, {left_open} descriptors left open; "
        f"{ends}\n"
    )
    return int(bool(tally.crashes or tally.forgeries or left_open))


if __name__ == "__main__":
    sys.exit(main())
