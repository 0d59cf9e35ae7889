"""What must hold of a job that ended, whatever was killed: its facts, read from the tables, and what is wrong."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

from search.types import FREE_FAILURES

# What a job taught is learned after its end: that work may still be open.
_COUNTS = """
SELECT (SELECT state FROM jobs WHERE id = :job) AS state,
       (SELECT stop_reason FROM jobs WHERE id = :job) AS stop_reason,
       (SELECT budget_candidates FROM jobs WHERE id = :job) AS budget,
       (SELECT count(*) FROM candidates WHERE job_id = :job) AS candidates,
       (SELECT count(*) FROM candidates WHERE job_id = :job AND state = 'evaluated') AS evaluated,
       (SELECT count(*) FROM evaluations WHERE job_id = :job) AS evaluations,
       (SELECT count(DISTINCT candidate_id) FROM evaluations WHERE job_id = :job) AS evaluated_once,
       (SELECT count(*) FROM events WHERE job_id = :job AND type = 'candidate.evaluated') AS evaluated_events,
       (SELECT count(*) FROM work WHERE job_id = :job AND state NOT IN ('done', 'dead', 'cancelled')
           AND kind <> 'learn') AS open_work,
       (SELECT count(*) FROM work WHERE job_id = :job AND state = 'dead') AS dead_work,
       (SELECT count(*) FROM events WHERE job_id = :job AND type = 'work.requeued') AS requeued,
       (SELECT count(*) FROM events WHERE job_id = :job AND type = 'work.fenced') AS fenced,
       (SELECT count(*) FROM llm_calls WHERE job_id = :job) AS calls,
       (SELECT count(*) FROM llm_calls WHERE job_id = :job AND state = 'finished') AS calls_finished,
       (SELECT count(*) FROM llm_calls WHERE job_id = :job AND state = 'started') AS calls_cut_off,
       (SELECT count(*) FROM llm_calls WHERE job_id = :job AND state = 'superseded') AS calls_superseded,
       (SELECT coalesce(sum(cost_usd), 0)::float FROM llm_calls WHERE job_id = :job) AS calls_usd,
       (SELECT coalesce(sum(cost_usd), 0)::float FROM candidates WHERE job_id = :job) AS candidates_usd,
       (SELECT cost_usd::float FROM jobs WHERE id = :job) AS job_usd,
       (SELECT coalesce(sum(gpu_s), 0) FROM evaluations WHERE job_id = :job)
           + (SELECT coalesce(sum(gpu_s), 0) FROM tunings WHERE job_id = :job) AS measured_gpu_s,
       (SELECT gpu_s FROM jobs WHERE id = :job) AS job_gpu_s
"""
_VERDICTS = "SELECT verdict, count(*) FROM evaluations WHERE job_id = :job GROUP BY 1 ORDER BY 1"
_FAILURES = "SELECT failure, count(*) FROM candidates WHERE job_id = :job AND state = 'rejected' GROUP BY 1 ORDER BY 1"
_TREE = "SELECT id, ordinal, operator, state, failure, parents FROM candidates WHERE job_id = :job ORDER BY ordinal"
_FROM_NOTHING = frozenset({"seed", "translate"})
_SETTLED = frozenset({"evaluated", "rejected", "cancelled"})

Facts = dict[str, Any]


def facts_of(connection: Connection, job_id: str) -> Facts:
    """The job's counts, its verdicts, and what is wrong: an empty list under `wrong` is a sound job."""
    named = {"job": job_id}
    counts: Facts = dict(connection.execute(text(_COUNTS), named).mappings().one())
    nodes = [dict(row) for row in connection.execute(text(_TREE), named).mappings()]
    counts["verdicts"] = {verdict: count for verdict, count in connection.execute(text(_VERDICTS), named)}
    counts["rejected"] = {failure: count for failure, count in connection.execute(text(_FAILURES), named)}
    counts["operators"] = {name: sum(n["operator"] == name for n in nodes) for name in {n["operator"] for n in nodes}}
    free = sum(count for name, count in counts["rejected"].items() if name in FREE_FAILURES)
    counts["spent"] = counts["candidates"] - free
    counts["depth"] = max(_depths(nodes).values(), default=0)
    counts["wrong"] = [*_wrong_counts(counts), *_wrong_tree(nodes)]
    return counts


def _wrong_counts(facts: Facts) -> list[str]:
    """What was lost, or counted twice."""
    equal = [
        ("evaluations", "evaluated"),
        ("evaluated_once", "evaluations"),
        ("evaluated_events", "evaluations"),
        ("calls_usd", "job_usd"),
        ("candidates_usd", "job_usd"),
        ("measured_gpu_s", "job_gpu_s"),
        ("spent", "budget"),
    ]
    wrong = [f"{a} {facts[a]} != {b} {facts[b]}" for a, b in equal if abs(facts[a] - facts[b]) > 1e-6]
    return wrong + ([f"{facts['open_work']} units of work never ended"] if facts["open_work"] else [])


def _wrong_tree(nodes: list[dict[str, Any]]) -> list[str]:
    """Where the tree is torn: gaps in the ordinals, parents that are missing or not older, roots that are no roots."""
    ordinals = {node["id"]: node["ordinal"] for node in nodes}
    wrong = []
    if sorted(ordinals.values()) != list(range(1, len(nodes) + 1)):
        wrong.append("the ordinals have gaps or repeats")
    for node in nodes:
        if node["state"] not in _SETTLED:
            wrong.append(f"candidate {node['ordinal']} is still {node['state']}")
        if bool(node["parents"]) == (node["operator"] in _FROM_NOTHING):
            wrong.append(f"candidate {node['ordinal']}: a {node['operator']} with {len(node['parents'])} parents")
        if node["operator"] == "port":
            continue  # its parent is another job's
        if not all(ordinals.get(parent, node["ordinal"]) < node["ordinal"] for parent in node["parents"]):
            wrong.append(f"candidate {node['ordinal']} has a parent that is missing or younger")
    return wrong


def _depths(nodes: list[dict[str, Any]]) -> dict[str, int]:
    """How many steps each candidate is away from its root; those that hang in the air have none."""
    depths: dict[str, int] = {}
    for node in nodes:
        known = [depths[parent] for parent in node["parents"] if parent in depths]
        if len(known) == len(node["parents"]):
            depths[node["id"]] = max(known, default=-1) + 1
    return depths
