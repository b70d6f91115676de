-- What one session may see, in order. Entries without a session are not in it.
CREATE INDEX tape_journal_identity ON tape_journal (tenant, "user", session, global_seq) WHERE session <> '';

-- How many entries of each type there were, by slot (ten seconds) and identity: a projection of the journal.
-- What is counted later is added in rows of its own; sums are taken when somebody asks.
CREATE TABLE tape_counts (
    slot       INTEGER NOT NULL,
    tenant     TEXT    NOT NULL,
    "user"     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    entries    INTEGER NOT NULL
) STRICT;
CREATE INDEX tape_counts_identity ON tape_counts (tenant, "user", session, slot);
CREATE INDEX tape_counts_slot ON tape_counts (slot);

-- Which entries a slot has: global_seq and time go up together.
CREATE TABLE tape_slots (
    slot       INTEGER NOT NULL,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL
) STRICT;
CREATE INDEX tape_slots_slot ON tape_slots (slot);

-- The global_seq up to which entries are in both.
CREATE TABLE tape_counted (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    global_seq  INTEGER NOT NULL
) STRICT;
INSERT INTO tape_counted VALUES (1, 0);
