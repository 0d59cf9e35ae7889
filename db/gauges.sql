-- What the metrics endpoint reads. Each statement reads live rows through a partial index, or the rows of today or of one
-- key through an index of theirs: none grows with the number of jobs and candidates that are stored.

-- name: queues
-- A row that was given back waits since it is due again, not since it was made.
SELECT queue,
       count(*) FILTER (WHERE not_before <= now()) AS ready,
       count(*) FILTER (WHERE not_before > now()) AS delayed,
       coalesce(extract(epoch FROM now() - min(greatest(created_at, not_before)) FILTER (WHERE not_before <= now())), 0)
           AS oldest_age_s
FROM work
WHERE state = 'queued'
GROUP BY queue

-- name: leases
SELECT queue,
       count(*) FILTER (WHERE lease_expires_at > now()) AS live,
       count(*) FILTER (WHERE lease_expires_at <= now()) AS expired
FROM work
WHERE state = 'running'
GROUP BY queue

-- name: jobs
SELECT state, count(*) AS jobs
FROM jobs
WHERE finished_at IS NULL
GROUP BY state

-- name: workers
SELECT id, hostname, queues, state, extract(epoch FROM now() - heartbeat_at) AS silent_s
FROM workers
WHERE heartbeat_at > now() - make_interval(days => 1)
ORDER BY id

-- name: spent_today
-- Requests and tunings have no index by time, but their ids sort by it: `since` is an id of two days ago.
SELECT coalesce((SELECT sum(cost_usd) FROM llm_calls WHERE finished_at >= date_trunc('day', now())), 0)
     + coalesce((SELECT sum(cost_usd) FROM requests
                 WHERE id >= :requests_since AND finished_at >= date_trunc('day', now())), 0) AS usd,
       coalesce((SELECT sum(gpu_s) FROM evaluations WHERE created_at >= date_trunc('day', now())), 0)
     + coalesce((SELECT sum(gpu_s) FROM tunings
                 WHERE id >= :tunings_since AND created_at >= date_trunc('day', now())), 0) AS gpu_s

-- name: keys
-- Only keys with a cap on what costs money. What their requests in plain words used is cents and is left out here.
SELECT api_keys.name, api_keys.budget_usd, api_keys.budget_gpu_s, api_keys.budget_tokens, api_keys.budget_calls,
       coalesce(sum(jobs.cost_usd), 0) AS usd,
       coalesce(sum(jobs.gpu_s), 0) AS gpu_s,
       coalesce(sum(jobs.llm_tokens), 0) AS tokens,
       coalesce(sum(jobs.llm_calls), 0) AS calls
FROM api_keys
LEFT JOIN jobs ON jobs.key_id = api_keys.id
WHERE api_keys.budget_usd IS NOT NULL OR api_keys.budget_gpu_s IS NOT NULL
   OR api_keys.budget_tokens IS NOT NULL OR api_keys.budget_calls IS NOT NULL
GROUP BY api_keys.id
ORDER BY api_keys.name
