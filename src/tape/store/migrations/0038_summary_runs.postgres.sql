-- Whether the run of a command is kept as a summary: its task is deleted when the run has ended well.
ALTER TABLE tape_tasks ADD COLUMN is_summary BIGINT NOT NULL DEFAULT 0;
