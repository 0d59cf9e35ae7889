-- The hot statements of the work ledger. The clock is now() of Postgres: a worker's own clock decides nothing.
-- States: queued -> running -> done | dead | cancelled, and running -> queued when a lease runs out or work is given back.

-- name: enqueue
-- An advance that is already queued is this advance. A second propose or evaluate of a candidate is a bug and raises.
INSERT INTO work (id, kind, queue, job_id, candidate_id, share_of, priority, max_attempts, not_before, rung_at)
VALUES (:id, :kind, :queue, :job_id, :candidate_id,
        coalesce((SELECT jobs.key_id FROM jobs WHERE jobs.id = :job_id), ''), :priority, :max_attempts,
        now() + make_interval(secs => :delay_s),
        CASE WHEN :delay_s > 0 THEN NULL ELSE now() END)
ON CONFLICT (job_id) WHERE kind = 'advance' AND state = 'queued' DO NOTHING
RETURNING id

-- name: claim
UPDATE work
SET state = 'running', attempt = attempt + 1, lease_owner = :owner, lease_token = gen_random_uuid(),
    lease_expires_at = now() + make_interval(secs => :lease_s), claimed_at = clock_timestamp()
WHERE id = (
    SELECT ready.id FROM work AS ready
    WHERE ready.id = :id AND ready.state = 'queued' AND ready.not_before <= now()
      AND (ready.kind IN ('advance', 'learn')
           OR NOT EXISTS (SELECT FROM jobs WHERE jobs.id = ready.job_id AND jobs.cancel_requested))
    FOR UPDATE SKIP LOCKED
)
RETURNING id, kind, queue, job_id, candidate_id, attempt, lease_token

-- name: claim_next
-- Highest priority first; within a priority the key with the fewest units running on that queue, then the one that was
-- served longest ago, and of one key the oldest. So a key's first job waits for one turn, not for another key's thousand.
-- `waiting` hops through ix_work_ready from one (queue, priority, key) to the next: as many steps as there are such
-- groups, however many rows wait. Of them only heads are locked, in that order, until one is had. Written as equalities,
-- the bounds of a group would let the planner walk another index instead (the primary key, or all claims by time), past
-- all that was ever done; and a NOT EXISTS would let it read all jobs.
-- A draining or quarantined worker gets nothing, whatever rings. A `certify` is kept for some seconds for the worker that
-- has just evaluated its candidate (`claim_finalist`).
WITH RECURSIVE waiting AS (
    SELECT head.queue, head.priority, head.share_of
    FROM unnest(:queues) AS served (queue)
    CROSS JOIN LATERAL (
        SELECT work.queue, work.priority, work.share_of FROM work
        WHERE work.queue = served.queue AND work.state = 'queued'
        ORDER BY work.priority DESC, work.share_of DESC
        LIMIT 1
    ) AS head
    UNION ALL
    SELECT following.queue, following.priority, following.share_of
    FROM waiting
    CROSS JOIN LATERAL (
        SELECT work.queue, work.priority, work.share_of FROM work
        WHERE work.queue = waiting.queue AND work.state = 'queued'
          AND (work.priority, work.share_of) < (waiting.priority, waiting.share_of)
        ORDER BY work.priority DESC, work.share_of DESC
        LIMIT 1
    ) AS following
),
turns AS MATERIALIZED (
    SELECT waiting.queue, waiting.priority, waiting.share_of,
           (SELECT count(*) FROM work
            WHERE work.queue = waiting.queue AND work.share_of = waiting.share_of AND work.state = 'running') AS running,
           (SELECT work.claimed_at FROM work
            WHERE (work.queue, work.share_of) >= (waiting.queue, waiting.share_of)
              AND (work.queue, work.share_of) <= (waiting.queue, waiting.share_of) AND work.claimed_at IS NOT NULL
            ORDER BY work.queue DESC, work.share_of DESC, work.claimed_at DESC
            LIMIT 1) AS served_at
    FROM waiting
)
UPDATE work
SET state = 'running', attempt = attempt + 1, lease_owner = :owner, lease_token = gen_random_uuid(),
    lease_expires_at = now() + make_interval(secs => :lease_s), claimed_at = clock_timestamp()
