-- Registrations of subscriptions and where each stands. A path has one that is alive at most.
CREATE TABLE tape_subscriptions (
    subscription_id BIGINT PRIMARY KEY,
    path            TEXT   COLLATE "C" NOT NULL,
    catalog_id      BIGINT NOT NULL,
    state           TEXT   COLLATE "C" NOT NULL,
    last_event_type TEXT   COLLATE "C" NOT NULL,
    updated_at_ms   BIGINT NOT NULL
);
CREATE UNIQUE INDEX tape_subscriptions_live ON tape_subscriptions (path) WHERE state <> 'DEACTIVATED';
CREATE INDEX tape_subscriptions_path ON tape_subscriptions (path, subscription_id);
