-- Schedules: cron expressions that begin runs. `due_ms` is the next time at which a server acts; 0 while it is paused.
CREATE TABLE tape_schedules (
    tenant            TEXT NOT NULL,
    name              TEXT NOT NULL,
    cron              TEXT NOT NULL,
    time_zone         TEXT NOT NULL,
    overlap           TEXT NOT NULL,
    catch_up_ms       BIGINT NOT NULL,
    jitter_ms         BIGINT NOT NULL,
    app_name          TEXT NOT NULL,
    user_id           TEXT NOT NULL,
    session_id        TEXT NOT NULL,
    playbook          TEXT NOT NULL,
    input_json        TEXT NOT NULL,
    paused            INTEGER NOT NULL,
    created_at_ms     BIGINT NOT NULL,
    created_by        TEXT NOT NULL,
    planned_at_ms     BIGINT NOT NULL,
    nominal_ms        BIGINT NOT NULL,
    due_ms            BIGINT NOT NULL,
    buffered_ms       BIGINT NOT NULL,
    last_nominal_ms   BIGINT NOT NULL,
    last_fired_at_ms  BIGINT NOT NULL,
    last_run_id       TEXT NOT NULL,
    last_error        TEXT NOT NULL,
    begun             BIGINT NOT NULL,
    skipped           BIGINT NOT NULL,
    missed            BIGINT NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE INDEX tape_schedules_due ON tape_schedules (due_ms) WHERE due_ms > 0;
CREATE INDEX tape_schedules_name ON tape_schedules (name, tenant);
