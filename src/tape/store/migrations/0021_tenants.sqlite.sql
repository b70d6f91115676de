-- Names that clients choose are unique per tenant. The tenant of a run that names none is its app, as its entries say.
DROP TRIGGER tape_run_heads_inserted;
DROP TRIGGER tape_run_heads_updated;
CREATE TABLE tape_runs_new (
    run_id               TEXT    PRIMARY KEY,
    app_name             TEXT    NOT NULL,
    user_id              TEXT    NOT NULL,
    session_id           TEXT    NOT NULL,
    invocation_id        TEXT    NOT NULL,
    status               INTEGER NOT NULL,
    seq_cursor           INTEGER NOT NULL DEFAULT 0,
    lease_owner          TEXT    NOT NULL DEFAULT '',
    lease_expires_at_ms  INTEGER NOT NULL DEFAULT 0,
    waiting_on_gate      TEXT    NOT NULL DEFAULT '',
    detail_json          TEXT    NOT NULL DEFAULT '',
    started_at_ms        INTEGER NOT NULL,
    ended_at_ms          INTEGER NOT NULL DEFAULT 0,
    tenant_id            TEXT    NOT NULL DEFAULT '',
    actor                TEXT    NOT NULL DEFAULT '',
    subject              TEXT    NOT NULL DEFAULT '',
    agent_id             TEXT    NOT NULL DEFAULT '',
    aiplex_instance_id   TEXT    NOT NULL DEFAULT '',
    gateway_route        TEXT    NOT NULL DEFAULT '',
    scopes_json          TEXT    NOT NULL DEFAULT '[]',
    labels_json          TEXT    NOT NULL DEFAULT '{}',
    compacted_at_ms      INTEGER NOT NULL DEFAULT 0,
    former_status        INTEGER NOT NULL DEFAULT 0,
    dead_task_id         TEXT    NOT NULL DEFAULT '',
    tenant               TEXT    NOT NULL DEFAULT '',
    UNIQUE (app_name, user_id, session_id, invocation_id, tenant)
) STRICT;
INSERT INTO tape_runs_new
    SELECT run_id, app_name, user_id, session_id, invocation_id, status, seq_cursor, lease_owner, lease_expires_at_ms,
           waiting_on_gate, detail_json, started_at_ms, ended_at_ms, tenant_id, actor, subject, agent_id,
           aiplex_instance_id, gateway_route, scopes_json, labels_json, compacted_at_ms, former_status, dead_task_id,
           CASE WHEN tenant_id <> '' THEN tenant_id ELSE app_name END
    FROM tape_runs;
DROP TABLE tape_runs;
ALTER TABLE tape_runs_new RENAME TO tape_runs;
CREATE INDEX tape_runs_recover ON tape_runs (status, lease_expires_at_ms);
CREATE INDEX tape_runs_route ON tape_runs (app_name, user_id, session_id, started_at_ms);
CREATE INDEX tape_runs_tenant ON tape_runs (tenant_id, agent_id, started_at_ms);
CREATE INDEX tape_runs_actor ON tape_runs (actor);
CREATE INDEX tape_runs_subject ON tape_runs (subject);
CREATE INDEX tape_runs_compactable ON tape_runs (status, compacted_at_ms, ended_at_ms);
CREATE INDEX tape_runs_started ON tape_runs (started_at_ms);
CREATE INDEX tape_runs_of_app ON tape_runs (app_name, status, started_at_ms);
CREATE INDEX tape_runs_of_user ON tape_runs (app_name, user_id, started_at_ms);
CREATE INDEX tape_runs_of_status ON tape_runs (status, started_at_ms);
CREATE INDEX tape_runs_to_recover ON tape_runs (status, lease_expires_at_ms) WHERE app_name <> 'playbooks';
CREATE INDEX tape_runs_of_tenant ON tape_runs (tenant, started_at_ms);
CREATE TRIGGER tape_run_heads_inserted AFTER INSERT ON tape_run_heads BEGIN
    UPDATE tape_runs SET seq_cursor = NEW.seq WHERE run_id = NEW.run_id;
END;
CREATE TRIGGER tape_run_heads_updated AFTER UPDATE ON tape_run_heads BEGIN
    UPDATE tape_runs SET seq_cursor = NEW.seq WHERE run_id = NEW.run_id;
END;

ALTER TABLE tape_effects ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
UPDATE tape_effects SET tenant = coalesce((SELECT tenant FROM tape_runs WHERE tape_runs.run_id = tape_effects.run_id), '')
    WHERE business_key <> '';
DROP INDEX tape_effects_business;
CREATE UNIQUE INDEX tape_effects_business ON tape_effects (connector, business_key, tenant)
    WHERE connector <> '' AND business_key <> '';

CREATE TABLE tape_values_new (
    namespace   TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    tenant      TEXT    NOT NULL DEFAULT '',
    value_json  TEXT    NOT NULL DEFAULT '',
    version     INTEGER NOT NULL DEFAULT 0,
    ts_ms       INTEGER NOT NULL,
    writer      TEXT    NOT NULL DEFAULT '',
    deleted     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, key, tenant)
) STRICT, WITHOUT ROWID;
INSERT INTO tape_values_new SELECT namespace, key, '', value_json, version, ts_ms, writer, deleted FROM tape_values;
DROP TABLE tape_values;
ALTER TABLE tape_values_new RENAME TO tape_values;
