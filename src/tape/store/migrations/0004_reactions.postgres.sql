-- What entries trigger. The columns up to `deleted` are a contract with tools; the rest is ours.
CREATE TABLE tape_reactions (
    reaction_id       TEXT COLLATE "C" PRIMARY KEY,
    name              TEXT    NOT NULL DEFAULT '',
    subject_pattern   TEXT    NOT NULL,
    predicate_cel     TEXT    NOT NULL DEFAULT '',
    handler_kind      INTEGER NOT NULL,
    agent_app         TEXT    NOT NULL DEFAULT '',
    publish_target    TEXT    NOT NULL DEFAULT '',
    max_concurrency   INTEGER NOT NULL DEFAULT 1,
    rate_limit_per_s  INTEGER NOT NULL DEFAULT 0,
    debounce_ms       INTEGER NOT NULL DEFAULT 0,
    retry_max         INTEGER NOT NULL DEFAULT 5,
    retry_backoff_ms  INTEGER NOT NULL DEFAULT 1000,
    dlq_after_n       INTEGER NOT NULL DEFAULT 5,
    num_shards        INTEGER NOT NULL DEFAULT 1,
    created_at_ms     BIGINT  NOT NULL,
    deleted           INTEGER NOT NULL DEFAULT 0,
    allow_self        INTEGER NOT NULL DEFAULT 0,
    strict_order      INTEGER NOT NULL DEFAULT 0,
    updated_at_ms     BIGINT  NOT NULL DEFAULT 0,
    version           BIGINT  NOT NULL DEFAULT 0
);
CREATE INDEX tape_reactions_version ON tape_reactions (version);

-- Counts the changes of tape_reactions: whoever matches must have seen the latest.
CREATE TABLE tape_reaction_catalog (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    version  BIGINT  NOT NULL
);
INSERT INTO tape_reaction_catalog VALUES (1, 0);

-- How far each shard of each reaction has been matched. While `behind` is 0 that is at least the position
-- of its lane, and the row is brought up to date in passing.
CREATE TABLE tape_reaction_cursors (
    reaction_id           TEXT COLLATE "C" NOT NULL,
    shard                 INTEGER NOT NULL,
    last_global_seq       BIGINT  NOT NULL DEFAULT 0,
    last_processed_at_ms  BIGINT  NOT NULL DEFAULT 0,
    lane                  INTEGER NOT NULL DEFAULT 0,
    behind                INTEGER NOT NULL DEFAULT 0,
    matched               BIGINT  NOT NULL DEFAULT 0,
    suppressed            BIGINT  NOT NULL DEFAULT 0,
    errors                BIGINT  NOT NULL DEFAULT 0,
    last_error            TEXT    NOT NULL DEFAULT '',
    last_error_seq        BIGINT  NOT NULL DEFAULT 0,
    PRIMARY KEY (reaction_id, shard)
);
CREATE INDEX tape_reaction_cursors_lane ON tape_reaction_cursors (lane, behind);

-- The shards of all reactions are spread over lanes; a server matches those lanes that it has leased.
CREATE TABLE tape_reaction_lanes (
    lane           INTEGER PRIMARY KEY,
    position       BIGINT  NOT NULL DEFAULT 0,
    owner          TEXT    NOT NULL DEFAULT '',
    expires_at_ms  BIGINT  NOT NULL DEFAULT 0
);
INSERT INTO tape_reaction_lanes (lane) SELECT generate_series(0, 15);

-- The servers that match at present.
CREATE TABLE tape_matchers (
    owner          TEXT    PRIMARY KEY,
    expires_at_ms  BIGINT  NOT NULL
);

-- Work for dispatchers. The columns up to `parent_span_id` are a contract with tools; the rest is ours.
CREATE TABLE tape_tasks (
    task_id              TEXT COLLATE "C" PRIMARY KEY,
    reaction_id          TEXT COLLATE "C" NOT NULL,
    shard                INTEGER NOT NULL DEFAULT 0,
    source_run_id        TEXT    NOT NULL,
    source_global_seq    BIGINT  NOT NULL,
    subject              TEXT COLLATE "C" NOT NULL,
    payload_json         TEXT    NOT NULL DEFAULT '',
    status               INTEGER NOT NULL,
    attempts             INTEGER NOT NULL DEFAULT 0,
    next_attempt_at_ms   BIGINT  NOT NULL DEFAULT 0,
    lease_owner          TEXT    NOT NULL DEFAULT '',
    lease_expires_at_ms  BIGINT  NOT NULL DEFAULT 0,
    last_error           TEXT    NOT NULL DEFAULT '',
    created_at_ms        BIGINT  NOT NULL,
    completed_at_ms      BIGINT  NOT NULL DEFAULT 0,
    trace_id             TEXT    NOT NULL DEFAULT '',
    parent_span_id       TEXT    NOT NULL DEFAULT '',
    first_global_seq     BIGINT  NOT NULL DEFAULT 0,
    coalesced            INTEGER NOT NULL DEFAULT 0,
    redriven             INTEGER NOT NULL DEFAULT 0,
    debounced            INTEGER NOT NULL DEFAULT 0,
    strict_order         INTEGER NOT NULL DEFAULT 0,
    source_seq           BIGINT  NOT NULL DEFAULT 0,
    source_ts_ms         BIGINT  NOT NULL DEFAULT 0,
    schema_version       INTEGER NOT NULL DEFAULT 1,
    UNIQUE (reaction_id, source_global_seq, shard)
);
CREATE INDEX tape_tasks_due ON tape_tasks (reaction_id, next_attempt_at_ms, source_global_seq) WHERE status = 1;
CREATE INDEX tape_tasks_leased ON tape_tasks (reaction_id, lease_expires_at_ms) WHERE status = 2;
CREATE INDEX tape_tasks_closed ON tape_tasks (completed_at_ms) WHERE status IN (3, 4);
CREATE INDEX tape_tasks_dead ON tape_tasks (reaction_id, source_global_seq) WHERE status = 5;
CREATE INDEX tape_tasks_debounced ON tape_tasks (reaction_id, subject) WHERE debounced = 1 AND status = 1;
CREATE INDEX tape_tasks_strict ON tape_tasks (reaction_id, shard, source_global_seq)
    WHERE strict_order = 1 AND status IN (1, 2);

-- When the next task of a reaction with a rate limit may be handed out, in microseconds.
CREATE TABLE tape_reaction_pace (
    reaction_id  TEXT COLLATE "C" PRIMARY KEY,
    next_us      BIGINT  NOT NULL
);

-- Entries that the work of a reaction wrote, as the client says.
CREATE TABLE tape_entry_causes (
    global_seq   BIGINT  PRIMARY KEY,
    reaction_id  TEXT    NOT NULL
);
