-- Secrets by alias. Each is sealed with a data key of its own, which a master key outside of this database wraps.
-- Of an alias the newest version counts; an older one is there while it may still be used, until retires_at_ms.
CREATE TABLE tape_secrets (
    alias          TEXT    NOT NULL,
    version        INTEGER NOT NULL,
    master_key     TEXT    NOT NULL,
    wrapped_key    BLOB    NOT NULL,
    sealed         BLOB    NOT NULL,
    set_at_ms      INTEGER NOT NULL,
    sealed_at_ms   INTEGER NOT NULL,
    retires_at_ms  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (alias, version)
) STRICT, WITHOUT ROWID;
