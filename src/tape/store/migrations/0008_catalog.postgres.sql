-- Documents that users register, every version of each; the latest of a path is the one that counts.
CREATE TABLE tape_catalog (
    catalog_id  BIGINT  PRIMARY KEY,
    path        TEXT    COLLATE "C" NOT NULL,
    version     INTEGER NOT NULL,
    kind        TEXT    COLLATE "C" NOT NULL,
    content     TEXT    NOT NULL,
    labels_json TEXT    NOT NULL,
    ts_ms       BIGINT  NOT NULL,
    is_latest   INTEGER NOT NULL
);
CREATE UNIQUE INDEX tape_catalog_path ON tape_catalog (path, version);
CREATE UNIQUE INDEX tape_catalog_current ON tape_catalog (path) WHERE is_latest = 1;
CREATE INDEX tape_catalog_latest ON tape_catalog (kind, path) WHERE is_latest = 1;

-- Which message already has its run: one row a key for as long as its window.
CREATE TABLE tape_dedup (
    scope         TEXT    COLLATE "C" NOT NULL,
    key           TEXT    COLLATE "C" NOT NULL,
    execution_id  TEXT    COLLATE "C" NOT NULL,
    claimed_at_ms BIGINT  NOT NULL,
    expires_at_ms BIGINT  NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX tape_dedup_expiry ON tape_dedup (expires_at_ms);

-- Runs of playbooks are brought back by their tasks; recovery does not have to step over them.
CREATE INDEX tape_runs_to_recover ON tape_runs (status, lease_expires_at_ms) WHERE app_name <> 'playbooks';
