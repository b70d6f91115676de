-- The positions of the scrubber in the journal and in the archive, with the chain values there, and its lease.
CREATE TABLE tape_scrub (
    id               INTEGER PRIMARY KEY CHECK (id = 1),
    global_seq       INTEGER NOT NULL DEFAULT 0,
    chain            BLOB    NOT NULL DEFAULT x'',
    archive_seq      INTEGER NOT NULL DEFAULT 0,
    archive_chain    BLOB    NOT NULL DEFAULT x'',
    rounds           INTEGER NOT NULL DEFAULT 0,
    finished_ms      INTEGER NOT NULL DEFAULT 0,
    lease_owner      TEXT    NOT NULL DEFAULT '',
    lease_until_ms   INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO tape_scrub (id) VALUES (1);
