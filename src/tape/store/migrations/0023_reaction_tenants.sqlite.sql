-- A reaction fires on the entries of its tenant, and on those of all if it has none, as the existing ones.
ALTER TABLE tape_reactions ADD COLUMN tenant TEXT NOT NULL DEFAULT '';

-- A task belongs to the tenant of its entry; workers claim those of their own.
ALTER TABLE tape_tasks ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
CREATE INDEX tape_tasks_due_of_tenant ON tape_tasks (reaction_id, tenant, next_attempt_at_ms, source_global_seq)
    WHERE status = 1;
