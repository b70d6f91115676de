-- Who took the lease of a run; '' if it has none, or got it from an older server.
ALTER TABLE tape_runs ADD COLUMN lease_caller TEXT NOT NULL DEFAULT '';
