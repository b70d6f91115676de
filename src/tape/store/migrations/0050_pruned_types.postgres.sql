-- The last entry of each identity and type that retention removed, so that a stream gets a notice of its own loss only.
-- A row without a type stands for what was removed before this was recorded: whose entries these were is not known.
CREATE TABLE tape_pruned_types (
    tenant    TEXT    COLLATE "C" NOT NULL,
    "user"    TEXT    COLLATE "C" NOT NULL,
    session   TEXT    COLLATE "C" NOT NULL,
    type      TEXT    COLLATE "C" NOT NULL,
    last_seq  BIGINT  NOT NULL,
    PRIMARY KEY (tenant, "user", session, type)
);
INSERT INTO tape_pruned_types SELECT '', '', '', '', oldest - 1 FROM tape_head WHERE id = 1 AND oldest > 1;
