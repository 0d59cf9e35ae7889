-- The outbox of webhooks: rows are made with the event, taken with a lease, and settled by comparing the token.

-- name: wanted
-- Whom this event is told to. The lock keeps a webhook from being deleted between here and the insert.
SELECT webhooks.id
FROM webhooks
JOIN jobs ON jobs.id = :job_id
LEFT JOIN api_keys ON api_keys.id = webhooks.key_id
WHERE webhooks.enabled
  AND :type = ANY (webhooks.types)
  AND jobs.labels @> webhooks.labels
  AND (webhooks.key_id IS NOT DISTINCT FROM jobs.key_id
       OR webhooks.all_jobs AND (api_keys.id IS NULL OR api_keys.scopes && '{read,admin}'))
  AND (api_keys.id IS NULL
       OR api_keys.revoked_at IS NULL AND coalesce(api_keys.expires_at > now(), true))
ORDER BY webhooks.id
FOR KEY SHARE OF webhooks

-- name: give_up
-- What is due and will not be sent: its webhook is disabled, its key is over, or its sender was lost every time.
UPDATE webhook_deliveries AS delivery
SET state = 'failed', lease_token = NULL, finished_at = now(),
    error = CASE WHEN NOT webhooks.enabled THEN 'the webhook was disabled before this was sent'
                 WHEN NOT key.usable THEN 'the API key of the webhook is revoked or has expired'
                 ELSE 'what was sending it was killed at the last attempt' END
FROM webhooks, LATERAL (
    SELECT NOT EXISTS (SELECT FROM api_keys WHERE api_keys.id = webhooks.key_id
                       AND (api_keys.revoked_at IS NOT NULL OR api_keys.expires_at <= now())) AS usable
) AS key
WHERE webhooks.id = delivery.webhook_id
  AND delivery.state = 'waiting' AND delivery.not_before <= now()
  AND (delivery.attempt >= :most_attempts OR NOT webhooks.enabled OR NOT key.usable)
RETURNING delivery.id

-- name: claim
-- The oldest that are due, of each webhook only so many at a time: one that answers slowly holds up no other.
WITH free AS (
    SELECT webhooks.id, greatest(0, :per_webhook - (
        SELECT count(*) FROM webhook_deliveries AS held
        WHERE held.webhook_id = webhooks.id AND held.state = 'waiting'
          AND held.lease_token IS NOT NULL AND held.not_before > now())) AS places
    FROM webhooks
    WHERE webhooks.enabled
), due AS (
    SELECT next.id
    FROM free CROSS JOIN LATERAL (
        SELECT ready.id, ready.not_before FROM webhook_deliveries AS ready
        WHERE ready.webhook_id = free.id AND ready.state = 'waiting' AND ready.not_before <= now()
          AND ready.attempt < :most_attempts
        ORDER BY ready.not_before, ready.id
        LIMIT free.places
        FOR UPDATE SKIP LOCKED
    ) AS next
    ORDER BY next.not_before, next.id
    LIMIT :most
)
UPDATE webhook_deliveries AS delivery
SET attempt = delivery.attempt + 1, lease_token = gen_random_uuid(),
    not_before = now() + make_interval(secs => :lease_s)
FROM due, webhooks
WHERE delivery.id = due.id AND webhooks.id = delivery.webhook_id
RETURNING delivery.id, delivery.webhook_id, delivery.lease_token, delivery.attempt, delivery.type, delivery.data,
          delivery.created_at, webhooks.url, webhooks.secret,
          CASE WHEN webhooks.previous_until > now() THEN webhooks.previous_secret END AS previous_secret

-- name: settle
UPDATE webhook_deliveries
SET state = :state, lease_token = NULL, status = :status, wall_s = :wall_s, answer = :answer, error = :error,
    attempted_at = now(),
    not_before = CASE WHEN :state = 'waiting' THEN now() + make_interval(secs => :delay_s) ELSE not_before END,
    finished_at = CASE WHEN :state = 'waiting' THEN NULL ELSE now() END
WHERE id = :id AND lease_token = :token AND state = 'waiting'
RETURNING id

-- name: prune
DELETE FROM webhook_deliveries
WHERE id IN (
    SELECT id FROM webhook_deliveries WHERE finished_at < now() - make_interval(days => :days)
    ORDER BY finished_at LIMIT :batch
)
RETURNING id

-- name: gauges
SELECT (SELECT count(*) FROM webhook_deliveries WHERE state = 'waiting') AS waiting,
       coalesce((SELECT extract(epoch FROM now() - min(not_before)) FROM webhook_deliveries
                 WHERE state = 'waiting' AND not_before <= now()), 0) AS oldest_age_s,
       (SELECT count(*) FROM webhooks WHERE enabled) AS enabled,
       (SELECT count(*) FROM webhooks WHERE NOT enabled) AS disabled
