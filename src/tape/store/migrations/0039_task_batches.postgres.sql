-- The messages of the run of a command that is a batch; 0 for any other task.
ALTER TABLE tape_tasks ADD COLUMN batch BIGINT NOT NULL DEFAULT 0;
