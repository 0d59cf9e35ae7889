"""Tests of `db.ids`."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

from db.ids import new_id


def test_an_id_is_a_prefix_and_a_uuid_version_7() -> None:
    assert re.fullmatch(r"job_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", new_id("job"))


def test_ids_of_one_process_increase_and_never_repeat() -> None:
    ids = [new_id("work") for _ in range(20_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_threads_never_share_an_id() -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = [made for batch in pool.map(lambda _: [new_id("work") for _ in range(500)], range(8)) for made in batch]
    assert len(set(ids)) == len(ids)


def test_the_time_leads() -> None:
    before = time.time_ns() // 1_000_000
    stamp = int(new_id("cand").removeprefix("cand_")[:12], 16)
    # Counting on within a millisecond may run a little ahead of the clock: 4096 ids for each.
    assert before <= stamp <= before + 60_000
