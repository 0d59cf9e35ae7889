"""/v1/summary held against a recount of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection, text

from tests.chaos.checker.violations import Violation, violation

_RECOUNT: Final = {
    "jobs ended": "SELECT state, count(*) FROM jobs WHERE finished_at > now() - interval '1 day' GROUP BY state",
    "jobs live": "SELECT state, count(*) FROM jobs WHERE finished_at IS NULL GROUP BY state",
    "units waiting": """SELECT queue, count(*) FROM work WHERE state = 'queued' GROUP BY queue""",
    "units running": """SELECT queue, count(*) FROM work WHERE state = 'running' GROUP BY queue""",
}
_MONEY: Final = """
SELECT (SELECT coalesce(sum(cost_usd), 0) FROM llm_calls WHERE finished_at >= date_trunc('day', now(), 'UTC')) AS usd,
       (SELECT coalesce(sum(gpu_s), 0) FROM evaluations WHERE created_at >= date_trunc('day', now(), 'UTC')) AS gpu_s
"""


def check_summary(connection: Connection, shown: Mapping[str, Any]) -> list[Violation]:
    """Where the summary says other than the rows. Nothing may change between the two: ask when all has ended."""
    counted = {name: {key: n for key, n in connection.execute(text(sql))} for name, sql in _RECOUNT.items()}
    said = {
        "jobs ended": shown["jobs"]["ended_24h"],
        "jobs live": shown["jobs"]["live"],
        "units waiting": {queue["name"]: queue["ready"] + queue["delayed"] for queue in shown["queues"]},
        "units running": {queue["name"]: queue["running"] for queue in shown["queues"]},
    }
    wrong = [
        f"{name}: shown {shown_here}, counted {counted[name]}"
        for name, given in said.items()
        if (shown_here := {key: n for key, n in given.items() if n}) != counted[name]
    ]
    money = connection.execute(text(_MONEY)).one()
    today = shown["today"]
    if Decimal(today["usd"]) != money.usd or abs(today["gpu_s"] - money.gpu_s) > 0.01:
        wrong.append(f"today: shown {today}, counted {money}")
    return violation("the summary equals a recount", "a number of /v1/summary is not the rows'", wrong)
