-- Obligations that have to be undone are told from those that may never have to be.
ALTER TABLE tape_obligations ADD COLUMN owed INTEGER NOT NULL DEFAULT 0;
-- Which act is to be undone: the effect's own, or one that happened too often.
ALTER TABLE tape_obligations ADD COLUMN act TEXT NOT NULL DEFAULT '';
DROP INDEX tape_obligations_effect;
CREATE UNIQUE INDEX tape_obligations_effect ON tape_obligations (run_id, effect_key, kind, act);
UPDATE tape_obligations SET owed = 1
    WHERE status <> 3 AND run_id IN (SELECT run_id FROM tape_runs WHERE status IN (5, 6, 7, 8));
CREATE INDEX tape_obligations_owed ON tape_obligations (next_attempt_at_ms, ts_ms) WHERE owed > 0 AND status <> 3;

-- What a run was before it was compensating or stuck, so that it can be that again.
ALTER TABLE tape_runs ADD COLUMN former_status INTEGER NOT NULL DEFAULT 0;

ALTER TABLE tape_timers ADD COLUMN claimed_by TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_timers ADD COLUMN claim_expires_at_ms BIGINT NOT NULL DEFAULT 0;
