-- Documents that users register, every version of each; the latest of a path is the one that counts.
CREATE TABLE tape_catalog (
    catalog_id  INTEGER PRIMARY KEY,
    path        TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    kind        TEXT    NOT NULL,
    content     TEXT    NOT NULL,
    labels_json TEXT    NOT NULL,
    ts_ms       INTEGER NOT NULL,
    is_latest   INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX tape_catalog_path ON tape_catalog (path, version);
CREATE UNIQUE INDEX tape_catalog_current ON tape_catalog (path) WHERE is_latest = 1;
CREATE INDEX tape_catalog_latest ON tape_catalog (kind, path) WHERE is_latest = 1;

-- Which message already has its run: one row a key for as long as its window.
CREATE TABLE tape_dedup (
    scope         TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    execution_id  TEXT    NOT NULL,
    claimed_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX tape_dedup_expiry ON tape_dedup (expires_at_ms);

-- Runs of playbooks are brought back by their tasks; recovery does not have to step over them.
CREATE INDEX tape_runs_to_recover ON tape_runs (status, lease_expires_at_ms) WHERE app_name <> 'playbooks';
