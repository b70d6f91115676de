-- Run ids are unique per tenant. The order of the columns keeps lookups by run id alone on the index.
-- SQLite cannot drop the index of a UNIQUE constraint, and a rebuilt table would be written twice, to the log and to the
-- file. So the constraint becomes an index with a name, which is the same tree on disk, and that one is dropped. If the
-- table was not made by the statement that is expected here, the check below fails and nothing is changed.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, ',' || char(10) || '    UNIQUE (run_id, seq)', '')
    WHERE type = 'table' AND name = 'tape_journal';
UPDATE sqlite_schema SET name = 'tape_journal_run_seq',
        sql = 'CREATE UNIQUE INDEX tape_journal_run_seq ON tape_journal (run_id, seq)'
    WHERE type = 'index' AND name = 'sqlite_autoindex_tape_journal_1';
CREATE TABLE tape_check (changed INTEGER CHECK (changed = 2)) STRICT;
INSERT INTO tape_check SELECT count(*) FROM sqlite_schema
    WHERE name = 'tape_journal_run_seq' OR (name = 'tape_journal' AND sql NOT LIKE '%UNIQUE%');
DROP TABLE tape_check;
PRAGMA writable_schema = RESET;
DROP INDEX tape_journal_run_seq;
CREATE UNIQUE INDEX tape_journal_run ON tape_journal (run_id, tenant, seq);

-- The last seq of every run of a tenant. The tenants of a run from before continue above the last seq of all of them, so
-- that no seq of the run is given twice.
DROP TRIGGER tape_run_heads_inserted;
DROP TRIGGER tape_run_heads_updated;
CREATE TABLE tape_run_heads_new (
    run_id  TEXT    NOT NULL,
    tenant  TEXT    NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (run_id, tenant)
) STRICT, WITHOUT ROWID;
INSERT INTO tape_run_heads_new
    SELECT run_id, tenant, (SELECT seq FROM tape_run_heads h WHERE h.run_id = j.run_id)
    FROM (SELECT DISTINCT run_id, tenant FROM tape_journal) j;
-- The run of a ledger belongs to its tenant, also if none of its entries is left.
INSERT INTO tape_run_heads_new
    SELECT h.run_id, r.tenant, h.seq FROM tape_run_heads h CROSS JOIN tape_runs r ON r.run_id = h.run_id
    WHERE true ON CONFLICT DO NOTHING;

-- The last seq of runs of which entries were pruned before run ids had tenants: whose they were is not known any more, so
-- every tenant that has no head in such a run continues above it.
CREATE TABLE tape_pruned_runs (
    run_id  TEXT    PRIMARY KEY,
    seq     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO tape_pruned_runs
    SELECT h.run_id, h.seq FROM tape_run_heads h
    WHERE (SELECT oldest FROM tape_head WHERE id = 1) > 1
    AND NOT EXISTS (SELECT 1 FROM tape_runs r WHERE r.run_id = h.run_id)
    AND h.seq > (SELECT count(*) FROM tape_journal j WHERE j.run_id = h.run_id);
DROP TABLE tape_run_heads;
ALTER TABLE tape_run_heads_new RENAME TO tape_run_heads;
CREATE TRIGGER tape_run_heads_inserted AFTER INSERT ON tape_run_heads BEGIN
    UPDATE tape_runs SET seq_cursor = NEW.seq WHERE run_id = NEW.run_id AND tenant = NEW.tenant;
END;
CREATE TRIGGER tape_run_heads_updated AFTER UPDATE ON tape_run_heads BEGIN
    UPDATE tape_runs SET seq_cursor = NEW.seq WHERE run_id = NEW.run_id AND tenant = NEW.tenant;
END;

-- Effects and runs of two tenants that have the same run id are not one.
CREATE TABLE tape_rollup_open_new (
    run_id      TEXT    NOT NULL,
    measure     TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    tool        TEXT    NOT NULL,
    global_seq  INTEGER NOT NULL,
    ts_ms       INTEGER NOT NULL,
    PRIMARY KEY (run_id, tenant, measure, name)
) STRICT, WITHOUT ROWID;
INSERT INTO tape_rollup_open_new SELECT run_id, measure, name, tenant, tool, global_seq, ts_ms FROM tape_rollup_open;
DROP TABLE tape_rollup_open;
ALTER TABLE tape_rollup_open_new RENAME TO tape_rollup_open;

-- Entries keep their tenant, which is in the hash chain: those of `tenant` belong to `owner`.
CREATE TABLE tape_tenant_aliases (
    tenant         TEXT    PRIMARY KEY,
    owner          TEXT    NOT NULL,
    created_at_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
