-- Counts are kept by tool as well, so they are made anew from the journal: `tape pipeline run rollup`.
DROP TABLE tape_rollups;
CREATE TABLE tape_rollups (
    width_ms  INTEGER NOT NULL,
    start_ms  INTEGER NOT NULL,
    tenant    TEXT    NOT NULL,
    type      TEXT    NOT NULL,
    tool      TEXT    NOT NULL,
    entries   INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    PRIMARY KEY (width_ms, start_ms, tenant, type, tool)
) STRICT, WITHOUT ROWID;

-- How long effects and runs took that came to an end in a window, and how they ended. `histogram` is a list of
-- [bucket, entries]; `unpaired` are ends whose beginning is not on the journal (any more).
CREATE TABLE tape_rollup_durations (
    width_ms   INTEGER NOT NULL,
    start_ms   INTEGER NOT NULL,
    tenant     TEXT    NOT NULL,
    measure    TEXT    NOT NULL,
    tool       TEXT    NOT NULL,
    outcome    TEXT    NOT NULL,
    entries    INTEGER NOT NULL,
    total_ms   INTEGER NOT NULL,
    least_ms   INTEGER NOT NULL,
    most_ms    INTEGER NOT NULL,
    unpaired   INTEGER NOT NULL,
    histogram  TEXT    NOT NULL,
    PRIMARY KEY (width_ms, start_ms, tenant, measure, tool, outcome)
) STRICT, WITHOUT ROWID;

-- What has begun and not ended yet, up to the position.
CREATE TABLE tape_rollup_open (
    run_id      TEXT    NOT NULL,
    measure     TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    tool        TEXT    NOT NULL,
    global_seq  INTEGER NOT NULL,
    ts_ms       INTEGER NOT NULL,
    PRIMARY KEY (run_id, measure, name)
) STRICT, WITHOUT ROWID;

-- `since_ms`: windows that begin before it may lack entries that were pruned before they were counted.
-- `watermark_ms`: the latest time counted. `late`: entries that came after their minute was over.
ALTER TABLE tape_rollup_position ADD COLUMN since_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tape_rollup_position ADD COLUMN watermark_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tape_rollup_position ADD COLUMN late INTEGER NOT NULL DEFAULT 0;
UPDATE tape_rollup_position SET global_seq = 0;
