-- Runs by whose they are and by their state, the newest first.
CREATE INDEX tape_runs_of_app ON tape_runs (app_name, status, started_at_ms);
CREATE INDEX tape_runs_of_user ON tape_runs (app_name, user_id, started_at_ms);
CREATE INDEX tape_runs_of_status ON tape_runs (status, started_at_ms);
