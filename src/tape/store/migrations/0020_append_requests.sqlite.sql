-- Request ids are unique per tenant, and a repeated one must have the same content: `digest` is over subject, run and
-- payload, empty where the first write wins. Requests from before this migration answer any tenant.
CREATE TABLE tape_append_requests_new (
    request_id        TEXT    NOT NULL,
    tenant            TEXT    NOT NULL,
    first_global_seq  INTEGER NOT NULL,
    entries           INTEGER NOT NULL,
    ts_ms             INTEGER NOT NULL,
    digest            BLOB    NOT NULL,
    any_tenant        INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (request_id, tenant)
) STRICT, WITHOUT ROWID;
INSERT INTO tape_append_requests_new
    SELECT request_id, '', first_global_seq, entries, ts_ms, x'', 1 FROM tape_append_requests;
DROP TABLE tape_append_requests;
ALTER TABLE tape_append_requests_new RENAME TO tape_append_requests;
CREATE INDEX tape_append_requests_ts ON tape_append_requests (ts_ms);
