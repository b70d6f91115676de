-- Which journal this is, and how often its numbers had to be continued after a cut. The first epoch is 1.
ALTER TABLE tape_head ADD COLUMN journal_id TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE tape_head ADD COLUMN epoch BIGINT NOT NULL DEFAULT 1;
UPDATE tape_head SET journal_id = replace(gen_random_uuid()::text, '-', '');

-- Each epoch after the first: entries after `cut_after` were lost, up to `last_known` as far as is known. The numbers between
-- `cut_after` and `resumes_at` are never given to entries.
CREATE TABLE tape_epochs (
    epoch       BIGINT  PRIMARY KEY,
    cut_after   BIGINT  NOT NULL,
    resumes_at  BIGINT  NOT NULL,
    last_known  BIGINT  NOT NULL,
    cause       TEXT    NOT NULL,
    ts_ms       BIGINT  NOT NULL
);

-- The seqs of runs that were lost with them: between `after_seq` and `resumes_at` a run has no entry.
CREATE TABLE tape_run_gaps (
    run_id      TEXT    COLLATE "C" NOT NULL,
    tenant      TEXT    COLLATE "C" NOT NULL,
    epoch       BIGINT  NOT NULL,
    after_seq   BIGINT  NOT NULL,
    resumes_at  BIGINT  NOT NULL,
    PRIMARY KEY (run_id, tenant, epoch)
);

-- A checksum over the other columns. Entries from before have none until the scrubber has verified them.
ALTER TABLE tape_journal ADD COLUMN checksum BIGINT;
