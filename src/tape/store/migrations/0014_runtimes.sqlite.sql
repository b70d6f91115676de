-- Which server runs a subscription, until when unless it says so again, and when a scheduled one is due next.
CREATE TABLE tape_subscription_runtimes (
    path     TEXT    PRIMARY KEY,
    holder   TEXT    NOT NULL,
    until_ms INTEGER NOT NULL,
    due_ms   INTEGER NOT NULL
) STRICT;
