-- Which offsets of a source's parts have become runs, for sources that are read by offset. Stretches that touch are one row.
CREATE TABLE tape_taken (
    subscription TEXT    NOT NULL,
    part         TEXT    NOT NULL,
    first_offset INTEGER NOT NULL,
    next_offset  INTEGER NOT NULL,
    PRIMARY KEY (subscription, part, first_offset)
) STRICT, WITHOUT ROWID;
