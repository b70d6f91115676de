-- Counts are kept by tool as well, so they are made anew from the journal: `tape pipeline run rollup`.
DROP TABLE tape_rollups;
CREATE TABLE tape_rollups (
    width_ms  BIGINT  NOT NULL,
    start_ms  BIGINT  NOT NULL,
    tenant    TEXT    COLLATE "C" NOT NULL,
    type      TEXT    COLLATE "C" NOT NULL,
    tool      TEXT    COLLATE "C" NOT NULL,
    entries   BIGINT  NOT NULL,
    bytes     BIGINT  NOT NULL,
    PRIMARY KEY (width_ms, start_ms, tenant, type, tool)
);

-- How long effects and runs took that came to an end in a window, and how they ended. `histogram` is a list of
-- [bucket, entries]; `unpaired` are ends whose beginning is not on the journal (any more).
CREATE TABLE tape_rollup_durations (
    width_ms   BIGINT  NOT NULL,
    start_ms   BIGINT  NOT NULL,
    tenant     TEXT    COLLATE "C" NOT NULL,
    measure    TEXT    COLLATE "C" NOT NULL,
    tool       TEXT    COLLATE "C" NOT NULL,
    outcome    TEXT    COLLATE "C" NOT NULL,
    entries    BIGINT  NOT NULL,
    total_ms   BIGINT  NOT NULL,
    least_ms   BIGINT  NOT NULL,
    most_ms    BIGINT  NOT NULL,
    unpaired   BIGINT  NOT NULL,
    histogram  TEXT    NOT NULL,
    PRIMARY KEY (width_ms, start_ms, tenant, measure, tool, outcome)
);

-- What has begun and not ended yet, up to the position.
CREATE TABLE tape_rollup_open (
    run_id      TEXT    COLLATE "C" NOT NULL,
    measure     TEXT    COLLATE "C" NOT NULL,
    name        TEXT    COLLATE "C" NOT NULL,
    tenant      TEXT    COLLATE "C" NOT NULL,
    tool        TEXT    COLLATE "C" NOT NULL,
    global_seq  BIGINT  NOT NULL,
    ts_ms       BIGINT  NOT NULL,
    PRIMARY KEY (run_id, measure, name)
);

-- `since_ms`: windows that begin before it may lack entries that were pruned before they were counted.
-- `watermark_ms`: the latest time counted. `late`: entries that came after their minute was over.
ALTER TABLE tape_rollup_position ADD COLUMN since_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tape_rollup_position ADD COLUMN watermark_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tape_rollup_position ADD COLUMN late BIGINT NOT NULL DEFAULT 0;
UPDATE tape_rollup_position SET global_seq = 0;
