-- Registrations of subscriptions and where each stands. A path has one that is alive at most.
CREATE TABLE tape_subscriptions (
    subscription_id INTEGER PRIMARY KEY,
    path            TEXT    NOT NULL,
    catalog_id      INTEGER NOT NULL,
    state           TEXT    NOT NULL,
    last_event_type TEXT    NOT NULL,
    updated_at_ms   INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX tape_subscriptions_live ON tape_subscriptions (path) WHERE state <> 'DEACTIVATED';
CREATE INDEX tape_subscriptions_path ON tape_subscriptions (path, subscription_id);
