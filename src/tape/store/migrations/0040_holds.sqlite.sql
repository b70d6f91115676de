-- Why a subscription is held, as a JSON list of reasons ('' if it is not), and since when.
ALTER TABLE tape_subscriptions ADD COLUMN held_reasons TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_subscriptions ADD COLUMN held_at_ms INTEGER NOT NULL DEFAULT 0;
