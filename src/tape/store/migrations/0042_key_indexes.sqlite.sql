-- Entries by subject and by identity, in blocks of 16,384 numbers: the first column is the number divided by that.
-- A commit of a few entries would write a page for nearly each of them into one large tree. So they are added behind the
-- commits, some thousands at a time and in order, and only to the pages of the newest block.
CREATE TABLE tape_journal_subjects (
    block       INTEGER NOT NULL,
    subject     TEXT    NOT NULL,
    global_seq  INTEGER NOT NULL,
    PRIMARY KEY (block, subject, global_seq)
) STRICT, WITHOUT ROWID;
INSERT INTO tape_journal_subjects
    SELECT global_seq >> 14, subject, global_seq FROM tape_journal INDEXED BY tape_journal_subject
    ORDER BY subject, global_seq;

-- Entries without a session are not in it.
CREATE TABLE tape_journal_identities (
    block       INTEGER NOT NULL,
    tenant      TEXT    NOT NULL,
    "user"      TEXT    NOT NULL,
    session     TEXT    NOT NULL,
    global_seq  INTEGER NOT NULL,
    PRIMARY KEY (block, tenant, "user", session, global_seq)
) STRICT, WITHOUT ROWID;
INSERT INTO tape_journal_identities
    SELECT global_seq >> 14, tenant, "user", session, global_seq FROM tape_journal INDEXED BY tape_journal_identity
    WHERE session <> '' ORDER BY tenant, "user", session, global_seq;

-- The blocks, and the number up to which entries are in both tables. That of the last block is the watermark.
CREATE TABLE tape_journal_blocks (
    block     INTEGER PRIMARY KEY,
    last_seq  INTEGER NOT NULL
) STRICT;
INSERT INTO tape_journal_blocks SELECT global_seq >> 14, max(global_seq) FROM tape_journal GROUP BY global_seq >> 14;

DROP INDEX tape_journal_subject;
DROP INDEX tape_journal_identity;

-- Requests expire by a scan, so that an append changes one page less.
DROP INDEX tape_append_requests_ts;
