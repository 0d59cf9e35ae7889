-- What a dashboard asks every few seconds. Nothing here counts a whole table: partial indexes hold the live rows, the rest
-- is bounded by a span of time or by a number of rows.

-- name: jobs_live
SELECT state, count(*) AS count FROM jobs WHERE finished_at IS NULL GROUP BY state

-- name: jobs_ended
SELECT state, count(*) AS count FROM jobs WHERE finished_at > now() - interval '24 hours' GROUP BY state

-- name: waits
-- Of the newest claims; a row without a queue is over all of them. Work that was given back since has its time to come.
SELECT queue, count(*) AS claims,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY wait_s) AS p50_s,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY wait_s) AS p95_s
FROM (
    SELECT queue, extract(epoch FROM claimed_at - not_before)::float8 AS wait_s
    FROM work
    WHERE claimed_at > now() - interval '1 hour' AND claimed_at >= not_before
    ORDER BY claimed_at DESC
    LIMIT :claims
) AS newest
GROUP BY GROUPING SETS ((queue), ())
ORDER BY queue

-- name: spent_today
-- The day is UTC's. Money: answered calls of searches, of requests in plain words, of vectors; calls of unknown price are
-- in no sum. Time: evaluations, tuning, certificates.
WITH today AS (SELECT date_trunc('day', now(), 'UTC') AS since)
SELECT since,
       (SELECT coalesce(sum(cost_usd), 0) FROM llm_calls WHERE finished_at >= since)
       + (SELECT coalesce(sum(cost_usd), 0) FROM requests WHERE finished_at >= since)
       + (SELECT coalesce(sum(usd), 0) FROM meanings WHERE created_at >= since AND usd IS NOT NULL) AS usd,
       (SELECT coalesce(sum(gpu_s), 0) FROM evaluations WHERE created_at >= since)
       + (SELECT coalesce(sum(gpu_s), 0) FROM tunings WHERE created_at >= since)
       + (SELECT coalesce(sum(gpu_s), 0) FROM certificates WHERE created_at >= since) AS gpu_s
FROM today

-- name: spent_on_jobs
-- What the jobs that were submitted since then cost, to this day. The sums are kept with each job, so this reads jobs alone.
SELECT count(*) AS jobs, coalesce(sum(cost_usd), 0) AS usd, coalesce(sum(llm_calls), 0) AS calls,
       coalesce(sum(llm_tokens), 0) AS tokens, coalesce(sum(gpu_s), 0) AS gpu_s
FROM jobs
WHERE created_at > :since
