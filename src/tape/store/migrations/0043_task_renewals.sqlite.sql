-- How often the lease of a claimed task was extended by claims that did not name the task.
ALTER TABLE tape_tasks ADD COLUMN lease_renewals INTEGER NOT NULL DEFAULT 0;
