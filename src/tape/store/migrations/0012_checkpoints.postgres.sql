-- Where servers began to match a reaction; -1 where nobody wrote it down. What lies before is for a backfill.
ALTER TABLE tape_reaction_cursors ADD COLUMN began BIGINT NOT NULL DEFAULT -1;

-- How far a job of the pipeline has come under a name, and with which options: others are another job.
CREATE TABLE tape_checkpoints (
    job       TEXT COLLATE "C" NOT NULL,
    name      TEXT COLLATE "C" NOT NULL,
    version   INTEGER NOT NULL,
    options   TEXT    NOT NULL,
    position  BIGINT  NOT NULL,
    state     TEXT    NOT NULL,
    ts_ms     BIGINT  NOT NULL,
    PRIMARY KEY (job, name)
);

-- The ids of rows that were ingested, so that a row that comes again in another file or batch is recognized.
CREATE TABLE tape_ingested (
    producer  TEXT COLLATE "C" NOT NULL,
    row_id    TEXT COLLATE "C" NOT NULL,
    ts_ms     BIGINT  NOT NULL,
    PRIMARY KEY (producer, row_id)
);
