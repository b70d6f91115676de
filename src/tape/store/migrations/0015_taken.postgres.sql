-- Which offsets of a source's parts have become runs, for sources that are read by offset. Stretches that touch are one row.
CREATE TABLE tape_taken (
    subscription TEXT   COLLATE "C" NOT NULL,
    part         TEXT   COLLATE "C" NOT NULL,
    first_offset BIGINT NOT NULL,
    next_offset  BIGINT NOT NULL,
    PRIMARY KEY (subscription, part, first_offset)
);
