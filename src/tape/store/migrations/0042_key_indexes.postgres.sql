-- Entries by subject and by identity stay indexes of the table here: they take a small part of a commit, and moving them
-- behind it would not pay. Requests expire by a scan, so that an append changes one index less.
DROP INDEX tape_append_requests_ts;
