-- Ranges of the journal that are not what was written, as readers and the scrubber met them. Neighbouring ranges are one row.
CREATE TABLE tape_damage (
    first       INTEGER PRIMARY KEY,
    last        INTEGER NOT NULL,
    problem     TEXT    NOT NULL,
    detail      TEXT    NOT NULL,
    seen_ms     INTEGER NOT NULL
) STRICT;
