-- Session ids and shared state are unique per tenant. What is there already belongs to no tenant, as on an open server.
-- The tenant precedes ord, event_id and key, so that a session never reads past the events of another tenant.
CREATE TABLE tape_sessions_new (
    app_name             TEXT    NOT NULL,
    user_id              TEXT    NOT NULL,
    session_id           TEXT    NOT NULL,
    tenant               TEXT    NOT NULL DEFAULT '',
    state_json           TEXT    NOT NULL DEFAULT '{}',
    last_update_time_ms  INTEGER NOT NULL,
    PRIMARY KEY (app_name, user_id, session_id, tenant)
) STRICT;
INSERT INTO tape_sessions_new
    SELECT app_name, user_id, session_id, '', state_json, last_update_time_ms FROM tape_sessions;
DROP TABLE tape_sessions;
ALTER TABLE tape_sessions_new RENAME TO tape_sessions;

CREATE TABLE tape_events_new (
    app_name       TEXT    NOT NULL,
    user_id        TEXT    NOT NULL,
    session_id     TEXT    NOT NULL,
    tenant         TEXT    NOT NULL DEFAULT '',
    ord            INTEGER NOT NULL,
    event_id       TEXT    NOT NULL,
    invocation_id  TEXT    NOT NULL DEFAULT '',
    author         TEXT    NOT NULL DEFAULT '',
    branch         TEXT    NOT NULL DEFAULT '',
    content_json   TEXT    NOT NULL DEFAULT '',
    actions_json   TEXT    NOT NULL DEFAULT '',
    timestamp_ms   INTEGER NOT NULL,
    PRIMARY KEY (app_name, user_id, session_id, tenant, ord)
) STRICT;
INSERT INTO tape_events_new
    SELECT app_name, user_id, session_id, '', ord, event_id, invocation_id, author, branch, content_json, actions_json,
           timestamp_ms
    FROM tape_events;
DROP TABLE tape_events;
ALTER TABLE tape_events_new RENAME TO tape_events;
CREATE INDEX tape_events_id ON tape_events (app_name, user_id, session_id, tenant, event_id);

CREATE TABLE tape_scoped_state_new (
    app_name    TEXT NOT NULL,
    scope       TEXT NOT NULL,
    scope_key   TEXT NOT NULL,
    tenant      TEXT NOT NULL DEFAULT '',
    key         TEXT NOT NULL,
    value_json  TEXT NOT NULL,
    PRIMARY KEY (app_name, scope, scope_key, tenant, key)
) STRICT;
INSERT INTO tape_scoped_state_new SELECT app_name, scope, scope_key, '', key, value_json FROM tape_scoped_state;
DROP TABLE tape_scoped_state;
ALTER TABLE tape_scoped_state_new RENAME TO tape_scoped_state;
