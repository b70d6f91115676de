-- The downstream that the run of a command depends on, and when its last attempt failed because that was unavailable.
ALTER TABLE tape_tasks ADD COLUMN downstream TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_tasks ADD COLUMN unavailable_ms INTEGER NOT NULL DEFAULT 0;
CREATE INDEX tape_tasks_downstream ON tape_tasks (downstream, source_global_seq) WHERE downstream <> '' AND status = 1;

-- What became of runs that depend on a downstream. While it is held, their tasks wait, except for one: the probe. The
-- runtime that keeps its circuit renews the hold; one that is not renewed lapses.
CREATE TABLE tape_downstreams (
    name             TEXT    PRIMARY KEY,
    failures         INTEGER NOT NULL DEFAULT 0,
    successes        INTEGER NOT NULL DEFAULT 0,
    last_success_ms  INTEGER NOT NULL DEFAULT 0,
    last_failure_ms  INTEGER NOT NULL DEFAULT 0,
    last_error       TEXT    NOT NULL DEFAULT '',
    held             INTEGER NOT NULL DEFAULT 0,
    held_until_ms    INTEGER NOT NULL DEFAULT 0,
    probe_task_id    TEXT    NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
