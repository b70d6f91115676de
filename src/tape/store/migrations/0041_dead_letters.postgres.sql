-- Dead letters that are entries of the journal and were redriven or dropped.
CREATE TABLE tape_settled_dead_letters (
    global_seq     BIGINT PRIMARY KEY,
    action         TEXT   NOT NULL,
    settled_at_ms  BIGINT NOT NULL
);
