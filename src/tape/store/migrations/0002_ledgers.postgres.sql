CREATE TABLE tape_runs (
    run_id               TEXT COLLATE "C" PRIMARY KEY,
    app_name             TEXT COLLATE "C" NOT NULL,
    user_id              TEXT COLLATE "C" NOT NULL,
    session_id           TEXT COLLATE "C" NOT NULL,
    invocation_id        TEXT COLLATE "C" NOT NULL,
    status               INTEGER NOT NULL,
    seq_cursor           BIGINT  NOT NULL DEFAULT 0,
    lease_owner          TEXT    NOT NULL DEFAULT '',
    lease_expires_at_ms  BIGINT  NOT NULL DEFAULT 0,
    waiting_on_gate      TEXT    NOT NULL DEFAULT '',
    detail_json          TEXT    NOT NULL DEFAULT '',
    started_at_ms        BIGINT  NOT NULL,
    ended_at_ms          BIGINT  NOT NULL DEFAULT 0,
    tenant_id            TEXT    NOT NULL DEFAULT '',
    actor                TEXT    NOT NULL DEFAULT '',
    subject              TEXT    NOT NULL DEFAULT '',
    agent_id             TEXT    NOT NULL DEFAULT '',
    aiplex_instance_id   TEXT    NOT NULL DEFAULT '',
    gateway_route        TEXT    NOT NULL DEFAULT '',
    scopes_json          TEXT    NOT NULL DEFAULT '[]',
    labels_json          TEXT    NOT NULL DEFAULT '{}',
    compacted_at_ms      BIGINT  NOT NULL DEFAULT 0,
    UNIQUE (app_name, user_id, session_id, invocation_id)
);
CREATE INDEX tape_runs_recover ON tape_runs (status, lease_expires_at_ms);
CREATE INDEX tape_runs_route ON tape_runs (app_name, user_id, session_id, started_at_ms);
CREATE INDEX tape_runs_tenant ON tape_runs (tenant_id, agent_id, started_at_ms);
CREATE INDEX tape_runs_actor ON tape_runs (actor);
CREATE INDEX tape_runs_subject ON tape_runs (subject);
CREATE INDEX tape_runs_compactable ON tape_runs (status, compacted_at_ms, ended_at_ms);
CREATE INDEX tape_runs_started ON tape_runs (started_at_ms);

-- A run shows how far its journal goes; the run's head is where that is counted.
CREATE FUNCTION tape_run_heads_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tape_runs SET seq_cursor = changed.seq FROM changed WHERE tape_runs.run_id = changed.run_id;
    RETURN NULL;
END $$;
CREATE TRIGGER tape_run_heads_inserted AFTER INSERT ON tape_run_heads
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tape_run_heads_changed();
CREATE TRIGGER tape_run_heads_updated AFTER UPDATE ON tape_run_heads
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tape_run_heads_changed();

CREATE TABLE tape_decisions (
    run_id          TEXT COLLATE "C" NOT NULL,
    seq             BIGINT  NOT NULL,
    decision_index  BIGINT  NOT NULL,
    model           TEXT    NOT NULL,
    request_json    TEXT    NOT NULL,
    response_json   TEXT    NOT NULL,
    rationale       TEXT    NOT NULL DEFAULT '',
    policy_version  TEXT    NOT NULL DEFAULT '',
    ts_ms           BIGINT  NOT NULL,
    PRIMARY KEY (run_id, decision_index)
);

CREATE TABLE tape_effects (
    run_id                        TEXT COLLATE "C" NOT NULL,
    seq                           BIGINT  NOT NULL,
    decision_index                BIGINT  NOT NULL,
    tool_name                     TEXT    NOT NULL,
    idempotency_key               TEXT COLLATE "C" NOT NULL,
    status                        INTEGER NOT NULL,
    request_json                  TEXT    NOT NULL DEFAULT '',
    response_json                 TEXT    NOT NULL DEFAULT '',
    error_json                    TEXT    NOT NULL DEFAULT '',
    ts_ms                         BIGINT  NOT NULL,
    semantics                     INTEGER NOT NULL DEFAULT 1,
    dispatch_mode                 INTEGER NOT NULL DEFAULT 1,
    business_key                  TEXT COLLATE "C" NOT NULL DEFAULT '',
    connector                     TEXT COLLATE "C" NOT NULL DEFAULT '',
    dispatch_attempts             INTEGER NOT NULL DEFAULT 0,
    next_dispatch_at_ms           BIGINT  NOT NULL DEFAULT 0,
    external_ref                  TEXT    NOT NULL DEFAULT '',
    dispatch_claimed_by           TEXT    NOT NULL DEFAULT '',
    dispatch_claim_expires_at_ms  BIGINT  NOT NULL DEFAULT 0,
    last_dispatch_error           TEXT    NOT NULL DEFAULT '',
    scope                         TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, idempotency_key)
);
CREATE UNIQUE INDEX tape_effects_business ON tape_effects (connector, business_key)
    WHERE connector <> '' AND business_key <> '';
