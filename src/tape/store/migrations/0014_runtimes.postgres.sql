-- Which server runs a subscription, until when unless it says so again, and when a scheduled one is due next.
CREATE TABLE tape_subscription_runtimes (
    path     TEXT   COLLATE "C" PRIMARY KEY,
    holder   TEXT   COLLATE "C" NOT NULL,
    until_ms BIGINT NOT NULL,
    due_ms   BIGINT NOT NULL
);
