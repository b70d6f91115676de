-- Whether an attempt to send an outbox effect may have come through: 0 unspecified, 1 failed for certain, 2 unknown.
ALTER TABLE tape_effects ADD COLUMN dispatch_certainty INTEGER NOT NULL DEFAULT 0;

-- The command whose dead letter failed the run: only such a run is reopened when the task is redriven.
ALTER TABLE tape_runs ADD COLUMN dead_task_id TEXT NOT NULL DEFAULT '';
UPDATE tape_runs
    SET dead_task_id = coalesce(substring(detail_json from '"task_id":"([^"]*)"}}$'), '')
    WHERE status = 5 AND detail_json LIKE '{"error":{"type":"DeadLetter",%';
