-- What the knowledge base is asked before a proposal. Each part is bounded, so that the answer takes as long with a
-- hundred thousand kernels as with a hundred: the figures are in benchmarks/knowledge.py.

-- name: narrow_kernels
-- Of this very problem; of this op family, the fastest; whatever shares rare words. Where all that is little, what is
-- called alike too: with 100,000 kernels a common name costs 100 ms to compare, and words have found those already.
WITH fitting AS MATERIALIZED (
    (SELECT id FROM kernels
     WHERE current AND language = :language AND hardware_kin = :hardware_kin AND problem_hash = :problem_hash
     LIMIT 5)
    UNION
    (SELECT id FROM kernels
     WHERE current AND language = :language AND hardware_kin = :hardware_kin AND op_family = :op_family
     ORDER BY speedup DESC NULLS LAST
     LIMIT 60)
    UNION
    (SELECT id FROM (
        SELECT id, terms_vector FROM kernels
        WHERE current AND language = :language AND hardware_kin = :hardware_kin
          AND terms_vector @@ to_tsquery('simple', :rare)
        LIMIT 1000
     ) AS matching
     ORDER BY ts_rank(terms_vector, to_tsquery('simple', :every)) DESC, id
     LIMIT 60)
), called_alike AS (
    SELECT id FROM (
        SELECT id, title FROM kernels
        WHERE (SELECT count(*) FROM fitting) < 20
          AND current AND language = :language AND hardware_kin = :hardware_kin AND title %> :title
        LIMIT 300
    ) AS matching
    ORDER BY title <->> :title
    LIMIT 20
)
SELECT kernels.id, 'kernel' AS kind, hardware, language, op_family, bound, problem_hash = :problem_hash AS exact,
       coalesce(speedup, 1.0) AS worth, terms, word_similarity(:title, title)::float8 AS trigram_score, embedder, embedding
FROM (SELECT id FROM fitting UNION SELECT id FROM called_alike) AS found JOIN kernels USING (id)
ORDER BY kernels.id

-- name: narrow_lessons
-- Those about this very error or one that reads like it; then those of the op family, or of any, that most jobs support.
WITH fitting AS (
    (SELECT id FROM lessons
     WHERE state = 'confirmed' AND kind = 'failure' AND language = :language AND hardware_kin = :hardware_kin
       AND (key = :error OR title %> :error_message)
     ORDER BY key = :error DESC, title <->> :error_message
     LIMIT 20)
    UNION
    (SELECT id FROM lessons
     WHERE state = 'confirmed' AND language = :language AND hardware_kin = :hardware_kin
       AND (:any_family OR op_family = ANY(:op_families))
     ORDER BY supporting DESC, id
     LIMIT 100)
)
SELECT lessons.id, 'lesson' AS kind, hardware_kin AS hardware, language, op_family, bound,
       coalesce(kind = 'failure' AND key = :error, false) AS exact, supporting::float8 AS worth, terms,
       word_similarity(CASE WHEN :error_message <> '' THEN :error_message ELSE :title END, title)::float8 AS trigram_score,
       embedder, embedding
FROM fitting JOIN lessons USING (id)
ORDER BY lessons.id

-- name: winning_params
-- Of kernels of the family that declare these very tunables (without names: any), the fastest first.
SELECT id, title, params FROM kernels
WHERE current AND language = :language AND hardware_kin = :hardware_kin AND op_family = :op_family
  AND params <> '{}' AND params ?& :names
  AND (:count = 0 OR (SELECT count(*) FROM jsonb_object_keys(params)) = :count)
  AND NOT EXISTS (SELECT FROM knowledge_retirements WHERE item_id = kernels.id)
ORDER BY speedup DESC NULLS LAST, id
LIMIT :most

-- name: holders
SELECT term, holders FROM knowledge_terms WHERE term = ANY(:terms)

-- name: texts
SELECT id, title, story AS text FROM kernels WHERE id = ANY(:ids)
UNION ALL
SELECT id, title, text FROM lessons WHERE id = ANY(:ids)

-- name: titles
-- As they were when they last came up.
SELECT DISTINCT ON (item_id) item_id, kind, title FROM knowledge_uses
WHERE item_id = ANY(:items)
ORDER BY item_id, candidate_id DESC

-- name: origin_of
-- The first of the chain of reruns that a job belongs to.
WITH RECURSIVE chain AS (
    SELECT id, parent_id, 0 AS depth FROM jobs WHERE id = :job_id
    UNION ALL
    SELECT jobs.id, jobs.parent_id, depth + 1 FROM chain JOIN jobs ON jobs.id = chain.parent_id WHERE depth < 1000
)
SELECT id FROM chain ORDER BY depth DESC LIMIT 1

-- name: upsert_lesson
INSERT INTO lessons (id, kind, language, hardware_kin, op_family, bound, key, statement)
VALUES (:id, :kind, :language, :hardware_kin, :op_family, :bound, :key, :statement)
ON CONFLICT (kind, language, hardware_kin, op_family, bound, key) DO UPDATE SET statement = excluded.statement
RETURNING id

-- name: arms
-- Proposals that had something looked up and came to a verdict of their own, by whether they were shown it.
WITH proposals AS (
    SELECT candidates.id, candidates.retrieval,
           coalesce(evaluations.verdict = 'ok', false) AS correct,
           CASE WHEN evaluations.verdict = 'ok' AND evaluations.speedup IS NULL THEN NULL
                WHEN evaluations.verdict = 'ok' THEN greatest(0, ln(evaluations.speedup / coalesce(parent.speedup, 1)))
                ELSE 0 END AS gained,
           paid.cost_usd
    FROM candidates
    LEFT JOIN evaluations ON evaluations.candidate_id = candidates.id
    LEFT JOIN LATERAL (
        SELECT max(speedup) AS speedup FROM evaluations AS earlier
        WHERE earlier.candidate_id = ANY(candidates.parents) AND earlier.verdict = 'ok' AND earlier.speedup > 0
    ) AS parent ON true
    LEFT JOIN LATERAL (
        SELECT sum(cost_usd)::float8 AS cost_usd FROM llm_calls
        WHERE llm_calls.candidate_id = candidates.id AND llm_calls.state <> 'started' AND llm_calls.cost_usd IS NOT NULL
    ) AS paid ON true
    WHERE candidates.retrieval IS NOT NULL
      AND (evaluations.verdict <> 'infra_error'
           OR candidates.state = 'rejected' AND candidates.failure IN ('no_code', 'truncated', 'diff_failed', 'refused'))
      AND (:everything OR EXISTS (
          SELECT FROM knowledge_uses WHERE knowledge_uses.candidate_id = candidates.id AND item_id = ANY(:items)))
), looked_up AS (
    SELECT '' AS item_id, retrieval AS shown, proposals.* FROM proposals WHERE :overall
    UNION ALL
    SELECT uses.item_id, uses.shown, proposals.* FROM proposals
    JOIN knowledge_uses AS uses ON uses.candidate_id = proposals.id
    WHERE NOT :overall AND (:everything OR uses.item_id = ANY(:items))
)
SELECT item_id, shown, count(*) AS proposals, count(*) FILTER (WHERE correct) AS correct,
       count(gained) AS gained_n, coalesce(avg(gained), 0)::float8 AS gained_mean,
       coalesce(var_samp(gained), 0)::float8 AS gained_variance,
       count(cost_usd) AS cost_n, coalesce(avg(cost_usd), 0)::float8 AS cost_mean,
       coalesce(var_samp(cost_usd), 0)::float8 AS cost_variance
FROM looked_up
GROUP BY item_id, shown
ORDER BY item_id, shown
