-- Where servers began to match a reaction; -1 where nobody wrote it down. What lies before is for a backfill.
ALTER TABLE tape_reaction_cursors ADD COLUMN began INTEGER NOT NULL DEFAULT -1;

-- How far a job of the pipeline has come under a name, and with which options: others are another job.
CREATE TABLE tape_checkpoints (
    job       TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    options   TEXT    NOT NULL,
    position  INTEGER NOT NULL,
    state     TEXT    NOT NULL,
    ts_ms     INTEGER NOT NULL,
    PRIMARY KEY (job, name)
) STRICT, WITHOUT ROWID;

-- The ids of rows that were ingested, so that a row that comes again in another file or batch is recognized.
CREATE TABLE tape_ingested (
    producer  TEXT    NOT NULL,
    row_id    TEXT    NOT NULL,
    ts_ms     INTEGER NOT NULL,
    PRIMARY KEY (producer, row_id)
) STRICT, WITHOUT ROWID;
