-- The last backup to each location, as `tape info` shows it. The backup's manifest is the authority.
CREATE TABLE tape_backups (
    location    TEXT    COLLATE "C" PRIMARY KEY,
    global_seq  BIGINT  NOT NULL,
    epoch       BIGINT  NOT NULL,
    created_ms  BIGINT  NOT NULL,
    snapshot    TEXT    NOT NULL
);
