"""What must hold of the rows alone, once nothing is left to do: each rule is a query for what breaks it."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection

from tests.chaos.checker.violations import Rule, Violation, broken

IN_FLIGHT_CALLS: Final = 8
"""The threads of the caller of models: so many calls may be under way when a cap on money is reached."""

RULES: Final = (
    Rule(
        "one terminal state",
        "a job did not end in a terminal state with a reason",
        """SELECT id, state, stop_reason, error, finished_at FROM jobs
           WHERE state NOT IN ('succeeded', 'failed', 'cancelled') OR stop_reason IS NULL OR finished_at IS NULL
              OR (state = 'cancelled') <> (stop_reason = 'cancelled') OR (stop_reason = 'error' AND error IS NULL)""",
    ),
    Rule(
        "one terminal state",
        "a job's event log has not exactly one end, or its end says other than the row",
        """SELECT jobs.id, jobs.state, count(events.seq) AS ends, min(events.data::text) AS told
           FROM jobs LEFT JOIN events ON events.job_id = jobs.id AND events.type = 'job.finished'
           WHERE jobs.finished_at IS NOT NULL
           GROUP BY jobs.id
           HAVING count(events.seq) <> 1 OR min(events.data->>'state') <> jobs.state
               OR min(events.data->>'stop_reason') IS DISTINCT FROM jobs.stop_reason""",
    ),
    Rule(
        "nothing left to do",
        "a unit of work never ended",
        """SELECT id, kind, queue, state, attempt, lease_owner, error FROM work
           WHERE state NOT IN ('done', 'dead', 'cancelled')""",
    ),
    Rule(
        "no lease outlives its holder",
        "a lease is still there when everything has ended",
        "SELECT id, kind, state, lease_owner, lease_expires_at FROM work WHERE lease_token IS NOT NULL",
    ),
    Rule(
        "nothing left to do",
        "a candidate was never settled",
        """SELECT id, job_id, ordinal, state FROM candidates
           WHERE state NOT IN ('evaluated', 'rejected', 'cancelled')""",
    ),
    Rule(
        "one evaluation of record",
        "a candidate has more than one evaluation, or one too few for its state",
        """SELECT candidates.id, candidates.job_id, candidates.state, count(evaluations.id) AS evaluations
           FROM candidates LEFT JOIN evaluations ON evaluations.candidate_id = candidates.id
           GROUP BY candidates.id
           HAVING count(evaluations.id) <> (candidates.state = 'evaluated')::int""",
    ),
    Rule(
        "one evaluation of record",
        "a candidate's evaluation was told other than once",
        """SELECT evaluations.candidate_id, count(events.seq) AS told
           FROM evaluations LEFT JOIN events ON events.job_id = evaluations.job_id
                AND events.type = 'candidate.evaluated' AND events.data->>'candidate_id' = evaluations.candidate_id
           GROUP BY evaluations.candidate_id HAVING count(events.seq) <> 1""",
    ),
    Rule(
        "one evaluation of record",
        "an evaluation's work is not done or dead, or done work has no evaluation and its candidate is no duplicate",
        """SELECT work.id, work.state, candidates.state AS candidate, evaluations.id AS evaluation
           FROM work JOIN candidates ON candidates.id = work.candidate_id
           LEFT JOIN evaluations ON evaluations.candidate_id = work.candidate_id
           WHERE work.kind = 'evaluate' AND (evaluations.id IS NULL) = (work.state IN ('done', 'dead'))
             AND candidates.duplicate_of IS NULL""",
    ),
    Rule(
        "each call paid once",
        "an answer that was paid for is booked more than once",
        """SELECT substring(answer FROM 'ANSWER = ([0-9]+)') AS number, count(*) AS booked,
                  array_agg(id) AS calls FROM llm_calls WHERE answer IS NOT NULL
           GROUP BY 1 HAVING count(*) > 1 AND substring(min(answer) FROM 'ANSWER = ([0-9]+)') IS NOT NULL""",
    ),
    Rule(
        "each call paid once",
        "a candidate has two finished calls for one purpose",
        """SELECT candidate_id, key, count(*) AS finished FROM llm_calls WHERE state = 'finished'
           GROUP BY 1, 2 HAVING count(*) > 1""",
    ),
    Rule(
        "each call paid once",
        "a candidate was paid for twice though nobody had to do its work again",
        """SELECT calls.candidate_id, calls.paid, work.attempt FROM (
               SELECT candidate_id, key, count(*) AS paid FROM llm_calls WHERE cost_usd > 0 GROUP BY 1, 2) AS calls
           JOIN work ON work.candidate_id = calls.candidate_id AND work.kind = 'propose'
           WHERE calls.paid > greatest(work.attempt + work.returned, 1)""",
    ),
    Rule(
        "money adds up",
        "a job's cost is not the sum of its calls, or not that of its candidates",
        """SELECT jobs.id, jobs.cost_usd, calls.usd AS calls_usd, made.usd AS candidates_usd FROM jobs
           LEFT JOIN (SELECT job_id, sum(cost_usd) AS usd FROM llm_calls GROUP BY 1) AS calls ON calls.job_id = jobs.id
           LEFT JOIN (SELECT job_id, sum(cost_usd) AS usd FROM candidates GROUP BY 1) AS made ON made.job_id = jobs.id
           WHERE jobs.cost_usd <> coalesce(calls.usd, 0) OR jobs.cost_usd <> coalesce(made.usd, 0)""",
    ),
    Rule(
        "money adds up",
        "a job's calls are not the rows of its calls",
        """SELECT jobs.id, jobs.llm_calls, count(llm_calls.id) AS rows FROM jobs
           LEFT JOIN llm_calls ON llm_calls.job_id = jobs.id GROUP BY jobs.id
           HAVING jobs.llm_calls <> count(llm_calls.id)""",
    ),
    Rule(
        "money adds up",
        "a job's device time is not the sum of its evaluations",
        """SELECT jobs.id, jobs.gpu_s, sum(evaluations.gpu_s) AS measured FROM jobs
           LEFT JOIN evaluations ON evaluations.job_id = jobs.id GROUP BY jobs.id
           HAVING abs(jobs.gpu_s - coalesce(sum(evaluations.gpu_s), 0)) > 1e-6""",
    ),
    Rule(
        "budgets hold",
        "a job spent more candidates than its budget",
        """SELECT jobs.id, jobs.budget_candidates, count(*) AS spent FROM jobs
           JOIN candidates ON candidates.job_id = jobs.id
           WHERE candidates.state <> 'rejected'
              OR candidates.failure NOT IN ('exhausted', 'duplicate', 'provider_error', 'budget')
           GROUP BY jobs.id HAVING count(*) > jobs.budget_candidates""",
    ),
    Rule(
        "budgets hold",
        "a job made more calls than its cap, or spent more than its cap and what was under way when that was reached",
        """SELECT id, budget_calls, llm_calls, budget_usd, cost_usd FROM jobs
           WHERE llm_calls > budget_calls OR cost_usd >= budget_usd + :price_usd * :in_flight_calls""",
    ),
    Rule(
        "the tree is whole",
        "a job's ordinals have gaps or repeats",
        """SELECT job_id, count(*) AS candidates, min(ordinal), max(ordinal) FROM candidates GROUP BY job_id
           HAVING min(ordinal) <> 1 OR max(ordinal) <> count(*) OR count(DISTINCT ordinal) <> count(*)""",
    ),
    Rule(
        "the tree is whole",
        "a candidate's parent is missing, of another job or not older",
        """SELECT candidates.id, candidates.ordinal, parent.id AS parent FROM candidates
           CROSS JOIN LATERAL unnest(candidates.parents) AS named (id)
           LEFT JOIN candidates AS parent ON parent.id = named.id AND parent.job_id = candidates.job_id
           WHERE parent.id IS NULL OR parent.ordinal >= candidates.ordinal""",
    ),
    Rule(
        "events tell it all",
        "a job's version is not one more than the number of its events: something changed untold, or was told twice",
        """SELECT jobs.id, jobs.version, count(events.seq) AS events FROM jobs
           LEFT JOIN events ON events.job_id = jobs.id GROUP BY jobs.id
           HAVING jobs.version <> count(events.seq) + 1""",
    ),
    Rule(
        "events tell it all",
        "a candidate's making was told other than once",
        """SELECT candidates.id, count(events.seq) AS told FROM candidates
           LEFT JOIN events ON events.job_id = candidates.job_id AND events.type = 'candidate.created'
                AND events.data->>'candidate_id' = candidates.id
           GROUP BY candidates.id HAVING count(events.seq) <> 1""",
    ),
    Rule(
        "events tell it all",
        "an event is out of order: before the job was created, or of a candidate after the job's end",
        """SELECT events.job_id, events.seq, events.type FROM events
           JOIN (SELECT job_id, min(seq) FILTER (WHERE type = 'job.created') AS born,
                        min(seq) FILTER (WHERE type = 'job.finished') AS ended FROM events GROUP BY job_id) AS life
             ON life.job_id = events.job_id
           WHERE events.seq < coalesce(life.born, events.seq + 1)
              OR (events.seq > life.ended AND events.type LIKE 'candidate.%')""",
    ),
)


def check_rows(connection: Connection, price_usd: float) -> list[Violation]:
    """What is wrong with the rows, when nothing is left to do."""
    return broken(connection, RULES, price_usd=price_usd, in_flight_calls=IN_FLIGHT_CALLS)
