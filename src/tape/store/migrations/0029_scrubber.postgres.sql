-- The positions of the scrubber in the journal and in the archive, with the chain values there, and its lease.
CREATE TABLE tape_scrub (
    id               INTEGER PRIMARY KEY CHECK (id = 1),
    global_seq       BIGINT  NOT NULL DEFAULT 0,
    chain            BYTEA   NOT NULL DEFAULT '',
    archive_seq      BIGINT  NOT NULL DEFAULT 0,
    archive_chain    BYTEA   NOT NULL DEFAULT '',
    rounds           BIGINT  NOT NULL DEFAULT 0,
    finished_ms      BIGINT  NOT NULL DEFAULT 0,
    lease_owner      TEXT    COLLATE "C" NOT NULL DEFAULT '',
    lease_until_ms   BIGINT  NOT NULL DEFAULT 0
);
INSERT INTO tape_scrub (id) VALUES (1);
