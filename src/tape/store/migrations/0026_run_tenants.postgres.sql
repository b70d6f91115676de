-- Run ids are unique per tenant. The order of the columns keeps lookups by run id alone on the index.
ALTER TABLE tape_journal DROP CONSTRAINT tape_journal_run_id_seq_key;
CREATE UNIQUE INDEX tape_journal_run ON tape_journal (run_id, tenant, seq);

-- The last seq of every run of a tenant. The tenants of a run from before continue above the last seq of all of them, so
-- that no seq of the run is given twice.
CREATE TABLE tape_run_heads_new (
    run_id  TEXT    COLLATE "C" NOT NULL,
    tenant  TEXT    COLLATE "C" NOT NULL,
    seq     BIGINT  NOT NULL,
    PRIMARY KEY (run_id, tenant)
);
INSERT INTO tape_run_heads_new
    SELECT j.run_id, j.tenant, h.seq FROM (SELECT DISTINCT run_id, tenant FROM tape_journal) j
    JOIN tape_run_heads h ON h.run_id = j.run_id;
-- The run of a ledger belongs to its tenant, also if none of its entries is left.
INSERT INTO tape_run_heads_new
    SELECT h.run_id, r.tenant, h.seq FROM tape_run_heads h JOIN tape_runs r ON r.run_id = h.run_id
    ON CONFLICT DO NOTHING;

-- The last seq of runs of which entries were pruned before run ids had tenants: whose they were is not known any more, so
-- every tenant that has no head in such a run continues above it.
CREATE TABLE tape_pruned_runs (
    run_id  TEXT    COLLATE "C" PRIMARY KEY,
    seq     BIGINT  NOT NULL
);
INSERT INTO tape_pruned_runs
    SELECT h.run_id, h.seq FROM tape_run_heads h
    LEFT JOIN (SELECT run_id, count(*) AS entries FROM tape_journal GROUP BY run_id) j ON j.run_id = h.run_id
    WHERE (SELECT oldest FROM tape_head WHERE id = 1) > 1
    AND NOT EXISTS (SELECT 1 FROM tape_runs r WHERE r.run_id = h.run_id)
    AND h.seq > coalesce(j.entries, 0);
DROP TABLE tape_run_heads;
ALTER TABLE tape_run_heads_new RENAME TO tape_run_heads;
ALTER INDEX tape_run_heads_new_pkey RENAME TO tape_run_heads_pkey;
CREATE OR REPLACE FUNCTION tape_run_heads_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tape_runs SET seq_cursor = changed.seq FROM changed
    WHERE tape_runs.run_id = changed.run_id AND tape_runs.tenant = changed.tenant;
    RETURN NULL;
END $$;
CREATE TRIGGER tape_run_heads_inserted AFTER INSERT ON tape_run_heads
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tape_run_heads_changed();
CREATE TRIGGER tape_run_heads_updated AFTER UPDATE ON tape_run_heads
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tape_run_heads_changed();

-- Effects and runs of two tenants that have the same run id are not one.
ALTER TABLE tape_rollup_open DROP CONSTRAINT tape_rollup_open_pkey;
ALTER TABLE tape_rollup_open ADD PRIMARY KEY (run_id, tenant, measure, name);

-- Entries keep their tenant, which is in the hash chain: those of `tenant` belong to `owner`.
CREATE TABLE tape_tenant_aliases (
    tenant         TEXT    COLLATE "C" PRIMARY KEY,
    owner          TEXT    COLLATE "C" NOT NULL,
    created_at_ms  BIGINT  NOT NULL
);