CREATE INDEX tape_effects_dispatch ON tape_effects (next_dispatch_at_ms, ts_ms) WHERE status = 1 AND dispatch_mode = 2;
CREATE INDEX tape_effects_open ON tape_effects (status, ts_ms) WHERE status IN (1, 4);

CREATE TABLE tape_obligations (
    run_id               TEXT COLLATE "C" NOT NULL,
    seq                  BIGINT  NOT NULL,
    effect_key           TEXT COLLATE "C" NOT NULL,
    kind                 TEXT    NOT NULL,
    payload_json         TEXT    NOT NULL DEFAULT '',
    status               INTEGER NOT NULL,
    ts_ms                BIGINT  NOT NULL,
    compensator_ref      TEXT    NOT NULL DEFAULT '',
    attempts             INTEGER NOT NULL DEFAULT 0,
    max_attempts         INTEGER NOT NULL DEFAULT 5,
    next_attempt_at_ms   BIGINT  NOT NULL DEFAULT 0,
    last_error           TEXT    NOT NULL DEFAULT '',
    claimed_by           TEXT    NOT NULL DEFAULT '',
    claim_expires_at_ms  BIGINT  NOT NULL DEFAULT 0,
    result_json          TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, seq)
);
CREATE UNIQUE INDEX tape_obligations_effect ON tape_obligations (run_id, effect_key, kind);
CREATE INDEX tape_obligations_open ON tape_obligations (next_attempt_at_ms, ts_ms) WHERE status IN (1, 2, 4);

CREATE TABLE tape_budget (
    run_id        TEXT COLLATE "C" PRIMARY KEY,
    usd_cap       DOUBLE PRECISION NOT NULL DEFAULT 0,
    token_cap     BIGINT  NOT NULL DEFAULT 0,
    usd_spent     DOUBLE PRECISION NOT NULL DEFAULT 0,
    tokens_spent  BIGINT  NOT NULL DEFAULT 0
);

CREATE TABLE tape_signals (
    run_id           TEXT COLLATE "C" NOT NULL,
    gate_name        TEXT COLLATE "C" NOT NULL,
    context_json     TEXT    NOT NULL DEFAULT '',
    resolution_json  TEXT    NOT NULL DEFAULT '',
    delivered        INTEGER NOT NULL DEFAULT 0,
    awaited          INTEGER NOT NULL DEFAULT 0,
    consumed         INTEGER NOT NULL DEFAULT 0,
    created_at_ms    BIGINT  NOT NULL,
    PRIMARY KEY (run_id, gate_name)
);

CREATE TABLE tape_sessions (
    app_name             TEXT COLLATE "C" NOT NULL,
    user_id              TEXT COLLATE "C" NOT NULL,
    session_id           TEXT COLLATE "C" NOT NULL,
    state_json           TEXT    NOT NULL DEFAULT '{}',
    last_update_time_ms  BIGINT  NOT NULL,
    PRIMARY KEY (app_name, user_id, session_id)
);

CREATE TABLE tape_events (
    app_name       TEXT COLLATE "C" NOT NULL,
    user_id        TEXT COLLATE "C" NOT NULL,
    session_id     TEXT COLLATE "C" NOT NULL,
    ord            BIGINT  NOT NULL,
    event_id       TEXT COLLATE "C" NOT NULL,
    invocation_id  TEXT COLLATE "C" NOT NULL DEFAULT '',
    author         TEXT    NOT NULL DEFAULT '',
    branch         TEXT    NOT NULL DEFAULT '',
    content_json   TEXT    NOT NULL DEFAULT '',
    actions_json   TEXT    NOT NULL DEFAULT '',
    timestamp_ms   BIGINT  NOT NULL,
    PRIMARY KEY (app_name, user_id, session_id, ord)
);
CREATE INDEX tape_events_id ON tape_events (app_name, user_id, session_id, event_id);

CREATE TABLE tape_scoped_state (
    app_name    TEXT COLLATE "C" NOT NULL,
    scope       TEXT NOT NULL,
    scope_key   TEXT COLLATE "C" NOT NULL,
    key         TEXT NOT NULL,
    value_json  TEXT NOT NULL,
    PRIMARY KEY (app_name, scope, scope_key, key)
);

CREATE TABLE tape_timers (
    run_id         TEXT COLLATE "C" NOT NULL,
    timer_id       TEXT COLLATE "C" NOT NULL,
    fire_at_ms     BIGINT  NOT NULL,
    kind           TEXT    NOT NULL DEFAULT '',
    payload_json   TEXT    NOT NULL DEFAULT '',
    fired          INTEGER NOT NULL DEFAULT 0,
    created_at_ms  BIGINT  NOT NULL,
    PRIMARY KEY (run_id, timer_id)
);
CREATE INDEX tape_timers_due ON tape_timers (fire_at_ms) WHERE fired = 0;
