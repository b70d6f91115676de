-- Forks: the run whose steps a run shares, and up to where.
ALTER TABLE tape_runs ADD COLUMN forked_from TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_runs ADD COLUMN forked_at_seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tape_runs ADD COLUMN forked_at_decision BIGINT NOT NULL DEFAULT 0;
