-- How a job comes to be. A submission is answered when this is committed, so it is few statements: each costs the API
-- half a millisecond, ten times what Postgres takes for it.

-- name: known
SELECT request_hash, job_id
FROM idempotency_keys
WHERE key = :key AND created_at > now() - make_interval(secs => :ttl_s)

-- name: create
-- All of it or nothing: no row comes back when another request has just taken the idempotency key. The rest hangs on
-- that key's row, whose insertion waits for whoever is inserting the same.
WITH kept AS (
    INSERT INTO idempotency_keys (key, request_hash, job_id)
    SELECT :key, :request_hash, :job_id WHERE CAST(:key AS text) IS NOT NULL
    ON CONFLICT (key) DO UPDATE
    SET request_hash = excluded.request_hash, job_id = excluded.job_id, created_at = now()
    WHERE idempotency_keys.created_at <= now() - make_interval(secs => :ttl_s)
    RETURNING job_id
), allowed AS (
    SELECT job_id FROM kept UNION ALL SELECT :job_id WHERE CAST(:key AS text) IS NULL
), problem AS (
    INSERT INTO problems (hash, name, source, spec)
    SELECT given.hash, given.name, given.source, given.spec
    FROM allowed, jsonb_populate_record(NULL::problems, :problem) AS given
    ON CONFLICT (hash) DO NOTHING
), job AS (
    INSERT INTO jobs (
        id, version, problem_hash, problem_name, hardware, language, budget_candidates, budget_usd, budget_wall_s,
        budget_gpu_s, budget_calls, budget_tokens, target_speedup, stagnation, models, diagnosis_model, labels, priority,
        seed, judge_seed, own_kernel_share, search_policy, admit, certify, admission_id, parent_id, key_id, traceparent)
    SELECT
        allowed.job_id, given.version, given.problem_hash, given.problem_name, given.hardware, given.language,
        given.budget_candidates, given.budget_usd, given.budget_wall_s, given.budget_gpu_s, given.budget_calls,
        given.budget_tokens, given.target_speedup, given.stagnation, given.models, given.diagnosis_model, given.labels,
        given.priority, given.seed, given.judge_seed, given.own_kernel_share, given.search_policy, given.admit,
        given.certify, given.admission_id, given.parent_id, given.key_id, given.traceparent
    FROM allowed, jsonb_populate_record(NULL::jobs, :job) AS given
    RETURNING *
), told AS (
    INSERT INTO events (job_id, type, data)
    SELECT job.id, given.value ->> 'type', given.value -> 'data'
    FROM job, jsonb_array_elements(:events) WITH ORDINALITY AS given
    ORDER BY given.ordinality
    RETURNING seq
), queued AS (
    INSERT INTO work (id, kind, queue, job_id, share_of, priority, max_attempts, rung_at)
    SELECT given.id, given.kind, given.queue, job.id, coalesce(job.key_id, ''), job.priority, given.max_attempts, now()
    FROM job, jsonb_populate_recordset(NULL::work, :work) AS given
), noted AS (
    INSERT INTO audit (key_id, address, request_id, action, subject, data)
    SELECT given.key_id, given.address, given.request_id, given.action, job.id, given.data
    FROM job, jsonb_populate_recordset(NULL::audit, :audit) AS given
)
SELECT job.*, (SELECT min(seq) FROM told) AS told_seq, pg_notify(:channel, job.id) FROM job
