-- Service keys: one row for each secret, which is stored as a SHA-256 digest only. A rotation adds a row and sets the end
-- of the row before it. Times are 0 where there is none. `version` is that of tape_access_version at the last change.
CREATE TABLE tape_service_keys (
    key_id           TEXT    NOT NULL PRIMARY KEY,
    tenant           TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    digest           TEXT    NOT NULL,
    user_id          TEXT    NOT NULL,
    scopes           TEXT    NOT NULL,
    read_patterns    TEXT    NOT NULL,
    write_patterns   TEXT    NOT NULL,
    created_at_ms    INTEGER NOT NULL,
    created_by       TEXT    NOT NULL,
    expires_at_ms    INTEGER NOT NULL DEFAULT 0,
    retires_at_ms    INTEGER NOT NULL DEFAULT 0,
    revoked_at_ms    INTEGER NOT NULL DEFAULT 0,
    last_used_at_ms  INTEGER NOT NULL DEFAULT 0,
    version          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX tape_service_keys_name ON tape_service_keys (tenant, name)
    WHERE retires_at_ms = 0 AND revoked_at_ms = 0;
CREATE INDEX tape_service_keys_order ON tape_service_keys (tenant, name, key_id);
CREATE INDEX tape_service_keys_version ON tape_service_keys (version);

-- Tokens that are rejected although their signature is good, by tenant and `jti`, until they have expired anyway.
CREATE TABLE tape_revoked_tokens (
    tenant         TEXT    NOT NULL,
    jti            TEXT    NOT NULL,
    until_ms       INTEGER NOT NULL,
    revoked_at_ms  INTEGER NOT NULL,
    revoked_by     TEXT    NOT NULL,
    version        INTEGER NOT NULL,
    PRIMARY KEY (tenant, jti)
) STRICT, WITHOUT ROWID;
CREATE INDEX tape_revoked_tokens_version ON tape_revoked_tokens (version);
CREATE INDEX tape_revoked_tokens_until ON tape_revoked_tokens (until_ms);

-- Counts changes of both tables: a server reads only the rows that are newer than what it knows.
CREATE TABLE tape_access_version (
    id       INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    version  INTEGER NOT NULL
) STRICT;
INSERT INTO tape_access_version VALUES (1, 0);
