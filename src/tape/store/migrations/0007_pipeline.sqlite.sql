-- Batches that pipelines appended, so that a repeated one is recognized. `steps` of its `stages` are in the journal.
CREATE TABLE tape_batches (
    producer  TEXT    NOT NULL,
    batch     TEXT    NOT NULL,
    number    INTEGER NOT NULL,
    stages    TEXT    NOT NULL,
    steps     INTEGER NOT NULL,
    is_done   INTEGER NOT NULL,
    entries   INTEGER NOT NULL,
    ts_ms     INTEGER NOT NULL,
    PRIMARY KEY (producer, batch)
) STRICT, WITHOUT ROWID;

-- What a task of a pipeline has checked and handed over, until its batch is appended.
CREATE TABLE tape_staged (
    stage    TEXT    NOT NULL,
    step     INTEGER NOT NULL,
    drafts   BLOB    NOT NULL,
    ts_ms    INTEGER NOT NULL,
    PRIMARY KEY (stage, step)
) STRICT;
CREATE INDEX tape_staged_ts ON tape_staged (ts_ms);

-- How many entries of each tenant and type there were in each minute, hour and day, up to a place in the journal.
CREATE TABLE tape_rollups (
    width_ms  INTEGER NOT NULL,
    start_ms  INTEGER NOT NULL,
    tenant    TEXT    NOT NULL,
    type      TEXT    NOT NULL,
    entries   INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    PRIMARY KEY (width_ms, start_ms, tenant, type)
) STRICT, WITHOUT ROWID;
CREATE TABLE tape_rollup_position (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    global_seq  INTEGER NOT NULL
) STRICT;
INSERT INTO tape_rollup_position VALUES (1, 0);
