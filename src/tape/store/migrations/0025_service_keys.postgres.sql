-- Service keys: one row for each secret, which is stored as a SHA-256 digest only. A rotation adds a row and sets the end
-- of the row before it. Times are 0 where there is none. `version` is that of tape_access_version at the last change.
CREATE TABLE tape_service_keys (
    key_id           text COLLATE "C" NOT NULL PRIMARY KEY,
    tenant           text COLLATE "C" NOT NULL,
    name             text COLLATE "C" NOT NULL,
    digest           text COLLATE "C" NOT NULL,
    user_id          text COLLATE "C" NOT NULL,
    scopes           text COLLATE "C" NOT NULL,
    read_patterns    text COLLATE "C" NOT NULL,
    write_patterns   text COLLATE "C" NOT NULL,
    created_at_ms    bigint NOT NULL,
    created_by       text COLLATE "C" NOT NULL,
    expires_at_ms    bigint NOT NULL DEFAULT 0,
    retires_at_ms    bigint NOT NULL DEFAULT 0,
    revoked_at_ms    bigint NOT NULL DEFAULT 0,
    last_used_at_ms  bigint NOT NULL DEFAULT 0,
    version          bigint NOT NULL
);
CREATE UNIQUE INDEX tape_service_keys_name ON tape_service_keys (tenant, name)
    WHERE retires_at_ms = 0 AND revoked_at_ms = 0;
CREATE INDEX tape_service_keys_order ON tape_service_keys (tenant, name, key_id);
CREATE INDEX tape_service_keys_version ON tape_service_keys (version);

-- Tokens that are rejected although their signature is good, by tenant and `jti`, until they have expired anyway.
CREATE TABLE tape_revoked_tokens (
    tenant         text COLLATE "C" NOT NULL,
    jti            text COLLATE "C" NOT NULL,
    until_ms       bigint NOT NULL,
    revoked_at_ms  bigint NOT NULL,
    revoked_by     text COLLATE "C" NOT NULL,
    version        bigint NOT NULL,
    PRIMARY KEY (tenant, jti)
);
CREATE INDEX tape_revoked_tokens_version ON tape_revoked_tokens (version);
CREATE INDEX tape_revoked_tokens_until ON tape_revoked_tokens (until_ms);

-- Counts changes of both tables: a server reads only the rows that are newer than what it knows.
CREATE TABLE tape_access_version (
    id       integer NOT NULL PRIMARY KEY CHECK (id = 1),
    version  bigint NOT NULL
);
INSERT INTO tape_access_version VALUES (1, 0);
