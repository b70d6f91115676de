-- Session ids and shared state are unique per tenant. What is there already belongs to no tenant, as on an open server.
-- The tenant precedes ord, event_id and key, so that a session never reads past the events of another tenant.
ALTER TABLE tape_sessions ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE tape_sessions DROP CONSTRAINT tape_sessions_pkey;
ALTER TABLE tape_sessions ADD PRIMARY KEY (app_name, user_id, session_id, tenant);

ALTER TABLE tape_events ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE tape_events DROP CONSTRAINT tape_events_pkey;
ALTER TABLE tape_events ADD PRIMARY KEY (app_name, user_id, session_id, tenant, ord);
DROP INDEX tape_events_id;
CREATE INDEX tape_events_id ON tape_events (app_name, user_id, session_id, tenant, event_id);

ALTER TABLE tape_scoped_state ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE tape_scoped_state DROP CONSTRAINT tape_scoped_state_pkey;
ALTER TABLE tape_scoped_state ADD PRIMARY KEY (app_name, scope, scope_key, tenant, key);
