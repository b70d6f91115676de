-- What one session may see, in order. Entries without a session are not in it.
CREATE INDEX tape_journal_identity ON tape_journal (tenant, "user", session, global_seq) WHERE session <> '';

-- How many entries of each type there were, by minute and identity: a projection of the journal.
CREATE TABLE tape_counts (
    minute     BIGINT  NOT NULL,
    tenant     TEXT    COLLATE "C" NOT NULL,
    "user"     TEXT    COLLATE "C" NOT NULL,
    session    TEXT    COLLATE "C" NOT NULL,
    type       TEXT    COLLATE "C" NOT NULL,
    entries    BIGINT  NOT NULL,
    PRIMARY KEY (tenant, "user", session, minute, type)
);
CREATE INDEX tape_counts_minute ON tape_counts (minute);

-- The global_seq up to which entries are in tape_counts.
CREATE TABLE tape_counted (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    global_seq  BIGINT  NOT NULL
);
INSERT INTO tape_counted VALUES (1, 0);
