-- Secrets by alias. Each is sealed with a data key of its own, which a master key outside of this database wraps.
-- Of an alias the newest version counts; an older one is there while it may still be used, until retires_at_ms.
CREATE TABLE tape_secrets (
    alias          TEXT    COLLATE "C" NOT NULL,
    version        BIGINT  NOT NULL,
    master_key     TEXT    NOT NULL,
    wrapped_key    BYTEA   NOT NULL,
    sealed         BYTEA   NOT NULL,
    set_at_ms      BIGINT  NOT NULL,
    sealed_at_ms   BIGINT  NOT NULL,
    retires_at_ms  BIGINT  NOT NULL DEFAULT 0,
    PRIMARY KEY (alias, version)
);
