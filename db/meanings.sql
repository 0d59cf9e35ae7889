-- Vectors by a model. A text that has one, or that somebody is having made into one, does not lack it.

-- name: lock
-- One at a time looks for what lacks a vector: two at once would take the same texts.
SELECT pg_advisory_xact_lock(hashtextextended('kernelwright meanings', 0))

-- name: lacking
-- First the problems that proposals are being made for. A lesson is written anew with each new piece of evidence, so its
-- text is compared; hashing the texts of a hundred thousand kernels, which hardly ever change, would take seconds. The
-- reaper asks this in every round: three partial indexes are for it, with which that many kernels take 0.1 s.
SELECT item_id, text, encode(sha256(convert_to(text, 'UTF8')), 'hex') AS text_hash
FROM (
    (SELECT 1 AS place, 'problem:' || hash AS item_id, left(name || E'\n\n' || source, :characters) AS text
     FROM (SELECT DISTINCT problem_hash AS hash FROM jobs WHERE finished_at IS NULL) AS live JOIN problems USING (hash)
     WHERE NOT EXISTS (
         SELECT FROM meanings WHERE item_id = 'problem:' || problems.hash AND meanings.embedder = :embedder
           AND (vector IS NOT NULL OR claimed_until > now()))
     LIMIT :most)
    UNION ALL
    (SELECT 2, id, text
     FROM (SELECT id, left(title || E'\n\n' || text, :characters) AS text FROM lessons WHERE state = 'confirmed') AS told
     WHERE NOT EXISTS (
         SELECT FROM meanings WHERE item_id = told.id AND meanings.embedder = :embedder
           AND (text_hash = encode(sha256(convert_to(told.text, 'UTF8')), 'hex') OR claimed_until > now()))
     LIMIT :most)
    UNION ALL
    (SELECT 3, id, left(title || E'\n\n' || story, :characters)
     FROM kernels
     WHERE id IN (
         (SELECT id FROM kernels WHERE current
          EXCEPT
          SELECT item_id FROM meanings WHERE embedder = :embedder AND vector IS NOT NULL
          EXCEPT
          SELECT item_id FROM meanings WHERE embedder = :embedder AND claimed_until > now())
         LIMIT :most)
    )
) AS lacking
ORDER BY place, item_id
LIMIT :most
