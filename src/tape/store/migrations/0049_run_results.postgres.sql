-- What a finished run gave, as JSON; the run that began a run, and what becomes of it when that one is cancelled.
ALTER TABLE tape_runs ADD COLUMN result_json TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_runs ADD COLUMN parent_run_id TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE tape_runs ADD COLUMN on_parent_cancel INTEGER NOT NULL DEFAULT 0;
CREATE INDEX tape_runs_children ON tape_runs (parent_run_id, started_at_ms) WHERE parent_run_id <> '';
