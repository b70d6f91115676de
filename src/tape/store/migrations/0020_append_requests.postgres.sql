-- Request ids are unique per tenant, and a repeated one must have the same content: `digest` is over subject, run and
-- payload, empty where the first write wins. Requests from before this migration answer any tenant.
ALTER TABLE tape_append_requests
    ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN digest bytea NOT NULL DEFAULT '',
    ADD COLUMN any_tenant integer NOT NULL DEFAULT 0;
UPDATE tape_append_requests SET any_tenant = 1;
ALTER TABLE tape_append_requests DROP CONSTRAINT tape_append_requests_pkey;
ALTER TABLE tape_append_requests ADD PRIMARY KEY (request_id, tenant);
