-- Gates: whose they are, their risk, deadline, reminder and escalation, and who answered when. The texts `shown_…` are
-- without secrets, and empty where the text beside them has none. `next_at_ms` is the next time at which a server acts.
ALTER TABLE tape_signals ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_signals ADD COLUMN app_name TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_signals ADD COLUMN risk TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_signals ADD COLUMN deadline_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tape_signals ADD COLUMN on_timeout_json TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_signals ADD COLUMN shown_timeout_json TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_signals ADD COLUMN remind_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tape_signals ADD COLUMN reminded_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tape_signals ADD COLUMN escalate_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tape_signals ADD COLUMN escalated_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tape_signals ADD COLUMN next_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tape_signals ADD COLUMN shown_answer_json TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_signals ADD COLUMN answered_by TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_signals ADD COLUMN answered_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tape_signals ADD COLUMN timed_out INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tape_signals ADD COLUMN closed INTEGER NOT NULL DEFAULT 0;
UPDATE tape_signals SET
    tenant = coalesce((SELECT r.tenant FROM tape_runs r WHERE r.run_id = tape_signals.run_id), ''),
    app_name = coalesce((SELECT r.app_name FROM tape_runs r WHERE r.run_id = tape_signals.run_id), '');
CREATE INDEX tape_signals_due ON tape_signals (next_at_ms) WHERE next_at_ms > 0;
CREATE INDEX tape_signals_open ON tape_signals (created_at_ms, run_id, gate_name)
    WHERE delivered = 0 AND closed = 0;
CREATE INDEX tape_signals_open_tenant ON tape_signals (tenant, created_at_ms, run_id, gate_name)
    WHERE delivered = 0 AND closed = 0;
CREATE INDEX tape_signals_time ON tape_signals (created_at_ms, run_id, gate_name);
CREATE INDEX tape_signals_tenant ON tape_signals (tenant, created_at_ms, run_id, gate_name);
