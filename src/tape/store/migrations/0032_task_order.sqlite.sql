-- Of the open tasks of a reaction with the same order key, the first is due and the others wait.
ALTER TABLE tape_tasks ADD COLUMN ordering_key TEXT NOT NULL DEFAULT '';
CREATE INDEX tape_tasks_ordered ON tape_tasks (reaction_id, ordering_key, source_global_seq)
    WHERE ordering_key <> '' AND status IN (1, 2);
