-- Rows for load tests. A job's number says everything about it: the newest 1,200 are live, of these the oldest 200 run.

-- name: problems
INSERT INTO problems (hash, name, source)
SELECT md5('problem ' || n), 'load_op_' || n, 'class Model: ...' FROM generate_series(0, 49) AS n

-- name: jobs
INSERT INTO jobs (id, problem_hash, problem_name, hardware, language, budget_candidates, labels, state, stop_reason,
                  version, best_candidate_id, best_speedup, cost_usd, gpu_s, created_at, started_at, finished_at)
SELECT 'job_load' || to_char(n, 'FM00000000'), md5('problem ' || n % 50), 'load_op_' || n % 50,
       CASE WHEN n % 3 = 0 THEN 'cpu' ELSE 'nvidia-h100' END, CASE WHEN n % 3 = 0 THEN 'cpp' ELSE 'triton' END,
       20, jsonb_build_object('team', 'team' || n % 40, 'run', n::text),
       CASE WHEN n > :jobs - 1000 THEN 'queued' WHEN n > :jobs - 1200 THEN 'running'
            WHEN n % 25 = 0 THEN 'failed' WHEN n % 40 = 1 THEN 'cancelled' ELSE 'succeeded' END,
       CASE WHEN n > :jobs - 1200 THEN NULL WHEN n % 40 = 1 AND n % 25 <> 0 THEN 'cancelled' ELSE 'budget_candidates' END,
       40,
       CASE WHEN n <= :jobs - 1000 AND n % 25 <> 0 THEN 'cand_load' || to_char(n, 'FM00000000') || '_1' END,
       CASE WHEN n <= :jobs - 1000 AND n % 25 <> 0 THEN 1 + (n % 100) / 50.0 END,
       0.25, 60, at, CASE WHEN n <= :jobs - 1000 THEN at + interval '2 s' END,
       CASE WHEN n <= :jobs - 1200 THEN at + interval '10 min' END
FROM (SELECT n, now() - CASE WHEN n > :jobs - 1200 THEN interval '1 s' * (:jobs - n) / 2
                             ELSE interval '10 min' + (:jobs - 1200 - n) * (interval '90 days' / :jobs) END AS at
      FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS n) AS numbered

-- name: candidates
INSERT INTO candidates (id, job_id, ordinal, operator, proposer, model, parents, plan, source, source_hash, state,
                        created_at)
SELECT 'cand_load' || to_char(n, 'FM00000000') || '_' || k, 'job_load' || to_char(n, 'FM00000000'), k,
       CASE WHEN k = 1 THEN 'seed' ELSE 'refine' END, 'llm', 'openai/load',
       CASE WHEN k = 1 THEN '{}'::text[] ELSE ARRAY['cand_load' || to_char(n, 'FM00000000') || '_1'] END,
       'one pass per row with an online maximum', repeat('    x = tl.load(pointer + offsets, mask=mask)' || chr(10), 40),
       md5(n || ' ' || k),
       CASE WHEN n > :jobs - 1200 AND k = :each THEN 'evaluating' WHEN k % 9 = 8 THEN 'rejected' ELSE 'evaluated' END,
       jobs.created_at + k * interval '20 s'
FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS n
JOIN jobs ON jobs.id = 'job_load' || to_char(n, 'FM00000000'), generate_series(1, CAST(:each AS int)) AS k
WHERE n <= :jobs - 1000

-- name: evaluations
INSERT INTO evaluations (id, candidate_id, job_id, verdict, reason, timed, latency_us, speedup, ci95_low, ci95_high,
                         baseline, report, gpu_s, wall_s, created_at)
SELECT 'eval' || substr(id, 5), id, job_id, verdict, CASE WHEN verdict <> 'ok' THEN 'row 3 is NaN' END, verdict = 'ok',
       CASE WHEN verdict = 'ok' THEN 40.0 END, speedup, speedup * 0.98, speedup * 1.02, 'compile',
       CASE WHEN ordinal % 10 = 1 THEN jsonb_build_object('checks', (SELECT jsonb_agg(jsonb_build_object(
           'name', 'check ' || c, 'passed', true, 'detail', '5 seeds, 4 distributions')) FROM generate_series(1, 20) AS c))
            ELSE '{}'::jsonb END,
       6, 9, created_at + interval '15 s'
FROM (SELECT id, job_id, ordinal, created_at,
             CASE WHEN ordinal % 5 = 4 THEN 'incorrect' WHEN ordinal % 7 = 6 THEN 'build_error' ELSE 'ok' END AS verdict,
             CASE WHEN ordinal % 5 <> 4 AND ordinal % 7 <> 6 THEN 3.0 / (1 + ordinal) END AS speedup
      FROM candidates
      WHERE state = 'evaluated' AND job_id BETWEEN 'job_load' || to_char(CAST(:first AS int), 'FM00000000')
                                               AND 'job_load' || to_char(CAST(:last AS int), 'FM00000000')) AS judged

