-- Names that clients choose are unique per tenant. The tenant of a run that names none is its app, as its entries say.
ALTER TABLE tape_runs ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '';
UPDATE tape_runs SET tenant = CASE WHEN tenant_id <> '' THEN tenant_id ELSE app_name END;
ALTER TABLE tape_runs DROP CONSTRAINT tape_runs_app_name_user_id_session_id_invocation_id_key;
ALTER TABLE tape_runs ADD UNIQUE (app_name, user_id, session_id, invocation_id, tenant);
CREATE INDEX tape_runs_of_tenant ON tape_runs (tenant, started_at_ms);

ALTER TABLE tape_effects ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '';
UPDATE tape_effects SET tenant = tape_runs.tenant FROM tape_runs
    WHERE tape_runs.run_id = tape_effects.run_id AND business_key <> '';
DROP INDEX tape_effects_business;
CREATE UNIQUE INDEX tape_effects_business ON tape_effects (connector, business_key, tenant)
    WHERE connector <> '' AND business_key <> '';

ALTER TABLE tape_values ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE tape_values DROP CONSTRAINT tape_values_pkey;
ALTER TABLE tape_values ADD PRIMARY KEY (namespace, key, tenant);
