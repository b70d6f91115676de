-- The downstream that the run of a command depends on, and when its last attempt failed because that was unavailable.
ALTER TABLE tape_tasks ADD COLUMN downstream TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE tape_tasks ADD COLUMN unavailable_ms BIGINT NOT NULL DEFAULT 0;
CREATE INDEX tape_tasks_downstream ON tape_tasks (downstream, source_global_seq) WHERE downstream <> '' AND status = 1;

-- What became of runs that depend on a downstream. While it is held, their tasks wait, except for one: the probe. The
-- runtime that keeps its circuit renews the hold; one that is not renewed lapses.
CREATE TABLE tape_downstreams (
    name             TEXT    COLLATE "C" PRIMARY KEY,
    failures         BIGINT NOT NULL DEFAULT 0,
    successes        BIGINT NOT NULL DEFAULT 0,
    last_success_ms  BIGINT NOT NULL DEFAULT 0,
    last_failure_ms  BIGINT NOT NULL DEFAULT 0,
    last_error       TEXT    NOT NULL DEFAULT '',
    held             BIGINT NOT NULL DEFAULT 0,
    held_until_ms    BIGINT NOT NULL DEFAULT 0,
    probe_task_id    TEXT    NOT NULL DEFAULT ''
);
