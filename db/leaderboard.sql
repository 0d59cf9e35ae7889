-- The one ranking of champions: whoever shows who is fastest reads it here. A board is a problem's source on one target.

-- name: ranking
-- Certified before not certified, then by speedup, then whoever came first. A source is listed once, a refused one never.
-- Subqueries and OFFSET 0 where a join would do: the planner thinks that a third of all champions get a place, and would
-- read three whole tables for twenty rows.
WITH champions AS MATERIALIZED (
    SELECT id, problem_hash, hardware, language, source_hash, job_id, candidate_id, speedup, ci95_low, ci95_high,
           latency_us, created_at,
           (SELECT certified FROM certificates WHERE certificates.candidate_id = kernels.candidate_id) AS certified
    FROM kernels
    WHERE problem_name = :problem AND speedup IS NOT NULL
      AND (CAST(:hardware AS text) IS NULL OR hardware = :hardware)
      AND (CAST(:language AS text) IS NULL OR language = :language)
), accepted AS (
    SELECT DISTINCT ON (problem_hash, hardware, language, source_hash) *
    FROM champions
    WHERE certified IS DISTINCT FROM false
    ORDER BY problem_hash, hardware, language, source_hash, certified NULLS LAST, speedup DESC, id
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY problem_hash, hardware, language
                                 ORDER BY certified NULLS LAST, speedup DESC, id) AS place
    FROM accepted
)
SELECT problem_hash, hardware, language, place, job_id, candidate_id, certified IS NOT NULL AS certified, speedup,
       ci95_low, ci95_high, latency_us, created_at, more.*
FROM ranked
CROSS JOIN LATERAL (
    SELECT evaluations.baseline, candidates.operator, candidates.proposer, candidates.model, jobs.own_kernel_share
    FROM candidates, evaluations, jobs
    WHERE candidates.id = ranked.candidate_id AND evaluations.candidate_id = ranked.candidate_id
      AND jobs.id = ranked.job_id
    OFFSET 0
) AS more
WHERE place <= :places
ORDER BY problem_hash, hardware, language, place

-- name: left_out
-- Measured, and on no board: what the judge did not believe, what was refused its certificate, and bests of live jobs.
WITH found AS (
    SELECT evaluations.job_id, evaluations.candidate_id, evaluations.speedup, evaluations.verdict, evaluations.reason,
           false AS live
    FROM evaluations
    WHERE evaluations.verdict <> 'ok' AND evaluations.speedup IS NOT NULL
    UNION ALL
    SELECT certificates.job_id, certificates.candidate_id, evaluations.speedup, certificates.verdict, certificates.reason,
           false
    FROM certificates
    JOIN evaluations ON evaluations.candidate_id = certificates.candidate_id
    WHERE NOT certificates.certified AND evaluations.speedup IS NOT NULL AND evaluations.verdict = 'ok'
    UNION ALL
    SELECT jobs.id, jobs.best_candidate_id, jobs.best_speedup, 'ok', NULL, true
    FROM jobs
    WHERE jobs.finished_at IS NULL AND jobs.best_speedup IS NOT NULL AND jobs.best_candidate_id IS NOT NULL
)
SELECT jobs.problem_hash, jobs.hardware, jobs.language, found.*
FROM found
JOIN jobs ON jobs.id = found.job_id
WHERE jobs.problem_name = :problem
  AND (CAST(:hardware AS text) IS NULL OR jobs.hardware = :hardware)
  AND (CAST(:language AS text) IS NULL OR jobs.language = :language)
ORDER BY found.speedup DESC, found.candidate_id

-- name: known
SELECT EXISTS (SELECT FROM jobs WHERE problem_name = :problem)
