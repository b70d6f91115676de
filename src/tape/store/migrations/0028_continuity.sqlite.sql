-- Which journal this is, and how often its numbers had to be continued after a cut. The first epoch is 1.
ALTER TABLE tape_head ADD COLUMN journal_id TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_head ADD COLUMN epoch INTEGER NOT NULL DEFAULT 1;
UPDATE tape_head SET journal_id = lower(hex(randomblob(16)));

-- Each epoch after the first: entries after `cut_after` were lost, up to `last_known` as far as is known. The numbers between
-- `cut_after` and `resumes_at` are never given to entries.
CREATE TABLE tape_epochs (
    epoch       INTEGER PRIMARY KEY,
    cut_after   INTEGER NOT NULL,
    resumes_at  INTEGER NOT NULL,
    last_known  INTEGER NOT NULL,
    cause       TEXT    NOT NULL,
    ts_ms       INTEGER NOT NULL
) STRICT;

-- The seqs of runs that were lost with them: between `after_seq` and `resumes_at` a run has no entry.
CREATE TABLE tape_run_gaps (
    run_id      TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    epoch       INTEGER NOT NULL,
    after_seq   INTEGER NOT NULL,
    resumes_at  INTEGER NOT NULL,
    PRIMARY KEY (run_id, tenant, epoch)
) STRICT, WITHOUT ROWID;

-- A checksum over the other columns. Entries from before have none until the scrubber has verified them.
ALTER TABLE tape_journal ADD COLUMN checksum INTEGER;
