-- Timers that the server fires itself: when it is to, when it did, and when a sleep was set.
ALTER TABLE tape_timers ADD COLUMN server_due_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tape_timers ADD COLUMN server_fired_at_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tape_timers ADD COLUMN set_at_ms BIGINT NOT NULL DEFAULT 0;
UPDATE tape_timers SET server_due_ms = CASE WHEN fire_at_ms > 0 THEN fire_at_ms ELSE 1 END
    WHERE fired = 0 AND kind IN ('wake', 'gate_timeout', 'reconcile');
CREATE INDEX tape_timers_server ON tape_timers (server_due_ms) WHERE server_due_ms > 0;
CREATE INDEX tape_timers_server_fired ON tape_timers (server_fired_at_ms) WHERE server_fired_at_ms > 0;
