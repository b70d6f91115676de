CREATE TABLE tape_migrations (
    number         INTEGER PRIMARY KEY,
    name           TEXT    NOT NULL,
    applied_at_ms  BIGINT  NOT NULL
);

-- What happened, in one global order. Identifiers sort by bytes, so that a prefix is a range.
CREATE TABLE tape_journal (
    global_seq      BIGINT   PRIMARY KEY,
    run_id          TEXT     COLLATE "C" NOT NULL,
    seq             BIGINT   NOT NULL,
    kind            TEXT     NOT NULL,
    subject         TEXT     COLLATE "C" NOT NULL DEFAULT '',
    payload_json    TEXT     NOT NULL,
    schema_version  INTEGER  NOT NULL DEFAULT 1,
    trace_id        TEXT     NOT NULL DEFAULT '',
    span_id         TEXT     NOT NULL DEFAULT '',
    parent_span_id  TEXT     NOT NULL DEFAULT '',
    ts_ms           BIGINT   NOT NULL,
    tenant          TEXT     NOT NULL DEFAULT '',
    "user"          TEXT     NOT NULL DEFAULT '',
    session         TEXT     NOT NULL DEFAULT '',
    chain           BYTEA    NOT NULL,
    UNIQUE (run_id, seq)
);
CREATE INDEX tape_journal_subject ON tape_journal (subject, global_seq);

-- One wake-up per insert statement, not per row: listeners drain by cursor, so the newest row is enough.
CREATE FUNCTION tape_journal_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tape_journal', global_seq || ':' || subject)
    FROM inserted ORDER BY global_seq DESC LIMIT 1;
    RETURN NULL;
END $$;
CREATE TRIGGER tape_journal_notify AFTER INSERT ON tape_journal
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION tape_journal_notify();

-- The newest and the oldest end of the journal. `anchor` is the chain value just before `oldest`.
CREATE TABLE tape_head (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    global_seq  BIGINT  NOT NULL,
    chain       BYTEA   NOT NULL,
    ts_ms       BIGINT  NOT NULL,
    oldest      BIGINT  NOT NULL,
    anchor      BYTEA   NOT NULL
);
INSERT INTO tape_head VALUES (1, 0, decode(repeat('00', 32), 'hex'), 0, 1, decode(repeat('00', 32), 'hex'));

-- The last seq of every run.
CREATE TABLE tape_run_heads (
    run_id  TEXT    COLLATE "C" PRIMARY KEY,
    seq     BIGINT  NOT NULL
);

-- Append requests that were carried out, so that a repeated one is answered and not done again.
CREATE TABLE tape_append_requests (
    request_id        TEXT    COLLATE "C" PRIMARY KEY,
    first_global_seq  BIGINT  NOT NULL,
    entries           INTEGER NOT NULL,
    ts_ms             BIGINT  NOT NULL
);
CREATE INDEX tape_append_requests_ts ON tape_append_requests (ts_ms);

CREATE TABLE tape_values (
    namespace   TEXT    COLLATE "C" NOT NULL,
    key         TEXT    COLLATE "C" NOT NULL,
    value_json  TEXT    NOT NULL DEFAULT '',
    version     BIGINT  NOT NULL DEFAULT 0,
    ts_ms       BIGINT  NOT NULL,
    writer      TEXT    NOT NULL DEFAULT '',
    deleted     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, key)
);
