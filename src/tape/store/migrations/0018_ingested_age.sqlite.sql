-- Ids that an ingest has remembered for long enough are found by their age.
CREATE INDEX tape_ingested_age ON tape_ingested (producer, ts_ms);
