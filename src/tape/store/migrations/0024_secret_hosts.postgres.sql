-- The hosts that a secret may be sent to, host or host:port, separated by commas. Empty: not bound to a host.
ALTER TABLE tape_secrets ADD COLUMN hosts TEXT NOT NULL DEFAULT '';