-- name: work
WITH of_candidates AS (
    SELECT id, job_id, state, created_at FROM candidates
    WHERE job_id BETWEEN 'job_load' || to_char(CAST(:first AS int), 'FM00000000')
                     AND 'job_load' || to_char(CAST(:last AS int), 'FM00000000')
), rows AS (
    SELECT 'work' || substr(id, 5) || '_p' AS id, 'propose' AS kind, 'llm' AS queue, job_id, id AS candidate_id,
           'done' AS state, created_at FROM of_candidates
    UNION ALL
    SELECT 'work' || substr(id, 5) || '_e', 'evaluate', 'gpu.nvidia-h100', job_id, id,
           CASE WHEN state = 'evaluating' THEN 'running' ELSE 'done' END, created_at + interval '5 s'
    FROM of_candidates WHERE state <> 'rejected'
    UNION ALL
    SELECT 'work' || substr(id, 4) || '_a', 'advance', 'control', id, NULL,
           CASE WHEN state = 'queued' THEN 'queued' ELSE 'done' END, created_at
    FROM jobs WHERE id BETWEEN 'job_load' || to_char(CAST(:first AS int), 'FM00000000')
                           AND 'job_load' || to_char(CAST(:last AS int), 'FM00000000')
)
INSERT INTO work (id, kind, queue, job_id, candidate_id, state, attempt, not_before, created_at, claimed_at, finished_at,
                  lease_token, lease_expires_at)
SELECT id, kind, queue, job_id, candidate_id, state, CASE WHEN state = 'queued' THEN 0 ELSE 1 END, created_at, created_at,
       CASE WHEN state <> 'queued' THEN created_at + interval '1 s' * (1 + abs(hashtext(id)) % 9) END,
       CASE WHEN state = 'done' THEN created_at + interval '15 s' END,
       CASE WHEN state = 'running' THEN gen_random_uuid() END,
       CASE WHEN state = 'running' THEN now() + interval '1 day' END
FROM rows

-- name: llm_calls
INSERT INTO llm_calls (id, job_id, candidate_id, key, state, model, prompt, answer, tokens_in, tokens_out, cost_usd,
                       started_at, finished_at)
SELECT 'call' || substr(id, 5), job_id, id, 'propose', 'finished', 'openai/load', 'a prompt', 'an answer', 4000, 900,
       0.013, created_at, created_at + interval '8 s'
FROM candidates
WHERE job_id BETWEEN 'job_load' || to_char(CAST(:first AS int), 'FM00000000')
                 AND 'job_load' || to_char(CAST(:last AS int), 'FM00000000')

-- name: events
INSERT INTO events (job_id, type, at, data)
SELECT job_id, type, created_at, jsonb_build_object('candidate_id', id, 'ordinal', ordinal)
FROM candidates, unnest(ARRAY['candidate.created', 'candidate.evaluated']) AS type
WHERE job_id BETWEEN 'job_load' || to_char(CAST(:first AS int), 'FM00000000')
                 AND 'job_load' || to_char(CAST(:last AS int), 'FM00000000')
ORDER BY job_id, ordinal, type DESC

-- name: certificates
INSERT INTO certificates (id, candidate_id, job_id, certified, verdict, sha256, document, page, gpu_s, created_at)
SELECT 'cert' || substr(id, 4), best_candidate_id, id, true, 'ok', md5(id), '{}'::json, '<!doctype html>', 20, finished_at
FROM jobs
WHERE state = 'succeeded' AND id BETWEEN 'job_load' || to_char(CAST(:first AS int), 'FM00000000')
                                     AND 'job_load' || to_char(CAST(:last AS int), 'FM00000000')

-- name: kernels
INSERT INTO kernels (id, job_id, candidate_id, problem_hash, problem_name, hardware, language, source, source_hash,
                     latency_us, speedup, created_at)
SELECT 'kernel' || substr(id, 4), id, best_candidate_id, problem_hash, problem_name, hardware, language, 'class ModelNew: ...',
       md5(id), 40, best_speedup, finished_at
FROM jobs
WHERE state = 'succeeded' AND id BETWEEN 'job_load' || to_char(CAST(:first AS int), 'FM00000000')
                                     AND 'job_load' || to_char(CAST(:last AS int), 'FM00000000')

-- name: workers
-- Heard of for a day, for as long as anything may be measured.
INSERT INTO workers (id, hostname, pid, queues, hardware, current_work, heartbeat_at)
SELECT 'worker_' || id, 'node', row_number() OVER (ORDER BY id), ARRAY[queue], 'nvidia-h100', id, now() + interval '1 day'
FROM (SELECT id, queue FROM work WHERE state = 'running' ORDER BY id LIMIT 64) AS held
