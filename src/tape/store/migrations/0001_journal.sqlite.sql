CREATE TABLE tape_migrations (
    number         INTEGER PRIMARY KEY,
    name           TEXT    NOT NULL,
    applied_at_ms  INTEGER NOT NULL
) STRICT;

-- What happened, in one global order.
CREATE TABLE tape_journal (
    global_seq      INTEGER PRIMARY KEY,
    run_id          TEXT    NOT NULL,
    seq             INTEGER NOT NULL,
    kind            TEXT    NOT NULL,
    subject         TEXT    NOT NULL DEFAULT '',
    payload_json    TEXT    NOT NULL,
    schema_version  INTEGER NOT NULL DEFAULT 1,
    trace_id        TEXT    NOT NULL DEFAULT '',
    span_id         TEXT    NOT NULL DEFAULT '',
    parent_span_id  TEXT    NOT NULL DEFAULT '',
    ts_ms           INTEGER NOT NULL,
    tenant          TEXT    NOT NULL DEFAULT '',
    "user"          TEXT    NOT NULL DEFAULT '',
    session         TEXT    NOT NULL DEFAULT '',
    chain           BLOB    NOT NULL,
    UNIQUE (run_id, seq)
) STRICT;
CREATE INDEX tape_journal_subject ON tape_journal (subject, global_seq);

-- The newest and the oldest end of the journal. `anchor` is the chain value just before `oldest`.
CREATE TABLE tape_head (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    global_seq  INTEGER NOT NULL,
    chain       BLOB    NOT NULL,
    ts_ms       INTEGER NOT NULL,
    oldest      INTEGER NOT NULL,
    anchor      BLOB    NOT NULL
) STRICT;
INSERT INTO tape_head VALUES (1, 0, zeroblob(32), 0, 1, zeroblob(32));
CREATE VIEW tape_global_seq AS SELECT id, global_seq AS v FROM tape_head;

-- The last seq of every run.
CREATE TABLE tape_run_heads (
    run_id  TEXT    PRIMARY KEY,
    seq     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Append requests that were carried out, so that a repeated one is answered and not done again.
CREATE TABLE tape_append_requests (
    request_id        TEXT    PRIMARY KEY,
    first_global_seq  INTEGER NOT NULL,
    entries           INTEGER NOT NULL,
    ts_ms             INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tape_append_requests_ts ON tape_append_requests (ts_ms);

CREATE TABLE tape_values (
    namespace   TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    value_json  TEXT    NOT NULL DEFAULT '',
    version     INTEGER NOT NULL DEFAULT 0,
    ts_ms       INTEGER NOT NULL,
    writer      TEXT    NOT NULL DEFAULT '',
    deleted     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;
