-- Batches that pipelines appended, so that a repeated one is recognized. `steps` of its `stages` are in the journal.
CREATE TABLE tape_batches (
    producer  TEXT    COLLATE "C" NOT NULL,
    batch     TEXT    COLLATE "C" NOT NULL,
    number    BIGINT  NOT NULL,
    stages    TEXT    NOT NULL,
    steps     BIGINT  NOT NULL,
    is_done   INTEGER NOT NULL,
    entries   BIGINT  NOT NULL,
    ts_ms     BIGINT  NOT NULL,
    PRIMARY KEY (producer, batch)
);

-- What a task of a pipeline has checked and handed over, until its batch is appended.
CREATE TABLE tape_staged (
    stage    TEXT    COLLATE "C" NOT NULL,
    step     INTEGER NOT NULL,
    drafts   BYTEA   NOT NULL,
    ts_ms    BIGINT  NOT NULL,
    PRIMARY KEY (stage, step)
);
CREATE INDEX tape_staged_ts ON tape_staged (ts_ms);

-- How many entries of each tenant and type there were in each minute, hour and day, up to a place in the journal.
CREATE TABLE tape_rollups (
    width_ms  BIGINT  NOT NULL,
    start_ms  BIGINT  NOT NULL,
    tenant    TEXT    COLLATE "C" NOT NULL,
    type      TEXT    COLLATE "C" NOT NULL,
    entries   BIGINT  NOT NULL,
    bytes     BIGINT  NOT NULL,
    PRIMARY KEY (width_ms, start_ms, tenant, type)
);
CREATE TABLE tape_rollup_position (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    global_seq  BIGINT  NOT NULL
);
INSERT INTO tape_rollup_position VALUES (1, 0);
