-- The last backup to each location, as `tape info` shows it. The backup's manifest is the authority.
CREATE TABLE tape_backups (
    location    TEXT    PRIMARY KEY,
    global_seq  INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    created_ms  INTEGER NOT NULL,
    snapshot    TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