WHERE state = 'queued' AND id = (
    SELECT head.id
    FROM (SELECT * FROM turns ORDER BY priority DESC, running, served_at NULLS FIRST, share_of) AS turn
    CROSS JOIN LATERAL (
        SELECT ready.id FROM work AS ready
        WHERE ready.queue = turn.queue AND ready.state = 'queued' AND ready.not_before <= now()
          AND (ready.priority, ready.share_of) <= (turn.priority, turn.share_of)
          AND (ready.priority, ready.share_of) >= (turn.priority, turn.share_of)
          AND (ready.kind IN ('advance', 'learn')
               OR (SELECT NOT jobs.cancel_requested FROM jobs WHERE jobs.id = ready.job_id))
          AND (ready.kind <> 'certify' OR ready.created_at < now() - make_interval(secs => :kept_s)
               OR EXISTS (SELECT FROM evaluations
                          WHERE evaluations.candidate_id = ready.candidate_id
                            AND (evaluations.worker_id = :owner
                                 OR evaluations.created_at < ready.created_at - make_interval(secs => :kept_s))))
        ORDER BY ready.priority DESC, ready.share_of DESC, ready.id
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS head
    WHERE NOT EXISTS (SELECT FROM workers WHERE workers.id = :owner AND workers.state IN ('draining', 'quarantined'))
    LIMIT 1
)
RETURNING id, kind, queue, job_id, candidate_id, attempt, lease_token

-- name: claim_near
-- An `evaluate` of a job that this worker evaluates already: its judge has the problem prepared, and baselines running. No
-- row where work of a higher priority waits on one of its queues, or of another key on that one. How long it may go on so
-- is the worker's to count. The bounds of a group are written as in `claim_next`.
UPDATE work
SET state = 'running', attempt = attempt + 1, lease_owner = :owner, lease_token = gen_random_uuid(),
    lease_expires_at = now() + make_interval(secs => :lease_s), claimed_at = clock_timestamp()
WHERE id = (
    SELECT ready.id FROM work AS ready
    JOIN jobs ON jobs.id = ready.job_id AND NOT jobs.cancel_requested
    WHERE ready.job_id = :job_id AND ready.kind = 'evaluate' AND ready.state = 'queued' AND ready.not_before <= now()
      AND ready.queue = ANY(:queues)
      AND NOT EXISTS (SELECT FROM work AS other
                      WHERE other.queue = ANY(:queues) AND other.state = 'queued' AND other.not_before <= now()
                        AND other.priority > ready.priority)
      AND NOT EXISTS (SELECT FROM work AS other
                      WHERE other.queue = ready.queue AND other.state = 'queued' AND other.not_before <= now()
                        AND other.priority = ready.priority AND other.share_of < ready.share_of)
      AND NOT EXISTS (SELECT FROM work AS other
                      WHERE other.queue = ready.queue AND other.state = 'queued' AND other.not_before <= now()
                        AND other.priority = ready.priority AND other.share_of > ready.share_of)
      AND NOT EXISTS (SELECT FROM workers WHERE workers.id = :owner AND workers.state IN ('draining', 'quarantined'))
    ORDER BY ready.id
    LIMIT 1
    FOR UPDATE OF ready SKIP LOCKED
)
RETURNING id, kind, queue, job_id, candidate_id, attempt, lease_token

-- name: claim_finalist
-- The `certify` of a job, for the worker that evaluated its candidate: no row while there is none, for another worker,
-- and where work of a higher priority waits. Keys do not take turns here: a job has one certificate.
UPDATE work
SET state = 'running', attempt = attempt + 1, lease_owner = :owner, lease_token = gen_random_uuid(),
    lease_expires_at = now() + make_interval(secs => :lease_s), claimed_at = clock_timestamp()
WHERE id = (
    SELECT ready.id FROM work AS ready
    JOIN evaluations ON evaluations.candidate_id = ready.candidate_id AND evaluations.worker_id = :owner
    JOIN jobs ON jobs.id = ready.job_id AND NOT jobs.cancel_requested
    WHERE ready.job_id = :job_id AND ready.kind = 'certify' AND ready.state = 'queued' AND ready.not_before <= now()
      AND NOT EXISTS (SELECT FROM work AS urgent
                      WHERE urgent.queue = ready.queue AND urgent.state = 'queued'
                        AND urgent.priority > ready.priority AND urgent.not_before <= now())
      AND NOT EXISTS (SELECT FROM workers WHERE workers.id = :owner AND workers.state IN ('draining', 'quarantined'))
    FOR UPDATE OF ready SKIP LOCKED
)
RETURNING id, kind, queue, job_id, candidate_id, attempt, lease_token

-- name: to_be_certified
-- Whether a job that wants a certificate may ask this worker for one at once: its best was evaluated here, and its next
-- step has not been decided yet.
SELECT EXISTS (
    SELECT FROM work
    JOIN jobs ON jobs.id = work.job_id AND jobs.certify
    JOIN evaluations ON evaluations.candidate_id = jobs.best_candidate_id AND evaluations.worker_id = :owner
    WHERE work.job_id = :job_id AND work.kind = 'advance' AND work.state IN ('queued', 'running')
      AND work.not_before <= now()
)

-- name: places
-- The places of all jobs that have not started: in which order `claim_next` will come to their first
-- `advance`, if nothing is added. A key's n-th row is its turn when n - 1 more of its rows run than now, so turns are
-- ordered by running + n; within such a round come the keys that have more running now (this is their first of the
-- turns counted here), then as the claim has it. While every row of `control` has one priority this is the claim's very
-- order; after rows of a higher priority keys that are even may come in another order. What is not due comes last.
-- Reads the rows that wait on that queue, and for each key, at its first row, what the claim reads of it. A job whose
-- `advance` is claimed has no place: it is being started.
WITH waiting AS (
    SELECT work.job_id, work.priority, work.share_of, work.not_before > now() AS later,
           row_number() OVER (PARTITION BY work.share_of
                              ORDER BY work.not_before > now(), work.priority DESC, work.id) AS turn
    FROM work
    WHERE work.queue = 'control' AND work.state = 'queued'
),
turns AS (
    SELECT waiting.*,
           max(CASE WHEN waiting.turn = 1 THEN
               (SELECT count(*) FROM work
                WHERE work.queue = 'control' AND work.share_of = waiting.share_of AND work.state = 'running')
           END) OVER (PARTITION BY waiting.share_of) AS running,
           max(CASE WHEN waiting.turn = 1 THEN
               (SELECT work.claimed_at FROM work
                WHERE (work.queue, work.share_of) >= ('control', waiting.share_of)
                  AND (work.queue, work.share_of) <= ('control', waiting.share_of) AND work.claimed_at IS NOT NULL
                ORDER BY work.queue DESC, work.share_of DESC, work.claimed_at DESC
                LIMIT 1)
           END) OVER (PARTITION BY waiting.share_of) AS served_at
    FROM waiting
),
placed AS (
    SELECT turns.job_id,
           row_number() OVER (ORDER BY turns.later, turns.priority DESC, turns.running + turns.turn,
                              turns.running DESC, turns.served_at NULLS FIRST, turns.share_of) AS place
    FROM turns
    JOIN jobs ON jobs.id = turns.job_id AND jobs.state = 'queued' AND jobs.finished_at IS NULL
)
SELECT placed.job_id, placed.place FROM placed ORDER BY placed.place

-- name: claim_asks
-- Questions to outside agents, oldest first. Whoever asks names the job, and holds its lock.
UPDATE work
SET state = 'running', attempt = attempt + 1, lease_owner = :owner, lease_token = gen_random_uuid(),
    lease_expires_at = now() + make_interval(secs => :lease_s), claimed_at = now()
WHERE id IN (
    SELECT ready.id FROM work AS ready
    WHERE ready.job_id = :job_id AND ready.queue = 'ask' AND ready.kind = 'propose'
      AND ready.state = 'queued' AND ready.not_before <= now()
    ORDER BY ready.id
    LIMIT :count
    FOR UPDATE SKIP LOCKED
)
RETURNING id, kind, queue, job_id, candidate_id, attempt, lease_token, lease_expires_at

-- name: renew
UPDATE work
SET lease_expires_at = now() + make_interval(secs => :lease_s)
FROM jobs
WHERE work.id = :id AND work.lease_token = :token AND work.state = 'running' AND jobs.id = work.job_id
RETURNING jobs.cancel_requested

-- name: held
SELECT 1 FROM work WHERE id = :id AND lease_token = :token AND state = 'running' FOR UPDATE

-- name: finish
UPDATE work
SET state = :state, finished_at = now(), lease_token = NULL, lease_expires_at = NULL
WHERE id = :id AND lease_token = :token AND state = 'running'
RETURNING id

-- name: store_evaluation
-- Finish and result in one statement: there is no moment at which one exists without the other.
WITH won AS (
    UPDATE work
    SET state = 'done', finished_at = now(), lease_token = NULL, lease_expires_at = NULL
    WHERE id = :work_id AND lease_token = :token AND state = 'running' AND kind = 'evaluate'
    RETURNING candidate_id, job_id
)
INSERT INTO evaluations (id, candidate_id, job_id, verdict, reason, timed, latency_us, speedup, ci95_low, ci95_high,
                         baseline, report, gpu_s, wall_s, environment, worker_id)
SELECT :id, won.candidate_id, won.job_id, :verdict, :reason, :timed, :latency_us, :speedup, :ci95_low, :ci95_high,
       :baseline, :report, :gpu_s, :wall_s, :environment, :worker_id
FROM won
RETURNING id

-- name: give_back
-- An attempt that counts may be the last one; one that does not is handed back `max_returns` times at most.
UPDATE work
SET state = CASE WHEN (:counts AND attempt >= max_attempts) OR (NOT :counts AND returned >= :max_returns)
                 THEN 'dead' ELSE 'queued' END,
    finished_at = CASE WHEN (:counts AND attempt >= max_attempts) OR (NOT :counts AND returned >= :max_returns)
                       THEN now() END,
    attempt = CASE WHEN :counts THEN attempt ELSE attempt - 1 END,
    returned = CASE WHEN :counts THEN returned ELSE returned + 1 END,
    not_before = now() + make_interval(secs => :delay_s),
    lease_token = NULL, lease_expires_at = NULL, rung_at = NULL, error = :error
WHERE id = :id AND lease_token = :token AND state = 'running'
RETURNING state

-- name: running_of
SELECT id, job_id, kind FROM work
WHERE state = 'running' AND lease_owner = :owner
ORDER BY job_id, id

-- name: release
-- As if it had not been claimed: that a worker stops says nothing about what it had in hand.
UPDATE work
SET state = 'queued', attempt = attempt - 1, not_before = now(), lease_token = NULL, lease_expires_at = NULL,
    rung_at = NULL, error = :error
WHERE id = :id AND lease_owner = :owner AND state = 'running'
RETURNING queue, attempt

-- name: drop_queued_twin
-- Before a running advance is queued again: only one may be queued, and the running one has the attempts on record.
UPDATE work
SET state = 'cancelled', finished_at = now()
WHERE kind = 'advance' AND state = 'queued' AND job_id = :job_id

-- name: expired
SELECT id, job_id, kind FROM work
WHERE state = 'running' AND lease_expires_at < now()
ORDER BY job_id, id
LIMIT :batch

-- name: reap
UPDATE work
SET state = CASE WHEN attempt >= max_attempts THEN 'dead' ELSE 'queued' END,
    finished_at = CASE WHEN attempt >= max_attempts THEN now() END,
    not_before = now(), lease_token = NULL, lease_expires_at = NULL, rung_at = NULL,
    error = 'the lease of ' || coalesce(lease_owner, '?') || ' ran out'
WHERE id = :id AND state = 'running' AND lease_expires_at < now()
RETURNING id, kind, queue, job_id, candidate_id, state, attempt, error

-- name: to_ring
-- The head of each queue, rung again when its last ring is old. Beyond `per_queue` waiting rows a ring more wakes nobody.
UPDATE work
SET rung_at = now()
WHERE id IN (
    SELECT due.id FROM work AS due
    JOIN (
        SELECT id, row_number() OVER (PARTITION BY queue ORDER BY priority DESC, id) AS rank
        FROM work WHERE state = 'queued' AND not_before <= now() AND queue <> 'ask'
    ) AS head ON head.id = due.id
    WHERE head.rank <= :per_queue AND due.state = 'queued'
      AND (due.rung_at IS NULL OR due.rung_at < now() - make_interval(secs => :older_than_s))
    FOR UPDATE OF due SKIP LOCKED
)
RETURNING id, queue, kind

-- name: left_to_others
-- A row that is ready for an active worker, if this owner is at rest.
SELECT id, queue, kind FROM work
WHERE queue = ANY(:queues) AND state = 'queued' AND not_before <= now()
  AND EXISTS (SELECT FROM workers AS other WHERE other.state = 'active' AND work.queue = ANY(other.queues))
  AND EXISTS (SELECT FROM workers WHERE workers.id = :owner AND workers.state IN ('draining', 'quarantined'))
LIMIT 1

-- name: idle_jobs
-- Unfinished jobs that nothing will wake: no work left, or a wall-clock budget that ran out in silence.
SELECT id FROM jobs
WHERE finished_at IS NULL
  AND NOT EXISTS (SELECT FROM work WHERE work.job_id = jobs.id AND work.kind = 'advance'
                  AND work.state IN ('queued', 'running'))
  AND (NOT EXISTS (SELECT FROM work WHERE work.job_id = jobs.id AND work.state IN ('queued', 'running'))
       OR cancel_requested
       OR (stop_reason IS NULL AND started_at + make_interval(secs => budget_wall_s) < now()))
ORDER BY id
LIMIT :batch

-- name: cancel_outstanding
UPDATE work
SET state = 'cancelled', finished_at = now(), lease_token = NULL, lease_expires_at = NULL
WHERE job_id = :job_id AND state IN ('queued', 'running')

-- name: cancel_search
-- What the search has in flight, when it ends before its job does; an admission goes on.
UPDATE work
SET state = 'cancelled', finished_at = now(), lease_token = NULL, lease_expires_at = NULL
WHERE job_id = :job_id AND state IN ('queued', 'running') AND kind IN ('propose', 'evaluate')

-- name: depths
-- Each half reads a partial index of live rows: `state IN (...)` would read the whole table.
SELECT queue, sum(ready) AS ready, sum(delayed) AS delayed, sum(running) AS running,
       coalesce(extract(epoch FROM now() - min(oldest)), 0) AS oldest_age_s
FROM (
    SELECT queue, count(*) FILTER (WHERE not_before <= now()) AS ready,
           count(*) FILTER (WHERE not_before > now()) AS delayed, 0 AS running,
           min(created_at) FILTER (WHERE not_before <= now()) AS oldest
    FROM work WHERE state = 'queued' GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, count(*), NULL FROM work WHERE state = 'running' GROUP BY queue
) AS live
GROUP BY queue
ORDER BY queue
